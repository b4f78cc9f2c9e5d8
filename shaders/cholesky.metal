#include "scalar.h"
#include "tile.h"

template <typename T> inline real_t<T> real_part(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return a.x;
  } else {
    return a;
  }
}

template <typename T> inline T times(T a, real_t<T> s) {
  if constexpr (scalar_traits<T>::complex) {
    return T(a.x * s, a.y * s);
  } else {
    return a * s;
  }
}

// c - |a|^2
template <typename T> inline real_t<T> subtract_square(real_t<T> c, T a) {
  if constexpr (scalar_traits<T>::complex) {
    return fma(-a.x, a.x, fma(-a.y, a.y, c));
  } else {
    return fma(-a, a, c);
  }
}

// 1 / sqrt(d): a Newton step on the GPU's estimate. Its products are near 1 or between the two, so
// that no d is too small or too large for it.
template <typename R> inline R inverse_root(R d) {
  const R estimate = rsqrt(d);
  const R half_error = R(0.5f) * fma(-(d * estimate), estimate, R(1));
  return d == R(INFINITY) ? R(0) : fma(estimate, half_error, estimate);
}

// The lower triangle of a := its Cholesky factor. Returns the order of the first leading minor that
// is not positive definite, else 0. The upper triangle is neither read nor written.
template <typename T, int N> inline int factor(thread T (&a)[N][N]) {
  int failed = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const real_t<T> pivot = real_part(a[k][k]);
    const real_t<T> inverse = inverse_root(pivot);
    failed = !(inverse < real_t<T>(INFINITY)) && failed == 0 ? k + 1 : failed;
    a[k][k] = from_real<T>(sqrt(pivot));
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i > k) a[i][k] = times(a[i][k], inverse);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (j > k && i > j) a[i][j] = mul_sub(a[i][j], a[i][k], conj(a[j][k]));
        if (j > k && i == j) a[i][i] = from_real<T>(subtract_square(real_part(a[i][i]), a[i][k]));
      }
    }
  }
  return failed;
}

// a := the factor of the matrix whose lower triangle is a's, conjugated if `upper`; then that
// factor, or its adjoint if `upper`, and zeros in the other triangle.
template <typename T, int N> inline int factor_whole(thread T (&a)[N][N], bool upper) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < i; ++j) a[i][j] = upper ? conj(a[i][j]) : a[i][j];
  }
  const int failed = factor<T, N>(a);
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < i; ++j) {
      const T l = a[i][j];
      a[i][j] = upper ? zero<T>() : l;
      a[j][i] = upper ? conj(l) : zero<T>();
    }
  }
  return failed;
}

// One thread factors one N x N matrix; those of A follow each other without a gap, 32 to a
// simdgroup. The strides say where the lower triangle of A lies: for `upper` they are those of A^T.
// L is column-major. info: the order of the first leading minor that is not positive definite, else
// 0.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void cholesky_packed(
    device const T* A [[buffer(0)]],
    device T* L [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& row_stride [[buffer(3)]],
    constant uint& column_stride [[buffer(4)]],
    constant uint& batch [[buffer(5)]],
    constant uint& upper [[buffer(6)]],
    uint simdgroup [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tile, 32 * (N * N + 1));
  const uint first = simdgroup * 32;
  const uint count = min(32u, batch - first);
  T a[N][N];
  load_packed<T, N>(a, A + ulong(first) * (N * N), count, row_stride, column_stride, lane, tile);
  const int failed = factor_whole<T, N>(a, upper != 0);
  if (lane < count) info[first + lane] = failed;
  store_packed<T, N>(a, L + ulong(first) * (N * N), count, lane, tile);
}

// Where a lane stands in the factorisation of N columns, a row a lane: `row` counts from the first
// pivot's, which is in lane `first_lane`. `diagonal` is what is left of the lane's own diagonal
// entry: its pivot, in the end. Kept apart, it spares the next pivot a way through other lanes.
template <typename R> struct Standing {
  int row;
  uint first_lane;
  R diagonal;
  int failed;
};

// The steps of that from N - ACTIVE on, `size` in all. `column`, for two columns of N entries,
// passes a column of L on, conjugated, from the pivot down. A lane may have other rows, below all
// pivots, after its first. Entries right of the diagonal may hold anything, before and after; the
// diagonal is left to the caller.
template <typename T, int N, int ROWS, int ACTIVE>
inline void cholesky_steps(
    thread T (&a)[ROWS][N], thread Standing<real_t<T>>& state, uint size, threadgroup T* column) {
  typedef real_t<T> R;
  constexpr int STEPS = ACTIVE < SEGMENT ? ACTIVE : SEGMENT;
#pragma unroll(1)
  for (int step = 0; step < STEPS; ++step) {
    const int k = N - ACTIVE + step;
    T l[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) l[r] = a[r][0];
    if (uint(k) < size) {
      const R own_inverse = inverse_root(state.diagonal);
      const R inverse = simd_shuffle(own_inverse, ushort(state.first_lane + uint(k)));
      // Of what is not greater than zero there is none, or an infinite one.
      state.failed = !(inverse < R(INFINITY)) && state.failed == 0 ? k + 1 : state.failed;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) l[r] = times(l[r], inverse);
      state.diagonal = state.row > k ? subtract_square(state.diagonal, l[0]) : state.diagonal;
      // One of them is read while the next step fills the other.
      threadgroup T* below = column + (k & 1) * N;
      if (uint(state.row) < uint(N)) below[uint(state.row - k) % uint(N)] = conj(l[0]);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      // Of rows that are done, what stands right of the diagonal must not reach what is finished.
      const T factor = state.row > k ? l[0] : zero<T>();
#pragma unroll
      for (int j = 1; j < ACTIVE; ++j) {
        T other = below[j];
        if (j > ACTIVE - STEPS) other = j < ACTIVE - step ? other : zero<T>();
        a[0][j - 1] = mul_sub(a[0][j], factor, other);
#pragma unroll
        for (int r = 1; r < ROWS; ++r) a[r][j - 1] = mul_sub(a[r][j], l[r], other);
      }
    } else {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int j = 1; j < ACTIVE; ++j) a[r][j - 1] = a[r][j];
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) a[r][ACTIVE - 1] = l[r];
  }
  if constexpr (ACTIVE > STEPS) cholesky_steps<T, N, ROWS, ACTIVE - STEPS>(a, state, size, column);
}

// All of them, and the diagonal.
template <typename T, int N, int ROWS>
inline void factor_rows(
    thread T (&a)[ROWS][N], thread Standing<real_t<T>>& state, uint size, threadgroup T* column) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    state.diagonal = j == state.row ? real_part(a[0][j]) : state.diagonal;
  }
  cholesky_steps<T, N, ROWS, N>(a, state, size, column);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const T root = from_real<T>(sqrt(state.diagonal));
#pragma unroll
  for (int j = 0; j < N; ++j) a[0][slot<N>(j)] = j == state.row ? root : a[0][slot<N>(j)];
}

// N lanes factor one n x n matrix, n <= N: a lane owns a row in registers. A simdgroup holds 32 / N
// matrices. Strides of A, `upper` and info as above; L is column-major.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void cholesky_simd(
    device const T* A [[buffer(0)]],
    device T* L [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& batch [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant uint& upper [[buffer(8)]],
    uint id [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tiles, 32 * (N + 1));
  const uint matrix = id / uint(N);
  const uint row = lane % uint(N);
  const bool owns = matrix < batch && row < n;
  threadgroup T* tile = tiles + lane / uint(N) * uint(N * (N + 1));
  T a[1][N];
  load_row<T, N>(
      a[0], A + long(matrix) * batch_stride, matrix < batch, row, n, n, row_stride, column_stride,
      tile);
#pragma unroll
  for (int j = 0; j < N; ++j) a[0][j] = upper != 0 ? conj(a[0][j]) : a[0][j];
  Standing<real_t<T>> state = {int(row), lane - row, real_t<T>(0), 0};
  factor_rows<T, N, 1>(a, state, n, tile);
  if (row == 0 && matrix < batch) info[matrix] = state.failed;
  device T* to = L + ulong(matrix) * n * n + row;
  if (upper != 0) {
    // Rows of L are columns of the adjoint: through the tile, to write along memory.
#pragma unroll
    for (int j = 0; j < N; ++j) {
      tile[row * uint(N + 1) + uint(j)] = uint(j) <= row ? conj(a[0][slot<N>(j)]) : zero<T>();
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(8)
    for (uint j = 0; j < uint(N); ++j) {
      if (owns && j < n) to[j * n] = tile[j * uint(N + 1) + row];
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (owns && uint(j) < n) to[uint(j) * n] = uint(j) <= row ? a[0][slot<N>(j)] : zero<T>();
    }
  }
}

// Entries of a row that a simdgroup moves at once through threadgroup memory: 64 bytes, which is
// what keeps an access along memory whole, in tiles of 32 rows.
template <typename T> inline constexpr uint stage() { return 64 / sizeof(T); }
template <typename T> inline constexpr uint stage_size() { return 32 * (stage<T>() + 1); }

// A simdgroup's 32 rows from `top` on of the columns column .. column + WIDTH, a row a lane, zero
// outside the `size` rows and columns.
template <typename T, int WIDTH>
inline void load_rows(
    thread T (&a)[WIDTH],
    device const T* A,
    uint top,
    uint column,
    uint size,
    uint row_stride,
    uint column_stride,
    uint lane,
    threadgroup T* tile) {
  if (column_stride < row_stride) {
    constexpr int STAGE = int(stage<T>());
    const uint i = lane / uint(STAGE);
    const uint j = lane % uint(STAGE);
#pragma unroll
    for (int part = 0; part < WIDTH; part += STAGE) {
      const uint from_column = column + uint(part) + j;
#pragma unroll
      for (int e = 0; e < STAGE; ++e) {
        const uint r = i + uint(e) * (32 / STAGE);
        T entry = zero<T>();
        if (top + r < size && from_column < size) {
          entry = A[long(top + r) * long(row_stride) + long(from_column) * long(column_stride)];
        }
        tile[r * (STAGE + 1) + j] = entry;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (int e = 0; e < STAGE; ++e) a[part + e] = tile[lane * (STAGE + 1) + uint(e)];
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  } else {
    device const T* from =
        A + long(top + lane) * long(row_stride) + long(column) * long(column_stride);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      a[j] = top + lane < size && column + uint(j) < size ? *from : zero<T>();
      from += column_stride;
    }
  }
}

// The other way for an upper factor: U(column + j, row) = conj of entry j, where that is not below
// the diagonal.
template <typename T, int WIDTH>
inline void store_adjoint(
    thread const T (&l)[WIDTH],
    device T* U,
    uint top,
    uint column,
    uint size,
    uint stride,
    uint lane,
    threadgroup T* tile) {
  constexpr int STAGE = int(stage<T>());
  const uint i = lane / uint(STAGE);
  const uint j = lane % uint(STAGE);
#pragma unroll
  for (int part = 0; part < WIDTH; part += STAGE) {
#pragma unroll
    for (int e = 0; e < STAGE; ++e) {
      tile[lane * (STAGE + 1) + uint(e)] = conj(l[slot<WIDTH>(part + e)]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const uint to_row = column + uint(part) + j;
#pragma unroll
    for (int e = 0; e < STAGE; ++e) {
      const uint r = i + uint(e) * (32 / STAGE);
      if (top + r < size && to_row <= top + r) {
        U[ulong(top + r) * stride + to_row] = tile[r * (STAGE + 1) + j];
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Entries of its row of L that a thread reads ahead.
constexpr constant int AHEAD = 8;

template <typename T>
inline void load_ahead(thread T (&x)[AHEAD], device const T* from, bool owns, uint stride) {
#pragma unroll
  for (int e = 0; e < AHEAD; ++e) {
    x[e] = owns ? *from : zero<T>();
    from += stride;
  }
}

// a -= x y^H for WIDTH finished columns of L: x is the lane's row of them at `from`, of which the
// first are read, and y are the rows of `block`, block[k * WIDTH + j] = conj(y(j, k)).
template <typename T, int WIDTH>
inline void subtract_done(
    thread T (&a)[WIDTH],
    thread T (&x)[AHEAD],
    device const T* from,
    bool owns,
    uint stride,
    threadgroup const T* block) {
#pragma unroll(1)
  for (int part = 0; part < WIDTH; part += AHEAD) {
    T next[AHEAD];
    from += ulong(AHEAD) * stride;
    load_ahead<T>(next, from, owns && part + AHEAD < WIDTH, stride);
#pragma unroll
    for (int e = 0; e < AHEAD; ++e) {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) a[j] = mul_sub(a[j], x[e], block[(part + e) * WIDTH + j]);
    }
#pragma unroll
    for (int e = 0; e < AHEAD; ++e) x[e] = next[e];
  }
}

// block[k * WIDTH + j] = conj(L(first + j, done + k)) for j < count.
template <typename T, int WIDTH>
inline void load_done(
    device const T* L,
    uint first,
    uint done,
    uint count,
    uint stride,
    threadgroup T* block,
    uint tid,
    uint threads) {
  const uint j = tid % uint(WIDTH);
  const uint step = threads / uint(WIDTH);
  device const T* from = L + ulong(done + tid / uint(WIDTH)) * stride + first + j;
#pragma unroll(8)
  for (uint k = tid / uint(WIDTH); k < uint(WIDTH); k += step) {
    block[k * uint(WIDTH) + j] = j < count ? conj(*from) : zero<T>();
    from += ulong(step) * stride;
  }
}

// The steps of x := x L^-H from WIDTH - ACTIVE on for a lane's row x and a triangular block of
// `size` rows: block[k * WIDTH + i] = conj(L(k + i, k)), and 1 / L(k, k) for i = 0.
template <typename T, int WIDTH, int ACTIVE>
inline void row_steps(thread T (&x)[WIDTH], threadgroup const T* block, uint size) {
  constexpr int STEPS = ACTIVE < SEGMENT ? ACTIVE : SEGMENT;
#pragma unroll(1)
  for (int step = 0; step < STEPS; ++step) {
    const uint k = uint(WIDTH - ACTIVE + step);
    threadgroup const T* column = block + k * uint(WIDTH);
    T known = x[0];
    if (k < size) {
      known = times(known, real_part(column[0]));
#pragma unroll
      for (int i = 1; i < ACTIVE; ++i) {
        T l = column[i];
        if (i > ACTIVE - STEPS) l = i < ACTIVE - step ? l : zero<T>();
        x[i - 1] = mul_sub(x[i], known, l);
      }
    } else {
#pragma unroll
      for (int i = 1; i < ACTIVE; ++i) x[i - 1] = x[i];
    }
    x[ACTIVE - 1] = known;
  }
  if constexpr (ACTIVE > STEPS) row_steps<T, WIDTH, ACTIVE - STEPS>(x, block, size);
}

// One threadgroup factors the first `columns` columns of one matrix of `size` rows, left-looking in
// blocks of WIDTH of them; lane i of simdgroup s owns row 32 s + i. L has its columns `stride`
// apart and takes the lower factor; for `upper`, of all columns, its adjoint too, and zeros in its
// place when it is no longer needed. Returns as `factor`; the pivot's simdgroup knows it.
template <typename T, int WIDTH>
inline int factor_group(
    device const T* A,
    uint row_stride,
    uint column_stride,
    device T* L,
    uint size,
    uint columns,
    uint stride,
    bool upper,
    threadgroup T* block,
    threadgroup T* tile,
    threadgroup int* first_failed,
    uint tid,
    uint threads,
    uint lane,
    uint simd) {
  const uint top = simd * 32;
  const uint row = top + lane;
  threadgroup T* own_tile = tile + simd * stage_size<T>();
  int failed = 0;
  for (uint begin = 0; begin < columns; begin += uint(WIDTH)) {
    const uint width = min(uint(WIDTH), columns - begin);
    const uint diagonal = begin / 32;
    T a[1][WIDTH];
    if (simd >= diagonal) {
      load_rows<T, WIDTH>(a[0], A, top, begin, size, row_stride, column_stride, lane, own_tile);
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) a[0][j] = upper ? conj(a[0][j]) : a[0][j];
    } else {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) a[0][j] = zero<T>();
    }
    for (uint done = 0; done < begin; done += uint(WIDTH)) {
      device const T* from = L + ulong(done) * stride + row;
      const bool owns = simd >= diagonal && row < size;
      T x[AHEAD];
      load_ahead<T>(x, from, owns, stride);
      load_done<T, WIDTH>(L, begin, done, width, stride, block, tid, threads);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (simd >= diagonal) subtract_done<T, WIDTH>(a[0], x, from, owns, stride, block);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (simd == diagonal) {
      Standing<real_t<T>> state = {int(row) - int(begin), begin % 32, real_t<T>(0), 0};
      factor_rows<T, WIDTH, 1>(a, state, width, own_tile);
      const real_t<T> inverse = inverse_root(state.diagonal);
      failed = failed == 0 && state.failed != 0 ? int(begin) + state.failed : failed;
      const uint i = row - begin;
      if (i < uint(WIDTH)) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const T l = uint(k) == i ? from_real<T>(inverse) : conj(a[0][slot<WIDTH>(k)]);
          if (uint(k) <= i) block[uint(k) * uint(WIDTH) + i - uint(k)] = l;
        }
      }
      if (lane == 0) *first_failed = failed;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    failed = *first_failed;
    if (simd > diagonal) row_steps<T, WIDTH, WIDTH>(a[0], block, width);
    if (upper && simd >= diagonal) {
      store_adjoint<T, WIDTH>(a[0], L, top, begin, size, stride, lane, own_tile);
    }
    device T* to = L + ulong(begin) * stride + row;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      const bool lower = row >= begin + uint(j);
      if (row < size && uint(j) < width && (lower || !upper)) {
        *to = lower ? a[0][slot<WIDTH>(j)] : zero<T>();
      }
      to += stride;
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
  if (upper) {
    for (uint j = 0; j < size; ++j) {
      if (row > j && row < size) L[ulong(j) * stride + row] = zero<T>();
    }
  }
  return failed;
}

// One simdgroup factors one matrix of up to 64 rows, left-looking in blocks of WIDTH columns; lane
// i owns the rows i and 32 + i, in its turn, from the diagonal's 32 rows on. Strides of A, `upper`
// and info as above; L is column-major.
template <typename T, int WIDTH>
[[max_total_threads_per_threadgroup(64)]] kernel void cholesky_rows(
    device const T* A [[buffer(0)]],
    device T* L [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    constant uint& upper [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, block, WIDTH * WIDTH);
  THREADGROUP_ARRAY(T, tile, (stage_size<T>()));
  device const T* matrix = A + long(group) * batch_stride;
  device T* factor = L + ulong(group) * n * n;
  int failed = 0;
  for (uint begin = 0; begin < n; begin += uint(WIDTH)) {
    const uint width = min(uint(WIDTH), n - begin);
    const uint top = begin / 32 * 32;
    T a[2][WIDTH];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint first = top + uint(r) * 32;
      if (first < n) {
        load_rows<T, WIDTH>(a[r], matrix, first, begin, n, row_stride, column_stride, lane, tile);
      } else {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) a[r][j] = zero<T>();
      }
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) a[r][j] = upper != 0 ? conj(a[r][j]) : a[r][j];
    }
    for (uint done = 0; done < begin; done += uint(WIDTH)) {
      load_done<T, WIDTH>(factor, begin, done, width, n, block, lane, 32);
      simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint row = top + uint(r) * 32 + lane;
        if (row - lane < n) {
          device const T* from = factor + ulong(done) * n + row;
          T x[AHEAD];
          load_ahead<T>(x, from, row < n, n);
          subtract_done<T, WIDTH>(a[r], x, from, row < n, n, block);
        }
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    Standing<real_t<T>> state = {int(top + lane) - int(begin), begin % 32, real_t<T>(0), 0};
    factor_rows<T, WIDTH, 2>(a, state, width, tile);
    failed = failed == 0 && state.failed != 0 ? int(begin) + state.failed : failed;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint first = top + uint(r) * 32;
      if (first < n) {
        if (upper != 0) store_adjoint<T, WIDTH>(a[r], factor, first, begin, n, n, lane, tile);
        device T* to = factor + ulong(begin) * n + first + lane;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
          const bool lower = first + lane >= begin + uint(j);
          if (first + lane < n && uint(j) < width && (lower || upper == 0)) {
            *to = lower ? a[r][slot<WIDTH>(j)] : zero<T>();
          }
          to += n;
        }
      }
    }
    simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
  // The other triangle: no row of it had a turn where the diagonal is in the second half, and for
  // `upper` it holds L.
  for (uint j = 0; j < n; ++j) {
    device T* column = factor + ulong(j) * n;
    if (upper != 0) {
      if (lane > j) column[lane] = zero<T>();
      if (32 + lane > j && 32 + lane < n) column[32 + lane] = zero<T>();
    } else if (j >= 32) {
      column[lane] = zero<T>();
    }
  }
  if (lane == 0) info[group] = failed;
}

// One threadgroup of up to SIMDS simdgroups factors one matrix of up to 32 SIMDS rows. Strides of
// A, `upper` and info as above; L is column-major.
template <typename T, int WIDTH, int SIMDS>
[[max_total_threads_per_threadgroup(256)]] kernel void cholesky_group(
    device const T* A [[buffer(0)]],
    device T* L [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    constant uint& upper [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, block, WIDTH * WIDTH);
  THREADGROUP_ARRAY(T, tile, SIMDS * (stage_size<T>()));
  THREADGROUP_ARRAY(int, first_failed, 1);
  const int failed = factor_group<T, WIDTH>(
      A + long(group) * batch_stride, row_stride, column_stride, L + ulong(group) * n * n, n, n, n,
      upper != 0, block, tile, first_failed, tid, threads, lane, simd);
  if (tid == 0) info[group] = failed;
}

// The same in place for the columns first .. last of a larger L, whose lower triangle holds what is
// left of A, and the rows from `first` on that have a thread. info, once set, stays.
template <typename T, int WIDTH, int SIMDS>
[[max_total_threads_per_threadgroup(256)]] kernel void cholesky_panel(
    device T* L [[buffer(0)]],
    device int* info [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& first [[buffer(3)]],
    constant uint& last [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, block, WIDTH * WIDTH);
  THREADGROUP_ARRAY(T, tile, SIMDS * (stage_size<T>()));
  THREADGROUP_ARRAY(int, first_failed, 1);
  device T* corner = L + ulong(group) * n * n + ulong(first) * (n + 1);
  const int failed = factor_group<T, WIDTH>(
      corner, 1u, n, corner, min(n - first, threads), last - first, n, false, block, tile,
      first_failed, tid, threads, lane, simd);
  if (tid == 0) {
    const int before = first == 0 ? 0 : info[group];
    info[group] = before == 0 && failed != 0 ? int(first) + failed : before;
  }
}

// The rows below such a panel: L21 := A21 L11^-H, in place, a row a thread.
template <typename T, int WIDTH>
[[max_total_threads_per_threadgroup(128)]] kernel void cholesky_below(
    device T* L [[buffer(0)]],
    constant uint& n [[buffer(1)]],
    constant uint& first [[buffer(2)]],
    constant uint& last [[buffer(3)]],
    uint2 id [[thread_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, block, WIDTH * WIDTH);
  device T* matrix = L + ulong(id.y) * n * n;
  const uint row = last + id.x;
  const bool owns = row < n;
  for (uint begin = first; begin < last; begin += uint(WIDTH)) {
    T a[WIDTH];
    device T* own = matrix + ulong(begin) * n + row;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) a[j] = owns ? own[ulong(j) * n] : zero<T>();
    for (uint done = first; done < begin; done += uint(WIDTH)) {
      device const T* from = matrix + ulong(done) * n + row;
      T x[AHEAD];
      load_ahead<T>(x, from, owns, n);
      load_done<T, WIDTH>(matrix, begin, done, uint(WIDTH), n, block, tid, threads.x);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      subtract_done<T, WIDTH>(a, x, from, owns, n, block);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint e = tid; e < uint(WIDTH * WIDTH); e += threads.x) {
      const uint i = e % uint(WIDTH);
      const uint k = e / uint(WIDTH);
      const T l = i < k ? one<T>() : matrix[ulong(begin + k) * n + begin + i];
      if (i >= k) {
        block[k * uint(WIDTH) + i - k] =
            i == k ? from_real<T>(real_t<T>(1) / real_part(l)) : conj(l);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    row_steps<T, WIDTH, WIDTH>(a, block, uint(WIDTH));
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      if (owns) own[ulong(j) * n] = a[slot<WIDTH>(j)];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Matrices of more rows are factored in panels of SIDE columns, STEP of them at a time. PARTS
// threads share a row: the first STEP columns are in the registers of the first, the next ones of
// the next.
template <typename T> inline constexpr uint side() { return sizeof(T) > 8 ? 32 : 64; }
template <typename T> inline constexpr int step_width() { return sizeof(T) > 4 ? 4 : 8; }
template <typename T, int PARTS> inline constexpr int own_columns() {
  return int(side<T>()) / PARTS;
}
// Columns of finished panels that an update stages in threadgroup memory at once; a panel twice as
// many: 16 KiB, for complex128 half of it.
template <typename T> inline constexpr uint tile_depth() { return sizeof(T) > 4 ? 16 : 32; }
template <typename T> inline constexpr uint staged() { return 2 * side<T>() * tile_depth<T>(); }

// Column c of a thread's own, counted from the first of its part.
template <typename T, int PARTS> inline constexpr int own_column(int c) {
  return c / step_width<T>() * step_width<T>() * PARTS + c % step_width<T>();
}

// A thread's entries of a panel: its row, `place` from the panel's first, begins at `from`. What
// lies above the diagonal is not read; where there is no row that of the identity goes on.
template <typename T, int PARTS, int COLUMNS>
inline void load_panel(
    thread T (&a)[COLUMNS],
    device const T* from,
    uint column_stride,
    bool owns,
    bool conjugated,
    uint place,
    uint part) {
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const uint j = part * uint(step_width<T>()) + uint(own_column<T, PARTS>(c));
    a[c] = j == place ? one<T>() : zero<T>();
    if (owns && j <= place) a[c] = from[ulong(j) * column_stride];
    if (conjugated) a[c] = conj(a[c]);
  }
}

// a -= x y^H for `count` finished columns: x is the thread's row of them at `own`, y are `rows`
// rows at `others`, those of the panel's diagonal. All are conjugated before that, if `conjugated`.
template <typename T, int PARTS, int COLUMNS>
inline void subtract_panels(
    thread T (&a)[COLUMNS],
    device const T* own,
    device const T* others,
    uint count,
    uint rows,
    uint row_stride,
    uint column_stride,
    bool owns,
    bool busy,
    bool conjugated,
    uint place,
    uint part,
    threadgroup T* stage,
    uint tid,
    uint threads) {
  constexpr uint SIDE = side<T>();
  constexpr uint DEPTH = 2 * tile_depth<T>();
  constexpr int STEP = step_width<T>();
  threadgroup const T* y = stage + part * uint(STEP);
  for (uint done = 0; done < count; done += DEPTH) {
    T x[STEP];
#pragma unroll
    for (int e = 0; e < STEP; ++e) x[e] = owns ? own[ulong(e) * column_stride] : zero<T>();
    const uint j = tid % SIDE;
#pragma unroll(8)
    for (uint k = tid / SIDE; k < DEPTH; k += threads / SIDE) {
      T entry = zero<T>();
      if (j < rows) entry = others[ulong(j) * row_stride + ulong(done + k) * column_stride];
      stage[k * SIDE + j] = conjugated ? entry : conj(entry);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(1)
    for (uint k = 0; k < DEPTH && busy; k += uint(STEP)) {
      T next[STEP];
      own += ulong(STEP) * column_stride;
      const bool more = owns && k + uint(STEP) < DEPTH;
#pragma unroll
      for (int e = 0; e < STEP; ++e) {
        next[e] = more ? own[ulong(e) * column_stride] : zero<T>();
      }
#pragma unroll
      for (int e = 0; e < STEP; ++e) x[e] = conjugated ? conj(x[e]) : x[e];
      // Columns that lie above the diagonal for all rows of the simdgroup are left out.
#pragma unroll
      for (int c = 0; c < COLUMNS; c += STEP) {
        if (part * uint(STEP) + uint(own_column<T, PARTS>(c)) <= (place | 31)) {
#pragma unroll
          for (int e = 0; e < STEP; ++e) {
            threadgroup const T* row = y + (k + uint(e)) * SIDE;
#pragma unroll
            for (int i = 0; i < STEP; ++i) {
              a[c + i] = mul_sub(a[c + i], x[e], row[own_column<T, PARTS>(c + i)]);
            }
          }
        }
      }
#pragma unroll
      for (int e = 0; e < STEP; ++e) x[e] = next[e];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// The first N entries of a thread's row := those of L, where `corner`, by rows, is what is left of
// the N x N block on the diagonal: every thread factors it for itself, so that none waits for
// another. `place` counts the row from the block's first. Returns as `factor`.
template <typename T, int N, int COLUMNS>
inline int solve_corner(
    thread T (&x)[N], thread const T (&a)[COLUMNS], threadgroup const T* corner, uint place) {
  T l[N][N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x[i] = a[i];
#pragma unroll
    for (int j = 0; j <= i; ++j) l[i][j] = corner[i * N + j];
  }
  int failed = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const real_t<T> pivot = real_part(l[k][k]);
    const real_t<T> inverse = inverse_root(pivot);
    failed = !(inverse < real_t<T>(INFINITY)) && failed == 0 ? k + 1 : failed;
#pragma unroll
    for (int i = k + 1; i < N; ++i) l[i][k] = times(l[i][k], inverse);
#pragma unroll
    for (int j = k + 1; j < N; ++j) {
#pragma unroll
      for (int i = j; i < N; ++i) l[i][j] = mul_sub(l[i][j], l[i][k], conj(l[j][k]));
    }
    const T own = times(x[k], inverse);
#pragma unroll
    for (int j = k + 1; j < N; ++j) x[j] = mul_sub(x[j], own, conj(l[j][k]));
    x[k] = uint(k) == place ? from_real<T>(sqrt(pivot)) : own;
  }
  return failed;
}

// a -= x y^H for STEP new columns of L, in the first `active` entries of a thread: x is its row of
// them, the rows y of `others` are those of its columns.
template <typename T, int PARTS, int COLUMNS>
inline void subtract_step(
    thread T (&a)[COLUMNS],
    thread const T (&x)[step_width<T>()],
    uint active,
    threadgroup const T* others) {
  constexpr int STEP = step_width<T>();
#pragma unroll
  for (int c = 0; c < COLUMNS; c += STEP) {
    if (uint(c) < active) {
#pragma unroll
      for (int e = 0; e < STEP; ++e) {
#pragma unroll
        for (int k = 0; k < STEP; ++k) {
          const T other = others[own_column<T, PARTS>(c + e) * STEP + k];
          a[c + e] = mul_sub(a[c + e], x[k], conj(other));
        }
      }
    }
  }
}

// Factors the first `width` <= SIDE columns of a panel. A thread leaves its row at `to`, zero above
// the diagonal, if it `stores`; a simdgroup that is not `busy` has no rows. `rows` has room for two
// times STEP entries of each row, and STEP^2 more. For every STEP columns `failures` takes the
// order of the first leading minor that is not positive definite, counted with `before`, else 0.
template <typename T, int PARTS, int COLUMNS>
inline void factor_panel(
    thread T (&a)[COLUMNS],
    device T* to,
    uint column_stride,
    bool stores,
    bool busy,
    bool conjugated,
    uint width,
    uint before,
    uint place,
    uint part,
    uint height,
    threadgroup T* rows,
    threadgroup int* failures) {
  constexpr int STEP = step_width<T>();
  threadgroup T* corner = rows + 2 * height * uint(STEP);
  threadgroup T* last = rows;
  threadgroup T* next = rows + height * uint(STEP);
  uint active = uint(COLUMNS);
  T x[STEP];
#pragma unroll
  for (int k = 0; k < STEP; ++k) x[k] = zero<T>();
#pragma unroll(1)
  for (uint top = 0; top < width; top += uint(STEP)) {
    const bool turn = top / uint(STEP) % uint(PARTS) == part;
    const bool follows = busy && top > 0;
    threadgroup const T* others =
        last + ((uint(COLUMNS) - active) * uint(PARTS) + part * uint(STEP)) * uint(STEP);
    // Whose turn it is subtracts the last step first, the others while it goes on.
    if (turn && follows) subtract_step<T, PARTS, COLUMNS>(a, x, active, others);
    if (turn && place - top < uint(STEP)) {
#pragma unroll
      for (int k = 0; k < STEP; ++k) corner[(place - top) * uint(STEP) + uint(k)] = a[k];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!turn && follows) subtract_step<T, PARTS, COLUMNS>(a, x, active, others);
    threadgroup T* own = next + place * uint(STEP);
    if (turn && busy) {
      const int failed = solve_corner<T, STEP, COLUMNS>(x, a, corner, place - top);
      // No thread asks what is there: compilers read ahead of a condition, in all threads.
      if (place == 0) failures[top / uint(STEP)] = failed != 0 ? int(before + top) + failed : 0;
#pragma unroll
      for (int k = 0; k < STEP; ++k) own[k] = x[k];
#pragma unroll
      for (int k = 0; k < STEP; ++k) {
        const uint j = top + uint(k);
        const T l = j <= place ? x[k] : zero<T>();
        if (stores && j < width) to[ulong(j) * column_stride] = conjugated ? conj(l) : l;
      }
      // A thread's next column is always its entry 0: what it has finished makes way.
      active -= uint(STEP);
#pragma unroll
      for (int c = STEP; c < COLUMNS; ++c) a[c - STEP] = a[c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!turn && busy) {
#pragma unroll
      for (int k = 0; k < STEP; ++k) x[k] = own[k];
    }
    threadgroup T* const filled = next;
    next = last;
    last = filled;
  }
}

inline int first_of(threadgroup const int* failures, uint count) {
  int first = 0;
  for (uint i = count; i > 0; --i) first = failures[i - 1] != 0 ? failures[i - 1] : first;
  return first;
}

// One threadgroup factors one matrix, left-looking, with `height` >= n threads for each of PARTS;
// its columns have at most 1024 bytes. Strides of A, `upper` and info as above; L is column-major.
template <typename T, int PARTS>
[[max_total_threads_per_threadgroup(512)]] kernel void cholesky_whole(
    device const T* A [[buffer(0)]],
    device T* L [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    constant uint& upper [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr uint SIDE = side<T>();
  constexpr int COLUMNS = own_columns<T, PARTS>();
  THREADGROUP_ARRAY(T, stage, (staged<T>() + step_width<T>() * step_width<T>()));
  THREADGROUP_ARRAY(int, failures, 1024 / sizeof(T) / step_width<T>());
  const uint height = threads / uint(PARTS);
  const uint part = tid / height;
  const uint place = tid % height;
  const bool adjoint = upper != 0;
  device const T* matrix = A + long(group) * batch_stride;
  device T* factor = L + ulong(group) * n * n;
  // Where the factor, or its adjoint, lies.
  const uint l_row = adjoint ? n : 1;
  const uint l_column = adjoint ? 1 : n;
  for (uint first = 0; first < n; first += SIDE) {
    const uint width = min(SIDE, n - first);
    const uint row = first + place;
    const bool owns = row < n;
    const bool busy = first + place / 32 * 32 < n;
    T a[COLUMNS];
    load_panel<T, PARTS, COLUMNS>(
        a, matrix + ulong(row) * row_stride + ulong(first) * column_stride, column_stride, owns,
        adjoint, place, part);
    device T* own = factor + ulong(row) * l_row;
    subtract_panels<T, PARTS, COLUMNS>(
        a, own, factor + ulong(first) * l_row, first, width, l_row, l_column, owns, busy, adjoint,
        place, part, stage, tid, threads);
    factor_panel<T, PARTS, COLUMNS>(
        a, own + ulong(first) * l_column, l_column, owns, busy, adjoint, width, first, place, part,
        height, stage, failures + first / uint(step_width<T>()));
    // Above the panel's diagonal block.
    for (uint j = first + part; j < first + width; j += uint(PARTS)) {
      for (uint i = place; i < first; i += height) {
        factor[ulong(i) * l_row + ulong(j) * l_column] = zero<T>();
      }
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
  if (tid == 0) info[group] = first_of(failures, (n + step_width<T>() - 1) / step_width<T>());
}

// Larger ones take a launch a panel, in groups of TILE_THREADS that have two tiles of SIDE x SIDE
// of it, the one on the diagonal and one below, or update two tiles with the panel before.
constexpr constant uint TILE_THREADS = 512;
template <typename T> inline constexpr int tile_parts() {
  return int(TILE_THREADS / (2 * side<T>()));
}

// Some columns of a finished panel on their way to threadgroup memory: COUNT rows from `row` on.
template <typename T, uint COUNT> inline constexpr int tile_loads() {
  return int(COUNT * tile_depth<T>() / TILE_THREADS);
}

template <typename T, uint COUNT, int LOADS>
inline void read_tile(
    thread T (&entries)[LOADS], device const T* columns, uint row, uint n, uint tid) {
#pragma unroll
  for (int load = 0; load < LOADS; ++load) {
    const uint e = tid + uint(load) * TILE_THREADS;
    const uint i = row + e % COUNT;
    entries[load] = i < n ? columns[ulong(e / COUNT) * n + i] : zero<T>();
  }
}

// Two tiles side by side of what is left of A, at (row, column), lose the products of the panel's
// columns from `before` on, where they are not above the diagonal, nor from column `end` on. A lane
// has rows 32 apart, a simdgroup columns that follow each other.
template <typename T>
inline void update_tiles(
    device T* matrix,
    uint n,
    uint end,
    uint before,
    uint row,
    uint column,
    threadgroup T* stage,
    uint tid,
    uint lane,
    uint simd) {
  constexpr uint SIDE = side<T>();
  constexpr uint DEPTH = tile_depth<T>();
  constexpr uint AT_ONCE = sizeof(T) > 4 ? 1 : 4;
  constexpr int LEFT = tile_loads<T, SIDE>();
  constexpr int RIGHT = tile_loads<T, 2 * SIDE>();
  constexpr int ROWS = int(SIDE / 32);
  constexpr int COLUMNS = int(2 * SIDE / (TILE_THREADS / 32));
  threadgroup T* left = stage;
  threadgroup T* right = stage + DEPTH * SIDE;
  const uint top = row + lane;
  const uint begin = column + simd * uint(COLUMNS);
  device T* own = matrix + ulong(begin) * n + top;
  device const T* from = matrix + ulong(before) * n;
  T left_next[LEFT];
  T right_next[RIGHT];
  read_tile<T, SIDE, LEFT>(left_next, from, row, n, tid);
  read_tile<T, 2 * SIDE, RIGHT>(right_next, from, column, n, tid);
  // A sum of its own costs fewer digits than one that begins with what was there.
  T sum[ROWS][COLUMNS];
  T earlier[ROWS][COLUMNS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const uint i = top + uint(r) * 32;
      sum[r][c] = zero<T>();
      earlier[r][c] = zero<T>();
      if (i < n && begin + uint(c) < min(i + 1, end))
        earlier[r][c] = own[ulong(c) * n + uint(r) * 32];
    }
  }
#pragma unroll(1)
  for (uint done = 0; done < SIDE; done += DEPTH) {
#pragma unroll
    for (int load = 0; load < LEFT; ++load) left[tid + uint(load) * TILE_THREADS] = left_next[load];
#pragma unroll
    for (int load = 0; load < RIGHT; ++load) {
      right[tid + uint(load) * TILE_THREADS] = conj(right_next[load]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (done + DEPTH < SIDE) {
      from += ulong(DEPTH) * n;
      read_tile<T, SIDE, LEFT>(left_next, from, row, n, tid);
      read_tile<T, 2 * SIDE, RIGHT>(right_next, from, column, n, tid);
    }
#pragma unroll(1)
    for (uint k = 0; k < DEPTH; k += AT_ONCE) {
#pragma unroll
      for (uint e = 0; e < AT_ONCE; ++e) {
        threadgroup const T* a = left + (k + e) * SIDE + lane;
        threadgroup const T* b = right + (k + e) * 2 * SIDE + simd * uint(COLUMNS);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const T x = a[r * 32];
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) sum[r][c] = mul_sub(sum[r][c], x, b[c]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const uint i = top + uint(r) * 32;
      if (i < n && begin + uint(c) < min(i + 1, end))
        own[ulong(c) * n + uint(r) * 32] = earlier[r][c] + sum[r][c];
    }
  }
}

// One step: the groups (i, 0) factor tile row i + 1 of the panel that begins at `first`, less the
// one from `before` on, if that is another; the groups (i, j) subtract that from the tiles 2 j - 1
// and 2 j of row i + 1 of what is left of A, whose lower triangle L holds, up to column `end`.
// Blocks on the diagonal of the factor go to `diagonal`, SIDE columns each. info, once set, stays.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void cholesky_step(
    device T* L [[buffer(0)]],
    device T* diagonal [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& before [[buffer(4)]],
    constant uint& first [[buffer(5)]],
    constant uint& end [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  constexpr uint SIDE = side<T>();
  constexpr int PARTS = tile_parts<T>();
  constexpr int COLUMNS = own_columns<T, PARTS>();
  THREADGROUP_ARRAY(T, stage, (3 * SIDE * tile_depth<T>()));
  THREADGROUP_ARRAY(int, failures, SIDE / step_width<T>());
  device T* matrix = L + ulong(group.z) * n * n;
  if (group.y == 0) {
    const uint place = tid % (2 * SIDE);
    const uint part = tid / (2 * SIDE);
    const bool on_diagonal = place < SIDE;
    const uint row = first + place + (on_diagonal ? 0u : group.x * SIDE);
    const bool owns = row < n;
    const bool busy = row / 32 * 32 < n;
    device T* own = matrix + ulong(first) * n + row;
    T a[COLUMNS];
    load_panel<T, PARTS, COLUMNS>(a, own, n, owns, false, place, part);
    subtract_panels<T, PARTS, COLUMNS>(
        a, matrix + ulong(before) * n + row, matrix + ulong(before) * n + first, first - before,
        n - first, 1, n, owns, busy, false, place, part, stage, tid, TILE_THREADS);
    // All groups read what the block on the diagonal has been: the factor has another place.
    if (on_diagonal) {
      const uint blocks = (n + SIDE - 1) / SIDE;
      own = diagonal + (ulong(group.z) * blocks * SIDE + first) * SIDE + place;
    }
    factor_panel<T, PARTS, COLUMNS>(
        a, own, on_diagonal ? SIDE : n, on_diagonal ? group.x == 0 : owns, busy, false,
        min(SIDE, n - first), first, place, part, 2 * SIDE, stage, failures);
    if (group.x == 0 && tid == 0) {
      const uint steps = (min(SIDE, n - first) + step_width<T>() - 1) / step_width<T>();
      const int earlier = first == 0 ? 0 : info[group.z];
      info[group.z] = earlier == 0 ? first_of(failures, steps) : earlier;
    }
  } else if (group.x + 2 >= 2 * group.y) {
    update_tiles<T>(
        matrix, n, end, before, first + (group.x + 1) * SIDE, first + (2 * group.y - 1) * SIDE,
        stage, tid, lane, simd);
  }
}

// The blocks on the diagonal to their places, and zeros in the tiles that lie up to as many above
// as there are groups (i, j): a group has tile (j - i, j).
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void cholesky_finish(
    device T* L [[buffer(0)]],
    device const T* diagonal [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr uint SIDE = side<T>();
  const uint blocks = (n + SIDE - 1) / SIDE;
  const uint column = group.y * SIDE;
  if (group.x <= group.y) {
    const uint row = column - group.x * SIDE;
    device T* tile = L + (ulong(group.z) * n + column) * n + row;
    device const T* from = diagonal + (ulong(group.z) * blocks * SIDE + column) * SIDE;
#pragma unroll
    for (uint e = tid; e < SIDE * SIDE; e += TILE_THREADS) {
      const uint i = e % SIDE;
      const uint j = e / SIDE;
      if (row + i < n && column + j < n) {
        tile[ulong(j) * n + i] = group.x == 0 ? from[e] : zero<T>();
      }
    }
  }
}

// X := the lower triangle of A, conjugated or not, zero above its diagonal. A has any strides, X is
// column-major; in tiles of 32 x 32 by 256 threads both are walked along memory.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void cholesky_lower(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& row_stride [[buffer(3)]],
    constant uint& column_stride [[buffer(4)]],
    constant long& batch_stride [[buffer(5)]],
    constant uint& conjugated [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  device const T* from = A + long(group.z) * batch_stride;
  const uint row = group.x * 32;
  const uint column = group.y * 32;
  const bool along_rows = column_stride < row_stride;
#pragma unroll
  for (uint e = tid; e < 32 * 32; e += 256) {
    const uint i = along_rows ? e / 32 : e % 32;
    const uint j = along_rows ? e % 32 : e / 32;
    T entry = zero<T>();
    if (row + i < n && column + j <= row + i) {
      entry = from[long(row + i) * long(row_stride) + long(column + j) * long(column_stride)];
    }
    tile[j * 33 + i] = conjugated != 0 ? conj(entry) : entry;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint e = tid; e < 32 * 32; e += 256) {
    const uint i = e % 32;
    const uint j = e / 32;
    if (row + i < n && column + j < n) {
      X[(ulong(group.z) * n + column + j) * n + row + i] = tile[j * 33 + i];
    }
  }
}

// x := (L L^H)^-1 x for a lane's column x of N rows, n of them in use, N lanes to a matrix. `from`
// is the lane's row of L; `tile`, N x N, is left with L below the diagonal and L^H above.
template <typename T, int N>
inline void solve_both(
    thread T (&x)[N],
    device const T* from,
    bool owns,
    uint place,
    uint n,
    uint column_stride,
    bool upper,
    threadgroup T* tile) {
#pragma unroll(8)
  for (uint j = 0; j < uint(N); ++j) {
    T entry = zero<T>();
    if (owns && j <= place) entry = *from;
    from += column_stride;
    entry = upper ? conj(entry) : entry;
    if (j <= place) {
      tile[j * uint(N) + place] = entry;
      tile[place * uint(N) + j] = j == place ? entry : conj(entry);
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  substitute<T, N, true>(x, tile, n, false);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  tile[place * uint(N + 1)] = conj(tile[place * uint(N + 1)]);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  substitute<T, N, false>(x, tile, n, false);
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// A lane's column into a column-major X, all lanes writing along one column at a time.
template <typename T, int N>
inline void store_solution(
    thread const T (&x)[N], device T* X, uint place, uint n, uint columns, threadgroup T* tile) {
#pragma unroll
  for (int i = 0; i < N; ++i) tile[place * uint(N + 1) + uint(i)] = x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(8)
  for (uint c = 0; c < uint(N); ++c) {
    if (c < columns && place < n) X[ulong(c) * n + place] = tile[c * uint(N + 1) + place];
  }
}

// N lanes solve L L^H x = b for N columns of one matrix with n <= N rows; a simdgroup holds 32 / N
// such teams. The strides of L say where its lower triangle lies, as above. B has any strides; X is
// column-major.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void cholesky_solve_simd(
    device const T* L [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& columns [[buffer(4)]],
    constant uint& batch [[buffer(5)]],
    constant uint& l_row_stride [[buffer(6)]],
    constant uint& l_column_stride [[buffer(7)]],
    constant long& l_batch_stride [[buffer(8)]],
    constant uint& row_stride [[buffer(9)]],
    constant uint& column_stride [[buffer(10)]],
    constant long& batch_stride [[buffer(11)]],
    constant uint& upper [[buffer(12)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tiles, 32 * (N + 1));
  const uint team = lane / uint(N);
  const uint place = lane % uint(N);
  const uint matrix = group.y * (32 / N) + team;
  const uint first = group.x * uint(N);
  const bool inside = matrix < batch;
  const uint own_columns = inside ? min(uint(N), columns - first) : 0u;
  threadgroup T* tile = tiles + team * uint(N * (N + 1));
  // A lane's column of B is its row of B^T.
  T x[N];
  load_row<T, N>(
      x, B + long(matrix) * batch_stride + long(first) * long(column_stride), inside, place,
      own_columns, n, column_stride, row_stride, tile);
  device const T* from = L + long(matrix) * l_batch_stride + long(place) * long(l_row_stride);
  solve_both<T, N>(x, from, inside && place < n, place, n, l_column_stride, upper != 0, tile);
  store_solution<T, N>(x, X + (ulong(matrix) * columns + first) * n, place, n, own_columns, tile);
}

// x / d, by 1 / d where that is safe.
template <typename T> inline T divided(T x, T d, T inverse) {
  return has_inverse(d) ? mul(x, inverse) : quotient(x, d);
}

// The same for few columns, n <= N ROWS rows: a lane owns rows of all COLUMNS of them in registers,
// and L lies in threadgroup memory by columns without its other triangle. Entry (i, j) is at
// i + j (N ROWS) - j (j + 1) / 2.
template <typename T, int N, int ROWS, int COLUMNS>
[[max_total_threads_per_threadgroup(64)]] kernel void cholesky_solve_few(
    device const T* L [[buffer(0)]],
    device const T* B [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& columns [[buffer(4)]],
    constant uint& batch [[buffer(5)]],
    constant uint& l_row_stride [[buffer(6)]],
    constant uint& l_column_stride [[buffer(7)]],
    constant long& l_batch_stride [[buffer(8)]],
    constant uint& row_stride [[buffer(9)]],
    constant uint& column_stride [[buffer(10)]],
    constant long& batch_stride [[buffer(11)]],
    constant uint& upper [[buffer(12)]],
    uint simdgroup [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint SIZE = N * ROWS;
  constexpr uint TRIANGLE = SIZE * (SIZE + 1) / 2;
  THREADGROUP_ARRAY(T, triangles, (32 / N * TRIANGLE));
  const uint team = lane / uint(N) * uint(N);
  const uint place = lane % uint(N);
  const uint matrix = simdgroup * (32 / N) + lane / uint(N);
  const bool inside = matrix < batch;
  threadgroup T* triangle = triangles + lane / uint(N) * TRIANGLE;
  device const T* factor = L + long(matrix) * l_batch_stride;
  threadgroup T* to = triangle;
#pragma unroll(8)
  for (uint j = 0; j < n; ++j) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const uint row = uint(r * N) + place;
      T entry = zero<T>();
      if (inside && row >= j && row < n) {
        entry = factor[long(row) * long(l_row_stride) + long(j) * long(l_column_stride)];
      }
      if (row >= j && row < n) to[row] = upper != 0 ? conj(entry) : entry;
    }
    to += SIZE - 1 - j;
  }
  T x[ROWS][COLUMNS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const uint row = uint(r * N) + place;
    device const T* from = B + long(matrix) * batch_stride + long(row) * long(row_stride);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      x[r][c] = zero<T>();
      if (inside && row < n && uint(c) < columns) x[r][c] = from[uint(c) * ulong(column_stride)];
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  // A lane's rows of L^H are columns of L.
  threadgroup const T* own[ROWS];
  T d[ROWS];
  T inverse[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const uint row = min(uint(r * N) + place, n - 1);
    own[r] = triangle + row * SIZE - row * (row + 1) / 2;
    d[r] = own[r][row];
    inverse[r] = quotient(one<T>(), d[r]);
  }
  // Both substitutions divide the entries of L, once for all columns, and what is found in the end.
  threadgroup const T* column = triangle;
#pragma unroll
  for (int block = 0; block < ROWS; ++block) {
    for (uint step = 0; step < uint(N) && uint(block * N) + step < n; ++step) {
      const uint k = uint(block * N) + step;
      const ushort source = ushort(team + step);
      const T pivot = simd_shuffle(d[block], source);
      const T reciprocal = simd_shuffle(inverse[block], source);
      T l[ROWS];
#pragma unroll
      for (int r = block; r < ROWS; ++r) {
        const uint row = uint(r * N) + place;
        const bool open = row > k && row < n;
        l[r] = divided(column[open ? row : k], pivot, reciprocal);
        l[r] = open ? l[r] : zero<T>();
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const T known = simd_shuffle(x[block][c], source);
#pragma unroll
        for (int r = block; r < ROWS; ++r) x[r][c] = mul_sub(x[r][c], l[r], known);
      }
      column += SIZE - 1 - k;
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) x[r][c] = divided(x[r][c], d[r], inverse[r]);
    d[r] = conj(d[r]);
    inverse[r] = conj(inverse[r]);
  }
#pragma unroll
  for (int block = ROWS - 1; block >= 0; --block) {
    for (uint end = min(uint(N), max(n, uint(block * N)) - uint(block * N)); end > 0; --end) {
      const uint k = uint(block * N) + end - 1;
      const ushort source = ushort(team + end - 1);
      const T pivot = simd_shuffle(d[block], source);
      const T reciprocal = simd_shuffle(inverse[block], source);
      T l[ROWS];
#pragma unroll
      for (int r = 0; r <= block; ++r) {
        const bool open = uint(r * N) + place < k;
        l[r] = divided(conj(open ? own[r][k] : triangle[0]), pivot, reciprocal);
        l[r] = open ? l[r] : zero<T>();
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const T known = simd_shuffle(x[block][c], source);
#pragma unroll
        for (int r = 0; r <= block; ++r) x[r][c] = mul_sub(x[r][c], l[r], known);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) x[r][c] = divided(x[r][c], d[r], inverse[r]);
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const uint row = uint(r * N) + place;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      if (inside && row < n && uint(c) < columns) {
        X[(ulong(matrix) * columns + uint(c)) * n + row] = x[r][c];
      }
    }
  }
}

// As cholesky_solve_simd for the columns of the identity: X = (L L^H)^-1. info: the first zero on
// the diagonal of L, from 1, else 0.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void cholesky_inverse_simd(
    device const T* L [[buffer(0)]],
    device T* X [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& batch [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant uint& upper [[buffer(8)]],
    uint simdgroup [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tiles, 32 * (N + 1));
  const uint team = lane / uint(N);
  const uint place = lane % uint(N);
  const uint matrix = simdgroup * (32 / N) + team;
  const bool inside = matrix < batch;
  threadgroup T* tile = tiles + team * uint(N * (N + 1));
  T x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = uint(i) == place ? one<T>() : zero<T>();
  device const T* from = L + long(matrix) * batch_stride + long(place) * long(row_stride);
  solve_both<T, N>(x, from, inside && place < n, place, n, column_stride, upper != 0, tile);
  if (inside && place == 0) {
    int singular = 0;
    for (uint i = n; i > 0; --i)
      singular = is_zero(tile[(i - 1) * uint(N + 1)]) ? int(i) : singular;
    info[matrix] = singular;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  store_solution<T, N>(x, X + ulong(matrix) * n * n, place, n, inside ? n : 0u, tile);
}

// One thread per entry of X = I, what solves for the inverse of larger matrices start from. The
// thread of the first entry sets info as above.
template <typename T>
kernel void cholesky_identity(
    device const T* L [[buffer(0)]],
    device T* X [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    uint3 id [[thread_position_in_grid]]) {
  X[(ulong(id.z) * n + id.y) * n + id.x] = id.x == id.y ? one<T>() : zero<T>();
  if (id.x == 0 && id.y == 0) {
    device const T* diagonal = L + long(id.z) * batch_stride;
    int singular = 0;
    for (uint i = 0; i < n; ++i) {
      singular = is_zero(*diagonal) && singular == 0 ? int(i) + 1 : singular;
      diagonal += row_stride + column_stride;
    }
    info[id.z] = singular;
  }
}
