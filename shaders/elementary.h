#include "twofold.h"

// exp, log and sine of twofold arguments, to a unit in the last place: Metal's own are allowed
// four.

// log(2) in two parts, of which the first has 9 bits: its products with exponents are exact.
template <typename T> inline T log2_head() { return T(0.693359375); }
template <typename T> inline T log2_rest() { return T(-2.12194440054690583e-4); }

// exp(x) = the result times 2^k, for x <= 0.
template <typename T> inline Twofold<T> exp_of(Twofold<T> x, thread int& exponent) {
  const int k = int(fma(x.hi, T(1.44269504088896341), T(-0.5f)));
  exponent = k;
  const T r = fma(-T(k), log2_rest<T>(), fma(-T(k), log2_head<T>(), x.hi) + x.lo);
  T sum = T(1.60590438368216133e-10);
  sum = fma(sum, r, T(2.08767569878681002e-09));
  sum = fma(sum, r, T(2.50521083854417202e-08));
  sum = fma(sum, r, T(2.75573192239858883e-07));
  sum = fma(sum, r, T(2.75573192239858925e-06));
  sum = fma(sum, r, T(2.48015873015873016e-05));
  sum = fma(sum, r, T(0.000198412698412698413));
  sum = fma(sum, r, T(0.00138888888888888894));
  sum = fma(sum, r, T(0.00833333333333333322));
  sum = fma(sum, r, T(0.0416666666666666644));
  sum = fma(sum, r, T(0.166666666666666657));
  sum = fma(sum, r, T(0.5f));
  const Twofold<T> linear = two_sum_ordered(T(1), r);
  return two_sum_ordered(linear.hi, fma(unfused(r, r), sum, linear.lo));
}

// log(1 + f) for -1/2 <= f <= 1/2, from atanh(f / (2 + f)).
template <typename T> inline T log_near_one(T f) {
  const T s = f / (T(2) + f);
  const T square = s * s;
  const T half_square = T(0.5f) * f * f;
  T sum = T(0);
#pragma unroll
  for (int j = 17; j > 0; --j) sum = fma(sum, square, T(2) / T(2 * j + 1));
  return f - fma(-s, fma(sum, square, half_square), half_square);
}

// log(a) for a > 0.
template <typename T> inline Twofold<T> log_of(T a) {
  int e = 0;
  T mantissa = frexp(a, e);
  if (mantissa < T(0.70710678f)) {
    mantissa *= T(2);
    e -= 1;
  }
  const T tail = fma(T(e), log2_rest<T>(), log_near_one(mantissa - T(1)));
  return two_sum(T(e) * log2_head<T>(), tail);
}

template <typename T> inline Twofold<T> half_pi() {
  const T rest = sizeof(T) == 4 ? T(-4.37113900018624283e-8) : T(6.12323399573676604e-17);
  return twofold(T(1.57079632679489662), rest);
}

// sin(x), a relative error also near its zeros as long as x is small beside 2^24 or, in double,
// 2^53.
template <typename T> inline T sin_of(Twofold<T> x) {
  const T turns = T(int(fma(fabs(x.hi), T(0.636619772367581343), T(0.5f))));
  const bool left = x.hi < T(0);
  const Twofold<T> size = left ? negative(x) : x;
  const Twofold<T> r = add(size, negative(times(half_pi<T>(), turns)));
  const uint quarter = uint(turns);
  const T square = r.hi * r.hi;
  // Taylor's, of cos r - 1 or of sin r - r.
  const bool cosine = (quarter & 1u) != 0;
  T sum = T(0);
#pragma unroll
  for (int j = 9; j > 0; --j) {
    const T next = cosine ? T(1) / T((2 * j - 1) * (2 * j)) : T(1) / T((2 * j) * (2 * j + 1));
    sum = -(square * next) * (T(1) + sum);
  }
  T value = cosine ? fma(-r.lo, r.hi, sum) + T(1) : fma(r.hi, sum, r.lo) + r.hi;
  const bool minus = ((quarter >> 1) & 1u) != 0;
  return minus != left ? -value : value;
}
