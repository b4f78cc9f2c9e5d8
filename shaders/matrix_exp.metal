#include "reduce.h"
#include "scalar.h"

// F = exp(A) - I by its Taylor polynomial of degree 8 in three products (Bader, Blanes, Casas
// 2019), and 2 F + F^2 for the double of A: as long as F is small, the I would cost digits. It
// joins at norms about 2, for a decaying exponential is small beside it.

// Largest norm for which the polynomial has a backward error of one rounding, and how often that
// is doubled before the I joins.
template <typename R> inline constexpr R theta() {
  return sizeof(R) == 4 ? R(0.58005246276887681) : R(0.049912288711153227);
}
template <typename R> inline constexpr int doublings() { return sizeof(R) == 4 ? 2 : 5; }

// x + c y
template <typename T> inline T plus(T x, real_t<T> c, T y) {
  if constexpr (scalar_traits<T>::complex) {
    return T(fma(c, y.x, x.x), fma(c, y.y, x.y));
  } else {
    return fma(c, y, x);
  }
}

// What times A2 makes A4, some of A^3 and of A^4. These constants and those below are the solution
// of the equations that make the coefficients of A^k those of the exponential, up to A^8.
template <typename T> inline T quartic(T a, T a2) {
  typedef real_t<T> R;
  return plus(plus(zero<T>(), R(0.10836465678522780852), a), R(0.027091164196306952131), a2);
}

// F is start + left right.
template <typename T> inline T start(T a, T a2) {
  return plus(a, real_t<T>(0.13549236135285063166), a2);
}
template <typename T> inline T left(T a2, T a4) {
  return plus(a4, real_t<T>(0.66666666666666666667), a2);
}
template <typename T> inline T right(T a, T a2, T a4, bool diagonal) {
  typedef real_t<T> R;
  const T identity = from_real<T>(diagonal ? R(0.54676145797072405251) : R(0));
  const T low = plus(plus(identity, R(0.16112557339541759283), a), R(0.014090917158378207731), a2);
  return plus(low, R(0.033792797010870504141), a4);
}

// Sums of weights are formed this much smaller, so that none overflows.
template <typename R> inline constexpr R smaller() { return R(0x1p-20f); }

// Of the norm's sum: how often A is halved; -1 where it is not finite.
template <typename R> inline int halvings(R sum) {
  if (!(sum < R(INFINITY))) return -1;
  int exponent = 0;
  frexp(sum / theta<R>(), exponent);
  return sum > R(0) ? max(exponent + 20, 0) : 0;
}

// Columns of the left factor and rows of the right one that stand in threadgroup memory at once.
template <typename T, int N> inline constexpr int depth() {
  return int(8192 / (N * sizeof(T))) < N ? int(8192 / (N * sizeof(T))) : N;
}
// Sixteen bytes more than a row needs keep wide accesses aligned and rows on different banks.
template <typename T, int N> inline constexpr int stride() {
  return N + (sizeof(T) < 16 ? 16 / int(sizeof(T)) : 1);
}

// sum := sum + a b, whose entries the threads own as matrix_exp_fused says.
template <typename T, int N, int ROWS, int COLUMNS>
inline void add_product(
    thread T (&sum)[ROWS][COLUMNS],
    thread const T (&a)[ROWS][COLUMNS],
    thread const T (&b)[ROWS][COLUMNS],
    int n,
    int i,
    int j,
    threadgroup T* a_tile,
    threadgroup T* b_tile) {
  constexpr int APART = N / ROWS;
  constexpr int DEPTH = depth<T, N>();
  constexpr int STRIDE = stride<T, N>();
#pragma unroll(1)
  for (int first = 0; first < n; first += DEPTH) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int row = r * APART + i;
      if (row >= first && row < first + DEPTH) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          b_tile[(row - first) * STRIDE + j * COLUMNS + c] = b[r][c];
        }
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const int column = j * COLUMNS + c - first;
        // For mul_sub.
        if (column >= 0 && column < DEPTH) a_tile[column * STRIDE + row] = zero<T>() - a[r][c];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const int count = min(DEPTH, n - first);
#pragma unroll(4)
    for (int k = 0; k < count; ++k) {
      T factors[COLUMNS];
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) factors[c] = b_tile[k * STRIDE + j * COLUMNS + c];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const T entry = a_tile[k * STRIDE + r * APART + i];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[r][c] = mul_sub(sum[r][c], entry, factors[c]);
      }
    }
  }
}

// X := exp(A), n <= N, by a group. Thread (i, j) of N / ROWS x N / COLUMNS owns the rows i,
// i + N / ROWS, ... of COLUMNS neighbouring columns, in registers; the lanes of a simdgroup go down
// the columns first. A has any strides, X is column-major. Where A is not finite X is NaN.
template <typename T, int N, int ROWS, int COLUMNS>
[[max_total_threads_per_threadgroup(512)]] kernel void matrix_exp_fused(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& row_stride [[buffer(3)]],
    constant uint& column_stride [[buffer(4)]],
    constant long& batch_stride [[buffer(5)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> R;
  constexpr int APART = N / ROWS;
  constexpr int SIMDGROUPS = APART * (N / COLUMNS) / 32;
  THREADGROUP_ARRAY(T, a_tile, (depth<T, N>() * stride<T, N>()));
  THREADGROUP_ARRAY(T, b_tile, (depth<T, N>() * stride<T, N>()));
  THREADGROUP_ARRAY(R, norms, SIMDGROUPS);
  const int i = int(tid % uint(APART));
  const int j = int(tid / uint(APART));
  const int size = int(n);
  device const T* from = A + long(matrix) * batch_stride;
  T a[ROWS][COLUMNS];
  R norm = R(0);
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const int column = j * COLUMNS + c;
    R sum = R(0);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int row = r * APART + i;
      const bool inside = row < size && column < size;
      device const T* at = from + long(row) * long(row_stride) + long(column) * long(column_stride);
      a[r][c] = inside ? *at : zero<T>();
      sum = fma(cabs1(a[r][c]), smaller<R>(), sum);
    }
#pragma unroll
    for (int distance = 1; distance < APART; distance *= 2) {
      sum = sum + simd_shuffle_xor(sum, ushort(distance));
    }
    norm = max(norm, pivot_weight(sum));
  }
  norm = simd_max_weight(norm);
  if (lane == 0u) norms[simd] = norm;
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int other = 0; other < SIMDGROUPS; ++other) norm = max(norm, norms[other]);
  const int squarings = halvings(norm);

  T a2[ROWS][COLUMNS];
  T a4[ROWS][COLUMNS];
  T sum[ROWS][COLUMNS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      a[r][c] = squarings < 0 ? from_real<T>(R(NAN)) : scale(a[r][c], -squarings);
      a2[r][c] = zero<T>();
      a4[r][c] = zero<T>();
    }
  }
  add_product<T, N, ROWS, COLUMNS>(a2, a, a, size, i, j, a_tile, b_tile);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sum[r][c] = quartic(a[r][c], a2[r][c]);
  }
  add_product<T, N, ROWS, COLUMNS>(a4, a2, sum, size, i, j, a_tile, b_tile);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const bool diagonal = r * APART + i == j * COLUMNS + c;
      sum[r][c] = start(a[r][c], a2[r][c]);
      a[r][c] = right(a[r][c], a2[r][c], a4[r][c], diagonal);
      a2[r][c] = left(a2[r][c], a4[r][c]);
    }
  }
  add_product<T, N, ROWS, COLUMNS>(sum, a2, a, size, i, j, a_tile, b_tile);
  for (int done = 0; done <= squarings; ++done) {
    const bool joins = done == min(squarings, doublings<R>());
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const bool diagonal = r * APART + i == j * COLUMNS + c;
        a[r][c] = sum[r][c] + from_real<T>(R(joins && diagonal ? 1 : 0));
        sum[r][c] = done < doublings<R>() ? a[r][c] + a[r][c] : zero<T>();
      }
    }
    if (done < squarings) {
      add_product<T, N, ROWS, COLUMNS>(sum, a, a, size, i, j, a_tile, b_tile);
    }
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const int column = j * COLUMNS + c;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int row = r * APART + i;
      if (row < size && column < size) {
        X[(ulong(matrix) * n + uint(column)) * n + uint(row)] = a[r][c];
      }
    }
  }
}

// What follows is the same in steps between products of larger matrices, row-major and without a
// gap, an entry a thread: id.x is the column.

// A simdgroup sums the weights along each line of a matrix, 8 lines a group. Rows or columns: the
// largest sum of either is a norm.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void matrix_exp_sums(
    device const T* A [[buffer(0)]],
    device real_t<T>* sums [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& line_stride [[buffer(3)]],
    constant uint& stride_along [[buffer(4)]],
    constant long& batch_stride [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> R;
  const uint line = group.x * 8 + simd;
  device const T* from = A + long(group.y) * batch_stride + long(line) * long(line_stride);
  R sum = R(0);
  for (uint k = lane; k < n && line < n; k += 32) {
    sum = fma(cabs1(from[long(k) * long(stride_along)]), smaller<R>(), sum);
  }
  sum = simd_sum(sum);
  if (lane == 0u && line < n) sums[ulong(group.y) * n + line] = sum;
}

// A simdgroup per matrix: how often it is halved.
template <typename R>
[[max_total_threads_per_threadgroup(64)]] kernel void matrix_exp_halvings(
    device const R* sums [[buffer(0)]],
    device int* squarings [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  R norm = R(0);
  for (uint k = lane; k < n; k += 32) norm = max(norm, pivot_weight(sums[ulong(matrix) * n + k]));
  norm = simd_max_weight(norm);
  if (lane == 0u) squarings[matrix] = halvings(norm);
}

template <typename T>
kernel void matrix_exp_scale(
    device const T* A [[buffer(0)]],
    device const int* squarings [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    uint3 id [[thread_position_in_grid]]) {
  const T entry =
      A[long(id.z) * batch_stride + long(id.y) * long(row_stride) +
        long(id.x) * long(column_stride)];
  const int own = squarings[id.z];
  const T nan = from_real<T>(real_t<T>(NAN));
  X[(ulong(id.z) * n + id.y) * n + id.x] = own < 0 ? nan : scale(entry, -own);
}

template <typename T>
kernel void matrix_exp_quartic(
    device const T* A [[buffer(0)]],
    device const T* A2 [[buffer(1)]],
    device T* B [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    uint3 id [[thread_position_in_grid]]) {
  const ulong at = (ulong(id.z) * n + id.y) * n + id.x;
  B[at] = quartic(A[at], A2[at]);
}

// In place of A its F before the product is added, in place of A2 and A4 the factors.
template <typename T>
kernel void matrix_exp_factors(
    device T* A [[buffer(0)]],
    device T* A2 [[buffer(1)]],
    device T* A4 [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    uint3 id [[thread_position_in_grid]]) {
  const ulong at = (ulong(id.z) * n + id.y) * n + id.x;
  const T a = A[at];
  const T a2 = A2[at];
  const T a4 = A4[at];
  A[at] = start(a, a2);
  A2[at] = right(a, a2, a4, id.x == id.y);
  A4[at] = left(a2, a4);
}

// A matrix that has as many squarings as remain, this one among them, takes its square.
template <typename T>
kernel void matrix_exp_double(
    device const T* square [[buffer(0)]],
    device const int* squarings [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& remaining [[buffer(4)]],
    uint3 id [[thread_position_in_grid]]) {
  const ulong at = (ulong(id.z) * n + id.y) * n + id.x;
  const int done = squarings[id.z] - int(remaining);
  const int last = doublings<real_t<T>>() - 1;
  if (done >= 0) {
    const T x = X[at];
    T doubled = square[at] + (done <= last ? x + x : zero<T>());
    if (done == last && id.x == id.y) doubled = doubled + one<T>();
    X[at] = doubled;
  }
}

// The I joins where it has not done so: a thread per diagonal entry.
template <typename T>
kernel void matrix_exp_join(
    device const int* squarings [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    uint2 id [[thread_position_in_grid]]) {
  const ulong at = (ulong(id.y) * n + id.x) * n + id.x;
  if (squarings[id.y] < doublings<real_t<T>>()) X[at] = X[at] + one<T>();
}
