#include "layout.h"
#include "reduce.h"
#include "scalar.h"
#include "tile.h"

// A block of a lower triangle in threadgroup memory: entry (i, j) of its N rows and columns stands
// at j N + (i - j) mod N, each column from its diagonal on. A step of an elimination then finds the
// multipliers where it has the entries that they belong to, aligned, and lanes that read A along
// its rows write to different banks. Blocks lie sixteen bytes more than N N apart, for the banks'
// sake too.
template <typename T, int N> inline constexpr uint block_stride() {
  return N * N + (sizeof(T) < 16 ? 16 / sizeof(T) : 1);
}

// Rows that lanes hand to each other at a time.
template <int N> inline constexpr int segment() { return N < SEGMENT ? N : SEGMENT; }

// What a thread reads of blocks: entries begin .. end of every line that it visits, a line being a
// row of A where ALONG holds, else a column. Of a diagonal block that is only the lower triangle,
// without its diagonal where that is unit.
struct Lines {
  int place;
  int begin;
  int end;
  int stride;
};

template <int N, bool ALONG>
inline Lines make_lines(uint tid, uint rows, uint columns, Layout of_A, bool diagonal, bool unit) {
  Lines made;
  made.place = int(tid % uint(N));
  made.begin = 0;
  made.end = int(ALONG ? rows : columns);
  if (diagonal && ALONG) made.begin = made.place + (unit ? 1 : 0);
  if (diagonal && !ALONG) made.end = min(made.end, made.place + (unit ? 0 : 1));
  if (made.place >= int(ALONG ? columns : rows)) made.end = 0;
  made.stride = ALONG ? of_A.row : of_A.column;
  return made;
}

template <int N, bool ALONG> inline uint place_in_block(int line, int place) {
  return ALONG ? uint(place * N + ((line - place) & (N - 1)))
               : uint(line * N + ((place - line) & (N - 1)));
}

// The blocks of TILES matrices, zero where nothing is read. N neighbouring threads take a line,
// which lies along memory; each has several loads under way.
template <typename T, int N, int TILES, int MOST, bool ALONG>
inline void load_lines(
    device const T* A,
    Lines lines,
    long batch_stride,
    uint matrices,
    bool conjugated,
    uint tid,
    uint threads,
    threadgroup T* tile) {
  constexpr int AT_ONCE = N < 32 ? 32 / N : 1;
  constexpr int LOADS = TILES * N < MOST * AT_ONCE ? TILES * N / AT_ONCE : MOST;
  T entries[LOADS];
  if constexpr (TILES == 1) {
    const int step = int(threads / uint(N));
    const int advance = step * lines.stride;
    device const T* from = A + int(tid / uint(N)) * lines.stride;
#pragma unroll(1)
    for (int first = int(tid / uint(N)); first < N; first += LOADS * step) {
#pragma unroll
      for (int load = 0; load < LOADS; ++load) {
        const int line = first + load * step;
        entries[load] = line >= lines.begin && line < lines.end ? *from : zero<T>();
        from += advance;
      }
#pragma unroll
      for (int load = 0; load < LOADS; ++load) {
        const int line = first + load * step;
        if (line < N) {
          tile[place_in_block<N, ALONG>(line, lines.place)] =
              conjugated ? conj(entries[load]) : entries[load];
        }
      }
    }
  } else {
    const int first = int(tid / uint(N) % uint(N));
    const long to_next_line = long(AT_ONCE) * long(lines.stride);
    const long to_next_matrix = AT_ONCE < N ? batch_stride - long(N - AT_ONCE) * long(lines.stride)
                                            : long(AT_ONCE / N) * batch_stride;
#pragma unroll(1)
    for (uint round = 0; round < uint(TILES * N); round += uint(LOADS * AT_ONCE)) {
      const uint matrix = (round + tid / uint(N)) / uint(N);
      device const T* from = A + long(matrix) * batch_stride + first * lines.stride;
      threadgroup T* to = tile + matrix * block_stride<T, N>();
#pragma unroll
      for (int load = 0; load < LOADS; ++load) {
        const int line = first + load * AT_ONCE % N;
        const uint next = uint(load * AT_ONCE / N);
        const bool inside = matrix + next < matrices && line >= lines.begin && line < lines.end;
        entries[load] = inside ? *from : zero<T>();
        from += (load + 1) * AT_ONCE % N == 0 ? to_next_matrix : to_next_line;
      }
#pragma unroll
      for (int load = 0; load < LOADS; ++load) {
        const int line = first + load * AT_ONCE % N;
        const uint next = uint(load * AT_ONCE / N) * block_stride<T, N>();
        to[next + place_in_block<N, ALONG>(line, lines.place)] =
            conjugated ? conj(entries[load]) : entries[load];
      }
    }
  }
}

template <typename T, int N, int TILES, int MOST>
inline void load_block(
    device const T* A,
    Layout of_A,
    long batch_stride,
    uint matrices,
    uint rows,
    uint columns,
    bool diagonal,
    bool unit,
    bool conjugated,
    uint tid,
    uint threads,
    threadgroup T* tile) {
  if (of_A.along_rows) {
    const Lines lines = make_lines<N, true>(tid, rows, columns, of_A, diagonal, unit);
    load_lines<T, N, TILES, MOST, true>(
        A + lines.place * of_A.column, lines, batch_stride, matrices, conjugated, tid, threads,
        tile);
  } else {
    const Lines lines = make_lines<N, false>(tid, rows, columns, of_A, diagonal, unit);
    load_lines<T, N, TILES, MOST, false>(
        A + lines.place * of_A.row, lines, batch_stride, matrices, conjugated, tid, threads, tile);
  }
}

// How the WIDTH lanes of a team share ROWS rows of its columns in memory and in the team's
// `exchange`, which has a column every ROWS + 1. Where rows lie along memory a lane takes its own
// column, a row a turn; else the lanes go along the columns, each in its row, some columns a turn.
struct Share {
  int start;
  int step;
  uint at;
  uint row;
  uint turns;
  bool own_column;
};

template <int ROWS, int WIDTH> inline Share make_share(Layout of, uint count, uint place) {
  constexpr uint COLUMNS = WIDTH < ROWS ? 1 : WIDTH / ROWS;
  Share made;
  made.own_column = WIDTH < ROWS || of.along_rows;
  made.row = made.own_column ? 0 : place % uint(ROWS);
  const uint column = made.own_column ? place : place / uint(ROWS);
  const uint turns = made.own_column ? uint(ROWS) : (count - column + COLUMNS - 1) / COLUMNS;
  made.turns = column < count ? turns : 0;
  made.start = int(made.row) * of.row + int(column) * of.column;
  made.step = made.own_column ? of.row : int(COLUMNS) * of.column;
  made.at = column * uint(ROWS + 1) + made.row;
  return made;
}

inline uint turns_of(Share share, uint rows) {
  return share.own_column ? min(share.turns, rows) : (share.row < rows ? share.turns : 0);
}

template <typename T, int ROWS>
inline void read_share(thread T (&entries)[ROWS], device const T* B, Share share, uint rows) {
  const uint turns = turns_of(share, rows);
  device const T* from = B;
#pragma unroll
  for (int e = 0; e < ROWS; ++e) {
    entries[e] = uint(e) < turns ? *from : zero<T>();
    from += share.step;
  }
}

// No lane may still need what `exchange` held before.
template <typename T, int ROWS, int WIDTH>
inline void hand_over(thread const T (&entries)[ROWS], Share share, threadgroup T* exchange) {
  if (share.own_column) {
#pragma unroll
    for (int e = 0; e < ROWS; ++e) exchange[share.at + uint(e)] = entries[e];
  } else {
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      exchange[share.at + uint(e) * uint(WIDTH / ROWS * (ROWS + 1))] = entries[e];
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

template <typename T, int ROWS, int WIDTH>
inline void write_share(device T* X, Share share, uint rows, threadgroup const T* exchange) {
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const uint turns = turns_of(share, rows);
  device T* to = X;
  threadgroup const T* from = exchange + share.at;
#pragma unroll
  for (int e = 0; e < ROWS; ++e) {
    if (uint(e) < turns) *to = *from;
    to += share.step;
    from += share.own_column ? 1 : WIDTH / ROWS * (ROWS + 1);
  }
  // Later blocks read these rows along other lanes.
  simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
}

// The next `steps` unknowns of the `active` ones that are left, a whole number of segments. A lane
// has in `sum` what the solved ones take from these, at entry 0 from the next, and in `right` the
// right-hand sides of a segment, whose place the solution takes. What stands beyond the last
// unknown is nobody's.
template <typename T, int N, int ACTIVE>
inline void solve_segment(
    thread T (&sum)[N],
    threadgroup const T* column,
    threadgroup const T* inverse,
    threadgroup T* right,
    uint active,
    uint steps) {
  constexpr int ROWS = segment<N>();
  if (active == uint(ACTIVE)) {
#pragma unroll(1)
    for (uint step = 0; step < steps; ++step) {
      const T open = right[step] + sum[0];
      const T by = inverse[step];
      T known = mul(open, by);
      if (is_zero(by)) known = quotient(open, column[0]);
      right[step] = known;
#pragma unroll
      for (int i = 1; i < ACTIVE; ++i) sum[i - 1] = mul_sub(sum[i], column[i], known);
      column += N;
    }
  } else {
    if constexpr (ACTIVE > ROWS) {
      solve_segment<T, N, ACTIVE - ROWS>(sum, column, inverse, right, active, steps);
    }
  }
}

// What N solved rows of X take from the rows of another block, which turn round in `sum` once.
template <typename T, int N, int WIDTH>
inline void subtract_block(
    thread T (&sum)[N],
    threadgroup const T* tile,
    device const T* X,
    Layout of_X,
    Share share,
    uint place,
    threadgroup T* exchange) {
  constexpr int ROWS = segment<N>();
  T entries[ROWS];
  read_share<T, ROWS>(entries, X, share, ROWS);
#pragma unroll(1)
  for (uint first = 0; first < uint(N); first += uint(ROWS)) {
    hand_over<T, ROWS, WIDTH>(entries, share, exchange);
    const uint next = first + uint(ROWS);
    read_share<T, ROWS>(
        entries, X + offset(of_X, next, 0), share, next < uint(N) ? uint(ROWS) : 0u);
#pragma unroll(1)
    for (uint step = 0; step < uint(ROWS); ++step) {
      threadgroup const T* column = tile + (first + step) * uint(N);
      const T known = exchange[place * uint(ROWS + 1) + step];
      const T turned = mul_sub(sum[0], column[0], known);
#pragma unroll
      for (int i = 1; i < N; ++i) sum[i - 1] = mul_sub(sum[i], column[i], known);
      sum[N - 1] = turned;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// One simdgroup solves op(A) X = B for 32 columns, which may be those of TILES matrices: a lane
// owns a column in registers, N rows at a time, against the triangle in threadgroup memory; the
// simdgroups of a group share one matrix. The strides of A say whether op transposes: `lower` is of
// op(A). Neither the other triangle nor a unit diagonal is read. X must not be B.
template <typename T, int N, int TILES, bool BLOCKED>
[[max_total_threads_per_threadgroup(128)]] kernel void triangular_columns(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& columns [[buffer(4)]],
    constant uint& batch [[buffer(5)]],
    constant uint& a_row [[buffer(6)]],
    constant uint& a_column [[buffer(7)]],
    constant long& a_batch [[buffer(8)]],
    constant uint& b_row [[buffer(9)]],
    constant uint& b_column [[buffer(10)]],
    constant long& b_batch [[buffer(11)]],
    constant uint& x_row [[buffer(12)]],
    constant uint& x_column [[buffer(13)]],
    constant long& x_batch [[buffer(14)]],
    constant uint& lower [[buffer(15)]],
    constant uint& unit [[buffer(16)]],
    constant uint& conjugated [[buffer(17)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 size [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr uint WIDTH = 32 / TILES;
  constexpr int ROWS = segment<N>();
  constexpr uint STRIDE = block_stride<T, N>();
  constexpr int LOADS = BLOCKED ? 8 : 16;
  constexpr uint THREADS = (BLOCKED && TILES == 1) || N > 32 ? 128 : 32;
  THREADGROUP_ARRAY(T, tile, TILES * STRIDE);
  THREADGROUP_ARRAY(T, inverse, TILES * N);
  THREADGROUP_ARRAY(T, exchange, THREADS * (ROWS + 1));
  const uint threads = size.x;
  const uint place = tid % WIDTH;
  const uint team = TILES > 1 ? tid / WIDTH : 0;
  const uint first_matrix = group.y * uint(TILES);
  const uint matrix = first_matrix + team;
  const uint first_column = (group.x * (threads / 32) + tid / 32) * WIDTH;
  const bool owns = matrix < batch && first_column < columns;
  const uint count = owns ? min(WIDTH, columns - first_column) : 0;
  const bool reversed = lower == 0;
  const Layout of_A = layout(a_row, a_column, reversed, true);
  const Layout of_B = layout(b_row, b_column, reversed, false);
  const Layout of_X = layout(x_row, x_column, reversed, false);
  const uint last = reversed ? n - 1 : 0;
  device const T* a = A + long(first_matrix) * a_batch - offset(of_A, last, last);
  device const T* b =
      B + long(matrix) * b_batch - offset(of_B, last, 0) + offset(of_B, 0, first_column);
  device T* own =
      X + long(matrix) * x_batch - offset(of_X, last, 0) + offset(of_X, 0, first_column);
  const Share share_B = make_share<ROWS, WIDTH>(of_B, count, place);
  const Share share_X = make_share<ROWS, WIDTH>(of_X, count, place);
  b += share_B.start;
  own += share_X.start;
  threadgroup T* of_team = exchange + tid / WIDTH * WIDTH * uint(ROWS + 1);
  threadgroup const T* of_matrix = tile + team * STRIDE;
#pragma unroll(1)
  for (uint row = 0; row < (BLOCKED ? n : 1u); row += uint(N)) {
    const uint rows = min(uint(N), n - row);
    T entries[ROWS];
    read_share<T, ROWS>(entries, b + offset(of_B, row, 0), share_B, rows);
    // Products are summed before B is added: where they are small beside it, so are their errors.
    T sum[N];
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = zero<T>();
    if constexpr (BLOCKED) {
      for (uint solved = 0; solved < row; solved += uint(N)) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        load_block<T, N, TILES, LOADS>(
            a + offset(of_A, row, solved), of_A, a_batch, batch - first_matrix, rows, N, false,
            false, conjugated != 0, tid, threads, tile);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        subtract_block<T, N, WIDTH>(
            sum, of_matrix, own + offset(of_X, solved, 0), of_X, share_X, place, of_team);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    load_block<T, N, TILES, LOADS>(
        a + offset(of_A, row, row), of_A, a_batch, batch - first_matrix, rows, rows, true,
        unit != 0, conjugated != 0, tid, threads, tile);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < uint(TILES * N); e += threads) {
      // Zero where a quotient is to be formed instead.
      const uint j = e % uint(N);
      const T pivot = j < rows ? tile[e / uint(N) * STRIDE + j * uint(N)] : zero<T>();
      const T by = has_inverse(pivot) ? quotient(one<T>(), pivot) : zero<T>();
      inverse[e] = unit != 0 ? one<T>() : by;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint padded = (rows + uint(ROWS - 1)) / uint(ROWS) * uint(ROWS);
#pragma unroll(1)
    for (uint first = 0; first < rows; first += uint(ROWS)) {
      const uint next = first + uint(ROWS);
      hand_over<T, ROWS, WIDTH>(entries, share_B, of_team);
      read_share<T, ROWS>(
          entries, b + offset(of_B, row + next, 0), share_B, rows > next ? rows - next : 0);
      solve_segment<T, N, N>(
          sum, of_matrix + first * uint(N), inverse + team * uint(N) + first,
          of_team + place * uint(ROWS + 1), padded - first, min(uint(ROWS), rows - first));
      write_share<T, ROWS, WIDTH>(
          own + offset(of_X, row + first, 0), share_X, rows - first, of_team);
    }
  }
}

// What threadgroup memory holds of K right-hand sides in triangular_few.
template <typename T, int K> inline constexpr uint few_rows() {
  return 16384 / (K * sizeof(T)) < 512 ? 16384 / (K * sizeof(T)) : 512;
}

// One threadgroup solves op(A) X = B for at most K columns and few_rows() rows, which stay in
// threadgroup memory: 32 rows at a time, a row a lane, the columns shared by up to four simdgroups.
// Where rows of op(A) lie along memory, what the rows before take from these 32 is summed first,
// some rows a simdgroup; else what these take from all after them, a thread a row. Flags as above.
template <typename T, int K>
[[max_total_threads_per_threadgroup(512)]] kernel void triangular_few(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& columns [[buffer(4)]],
    constant uint& a_row [[buffer(5)]],
    constant uint& a_column [[buffer(6)]],
    constant long& a_batch [[buffer(7)]],
    constant uint& b_row [[buffer(8)]],
    constant uint& b_column [[buffer(9)]],
    constant long& b_batch [[buffer(10)]],
    constant uint& x_row [[buffer(11)]],
    constant uint& x_column [[buffer(12)]],
    constant long& x_batch [[buffer(13)]],
    constant uint& lower [[buffer(14)]],
    constant uint& unit [[buffer(15)]],
    constant uint& conjugated [[buffer(16)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  constexpr uint ROWS = few_rows<T, K>();
  constexpr int OWN = K < 4 ? K : K / 4;
  constexpr uint LOADS = K * sizeof(T) > 32 ? 4 : 8;
  constexpr int AT_ONCE = K * sizeof(T) > 32 ? 2 : 4;
  THREADGROUP_ARRAY(T, known, K * ROWS);
  THREADGROUP_ARRAY(T, block, 32 * 32);
  const bool reversed = lower == 0;
  const Layout of_A = layout(a_row, a_column, reversed, true);
  const Layout of_B = layout(b_row, b_column, reversed, false);
  const Layout of_X = layout(x_row, x_column, reversed, false);
  const uint last = reversed ? n - 1 : 0;
  device const T* a = A + long(group) * a_batch - offset(of_A, last, last);
  device const T* b = B + long(group) * b_batch - offset(of_B, last, 0);
  device T* own = X + long(group) * x_batch - offset(of_X, last, 0);
  const uint first_column = simd * uint(OWN);
  const bool solves = first_column < uint(K);
  for (uint row = tid; row < n; row += threads) {
#pragma unroll
    for (int c = 0; c < K; ++c) known[uint(c) * ROWS + row] = zero<T>();
  }
  for (uint top = 0; top < n; top += 32) {
    const uint size = min(32u, n - top);
    const bool owns = lane < size;
    T right[OWN];
    if (solves) {
#pragma unroll
      for (int c = 0; c < OWN; ++c) {
        const uint column = first_column + uint(c);
        const bool inside = owns && column < columns;
        right[c] = inside ? b[offset(of_B, top + lane, column)] : zero<T>();
      }
    }
    // Loads first, then stores: a compiler does not move one past the other.
#pragma unroll(1)
    for (uint begin = tid; begin < 32 * 32; begin += LOADS * threads) {
      T entries[LOADS];
#pragma unroll
      for (uint load = 0; load < LOADS; ++load) {
        const uint e = begin + load * threads;
        const uint i = of_A.along_rows ? e / 32 : e % 32;
        const uint j = of_A.along_rows ? e % 32 : e / 32;
        const bool read = max(i, j) < size && (i > j || (i == j && unit == 0));
        const T entry = read ? a[offset(of_A, top + i, top + j)] : zero<T>();
        entries[load] = conjugated != 0 ? conj(entry) : entry;
      }
#pragma unroll
      for (uint load = 0; load < LOADS; ++load) {
        const uint e = begin + load * threads;
        const uint i = of_A.along_rows ? e / 32 : e % 32;
        const uint j = of_A.along_rows ? e % 32 : e / 32;
        if (e < 32 * 32) block[j * 32 + (i - j) % 32] = entries[load];
      }
    }
    // No unknown is before the first rows, whose sums other threads set to zero in this interval.
    if (of_A.along_rows && top > 0) {
      for (uint i = simd * uint(AT_ONCE); i < size; i += threads / 32 * uint(AT_ONCE)) {
        device const T* from = a + offset(of_A, top + i, lane);
        T sum[AT_ONCE * K];
#pragma unroll
        for (int e = 0; e < AT_ONCE * K; ++e) sum[e] = zero<T>();
#pragma unroll(4)
        for (uint j = lane; j < top; j += 32) {
          T entries[AT_ONCE];
#pragma unroll
          for (int r = 0; r < AT_ONCE; ++r) {
            const T entry = i + uint(r) < size ? from[long(r) * long(of_A.row)] : zero<T>();
            entries[r] = conjugated != 0 ? conj(entry) : entry;
          }
          from += 32 * long(of_A.column);
#pragma unroll
          for (int c = 0; c < K; ++c) {
            const T solved = known[uint(c) * ROWS + j];
#pragma unroll
            for (int r = 0; r < AT_ONCE; ++r) {
              sum[c * AT_ONCE + r] = mul_sub(sum[c * AT_ONCE + r], entries[r], solved);
            }
          }
        }
        const T total = sum_over_lanes<T, AT_ONCE * K>(sum, lane);
        const uint row = i + lane % uint(AT_ONCE);
        const uint column = lane / uint(AT_ONCE);
        if (row < size && column < uint(K)) known[column * ROWS + top + row] = total;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (solves) {
      const T pivot = owns && unit == 0 ? block[lane * 32] : one<T>();
      const bool invertible = has_inverse(pivot);
      const T inverse = invertible ? quotient(one<T>(), pivot) : zero<T>();
      threadgroup T* own_known = known + first_column * ROWS + top + lane;
      T sum[OWN];
      T x[OWN];
#pragma unroll
      for (int c = 0; c < OWN; ++c) sum[c] = owns ? own_known[uint(c) * ROWS] : zero<T>();
#pragma unroll(2)
      for (uint j = 0; j < size; ++j) {
        const T entry = block[j * 32 + (lane - j) % 32];
#pragma unroll
        for (int c = 0; c < OWN; ++c) {
          // Final once j is the lane's own row.
          x[c] = mul(right[c] + sum[c], inverse);
          if (!invertible) x[c] = quotient(right[c] + sum[c], pivot);
          const T solved = simd_shuffle(x[c], ushort(j));
          if (lane > j) sum[c] = mul_sub(sum[c], entry, solved);
        }
      }
#pragma unroll
      for (int c = 0; c < OWN; ++c) {
        const uint column = first_column + uint(c);
        if (owns) own_known[uint(c) * ROWS] = x[c];
        if (owns && column < columns) own[offset(of_X, top + lane, column)] = x[c];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint row = top + size + tid; row < n && !of_A.along_rows; row += threads) {
      device const T* from = a + offset(of_A, row, top);
      T sum[K];
#pragma unroll
      for (int c = 0; c < K; ++c) sum[c] = known[uint(c) * ROWS + row];
#pragma unroll(16)
      for (uint j = 0; j < 32; ++j) {
        T entry = *from;
        from += of_A.column;
        if (conjugated != 0) entry = conj(entry);
#pragma unroll
        for (int c = 0; c < K; ++c) {
          sum[c] = mul_sub(sum[c], entry, known[uint(c) * ROWS + top + j]);
        }
      }
#pragma unroll
      for (int c = 0; c < K; ++c) known[uint(c) * ROWS + row] = sum[c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
