#include "scalar.h"

// found := 1 where any of the `count` numbers is not zero; else it stays. Threads that meet one all
// write the same.
template <typename I>
[[max_total_threads_per_threadgroup(256)]] kernel void info_any(
    device const I* info [[buffer(0)]],
    device I* found [[buffer(1)]],
    constant uint& count [[buffer(2)]],
    uint id [[thread_position_in_grid]],
    uint threads [[threads_per_grid]]) {
  I any = 0;
  for (uint i = id; i < count; i += threads) any = any | info[i];
  if (any != 0) found[0] = 1;
}
