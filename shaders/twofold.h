// A number as the sum of two, hi + lo with |lo| at most half a unit in the last place of hi: 48
// bits of float. Joldes, Muller and Popescu, "Tight and rigorous error bounds for basic building
// blocks of double-word arithmetic" (2017). No product here is one that a compiler could fuse into
// a sum.

template <typename T> struct Twofold {
  T hi;
  T lo;
};

template <typename T> inline Twofold<T> twofold(T hi, T lo) {
  const Twofold<T> x = {hi, lo};
  return x;
}
template <typename T> inline Twofold<T> negative(Twofold<T> x) { return twofold(-x.hi, -x.lo); }

template <typename T> inline T unfused(T a, T b) { return fma(a, b, T(0)); }

template <typename T> inline Twofold<T> two_sum(T a, T b) {
  const T sum = a + b;
  const T part = sum - a;
  return twofold(sum, (a - (sum - part)) + (b - part));
}
// For |a| >= |b|.
template <typename T> inline Twofold<T> two_sum_ordered(T a, T b) {
  const T sum = a + b;
  return twofold(sum, b - (sum - a));
}
template <typename T> inline Twofold<T> two_product(T a, T b) {
  const T product = unfused(a, b);
  return twofold(product, fma(a, b, -product));
}

template <typename T> inline Twofold<T> add(Twofold<T> x, T a) {
  const Twofold<T> s = two_sum(x.hi, a);
  return two_sum_ordered(s.hi, x.lo + s.lo);
}
template <typename T> inline Twofold<T> add(Twofold<T> x, Twofold<T> y) {
  const Twofold<T> s = two_sum(x.hi, y.hi);
  const Twofold<T> t = two_sum(x.lo, y.lo);
  const Twofold<T> v = two_sum_ordered(s.hi, s.lo + t.hi);
  return two_sum_ordered(v.hi, t.lo + v.lo);
}
// In half the time, with an error that is small beside |x| + |y|, not beside the sum.
template <typename T> inline Twofold<T> sloppy_sum(Twofold<T> x, Twofold<T> y) {
  const Twofold<T> s = two_sum(x.hi, y.hi);
  return two_sum_ordered(s.hi, s.lo + (x.lo + y.lo));
}
template <typename T> inline Twofold<T> times(Twofold<T> x, T a) {
  const Twofold<T> p = two_product(x.hi, a);
  return two_sum_ordered(p.hi, fma(x.lo, a, p.lo));
}
template <typename T> inline Twofold<T> times(Twofold<T> x, Twofold<T> y) {
  const Twofold<T> p = two_product(x.hi, y.hi);
  const T mixed = fma(x.lo, y.hi, fma(x.hi, y.lo, unfused(x.lo, y.lo)));
  return two_sum_ordered(p.hi, p.lo + mixed);
}
template <typename T> inline Twofold<T> squared(Twofold<T> x) {
  const Twofold<T> p = two_product(x.hi, x.hi);
  return two_sum_ordered(p.hi, fma(x.hi + x.hi, x.lo, p.lo));
}
template <typename T> inline Twofold<T> divide_by(Twofold<T> x, T a) {
  const T inverse = T(1) / a;
  const T q = unfused(x.hi, inverse);
  return two_sum_ordered(q, unfused(fma(-q, a, x.hi) + x.lo, inverse));
}
// For a power of two.
template <typename T> inline Twofold<T> scaled(Twofold<T> x, T power) {
  return twofold(x.hi * power, x.lo * power);
}

template <typename T> inline Twofold<T> quotient(Twofold<T> x, Twofold<T> y) {
  const T q = x.hi / y.hi;
  return two_sum_ordered(q, (fma(-q, y.lo, x.lo) + fma(-q, y.hi, x.hi)) / y.hi);
}
template <typename T> inline Twofold<T> square_root(Twofold<T> x) {
  const T root = sqrt(x.hi);
  return two_sum_ordered(root, (fma(-root, root, x.hi) + x.lo) / (root + root));
}
