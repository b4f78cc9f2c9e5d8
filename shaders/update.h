// The trailing update of a blocked factorisation, for groups of a launch in which others factor.

// A tile of C, and the columns of A that meet it at once: both factors take 24.5 KiB.
constexpr constant uint UPDATE_ROWS = 128;
constexpr constant uint UPDATE_COLUMNS = 64;
template <typename T> inline constexpr uint update_depth() { return 128 / sizeof(T); }
// Sixteen bytes or more between rows of B keep wide accesses aligned and spread them over banks.
constexpr constant uint UPDATE_STRIDE = UPDATE_COLUMNS + 4;
template <typename T> inline constexpr uint update_entries() {
  return update_depth<T>() * (UPDATE_ROWS + UPDATE_STRIDE);
}

// The tile of C := C - A op(B) from `row` and `column` on, by a group of 512 threads: each has 4 x
// 4 entries, a simdgroup four columns. A and C are column-major, B has any strides; op conjugates
// or does not. `memory` holds update_entries() entries.
template <typename T>
inline void update_tile(
    device const T* A,
    device const T* B,
    device T* C,
    uint row,
    uint column,
    uint m,
    uint n,
    uint inner,
    uint a_column_stride,
    uint b_row_stride,
    uint b_column_stride,
    uint c_column_stride,
    bool conjugated,
    uint tid,
    threadgroup T* memory) {
  constexpr uint THREADS = 512;
  constexpr uint DEPTH = update_depth<T>();
  constexpr int OWN = 4;
  constexpr int A_LOADS = int(DEPTH * UPDATE_ROWS / THREADS);
  constexpr int B_LOADS = int(DEPTH * UPDATE_COLUMNS / THREADS);
  threadgroup T* a_tile = memory;
  threadgroup T* b_tile = memory + DEPTH * UPDATE_ROWS;
  // Neighbouring threads read along memory.
  const bool b_by_columns = b_row_stride < b_column_stride;
  const uint a_side = row + tid % UPDATE_ROWS;
  const uint own_row = row + tid % 32;
  const uint own_column = column + tid / 32 * OWN;
  T sum[OWN][OWN];
  for (uint first = 0; first < inner; first += DEPTH) {
    T a_next[A_LOADS];
    T b_next[B_LOADS];
#pragma unroll
    for (int load = 0; load < A_LOADS; ++load) {
      const uint k = first + tid / UPDATE_ROWS + uint(load) * (THREADS / UPDATE_ROWS);
      const bool inside = a_side < m && k < inner;
      a_next[load] = inside ? A[ulong(k) * a_column_stride + a_side] : zero<T>();
    }
#pragma unroll
    for (int load = 0; load < B_LOADS; ++load) {
      const uint e = tid + uint(load) * THREADS;
      const uint k = first + (b_by_columns ? e % DEPTH : e / UPDATE_COLUMNS);
      const uint side = column + (b_by_columns ? e / DEPTH : e % UPDATE_COLUMNS);
      const bool inside = side < n && k < inner;
      const T entry =
          inside ? B[ulong(k) * b_row_stride + ulong(side) * b_column_stride] : zero<T>();
      b_next[load] = conjugated ? conj(entry) : entry;
    }
    if (first == 0) {
#pragma unroll
      for (int c = 0; c < OWN; ++c) {
#pragma unroll
        for (int r = 0; r < OWN; ++r) {
          const uint i = own_row + uint(r) * 32;
          const uint j = own_column + uint(c);
          sum[r][c] = i < m && j < n ? C[ulong(j) * c_column_stride + i] : zero<T>();
        }
      }
    } else {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma unroll
    for (int load = 0; load < A_LOADS; ++load) a_tile[tid + uint(load) * THREADS] = a_next[load];
#pragma unroll
    for (int load = 0; load < B_LOADS; ++load) {
      const uint e = tid + uint(load) * THREADS;
      const uint k = b_by_columns ? e % DEPTH : e / UPDATE_COLUMNS;
      const uint side = b_by_columns ? e / DEPTH : e % UPDATE_COLUMNS;
      b_tile[k * UPDATE_STRIDE + side] = b_next[load];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(8)
    for (uint k = 0; k < DEPTH; ++k) {
      T a[OWN];
      T b[OWN];
#pragma unroll
      for (int r = 0; r < OWN; ++r) a[r] = a_tile[k * UPDATE_ROWS + uint(r) * 32 + tid % 32];
#pragma unroll
      for (int c = 0; c < OWN; ++c) b[c] = b_tile[k * UPDATE_STRIDE + tid / 32 * OWN + uint(c)];
#pragma unroll
      for (int c = 0; c < OWN; ++c) {
#pragma unroll
        for (int r = 0; r < OWN; ++r) sum[r][c] = mul_sub(sum[r][c], a[r], b[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < OWN; ++c) {
#pragma unroll
    for (int r = 0; r < OWN; ++r) {
      const uint i = own_row + uint(r) * 32;
      const uint j = own_column + uint(c);
      if (i < m && j < n) C[ulong(j) * c_column_stride + i] = sum[r][c];
    }
  }
}
