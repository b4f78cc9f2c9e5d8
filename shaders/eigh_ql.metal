#include "scalar.h"
#include "householder.h"
#include "ql.h"

template <typename T> inline T sum_of_lanes(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return T(simd_sum(a.x), simd_sum(a.y));
  } else {
    return simd_sum(a);
  }
}

// Eigenvalues, ascending, and eigenvectors of hermitian matrices with at most W rows, one a
// simdgroup and a column a lane: to tridiagonal form by reflections from both sides, each left in
// its column of the tile, then QL. info: n - 1 where entries are not finite, or QL does not end.
template <typename T, int W>
kernel void eigh_ql(
    device const T* A [[buffer(0)]],
    device real_t<T>* values [[buffer(1)]],
    device T* vectors [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant uint& lower [[buffer(8)]],
    constant uint& with_vectors [[buffer(9)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef real_t<T> Real;
  constexpr uint STRIDE = W + 1;
  THREADGROUP_ARRAY(T, tile, (W * (W + 1)));
  THREADGROUP_ARRAY(Real, rotated, (W * (W + 1)));
  THREADGROUP_ARRAY(T, turning, W);
  const bool active = lane < n;
  // Lanes without a column read one that is there, and write nothing.
  const uint column = active ? lane : 0u;
  threadgroup T* own_column = tile + column * STRIDE;

  device const T* from = A + long(group) * batch_stride;
  Real largest = Real(0);
  for (uint i = 0; i < n; ++i) {
    const bool stored = lower != 0 ? i >= lane : i <= lane;
    T entry = zero<T>();
    if (active) {
      const uint row = stored ? i : lane;
      const uint of = stored ? lane : i;
      entry = from[long(row) * long(row_stride) + long(of) * long(column_stride)];
    }
    if (i == lane) entry = from_real<T>(real_part(entry));
    const Real size = largest_part(entry);
    largest = size < Real(INFINITY) ? max(largest, size) : Real(INFINITY);
    if (active) own_column[i] = stored ? entry : conj(entry);
  }
  largest = simd_max(largest);
  // LAPACK returns a single number as it is.
  const bool bad = n > 1 && largest == Real(INFINITY);
  const int exponent = exponent_of(largest);
  for (uint i = 0; i < n; ++i) {
    if (active) own_column[i] = bad ? zero<T>() : scale(own_column[i], -exponent);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);

  // Of T: the diagonal, what is beside it, and the factor of the reflection, each in its lane.
  Real d = Real(0);
  Real e = Real(0);
  T tau = zero<T>();
  for (uint k = 0; k < n; ++k) {
    threadgroup T* v = tile + k * STRIDE;
    if (lane == k) d = real_part(v[k]);
    if (k + 1 == n) break;
    const T x = lane > k && active ? v[lane] : zero<T>();
    const Real squares = simd_sum(lane == k + 1 ? Real(0) : real_part(mul(conj(x), x)));
    const Reflector<T> h = reflector(simd_shuffle(x, ushort(k + 1)), squares);
    const T own = lane == k + 1 ? one<T>() : mul(x, h.inverse);
    if (lane == k) {
      e = h.beta;
      tau = h.tau;
    }
    if (active) v[lane] = own;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    T minus = zero<T>();
    for (uint i = k + 1; i < n; ++i) minus = mul_sub(minus, tile[i * STRIDE + column], v[i]);
    const T p = mul(minus, zero<T>() - h.tau);
    const T product = mul(h.tau, sum_of_lanes(mul(conj(p), own)));
    const T w = mul_sub(p, scale(product, -1), own);
    if (active) turning[lane] = w;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = k + 1; i < n; ++i) {
      const T entry = mul_sub(own_column[i], v[i], conj(w));
      if (active && lane > k) own_column[i] = mul_sub(entry, turning[i], conj(own));
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  threadgroup Real* row = rotated + column * STRIDE;
  for (uint i = 0; i < n; ++i) {
    if (active) row[i] = i == lane ? Real(1) : Real(0);
  }
  const bool converged = ql(d, e, n, active && with_vectors != 0, row, lane);

  uint rank = 0;
  for (uint i = 0; i < n; ++i) {
    const Real other = simd_shuffle(d, ushort(i));
    if (other < d || (other == d && i < lane)) rank += 1;
  }
  if (active) values[ulong(group) * n + rank] = bad ? Real(NAN) : ldexp(d, exponent);
  if (lane == 0) info[group] = bad || !converged ? int(n) - 1 : 0;
  if (with_vectors != 0) {
    T z[W];
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      z[i] = uint(i) < n ? from_real<T>(rotated[uint(i) * STRIDE + column]) : zero<T>();
    }
    for (uint k = n - 1; k-- > 0;) {
      threadgroup const T* v = tile + k * STRIDE;
      T minus = zero<T>();
#pragma unroll
      for (int i = 1; i < W; ++i) {
        if (uint(i) > k && uint(i) < n) minus = mul_sub(minus, conj(v[i]), z[i]);
      }
      const T share = mul(simd_shuffle(tau, ushort(k)), zero<T>() - minus);
#pragma unroll
      for (int i = 1; i < W; ++i) {
        if (uint(i) > k && uint(i) < n) z[i] = mul_sub(z[i], v[i], share);
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      if (active && uint(i) < n) own_column[i] = z[i];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    device T* to = vectors + ulong(group) * n * n + lane;
    for (uint j = 0; j < n; ++j) {
      const uint place = simd_shuffle(rank, ushort(j));
      const T entry = bad ? from_real<T>(Real(NAN)) : tile[j * STRIDE + column];
      if (active) to[place * n] = entry;
    }
  }
}
