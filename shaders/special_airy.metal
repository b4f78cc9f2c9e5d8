#include "elementary.h"
#include "special_fits.h"

// Ai or its derivative, one thread an element. Up to |x| = 2.25 the power series in twofold
// arithmetic; beyond, with zeta = 2/3 |x|^(3/2) twofold, exp(-zeta) or sin(zeta + pi/4 - phase)
// times functions of 1 / zeta. Below -2^16 the sine would have no digit left: NaN.

template <typename T> inline Twofold<T> ai_at_zero() {
  return sizeof(T) == 4 ? twofold(T(0.355028063), T(-9.1710359101539991e-9))
                        : twofold(T(0.355028053887817219), T(2.05233632436211994e-17));
}
// Of the derivative, times -1.
template <typename T> inline Twofold<T> slope_at_zero() {
  return sizeof(T) == 4 ? twofold(T(0.258819401), T(2.52861612457705873e-9))
                        : twofold(T(0.258819403792806824), T(-2.52224311161083207e-17));
}

template <typename T> inline Twofold<T> inverse_root_pi() {
  return sizeof(T) == 4 ? twofold(T(0.5641896129), T(-2.93176917110987955e-8))
                        : twofold(T(0.5641895835477563), T(7.66772980658294037e-18));
}

// first + first x^3 / d_0 + first x^6 / (d_0 d_1) + ..., d_k = (3 k + a) (3 k + b).
template <typename T> inline Twofold<T> series(Twofold<T> first, Twofold<T> cube, int a, int b) {
  Twofold<T> term = first;
  Twofold<T> sum = first;
  for (int k = 0; k < 60; k += 3) {
    term = divide_by(times(term, cube), T((k + a) * (k + b)));
    sum = add(sum, term);
  }
  return sum;
}

template <typename T> inline T airy_near_zero(T x, bool derivative) {
  const Twofold<T> square = two_product(x, x);
  const Twofold<T> cube = times(square, x);
  Twofold<T> even = twofold(T(1), T(0));
  Twofold<T> odd = twofold(x, T(0));
  if (derivative) {
    even = series(scaled(square, T(0.5f)), cube, 3, 5);
    odd = series(twofold(T(1), T(0)), cube, 1, 3);
  } else {
    even = series(even, cube, 2, 3);
    odd = series(odd, cube, 3, 4);
  }
  return add(times(ai_at_zero<T>(), even), negative(times(slope_at_zero<T>(), odd))).hi;
}

template <typename T>
kernel void special_airy(
    device const T* x [[buffer(0)]],
    device T* values [[buffer(1)]],
    constant uint& derivative [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  const T a = x[i];
  const T size = fabs(a);
  const bool prime = derivative != 0;
  T value = T(0);
  if (size <= T(2.25f)) {
    value = airy_near_zero(a, prime);
  } else if (a < T(-65536.0f) || a != a) {
    value = T(NAN);
  } else if (a < T(128)) {
    const Twofold<T> root = square_root(twofold(size, T(0)));
    const Twofold<T> zeta = divide_by(scaled(times(root, size), T(2)), T(3));
    const Twofold<T> fourth = square_root(root);
    const T v = T(1) / zeta.hi;
    const T t = v * v;
    // The factor that has the limit 1 / sqrt(pi), and the exponential or wave.
    Twofold<T> factor = twofold(T(0), T(0));
    int exponent = 0;
    if (a > T(0)) {
      const T change = prime ? airy_decay_prime(v) : airy_decay(v);
      const T half_of = prime ? T(-0.5f) : T(0.5f);
      factor = scaled(two_sum_ordered(T(1), unfused(change, v)), half_of);
      factor = times(factor, exp_of(negative(zeta), exponent));
    } else {
      const T change = prime ? airy_modulus_prime(t) : airy_modulus(t);
      // The phase, its leading term twofold.
      const T limit = prime ? T(-7) : T(5);
      const Twofold<T> leading = quotient(divide_by(twofold(limit, T(0)), T(72)), zeta);
      const T rest = unfused(prime ? airy_phase_prime(t) : airy_phase(t), t * v);
      // -cos(a + pi/4) = sin(a - pi/4).
      const Twofold<T> turned = add(zeta, scaled(half_pi<T>(), prime ? T(-0.5f) : T(0.5f)));
      const Twofold<T> angle = add(add(turned, negative(leading)), -rest);
      factor = times(two_sum_ordered(T(1), unfused(change, t)), sin_of(angle));
    }
    factor = times(factor, inverse_root_pi<T>());
    value = ldexp((prime ? times(factor, fourth) : quotient(factor, fourth)).hi, exponent);
  }
  values[i] = value;
}
