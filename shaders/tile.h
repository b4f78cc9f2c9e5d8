// Small matrices in one thread's registers. All indices are constants once the loops are unrolled.

// Swaps are made of selects: a branch here would part the threads of a simdgroup, and mislead a
// CPU.
template <typename T, int N> inline void swap_rows(thread T (&a)[N][N], int k, uint other) {
#pragma unroll
  for (int i = k + 1; i < N; ++i) {
    const bool here = uint(i) == other;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const T moved = a[k][j];
      a[k][j] = here ? a[i][j] : moved;
      a[i][j] = here ? moved : a[i][j];
    }
  }
}

// The row at or below k whose entry in column k weighs most; k itself without pivoting.
template <typename T, int N>
inline uint pivot_row(thread const T (&a)[N][N], int k, bool pivoting) {
  uint row = uint(k);
  real_t<T> best = pivot_weight(a[k][k]);
#pragma unroll
  for (int i = k + 1; i < N; ++i) {
    const real_t<T> weight = pivot_weight(a[i][k]);
    const bool better = pivoting && weight > best;
    row = better ? uint(i) : row;
    best = better ? weight : best;
  }
  return row;
}

// Where the row now at position `row` of `rows` stood before the swaps `pivots` (1-based, as
// LAPACK's). Pivots are the caller's: one that names no row is taken for the last.
inline uint row_before(device const int* pivots, uint count, uint rows, uint row) {
  for (uint k = count; k > 0; --k) {
    const uint i = k - 1;
    const uint p = min(uint(pivots[i]) - 1, rows - 1);
    row = row == i ? p : (row == p ? i : row);
  }
  return row;
}

// What the swaps of rows begin .. begin + width amount to: the row now at target[e] comes from
// source[e]. The first WIDTH entries are the rows of the block, the others those it swapped with;
// UINT_MAX marks an entry that is unused or was listed before.
template <int WIDTH>
inline void swap_tables(
    threadgroup const uint* swaps,
    uint begin,
    uint width,
    threadgroup uint* source,
    threadgroup uint* target,
    uint tid,
    uint threads) {
  for (uint e = tid; e < uint(2 * WIDTH); e += threads) {
    const uint k = e % uint(WIDTH);
    const bool block = e < uint(WIDTH);
    uint row = k >= width ? UINT_MAX : (block ? begin + k : swaps[k]);
    if (!block && row != UINT_MAX) {
      bool listed = row < begin + width;
      for (uint i = 0; i < k; ++i) listed = listed || swaps[i] == row;
      row = listed ? UINT_MAX : row;
    }
    target[e] = row;
    for (uint i = width; i > 0; --i) {
      const uint a = begin + i - 1;
      const uint b = swaps[i - 1];
      row = row == a ? b : (row == b ? a : row);
    }
    source[e] = row;
  }
}

// Eliminations over register arrays keep their outer loop rolled, or their code would outgrow the
// instruction cache: each step works on entry 0 and passes the others down by one, so that all
// indices stay constant. SEGMENT steps share one width; then the entries they retired, which have
// gathered at the end, are left out. slot() says where entry c is after the last step.
constexpr constant int SEGMENT = 8;

template <int N> inline constexpr int slot(int c) {
  return N <= SEGMENT ? c : N - SEGMENT * (c / SEGMENT + 1) + c % SEGMENT;
}

// The steps of substitute() from N - ACTIVE on. At entry 0 stands the next unknown.
template <typename T, int N, int ACTIVE, bool LOWER>
inline void substitution_steps(thread T (&x)[N], threadgroup const T* m, uint size, bool unit) {
  constexpr int STEPS = ACTIVE < SEGMENT ? ACTIVE : SEGMENT;
#pragma unroll(1)
  for (int step = 0; step < STEPS; ++step) {
    const int k = N - ACTIVE + step;
    const int j = LOWER ? k : N - 1 - k;
    const bool within = uint(j) < size;
    threadgroup const T* diagonal = m + j * (N + 1);
    T known = x[0];
    if (within && !unit) known = quotient(known, *diagonal);
#pragma unroll
    for (int i = 1; i < ACTIVE; ++i) {
      const bool open = within && (i <= ACTIVE - STEPS || i < ACTIVE - step);
      x[i - 1] = open ? mul_sub(x[i], diagonal[LOWER ? i : -i], known) : x[i];
    }
    x[ACTIVE - 1] = known;
  }
  if constexpr (ACTIVE > STEPS) substitution_steps<T, N, ACTIVE - STEPS, LOWER>(x, m, size, unit);
}

// x := M^-1 x for a triangular M of `size` <= N rows, given by columns: M(i, j) = m[j * N + i].
// The other triangle and a unit diagonal are not read; from row `size` on M may hold anything.
template <typename T, int N, bool LOWER>
inline void substitute(thread T (&x)[N], threadgroup const T* m, uint size, bool unit) {
  T y[N];
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = x[LOWER ? i : N - 1 - i];
  substitution_steps<T, N, N, LOWER>(y, m, size, unit);
#pragma unroll
  for (int i = 0; i < N; ++i) x[LOWER ? i : N - 1 - i] = y[slot<N>(i)];
}

// From column to column of read_swapped's tile: sixteen bytes more than the column needs keep wide
// accesses aligned and neighbouring columns on different banks.
template <typename T, int WIDTH> inline constexpr uint tile_stride() {
  return 2 * WIDTH + (sizeof(T) < 16 ? 16 / sizeof(T) : 1);
}

// Entries of read_swapped and write_swapped that a thread has on their way at once.
template <typename T> inline constexpr int in_flight() { return sizeof(T) > 4 ? 8 : 16; }

// The rows of `count` columns that the tables name, in `tile` by columns, zero where an entry is
// unused; where `solve` holds the block's rows with L11^-1 before them. All threads of a group of
// 128 call it.
template <typename T, int COLUMNS>
inline void read_swapped(
    device const T* columns,
    uint m,
    uint count,
    uint width,
    bool solve,
    threadgroup const T* l11,
    threadgroup const uint* source,
    threadgroup const uint* target,
    threadgroup T* tile,
    uint tid) {
  constexpr uint WIDTH = 32;
  constexpr uint STRIDE = tile_stride<T, WIDTH>();
  // A thread keeps to its entry and walks every second column.
  const uint e = tid % 64;
  const bool used = target[e] != UINT_MAX;
  device const T* from = columns + (used ? source[e] : 0u);
  for (uint start = tid / 64; start < count; start += 2 * in_flight<T>()) {
    T moved[in_flight<T>()];
#pragma unroll
    for (int i = 0; i < in_flight<T>(); ++i) {
      const uint c = start + uint(2 * i);
      moved[i] = used && c < count ? from[ulong(c) * m] : zero<T>();
    }
#pragma unroll
    for (int i = 0; i < in_flight<T>(); ++i) {
      const uint c = start + uint(2 * i);
      if (c < count) tile[c * STRIDE + e] = moved[i];
    }
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  if (solve) {
    // A lane owns a row, a simdgroup a quarter of the columns.
    constexpr int OWN = COLUMNS / 4;
    const uint lane = tid % 32;
    threadgroup T* own = tile + tid / 32 * uint(OWN) * STRIDE + lane;
    T x[OWN];
#pragma unroll
    for (int c = 0; c < OWN; ++c) x[c] = own[uint(c) * STRIDE];
#pragma unroll(4)
    for (uint k = 0; k < width; ++k) {
      const T l = l11[k * WIDTH + lane];
#pragma unroll
      for (int c = 0; c < OWN; ++c) {
        const T known = simd_shuffle(x[c], ushort(k));
        x[c] = lane > k ? mul_sub(x[c], l, known) : x[c];
      }
    }
#pragma unroll
    for (int c = 0; c < OWN; ++c) own[uint(c) * STRIDE] = x[c];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Writes them where the swaps put them.
template <typename T>
inline void write_swapped(
    device T* columns,
    uint m,
    uint count,
    threadgroup const uint* target,
    threadgroup const T* tile,
    uint tid) {
  constexpr uint STRIDE = tile_stride<T, 32>();
  const uint e = tid % 64;
  const bool used = target[e] != UINT_MAX;
  device T* to = columns + (used ? target[e] : 0u);
  for (uint start = tid / 64; start < count; start += 2 * in_flight<T>()) {
#pragma unroll
    for (int i = 0; i < in_flight<T>(); ++i) {
      const uint c = start + uint(2 * i);
      if (used && c < count) to[ulong(c) * m] = tile[c * STRIDE + e];
    }
  }
}

template <typename T, int N> inline void swap_entries(thread T (&x)[N], int k, uint other) {
#pragma unroll
  for (int i = k + 1; i < N; ++i) {
    const bool here = uint(i) == other;
    const T moved = x[k];
    x[k] = here ? x[i] : moved;
    x[i] = here ? moved : x[i];
  }
}

template <typename T, int N> inline void swap_columns_of(thread T (&a)[N][N], int k, uint other) {
#pragma unroll
  for (int i = 0; i < N; ++i) swap_entries<T, N>(a[i], k, other);
}

// A lane's matrix of the `count` <= 32 that lie at A without a gap: the lanes read along memory
// into `tile`, 32 matrices of N * N + 1. Lanes from `count` on get nothing.
template <typename T, int N>
inline void load_packed(
    thread T (&a)[N][N],
    device const T* A,
    uint count,
    uint row_stride,
    uint column_stride,
    uint lane,
    threadgroup T* tile) {
  constexpr uint SIZE = N * N;
#pragma unroll
  for (uint i = 0; i < SIZE; ++i) {
    const uint e = i * 32 + lane;
    if (e < count * SIZE) tile[e + e / SIZE] = A[e];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup const T* own = tile + lane * (SIZE + 1);
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      a[i][j] = own[uint(i) * row_stride + uint(j) * column_stride];
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Back again, column-major.
template <typename T, int N>
inline void store_packed(
    thread const T (&a)[N][N], device T* X, uint count, uint lane, threadgroup T* tile) {
  constexpr uint SIZE = N * N;
  threadgroup T* own = tile + lane * (SIZE + 1);
#pragma unroll
  for (int j = 0; j < N; ++j) {
#pragma unroll
    for (int i = 0; i < N; ++i) own[j * N + i] = a[i][j];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint i = 0; i < SIZE; ++i) {
    const uint e = i * 32 + lane;
    if (e < count * SIZE) X[e] = tile[e + e / SIZE];
  }
}

// A lane's row of an m x n matrix, zero outside it. Where rows lie along memory the lanes first
// read along them into `tile`, N rows of N + 1. `place` is the lane's place in its team of N lanes.
template <typename T, int N>
inline void load_row(
    thread T (&a)[N],
    device const T* matrix,
    bool inside,
    uint place,
    uint m,
    uint n,
    uint row_stride,
    uint column_stride,
    threadgroup T* tile) {
  if (column_stride < row_stride) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      T entry = zero<T>();
      if (inside && uint(i) < m && place < n) {
        entry = matrix[long(i) * long(row_stride) + long(place) * long(column_stride)];
      }
      tile[i * (N + 1) + int(place)] = entry;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] = tile[place * uint(N + 1) + uint(j)];
    simdgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    device const T* from = matrix + long(place) * long(row_stride);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      a[j] = inside && place < m && uint(j) < n ? *from : zero<T>();
      from += column_stride;
    }
  }
}

// The same with entry source[i] in place of entry i.
template <typename T, int N>
inline void load_permuted_row(
    thread T (&a)[N],
    device const T* matrix,
    bool inside,
    uint place,
    uint m,
    uint n,
    uint row_stride,
    uint column_stride,
    threadgroup const uint* source,
    threadgroup T* tile) {
  load_row<T, N>(a, matrix, inside, place, m, n, row_stride, column_stride, tile);
#pragma unroll
  for (int i = 0; i < N; ++i) tile[place * uint(N + 1) + uint(i)] = a[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = tile[place * uint(N + 1) + source[i]];
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// The other way: a lane's column of n entries into a column-major matrix, all lanes writing along
// one column at a time. Entry i goes to row target[i]; columns that are not there are left out.
template <typename T, int N>
inline void store_columns(
    thread const T (&x)[N],
    device T* matrix,
    uint place,
    uint n,
    uint columns,
    uint stride,
    threadgroup const uint* target,
    threadgroup T* tile) {
#pragma unroll
  for (int i = 0; i < N; ++i) tile[place * uint(N + 1) + target[i]] = x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(8)
  for (uint c = 0; c < uint(N); ++c) {
    if (c < columns && place < n) matrix[ulong(c) * stride + place] = tile[c * uint(N + 1) + place];
  }
}
