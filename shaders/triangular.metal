#include "scalar.h"
#include "tile.h"

// One simdgroup solves op(M) x = b for 32 columns of X in place, where M is the diagonal block of A
// that starts at row `first` and has size <= N rows. The block's triangle lies in threadgroup
// memory, a lane's column in its registers. The strides of A already say whether op transposes:
// `lower` is of op(A). Neither the other triangle nor a unit diagonal is read. X is column-major.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void triangular_block(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& columns [[buffer(3)]],
    constant uint& first [[buffer(4)]],
    constant uint& size [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& lower [[buffer(9)]],
    constant uint& unit [[buffer(10)]],
    constant uint& conjugated [[buffer(11)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tile, N * (N + 1));
  THREADGROUP_ARRAY(uint, same, N);
  if (lane < uint(N)) same[lane] = lane;
  const uint first_column = group.x * 32;
  const uint own_columns = min(32u, columns - first_column);
  device T* in_place = X + (ulong(group.y) * columns + first_column) * n + first;
  T x[N];
  load_row<T, N>(x, in_place, true, lane, own_columns, size, n, 1, tile);
  device const T* block = A + long(group.y) * batch_stride +
      long(first) * (long(row_stride) + long(column_stride));
  for (uint e = lane; e < uint(N * N); e += 32) {
    // Neighbouring lanes take neighbouring addresses, whichever way A lies.
    const uint fast = e % uint(N);
    const uint slow = e / uint(N);
    const uint i = row_stride < column_stride ? fast : slow;
    const uint j = row_stride < column_stride ? slow : fast;
    const bool wanted = i < size && j < size &&
        (i == j ? unit == 0 : (lower != 0 ? i > j : i < j));
    T entry = zero<T>();
    if (wanted) entry = block[long(i) * long(row_stride) + long(j) * long(column_stride)];
    tile[j * uint(N) + i] = conjugated != 0 ? conj(entry) : entry;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lower != 0) {
    substitute<T, N, true>(x, tile, size, unit != 0);
  } else {
    substitute<T, N, false>(x, tile, size, unit != 0);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  store_columns<T, N>(x, in_place, lane, size, own_columns, n, same, tile);
}
