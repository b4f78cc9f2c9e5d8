#include "scalar.h"
#include "householder.h"

// Entry (row, column) of a hermitian matrix of which one triangle is stored. Of the diagonal the
// real part counts.
template <typename T> struct Triangle {
  device const T* entries;
  uint row_stride;
  uint column_stride;
  bool lower;

  bool stores(uint row, uint column) const thread { return lower ? row >= column : row <= column; }
  T at(uint row, uint column) const thread {
    const bool stored = stores(row, column);
    const uint i = stored ? row : column;
    const uint j = stored ? column : row;
    const T entry = entries[long(i) * long(row_stride) + long(j) * long(column_stride)];
    if (row == column) return from_real<T>(real_part(entry));
    return stored ? entry : conj(entry);
  }
};

// The largest part of an entry of 32 columns of the triangle, a threadgroup; infinite where one is
// not finite.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void tridiagonal_largest(
    device const T* A [[buffer(0)]],
    device real_t<T>* maxima [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& row_stride [[buffer(3)]],
    constant uint& column_stride [[buffer(4)]],
    constant long& batch_stride [[buffer(5)]],
    constant uint& lower [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(Real, largest_of, 8);
  const Triangle<T> from = {
      A + long(group.y) * batch_stride, row_stride, column_stride, lower != 0};
  // Neighbouring threads take neighbouring addresses, whichever way A lies.
  const bool along_rows = column_stride < row_stride;
  Real largest = Real(0);
  for (uint begin = 0; begin < n; begin += 32) {
#pragma unroll
    for (uint s = 0; s < 4; ++s) {
      const uint slow = tid / 32 + s * 8;
      const uint i = begin + (along_rows ? slow : tid % 32);
      const uint j = group.x * 32 + (along_rows ? tid % 32 : slow);
      if (i < n && j < n && from.stores(i, j)) {
        const Real size = largest_part(from.at(i, j));
        largest = size < Real(INFINITY) ? max(largest, size) : Real(INFINITY);
      }
    }
  }
  largest = simd_max(largest);
  if (tid % 32 == 0) largest_of[tid / 32] = largest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) {
    for (uint s = 1; s < 8; ++s) largest = max(largest, largest_of[s]);
    maxima[group.y * groups.x + group.x] = largest;
  }
}

// Both triangles of a hermitian matrix, divided by the power of two that leaves its largest entry
// near 1: a threadgroup a tile of 32 x 32. Zeros and info n - 1 where an entry is not finite.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void tridiagonal_copy(
    device const T* A [[buffer(0)]],
    device const real_t<T>* maxima [[buffer(1)]],
    device T* X [[buffer(2)]],
    device int* exponents [[buffer(3)]],
    device int* info [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& lower [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  Real largest = Real(0);
  for (uint part = 0; part < groups.x; ++part) {
    largest = max(largest, maxima[group.z * groups.x + part]);
  }
  const bool bad = largest == Real(INFINITY);
  const int exponent = exponent_of(largest);
  const Triangle<T> from = {
      A + long(group.z) * batch_stride, row_stride, column_stride, lower != 0};
  const uint first_row = group.x * 32;
  const uint first_column = group.y * 32;
  const bool along_rows = (column_stride < row_stride) == from.stores(first_row, first_column);
#pragma unroll
  for (uint s = 0; s < 4; ++s) {
    const uint slow = tid / 32 + s * 8;
    const uint i = along_rows ? slow : tid % 32;
    const uint j = along_rows ? tid % 32 : slow;
    T entry = zero<T>();
    if (first_row + i < n && first_column + j < n && !bad) {
      entry = scale(from.at(first_row + i, first_column + j), -exponent);
    }
    tile[j * 33 + i] = entry;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint row = first_row + tid % 32;
  device T* to = X + ulong(group.z) * n * n;
#pragma unroll
  for (uint s = 0; s < 4; ++s) {
    const uint j = tid / 32 + s * 8;
    const uint column = first_column + j;
    if (row < n && column < n) to[ulong(column) * n + row] = tile[j * 33 + tid % 32];
  }
  if (group.x == 0 && group.y == 0 && tid == 0) {
    exponents[group.z] = exponent;
    info[group.z] = bad ? int(n) - 1 : 0;
  }
}

// A reflector I - tau v v^H with v = inverse u: u is the column it reduces, but for `first`, the
// entry that becomes beta. What counts as zero in the column is too small to matter in v.
template <typename T> struct Step {
  T tau;
  T inverse;
  T first;
  real_t<T> beta;
};

template <typename T> inline Step<T> step_of(T alpha, real_t<T> squares) {
  const Reflector<T> h = reflector<T>(alpha, squares);
  const bool alone = is_zero(h.inverse);
  const Step<T> step = {
      h.tau, alone ? one<T>() : h.inverse, alone ? one<T>() : alpha - from_real<T>(h.beta), h.beta};
  return step;
}

template <typename T> inline real_t<T> squared(T a) { return real_part(mul(conj(a), a)); }

// tau y - |tau|^2 s v / 2: the w of the update A - v w^H - w v^H, where y = A v and s = v^H y.
template <typename T> inline T update_vector(T tau, T y, real_t<T> s, T v) {
  typedef real_t<T> R;
  const T half_of_it = mul(from_real<T>(s / R(2)), conj(tau));
  return mul(tau, mul_sub(y, half_of_it, v));
}

// Rows that one threadgroup reduces.
constexpr constant uint GROUP_ROWS = 256;
// Columns of a run, 32 bytes of a row: a thread has fetched all its entries before it stores one,
// so that no load waits for another.
template <typename T> inline constexpr uint run_columns() { return 32 / sizeof(T); }

// Subtracts x w^H + y before^H from the entries of a row in a run of columns, `count` of which are
// there, and from `minus` what they make of u.
template <typename T, bool WHOLE>
inline T update_run(
    device T* from,
    uint n,
    uint count,
    threadgroup const T* w,
    threadgroup const T* before,
    threadgroup const T* u,
    T x,
    T y,
    T minus) {
  constexpr uint RUN = run_columns<T>();
  T entries[RUN];
#pragma unroll
  for (uint t = 0; t < RUN; ++t) {
    entries[t] = WHOLE || t < count ? from[ulong(t) * n] : zero<T>();
  }
#pragma unroll
  for (uint t = 0; t < RUN; ++t) {
    entries[t] = mul_sub(mul_sub(entries[t], x, conj(w[t])), y, conj(before[t]));
    minus = mul_sub(minus, entries[t], u[t]);
    if (WHOLE || t < count) from[ulong(t) * n] = entries[t];
  }
  return minus;
}

// Householder's reduction T = Q^H A Q, Q = H_0 H_1 ..., of the rows and columns from `first` on of
// hermitian matrices with both triangles, a threadgroup a matrix: LAPACK's hetrd. Column k is
// brought up to date and gives u; then one pass over what is right of it subtracts the update of
// the column before and adds up A u. A simdgroup has 32 rows of every so many runs of columns. In
// place of v and w the update is made of u and of w divided by what v is of u.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void tridiagonal_group(
    device T* A [[buffer(0)]],
    device real_t<T>* d [[buffer(1)]],
    device real_t<T>* e [[buffer(2)]],
    device T* factor [[buffer(3)]],
    device T* tau [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& first [[buffer(6)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  constexpr uint RUN = run_columns<T>();
  constexpr uint SIMDS = 16;
  THREADGROUP_ARRAY(T, columns, (2 * GROUP_ROWS));
  THREADGROUP_ARRAY(T, w, GROUP_ROWS);
  // Column k but for the update of the column before.
  THREADGROUP_ARRAY(T, next, GROUP_ROWS);
  THREADGROUP_ARRAY(T, sums, (32 * SIMDS));
  THREADGROUP_ARRAY(T, alpha, 1);
  THREADGROUP_ARRAY(Real, squares, SIMDS);
  THREADGROUP_ARRAY(Real, products, SIMDS);
  const uint m = n - first;
  const uint lane = tid % 32;
  const uint simd = tid / 32;
  device T* a = A + (ulong(matrix) * n + first) * n + first;
  device T* reflectors = factor + (ulong(matrix) * (n - 1) + first) * (n - 1) + first;
  device real_t<T>* diagonal = d + ulong(matrix) * n + first;
  device real_t<T>* beside = e + ulong(matrix) * (n - 1) + first;
  for (uint i = tid; i < GROUP_ROWS; i += threads) {
    columns[i] = zero<T>();
    columns[GROUP_ROWS + i] = zero<T>();
    w[i] = zero<T>();
    next[i] = i < m ? a[i] : zero<T>();
  }
  if (tid < SIMDS) {
    squares[tid] = Real(0);
    products[tid] = Real(0);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint top = 0; top + 1 < m; top += 32) {
    const uint row_simds = (m - 1 - top) / 32 + 1;
    const uint parts = threads / 32 / row_simds;
    const uint part = simd / row_simds;
    const uint block = simd % row_simds;
    const uint row = top + block * 32 + lane;
    for (uint k = top; k < min(top + 32, m - 1); ++k) {
      threadgroup T* u = columns + k % 2 * GROUP_ROWS;
      threadgroup const T* before = columns + (k + 1) % 2 * GROUP_ROWS;
      Real square = Real(0);
      if (part == 0 && row < m) {
        T entry = next[row];
        entry = mul_sub(entry, before[row], conj(w[k]));
        entry = mul_sub(entry, w[row], conj(before[k]));
        if (row == k) diagonal[k] = real_part(entry);
        if (row == k + 1) alpha[0] = entry;
        u[row] = row > k + 1 ? entry : zero<T>();
        if (row > k + 1) square = squared(entry);
      }
      square = simd_sum(square);
      if (lane == 0) squares[simd] = square;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      Real sum_of_squares = Real(0);
#pragma unroll
      for (uint s = 0; s < SIMDS; ++s) sum_of_squares += squares[s];
      const Step<T> h = step_of<T>(alpha[0], sum_of_squares);
      const bool inside = part < parts && row > k && row < m;
      const T own = !inside ? zero<T>() : (row == k + 1 ? h.first : u[row]);
      T minus = zero<T>();
      if (inside) {
        const T x = before[row];
        const T y = w[row];
        T following = zero<T>();
        if (part == 0) {
          following = a[ulong(k + 1) * n + row];
          following = mul_sub(mul_sub(following, x, conj(w[k + 1])), y, conj(before[k + 1]));
          next[row] = following;
        }
        // The first run may begin with columns that are done: what becomes of them is of no use.
        for (uint run = (k + 1) / RUN + part; run * RUN < m; run += parts) {
          const uint j = run * RUN;
          device T* from = a + ulong(j) * n + row;
          if (j + RUN <= m) {
            minus = update_run<T, true>(from, n, RUN, w + j, before + j, u + j, x, y, minus);
          } else {
            minus = update_run<T, false>(from, n, m - j, w + j, before + j, u + j, x, y, minus);
          }
        }
        minus = mul_sub(minus, following, h.first);
      }
      sums[tid] = minus;
      const Real product = simd_sum(real_part(mul(conj(own), minus)));
      if (lane == 0) products[simd] = product;
      threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
      if (part == 0 && inside) {
        T y = zero<T>();
        for (uint p = 0; p < parts; ++p) y = y - sums[(p * row_simds + block) * 32 + lane];
        Real s = Real(0);
#pragma unroll
        for (uint p = 0; p < SIMDS; ++p) s -= products[p];
        w[row] = update_vector<T>(mul(h.tau, from_real<T>(squared(h.inverse))), y, s, own);
        if (row == k + 1) {
          u[row] = own;
          beside[k] = h.beta;
          tau[ulong(matrix) * (n - 1) + first + k] = h.tau;
        } else {
          reflectors[ulong(k) * (n - 1) + row - 1] = mul(own, h.inverse);
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
  if (tid == 0) {
    const uint k = m - 1;
    const Real twice =
        Real(2) * real_part(mul(columns[k % 2 == 0 ? GROUP_ROWS + k : k], conj(w[k])));
    diagonal[k] = real_part(a[ulong(k) * n + k]) - twice;
  }
}

// Columns of a panel of larger matrices.
constexpr constant uint WIDTH = 32;

// The products x^H y of the column y = A(:, k), below its second entry, with what comes next: the
// columns x of A from k + 1 on, of V and W, which the panel's columns before have left, and y
// itself. A simdgroup a product.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void tridiagonal_products(
    device const T* A [[buffer(0)]],
    device const T* column [[buffer(1)]],
    device const T* panel [[buffer(2)]],
    device T* products [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& k [[buffer(5)]],
    constant uint& done [[buffer(6)]],
    constant long& column_stride [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  // Entries of a lane that are fetched at once: 64 bytes.
  constexpr uint RUN = 64 / sizeof(T);
  const uint lane = tid % 32;
  const uint right = n - k - 1;
  const uint place = group.x * 8 + tid / 32;
  device const T* y = column + long(group.y) * column_stride;
  device const T* x = y;
  uint to = n + 2 * WIDTH;
  if (place < right) {
    to = k + 1 + place;
    x = A + (ulong(group.y) * n + to) * n;
  } else if (place < right + 2 * done) {
    const uint l = place - right;
    const uint of_panel = l < done ? l : WIDTH + l - done;
    to = n + of_panel;
    x = panel + (ulong(group.y) * (2 * WIDTH) + of_panel) * n;
  }
  const bool inside = place <= right + 2 * done;
  T minus = zero<T>();
  if (inside) {
    for (uint begin = k + 2 + lane; begin < n; begin += 32 * RUN) {
      T a[RUN];
      T b[RUN];
#pragma unroll
      for (uint t = 0; t < RUN; ++t) {
        const uint i = begin + t * 32;
        a[t] = i < n ? x[i] : zero<T>();
        b[t] = i < n ? y[i] : zero<T>();
      }
#pragma unroll
      for (uint t = 0; t < RUN; ++t) minus = mul_sub(minus, conj(a[t]), b[t]);
    }
  }
  const T product = zero<T>() - simd_sum(minus);
  if (inside && lane == 0) products[ulong(group.y) * (n + 2 * WIDTH + 1) + to] = product;
}

// From those products v and w of column k, and with `more` the next column after the updates of the
// panel (LAPACK's latrd). panel is [V W] and swapped [W V], by which A is updated at the end. Every
// threadgroup makes the sums that all need, and takes 32 rows, of which each simdgroup has every
// eighth term.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void tridiagonal_column(
    device const T* A [[buffer(0)]],
    device const T* column [[buffer(1)]],
    device const T* products [[buffer(2)]],
    device T* panel [[buffer(3)]],
    device T* swapped [[buffer(4)]],
    device T* next [[buffer(5)]],
    device real_t<T>* d [[buffer(6)]],
    device real_t<T>* e [[buffer(7)]],
    device T* factor [[buffer(8)]],
    device T* tau [[buffer(9)]],
    constant uint& n [[buffer(10)]],
    constant uint& k [[buffer(11)]],
    constant uint& done [[buffer(12)]],
    constant long& column_stride [[buffer(13)]],
    constant uint& more [[buffer(14)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  constexpr uint SIMDS = 8;
  constexpr uint OWN = WIDTH / SIMDS;
  THREADGROUP_ARRAY(T, v_top, WIDTH);
  THREADGROUP_ARRAY(T, w_top, WIDTH);
  THREADGROUP_ARRAY(T, of_v, WIDTH);
  THREADGROUP_ARRAY(T, of_w, WIDTH);
  THREADGROUP_ARRAY(T, terms, (2 * SIMDS * 32));
  THREADGROUP_ARRAY(T, corners, SIMDS);
  THREADGROUP_ARRAY(Real, parts, SIMDS);
  const uint lane = tid % 32;
  const uint simd = tid / 32;
  const uint row = k + 1 + group.x * 32 + lane;
  device const T* c = column + long(group.y) * column_stride;
  device const T* p = products + ulong(group.y) * (n + 2 * WIDTH + 1);
  device const T* a = A + (ulong(group.y) * n + k + 1) * n;
  device T* V = panel + ulong(group.y) * (2 * WIDTH) * n;
  T v_own[OWN];
  T w_own[OWN];
#pragma unroll
  for (uint s = 0; s < OWN; ++s) {
    const uint l = s * SIMDS + simd;
    const bool inside = l < done && row < n;
    v_own[s] = inside ? V[ulong(l) * n + row] : zero<T>();
    w_own[s] = inside ? V[ulong(WIDTH + l) * n + row] : zero<T>();
  }
  const Step<T> h = step_of<T>(c[k + 1], real_part(p[n + 2 * WIDTH]));
  // Of s = v^H A v after the panel's updates, and of what they subtract from entry k + 1 of A v.
  Real s = Real(0);
#pragma unroll(4)
  for (uint i = k + 1 + tid; i < n; i += 256) {
    const T u = i == k + 1 ? h.first : c[i];
    s += real_part(mul(conj(u), p[i] + mul(a[i], h.first)));
  }
  s *= squared(h.inverse);
  T corner = zero<T>();
  if (tid < WIDTH) {
    T v = zero<T>();
    T w = zero<T>();
    T x = zero<T>();
    T y = zero<T>();
    if (tid < done) {
      v = V[ulong(tid) * n + k + 1];
      w = V[ulong(WIDTH + tid) * n + k + 1];
      x = mul(h.inverse, p[n + tid] + mul(conj(v), h.first));
      y = mul(h.inverse, p[n + WIDTH + tid] + mul(conj(w), h.first));
    }
    v_top[tid] = v;
    w_top[tid] = w;
    of_v[tid] = x;
    of_w[tid] = y;
    s -= Real(2) * real_part(mul(conj(x), y));
    corner = mul_sub(mul_sub(zero<T>(), v, y), w, x);
  }
  s = simd_sum(s);
  corner = simd_sum(corner);
  if (lane == 0) {
    parts[simd] = s;
    corners[simd] = corner;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  T minus[2] = {zero<T>(), zero<T>()};
#pragma unroll
  for (uint t = 0; t < OWN; ++t) {
    const uint l = t * SIMDS + simd;
    minus[0] = mul_sub(mul_sub(minus[0], v_own[t], of_w[l]), w_own[t], of_v[l]);
    minus[1] = mul_sub(mul_sub(minus[1], v_own[t], conj(w_top[l])), w_own[t], conj(v_top[l]));
  }
  terms[simd * 32 + lane] = minus[0];
  terms[(SIMDS + simd) * 32 + lane] = minus[1];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simd == 0 && row < n) {
    Real whole = Real(0);
    T top = zero<T>();
    T change[2] = {zero<T>(), zero<T>()};
    for (uint t = 0; t < SIMDS; ++t) {
      whole += parts[t];
      top = top + corners[t];
      change[0] = change[0] + terms[t * 32 + lane];
      change[1] = change[1] + terms[(SIMDS + t) * 32 + lane];
    }
    top = top + mul(h.inverse, p[k + 1] + mul(a[k + 1], h.first));
    top = update_vector<T>(h.tau, top, whole, one<T>());
    const T v = row == k + 1 ? one<T>() : mul(h.inverse, c[row]);
    const T y = mul(h.inverse, p[row] + mul(a[row], h.first)) + change[0];
    const T w = row == k + 1 ? top : update_vector<T>(h.tau, y, whole, v);
    device T* W = swapped + ulong(group.y) * (2 * WIDTH) * n;
    V[ulong(done) * n + row] = v;
    V[ulong(WIDTH + done) * n + row] = w;
    W[ulong(done) * n + row] = w;
    W[ulong(WIDTH + done) * n + row] = v;
    if (more != 0) {
      next[ulong(group.y) * n + row] = mul_sub(a[row] + change[1], v, conj(top)) - w;
    }
    if (row == k + 1) {
      d[ulong(group.y) * n + k] = real_part(c[k]);
      e[ulong(group.y) * (n - 1) + k] = h.beta;
      tau[ulong(group.y) * (n - 1) + k] = h.tau;
    } else {
      factor[(ulong(group.y) * (n - 1) + k) * (n - 1) + row - 1] = v;
    }
  }
}

// The results of a tridiagonal form scaled back, an entry a thread: eigenvalues and, if there are
// any, vectors as numbers of the matrix's kind. NaN where info is not zero.
template <typename T>
kernel void tridiagonal_finish(
    device const real_t<T>* found [[buffer(0)]],
    device const real_t<T>* Z [[buffer(1)]],
    device const int* exponents [[buffer(2)]],
    device const int* info [[buffer(3)]],
    device real_t<T>* values [[buffer(4)]],
    device T* V [[buffer(5)]],
    constant uint& n [[buffer(6)]],
    constant uint& vectors [[buffer(7)]],
    uint3 id [[thread_position_in_grid]]) {
  typedef real_t<T> Real;
  const bool bad = info[id.z] != 0;
  const ulong of_column = ulong(id.z) * n + id.y;
  if (id.y == 0) {
    const ulong place = ulong(id.z) * n + id.x;
    values[place] = bad ? Real(NAN) : ldexp(found[place], exponents[id.z]);
  }
  if (vectors != 0) {
    const ulong place = of_column * n + id.x;
    V[place] = from_real<T>(bad ? Real(NAN) : Z[place]);
  }
}
