#include "elimination.h"
#include "reduce.h"
#include "scalar.h"
#include "tile.h"

// One thread solves A X = B for one matrix: LU with partial pivoting, then both substitutions for
// each column of B. A and B have any strides; X is column-major. info: the first zero pivot, from
// 1, else 0.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void solve_tiny(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* X [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& columns [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant uint& b_row_stride [[buffer(8)]],
    constant uint& b_column_stride [[buffer(9)]],
    constant long& b_batch_stride [[buffer(10)]],
    uint id [[thread_position_in_grid]]) {
  device const T* from = A + long(id) * batch_stride;
  T a[N][N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) a[i][j] = from[uint(i) * row_stride + uint(j) * column_stride];
  }
  int swaps[N];
  info[id] = factor<T, N>(a, swaps, true);
  for (uint c = 0; c < columns; ++c) {
    device const T* b = B + long(id) * b_batch_stride + long(c) * long(b_column_stride);
    device T* to = X + (ulong(id) * columns + c) * N;
    T x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = b[uint(i) * b_row_stride];
#pragma unroll
    for (int k = 0; k < N; ++k) swap_entries<T, N>(x, k, uint(swaps[k]) - 1);
    substitute_factors<T, N>(a, x);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = x[i];
  }
}

// A team of N lanes factors its matrix of n <= N rows into `factors`, by columns, and returns the
// position to which pivoting moved the lane's row; `failed` is its info.
template <typename T, int N>
inline uint factor_team(
    device const T* matrix,
    bool inside,
    uint lane,
    uint n,
    uint row_stride,
    uint column_stride,
    threadgroup T* tile,
    threadgroup T* factors,
    thread int& failed) {
  const uint row = lane % uint(N);
  T a[N];
  load_row<T, N>(a, matrix, inside, row, n, n, row_stride, column_stride, tile);
  const bool owns = inside && row < n;
  RowState<T> state = {row, lane - row, owns ? row : UINT_MAX, 0, 0, zero<T>()};
  eliminate_rows<T, N, N>(a, state, n, true);
  // Lanes without a row keep out of the way of those that have one.
  const uint position = owns ? state.position : row;
#pragma unroll
  for (int j = 0; j < N; ++j) factors[uint(j) * uint(N) + position] = a[slot<N>(j)];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  failed = state.failed;
  return position;
}

// N lanes solve for all columns of one matrix with n <= N rows, a column a lane; a simdgroup holds
// 32 / N such teams. Strides and info as above.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void solve_simd(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* X [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& columns [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& row_stride [[buffer(7)]],
    constant uint& column_stride [[buffer(8)]],
    constant long& batch_stride [[buffer(9)]],
    constant uint& b_row_stride [[buffer(10)]],
    constant uint& b_column_stride [[buffer(11)]],
    constant long& b_batch_stride [[buffer(12)]],
    uint id [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tiles, 32 * (N + 1));
  THREADGROUP_ARRAY(T, factors, 32 * N);
  THREADGROUP_ARRAY(uint, positions, 32);
  THREADGROUP_ARRAY(uint, places, 32);
  const uint team = lane / uint(N);
  const uint place = lane % uint(N);
  const uint matrix = id / uint(N);
  const bool inside = matrix < batch;
  threadgroup T* tile = tiles + team * uint(N * (N + 1));
  threadgroup T* own = factors + team * uint(N * N);
  int failed = 0;
  const uint position = factor_team<T, N>(
      A + long(matrix) * batch_stride, inside, lane, n, row_stride, column_stride, tile, own,
      failed);
  if (place == 0 && inside) info[matrix] = failed;
  threadgroup uint* source = positions + team * uint(N);
  threadgroup uint* target = places + team * uint(N);
  source[position] = place;
  target[place] = place;
  for (uint first = 0; first < columns; first += uint(N)) {
    const uint own_columns = inside ? min(uint(N), columns - first) : 0u;
    // A lane's column of B is its row of B^T.
    T x[N];
    load_permuted_row<T, N>(
        x, B + long(matrix) * b_batch_stride + long(first) * long(b_column_stride), inside, place,
        own_columns, n, b_column_stride, b_row_stride, source, tile);
    substitute<T, N, true>(x, own, n, true);
    substitute<T, N, false>(x, own, n, false);
    store_columns<T, N>(
        x, X + (ulong(matrix) * columns + first) * n, place, n, own_columns, n, target, tile);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// The same for few columns, one after the other: a lane keeps one entry of x.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void solve_few(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* X [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& columns [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& row_stride [[buffer(7)]],
    constant uint& column_stride [[buffer(8)]],
    constant long& batch_stride [[buffer(9)]],
    constant uint& b_row_stride [[buffer(10)]],
    constant uint& b_column_stride [[buffer(11)]],
    constant long& b_batch_stride [[buffer(12)]],
    uint id [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tiles, 32 * (N + 1));
  THREADGROUP_ARRAY(T, factors, 32 * N);
  const uint team = lane / uint(N);
  const uint place = lane % uint(N);
  const uint matrix = id / uint(N);
  const bool inside = matrix < batch;
  threadgroup T* tile = tiles + team * uint(N * (N + 1));
  threadgroup T* own = factors + team * uint(N * N);
  int failed = 0;
  const uint position = factor_team<T, N>(
      A + long(matrix) * batch_stride, inside, lane, n, row_stride, column_stride, tile, own,
      failed);
  if (place == 0 && inside) info[matrix] = failed;
  const uint first_lane = lane - place;
  const bool owns = inside && place < n;
  for (uint c = 0; c < columns; ++c) {
    if (owns) {
      tile[position] =
          B[long(matrix) * b_batch_stride + long(place) * long(b_row_stride) +
            long(c) * long(b_column_stride)];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    T x = owns ? tile[place] : zero<T>();
#pragma unroll(4)
    for (uint k = 0; k < n; ++k) {
      const T known = simd_shuffle(x, ushort(first_lane + k));
      if (place > k) x = mul_sub(x, own[k * uint(N) + place], known);
    }
#pragma unroll(4)
    for (uint k = n; k > 0; --k) {
      const uint j = k - 1;
      if (place == j) x = quotient(x, own[j * uint(N + 1)]);
      const T known = simd_shuffle(x, ushort(first_lane + j));
      if (place < j) x = mul_sub(x, own[j * uint(N) + place], known);
    }
    if (owns) X[(ulong(matrix) * columns + c) * n + place] = x;
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
