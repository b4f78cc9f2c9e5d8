// Eigenvalues and eigenvectors from the Schur form H = Z^H A Z: thread k has number k, of a
// conjugate pair the first has both vectors. C is the complex type of T.

// a x for real or complex a.
template <typename T, typename C> inline C times(T a, C x) {
  if constexpr (scalar_traits<T>::complex) {
    return mul(a, x);
  } else {
    return C(a * x.x, a * x.y);
  }
}

template <typename C, typename T> inline C to_complex(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return a;
  } else {
    return C(a, T(0));
  }
}

// Whether rows k and k + 1 are the block of a conjugate pair.
template <typename T, typename P> inline bool is_pair(P H, uint stride, uint k, uint n) {
  return !scalar_traits<T>::complex && k + 1 < n && !is_zero(H[k * stride + k + 1]);
}

// Of a block [a b; c a] with b c < 0: the eigenvalues are a +- i w, and the unitary [cosine, i
// sine; i sine, cosine] makes it upper triangular, with b + c above the diagonal.
template <typename R> struct Pair {
  R w;
  R cosine;
  R sine;
};

template <typename T, typename P> inline Pair<real_t<T>> pair_at(P H, uint stride, uint k) {
  typedef real_t<T> R;
  const R b = real_part(H[(k + 1) * stride + k]);
  const R c = real_part(H[k * stride + k + 1]);
  const R root_b = sqrt(fabs(b));
  const R root_c = sqrt(fabs(c));
  const R size = sqrt(fabs(b) + fabs(c));
  const Pair<R> pair = {root_b * root_c, root_b / size, (b < R(0) ? -root_c : root_c) / size};
  return pair;
}

template <typename T, typename C, typename P>
inline C eigenvalue(P H, uint stride, uint k, uint n) {
  typedef real_t<T> R;
  const C diagonal = to_complex<C>(H[k * stride + k]);
  if (is_pair<T>(H, stride, k, n)) return C(diagonal.x, pair_at<T>(H, stride, k).w);
  if (k > 0 && is_pair<T>(H, stride, k - 1, n)) {
    return C(diagonal.x, -pair_at<T>(H, stride, k - 1).w);
  }
  return diagonal;
}

// s / d, where a d that is less than `least` is replaced by it.
template <typename C> inline C bounded_quotient(C s, C d, real_t<C> least) {
  return quotient(s, cabs1(d) < least ? from_real<C>(least) : d);
}

template <typename C> inline C times_i(C a, real_t<C> r) { return C(-(r * a.y), r * a.x); }

// Sum over j > i of H_ij x_j.
template <typename T, typename C, typename P, typename Q>
inline C row_product(P H, uint stride, uint i, uint from, uint last, Q x, uint step) {
  C sum = zero<C>();
  for (uint j = from; j <= last; ++j) sum = sum + times(H[j * stride + i], x[j * step]);
  return sum;
}

// x = the eigenvector of H that belongs to its k-th eigenvalue, the first of a pair: entries 0 ...
// last, `step` apart. Returns last. Entries above 2^30 are scaled down as they come.
template <typename T, typename C, typename P, typename Q>
inline uint back_substitute(P H, uint stride, uint n, uint k, C value, Q x, uint step) {
  typedef real_t<C> R;
  const R least = max(spacing<R>() * cabs1(value), R(0x1p-60f));
  const bool pair = is_pair<T>(H, stride, k, n);
  const uint last = pair ? k + 1 : k;
  x[k * step] = one<C>();
  if (pair) {
    const Pair<R> own = pair_at<T>(H, stride, k);
    x[k * step] = from_real<C>(own.cosine);
    x[last * step] = C(R(0), own.sine);
  }
  uint done = k;
  while (done > 0) {
    const uint i = done - 1;
    const bool block = i > 0 && is_pair<T>(H, stride, i - 1, n);
    C s = row_product<T, C>(H, stride, i, done, last, x, step);
    R size = R(0);
    if (block) {
      const uint above = i - 1;
      const Pair<R> of = pair_at<T>(H, stride, above);
      const C r = row_product<T, C>(H, stride, above, done, last, x, step);
      const C middle = value - to_complex<C>(H[i * stride + i]);
      const C z2 = bounded_quotient(
          times(of.cosine, s) - times_i(r, of.sine), middle + C(R(0), of.w), least);
      const R beside = real_part(H[i * stride + above]) + real_part(H[above * stride + i]);
      const C z1 = bounded_quotient(
          times(of.cosine, r) - times_i(s, of.sine) + times(beside, z2), middle - C(R(0), of.w),
          least);
      x[above * step] = times(of.cosine, z1) + times_i(z2, of.sine);
      x[i * step] = times(of.cosine, z2) + times_i(z1, of.sine);
      size = max(largest_part(z1), largest_part(z2));
      done = above;
    } else {
      s = bounded_quotient(s, value - to_complex<C>(H[i * stride + i]), least);
      x[i * step] = s;
      size = largest_part(s);
      done = i;
    }
    if (size > R(0x1p30f)) {
      const int e = exponent_of(size);
      for (uint j = done; j <= last; ++j) x[j * step] = scale(x[j * step], -e);
    }
  }
  return last;
}

// v := D v of norm 1 with a largest entry that is real and positive. `real`: so are all entries, up
// to rounding. Near a conjugate pair that may be as large as the vector, and is one as good: the
// phase takes from both.
template <typename C, typename S>
inline void finish_vector(device C* v, uint n, S scales, bool real) {
  typedef real_t<C> R;
  int top = -0x10000;
  for (uint i = 0; i < n; ++i) {
    const R size = largest_part(v[i]);
    if (size > R(0)) top = max(top, exponent_of(size) + scales[i]);
  }
  R best = R(0);
  uint at = 0;
  for (uint i = 0; i < n; ++i) {
    const C entry = scale(v[i], scales[i] - top);
    v[i] = entry;
    const R square = square_of(entry);
    if (square > best) {
      best = square;
      at = i;
    }
  }
  const C phase = conj(direction(v[at]));
  R squares = R(0);
  R lost = R(0);
  for (uint i = 0; i < n; ++i) {
    C entry = mul(phase, v[i]);
    if (real || i == at) entry = from_real<C>(entry.x);
    v[i] = entry;
    // Kahan's sum: of many rows a plain one would be the largest error of the norm.
    const R term = square_of(entry) - lost;
    const R sum = squares + term;
    lost = (sum - squares) - term;
    squares = sum;
  }
  const R norm = sqrt(squares);
  for (uint i = 0; i < n; ++i) v[i] = C(v[i].x / norm, v[i].y / norm);
}

// v = D Z x, normalized.
template <typename T, typename C, typename P, typename Q, typename S>
inline void transform(
    P Z, uint stride, uint n, Q x, uint step, uint last, S scales, device C* v, bool real) {
  for (uint i = 0; i < n; ++i) v[i] = row_product<T, C>(Z, stride, i, 0, last, x, step);
  finish_vector<C>(v, n, scales, real);
}
