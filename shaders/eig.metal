#include "scalar.h"
#include "householder.h"
#include "hessenberg.h"
#include "shifts.h"
#include "schur.h"
#include "eigenvectors.h"

template <typename T> inline bool is_finite(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return fabs(a.x) < real_t<T>(INFINITY) && fabs(a.y) < real_t<T>(INFINITY);
  } else {
    return fabs(a) < T(INFINITY);
  }
}

// Of thread k the k-th eigenvalue and, if wanted, its eigenvector; x has room for n entries.
template <typename T, typename C, typename P, typename Q, typename S>
inline void finish(
    P H,
    P Z,
    uint stride,
    uint n,
    uint k,
    Q x,
    uint step,
    S scales,
    int exponent,
    bool failed,
    bool vectors,
    device C* values,
    device C* V) {
  typedef real_t<C> R;
  const C value = eigenvalue<T, C>(H, stride, k, n);
  values[k] = failed ? C(R(NAN), R(NAN)) : scale(value, exponent);
  const bool second = k > 0 && is_pair<T>(H, stride, k - 1, n);
  device C* v = V + k * n;
  // Of a matrix that did not converge neighbours are no pairs: each thread has its own column.
  if (vectors && failed) {
    for (uint i = 0; i < n; ++i) v[i] = C(R(NAN), R(NAN));
  } else if (vectors && !second) {
    const bool first = is_pair<T>(H, stride, k, n);
    const uint last = back_substitute<T, C>(H, stride, n, k, value, x, step);
    const bool real = !first && !bool(scalar_traits<T>::complex);
    transform<T, C>(Z, stride, n, x, step, last, scales, v, real);
    for (uint i = 0; first && i < n; ++i) v[n + i] = conj(v[i]);
  }
}

// Eigenvalues and eigenvectors of general matrices with at most W <= 32 rows, a simdgroup a matrix:
// balanced, reduced to Hessenberg form and iterated to Schur form in threadgroup memory.
// info: n + 1 where entries are not finite, the rows that did not converge, or 0.
template <typename T, typename C, int W>
kernel void eig_simd(
    device const T* A [[buffer(0)]],
    device C* values [[buffer(1)]],
    device C* V [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant uint& with_vectors [[buffer(8)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef real_t<T> Real;
  constexpr uint STRIDE = W + 1;
  THREADGROUP_ARRAY(T, H, (W * (W + 1)));
  THREADGROUP_ARRAY(T, Z, (W * (W + 1)));
  THREADGROUP_ARRAY(C, x, (W * (W + 1)));
  THREADGROUP_ARRAY(T, v, W);
  THREADGROUP_ARRAY(int, scales, W);
  THREADGROUP_ARRAY(Real, partial, 1);
  const Crew crew = {lane, lane, 0, 1};
  const bool active = lane < n;
  const bool vectors = with_vectors != 0;

  device const T* from = A + long(matrix) * batch_stride;
  Real largest = Real(0);
  for (uint j = 0; j < n; ++j) {
    if (active) {
      const T entry = from[long(lane) * long(row_stride) + long(j) * long(column_stride)];
      largest = is_finite(entry) ? max(largest, largest_part(entry)) : Real(INFINITY);
      H[j * STRIDE + lane] = entry;
      Z[j * STRIDE + lane] = j == lane ? one<T>() : zero<T>();
    }
  }
  largest = simd_max(largest);
  const bool bad = largest == Real(INFINITY);
  const int exponent = exponent_of(largest);
  for (uint j = 0; j < n; ++j) {
    if (active) {
      H[j * STRIDE + lane] = bad ? zero<T>() : scale(H[j * STRIDE + lane], -exponent);
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);

  balance<false, T>(H, STRIDE, n, scales, crew, partial);
  reduce_columns<false, T>(H, Z, STRIDE, n, 0, max(n, 2u) - 2, vectors, crew, v, partial);
  Iteration iteration = {n, 0, 0};
  iterate<false, T>(H, Z, STRIDE, n, vectors, UINT_MAX, iteration, crew, partial);

  const bool failed = bad || iteration.active > 0;
  if (lane == 0) info[matrix] = bad ? int(n) + 1 : int(iteration.active);
  if (active) {
    finish<T, C>(
        H, Z, STRIDE, n, lane, x + lane, STRIDE, scales, exponent, failed, vectors,
        values + ulong(matrix) * n, V + (vectors ? ulong(matrix) * n * n : 0u));
  }
}

// Numbers of a matrix that a launch leaves to the next.
constexpr constant uint STATE = 5;

// The first of three kernels for 33 to 512 rows, a threadgroup a matrix with a thread for each:
// H = Z^H D^-1 A D Z in Hessenberg form in device memory, the columns first ... last - 1 in a
// launch. The launch of the first column reads A, balances and sets `state`: rows that have not
// converged, sweeps without a deflation, sweeps, the exponent taken out, and whether A is not
// finite.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void eig_reduce(
    device const T* A [[buffer(0)]],
    device T* H_all [[buffer(1)]],
    device T* Z_all [[buffer(2)]],
    device int* scales_all [[buffer(3)]],
    device int* state_all [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& first [[buffer(9)]],
    constant uint& last [[buffer(10)]],
    constant uint& with_vectors [[buffer(11)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(T, v, 512);
  THREADGROUP_ARRAY(Real, partial, 32);
  const Crew crew = {tid, lane, simd, simds};
  const bool active = tid < n;
  const bool vectors = with_vectors != 0;
  device T* H = H_all + ulong(matrix) * n * n;
  device T* Z = Z_all + (vectors ? ulong(matrix) * n * n : 0u);
  device int* scales = scales_all + ulong(matrix) * n;
  device int* state = state_all + ulong(matrix) * STATE;
  if (first == 0) {
    device const T* from = A + long(matrix) * batch_stride;
    Real largest = Real(0);
    for (uint j = 0; j < n && active; ++j) {
      const T entry = from[long(tid) * long(row_stride) + long(j) * long(column_stride)];
      largest = is_finite(entry) ? max(largest, largest_part(entry)) : Real(INFINITY);
      H[j * n + tid] = entry;
      if (vectors) Z[j * n + tid] = j == tid ? one<T>() : zero<T>();
    }
    largest = largest_of_all<true>(largest, crew, partial);
    const bool bad = largest == Real(INFINITY);
    const int exponent = exponent_of(largest);
    for (uint j = 0; j < n && active; ++j) {
      H[j * n + tid] = bad ? zero<T>() : scale(H[j * n + tid], -exponent);
    }
    if (tid == 0) {
      state[0] = int(n);
      state[1] = 0;
      state[2] = 0;
      state[3] = exponent;
      state[4] = bad ? 1 : 0;
    }
    meet<true>();
    balance<true, T>(H, n, n, scales, crew, partial);
  }
  reduce_columns<true, T>(H, Z, n, n, first, last, vectors, crew, v, partial);
}

// The second: so many sweeps towards Schur form in a launch, and none where all has converged.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void eig_iterate(
    device T* H_all [[buffer(0)]],
    device T* Z_all [[buffer(1)]],
    device int* state_all [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& sweeps [[buffer(4)]],
    constant uint& with_vectors [[buffer(5)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(Real, partial, 32);
  const Crew crew = {tid, lane, simd, simds};
  const bool vectors = with_vectors != 0;
  device T* H = H_all + ulong(matrix) * n * n;
  device T* Z = Z_all + (vectors ? ulong(matrix) * n * n : 0u);
  device int* state = state_all + ulong(matrix) * STATE;
  Iteration iteration = {uint(state[0]), uint(state[1]), uint(state[2])};
  meet<true>();
  iterate<true, T>(H, Z, n, n, vectors, sweeps, iteration, crew, partial);
  if (tid == 0) {
    state[0] = int(iteration.active);
    state[1] = int(iteration.stalled);
    state[2] = int(iteration.sweeps);
  }
}

// The third, a thread for each eigenvalue. info as eig_simd; x: as many entries as V.
template <typename T, typename C>
kernel void eig_finish(
    device T* H_all [[buffer(0)]],
    device T* Z_all [[buffer(1)]],
    device int* scales_all [[buffer(2)]],
    device int* state_all [[buffer(3)]],
    device C* x_all [[buffer(4)]],
    device C* values [[buffer(5)]],
    device C* V [[buffer(6)]],
    device int* info [[buffer(7)]],
    constant uint& n [[buffer(8)]],
    constant uint& with_vectors [[buffer(9)]],
    uint2 position [[thread_position_in_grid]]) {
  const ulong matrix = position.y;
  const uint k = position.x;
  if (k < n) {
    const bool vectors = with_vectors != 0;
    const ulong begin = matrix * n * n;
    device int* state = state_all + matrix * STATE;
    const bool bad = state[4] != 0;
    const bool failed = bad || state[0] != 0;
    if (k == 0) info[matrix] = bad ? int(n) + 1 : state[0];
    finish<T, C>(
        H_all + begin, Z_all + (vectors ? begin : 0u), n, n, k, x_all + (vectors ? begin : 0u) + k,
        n, scales_all + matrix * n, state[3], failed, vectors, values + matrix * n,
        V + (vectors ? begin : 0u));
  }
}
