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

// The unknowns of a square on the diagonal. A lane has its row in `a`, in `sum` what the unknowns
// before the square take from it, and gets its unknown there. Where an inverse is zero a quotient
// is to be formed, which only QUOTIENTS does.
template <typename T, int K, bool QUOTIENTS>
inline void substitute_square(
    thread T (&a)[32],
    thread T (&sum)[K],
    thread const T (&right)[K],
    T pivot,
    T inverse,
    uint lane) {
  T x[K];
#pragma unroll(1)
  for (uint first = 0; first < 32; first += uint(TURN)) {
#pragma unroll
    for (int r = 0; r < TURN; ++r) {
      const uint row = first + uint(r);
#pragma unroll
      for (int c = 0; c < K; ++c) {
        T next = mul(right[c] + sum[c], inverse);
        if constexpr (QUOTIENTS) {
          if (is_zero(inverse)) next = quotient(right[c] + sum[c], pivot);
        }
        // Kept before its own row and those above multiply an infinity by zero.
        if (lane == row) x[c] = next;
        sum[c] = mul_sub(sum[c], a[r], simd_shuffle(next, ushort(row)));
      }
    }
#pragma unroll
    for (int j = 0; j < 32 - TURN; ++j) a[j] = a[j + TURN];
  }
#pragma unroll
  for (int c = 0; c < K; ++c) sum[c] = x[c];
}

// One threadgroup solves the first 32 SIDE rows of op(A) X = B for at most K columns, as all groups
// of these columns do, and takes these unknowns out of 32 rows below: rest := B - op(A) X there. A
// simdgroup keeps a square of 32 rows and columns in registers, a row a lane: none waits for memory
// once they are loaded. The groups of the first rows below write X. Flags as in triangular_columns.
template <typename T, int K>
[[max_total_threads_per_threadgroup(448)]] kernel void triangular_step(
    device const T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* rest [[buffer(2)]],
    device T* X [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& columns [[buffer(5)]],
    constant uint& a_row [[buffer(6)]],
    constant uint& a_column [[buffer(7)]],
    constant long& a_batch [[buffer(8)]],
    constant uint& b_row [[buffer(9)]],
    constant uint& b_column [[buffer(10)]],
    constant long& b_batch [[buffer(11)]],
    constant uint& rest_row [[buffer(12)]],
    constant uint& rest_column [[buffer(13)]],
    constant long& rest_batch [[buffer(14)]],
    constant uint& x_row [[buffer(15)]],
    constant uint& x_column [[buffer(16)]],
    constant long& x_batch [[buffer(17)]],
    constant uint& lower [[buffer(18)]],
    constant uint& unit [[buffer(19)]],
    constant uint& conjugated [[buffer(20)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  // Sums that do not wait for each other.
  constexpr int CHAINS = K == 1 ? 4 : 1;
  constexpr uint EXCHANGE = strip<T>() * STRIP_STRIDE;
  THREADGROUP_ARRAY(T, exchange, SQUARES * EXCHANGE);
  THREADGROUP_ARRAY(T, known, 32 * SIDE * K);
  const bool reversed = lower == 0;
  const Layout of_A = layout(a_row, a_column, reversed, true);
  const Layout of_B = layout(b_row, b_column, reversed, false);
  const Layout of_rest = layout(rest_row, rest_column, reversed, false);
  const Layout of_X = layout(x_row, x_column, reversed, false);
  const uint last = reversed ? n - 1 : 0;
  device const T* a = A + long(group.z) * a_batch - offset(of_A, last, last);
  device const T* b = B + long(group.z) * b_batch - offset(of_B, last, 0);
  device T* open = rest + long(group.z) * rest_batch - offset(of_rest, last, 0);
  device T* own = X + long(group.z) * x_batch - offset(of_X, last, 0);
  // The square's place; below the triangle it is the group that chooses the rows.
  const uint down = simd < 1 ? 0 : (simd < 3 ? 1 : (simd < 6 ? 2 : (simd < TRIANGLE ? 3 : SIDE)));
  const uint across = simd - down * (down + 1) / 2;
  const bool solves = down == across;
  const bool below = down == SIDE;
  const uint top = 32 * (below ? SIDE + group.x : down);
  const uint rows = min(32u, n - top);
  const uint first_column = group.y * uint(K);
  threadgroup T* handed = exchange + simd * EXCHANGE;

  const bool owns = lane < rows && (solves || (below && across == SIDE - 1));
  T right[K];
#pragma unroll
  for (int c = 0; c < K; ++c) {
    const uint column = first_column + uint(c);
    const bool inside = owns && column < columns;
    right[c] = inside ? b[offset(of_B, top + lane, column)] : zero<T>();
  }
  T pivot = one<T>();
  if (solves && owns && unit == 0) {
    pivot = a[offset(of_A, top + lane, top + lane)];
    if (conjugated != 0) pivot = conj(pivot);
  }
  T entries[32];
  load_square<T>(
      entries, a + offset(of_A, top, 32 * across), of_A, rows, solves, conjugated != 0, lane,
      handed);
  const bool invertible = has_inverse(pivot);
  const T inverse = invertible ? quotient(one<T>(), pivot) : zero<T>();

  T sum[K];
#pragma unroll
  for (int c = 0; c < K; ++c) sum[c] = zero<T>();
  const uint steps = min(SIDE, (n + 31) / 32);
  for (uint step = 0; step < steps; ++step) {
    if (solves && across == step) {
      if (simd_any(!invertible)) {
        substitute_square<T, K, true>(entries, sum, right, pivot, inverse, lane);
      } else {
        substitute_square<T, K, false>(entries, sum, right, pivot, inverse, lane);
      }
#pragma unroll
      for (int c = 0; c < K; ++c) {
        const uint column = first_column + uint(c);
        known[(top + lane) * uint(K) + uint(c)] = sum[c];
        if (owns && group.x == 0 && column < columns) {
          own[offset(of_X, top + lane, column)] = sum[c];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!solves && across == step) {
      T taken[CHAINS * K];
#pragma unroll
      for (int e = 0; e < CHAINS * K; ++e) taken[e] = zero<T>();
#pragma unroll
      for (int j = 0; j < 32; ++j) {
#pragma unroll
        for (int c = 0; c < K; ++c) {
          const T solved = known[(32 * step + uint(j)) * uint(K) + uint(c)];
          const int e = j % CHAINS * K + c;
          taken[e] = mul_sub(taken[e], entries[j], solved);
        }
      }
#pragma unroll
      for (int c = 0; c < K; ++c) {
#pragma unroll
        for (int chain = 1; chain < CHAINS; ++chain) {
          taken[c] = taken[c] + taken[chain * K + c];
        }
        handed[uint(c) * 32 + lane] = taken[c];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (owns && step < across + uint(below)) {
      threadgroup const T* from = exchange + (simd - across + step) * EXCHANGE + lane;
#pragma unroll
      for (int c = 0; c < K; ++c) sum[c] = sum[c] + from[uint(c) * 32];
    }
  }
#pragma unroll
  for (int c = 0; c < K; ++c) {
    const uint column = first_column + uint(c);
    if (below && owns && column < columns) {
      open[offset(of_rest, top + lane, column)] = right[c] + sum[c];
    }
  }
}
