#include "scalar.h"
#include "householder.h"

// What a group of 256 threads finds out about R, in falling order of what it means for X.
constexpr constant uint OVERFLOWED = 2;
constexpr constant uint FILLED = 1;
constexpr constant uint EMPTY = 0;

// What is left of least squares once [A B] is [R C], R upper triangular in n columns, and X is
// R^-1 C, from the threadgroups along x: of the first k the squared norms of the columns of B - A
// X, of the last the place of the first zero on the diagonal of R, counted from 1, or 0. A matrix
// of zeros has X = 0, as in LAPACK, and one whose R overflowed has NaN.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void lstsq_finish(
    device const T* R [[buffer(0)]],
    device T* X [[buffer(1)]],
    device real_t<T>* residuals [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& rows [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& k [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(Real, sums, 8);
  THREADGROUP_ARRAY(Real, sums_above, 8);
  THREADGROUP_ARRAY(uint, places, 8);
  THREADGROUP_ARRAY(uint, states, 8);
  device const T* matrix = R + long(group.y) * batch_stride;
  const uint threads = simds * 32;
  const bool may_be_empty = is_zero(matrix[0]);
  Real sum = Real(0);
  Real sum_above = Real(0);
  uint place = UINT_MAX;
  uint state = may_be_empty ? EMPTY : FILLED;
  for (uint j = tid; j < n; j += threads) {
    device const T* column = matrix + ulong(j) * column_stride;
    if (is_zero(column[j])) place = min(place, j + 1);
    if (!(largest_part(column[j]) < Real(INFINITY))) state = OVERFLOWED;
    if (may_be_empty) {
      for (uint i = 0; i <= j; ++i) {
        if (!is_zero(column[i])) state = max(state, FILLED);
      }
    }
  }
  if (group.x < k) {
    device const T* column = matrix + ulong(n + group.x) * column_stride;
#pragma unroll(4)
    for (uint row = n + tid; row < rows; row += threads) {
      const T entry = column[row];
      sum += real_part(mul(conj(entry), entry));
    }
    if (may_be_empty) {
      for (uint row = tid; row < n; row += threads) {
        sum_above += real_part(mul(conj(column[row]), column[row]));
      }
    }
  }
  sum = simd_sum(sum);
  sum_above = simd_sum(sum_above);
  place = simd_min(place);
  state = simd_max(state);
  if (lane == 0) {
    sums[simd] = sum;
    sums_above[simd] = sum_above;
    places[simd] = place;
    states[simd] = state;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint s = 0; s < simds; ++s) {
    sum = s == 0 ? sums[0] : sum + sums[s];
    sum_above = s == 0 ? sums_above[0] : sum_above + sums_above[s];
    place = min(place, places[s]);
    state = max(state, states[s]);
  }
  if (group.x < k) {
    device T* x = X + (ulong(group.y) * k + group.x) * n;
    for (uint j = tid; j < n; j += threads) {
      if (state != FILLED) x[j] = from_real<T>(state == EMPTY ? Real(0) : Real(NAN));
    }
    if (tid == 0) residuals[group.y * k + group.x] = state == EMPTY ? sum + sum_above : sum;
  } else if (tid == 0) {
    info[group.y] = state == EMPTY || place == UINT_MAX ? 0 : int(place);
  }
}
