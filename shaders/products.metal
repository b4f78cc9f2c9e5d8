#include "reduce.h"
#include "scalar.h"

// Sides of a tile of C, and the columns of A that meet it at once: the two factors take 16
// of the 32 KiB there are.
constexpr constant uint SIDE = 64;
template <typename T> inline constexpr uint depth() { return sizeof(T) > 8 ? 8 : 16; }

// Entries of each factor that a thread of 256 brings in at once.
template <typename T> inline constexpr int loads() { return int(SIDE * depth<T>() / 256); }

// Entry e of SIDE x depth of a factor: its place along the side and along the inner index.
// Neighbouring threads take neighbouring addresses, whichever way a matrix lies.
struct Place {
  uint side;
  uint inner;
};

template <typename T> inline Place place(uint e, bool inner_first) {
  constexpr uint DEPTH = depth<T>();
  Place made;
  made.side = inner_first ? e / DEPTH : e % SIDE;
  made.inner = inner_first ? e % DEPTH : e / SIDE;
  return made;
}

template <typename T>
inline void read_factor(
    thread T (&entries)[loads<T>()],
    device const T* matrix,
    uint begin,
    uint end,
    uint first,
    uint inner,
    uint side_stride,
    uint inner_stride,
    uint tid) {
#pragma unroll
  for (int load = 0; load < loads<T>(); ++load) {
    const Place at = place<T>(tid + uint(load) * 256, inner_stride < side_stride);
    const bool inside = begin + at.side < end && first + at.inner < inner;
    device const T* from = matrix + long(begin + at.side) * long(side_stride) +
                           long(first + at.inner) * long(inner_stride);
    entries[load] = inside ? *from : zero<T>();
  }
}

template <typename T>
inline void write_factor(
    thread const T (&entries)[loads<T>()],
    bool inner_first,
    bool conjugated,
    uint tid,
    threadgroup T* tile) {
#pragma unroll
  for (int load = 0; load < loads<T>(); ++load) {
    const Place at = place<T>(tid + uint(load) * 256, inner_first);
    tile[at.inner * (SIDE + 1) + at.side] = conjugated ? conj(entries[load]) : entries[load];
  }
}

// One tile of C := D - op(A) op(B) by a group of 256 threads, which have 4 x 4 entries each; op
// conjugates or does not. A, B and D have any strides, C is column-major; D may be C.
template <typename T>
inline void subtract_tile(
    device const T* A,
    device const T* B,
    device const T* D,
    device T* C,
    uint row,
    uint column,
    uint m,
    uint n,
    uint inner,
    uint a_row_stride,
    uint a_column_stride,
    uint b_row_stride,
    uint b_column_stride,
    uint d_row_stride,
    uint d_column_stride,
    uint c_column_stride,
    bool a_conjugated,
    bool b_conjugated,
    uint tid,
    threadgroup T* a_tile,
    threadgroup T* b_tile) {
  constexpr uint DEPTH = depth<T>();
  constexpr int OWN = 4;
  constexpr uint LANES = SIDE / OWN;
  const uint i = tid % LANES;
  const uint j = tid / LANES;
  T sum[OWN][OWN];
#pragma unroll
  for (int r = 0; r < OWN; ++r) {
#pragma unroll
    for (int c = 0; c < OWN; ++c) sum[r][c] = zero<T>();
  }
  // The next entries are on their way while these are multiplied.
  T a_next[loads<T>()];
  T b_next[loads<T>()];
  read_factor<T>(a_next, A, row, m, 0, inner, a_row_stride, a_column_stride, tid);
  read_factor<T>(b_next, B, column, n, 0, inner, b_column_stride, b_row_stride, tid);
  for (uint first = 0; first < inner; first += DEPTH) {
    write_factor<T>(a_next, a_column_stride < a_row_stride, a_conjugated, tid, a_tile);
    write_factor<T>(b_next, b_row_stride < b_column_stride, b_conjugated, tid, b_tile);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint next = first + DEPTH;
    read_factor<T>(a_next, A, row, m, next, inner, a_row_stride, a_column_stride, tid);
    read_factor<T>(b_next, B, column, n, next, inner, b_column_stride, b_row_stride, tid);
#pragma unroll(4)
    for (uint k = 0; k < DEPTH; ++k) {
      T a[OWN];
      T b[OWN];
#pragma unroll
      for (int r = 0; r < OWN; ++r) {
        a[r] = a_tile[k * (SIDE + 1) + uint(r) * LANES + i];
        b[r] = b_tile[k * (SIDE + 1) + uint(r) * LANES + j];
      }
#pragma unroll
      for (int r = 0; r < OWN; ++r) {
#pragma unroll
        for (int c = 0; c < OWN; ++c) sum[r][c] = mul_sub(sum[r][c], a[r], b[c]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (int c = 0; c < OWN; ++c) {
    const uint c_column = column + uint(c) * LANES + j;
#pragma unroll
    for (int r = 0; r < OWN; ++r) {
      const uint c_row = row + uint(r) * LANES + i;
      if (c_row < m && c_column < n) {
        const T before =
            D[long(c_row) * long(d_row_stride) + long(c_column) * long(d_column_stride)];
        C[ulong(c_column) * c_column_stride + c_row] = before + sum[r][c];
      }
    }
  }
}

// C := D - op(A) B, a tile a group; C is none of the others.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void products_difference(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device const T* D [[buffer(2)]],
    device T* C [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& inner [[buffer(6)]],
    constant uint& a_row_stride [[buffer(7)]],
    constant uint& a_column_stride [[buffer(8)]],
    constant long& a_batch_stride [[buffer(9)]],
    constant uint& b_row_stride [[buffer(10)]],
    constant uint& b_column_stride [[buffer(11)]],
    constant long& b_batch_stride [[buffer(12)]],
    constant uint& d_row_stride [[buffer(13)]],
    constant uint& d_column_stride [[buffer(14)]],
    constant long& d_batch_stride [[buffer(15)]],
    constant uint& c_column_stride [[buffer(16)]],
    constant long& c_batch_stride [[buffer(17)]],
    constant uint& conjugated [[buffer(18)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, a_tile, (depth<T>() * (SIDE + 1)));
  THREADGROUP_ARRAY(T, b_tile, (depth<T>() * (SIDE + 1)));
  subtract_tile<T>(
      A + long(group.z) * a_batch_stride, B + long(group.z) * b_batch_stride,
      D + long(group.z) * d_batch_stride, C + long(group.z) * c_batch_stride, group.x * SIDE,
      group.y * SIDE, m, n, inner, a_row_stride, a_column_stride, b_row_stride, b_column_stride,
      d_row_stride, d_column_stride, c_column_stride, conjugated != 0, false, tid, a_tile, b_tile);
}

// Rows of C that one simdgroup has at once in products_few, and a group of four.
template <typename T, int K> inline constexpr int rows_at_once() {
  return K * sizeof(T) > 32 ? 2 : 4;
}

// The same for at most K columns, some rows of C a group of 128 threads. Where rows of A lie along
// memory a simdgroup goes along a few of them; else neighbouring lanes take neighbouring rows, and
// the parts of the sums meet in threadgroup memory.
template <typename T, int K>
[[max_total_threads_per_threadgroup(128)]] kernel void products_few(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device const T* D [[buffer(2)]],
    device T* C [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& inner [[buffer(6)]],
    constant uint& a_row_stride [[buffer(7)]],
    constant uint& a_column_stride [[buffer(8)]],
    constant long& a_batch_stride [[buffer(9)]],
    constant uint& b_row_stride [[buffer(10)]],
    constant uint& b_column_stride [[buffer(11)]],
    constant long& b_batch_stride [[buffer(12)]],
    constant uint& d_row_stride [[buffer(13)]],
    constant uint& d_column_stride [[buffer(14)]],
    constant long& d_batch_stride [[buffer(15)]],
    constant uint& c_column_stride [[buffer(16)]],
    constant long& c_batch_stride [[buffer(17)]],
    constant uint& conjugated [[buffer(18)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  constexpr int OWN = rows_at_once<T, K>();
  constexpr uint ROWS = 4 * OWN;
  constexpr uint PARTS = 128 / ROWS;
  THREADGROUP_ARRAY(T, sums, PARTS * ROWS * K);
  device const T* a = A + long(group.y) * a_batch_stride;
  device const T* b = B + long(group.y) * b_batch_stride;
  const uint first = group.x * ROWS;
  const bool along_rows = a_column_stride < a_row_stride;
  const uint parts = along_rows ? 1 : PARTS;
  if (along_rows) {
    const uint row = first + simd * uint(OWN);
    T sum[OWN * K];
#pragma unroll
    for (int e = 0; e < OWN * K; ++e) sum[e] = zero<T>();
#pragma unroll(4)
    for (uint j = lane; j < inner; j += 32) {
      T entries[OWN];
#pragma unroll
      for (int r = 0; r < OWN; ++r) {
        const bool inside = row + uint(r) < m;
        const T entry =
            inside ? a[long(row + uint(r)) * long(a_row_stride) + long(j) * long(a_column_stride)]
                   : zero<T>();
        entries[r] = conjugated != 0 ? conj(entry) : entry;
      }
#pragma unroll
      for (int c = 0; c < K; ++c) {
        const T factor = uint(c) < n
                             ? b[long(j) * long(b_row_stride) + long(c) * long(b_column_stride)]
                             : zero<T>();
#pragma unroll
        for (int r = 0; r < OWN; ++r) {
          sum[c * OWN + r] = mul_sub(sum[c * OWN + r], entries[r], factor);
        }
      }
    }
    const T total = sum_over_lanes<T, OWN * K>(sum, lane);
    if (lane < uint(OWN * K)) {
      sums[lane / uint(OWN) * ROWS + simd * uint(OWN) + lane % uint(OWN)] = total;
    }
  } else {
    const uint row = first + tid % ROWS;
    T sum[K];
#pragma unroll
    for (int c = 0; c < K; ++c) sum[c] = zero<T>();
#pragma unroll(8)
    for (uint j = tid / ROWS; j < inner; j += PARTS) {
      T entry = zero<T>();
      if (row < m) entry = a[long(row) * long(a_row_stride) + long(j) * long(a_column_stride)];
      if (conjugated != 0) entry = conj(entry);
#pragma unroll
      for (int c = 0; c < K; ++c) {
        const T factor = uint(c) < n
                             ? b[long(j) * long(b_row_stride) + long(c) * long(b_column_stride)]
                             : zero<T>();
        sum[c] = mul_sub(sum[c], entry, factor);
      }
    }
#pragma unroll
    for (int c = 0; c < K; ++c) {
      sums[(tid / ROWS * uint(K) + uint(c)) * ROWS + tid % ROWS] = sum[c];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint row = first + tid % ROWS;
  const uint column = tid / ROWS;
  if (row < m && column < n) {
    T total = zero<T>();
    for (uint part = 0; part < parts; ++part) {
      total = total + sums[(part * uint(K) + column) * ROWS + tid % ROWS];
    }
    const T before =
        D[long(group.y) * d_batch_stride + long(row) * long(d_row_stride) +
          long(column) * long(d_column_stride)];
    C[long(group.y) * c_batch_stride + long(column) * long(c_column_stride) + long(row)] =
        before + total;
  }
}

// The same between blocks of one column-major m x n matrix: A22 := A22 - A21 A12, where the first
// block has the rows and columns [first, last).
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void products_update(
    device T* A [[buffer(0)]],
    constant uint& m [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& first [[buffer(3)]],
    constant uint& last [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, a_tile, (depth<T>() * (SIDE + 1)));
  THREADGROUP_ARRAY(T, b_tile, (depth<T>() * (SIDE + 1)));
  device T* matrix = A + ulong(group.z) * m * n;
  device T* left = matrix + ulong(first) * m;
  device T* right = matrix + ulong(last) * m;
  subtract_tile<T>(
      left + last, right + first, right + last, right + last, group.x * SIDE, group.y * SIDE,
      m - last, n - last, last - first, 1u, m, 1u, m, 1u, m, m, false, false, tid, a_tile, b_tile);
}

// The same where A is hermitian and only its lower triangle is wanted: A22 := A22 - A21 A21^H.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void products_update_hermitian(
    device T* A [[buffer(0)]],
    constant uint& n [[buffer(1)]],
    constant uint& first [[buffer(2)]],
    constant uint& last [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, a_tile, (depth<T>() * (SIDE + 1)));
  THREADGROUP_ARRAY(T, b_tile, (depth<T>() * (SIDE + 1)));
  device T* matrix = A + ulong(group.z) * n * n;
  device T* left = matrix + ulong(first) * n + last;
  device T* rest = matrix + ulong(last) * n + last;
  if (group.x >= group.y) {
    subtract_tile<T>(
        left, left, rest, rest, group.x * SIDE, group.y * SIDE, n - last, n - last, last - first,
        1u, n, n, 1u, 1u, n, n, false, true, tid, a_tile, b_tile);
  }
}

// One thread per entry: zero above the diagonal.
template <typename T>
kernel void products_clear_upper(
    device T* A [[buffer(0)]],
    constant uint& n [[buffer(1)]],
    uint3 id [[thread_position_in_grid]]) {
  if (id.x < id.y) A[(ulong(id.z) * n + id.y) * n + id.x] = zero<T>();
}

// X := B, B of any strides and X column-major, in tiles of 32 x 32: both are walked along memory.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void products_copy(
    device const T* B [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    constant long& x_batch_stride [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  device const T* from = B + long(group.z) * batch_stride;
  const uint row = group.x * 32;
  const uint column = group.y * 32;
  const bool along_rows = column_stride < row_stride;
  T entries[4];
#pragma unroll
  for (uint load = 0; load < 4; ++load) {
    const uint e = tid + load * 256;
    const uint i = along_rows ? e / 32 : e % 32;
    const uint j = along_rows ? e % 32 : e / 32;
    const bool inside = row + i < m && column + j < n;
    device const T* at =
        from + long(row + i) * long(row_stride) + long(column + j) * long(column_stride);
    entries[load] = inside ? *at : zero<T>();
  }
#pragma unroll
  for (uint load = 0; load < 4; ++load) {
    const uint e = tid + load * 256;
    const uint i = along_rows ? e / 32 : e % 32;
    const uint j = along_rows ? e % 32 : e / 32;
    tile[j * 33 + i] = entries[load];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint e = tid; e < 32 * 32; e += 256) {
    const uint i = e % 32;
    const uint j = e / 32;
    if (row + i < m && column + j < n) {
      X[long(group.z) * x_batch_stride + long(column + j) * long(m) + long(row + i)] =
          tile[j * 33 + i];
    }
  }
}
