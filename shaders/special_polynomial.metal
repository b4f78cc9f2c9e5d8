#include "twofold.h"

// Orthogonal polynomials and their derivatives, one thread an element, in twofold arithmetic: a
// rounding error is 2^-47 of the largest |p| nearby, so that the result is right to the last bit or
// two of itself nearly everywhere, zeros included.

constexpr constant int GEGENBAUER = 0;
constexpr constant int LAGUERRE = 1;

constexpr constant uint FIRST = 0;
constexpr constant uint SECOND = 1;
constexpr constant uint THIRD = 2;
constexpr constant uint FOURTH = 3;

constexpr constant int NEGATIVE = -1;
constexpr constant int TOO_LARGE = -2;

// Degrees are cut off as torch does, and what is no number counts as negative, too.
template <typename T> inline int whole_degree(T degree) {
  if (degree >= T(0x1p30f)) return TOO_LARGE;
  return degree > T(-1) ? int(degree) : NEGATIVE;
}
template <typename T> inline T without_degree(int m) { return m == TOO_LARGE ? T(NAN) : T(0); }

// x, or 2 x - 1 of a shifted polynomial.
template <typename T> inline Twofold<T> argument(T x, bool shifted) {
  return shifted ? two_sum(T(2) * x, T(-1)) : twofold(x, T(0));
}

// (T_m, U_{m-1}) by powers of y + sqrt(y^2 - 1), for y >= 0, in the ring where the root has the
// square -w: binary, and no root is taken. Returns the polynomial of that kind, of `derivative` the
// first derivative of T. above = 1 + y, below = 1 - y.
template <typename T>
inline Twofold<T> chebyshev(
    Twofold<T> y, Twofold<T> above, Twofold<T> below, int m, uint polynomial, bool derivative) {
  const Twofold<T> w = negative(times(above, below));
  if (m <= 0) return twofold(T(0), T(0));
  int bit = 0;
  while ((m >> ((bit + 1) & 31)) != 0) bit += 1;
  Twofold<T> first = y;
  Twofold<T> second = twofold(T(1), T(0));
  while (bit > 0) {
    bit -= 1;
    const Twofold<T> product = times(first, second);
    first = sloppy_sum(squared(first), times(w, squared(second)));
    second = scaled(product, T(2));
    if (((m >> (bit & 31)) & 1) != 0) {
      const Twofold<T> before = first;
      first = sloppy_sum(times(y, first), times(w, second));
      second = sloppy_sum(before, times(y, second));
    }
  }
  if (derivative) return times(second, T(m));
  if (polynomial == FIRST) return first;
  if (polynomial == SECOND) return add(first, times(y, second));
  const Twofold<T> side = polynomial == THIRD ? negative(below) : above;
  return add(first, times(side, second));
}

template <typename T>
kernel void special_chebyshev(
    device const T* x [[buffer(0)]],
    device const T* degrees [[buffer(1)]],
    device T* values [[buffer(2)]],
    constant uint& several [[buffer(3)]],
    constant int& degree [[buffer(4)]],
    constant uint& polynomial [[buffer(5)]],
    constant uint& shifted [[buffer(6)]],
    constant uint& derivative [[buffer(7)]],
    uint i [[thread_position_in_grid]]) {
  const T a = x[i];
  const int m = several != 0 ? whole_degree(degrees[i]) : degree;
  const Twofold<T> y = argument(a, shifted != 0);
  const bool left = y.hi < T(0);
  const Twofold<T> size = left ? negative(y) : y;
  const Twofold<T> above = add(size, T(1));
  const Twofold<T> below = add(negative(size), T(1));
  // Where y changes its sign, the third kind becomes the fourth.
  uint mirrored = polynomial;
  if (left && polynomial >= THIRD) mirrored = polynomial == THIRD ? FOURTH : THIRD;
  T value = chebyshev(size, above, below, m, mirrored, derivative != 0).hi;
  // Every term is positive beyond 1, so what has no value is too large.
  if (!(value - value == T(0))) value = T(INFINITY);
  if (left && ((uint(m) + derivative) & 1u) != 0) value = -value;
  if (shifted != 0 && derivative != 0) value *= T(2);
  if (m == 0) value = T(1 - int(derivative));
  if (a != a && m > 0) value = a;
  values[i] = m < 0 ? without_degree<T>(m) : value;
}

// p_m of p_k = (M_k p_{k-1} - C_k p_{k-2}) / D_k, p_0 = 1, and p_{m-1}, both times 2^-exponent.
template <typename T> struct Recurrence {
  Twofold<T> value;
  Twofold<T> before;
  int exponent;
};

// GEGENBAUER: parameter is 2 lambda. LAGUERRE: it is alpha. Hermite: 1 for He, 2 for H.
template <typename T, int FAMILY>
inline Recurrence<T> recurrence(Twofold<T> x, int m, int parameter) {
  Recurrence<T> p = {twofold(T(1), T(0)), twofold(T(0), T(0)), 0};
  for (int k = 1; k <= m; ++k) {
    Twofold<T> multiple = scaled(x, T(parameter));
    T of_before = T(parameter * (k - 1));
    if (FAMILY == GEGENBAUER) {
      multiple = times(x, T(2 * k - 2 + parameter));
      of_before = T(k - 2 + parameter);
    } else if (FAMILY == LAGUERRE) {
      multiple = add(negative(x), T(2 * k - 1 + parameter));
      of_before = T(k - 1 + parameter);
    }
    Twofold<T> next = sloppy_sum(times(p.value, multiple), times(p.before, -of_before));
    if (FAMILY == GEGENBAUER || FAMILY == LAGUERRE) next = divide_by(next, T(k));
    p.before = p.value;
    p.value = next;
    if (fabs(next.hi) > T(0x1p30f)) {
      int e = 0;
      frexp(next.hi, e);
      const T power = ldexp(T(1), -e);
      p.value = scaled(next, power);
      p.before = scaled(p.before, power);
      p.exponent += e;
    }
  }
  return p;
}

// factor n (n - 1) ... (`falling` of them) (p_m + previous p_{m-1}) for m = n - order.
template <typename T, int FAMILY>
inline T polynomial_of(
    Twofold<T> x, int n, int order, int parameter, int previous, int falling, T factor) {
  const int m = n - order;
  if (n < 0 || m < 0) return without_degree<T>(n);
  for (int j = 0; j < falling; ++j) factor *= T(n - j);
  const bool linear = m == 1 && fabs(x.hi) > T(0x1p60f);
  if (linear || (m >= 2 && T(0.5f) * x.hi * x.hi == T(INFINITY))) {
    // Beside the leading term the others are nothing, and of degree 2 and more it is too large.
    T leading = linear ? fabs(x.hi) * factor : T(INFINITY);
    if (linear && FAMILY != LAGUERRE) leading *= T(parameter);
    const bool changes = FAMILY == LAGUERRE ? x.hi > T(0) : x.hi < T(0);
    return changes && (m & 1) != 0 ? -leading : leading;
  }
  const Recurrence<T> p = recurrence<T, FAMILY>(x, m, parameter);
  const Twofold<T> value = add(p.value, scaled(p.before, T(previous)));
  return ldexp(times(value, factor).hi, p.exponent);
}

template <typename T, int FAMILY>
kernel void special_recurrence(
    device const T* x [[buffer(0)]],
    device const T* degrees [[buffer(1)]],
    device T* values [[buffer(2)]],
    constant uint& several [[buffer(3)]],
    constant int& degree [[buffer(4)]],
    constant uint& shifted [[buffer(5)]],
    constant int& order [[buffer(6)]],
    constant int& parameter [[buffer(7)]],
    constant int& previous [[buffer(8)]],
    constant int& falling [[buffer(9)]],
    constant float& factor [[buffer(10)]],
    uint i [[thread_position_in_grid]]) {
  const int n = several != 0 ? whole_degree(degrees[i]) : degree;
  values[i] = polynomial_of<T, FAMILY>(
      argument(x[i], shifted != 0), n, order, parameter, previous, falling, T(factor));
}
