#include "scalar.h"
#include "householder.h"

// Numbers that are tried at once: each step of the search leaves a quarter of the interval.
constexpr constant int TRIED = 3;
// Twice what the whole range of the numbers takes.
constexpr constant int MAX_STEPS = 64;

template <typename R> inline R smallest_normal() {
  return sizeof(R) == 4 ? R(0x1p-126f) : R(0x1p-126f) * R(0x1p-126f) * ldexp(R(1), -770);
}

// How many eigenvalues of the tridiagonal matrix of n rows are less than each x: the negative
// pivots of its LDL^H. No square of e is formed, so that none under- or overflows; an infinite
// quotient makes the next pivot infinite and the one after it right again.
template <typename R>
inline void count_less(
    device const R* d,
    device const R* e,
    uint n,
    thread const R (&x)[TRIED],
    thread uint (&less)[TRIED]) {
  R pivot[TRIED];
#pragma unroll
  for (int t = 0; t < TRIED; ++t) {
    pivot[t] = R(1);
    less[t] = 0;
  }
  R beside = R(0);
#pragma unroll(4)
  for (uint i = 0; i < n; ++i) {
    const R entry = d[i];
#pragma unroll
    for (int t = 0; t < TRIED; ++t) {
      R next = fma(-beside, beside / pivot[t], entry - x[t]);
      // A pivot that is zero counts as just below it.
      if (fabs(next) < smallest_normal<R>()) next = -smallest_normal<R>();
      if (next < R(0)) less[t] += 1;
      pivot[t] = next;
    }
    if (i + 1 < n) beside = e[i];
  }
}

// Eigenvalues `first` to n - 1 of symmetric tridiagonal matrices, ascending, by bisection: a thread
// an eigenvalue, up to one or two of its last digits, or to a rounding of the norm. With a zero
// diagonal always the former: the eigenvalues are pairs +-s, and small ones as well defined as
// large ones. NaN where an entry is not finite.
template <typename T>
kernel void tridiagonal_values(
    device const T* d [[buffer(0)]],
    device const T* e [[buffer(1)]],
    device T* values [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& first [[buffer(4)]],
    uint id [[thread_position_in_grid]]) {
  const uint matrix = id / (n - first);
  const uint index = first + id % (n - first);
  device const T* diagonal = d + ulong(matrix) * n;
  device const T* beside = e + ulong(matrix) * (n - 1);
  // Gershgorin's discs.
  T low = T(INFINITY);
  T high = -T(INFINITY);
  T largest = T(0);
  bool finite = true;
  T left = T(0);
#pragma unroll(4)
  for (uint i = 0; i < n; ++i) {
    const T entry = diagonal[i];
    const T right = i + 1 < n ? fabs(beside[i]) : T(0);
    low = min(low, entry - (left + right));
    high = max(high, entry + (left + right));
    largest = max(largest, fabs(entry));
    finite = finite && fabs(entry) < T(INFINITY) && right < T(INFINITY);
    left = right;
  }
  const bool paired = largest == T(0);
  const bool mirrored = paired && index < n / 2;
  const uint target = mirrored ? n - 1 - index : index;
  const T rounding = unit_roundoff<T>();
  T tolerance = rounding * max(fabs(low), fabs(high));
  if (paired) {
    low = min(smallest_normal<T>(), high);
    tolerance = T(0);
  }
  const T least = low;
  for (int step = 0; step < MAX_STEPS; ++step) {
    const T size = max(fabs(low), fabs(high));
    if (!(high - low > max(tolerance, T(2) * rounding * size))) break;
    // Far apart, positive numbers are bisected by their exponents.
    const bool far = low > T(0) && high > T(4) * low;
    const T ratio = far ? sqrt(sqrt(high) / sqrt(low)) : T(1);
    T x[TRIED];
    x[1] = far ? low * ratio : low + (high - low) / T(2);
    x[0] = far ? low * sqrt(ratio) : low + (x[1] - low) / T(2);
    x[2] = far ? x[1] * sqrt(ratio) : x[1] + (high - x[1]) / T(2);
    uint less[TRIED];
    count_less<T>(diagonal, beside, n, x, less);
    bool above = false;
#pragma unroll
    for (int t = 0; t < TRIED; ++t) {
      if (!above && less[t] > target) {
        high = x[t];
        above = true;
      } else if (!above) {
        low = x[t];
      }
    }
  }
  T value = low + (high - low) / T(2);
  // What no count separates from zero is zero.
  if (paired && low == least) value = T(0);
  if (!finite) value = T(NAN);
  values[id] = mirrored && value > T(0) ? -value : value;
}
