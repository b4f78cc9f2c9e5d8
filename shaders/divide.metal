#include "scalar.h"
#include "secular.h"
#include "deflation.h"

// NaN has no place in any order: what is not finite counts as zero.
template <typename T> inline T or_zero(T x) { return fabs(x) < T(INFINITY) ? x : T(0); }

// What decouples rows beyond the n-th and sorts behind all others: more than any eigenvalue or
// singular value.
template <typename T> inline T bound(device const T* d, device const T* e, uint n, uint lane) {
  T largest = T(0);
  for (uint i = lane; i < n; i += 32u) {
    const T off = i + 1 < n ? or_zero(e[i]) : T(0);
    largest = max(largest, max(fabs(or_zero(d[i])), fabs(off)));
  }
  largest = simd_max(largest);
  return largest > T(0) ? T(4) * largest : T(1);
}

// The leaves as dense matrices of `rows` rows, a simdgroup each, a column a lane. Of T: less the
// rank-one matrices |e| v v^T, v = (1, sign e), that couple them. SINGULAR: of the transpose of B,
// without the last row of each leaf but the last. couplings: of each leaf with the next one.
template <typename T, int SINGULAR>
kernel void divide_leaves(
    device const T* d [[buffer(0)]],
    device const T* e [[buffer(1)]],
    device T* dense [[buffer(2)]],
    device T* couplings [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& rows [[buffer(5)]],
    constant uint& leaves [[buffer(6)]],
    uint leaf [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint matrix = leaf / leaves;
  const uint first = leaf % leaves * rows;
  device const T* diagonal = d + ulong(matrix) * n;
  device const T* off = e + ulong(matrix) * (n - 1);
  const T padding = first + rows > n ? bound<T>(diagonal, off, n, lane) : T(0);
  const uint row = first + lane;
  const bool last = lane == rows - 1;
  T before = SINGULAR == 0 && row > 0 && row < n ? or_zero(off[row - 1]) : T(0);
  T after = row + 1 < n ? or_zero(off[row]) : T(0);
  T middle = row < n ? or_zero(diagonal[row]) : padding;
  if (last) {
    couplings[2 * leaf] = SINGULAR != 0 ? middle : fabs(after);
    couplings[2 * leaf + 1] = after;
  }
  if (SINGULAR != 0) {
    if (last && (leaf + 1) % leaves != 0) middle = T(0);
  } else {
    if (lane == 0) middle -= fabs(before);
    if (last) middle -= fabs(after);
  }
  if (lane < rows) {
    device T* column = dense + (ulong(leaf) * rows + lane) * rows;
    for (uint i = 0; i < rows; ++i) {
      const T beside = i + 1 == lane ? before : (i == lane + 1 ? after : T(0));
      column[i] = i == lane ? middle : beside;
    }
  }
}

// Brings the singular values of leaves into ascending order, a simdgroup each, a column a lane; the
// null vector of one that is not the last of its matrix, whose left vector is the last row's alone,
// comes last.
template <typename T>
kernel void divide_ascending(
    device const T* old_values [[buffer(0)]],
    device const T* old_right [[buffer(1)]],
    device const T* old_left [[buffer(2)]],
    device T* values [[buffer(3)]],
    device T* right [[buffer(4)]],
    device T* left [[buffer(5)]],
    constant uint& rows [[buffer(6)]],
    constant uint& leaves [[buffer(7)]],
    uint leaf [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const ulong start = ulong(leaf) * rows * rows;
  const bool active = lane < rows;
  const bool has_null = (leaf + 1) % leaves != 0;
  const T of_last_row = active ? old_left[start + lane * rows + rows - 1] : T(0);
  const uint null = simd_max(has_null && fabs(of_last_row) > T(0.5f) ? lane : 0u);
  if (active) {
    uint column = rows - 1 - lane;
    if (has_null) column = lane == null ? rows - 1 : (lane < null ? column - 1 : column);
    values[leaf * rows + column] = old_values[leaf * rows + lane];
    for (uint i = 0; i < rows; ++i) {
      right[start + column * rows + i] = old_right[start + lane * rows + i];
      left[start + column * rows + i] = old_left[start + lane * rows + i];
    }
  }
}

// A merge is four steps, each of which needs all of the one before: what is negligible is deflated,
// then come the roots, the weights and the vectors. Small nodes take them in one launch.
template <typename T, int SINGULAR>
[[max_total_threads_per_threadgroup(256)]] kernel void divide_deflate(
    device const T* values [[buffer(0)]],
    device const T* V [[buffer(1)]],
    device const T* couplings [[buffer(2)]],
    device T* numbers [[buffer(3)]],
    device int* integers [[buffer(4)]],
    constant uint& size [[buffer(5)]],
    constant uint& leaves [[buffer(6)]],
    constant uint& nodes [[buffer(7)]],
    uint index [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  THREADGROUP_ARRAY(T, partial_max, 32);
  THREADGROUP_ARRAY(uint, partial, 32);
  const Halves<T> of = {values, V, couplings, leaves, nodes};
  const Node<T> node = node_at(numbers, integers, size, index);
  deflate<T, SINGULAR>(node, of, index, tid, threads, partial_max, partial);
}

// A simdgroup a root.
template <typename T, int SINGULAR>
kernel void divide_roots(
    device T* numbers [[buffer(0)]],
    device int* integers [[buffer(1)]],
    constant uint& size [[buffer(2)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const Node<T> node = node_at(numbers, integers, size, group.x);
  find_root<T, 32, SINGULAR>(node, group.y * simds + simd, lane);
}

// A simdgroup a slot.
template <typename T, int SINGULAR>
kernel void divide_weights(
    device T* numbers [[buffer(0)]],
    device int* integers [[buffer(1)]],
    constant uint& size [[buffer(2)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const Node<T> node = node_at(numbers, integers, size, group.x);
  correct_weight<T, 32, SINGULAR>(node, group.y * simds + simd, lane);
}

// A simdgroup a slot.
template <typename T, int SINGULAR>
kernel void divide_vectors(
    device T* numbers [[buffer(0)]],
    device int* integers [[buffer(1)]],
    device T* values [[buffer(2)]],
    device T* right [[buffer(3)]],
    device T* left [[buffer(4)]],
    constant uint& size [[buffer(5)]],
    constant uint& columns [[buffer(6)]],
    constant uint& last [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const Node<T> node = node_at(numbers, integers, size, group.x);
  const Results<T> to = {values, right, left, group.x, columns, last};
  write_vector<T, 32, SINGULAR>(node, to, group.y * simds + simd, lane);
}

// diag(V of the first half, V of the second) S, its first n rows and columns; a thread has a row of
// WIDTH columns at a time.
template <typename T>
inline void multiply(
    device const T* V,
    device const T* S,
    device T* product,
    uint size,
    uint n,
    uint tid,
    uint threads) {
  constexpr int WIDTH = 8;
  const uint h = size / 2;
  const uint strips = (n + WIDTH - 1) / WIDTH;
  for (uint item = tid; item < n * strips; item += threads) {
    const uint row = item % n;
    const uint first = item / n * WIDTH;
    device const T* left = V + (row < h ? row : h * h + row - h);
    device const T* right = S + first * size + (row < h ? 0u : h);
    T sums[WIDTH];
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) sums[c] = T(0);
    for (uint k = 0; k < h; ++k) {
      const T x = left[k * h];
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) {
        sums[c] = fma(x, right[first + uint(c) < n ? uint(c) * size + k : k], sums[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      if (first + uint(c) < n) product[(first + uint(c)) * n + row] = sums[c];
    }
  }
}

// A threadgroup a node, all steps and the products; TEAM lanes a root or a slot. Of SINGULAR alone
// the left vectors are read and written.
template <typename T, int TEAM, int SINGULAR>
[[max_total_threads_per_threadgroup(256)]] kernel void divide_merge(
    device const T* halves [[buffer(0)]],
    device const T* V [[buffer(1)]],
    device const T* U [[buffer(2)]],
    device const T* couplings [[buffer(3)]],
    device T* numbers [[buffer(4)]],
    device int* integers [[buffer(5)]],
    device T* values [[buffer(6)]],
    device T* right [[buffer(7)]],
    device T* left [[buffer(8)]],
    device T* new_V [[buffer(9)]],
    device T* new_U [[buffer(10)]],
    constant uint& size [[buffer(11)]],
    constant uint& leaves [[buffer(12)]],
    constant uint& nodes [[buffer(13)]],
    constant uint& columns [[buffer(14)]],
    constant uint& last [[buffer(15)]],
    uint index [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  THREADGROUP_ARRAY(T, partial_max, 32);
  THREADGROUP_ARRAY(uint, partial, 32);
  const uint team = tid / uint(TEAM);
  const uint teams = threads / uint(TEAM);
  const uint lane = tid % uint(TEAM);
  const Node<T> node = node_at(numbers, integers, size, index);
  const Halves<T> of = {halves, V, couplings, leaves, nodes};
  const Results<T> to = {values, right, left, index, columns, last};
  deflate<T, SINGULAR>(node, of, index, tid, threads, partial_max, partial);
  threadgroup_barrier(mem_flags::mem_device);
  for (uint first = 0; first < size; first += teams) {
    find_root<T, TEAM, SINGULAR>(node, first + team, lane);
  }
  threadgroup_barrier(mem_flags::mem_device);
  for (uint first = 0; first < size; first += teams) {
    correct_weight<T, TEAM, SINGULAR>(node, first + team, lane);
  }
  threadgroup_barrier(mem_flags::mem_device);
  for (uint first = 0; first < size; first += teams) {
    write_vector<T, TEAM, SINGULAR>(node, to, first + team, lane);
  }
  threadgroup_barrier(mem_flags::mem_device);
  const ulong old = ulong(index) * size * (size / 2);
  const ulong square = ulong(index) * size * size;
  const ulong start = ulong(index) * columns * columns;
  multiply(V + old, right + square, new_V + start, size, columns, tid, threads);
  if (SINGULAR != 0) {
    multiply(U + old, left + square, new_U + start, size, columns, tid, threads);
  }
}
