// What one-sided Jacobi of any size shares: columns that carry an exponent of their own.

// Sweeps over all pairs of columns until a matrix counts as one that does not converge.
constexpr constant uint SWEEPS = 30;

// How far below the largest entry a column may shrink: beyond, its singular value is no number.
template <typename R> inline int least_exponent() { return sizeof(R) == 4 ? -126 : -1022; }

template <typename T> inline bool is_finite(T a) {
  const T nothing = a - a;
  return is_zero(nothing);
}

template <typename T> inline real_t<T> square_of(T a) { return real_part(mul(conj(a), a)); }

template <typename T> inline T times(T a, real_t<T> b) {
  if constexpr (scalar_traits<T>::complex) {
    return T(a.x * b, a.y * b);
  } else {
    return a * b;
  }
}

// Over each run of `width` lanes, in all of them.
template <int width, typename N> inline N team_max(N x) {
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2) {
    x = max(x, simd_shuffle_xor(x, ushort(distance)));
  }
  return x;
}
template <int width, typename N> inline N team_sum(N x) {
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2) {
    x = x + simd_shuffle_xor(x, ushort(distance));
  }
  return x;
}

// Whether a norm a 2^i is at least b 2^j.
template <typename R> inline bool leads(R a, int i, R b, int j) {
  const int exponent = max(i, j);
  return ldexp(a, i - exponent) >= ldexp(b, j - exponent);
}
