// Where a Hessenberg matrix splits, the shifts of a sweep over a part of it, and how the sweep
// begins.

// Sweeps without a deflation after which an exceptional shift breaks a cycle.
constexpr constant uint STALLED = 10;

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

// The shifts of a sweep: one complex number, or the conjugate pair re +- i im; where im is less
// than 0, the real pair re +- im.
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
      bulge.x[0] = below * at[stride] + p * (p / size) + shift.im * (fabs(shift.im) / size);
      bulge.x[1] = below * (p + (at[1 + stride] - shift.re));
      bulge.x[2] = below * at[2 + stride];
    }
  }
  return bulge;
}

// Whether a sweep may begin in row k, above which a small entry then remains where there was one:
// small beside the rows that the sweep turns, as those above may be larger by many powers of ten.
template <typename T, typename P> inline bool may_begin(P H, uint stride, uint k, Shift<T> shift) {
  typedef real_t<T> R;
  P at = H + k * stride + k;
  const Bulge<T> bulge = first_bulge<T>(H, stride, k, shift);
  const R around = cabs1(at[0]) + cabs1(at[1 + stride]);
  return cabs1(at[-long(stride)]) * (cabs1(bulge.x[1]) + cabs1(bulge.x[2])) <=
         spacing<R>() * cabs1(bulge.x[0]) * around;
}
