#include "scalar.h"

// The determinant as mantissa times 2^exponent, so that no product of some of the pivots overflows
// or underflows where all of them together do not.
template <typename T> struct Determinant {
  T mantissa;
  int exponent;
};

// Times one more pivot, whose row was swapped or not.
template <typename T>
inline void multiply_pivot(thread Determinant<T>& det, T pivot, bool swapped) {
  const T factor = normalized(pivot, det.exponent);
  det.mantissa = normalized(mul(det.mantissa, factor), det.exponent);
  if (swapped) det.mantissa = zero<T>() - det.mantissa;
}

// The product over the lanes of a team of N, in all of them.
template <typename T, int N> inline Determinant<T> multiply_lanes(Determinant<T> value) {
#pragma unroll
  for (int distance = N / 2; distance > 0; distance /= 2) {
    const T other = simd_shuffle_xor(value.mantissa, ushort(distance));
    value.exponent += simd_shuffle_xor(value.exponent, ushort(distance));
    value.mantissa = normalized(mul(value.mantissa, other), value.exponent);
  }
  return value;
}

template <typename T> inline T determinant(Determinant<T> value) {
  return scale(value.mantissa, value.exponent);
}

// Infinity has the sign that it has, and a real NaN none: 0.
template <typename T> inline T sign_of(Determinant<T> value) {
  if constexpr (scalar_traits<T>::complex) {
    return direction(value.mantissa);
  } else {
    return T(value.mantissa > T(0)) - T(value.mantissa < T(0));
  }
}

// A complex number with an infinite part is infinite, whatever the other part is.
template <typename T> inline real_t<T> log_of(Determinant<T> value) {
  typedef real_t<T> R;
  R size = modulus(value.mantissa);
  if constexpr (scalar_traits<T>::complex) {
    const bool infinite =
        fabs(value.mantissa.x) == R(INFINITY) || fabs(value.mantissa.y) == R(INFINITY);
    if (infinite) size = R(INFINITY);
  }
  return log(size) + R(value.exponent) * log(R(2));
}
