#include "layout.h"
#include "scalar.h"

// Squares of 32 rows along the side of the triangle that a step solves, and all squares of a group:
// that triangle's, then those of the 32 rows below it that the group takes the unknowns out of.
constexpr constant uint SIDE = 4;
constexpr constant uint TRIANGLE = SIDE * (SIDE + 1) / 2;
constexpr constant uint SQUARES = TRIANGLE + SIDE;

// Columns of a square that a simdgroup turns in threadgroup memory at a time, 32 bytes of a row;
// the stride between them keeps what lanes write and read at a time on different banks.
template <typename T> inline constexpr int strip() { return 32 / sizeof(T); }
constexpr constant uint STRIP_STRIDE = 36;

// Unknowns of a square between which a lane's row moves down in its registers, so that the loop
// over them stays rolled.
constexpr constant int TURN = 8;

// A lane's row of a square, zero where nothing is read. Neighbouring lanes read along memory.
template <typename T>
inline void load_square(
    thread T (&a)[32],
    device const T* A,
    Layout of_A,
    uint rows,
    bool diagonal,
    bool conjugated,
    uint lane,
    threadgroup T* exchange) {
  if (of_A.along_rows) {
    constexpr int STRIP = strip<T>();
    constexpr uint ROWS = 32 / STRIP;
    const uint row = lane / uint(STRIP);
    const uint column = lane % uint(STRIP);
    device const T* line = A + offset(of_A, row, column);
    const long to_next = long(ROWS) * long(of_A.row);
#pragma unroll
    for (int first = 0; first < 32; first += STRIP) {
      device const T* from = line;
#pragma unroll
      for (int load = 0; load < STRIP; ++load) {
        const uint i = uint(load) * ROWS + row;
        const bool inside = i < rows && (!diagonal || i > uint(first) + column);
        a[first + load] = inside ? *from : zero<T>();
        from += to_next;
      }
      line += STRIP * of_A.column;
    }
#pragma unroll
    for (int first = 0; first < 32; first += STRIP) {
#pragma unroll
      for (int load = 0; load < STRIP; ++load) {
        exchange[column * STRIP_STRIDE + uint(load) * ROWS + row] = a[first + load];
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (int j = 0; j < STRIP; ++j) a[first + j] = exchange[uint(j) * STRIP_STRIDE + lane];
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  } else {
    device const T* from = A + offset(of_A, lane, 0);
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      a[j] = lane < rows && (!diagonal || lane > uint(j)) ? *from : zero<T>();
      from += of_A.column;
    }
  }
  if (conjugated) {
#pragma unroll
    for (int j = 0; j < 32; ++j) a[j] = conj(a[j]);
  }
}

// The unknowns of a square on the diagonal go to `known`, K of a row together. A lane has its row
// in `a`, in `sum` what the unknowns before the square take from it. Where an inverse is zero a
// quotient is to be formed, which only QUOTIENTS does.
template <typename T, int K, bool QUOTIENTS>
inline void substitute_square(
    thread T (&a)[32],
    thread T (&sum)[K],
    thread const T (&right)[K],
    threadgroup const T* pivots,
    T inverse,
    uint lane,
    threadgroup T* known) {
#pragma unroll(1)
  for (uint first = 0; first < 32; first += uint(TURN)) {
#pragma unroll
    for (int r = 0; r < TURN; ++r) {
      const uint row = first + uint(r);
      T next[K];
#pragma unroll
      for (int c = 0; c < K; ++c) {
        next[c] = mul(right[c] + sum[c], inverse);
        if constexpr (QUOTIENTS) {
          if (is_zero(inverse)) next[c] = quotient(right[c] + sum[c], pivots[lane]);
        }
      }
      // Now: its own row and those above may multiply an infinity by zero.
      if (lane == row) {
#pragma unroll
        for (int c = 0; c < K; ++c) known[row * uint(K) + uint(c)] = next[c];
      }
#pragma unroll
      for (int c = 0; c < K; ++c) {
        sum[c] = mul_sub(sum[c], a[r], simd_shuffle(next[c], ushort(row)));
      }
    }
    // All the way round, for the columns that come next.
    T turned[TURN];
#pragma unroll
    for (int j = 0; j < TURN; ++j) turned[j] = a[j];
#pragma unroll
    for (int j = 0; j < 32 - TURN; ++j) a[j] = a[j + TURN];
#pragma unroll
    for (int j = 0; j < TURN; ++j) a[32 - TURN + j] = turned[j];
  }
}

// A lane's row of right-hand sides, K columns from `column` on.
template <typename T, int K>
inline void read_row(
    thread T (&right)[K],
    device const T* b,
    Layout of_B,
    uint row,
    uint column,
    uint columns,
    bool owns) {
#pragma unroll
  for (int c = 0; c < K; ++c) {
    const bool inside = owns && column + uint(c) < columns;
    right[c] = inside ? b[offset(of_B, row, column + uint(c))] : zero<T>();
  }
}

// One threadgroup solves the first 32 SIDE rows of op(A) X = B for at most K `chunks` columns, as
// all groups of these columns do, and takes these unknowns out of 32 rows below: rest := B - op(A)
// X there. A simdgroup keeps a square of 32 rows and columns in registers, a row a lane. Chunks of
// K columns pass down the diagonal one behind the other, so that all of its squares have work. The
// groups of the first rows below write X. Flags as in triangular_columns.
template <typename T, int K>
[[max_total_threads_per_threadgroup(448)]] kernel void triangular_step(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* rest [[buffer(2)]],
    device T* X [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& columns [[buffer(5)]],
    constant uint& chunks [[buffer(6)]],
    constant uint& a_row [[buffer(7)]],
    constant uint& a_column [[buffer(8)]],
    constant long& a_batch [[buffer(9)]],
    constant uint& b_row [[buffer(10)]],
    constant uint& b_column [[buffer(11)]],
    constant long& b_batch [[buffer(12)]],
    constant uint& rest_row [[buffer(13)]],
    constant uint& rest_column [[buffer(14)]],
    constant long& rest_batch [[buffer(15)]],
    constant uint& x_row [[buffer(16)]],
    constant uint& x_column [[buffer(17)]],
    constant long& x_batch [[buffer(18)]],
    constant uint& lower [[buffer(19)]],
    constant uint& unit [[buffer(20)]],
    constant uint& conjugated [[buffer(21)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  // Sums that do not wait for each other.
  constexpr int CHAINS = K == 1 ? 4 : 1;
  constexpr uint EXCHANGE = strip<T>() * STRIP_STRIDE;
  // What is taken from 32 rows of a chunk, of as many chunks as are on the diagonal, for each row
  // of squares but the first: where the squares were turned before.
  constexpr uint CHUNK = 32 * K;
  constexpr uint TAKEN = SIDE * SIDE * CHUNK;
  THREADGROUP_ARRAY(T, exchange, (TAKEN > SQUARES * EXCHANGE ? TAKEN : SQUARES * EXCHANGE));
  THREADGROUP_ARRAY(T, pivots, 32 * SIDE);
  THREADGROUP_ARRAY(T, known, SIDE * CHUNK);
  const bool reversed = lower == 0;
  const Layout of_A = layout(a_row, a_column, reversed, true);
  const Layout of_B = layout(b_row, b_column, reversed, false);
  const Layout of_rest = layout(rest_row, rest_column, reversed, false);
  const Layout of_X = layout(x_row, x_column, reversed, false);
  const uint last = reversed ? n - 1 : 0;
  device const T* a = A + long(group.z) * a_batch - offset(of_A, last, last);
  // The square's place; below the triangle it is the group that chooses the rows.
  const uint down = simd < 1 ? 0 : (simd < 3 ? 1 : (simd < 6 ? 2 : (simd < TRIANGLE ? 3 : SIDE)));
  const bool below = down == SIDE;
  // Squares on the diagonal are simdgroups 0, 1, 3 and 6: dealt out in turn, each has one of the
  // four schedulers of a multiprocessor to itself.
  const uint place = simd - down * (down + 1) / 2;
  const uint across = below ? place : down - place;
  const bool solves = down == across;
  const uint top = 32 * (below ? SIDE + group.x : down);
  const uint rows = min(32u, n - top);
  const uint first_column = group.y * chunks * uint(K);
  const uint count = min(chunks, (columns - first_column + uint(K - 1)) / uint(K));

  // The last square of its rows, which needs their right-hand sides.
  const bool finishes = below && across == SIDE - 1;
  const bool owns = lane < rows && (solves || finishes);
  device const T* b = B + long(group.z) * b_batch - offset(of_B, last, 0);
  T right[K];
  read_row<T, K>(right, b, of_B, top + lane, first_column, columns, owns);
  T pivot = one<T>();
  if (solves && owns && unit == 0) {
    pivot = a[offset(of_A, top + lane, top + lane)];
    if (conjugated != 0) pivot = conj(pivot);
  }
  T entries[32];
  load_square<T>(
      entries, a + offset(of_A, top, 32 * across), of_A, rows, solves, conjugated != 0, lane,
      exchange + simd * EXCHANGE);
  const bool invertible = has_inverse(pivot);
  const T inverse = invertible ? quotient(one<T>(), pivot) : zero<T>();
  if (solves) pivots[top + lane] = pivot;
  const bool quotients = simd_any(!invertible);

  const uint steps = min(SIDE, (n + 31) / 32);
  for (uint step = 0; step < steps + count - 1; ++step) {
    // Wraps round where the simdgroup's first chunk is still to come.
    const uint chunk = step - across;
    const uint column = first_column + chunk * uint(K);
    threadgroup T* taken = exchange + ((max(down, 1u) - 1) * SIDE + chunk % SIDE) * CHUNK + lane;
    if (solves && chunk < count) {
      T sum[K];
#pragma unroll
      for (int c = 0; c < K; ++c) sum[c] = down > 0 ? taken[uint(c) * 32] : zero<T>();
      threadgroup T* found = known + down * CHUNK;
      if (quotients) {
        substitute_square<T, K, true>(entries, sum, right, pivots + top, inverse, lane, found);
      } else {
        substitute_square<T, K, false>(entries, sum, right, pivots + top, inverse, lane, found);
      }
      device T* own =
          X + long(group.z) * x_batch - offset(of_X, last, 0) + offset(of_X, top + lane, column);
#pragma unroll
      for (int c = 0; c < K; ++c) {
        if (owns && group.x == 0 && column + uint(c) < columns) {
          own[long(c) * long(of_X.column)] = found[lane * uint(K) + uint(c)];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!solves && chunk < count) {
      T product[CHAINS * K];
#pragma unroll
      for (int e = 0; e < CHAINS * K; ++e) product[e] = zero<T>();
#pragma unroll
      for (int j = 0; j < 32; ++j) {
#pragma unroll
        for (int c = 0; c < K; ++c) {
          const T solved = known[across * CHUNK + uint(j * K + c)];
          const int e = j % CHAINS * K + c;
          product[e] = mul_sub(product[e], entries[j], solved);
        }
      }
      device T* left = rest + long(group.z) * rest_batch - offset(of_rest, last, 0) +
                       offset(of_rest, top + lane, column);
#pragma unroll
      for (int c = 0; c < K; ++c) {
#pragma unroll
        for (int chain = 1; chain < CHAINS; ++chain) {
          product[c] = product[c] + product[chain * K + c];
        }
        if (across > 0) product[c] = taken[uint(c) * 32] + product[c];
        if (!finishes) {
          taken[uint(c) * 32] = product[c];
        } else if (owns && column + uint(c) < columns) {
          left[long(c) * long(of_rest.column)] = right[c] + product[c];
        }
      }
    }
    if (chunk < count) {
      read_row<T, K>(right, b, of_B, top + lane, column + uint(K), columns, owns);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
