// Householder's reflections of columns, scaled so that no square over- or underflows.

template <typename R> inline R unit_roundoff() {
  return sizeof(R) == 4 ? R(0x1p-24f) : R(0x1p-53f);
}

template <typename T> inline real_t<T> real_part(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return a.x;
  } else {
    return a;
  }
}

// NaN where either part is: max takes the other one.
template <typename T> inline real_t<T> largest_part(T a) {
  if constexpr (scalar_traits<T>::complex) {
    const real_t<T> x = fabs(a.x);
    const real_t<T> y = fabs(a.y);
    return x <= y ? y : (x > y ? x : x + y);
  } else {
    return fabs(a);
  }
}

// |a| without a square that under- or overflows.
template <typename T> inline real_t<T> safe_modulus(T a) {
  int exponent = 0;
  const real_t<T> size = modulus(normalized(a, exponent));
  return ldexp(size, exponent);
}

// A column below its diagonal whose sum of squares is less counts as zero, where the largest entry
// of the whole column is near 1.
template <typename R> inline R negligible() {
  return R(0x1p-80f) * (sizeof(R) == 4 ? R(1) : R(0x1p-120f));
}

// H = I - tau v v^H with v = (1, x inverse), as LAPACK's larfg: H^H takes (alpha, x) to (beta, 0)
// with a real beta. `squares` is the squared norm of x.
template <typename T> struct Reflector {
  T tau;
  T inverse;
  real_t<T> beta;
};

template <typename T> inline Reflector<T> reflector(T alpha, real_t<T> squares) {
  typedef real_t<T> R;
  const bool alone = squares < negligible<R>();
  const R real = real_part(alpha);
  const T imaginary = alpha - from_real<T>(real);
  if (alone && is_zero(imaginary)) {
    const Reflector<T> identity = {zero<T>(), zero<T>(), real};
    return identity;
  }
  const R size = alone ? safe_modulus(alpha) : sqrt(real_part(mul(conj(alpha), alpha)) + squares);
  const R beta = real >= R(0) ? -size : size;
  const T difference = alpha - from_real<T>(beta);
  Reflector<T> h = {zero<T>(), zero<T>(), beta};
  if constexpr (scalar_traits<T>::complex) {
    h.tau = T(-difference.x / beta, -difference.y / beta);
    // At least beta^2 and near it: what is not negligible is far from underflow.
    const R square = real_part(mul(conj(difference), difference));
    if (!alone) h.inverse = T(difference.x / square, -difference.y / square);
  } else {
    h.tau = -difference / beta;
    if (!alone) h.inverse = one<T>() / difference;
  }
  return h;
}

// The exponent of what is all zeros: any number times this power of two is none, and such columns
// come after all others.
constexpr constant int OF_ZERO = -4000;

// The power of two that leaves `largest` near 1.
template <typename R> inline int exponent_of(R largest) {
  int exponent = 0;
  if (largest > R(0) && largest < R(INFINITY)) frexp(largest, exponent);
  return exponent;
}

// What the lanes of a team read of the column whose turn it is, kept twice: a step's writes never
// meet the reads of the step before.
template <typename T> struct Pivot {
  threadgroup T* entries;
  uint stride;

  threadgroup T* at(uint step) const thread { return entries + (step & 1) * stride; }
};

template <typename T, int N>
inline threadgroup const T* share(thread const T (&a)[N], bool own, threadgroup T* entries) {
  if (own) {
#pragma unroll
    for (int i = 0; i < N; ++i) entries[i] = a[i];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  return entries;
}
