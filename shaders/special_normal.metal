#include "elementary.h"
#include "special_fits.h"

// The normal distribution, one thread an element: phi is its density, Phi its distribution.

// 6 times the function below at 3.
template <typename T> inline Twofold<T> mills_at_three() {
  return sizeof(T) == 4 ? twofold(T(0.7290837169), T(-2.67359812453196358e-8))
                        : twofold(T(0.729083690133373), T(-3.85927027199020001e-17));
}
template <typename T> inline Twofold<T> root_two_pi() {
  return sizeof(T) == 4 ? twofold(T(2.506628275), T(-2.86602036646734715e-10))
                        : twofold(T(2.5066282746310007), T(-1.83285799804591675e-16));
}

// (1 - Phi(x)) / phi(x) / sqrt(2 pi) for x >= 0.
template <typename T> inline Twofold<T> mills(T x) {
  const T bounded = min(x, T(0x1p100f));
  const Twofold<T> above = two_sum(bounded, T(3));
  const Twofold<T> u = quotient(two_sum(bounded, T(-3)), above);
  return quotient(add(times(u, normal_mills(u.hi)), mills_at_three<T>()), above);
}

// exp(-x^2 / 2), or nothing where it is less than any number.
template <typename T> inline Twofold<T> bell(T x) {
  if (!(x < T(40))) return twofold(T(0), T(0));
  int exponent = 0;
  const Twofold<T> value = exp_of(scaled(two_product(x, x), T(-0.5f)), exponent);
  return twofold(ldexp(value.hi, exponent), ldexp(value.lo, exponent));
}

// log Phi
template <typename T>
kernel void special_log_ndtr(
    device const T* x [[buffer(0)]],
    device T* values [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  const T a = x[i];
  // Before the branch, of which a simdgroup takes both sides.
  const Twofold<T> ratio = mills(fabs(a));
  if (a < T(0)) {
    const Twofold<T> logarithm = add(log_of(ratio.hi), ratio.lo / ratio.hi);
    values[i] = fma(T(-0.5f) * a, a, logarithm.hi);
  } else {
    values[i] = a == a ? log_near_one(-times(ratio, bell(a)).hi) : a;
  }
}

// phi / Phi, the derivative of log Phi
template <typename T>
kernel void special_hazard(
    device const T* x [[buffer(0)]],
    device T* values [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  const T a = x[i];
  const T root = T(0.398942280401432678);
  const Twofold<T> ratio = mills(fabs(a));
  if (a < T(0)) {
    values[i] = root / ratio.hi;
  } else {
    const Twofold<T> density = bell(a);
    values[i] = a == a ? root * density.hi / (T(1) - times(ratio, density).hi) : a;
  }
}

// The inverse of Phi
template <typename T>
kernel void special_ndtri(
    device const T* x [[buffer(0)]],
    device T* values [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  const T p = x[i];
  const Twofold<T> q = two_sum(p, T(-0.5f));
  T value = T(NAN);
  if (fabs(q.hi) <= T(0.39f)) {
    const T square = q.hi * q.hi;
    const T change = unfused(normal_central(fma(-q.hi, q.hi, T(0.15625f))), square);
    value = times(add(root_two_pi<T>(), change), q).hi;
  } else if (p == T(0) || p == T(1)) {
    value = p == T(0) ? -T(INFINITY) : T(INFINITY);
  } else if (p > T(0) && p < T(1)) {
    const bool left = q.hi < T(0);
    const Twofold<T> w = square_root(scaled(log_of(left ? p : T(1) - p), T(-2)));
    const T size =
        w.hi < T(6) ? normal_tail((w.hi - T(2)) + w.lo) : normal_far_tail((w.hi - T(6)) + w.lo);
    value = left ? -size : size;
  }
  values[i] = value;
}
