#include "determinant.h"
#include "elimination.h"
#include "reduce.h"
#include "scalar.h"
#include "tile.h"

// The determinant of one matrix of any strides by one thread.
template <typename T, int N>
inline Determinant<T> eliminate_tiny(device const T* A, uint row_stride, uint column_stride) {
  T a[N][N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) a[i][j] = A[uint(i) * row_stride + uint(j) * column_stride];
  }
  int swaps[N];
  factor<T, N>(a, swaps, true);
  Determinant<T> det = {one<T>(), 0};
#pragma unroll
  for (int k = 0; k < N; ++k) multiply_pivot<T>(det, a[k][k], swaps[k] != k + 1);
  return det;
}

// The same of n <= N rows by a team of N lanes; all lanes of the simdgroup call it.
template <typename T, int N>
inline Determinant<T> eliminate_simd(
    device const T* A,
    bool inside,
    uint lane,
    uint n,
    uint row_stride,
    uint column_stride,
    threadgroup T* tile) {
  const uint row = lane % uint(N);
  T a[N];
  load_row<T, N>(
      a, A, inside, row, n, n, row_stride, column_stride,
      tile + lane / uint(N) * uint(N * (N + 1)));
  RowState<T> state = {row, lane - row, row < n ? row : UINT_MAX, 0, 0, zero<T>()};
  eliminate_rows<T, N, N>(a, state, n, true);
  Determinant<T> det = {one<T>(), 0};
  if (row < n) multiply_pivot<T>(det, state.diagonal, state.pivot != int(row) + 1);
  return multiply_lanes<T, N>(det);
}

template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void det_tiny(
    device const T* A [[buffer(0)]],
    device T* det [[buffer(1)]],
    constant uint& row_stride [[buffer(2)]],
    constant uint& column_stride [[buffer(3)]],
    constant long& batch_stride [[buffer(4)]],
    uint id [[thread_position_in_grid]]) {
  det[id] =
      determinant<T>(eliminate_tiny<T, N>(A + long(id) * batch_stride, row_stride, column_stride));
}

template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void det_simd(
    device const T* A [[buffer(0)]],
    device T* det [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& batch [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    uint id [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tile, 32 * (N + 1));
  const uint matrix = id / uint(N);
  const Determinant<T> value = eliminate_simd<T, N>(
      A + long(matrix) * batch_stride, matrix < batch, lane, n, row_stride, column_stride, tile);
  if (lane % uint(N) == 0 && matrix < batch) det[matrix] = determinant<T>(value);
}

template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void slogdet_tiny(
    device const T* A [[buffer(0)]],
    device T* sign [[buffer(1)]],
    device real_t<T>* logabsdet [[buffer(2)]],
    constant uint& row_stride [[buffer(3)]],
    constant uint& column_stride [[buffer(4)]],
    constant long& batch_stride [[buffer(5)]],
    uint id [[thread_position_in_grid]]) {
  const Determinant<T> value =
      eliminate_tiny<T, N>(A + long(id) * batch_stride, row_stride, column_stride);
  sign[id] = sign_of<T>(value);
  logabsdet[id] = log_of<T>(value);
}

template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void slogdet_simd(
    device const T* A [[buffer(0)]],
    device T* sign [[buffer(1)]],
    device real_t<T>* logabsdet [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& batch [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    uint id [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tile, 32 * (N + 1));
  const uint matrix = id / uint(N);
  const Determinant<T> value = eliminate_simd<T, N>(
      A + long(matrix) * batch_stride, matrix < batch, lane, n, row_stride, column_stride, tile);
  if (lane % uint(N) == 0 && matrix < batch) {
    sign[matrix] = sign_of<T>(value);
    logabsdet[matrix] = log_of<T>(value);
  }
}
