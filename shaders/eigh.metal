#include "scalar.h"
#include "householder.h"

// Sweeps after which a matrix counts as one that does not converge; usual are five to eight.
constexpr constant int MAX_SWEEPS = 30;

// An entry that is less counts as zero, where the largest of the matrix is near 1.
template <typename R> inline R negligible_entry() {
  return R(0x1p-100f) * (sizeof(R) == 4 ? R(1) : R(0x1p-120f));
}

// The rotation of the columns p < q that makes entry (p, q) zero, as one of the two lanes sees it:
// its column x becomes x - f (y - g x) with the other column y, its diagonal entry grows by shift.
template <typename T> struct Rotation {
  T f;
  T g;
  real_t<T> shift;
  bool turns;
};

// Of entry a = (p, q) and the lane's own and the other's entry on the diagonal; `first`: it has p.
// Rutishauser (1966): the smaller angle, and differences to x instead of sums c x - s y. An entry
// is left alone where it does not change the digits of either entry on the diagonal.
template <typename T> inline Rotation<T> rotation(T a, real_t<T> own, real_t<T> other, bool first) {
  typedef real_t<T> R;
  int exponent = 0;
  const T near_one = normalized(a, exponent);
  const R size = ldexp(modulus(near_one), exponent);
  Rotation<T> h = {zero<T>(), zero<T>(), R(0), false};
  h.turns = size > negligible_entry<R>() &&
            size > unit_roundoff<R>() * sqrt(fabs(own)) * sqrt(fabs(other));
  if (h.turns) {
    const R cotangent = (first ? other - own : own - other) / (R(2) * size);
    const R steep = fabs(cotangent);
    // Where its square might overflow the root is steep itself.
    const R root = steep < R(0x1p30f) ? sqrt(fma(steep, steep, R(1))) : steep;
    const R tangent = (cotangent < R(0) ? R(-1) : R(1)) / (steep + root);
    const R cosine = R(1) / sqrt(fma(tangent, tangent, R(1)));
    const R sine = tangent * cosine;
    const T w = direction(near_one);
    const T phase = first ? w : zero<T>() - conj(w);
    h.f = mul(from_real<T>(sine), conj(phase));
    h.g = mul(from_real<T>(-sine / (R(1) + cosine)), phase);
    h.shift = first ? -tangent * size : tangent * size;
  }
  return h;
}

// Many rotations leave columns that are orthonormal to some ten roundings; one pass of modified
// Gram-Schmidt leaves one or two. A lane owns the column of n entries at v + column * stride.
template <typename T>
inline void orthonormalize(threadgroup T* v, uint stride, uint n, uint column) {
  typedef real_t<T> R;
  threadgroup T* own = v + column * stride;
  for (uint k = 0; k < n; ++k) {
    threadgroup const T* other = v + k * stride;
    if (column > k && column < n) {
      T minus = zero<T>();
      for (uint i = 0; i < n; ++i) minus = mul_sub(minus, conj(other[i]), own[i]);
      const T product = zero<T>() - minus;
      for (uint i = 0; i < n; ++i) own[i] = mul_sub(own[i], other[i], product);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (column < n) {
    R excess = R(-1);
    for (uint i = 0; i < n; ++i) excess += real_part(mul(conj(own[i]), own[i]));
    const T half_of_it = from_real<T>(excess / R(2));
    for (uint i = 0; i < n; ++i) own[i] = mul_sub(own[i], own[i], half_of_it);
  }
}

template <typename T> inline T turned(T x, T y, T f, T g) {
  return mul_sub(x, f, mul_sub(y, g, x));
}

// Eigenvalues, ascending, and eigenvectors of hermitian matrices with at most W rows, 32 / W of
// them a simdgroup, by cyclic Jacobi. In round r of a sweep columns j and j ^ r are a pair. A lane
// owns a column of the matrix, then its row, in threadgroup memory; its entry on the diagonal and
// its eigenvector are in registers. info: n - 1 where entries are not finite, or still turn.
template <typename T, int W>
kernel void eigh_simd(
    device const T* A [[buffer(0)]],
    device real_t<T>* values [[buffer(1)]],
    device T* vectors [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& batch [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& lower [[buffer(9)]],
    constant uint& with_vectors [[buffer(10)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef real_t<T> Real;
  constexpr uint TEAMS = 32 / W;
  constexpr uint STRIDE = W + 1;
  THREADGROUP_ARRAY(T, tiles, (W * (W + 1) * TEAMS));
  const uint column = lane % uint(W);
  const uint first_lane = lane - column;
  const uint matrix = group * TEAMS + lane / uint(W);
  const bool active = matrix < batch && column < n;
  threadgroup T* tile = tiles + lane / uint(W) * (W * STRIDE);

  device const T* from = A + long(active ? matrix : 0u) * batch_stride;
  Real largest = Real(0);
  for (uint i = 0; i < uint(W); ++i) {
    const bool stored = lower != 0 ? i >= column : i <= column;
    T entry = zero<T>();
    if (active && i < n) {
      const uint row = stored ? i : column;
      const uint of = stored ? column : i;
      entry = from[long(row) * long(row_stride) + long(of) * long(column_stride)];
    }
    if (i == column) entry = from_real<T>(real_part(entry));
    const Real size = largest_part(entry);
    largest = size < Real(INFINITY) ? max(largest, size) : Real(INFINITY);
    tile[column * STRIDE + i] = stored ? entry : conj(entry);
  }
#pragma unroll
  for (int distance = W / 2; distance > 0; distance /= 2) {
    largest = max(largest, simd_shuffle_xor(largest, ushort(distance)));
  }
  // LAPACK returns a single number as it is.
  const bool bad = n > 1 && largest == Real(INFINITY);
  const int exponent = exponent_of(largest);
  Real diagonal = Real(0);
  for (uint i = 0; i < n; ++i) {
    const T entry = bad ? zero<T>() : scale(tile[column * STRIDE + i], -exponent);
    if (i == column) diagonal = real_part(entry);
    tile[column * STRIDE + i] = entry;
  }
  T v[W];
#pragma unroll
  for (int i = 0; i < W; ++i) v[i] = uint(i) == column ? one<T>() : zero<T>();

  bool turning = true;
#pragma unroll(1)
  for (int sweep = 0; sweep < MAX_SWEEPS && simd_any(turning); ++sweep) {
    turning = false;
#pragma unroll(1)
    for (uint r = 1; r < uint(W); ++r) {
      const ushort mask = ushort(r);
      const uint partner = column ^ r;
      const bool first = column < partner;
      // Of the two copies of an entry that of the later column counts.
      const T own = tile[column * STRIDE + partner];
      const T theirs = simd_shuffle_xor(own, mask);
      const Rotation<T> h =
          rotation<T>(first ? theirs : own, diagonal, simd_shuffle_xor(diagonal, mask), first);
      if (simd_any(h.turns)) {
        turning = turning || h.turns;
        diagonal += h.shift;
        // What the tile has on its diagonal meets only the entry of the pair, which becomes zero.
#pragma unroll(4)
        for (uint i = 0; i < n; ++i) {
          const T x = tile[column * STRIDE + i];
          tile[column * STRIDE + i] = turned(x, simd_shuffle_xor(x, mask), h.f, h.g);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(4)
        for (uint i = 0; i < n; ++i) {
          const T x = tile[i * STRIDE + column];
          const T y = simd_shuffle_xor(x, mask);
          tile[i * STRIDE + column] = turned(x, y, conj(h.f), conj(h.g));
        }
        if (h.turns) tile[partner * STRIDE + column] = zero<T>();
        if (with_vectors != 0) {
#pragma unroll
          for (int i = 0; i < W; ++i) {
            v[i] = turned(v[i], simd_shuffle_xor(v[i], mask), h.f, h.g);
          }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
  }

  uint rank = 0;
  for (uint i = 0; i < n; ++i) {
    const Real other = simd_shuffle(diagonal, ushort(first_lane + i));
    if (other < diagonal || (other == diagonal && i < column)) rank += 1;
  }
  int failed = bad || turning ? 1 : 0;
#pragma unroll
  for (int distance = W / 2; distance > 0; distance /= 2) {
    failed = max(failed, simd_shuffle_xor(failed, ushort(distance)));
  }
  if (active) {
    values[ulong(matrix) * n + rank] = bad ? Real(NAN) : ldexp(diagonal, exponent);
    if (column == 0) info[matrix] = failed != 0 ? int(n) - 1 : 0;
  }
  if (with_vectors != 0) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < W; ++i) tile[column * STRIDE + uint(i)] = v[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    orthonormalize<T>(tile, STRIDE, n, column);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    device T* to = vectors + ulong(active ? matrix : 0u) * n * n + column;
    for (uint j = 0; j < n; ++j) {
      const uint place = simd_shuffle(rank, ushort(first_lane + j));
      const T entry = bad ? from_real<T>(Real(NAN)) : tile[j * STRIDE + column];
      if (active) to[place * n] = entry;
    }
  }
}
