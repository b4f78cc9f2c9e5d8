// One template text for real and complex matrices. A complex number is a vector of two, whose
// operators + and - are right as they are; everything else goes through these functions.

template <typename T> struct scalar_traits {
  typedef T real;
  enum { complex = 0 };
};
template <> struct scalar_traits<float2> {
  typedef float real;
  enum { complex = 1 };
};

template <typename T> using real_t = typename scalar_traits<T>::real;

template <typename T> inline T from_real(real_t<T> x) {
  if constexpr (scalar_traits<T>::complex) {
    return T(x, real_t<T>(0));
  } else {
    return x;
  }
}

template <typename T> inline T zero() { return from_real<T>(real_t<T>(0)); }
template <typename T> inline T one() { return from_real<T>(real_t<T>(1)); }

template <typename T> inline bool is_zero(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return a.x == real_t<T>(0) && a.y == real_t<T>(0);
  } else {
    return a == T(0);
  }
}

template <typename T> inline T conj(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return T(a.x, -a.y);
  } else {
    return a;
  }
}

// |re| + |im|: LAPACK's measure of a pivot, free of overflow where |a| is representable.
template <typename T> inline real_t<T> cabs1(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return fabs(a.x) + fabs(a.y);
  } else {
    return fabs(a);
  }
}

template <typename T> inline T mul(T a, T b) {
  if constexpr (scalar_traits<T>::complex) {
    return T(fma(a.x, b.x, -(a.y * b.y)), fma(a.x, b.y, a.y * b.x));
  } else {
    return a * b;
  }
}

// c - a b
template <typename T> inline T mul_sub(T c, T a, T b) {
  if constexpr (scalar_traits<T>::complex) {
    return T(fma(-a.x, b.x, fma(a.y, b.y, c.x)), fma(-a.x, b.y, fma(-a.y, b.x, c.y)));
  } else {
    return fma(-a, b, c);
  }
}

// a / b. Complex by Smith's method (1962): no square of b is formed, so none overflows. Where the
// imaginary part of b leads, both are turned by -i first, which is exact.
template <typename T> inline T quotient(T a, T b) {
  if constexpr (scalar_traits<T>::complex) {
    const bool turn = fabs(b.x) < fabs(b.y);
    const T p = turn ? T(a.y, -a.x) : a;
    const T q = turn ? T(b.y, -b.x) : b;
    const real_t<T> r = q.y / q.x;
    const real_t<T> d = fma(q.y, r, q.x);
    return T(fma(p.y, r, p.x) / d, fma(-p.x, r, p.y) / d);
  } else {
    return a / b;
  }
}

// Whether 1 / b is far from overflow and from the denormals that Apple GPUs flush, so that a / b
// may be formed as a times it. The bounds are powers of two well inside float32's range.
template <typename T> inline bool has_inverse(T b) {
  const real_t<T> size = cabs1(b);
  return size > real_t<T>(0x1p-100f) && size < real_t<T>(0x1p100f);
}

// A pivot's weight in the search: NaN counts as infinite, so that it never hides behind a number.
template <typename T> inline real_t<T> pivot_weight(T a) {
  const real_t<T> weight = cabs1(a);
  return weight != weight ? real_t<T>(INFINITY) : weight;
}

template <typename T> inline T scale(T a, int exponent) {
  if constexpr (scalar_traits<T>::complex) {
    return T(ldexp(a.x, exponent), ldexp(a.y, exponent));
  } else {
    return ldexp(a, exponent);
  }
}

// a as a number of magnitude near 1; the power of two taken out is added to `exponent`.
template <typename T> inline T normalized(T a, thread int& exponent) {
  real_t<T> largest = cabs1(a);
  if constexpr (scalar_traits<T>::complex) largest = max(fabs(a.x), fabs(a.y));
  // Zero, infinity and NaN have no exponent to take out.
  if (largest > real_t<T>(0) && largest < real_t<T>(INFINITY)) {
    int e = 0;
    frexp(largest, e);
    exponent += e;
    return scale(a, -e);
  }
  return a;
}

// |a| and a / |a| for a normalized a: squares neither overflow nor underflow.
template <typename T> inline real_t<T> modulus(T a) {
  if constexpr (scalar_traits<T>::complex) {
    return sqrt(fma(a.x, a.x, a.y * a.y));
  } else {
    return fabs(a);
  }
}
template <typename T> inline T direction(T a) {
  const real_t<T> size = modulus(a);
  if constexpr (scalar_traits<T>::complex) {
    return size == real_t<T>(0) ? a : T(a.x / size, a.y / size);
  } else {
    return size == T(0) ? a : a / size;
  }
}
