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
template <typename T> inline T sign_of(Determinant<T> value) { return direction(value.mantissa); }
template <typename T> inline real_t<T> log_of(Determinant<T> value) {
  typedef real_t<T> R;
  return log(modulus(value.mantissa)) + R(value.exponent) * log(R(2));
}
