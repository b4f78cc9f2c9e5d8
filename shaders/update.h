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

// What a thread of 512 brings of both factors for DEPTH columns of A, neighbours along memory.
template <typename T> struct UpdateFactors {
  T a[update_depth<T>() * UPDATE_ROWS / 512];
  T b[update_depth<T>() * UPDATE_COLUMNS / 512];
};

// Entry e of the tile of B: its row and its column.
template <typename T> inline uint2 update_place(uint e, bool by_columns) {
  constexpr uint DEPTH = update_depth<T>();
  return by_columns ? uint2(e % DEPTH, e / DEPTH) : uint2(e / UPDATE_COLUMNS, e % UPDATE_COLUMNS);
}

// C := C - A op(B), A and C column-major, B of any strides; op conjugates or does not.
template <typename T> struct Update {
  device const T* A;
  device const T* B;
  device T* C;
  uint m;
  uint n;
  uint inner;
  uint a_column_stride;
  uint b_row_stride;
  uint b_column_stride;
  uint c_column_stride;
  bool conjugated;
};

template <typename T>
inline void read_update(
    thread UpdateFactors<T>& factors,
    thread const Update<T>& given,
    uint row,
    uint column,
    uint first,
    uint tid) {
  constexpr int A_LOADS = int(update_depth<T>() * UPDATE_ROWS / 512);
  constexpr int B_LOADS = int(update_depth<T>() * UPDATE_COLUMNS / 512);
  const uint i = row + tid % UPDATE_ROWS;
#pragma unroll
  for (int load = 0; load < A_LOADS; ++load) {
    const uint k = first + tid / UPDATE_ROWS + uint(load) * (512 / UPDATE_ROWS);
    const bool inside = i < given.m && k < given.inner;
    factors.a[load] = inside ? given.A[ulong(k) * given.a_column_stride + i] : zero<T>();
  }
#pragma unroll
  for (int load = 0; load < B_LOADS; ++load) {
    const uint2 place =
        update_place<T>(tid + uint(load) * 512, given.b_row_stride < given.b_column_stride);
    const uint k = first + place.x;
    const uint j = column + place.y;
    const bool inside = j < given.n && k < given.inner;
    const T entry = inside
                        ? given.B[ulong(k) * given.b_row_stride + ulong(j) * given.b_column_stride]
                        : zero<T>();
    factors.b[load] = given.conjugated ? conj(entry) : entry;
  }
}

// The tile of it from `row` and `column` on, by a group of 512 threads: each has 4 x 4 entries, a
// simdgroup four columns. `memory` holds update_entries() entries.
template <typename T>
inline void update_tile(
    thread const Update<T>& given, uint row, uint column, uint tid, threadgroup T* memory) {
  constexpr uint DEPTH = update_depth<T>();
  constexpr int A_LOADS = int(DEPTH * UPDATE_ROWS / 512);
  constexpr int B_LOADS = int(DEPTH * UPDATE_COLUMNS / 512);
  constexpr int OWN = 4;
  threadgroup T* a_tile = memory;
  threadgroup T* b_tile = memory + DEPTH * UPDATE_ROWS;
  const uint own_row = tid % 32;
  const uint own_column = tid / 32 * OWN;
  // Of the entries of C from the thread's first on, these lie inside.
  const uint rows = max(given.m, row + own_row) - row - own_row;
  const uint columns = max(given.n, column + own_column) - column - own_column;
  device T* own = given.C + ulong(column + own_column) * given.c_column_stride + (row + own_row);
  UpdateFactors<T> factors;
  read_update<T>(factors, given, row, column, 0, tid);
  T sum[OWN][OWN];
#pragma unroll
  for (int c = 0; c < OWN; ++c) {
    device const T* from = own + ulong(c) * given.c_column_stride;
#pragma unroll
    for (int r = 0; r < OWN; ++r) {
      const bool inside = uint(r) * 32 < rows && uint(c) < columns;
      sum[r][c] = inside ? from[r * 32] : zero<T>();
    }
  }
  for (uint first = 0; first < given.inner; first += DEPTH) {
#pragma unroll
    for (int load = 0; load < A_LOADS; ++load) a_tile[tid + uint(load) * 512] = factors.a[load];
#pragma unroll
    for (int load = 0; load < B_LOADS; ++load) {
      const uint2 place =
          update_place<T>(tid + uint(load) * 512, given.b_row_stride < given.b_column_stride);
      b_tile[place.x * UPDATE_STRIDE + place.y] = factors.b[load];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // The next entries are on their way while these are multiplied.
    read_update<T>(factors, given, row, column, first + DEPTH, tid);
#pragma unroll(8)
    for (uint k = 0; k < DEPTH; ++k) {
      T a[OWN];
      T b[OWN];
#pragma unroll
      for (int r = 0; r < OWN; ++r) a[r] = a_tile[k * UPDATE_ROWS + uint(r) * 32 + own_row];
#pragma unroll
      for (int c = 0; c < OWN; ++c) b[c] = b_tile[k * UPDATE_STRIDE + own_column + uint(c)];
#pragma unroll
      for (int c = 0; c < OWN; ++c) {
#pragma unroll
        for (int r = 0; r < OWN; ++r) sum[r][c] = mul_sub(sum[r][c], a[r], b[c]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (int c = 0; c < OWN; ++c) {
    device T* to = own + ulong(c) * given.c_column_stride;
#pragma unroll
    for (int r = 0; r < OWN; ++r) {
      if (uint(r) * 32 < rows && uint(c) < columns) to[r * 32] = sum[r][c];
    }
  }
}
