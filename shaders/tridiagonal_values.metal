#include "scalar.h"
#include "householder.h"

// Numbers that a lane tries at once: two chains of divisions take hardly longer than one.
constexpr constant int TRIED = 2;
// Rows that are in threadgroup memory at a time: 2 KiB, so that an Apple core has room for more
// simdgroups than it runs.
constexpr constant uint ROWS = 256;
// Rows that are fetched from there at once.
constexpr constant uint RUN = 8;

template <typename R> inline R smallest_normal() {
  return sizeof(R) == 4 ? R(0x1p-126f) : R(0x1p-126f) * R(0x1p-126f) * ldexp(R(1), -770);
}

template <int size> struct integers_of {
  typedef uint natural;
  typedef int whole;
};
template <> struct integers_of<8> {
  typedef ulong natural;
  typedef long whole;
};

// The numbers among which an eigenvalue is sought, in ascending order. Of a matrix whose diagonal
// is zero, positive ones: those order as their bits do. Else 2 origin() + 1 equally far from each
// other, so that rounding is least in the middle.
template <typename T> struct Numbers {
  typedef typename integers_of<sizeof(T)>::natural Index;
  typedef typename integers_of<sizeof(T)>::whole Whole;
  bool paired;
  T middle;
  T distance;

  static constexpr Index origin() { return Index(1) << (sizeof(T) == 4 ? 24 : 53); }
  T at(Index i) const thread {
    return paired ? as_type<T>(i) : fma(T(as_type<Whole>(i - origin())), distance, middle);
  }
};

// A factor of LDL^H goes on by some rows (diagonal entry, entry beside it in the row before): how
// many more of its pivots are negative. That of T - x has as many as T eigenvalues less than x. No
// square of an entry is formed, so that none underflows. Every entry being below one half, nothing
// overflows: what a hasty division makes of infinity does not matter.
template <typename T>
inline void count_less(
    threadgroup const T* rows,
    uint count,
    thread const T (&x)[TRIED],
    thread T (&inverse)[TRIED],
    thread uint (&less)[TRIED]) {
  const T least = smallest_normal<T>();
  for (uint begin = 0; begin < count; begin += RUN) {
#pragma unroll
    for (uint i = 0; i < RUN; ++i) {
      const T entry = rows[2 * (begin + i)];
      const T beside = rows[2 * (begin + i) + 1];
#pragma unroll
      for (int t = 0; t < TRIED; ++t) {
        const T pivot = fma(-beside, beside * inverse[t], entry - x[t]);
        // The division does not wait for the comparison.
        const T divided = fast::divide(T(1), pivot);
        // A pivot that is zero counts as just below it.
        less[t] += pivot < least ? 1 : 0;
        inverse[t] = fabs(pivot) < least ? T(-1) / least : divided;
      }
    }
  }
}

// Eigenvalues `first` to n - 1 of symmetric tridiagonal matrices, ascending: LANES lanes try
// numbers for each, which divide its interval into 1 + TRIED LANES parts, until it is one of 2^25
// (2^54 in double) parts of Gershgorin's. With a zero diagonal the eigenvalues are pairs +-s, and
// the search goes on to the last digit: small ones are as well defined as large ones. A simdgroup
// has eigenvalues of one matrix. NaN where an entry is not finite.
template <typename T, int LANES>
kernel void tridiagonal_values(
    device const T* d [[buffer(0)]],
    device const T* e [[buffer(1)]],
    device T* values [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& first [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef typename Numbers<T>::Index Index;
  constexpr uint ALL = TRIED * LANES;
  THREADGROUP_ARRAY(T, rows, (2 * ROWS));
  device const T* diagonal = d + ulong(group.y) * n;
  device const T* beside = e + ulong(group.y) * (n - 1);
  // Gershgorin's discs.
  T low = T(INFINITY);
  T high = -T(INFINITY);
  T largest = T(0);
  bool finite = true;
  for (uint i = lane; i < n; i += 32) {
    const T entry = diagonal[i];
    const T radius = (i > 0 ? fabs(beside[i - 1]) : T(0)) + (i + 1 < n ? fabs(beside[i]) : T(0));
    low = min(low, entry - radius);
    high = max(high, entry + radius);
    largest = max(largest, fabs(entry));
    finite = finite && fabs(entry) + radius < T(INFINITY);
  }
  finite = !simd_any(!finite);
  low = simd_min(low);
  high = simd_max(high);
  const bool paired = simd_max(largest) == T(0);
  const int exponent = 1 + exponent_of(max(fabs(low), fabs(high)));
  low = ldexp(low, -exponent);
  high = ldexp(high, -exponent);

  const T half_width = high / T(2) - low / T(2);
  const Numbers<T> numbers = {paired, low + half_width, half_width * unit_roundoff<T>()};
  const Index least = paired ? as_type<Index>(smallest_normal<T>()) : Index(0);
  const Index most = paired ? max(as_type<Index>(high), least) : 2 * numbers.origin();
  const uint index = first + group.x * (32 / LANES) + lane / LANES;
  const bool mirrored = paired && index < n / 2;
  const uint target = mirrored ? n - 1 - index : index;
  // Every search takes the same steps, so that no two of them can end in the wrong order.
  Index begin = least;
  const Index whole = most - least;
  for (Index width = whole; width > 1;) {
    const Index step = (width + Index(ALL)) / Index(ALL + 1);
    const uint own = lane % LANES * TRIED;
    T x[TRIED];
    T inverse[TRIED];
    uint less[TRIED];
#pragma unroll
    for (int t = 0; t < TRIED; ++t) {
      x[t] = numbers.at(begin + Index(own + t + 1) * step);
      inverse[t] = T(1);
      less[t] = 0;
    }
    for (uint row = 0; row < n; row += ROWS) {
      const uint count = (min(n - row, ROWS) + RUN - 1) / RUN * RUN;
      // What fits stays for all steps.
      if (n > ROWS || width == whole) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint s = lane; s < count; s += 32) {
          const uint i = row + s;
          // No number is as large as the diagonal of rows that are not there.
          rows[2 * s] = i < n ? ldexp(diagonal[i], -exponent) : T(2);
          rows[2 * s + 1] = i > 0 && i < n ? ldexp(beside[i - 1], -exponent) : T(0);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      count_less<T>(rows, count, x, inverse, less);
    }
    uint above = ALL;
#pragma unroll
    for (int t = TRIED - 1; t >= 0; --t) above = less[t] > target ? own + t : above;
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
      above = min(above, simd_shuffle_xor(above, ushort(distance)));
    }
    begin += Index(above) * step;
    width = step;
  }
  T value = numbers.at(begin);
  if (!paired) value += numbers.distance / T(2);
  // What no count separates from zero is zero.
  if (paired && begin == least) value = T(0);
  if (mirrored && value > T(0)) value = -value;
  if (lane % LANES == 0 && index < n) {
    values[ulong(group.y) * (n - first) + index - first] = finite ? ldexp(value, exponent) : T(NAN);
  }
}
