#include "scalar.h"
#include "householder.h"

// What is left of least squares once [A B] is [R C] with R upper triangular in n columns, from the
// threadgroups along x: of the first k the squared norms of the columns of C below row n, of the
// last the place of the first zero on the diagonal of R, counted from 1, or 0.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void lstsq_finish(
    device const T* R [[buffer(0)]],
    device real_t<T>* residuals [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& rows [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& k [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  THREADGROUP_ARRAY(real_t<T>, sums, 8);
  THREADGROUP_ARRAY(uint, places, 8);
  device const T* matrix = R + long(group.y) * batch_stride;
  real_t<T> sum = real_t<T>(0);
  uint place = UINT_MAX;
  const uint threads = simds * 32;
  if (group.x < k) {
    device const T* column = matrix + ulong(n + group.x) * column_stride;
#pragma unroll(4)
    for (uint row = n + tid; row < rows; row += threads) {
      const T entry = column[row];
      sum += real_part(mul(conj(entry), entry));
    }
  } else {
    for (uint j = tid; j < n; j += threads) {
      if (is_zero(matrix[ulong(j) * column_stride + j])) place = min(place, j + 1);
    }
  }
  sum = simd_sum(sum);
  place = simd_min(place);
  if (lane == 0) {
    sums[simd] = sum;
    places[simd] = place;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) {
    for (uint s = 1; s < simds; ++s) {
      sum += sums[s];
      place = min(place, places[s]);
    }
    if (group.x < k) {
      residuals[group.y * k + group.x] = sum;
    } else {
      info[group.y] = place == UINT_MAX ? 0 : int(place);
    }
  }
}
