// The shifted QR iteration that takes a Hessenberg matrix to Schur form: triangular if complex,
// with 2 x 2 blocks of equal diagonal entries for conjugate pairs if real. Threads as in
// hessenberg.h.

// The sweeps that a matrix may take are this many times its rows, LAPACK's bound.
constexpr constant uint SWEEPS_A_ROW = 30;
// Sweeps without a deflation after which an exceptional shift breaks a cycle.
constexpr constant uint STALLED = 10;

// What one launch leaves to the next: the rows that have not converged, the sweeps since the last
// deflation, and all.
struct Iteration {
  uint active;
  uint stalled;
  uint sweeps;
};

// Whether the subdiagonal entry of row k > 0 counts as zero (Ahues, Tisseur 1997).
template <typename T, typename P> inline bool splits(P H, uint stride, uint k, uint n) {
  typedef real_t<T> R;
  P at = H + k * stride + k;
  const R left = cabs1(at[-long(stride)]);
  const R above = cabs1(at[-1]);
  const T difference = at[-1 - long(stride)] - at[0];
  R size = cabs1(at[-1 - long(stride)]) + cabs1(at[0]);
  if (size == R(0)) {
    if (k > 1) size += cabs1(at[-1 - 2 * long(stride)]);
    if (k + 1 < n) size += cabs1(at[1]);
  }
  const R own = max(cabs1(at[0]), cabs1(difference));
  const R other = min(cabs1(at[0]), cabs1(difference));
  const R sum = own + max(left, above);
  const bool balanced = min(left, above) * (max(left, above) / sum) <=
                        max(vanishing<R>(), spacing<R>() * (other * (own / sum)));
  return left <= vanishing<R>() || (left <= spacing<R>() * size && balanced);
}

// The shifts of a sweep: one complex number, or the real or conjugate pair re +- i im.
template <typename T> struct Shift {
  T re;
  real_t<T> im;
};

template <typename T> inline T square_root(T a) {
  typedef real_t<T> R;
  if constexpr (scalar_traits<T>::complex) {
    const R size = modulus(a);
    if (size == R(0)) return zero<T>();
    const R large = sqrt((size + fabs(a.x)) / R(2));
    const R small = fabs(a.y) / (R(2) * large);
    const R re = a.x >= R(0) ? large : small;
    const R im = a.x >= R(0) ? small : large;
    return T(re, a.y < R(0) ? -im : im);
  } else {
    return sqrt(a);
  }
}

// Of [a b; c d]: complex the eigenvalue nearer d; real both if they are a conjugate pair, else
// twice the one nearer d (Wilkinson's).
template <typename T> inline Shift<T> shift_of(T a, T b, T c, T d) {
  typedef real_t<T> R;
  const T half_difference = scale(a - d, -1);
  const R largest = max(max(largest_part(half_difference), largest_part(b)), largest_part(c));
  const int e = exponent_of(largest);
  const T p = scale(half_difference, -e);
  const T product = mul(scale(b, -e), scale(c, -e));
  const T square = mul_add(product, p, p);
  Shift<T> shift = {d, R(0)};
  if constexpr (scalar_traits<T>::complex) {
    T root = square_root(square);
    if (real_part(mul(conj(p), root)) < R(0)) root = zero<T>() - root;
    const T sum = p + root;
    if (!is_zero(sum)) shift.re = d - scale(quotient(product, sum), e);
  } else if (square < R(0)) {
    shift.re = d + ldexp(p, e);
    shift.im = ldexp(sqrt(-square), e);
  } else {
    const R sum = p + (p < R(0) ? -sqrt(square) : sqrt(square));
    if (sum != R(0)) shift.re = d - ldexp(product / sum, e);
  }
  return shift;
}

// The shift for the rows top ... bottom, an exceptional one now and then.
template <typename T, typename P>
inline Shift<T> next_shift(P H, uint stride, uint top, uint bottom, uint stalled) {
  typedef real_t<T> R;
  P last = H + bottom * stride + bottom;
  if (stalled == 0 || stalled % STALLED != 0) {
    return shift_of(last[-1 - long(stride)], last[-1], last[-long(stride)], last[0]);
  }
  const bool at_bottom = stalled % (2 * STALLED) == 0;
  P first = H + top * stride + top;
  R size = at_bottom ? cabs1(last[-long(stride)]) : cabs1(first[1]);
  if (bottom - top > 1) {
    size += at_bottom ? cabs1(last[-1 - 2 * long(stride)]) : cabs1(first[2 + stride]);
  }
  const T a = (at_bottom ? last[0] : first[0]) + from_real<T>(R(0.75f) * size);
  if constexpr (scalar_traits<T>::complex) {
    const Shift<T> shift = {a, R(0)};
    return shift;
  } else {
    return shift_of(a, R(-0.4375f) * size, size, a);
  }
}

// The rows that a step of a sweep mixes: one more than the shifts.
template <typename T> inline constexpr uint bulge_rows() {
  return scalar_traits<T>::complex ? 2 : 3;
}

template <typename T> struct Bulge {
  T x[3];
};

// The first column of the shifted matrix that begins in row k, up to a factor.
template <typename T, typename P>
inline Bulge<T> first_bulge(P H, uint stride, uint k, Shift<T> shift) {
  typedef real_t<T> R;
  P at = H + k * stride + k;
  const T p = at[0] - shift.re;
  Bulge<T> bulge = {{zero<T>(), zero<T>(), zero<T>()}};
  if constexpr (scalar_traits<T>::complex) {
    const R size = cabs1(p) + cabs1(at[1]);
    if (size > R(0)) {
      const int e = exponent_of(size);
      bulge.x[0] = scale(p, -e);
      bulge.x[1] = scale(at[1], -e);
    }
  } else {
    const R size = fabs(p) + fabs(shift.im) + fabs(at[1]);
    if (size > R(0)) {
      const R below = at[1] / size;
      bulge.x[0] = below * at[stride] + p * (p / size) + shift.im * (shift.im / size);
      bulge.x[1] = below * (p + (at[1 + stride] - shift.re));
      bulge.x[2] = below * at[2 + stride];
    }
  }
  return bulge;
}

// Whether a sweep may begin in row k, above which a small entry then remains where there was one.
template <typename T, typename P> inline bool may_begin(P H, uint stride, uint k, Shift<T> shift) {
  typedef real_t<T> R;
  P at = H + k * stride + k;
  const Bulge<T> bulge = first_bulge<T>(H, stride, k, shift);
  const R around = cabs1(at[-1 - long(stride)]) + cabs1(at[0]) + cabs1(at[1 + stride]);
  return cabs1(at[-long(stride)]) * (cabs1(bulge.x[1]) + cabs1(bulge.x[2])) <=
         spacing<R>() * cabs1(bulge.x[0]) * around;
}

// I - tau v v^H with v = (1, v1, v2): its adjoint takes (x0, x1, x2) to (beta, 0, 0). However small
// x1 and x2 are they count: by them subdiagonal entries go on to shrink.
template <typename T> struct Turn {
  T tau;
  T v1;
  T v2;
  real_t<T> beta;
};

template <typename T> inline Turn<T> turn_of(Bulge<T> bulge) {
  typedef real_t<T> R;
  const R largest =
      max(largest_part(bulge.x[0]), max(largest_part(bulge.x[1]), largest_part(bulge.x[2])));
  const int e = exponent_of(largest);
  const T alpha = scale(bulge.x[0], -e);
  const T x1 = scale(bulge.x[1], -e);
  const T x2 = scale(bulge.x[2], -e);
  const R size = sqrt(square_of(alpha) + (square_of(x1) + square_of(x2)));
  const R beta = real_part(alpha) < R(0) ? size : -size;
  const T difference = alpha - from_real<T>(beta);
  Turn<T> turn = {zero<T>(), zero<T>(), zero<T>(), real_part(bulge.x[0])};
  if (!is_zero(x1) || !is_zero(x2) || !is_zero(alpha - from_real<T>(real_part(alpha)))) {
    turn.tau = from_real<T>(R(1)) - quotient(alpha, from_real<T>(beta));
    turn.v1 = quotient(x1, difference);
    turn.v2 = quotient(x2, difference);
    turn.beta = ldexp(beta, e);
  }
  return turn;
}

// (a0, a1, a2) times the reflection; the entries lie `step` apart. From the left: its adjoint.
template <typename T, typename P>
inline void turn_three(P a, uint step, bool three, T tau, T v1, T v2) {
  const T third = three ? a[2 * step] : zero<T>();
  const T sum = mul(tau, mul_add(mul_add(a[0], a[step], v1), third, v2));
  a[0] = a[0] - sum;
  a[step] = mul_sub(a[step], sum, conj(v1));
  if (three) a[2 * step] = mul_sub(third, sum, conj(v2));
}

// (a0, a1) turned by a real rotation; the entries lie `step` apart.
template <typename T, typename P> inline void turn_two(P a, uint step, T cosine, T sine) {
  const T x = a[0];
  const T y = a[step];
  a[0] = fma(cosine, x, sine * y);
  a[step] = fma(cosine, y, -(sine * x));
}

// What a rotation [c s; -s c] makes of a real block [a b; c d], and the rotation: a = d and b c <
// 0, or c = 0.
template <typename R> struct Standard {
  R a;
  R b;
  R c;
  R d;
  R cosine;
  R sine;
};

template <typename R> inline Standard<R> rotated(Standard<R> s, R cosine, R sine) {
  const R a = fma(s.a, cosine, s.b * sine);
  const R b = fma(s.b, cosine, -(s.a * sine));
  const R c = fma(s.c, cosine, s.d * sine);
  const R d = fma(s.d, cosine, -(s.c * sine));
  Standard<R> turned;
  turned.a = fma(a, cosine, c * sine);
  turned.b = fma(b, cosine, d * sine);
  turned.c = fma(c, cosine, -(a * sine));
  turned.d = fma(d, cosine, -(b * sine));
  turned.cosine = fma(s.cosine, cosine, -(s.sine * sine));
  turned.sine = fma(s.sine, cosine, s.cosine * sine);
  return turned;
}

// The block is scaled to a largest entry near 1.
template <typename R> inline Standard<R> standardized(R a, R b, R c, R d) {
  Standard<R> s = {a, b, c, d, R(1), R(0)};
  const R p = (a - d) / R(2);
  const R square = fma(p, p, b * c);
  if (square > R(4) * spacing<R>() * max(p * p, fabs(b * c))) {
    // Two real eigenvalues that are apart: the vector of the one farther from d, (z, c).
    const R z = p + (p < R(0) ? -sqrt(square) : sqrt(square));
    const R length = sqrt(fma(z, z, c * c));
    s.cosine = z / length;
    s.sine = c / length;
    s.a = d + z;
    s.d = d - b / z * c;
    s.b = b - c;
    s.c = R(0);
    return s;
  }
  // Equal entries on the diagonal, by the smaller angle; then either the pair is conjugate, or the
  // eigenvalues are equal up to rounding.
  const R sigma = b + c;
  const R length = sqrt(fma(sigma, sigma, (a - d) * (a - d)));
  if (length > R(0)) {
    const R cosine = sqrt((R(1) + fabs(sigma) / length) / R(2));
    const R sine = (sigma < R(0) ? p : -p) / (length * cosine);
    s = rotated(s, cosine, sine);
  }
  s.a = (s.a + s.d) / R(2);
  s.d = s.a;
  if (s.c != R(0) && s.b * s.c >= R(0)) {
    const R root_b = sqrt(fabs(s.b));
    const R root_c = sqrt(fabs(s.c));
    const R size = sqrt(fabs(s.b) + fabs(s.c));
    const R shift = s.c < R(0) ? -root_b * root_c : root_b * root_c;
    const R mean = s.a;
    const R difference = s.b - s.c;
    s = rotated(s, root_b / size, root_c / size);
    s.a = mean + shift;
    s.d = mean - shift;
    s.b = difference;
    s.c = R(0);
  }
  return s;
}

// Splits the real block of rows k and k + 1 off: into two eigenvalues, or a conjugate pair.
template <bool GROUP, typename T, typename P>
inline void split_pair(
    P H, P Z, uint stride, uint n, uint k, bool vectors, thread const Crew& crew) {
  if constexpr (!scalar_traits<T>::complex) {
    const uint own = crew.tid;
    P at = H + k * stride + k;
    const T largest =
        max(max(fabs(at[0]), fabs(at[1])), max(fabs(at[stride]), fabs(at[stride + 1])));
    const int e = exponent_of(largest);
    const Standard<T> s = standardized(
        ldexp(at[0], -e), ldexp(at[stride], -e), ldexp(at[1], -e), ldexp(at[stride + 1], -e));
    meet<GROUP>();
    if (own == 0) {
      at[0] = ldexp(s.a, e);
      at[1] = ldexp(s.c, e);
      at[stride] = ldexp(s.b, e);
      at[stride + 1] = ldexp(s.d, e);
    }
    if (vectors) {
      if (own < n && own > k + 1) turn_two(H + own * stride + k, 1, s.cosine, s.sine);
      if (own < k) turn_two(H + own + k * stride, stride, s.cosine, s.sine);
      if (own < n) turn_two(Z + own + k * stride, stride, s.cosine, s.sine);
    }
  }
}

// One sweep over the rows top ... bottom: a bulge of entries below the subdiagonal is made at the
// top and chased out at the bottom. Without vectors other rows and columns are left as they are.
template <bool GROUP, typename T, typename P>
inline void chase(
    P H,
    P Z,
    uint stride,
    uint n,
    uint top,
    uint bottom,
    Shift<T> shift,
    bool vectors,
    thread const Crew& crew,
    threadgroup real_t<T>* partial) {
  constexpr uint ROWS = bulge_rows<T>();
  const uint own = crew.tid;
  const bool inside = own > top && own + ROWS <= bottom + 1;
  const uint candidate = inside && may_begin<T>(H, stride, own, shift) ? own : top;
  const uint begin = last_of_all<GROUP>(candidate, crew, partial);
  const uint first_row = vectors ? 0 : top;
  const uint end_column = vectors ? n : bottom + 1;
  Bulge<T> bulge = first_bulge<T>(H, stride, begin, shift);
  meet<GROUP>();
  for (uint k = begin; k < bottom; ++k) {
    const bool three = ROWS == 3 && k + 2 <= bottom;
    P column = H + (k - 1) * stride + k;
    if (k > begin) {
      bulge.x[0] = column[0];
      bulge.x[1] = column[1];
      bulge.x[2] = three ? column[2] : zero<T>();
    }
    const Turn<T> turn = turn_of(bulge);
    if (own >= k && own < end_column) {
      P a = H + own * stride + k;
      turn_three(a, 1, three, conj(turn.tau), conj(turn.v1), conj(turn.v2));
    }
    meet<GROUP>();
    // Only now: all threads have read the column.
    if (own == 0 && k > begin) {
      column[0] = from_real<T>(turn.beta);
      column[1] = zero<T>();
      if (three) column[2] = zero<T>();
    } else if (own == 0 && k > top) {
      column[0] = mul(one<T>() - conj(turn.tau), column[0]);
    }
    if (own >= first_row && own <= min(k + ROWS, bottom)) {
      turn_three(H + own + k * stride, stride, three, turn.tau, turn.v1, turn.v2);
    }
    if (vectors && own < n) {
      turn_three(Z + own + k * stride, stride, three, turn.tau, turn.v1, turn.v2);
    }
    meet<GROUP>();
  }
}

// At most `sweeps` sweeps and deflations. All threads have the same `iteration`.
template <bool GROUP, typename T, typename P>
inline void iterate(
    P H,
    P Z,
    uint stride,
    uint n,
    bool vectors,
    uint sweeps,
    thread Iteration& iteration,
    thread const Crew& crew,
    threadgroup real_t<T>* partial) {
  const uint own = crew.tid;
  const uint limit = SWEEPS_A_ROW * max(n, 10u);
  for (uint turn = 0; turn < sweeps && iteration.active > 0 && iteration.sweeps < limit; ++turn) {
    const uint bottom = iteration.active - 1;
    const bool split = own > 0 && own <= bottom && splits<T>(H, stride, own, n);
    const uint top = last_of_all<GROUP>(split ? own : 0u, crew, partial);
    meet<GROUP>();
    if (own == top && top > 0) H[top + (top - 1) * stride] = zero<T>();
    meet<GROUP>();
    const uint rows = bottom + 1 - top;
    if (rows < bulge_rows<T>()) {
      if (rows == 2) split_pair<GROUP, T>(H, Z, stride, n, top, vectors, crew);
      iteration.active = top;
      iteration.stalled = 0;
    } else {
      const Shift<T> shift = next_shift<T>(H, stride, top, bottom, iteration.stalled);
      chase<GROUP, T>(H, Z, stride, n, top, bottom, shift, vectors, crew, partial);
      iteration.stalled += 1;
      iteration.sweeps += 1;
    }
    meet<GROUP>();
  }
}
