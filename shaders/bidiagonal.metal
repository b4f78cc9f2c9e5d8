#include "scalar.h"
#include "householder.h"
#include "reduce.h"

// Householder's reduction A = Q B P^H to a real upper bidiagonal B, m >= n > 1, two launches a
// column. Each holds one of the two sums over a side of the matrix that a step cannot do without,
// and every group forms the step's reflector again from the column or row that the launch before
// left. Step i subtracts v w^T + x u^H from what is right of column i and below row i, with
// w = conj(tau) A^T conj(v) and x = tau (A - v w^T) u. The columns launch of step i + 1 does
// so when it next reads A; only column i + 1 is finished by the rows launch of step i.
//
// A holds v below its diagonal, `right` u as an (n - 1) x (n - 1) matrix of the same kind: its
// column i belongs to the columns of A from i + 1 on. A vector to be reflected stands there first;
// the launch after the reflector's divides it by what `inverses` keeps, one of the column and one
// of the row. Groups of a launch write nothing that others read.

// Simdgroups of a group that have columns of their own, and those columns.
constexpr constant uint SIMDGROUPS = 4;
constexpr constant uint COLUMNS = 2;
// The most simdgroups of a group that share rows.
constexpr constant uint SHARING = 8;
// Entries of a column, and of a row, that a thread reads before it needs the first of them.
constexpr constant uint STEPS = 4;
constexpr constant uint BATCH = 8;

template <typename T> inline real_t<T> square_of(T a) { return real_part(mul(conj(a), a)); }

// The largest part of an entry of each column, infinity for one that is not finite. A column a
// simdgroup.
template <typename T>
kernel void bidiagonal_largest(
    device const T* A [[buffer(0)]],
    device real_t<T>* largest [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  const uint j = group.x * SIMDGROUPS + simd;
  device const T* column = A + (ulong(group.y) * n + min(j, n - 1)) * m;
  Real most = Real(0);
  // Zero of finite numbers, else NaN.
  T nothing = zero<T>();
  for (uint r = lane; r < m; r += 32) {
    const T entry = column[r];
    most = max(most, largest_part(entry));
    nothing = nothing + (entry - entry);
  }
  most = simd_max(is_zero(nothing) ? most : Real(INFINITY));
  if (lane == 0 && j < n) largest[ulong(group.y) * n + j] = most;
}

// Takes out the power of two that leaves the largest entry near 1. A matrix that is not finite
// becomes zero, and its info -4, as LAPACK's gesdd. A column a simdgroup.
template <typename T>
kernel void bidiagonal_scale(
    device T* A [[buffer(0)]],
    device const real_t<T>* largest [[buffer(1)]],
    device int* exponents [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  Real most = Real(0);
  for (uint j = lane; j < n; j += 32) most = max(most, largest[ulong(group.y) * n + j]);
  most = simd_max(most);
  const bool finite = most < Real(INFINITY);
  const int exponent = exponent_of(most);
  const uint j = group.x * SIMDGROUPS + simd;
  if (j < n) {
    device T* column = A + (ulong(group.y) * n + j) * m;
    for (uint r = lane; r < m; r += 32) {
      column[r] = finite ? scale(column[r], -exponent) : zero<T>();
    }
  }
  if (j == 0 && lane == 0) {
    // Of zeros divide and conquer finds values up to its own tolerance.
    exponents[group.y] = most == Real(0) ? OF_ZERO : exponent;
    info[group.y] = finite ? 0 : -4;
  }
}

// The first half of step i: v from column i, w, and row i of what v leaves, conjugated, into column
// i of `right`. Finishes step i - 1 on the way. Two columns a simdgroup.
template <typename T>
[[max_total_threads_per_threadgroup(128)]] kernel void bidiagonal_columns(
    device T* A [[buffer(0)]],
    device T* right [[buffer(1)]],
    device T* w [[buffer(2)]],
    device const T* x [[buffer(3)]],
    device T* inverses [[buffer(4)]],
    device T* tau [[buffer(5)]],
    device real_t<T>* d [[buffer(6)]],
    constant uint& m [[buffer(7)]],
    constant uint& n [[buffer(8)]],
    constant uint& i [[buffer(9)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  const ulong matrix = group.y;
  const bool pending = i > 0;
  device T* pivot = A + (matrix * n + i) * m;
  device const T* v = pivot - (pending ? m : 0);
  device const T* left = x + matrix * m;
  device T* rows = w + matrix * n;
  // Column i, whose entry for column j of A is at j.
  device T* u = right + matrix * ulong(n - 1) * (n - 1) + ulong(i) * (n - 1) - 1;
  device T* u_before = u - (pending ? n - 1 : 0);
  const uint first = i + 1 + (group.x * SIMDGROUPS + simd) * COLUMNS;

  T w_before[COLUMNS];
  T turned[COLUMNS];
  T entry[COLUMNS];
  T minus[COLUMNS];
  T alpha = zero<T>();
  Real squares = Real(0);
#pragma unroll
  for (uint k = 0; k < COLUMNS; ++k) {
    const bool open = pending && first + k < n;
    w_before[k] = open ? rows[first + k] : zero<T>();
    turned[k] = open ? mul(u_before[first + k], inverses[matrix * 2 + 1]) : zero<T>();
    entry[k] = zero<T>();
    minus[k] = zero<T>();
  }
  // Whole lines of memory: the rows before i are left out.
  for (uint begin = i / 32 * 32; begin < m; begin += 32 * STEPS) {
    T c[STEPS];
    T y[STEPS];
    T z[STEPS];
    T a[COLUMNS][STEPS];
#pragma unroll
    for (uint s = 0; s < STEPS; ++s) {
      const uint r = begin + s * 32 + lane;
      const bool here = r >= i && r < m;
      c[s] = here ? pivot[r] : zero<T>();
      y[s] = here && pending ? v[r] : zero<T>();
      z[s] = here && pending ? left[r] : zero<T>();
#pragma unroll
      for (uint k = 0; k < COLUMNS; ++k) {
        a[k][s] = here && first + k < n ? pivot[ulong(first + k - i) * m + r] : zero<T>();
      }
    }
#pragma unroll
    for (uint s = 0; s < STEPS; ++s) {
      const uint r = begin + s * 32 + lane;
      const bool here = r >= i && r < m;
      const T below = r > i ? c[s] : zero<T>();
      if (r == i) alpha = c[s];
      squares += square_of(below);
#pragma unroll
      for (uint k = 0; k < COLUMNS; ++k) {
        a[k][s] = mul_sub(mul_sub(a[k][s], y[s], w_before[k]), z[s], conj(turned[k]));
        if (here && pending && first + k < n) pivot[ulong(first + k - i) * m + r] = a[k][s];
        if (r == i) entry[k] = a[k][s];
        minus[k] = mul_sub(minus[k], conj(below), a[k][s]);
      }
    }
  }
  const ushort owner = ushort(i % 32);
  const Reflector<T> h = reflector(simd_shuffle(alpha, owner), simd_sum(squares));
#pragma unroll
  for (uint k = 0; k < COLUMNS; ++k) {
    const T top = simd_shuffle(entry[k], owner);
    const T product = zero<T>() - simd_sum(minus[k]);
    const T share = mul(conj(h.tau), top + mul(conj(h.inverse), product));
    if (lane == 0 && first + k < n) {
      rows[first + k] = share;
      u[first + k] = conj(top - share);
      if (pending) u_before[first + k] = turned[k];
    }
  }
  if (group.x == 0 && simd == 0) {
    if (lane == 0) {
      tau[matrix * n + i] = h.tau;
      d[matrix * n + i] = h.beta;
      inverses[matrix * 2] = h.inverse;
    }
    // No launch follows, and this simdgroup is alone.
    if (i + 1 == n) {
      for (uint r = i + 1 + lane; r < m; r += 32) pivot[r] = mul(pivot[r], h.inverse);
    }
  }
}

// The second half of step i: u, x and column i + 1 of A as the step leaves it. ROWS rows a group,
// whose threads share the columns.
template <typename T, int ROWS>
[[max_total_threads_per_threadgroup(256)]] kernel void bidiagonal_rows(
    device T* A [[buffer(0)]],
    device const T* right [[buffer(1)]],
    device const T* w [[buffer(2)]],
    device T* x [[buffer(3)]],
    device T* inverses [[buffer(4)]],
    device T* tau [[buffer(5)]],
    device real_t<T>* e [[buffer(6)]],
    constant uint& m [[buffer(7)]],
    constant uint& n [[buffer(8)]],
    constant uint& i [[buffer(9)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint sharing [[simdgroups_per_threadgroup]]) {
  typedef real_t<T> Real;
  const uint slots = sharing * uint(32 / ROWS);
  THREADGROUP_ARRAY(T, products, SHARING * ROWS);
  THREADGROUP_ARRAY(T, crossings, SHARING);
  THREADGROUP_ARRAY(Real, norms, SHARING);
  const ulong matrix = group.y;
  device T* before = A + (matrix * n + i) * m;
  device const T* rows = w + matrix * n;
  device const T* u = right + matrix * ulong(n - 1) * (n - 1) + ulong(i) * (n - 1) - 1;
  // Whole lines of memory: the rows up to i are left out.
  const uint r = ((i + 1) / uint(ROWS) + group.x) * uint(ROWS) + tid % uint(ROWS);
  const bool here = r > i && r < m;

  T minus = zero<T>();
  T minus_crossing = zero<T>();
  Real squares = Real(0);
  device const T* a = before + (here ? r : i);
  // Asked for here, they have come by the time the sums have.
  const T alpha = u[i + 1];
  const T across = rows[i + 1];
  const T raw = a[0];
  const T top = a[m];
  for (uint begin = i + 2 + tid / uint(ROWS); begin < n; begin += slots * BATCH) {
    T entry[BATCH];
    T share[BATCH];
    T step[BATCH];
#pragma unroll
    for (uint s = 0; s < BATCH; ++s) {
      const uint j = begin + s * slots;
      entry[s] = j < n ? a[ulong(j - i) * m] : zero<T>();
      share[s] = j < n ? rows[j] : zero<T>();
      step[s] = j < n ? u[j] : zero<T>();
    }
#pragma unroll
    for (uint s = 0; s < BATCH; ++s) {
      minus = mul_sub(minus, entry[s], step[s]);
      minus_crossing = mul_sub(minus_crossing, share[s], step[s]);
      squares += square_of(step[s]);
    }
  }
#pragma unroll
  for (int distance = ROWS; distance < 32; distance *= 2) {
    minus = minus + simd_shuffle_xor(minus, ushort(distance));
    minus_crossing = minus_crossing + simd_shuffle_xor(minus_crossing, ushort(distance));
    squares = squares + simd_shuffle_xor(squares, ushort(distance));
  }
  if (lane < uint(ROWS)) products[simd * uint(ROWS) + lane] = minus;
  if (lane == 0) {
    crossings[simd] = minus_crossing;
    norms[simd] = squares;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < uint(ROWS)) {
    T product = zero<T>();
    T crossing = zero<T>();
    squares = Real(0);
    for (uint s = 0; s < sharing; ++s) {
      product = product - products[s * uint(ROWS) + tid];
      crossing = crossing - crossings[s];
      squares += norms[s];
    }
    const Reflector<T> h = reflector(alpha, squares);
    if (here) {
      const T v = mul(raw, inverses[matrix * 2]);
      const T whole = top + mul(h.inverse, product);
      const T share = mul(h.tau, mul_sub(whole, v, across + mul(h.inverse, crossing)));
      before[r] = v;
      before[m + r] = mul_sub(top, v, across) - share;
      x[matrix * m + r] = share;
    }
    if (group.x == 0 && tid == 0) {
      tau[matrix * (n - 1) + i] = h.tau;
      e[matrix * (n - 1) + i] = h.beta;
      inverses[matrix * 2 + 1] = h.inverse;
    }
  }
}

// Columns of a thread that holds part of a matrix, and so many times fewer simdgroups than columns.
constexpr constant int OWN = 8;

// All steps from `first` on of what fits into the registers of a group: at most SIZE rows and
// columns. A lane has every 32nd row of every simdgroup's columns. Finishes step first - 1.
template <typename T, int SIZE>
[[max_total_threads_per_threadgroup(512)]] kernel void bidiagonal_group(
    device T* A [[buffer(0)]],
    device T* right [[buffer(1)]],
    device const T* w_before [[buffer(2)]],
    device const T* x_before [[buffer(3)]],
    device const T* inverses [[buffer(4)]],
    device T* tau [[buffer(5)]],
    device T* right_tau [[buffer(6)]],
    device real_t<T>* d [[buffer(7)]],
    device real_t<T>* e [[buffer(8)]],
    constant uint& m [[buffer(9)]],
    constant uint& n [[buffer(10)]],
    constant uint& first [[buffer(11)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  constexpr int HEIGHT = SIZE / 32;
  constexpr uint SIMDS = SIZE / OWN;
  THREADGROUP_ARRAY(T, column, SIZE);
  THREADGROUP_ARRAY(T, top, SIZE);
  THREADGROUP_ARRAY(T, row, SIZE);
  THREADGROUP_ARRAY(T, w, SIZE);
  THREADGROUP_ARRAY(T, x, SIZE);
  THREADGROUP_ARRAY(T, products, (int(SIMDS) * SIZE));
  const ulong matrix = group;
  const uint height = m - first;
  const uint width = n - first;
  const bool pending = first > 0;
  device T* corner = A + (matrix * n + first) * m + first;
  device T* left_taus = tau + matrix * n + first;
  device T* right_taus = right_tau + matrix * (n - 1) + first;
  // Column `first`, whose entry for column c of the corner is at c.
  device T* steps = right + (matrix * ulong(n - 1) + first) * (n - 1) + first - 1;

  T a[HEIGHT][OWN];
#pragma unroll
  for (int l = 0; l < OWN; ++l) {
    const uint c = simd + SIMDS * uint(l);
    const bool open = pending && c > 0 && c < width;
    const T share = open ? w_before[matrix * n + first + c] : zero<T>();
    const T step = open ? mul(steps[long(c) - long(n - 1)], inverses[matrix * 2 + 1]) : zero<T>();
    if (lane == 0) top[c] = step;
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      const uint r = lane + 32 * uint(h);
      const bool inside = r < height && c < width;
      const T entry = inside ? corner[ulong(c) * m + r] : zero<T>();
      const T v = inside && open ? corner[long(r) - long(m)] : zero<T>();
      const T z = inside && open ? x_before[matrix * m + first + r] : zero<T>();
      a[h][l] = mul_sub(mul_sub(entry, v, share), z, conj(step));
    }
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  if (pending && tid > 0 && tid < width) steps[long(tid) - long(n - 1)] = top[tid];
  threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma unroll(1)
  for (uint k = 0; k < width; ++k) {
    if (simd == k % SIMDS) {
#pragma unroll
      for (int l = 0; l < OWN; ++l) {
        if (k / SIMDS == uint(l)) {
#pragma unroll
          for (int h = 0; h < HEIGHT; ++h) column[lane + 32 * uint(h)] = a[h][l];
        }
      }
    }
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      if (k / 32 == uint(h) && lane == k % 32) {
#pragma unroll
        for (int l = 0; l < OWN; ++l) top[simd + SIMDS * uint(l)] = a[h][l];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    T v[HEIGHT];
    T minus[OWN];
    Real squares = Real(0);
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      const uint r = lane + 32 * uint(h);
      v[h] = r > k ? column[r] : zero<T>();
      squares += square_of(v[h]);
    }
#pragma unroll
    for (int l = 0; l < OWN; ++l) {
      minus[l] = zero<T>();
      if (uint(l + 1) * SIMDS > k + 1) {
#pragma unroll
        for (int h = 0; h < HEIGHT; ++h) minus[l] = mul_sub(minus[l], conj(v[h]), a[h][l]);
      }
    }
    const Reflector<T> of_column = reflector(column[k], simd_sum(squares));
    const T product = zero<T>() - sum_over_lanes<T, OWN>(minus, lane);
    const uint own = simd + SIMDS * (lane % uint(OWN));
    const bool right_of_k = own > k && own < width;
    const T entry = top[own];
    const T share = mul(conj(of_column.tau), entry + mul(conj(of_column.inverse), product));
    if (lane < uint(OWN)) {
      w[own] = right_of_k ? share : zero<T>();
      row[own] = right_of_k ? conj(entry - share) : zero<T>();
    }
#pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
      const uint r = lane + 32 * uint(h);
      v[h] = mul(v[h], of_column.inverse);
      if (simd == k % SIMDS && r > k && r < height) corner[ulong(k) * m + r] = v[h];
    }
    if (tid == 0) {
      left_taus[k] = of_column.tau;
      d[matrix * n + first + k] = of_column.beta;
    }
    if (k + 1 < width) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      T crossing = zero<T>();
      squares = Real(0);
#pragma unroll
      for (int h = 0; h < HEIGHT; ++h) {
        const uint c = lane + 32 * uint(h);
        const T other = c > k + 1 ? row[c] : zero<T>();
        squares += square_of(other);
        crossing = mul_sub(crossing, w[c], other);
      }
      const Reflector<T> of_row = reflector(row[k + 1], simd_sum(squares));
      crossing = w[k + 1] - mul(of_row.inverse, simd_sum(crossing));
      T u[OWN];
#pragma unroll
      for (int l = 0; l < OWN; ++l) {
        const uint c = simd + SIMDS * uint(l);
        u[l] = c == k + 1 ? one<T>() : (c > k ? mul(row[c], of_row.inverse) : zero<T>());
      }
#pragma unroll
      for (int h = 0; h < HEIGHT; ++h) {
        T sum = zero<T>();
#pragma unroll
        for (int l = 0; l < OWN; ++l) {
          if (uint(l + 1) * SIMDS > k + 1) sum = mul_sub(sum, a[h][l], u[l]);
        }
        products[simd * uint(SIZE) + lane + 32 * uint(h)] = sum;
      }
      if (simd == k % SIMDS) {
#pragma unroll
        for (int h = 0; h < HEIGHT; ++h) {
          const uint c = lane + 32 * uint(h);
          if (c > k + 1 && c < width) steps[ulong(k) * (n - 1) + c] = mul(row[c], of_row.inverse);
        }
      }
      if (tid == 0) {
        right_taus[k] = of_row.tau;
        e[matrix * (n - 1) + first + k] = of_row.beta;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (tid < uint(SIZE)) {
        T minus_sum = zero<T>();
#pragma unroll
        for (uint s = 0; s < SIMDS; ++s) minus_sum = minus_sum + products[s * uint(SIZE) + tid];
        const T whole =
            mul_sub(zero<T>() - minus_sum, mul(column[tid], of_column.inverse), crossing);
        x[tid] = tid > k ? mul(of_row.tau, whole) : zero<T>();
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (int l = 0; l < OWN; ++l) {
        if (uint(l + 1) * SIMDS > k + 1) {
          const T of_w = w[simd + SIMDS * uint(l)];
          const T of_u = conj(u[l]);
#pragma unroll
          for (int h = 0; h < HEIGHT; ++h) {
            const T z = x[lane + 32 * uint(h)];
            a[h][l] = mul_sub(mul_sub(a[h][l], v[h], of_w), z, of_u);
          }
        }
      }
    }
  }
}

// X := [B 0; 0 I] for n x n matrices B, NaN for a matrix that info refuses. An entry a thread.
template <typename T>
kernel void bidiagonal_embed(
    device const real_t<T>* B [[buffer(0)]],
    device const int* info [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    uint3 id [[thread_position_in_grid]]) {
  typedef real_t<T> Real;
  const bool inside = id.x < n && id.y < n;
  Real entry = id.x == id.y ? Real(1) : Real(0);
  if (inside) entry = B[(ulong(id.z) * n + id.y) * n + id.x];
  if (info[id.z] != 0) entry = Real(NAN);
  const long place = long(id.x) * long(row_stride) + long(id.y) * long(column_stride);
  X[long(id.z) * batch_stride + place] = from_real<T>(entry);
}

// The tridiagonal matrix [[0, B^T], [B, 0]], permuted: a diagonal of zeros, and beside it d and e
// in turn. An entry a thread.
template <typename R>
kernel void bidiagonal_interleave(
    device const R* d [[buffer(0)]],
    device const R* e [[buffer(1)]],
    device R* zeros [[buffer(2)]],
    device R* beside [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    uint2 id [[thread_position_in_grid]]) {
  const ulong i = id.x / 2;
  zeros[ulong(id.y) * 2 * n + id.x] = R(0);
  if (id.x + 1 < 2 * n) {
    const R entry = id.x % 2 == 0 ? d[ulong(id.y) * n + i] : e[ulong(id.y) * (n - 1) + i];
    beside[ulong(id.y) * (2 * n - 1) + id.x] = entry;
  }
}

// S := values 2^exponent from the last of them to the first, or as they stand. A value a thread.
template <typename R>
kernel void bidiagonal_values(
    device const R* values [[buffer(0)]],
    device const int* exponents [[buffer(1)]],
    device const int* info [[buffer(2)]],
    device R* S [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& reversed [[buffer(5)]],
    uint2 id [[thread_position_in_grid]]) {
  const ulong first = ulong(id.y) * n;
  const R value = values[first + (reversed != 0 ? n - 1 - id.x : id.x)];
  S[first + id.x] = info[id.y] == 0 ? ldexp(max(value, R(0)), exponents[id.y]) : R(NAN);
}
