#include "scalar.h"
#include "tile.h"

// N rows of the 32 columns of a simdgroup into `tile`, a column every N + 1: the lanes read along
// memory. Rows from `size` on and columns from `count` on are zero.
template <typename T, int N>
inline void load_columns(
    device const T* X, uint size, uint count, uint stride, uint lane, threadgroup T* tile) {
  const uint i = lane % uint(N);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const uint c = uint(e) * (32 / N) + lane / uint(N);
    T entry = zero<T>();
    if (i < size && c < count) entry = X[ulong(c) * stride + i];
    tile[c * uint(N + 1) + i] = entry;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

template <typename T, int N>
inline void store_columns(
    thread const T (&x)[N],
    device T* X,
    uint size,
    uint count,
    uint stride,
    uint lane,
    threadgroup T* tile) {
#pragma unroll
  for (int k = 0; k < N; ++k) tile[lane * uint(N + 1) + uint(k)] = x[k];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const uint i = lane % uint(N);
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const uint c = uint(e) * (32 / N) + lane / uint(N);
    if (i < size && c < count) X[ulong(c) * stride + i] = tile[c * uint(N + 1) + i];
  }
  // The next block reads these rows along other lanes.
  simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
}

// Block (i, j) of op(A) into `tile` by columns, zero outside it. Of a diagonal block only the
// triangle is read, without its diagonal where that is unit.
template <typename T, int N>
inline void load_block(
    device const T* A,
    uint row,
    uint column,
    uint end,
    uint row_stride,
    uint column_stride,
    bool lower,
    bool unit,
    bool conjugated,
    uint lane,
    threadgroup T* tile) {
  // Neighbouring lanes take neighbouring addresses, whichever way A lies.
  const bool along_rows = column_stride < row_stride;
#pragma unroll(8)
  for (uint e = lane; e < uint(N * N); e += 32) {
    const uint fast = e % uint(N);
    const uint slow = e / uint(N);
    const uint i = along_rows ? slow : fast;
    const uint j = along_rows ? fast : slow;
    const bool inside = row + i < end && column + j < end;
    const bool triangle = row != column || (lower ? i > j : i < j) || (i == j && !unit);
    T entry = zero<T>();
    if (inside && triangle) {
      entry = A[long(row + i) * long(row_stride) + long(column + j) * long(column_stride)];
    }
    tile[j * uint(N) + i] = conjugated ? conj(entry) : entry;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// One simdgroup solves op(M) x = b for 32 columns of X in place, where M is the diagonal part of A
// with rows first .. end, in blocks of N rows; a lane owns a column. The strides of A already say
// whether op transposes: `lower` is of op(A). Neither the other triangle nor a unit diagonal is
// read. X is column-major.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void triangular_solve(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& columns [[buffer(3)]],
    constant uint& first [[buffer(4)]],
    constant uint& end [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& lower [[buffer(9)]],
    constant uint& unit [[buffer(10)]],
    constant uint& conjugated [[buffer(11)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, block, N * N);
  THREADGROUP_ARRAY(T, tile, 32 * (N + 1));
  device const T* matrix = A + long(group.y) * batch_stride;
  const uint first_column = group.x * 32;
  const uint count = min(32u, columns - first_column);
  device T* own = X + (ulong(group.y) * columns + first_column) * n;
  const uint blocks = (end - first + uint(N) - 1) / uint(N);
  for (uint step = 0; step < blocks; ++step) {
    const uint row = first + (lower != 0 ? step : blocks - 1 - step) * uint(N);
    const uint size = min(uint(N), end - row);
    threadgroup const T* column_of_lane = tile + lane * uint(N + 1);
    load_columns<T, N>(own + row, size, count, n, lane, tile);
    T x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = column_of_lane[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint done = 0; done < step; ++done) {
      const uint column = first + (lower != 0 ? done : blocks - 1 - done) * uint(N);
      load_columns<T, N>(own + column, min(uint(N), end - column), count, n, lane, tile);
      load_block<T, N>(
          matrix, row, column, end, row_stride, column_stride, lower != 0, unit != 0,
          conjugated != 0, lane, block);
#pragma unroll(2)
      for (int j = 0; j < N; ++j) {
        const T known = column_of_lane[j];
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = mul_sub(x[i], block[j * N + i], known);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    load_block<T, N>(
        matrix, row, row, end, row_stride, column_stride, lower != 0, unit != 0, conjugated != 0,
        lane, block);
    if (lower != 0) {
      substitute<T, N, true>(x, block, size, unit != 0);
    } else {
      substitute<T, N, false>(x, block, size, unit != 0);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    store_columns<T, N>(x, own + row, size, count, n, lane, tile);
  }
}

// One threadgroup solves op(M) x = b in place for K columns and rows first .. end: 32 rows by one
// simdgroup, a row a lane; then all threads take them out of the rows that are left, a row each.
// Meant for columns of op(A) along memory. Flags and storage as above.
template <typename T, int K>
[[max_total_threads_per_threadgroup(512)]] kernel void triangular_few(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& first [[buffer(3)]],
    constant uint& end [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant uint& lower [[buffer(8)]],
    constant uint& unit [[buffer(9)]],
    constant uint& conjugated [[buffer(10)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, known, 32 * K);
  THREADGROUP_ARRAY(T, block, 32 * 32);
  device const T* matrix = A + long(group) * batch_stride;
  device T* own = X + ulong(group) * n * K;
  const uint blocks = (end - first + 31) / 32;
  for (uint step = 0; step < blocks; ++step) {
    const uint top = first + (lower != 0 ? step : blocks - 1 - step) * 32;
    const uint size = min(32u, end - top);
    for (uint e = tid; e < 32 * 32; e += threads) {
      const uint i = e % 32;
      const uint j = e / 32;
      const bool triangle = lower != 0 ? i > j : i < j;
      T entry = i == j ? one<T>() : zero<T>();
      if (i < size && j < size && (triangle || (i == j && unit == 0))) {
        entry = matrix[long(top + i) * long(row_stride) + long(top + j) * long(column_stride)];
      }
      block[e] = conjugated != 0 ? conj(entry) : entry;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd == 0) {
      T x[K];
#pragma unroll
      for (int c = 0; c < K; ++c) x[c] = lane < size ? own[uint(c) * n + top + lane] : zero<T>();
#pragma unroll(2)
      for (uint e = 0; e < 32; ++e) {
        const uint j = lower != 0 ? e : 31 - e;
        const T entry = block[j * 32 + lane];
#pragma unroll
        for (int c = 0; c < K; ++c) {
          T solved = simd_shuffle(x[c], ushort(j));
          if (unit == 0) solved = quotient(solved, block[j * 33]);
          const bool open = lower != 0 ? lane > j : lane < j;
          x[c] = lane == j ? solved : (open ? mul_sub(x[c], entry, solved) : x[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < K; ++c) {
        known[uint(c) * 32 + lane] = x[c];
        if (lane < size) own[uint(c) * n + top + lane] = x[c];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint begin = lower != 0 ? top + size : first;
    const uint stop = lower != 0 ? end : top;
    for (uint row = begin + tid; row < stop; row += threads) {
      device const T* from =
          matrix + long(row) * long(row_stride) + long(top) * long(column_stride);
      T sum[K];
#pragma unroll
      for (int c = 0; c < K; ++c) sum[c] = own[uint(c) * n + row];
#pragma unroll(16)
      for (uint j = 0; j < 32; ++j) {
        T entry = zero<T>();
        if (j < size) entry = *from;
        from += column_stride;
        if (conjugated != 0) entry = conj(entry);
#pragma unroll
        for (int c = 0; c < K; ++c) sum[c] = mul_sub(sum[c], entry, known[uint(c) * 32 + j]);
      }
#pragma unroll
      for (int c = 0; c < K; ++c) own[uint(c) * n + row] = sum[c];
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
}
