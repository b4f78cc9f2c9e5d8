#include "scalar.h"
#include "householder.h"
#include "hessenberg.h"

// One pass of balancing over the rows first ... last - 1, a threadgroup a matrix, unless the pass
// before changed nothing: changed[pass] tells the next.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void eig_balance(
    device T* A_all [[buffer(0)]],
    device int* scales_all [[buffer(1)]],
    device int* changed_all [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& pass [[buffer(4)]],
    constant uint& first [[buffer(5)]],
    constant uint& last [[buffer(6)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  THREADGROUP_ARRAY(real_t<T>, partial, 32);
  const Crew crew = {tid, lane, simd, simds};
  device T* A = A_all + ulong(matrix) * n * n;
  device int* scales = scales_all + ulong(matrix) * n;
  device int* changed = changed_all + matrix * uint(BALANCING_PASSES);
  if (pass == 0 && first == 0) {
    for (uint i = tid; i < n; i += simds * 32) scales[i] = 0;
  }
  const bool open = pass == 0 || changed[pass - 1] != 0;
  bool change = first > 0 && changed[pass] != 0;
  meet<true>();
  if (open) {
    for (uint i = first; i < last; ++i) {
      if (balance_row<true, T>(A, n, n, i, scales, crew, partial)) change = true;
    }
  }
  if (tid == 0) changed[pass] = change ? 1 : 0;
}

// Householder's reduction to Hessenberg form, three launches a column k: the reflector I - tau v
// v^H, with v as a vector of n entries; w^T = conj(tau) v^H A; and y = tau (A - v w^T) v. What the
// reflector changes, v w^T + y v^H, the second launch of the next column subtracts when it reads A,
// but for column k + 1, which the third has finished. `factor` and tau are those of LAPACK's geqrf,
// a column later: a product of reflectors that leaves the first row alone.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void eig_reflector(
    device T* A [[buffer(0)]],
    device T* v_all [[buffer(1)]],
    device T* factor_all [[buffer(2)]],
    device T* tau [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& k [[buffer(5)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(Real, partial, 32);
  const Crew crew = {tid, lane, simd, simds};
  const uint threads = simds * 32;
  device T* column = A + (ulong(matrix) * n + k) * n;
  device T* v = v_all + ulong(matrix) * n;
  device T* factor = factor_all + (ulong(matrix) * n + k + 1) * n;
  Real largest = Real(0);
  for (uint r = k + 1 + tid; r < n; r += threads) largest = max(largest, largest_part(column[r]));
  const int exponent = exponent_of(largest_of_all<true>(largest, crew, partial));
  Real squares = Real(0);
  for (uint r = k + 2 + tid; r < n; r += threads) squares += square_of(scale(column[r], -exponent));
  const T alpha = scale(column[k + 1], -exponent);
  const Reflector<T> h = reflector(alpha, sum_of_all<true>(squares, crew, partial));
  meet<true>();
  for (uint r = tid; r < n; r += threads) {
    T entry = r == k + 1 ? one<T>() : zero<T>();
    if (r > k + 1) entry = mul(scale(column[r], -exponent), h.inverse);
    v[r] = entry;
    factor[r] = entry;
    if (r > k) column[r] = r == k + 1 ? from_real<T>(ldexp(h.beta, exponent)) : zero<T>();
    if (k == 0) factor_all[ulong(matrix) * n * n + r] = zero<T>();
  }
  if (tid == 0) {
    tau[ulong(matrix) * n + k + 1] = h.tau;
    if (k == 0) tau[ulong(matrix) * n] = zero<T>();
  }
}

// Simdgroups of a group, and the columns of each.
constexpr constant uint SIMDGROUPS = 4;
constexpr constant uint COLUMNS = 2;
// Entries of a column, and of a row, that a thread asks for before it needs the first of them.
constexpr constant uint STEPS = 4;
constexpr constant uint BATCH = 8;

// The second launch.
template <typename T>
[[max_total_threads_per_threadgroup(128)]] kernel void eig_columns(
    device T* A [[buffer(0)]],
    device const T* v_before_all [[buffer(1)]],
    device const T* v_all [[buffer(2)]],
    device const T* y_all [[buffer(3)]],
    device T* w_all [[buffer(4)]],
    device const T* tau [[buffer(5)]],
    constant uint& n [[buffer(6)]],
    constant uint& k [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  const ulong begin_of = ulong(group.y) * n;
  const bool pending = k > 0;
  device const T* v_before = v_before_all + begin_of;
  device const T* v = v_all + begin_of;
  device const T* y = y_all + begin_of;
  device T* w = w_all + begin_of;
  const uint first = k + 1 + (group.x * SIMDGROUPS + simd) * COLUMNS;
  device T* a = A + (begin_of + first) * n;
  T share[COLUMNS];
  T across[COLUMNS];
  T minus[COLUMNS];
#pragma unroll
  for (uint c = 0; c < COLUMNS; ++c) {
    const bool open = pending && first + c < n;
    share[c] = open ? w[first + c] : zero<T>();
    across[c] = open ? conj(v_before[first + c]) : zero<T>();
    minus[c] = zero<T>();
  }
  for (uint begin = 0; begin < n; begin += 32 * STEPS) {
    T own[STEPS];
    T left[STEPS];
    T right[STEPS];
    T entry[COLUMNS][STEPS];
#pragma unroll
    for (uint s = 0; s < STEPS; ++s) {
      const uint r = begin + s * 32 + lane;
      own[s] = r < n ? v[r] : zero<T>();
      left[s] = r < n && pending ? v_before[r] : zero<T>();
      right[s] = r < n && pending ? y[r] : zero<T>();
#pragma unroll
      for (uint c = 0; c < COLUMNS; ++c) {
        entry[c][s] = r < n && first + c < n ? a[ulong(c) * n + r] : zero<T>();
      }
    }
#pragma unroll
    for (uint s = 0; s < STEPS; ++s) {
      const uint r = begin + s * 32 + lane;
#pragma unroll
      for (uint c = 0; c < COLUMNS; ++c) {
        const T x = mul_sub(mul_sub(entry[c][s], right[s], across[c]), left[s], share[c]);
        if (pending && r < n && first + c < n) a[ulong(c) * n + r] = x;
        minus[c] = mul_sub(minus[c], conj(own[s]), x);
      }
    }
  }
#pragma unroll
  for (uint c = 0; c < COLUMNS; ++c) {
    const T product = zero<T>() - simd_sum(minus[c]);
    if (lane == 0 && first + c < n && k + 2 < n) {
      w[first + c] = mul(conj(tau[begin_of + k + 1]), product);
    }
  }
}

// The third launch: 32 rows a group, whose simdgroups share the columns.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void eig_rows(
    device T* A [[buffer(0)]],
    device const T* v_all [[buffer(1)]],
    device T* y_all [[buffer(2)]],
    device const T* w_all [[buffer(3)]],
    device const T* tau [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& k [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  THREADGROUP_ARRAY(T, products, 512);
  THREADGROUP_ARRAY(T, crossings, 16);
  const ulong begin_of = ulong(group.y) * n;
  device const T* v = v_all + begin_of;
  device const T* w = w_all + begin_of;
  const uint r = group.x * 32 + lane;
  device T* a = A + begin_of * n + min(r, n - 1);
  T minus = zero<T>();
  T minus_crossing = zero<T>();
  for (uint begin = k + 1 + simd; begin < n; begin += simds * BATCH) {
    T entry[BATCH];
    T step[BATCH];
    T share[BATCH];
#pragma unroll
    for (uint s = 0; s < BATCH; ++s) {
      const uint j = begin + s * simds;
      entry[s] = j < n ? a[ulong(j) * n] : zero<T>();
      step[s] = j < n ? v[j] : zero<T>();
      share[s] = j < n ? w[j] : zero<T>();
    }
#pragma unroll
    for (uint s = 0; s < BATCH; ++s) {
      minus = mul_sub(minus, entry[s], step[s]);
      minus_crossing = mul_sub(minus_crossing, share[s], step[s]);
    }
  }
  products[simd * 32 + lane] = minus;
  if (lane == 0) crossings[simd] = minus_crossing;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simd == 0 && r < n) {
    T product = zero<T>();
    T crossing = zero<T>();
    for (uint s = 0; s < simds; ++s) {
      product = product - products[s * 32 + lane];
      crossing = crossing - crossings[s];
    }
    const T change = mul(tau[begin_of + k + 1], mul_sub(product, v[r], crossing));
    y_all[begin_of + r] = change;
    a[ulong(k + 1) * n] = mul_sub(a[ulong(k + 1) * n], v[r], w[k + 1]) - change;
  }
}
