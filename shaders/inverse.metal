#include "reduce.h"
#include "rows.h"
#include "scalar.h"
#include "tile.h"

// a := a^-1 in registers by Gauss-Jordan elimination with row pivoting. Returns the first zero
// pivot, from 1, else 0.
template <typename T, int N> inline int invert(thread T (&a)[N][N]) {
  uint swapped[N];
  int failed = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const uint p = pivot_row<T, N>(a, k, true);
    swapped[k] = p;
    swap_rows<T, N>(a, k, p);
    const T pivot = a[k][k];
    failed = is_zero(pivot) && failed == 0 ? k + 1 : failed;
    const T inverse = quotient(one<T>(), pivot);
    const bool by_inverse = has_inverse(pivot);
    a[k][k] = one<T>();
    // The pivot's row is scaled last: scaled first it may leave the range where its products do
    // not.
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i != k) {
        const T entry = a[i][k];
        T factor = mul(entry, inverse);
        if (!by_inverse) factor = quotient(entry, pivot);
        a[i][k] = zero<T>();
#pragma unroll
        for (int j = 0; j < N; ++j) a[i][j] = mul_sub(a[i][j], factor, a[k][j]);
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const T entry = a[k][j];
      a[k][j] = mul(entry, inverse);
      if (!by_inverse) a[k][j] = quotient(entry, pivot);
    }
  }
  // The inverse of P A has its columns permuted: undo the swaps from the last to the first.
#pragma unroll
  for (int k = N - 1; k >= 0; --k) swap_columns_of<T, N>(a, k, swapped[k]);
  return failed;
}

// One thread inverts one N x N matrix of any strides. X is column-major.
// info: the first zero pivot, from 1, else 0.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void inverse_tiny(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& row_stride [[buffer(3)]],
    constant uint& column_stride [[buffer(4)]],
    constant long& batch_stride [[buffer(5)]],
    uint id [[thread_position_in_grid]]) {
  device const T* from = A + long(id) * batch_stride;
  T a[N][N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) a[i][j] = from[uint(i) * row_stride + uint(j) * column_stride];
  }
  info[id] = invert<T, N>(a);
  device T* to = X + ulong(id) * (N * N);
#pragma unroll
  for (int j = 0; j < N; ++j) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[j * N + i] = a[i][j];
  }
}

// The same where the matrices of A follow each other without a gap, 32 to a simdgroup.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void inverse_packed(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& row_stride [[buffer(3)]],
    constant uint& column_stride [[buffer(4)]],
    constant uint& batch [[buffer(5)]],
    uint simdgroup [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tile, 32 * (N * N + 1));
  const uint first = simdgroup * 32;
  const uint count = min(32u, batch - first);
  T a[N][N];
  load_packed<T, N>(a, A + ulong(first) * (N * N), count, row_stride, column_stride, lane, tile);
  if (lane < count) info[first + lane] = invert<T, N>(a);
  store_packed<T, N>(a, X + ulong(first) * (N * N), count, lane, tile);
}

// N lanes invert one n x n matrix, n <= N, in place by Gauss-Jordan elimination: a lane owns a row
// in registers and rows are swapped in name only. A simdgroup holds 32 / N matrices. A has any
// strides; X is column-major. info: the first zero pivot, from 1, else 0.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void inverse_simd(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& batch [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    uint id [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint matrix = id / uint(N);
  const uint row = lane % uint(N);
  const uint first_lane = lane - row;
  const bool owns = matrix < batch && row < n;
  THREADGROUP_ARRAY(T, tile, 32 * (N + 1));
  T a[N];
  load_row<T, N>(
      a, A + long(matrix) * batch_stride, matrix < batch, row, n, n, row_stride, column_stride,
      tile + lane / uint(N) * uint(N * (N + 1)));
  uint position = row;
  uint step_of_row = 0;
  uint row_of_step = 0;
  bool active = owns;
  int failed = 0;
  // Every step works on entry 0 and passes the others down: after N steps all are back in place.
#pragma unroll(1)
  for (uint k = 0; k < uint(N); ++k) {
    T retired = a[0];
    if (k < n) {
      real_t<T> weight = active ? pivot_weight(retired) : real_t<T>(-1);
      uint choice = position * 32 + row;
      lane_argmax<N>(weight, choice);
      const ushort pivot_lane = ushort(first_lane + choice % 32);
      const bool chosen = row == choice % 32;
      position = chosen ? k : (position == k ? choice / 32 : position);
      active = active && !chosen;
      step_of_row = chosen ? k : step_of_row;
      row_of_step = row == k ? choice % 32 : row_of_step;
      const T pivot = simd_shuffle(retired, pivot_lane);
      failed = is_zero(pivot) && failed == 0 ? int(k) + 1 : failed;
      const T inverse = quotient(one<T>(), pivot);
      const bool by_inverse = has_inverse(pivot);
      T factor = mul(retired, inverse);
      if (!by_inverse) factor = quotient(retired, pivot);
      retired = chosen ? inverse : zero<T>() - factor;
#pragma unroll
      for (int j = 1; j < N; ++j) {
        const T u = simd_shuffle(a[j], pivot_lane);
        a[j - 1] = mul_sub(a[j], chosen ? zero<T>() : factor, u);
      }
      if (chosen) {
#pragma unroll
        for (int j = 0; j < N - 1; ++j) {
          const T entry = a[j];
          a[j] = mul(entry, inverse);
          if (!by_inverse) a[j] = quotient(entry, pivot);
        }
      }
    } else {
#pragma unroll
      for (int j = 1; j < N; ++j) a[j - 1] = a[j];
    }
    a[N - 1] = retired;
  }
  if (row == 0 && matrix < batch) info[matrix] = failed;
  device T* to = X + ulong(matrix) * n * n + step_of_row;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    // Column j of what stands here belongs to the unit vector of the row that was pivot j.
    const uint column = simd_shuffle(row_of_step, ushort(first_lane + uint(j)));
    if (owns && uint(j) < n) to[column * n] = a[j];
  }
}

// One threadgroup inverts one n x n matrix in registers, n <= WIDTH * TEAM, in place by
// Gauss-Jordan elimination: TEAM threads a row. Rows are swapped in name only. A has any strides; X
// is column-major. info: the first zero pivot, from 1, else 0.
template <typename T, int WIDTH, int TEAM>
[[max_total_threads_per_threadgroup(512)]] kernel void inverse_rows(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, tile, (tile_entries<T, TEAM>()));
  THREADGROUP_ARRAY(T, top, WIDTH * TEAM);
  THREADGROUP_ARRAY(real_t<T>, weights, 16);
  THREADGROUP_ARRAY(uint, positions, 16);
  THREADGROUP_ARRAY(uint, row_of_step, WIDTH * TEAM);
  const uint row_simds = threads / uint(32 * TEAM);
  const RowTeam team = {
      simd % row_simds * 32 + lane, simd / row_simds, simd % row_simds, row_simds, lane};
  T a[WIDTH];
  load_rows<T, WIDTH, TEAM>(
      a, A + long(group) * batch_stride, n, n, row_stride, column_stride, team, tid, threads, tile);
  const RowMemory<T> memory = {weights, positions, top, tile};
  threadgroup T* own_top = top + team.part * uint(WIDTH);
  uint position = team.row < n ? team.row : UINT_MAX;
  int failed = 0;
  // Every step works on entry 0 and passes the others down: after WIDTH steps all are back.
#pragma unroll(1)
  for (uint step = 0; step < uint(WIDTH); ++step) {
#pragma unroll(1)
    for (uint owner = 0; owner < uint(TEAM); ++owner) {
      const uint k = step * uint(TEAM) + owner;
      if (k < n) {
        const bool eligible = position >= k && position < n;
        const uint chosen = next_pivot<T, TEAM>(a[0], position, eligible, owner, team, memory);
        const bool top_row = position == chosen;
        if (top_row) {
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) own_top[c] = a[c];
          if (team.part == 0) row_of_step[k] = team.row;
        }
        const T entry = TEAM > 1 ? tile[team.row] : a[0];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const T pivot = top[owner * uint(WIDTH)];
        failed = is_zero(pivot) && failed == 0 ? int(k) + 1 : failed;
        position = top_row ? k : (position == k ? chosen : position);
        const T inverse = quotient(one<T>(), pivot);
        const bool by_inverse = has_inverse(pivot);
        T factor = mul(entry, inverse);
        if (!by_inverse) factor = quotient(entry, pivot);
        const bool holds = team.part == owner;
        if (top_row) {
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) {
            a[c] = mul(a[c], inverse);
          }
          if (!by_inverse) {
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) a[c] = quotient(own_top[c], pivot);
          }
          a[0] = holds ? inverse : a[0];
        } else {
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) a[c] = mul_sub(a[c], factor, own_top[c]);
          a[0] = holds ? zero<T>() - factor : a[0];
        }
      }
    }
    const T first = a[0];
#pragma unroll
    for (int c = 1; c < WIDTH; ++c) a[c - 1] = a[c];
    a[WIDTH - 1] = first;
  }
  if (tid == 0) info[group] = failed;
  device T* to = X + ulong(group) * n * n + position;
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) {
    const uint k = uint(c) * uint(TEAM) + team.part;
    // Column k of what stands here belongs to the unit vector of the row that was pivot k.
    if (position < n && k < n) to[ulong(row_of_step[k]) * n] = a[c];
  }
}

// One thread per entry: X = P^T, whose row i is that of the identity which pivoting moved to row i.
template <typename T>
kernel void inverse_start(
    device const int* permutation [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    uint3 id [[thread_position_in_grid]]) {
  const ulong matrix = ulong(id.z);
  const bool moved = permutation[matrix * n + id.x] == int(id.y);
  X[(matrix * n + id.y) * n + id.x] = moved ? one<T>() : zero<T>();
}
