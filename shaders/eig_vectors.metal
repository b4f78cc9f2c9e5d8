#include "scalar.h"
#include "householder.h"
#include "hessenberg.h"
#include "eigenvectors.h"

// Eigenvalues of a Schur form, a thread each, and info as eig_simd's. found: -4 where A is not
// finite.
template <typename T, typename C>
kernel void eig_values(
    device const T* H_all [[buffer(0)]],
    device const int* state [[buffer(1)]],
    device const int* exponents [[buffer(2)]],
    device const int* found [[buffer(3)]],
    device C* values [[buffer(4)]],
    device int* info [[buffer(5)]],
    constant uint& n [[buffer(6)]],
    constant uint& numbers [[buffer(7)]],
    uint2 position [[thread_position_in_grid]]) {
  typedef real_t<C> R;
  const ulong matrix = position.y;
  const uint k = position.x;
  const int left = found[matrix] != 0 ? int(n) + 1 : state[matrix * numbers];
  const C value = eigenvalue<T, C>(H_all + matrix * n * n, n, k, n);
  values[matrix * n + k] = left != 0 ? C(R(NAN), R(NAN)) : scale(value, exponents[matrix]);
  if (k == 0) info[matrix] = left;
}

// The other row of the block that row k is in, or k itself.
template <typename T, typename P> inline uint partner(P H, uint n, uint k) {
  if (is_pair<T>(H, n, k, n)) return k + 1;
  return k > 0 && is_pair<T>(H, n, k - 1, n) ? k - 1 : k;
}

// Of the unitary matrix that makes the block of row k triangular: the diagonal entry, and the other
// without i.
template <typename T, typename P> inline Pair<T> turn_of_pair(P H, uint n, uint k, uint other) {
  const Pair<T> none = {T(0), T(1), T(0)};
  return other == k ? none : pair_at<T>(H, n, min(k, other));
}

// The complex Schur form of a real one, an entry a thread: S = G^H H G and Y = Z G with G =
// [cosine, i sine; i sine, cosine] in each block of a pair.
template <typename T, typename C>
kernel void eig_to_complex(
    device const T* H_all [[buffer(0)]],
    device const T* Z_all [[buffer(1)]],
    device C* S [[buffer(2)]],
    device C* Y [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    uint3 position [[thread_position_in_grid]]) {
  const uint i = position.x;
  const uint j = position.y;
  const ulong begin = ulong(position.z) * n * n;
  device const T* H = H_all + begin;
  device const T* Z = Z_all + begin;
  const uint row = partner<T>(H, n, i);
  const uint column = partner<T>(H, n, j);
  const Pair<T> left = turn_of_pair<T>(H, n, i, row);
  const Pair<T> right = turn_of_pair<T>(H, n, j, column);
  const ulong place = begin + ulong(j) * n + i;
  Y[place] = C(right.cosine * Z[j * n + i], right.sine * Z[column * n + i]);
  C entry = zero<C>();
  if (i == j) {
    entry = eigenvalue<T, C>(H, n, i, n);
  } else if (i < j) {
    const C own = C(right.cosine * H[j * n + i], right.sine * H[column * n + i]);
    const C other = C(right.cosine * H[j * n + row], right.sine * H[column * n + row]);
    entry =
        C(fma(left.cosine, own.x, left.sine * other.y),
          fma(left.cosine, own.y, -left.sine * other.x));
  }
  S[place] = entry;
}

// Entries first ... last - 1 of the eigenvectors X of the triangular S, a thread each: row k of X
// has those of all vectors. From the rows below X holds sums already. Entries above 2^30 are scaled
// down as they come.
template <typename C>
kernel void eig_substitute(
    device const C* S_all [[buffer(0)]],
    device C* X_all [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant uint& first [[buffer(3)]],
    constant uint& last [[buffer(4)]],
    uint2 position [[thread_position_in_grid]]) {
  typedef real_t<C> R;
  const ulong begin = ulong(position.y) * n * n;
  const uint k = first + position.x;
  device const C* S = S_all + begin;
  device C* x = X_all + begin + k;
  const C value = S[k * (n + 1)];
  const R least = max(spacing<R>() * cabs1(value), R(0x1p-60f));
  const uint end = min(last, k + 1);
  if (k < last) x[k * n] = one<C>();
  for (uint above = min(last, k); above > first; --above) {
    const uint i = above - 1;
    C sum = k < last ? zero<C>() : x[i * n];
    for (uint j = i + 1; j < end; ++j) sum = sum + mul(S[j * n + i], x[j * n]);
    sum = bounded_quotient(sum, value - S[i * (n + 1)], least);
    x[i * n] = sum;
    const R size = largest_part(sum);
    if (size > R(0x1p30f)) {
      const int e = exponent_of(size);
      for (uint j = 0; j <= k; ++j) x[j * n] = scale(x[j * n], -e);
    }
  }
}

// The vectors in the columns of V, scaled back and to norm 1: a thread each, of a conjugate pair
// the first has both. NaN where info is not zero.
template <typename T, typename C>
kernel void eig_normalize(
    device const T* H_all [[buffer(0)]],
    device const int* scales [[buffer(1)]],
    device const int* info [[buffer(2)]],
    device C* V [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    uint2 position [[thread_position_in_grid]]) {
  typedef real_t<C> R;
  const ulong matrix = position.y;
  const uint k = position.x;
  device const T* H = H_all + matrix * n * n;
  device C* v = V + (matrix * n + k) * n;
  if (info[matrix] != 0) {
    for (uint i = 0; i < n; ++i) v[i] = C(R(NAN), R(NAN));
  } else if (k == 0 || !is_pair<T>(H, n, k - 1, n)) {
    const bool first = is_pair<T>(H, n, k, n);
    finish_vector<C>(v, n, scales + matrix * n, !first && !bool(scalar_traits<T>::complex));
    for (uint i = 0; first && i < n; ++i) v[n + i] = conj(v[i]);
  }
}
