// Balancing and reduction to Hessenberg form by the threads of one simdgroup or, with GROUP, of one
// threadgroup: thread i owns row i, column i and entry i of a vector. P points to T in any memory;
// matrices are column-major.

template <typename R> inline R spacing() { return R(2) * unit_roundoff<R>(); }

// An entry that is less counts as zero, where the largest of the matrix was near 1.
template <typename R> inline R vanishing() {
  return R(0x1p-100f) * (sizeof(R) == 4 ? R(1) : R(0x1p-120f));
}

struct Crew {
  uint tid;
  uint lane;
  uint simd;
  uint simds;
};

template <bool GROUP> inline void meet() {
  if constexpr (GROUP) {
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  } else {
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

template <bool GROUP, typename R>
inline R sum_of_all(R x, thread const Crew& crew, threadgroup R* partial) {
  R sum = simd_sum(x);
  if constexpr (GROUP) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (crew.lane == 0) partial[crew.simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = simd_sum(crew.lane < crew.simds ? partial[crew.lane] : R(0));
  }
  return sum;
}

// Of values that are not negative.
template <bool GROUP, typename R>
inline R largest_of_all(R x, thread const Crew& crew, threadgroup R* partial) {
  R largest = simd_max(x);
  if constexpr (GROUP) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (crew.lane == 0) partial[crew.simd] = largest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    largest = simd_max(crew.lane < crew.simds ? partial[crew.lane] : R(0));
  }
  return largest;
}

// The largest index of those that the threads give.
template <bool GROUP, typename R>
inline uint last_of_all(uint index, thread const Crew& crew, threadgroup R* partial) {
  const uint last = simd_max(index);
  if constexpr (GROUP) {
    // Exact: indices are far below 2^24.
    return uint(largest_of_all<GROUP>(R(last), crew, partial));
  } else {
    return last;
  }
}

template <typename T> inline real_t<T> square_of(T a) { return real_part(mul(conj(a), a)); }

// Passes over all rows after which balancing ends in any case; usual are two or three.
constexpr constant int BALANCING_PASSES = 16;

// One step of balancing: scales row and column i by the power of two that brings their norms near
// each other (Osborne 1960). 2-norms with the diagonal: else entries that are rounding errors
// beside it are scaled up (James, Langou, Lowery 2014). Whether that changed anything.
template <bool GROUP, typename T, typename P, typename Q>
inline bool balance_row(
    P A,
    uint stride,
    uint n,
    uint i,
    Q scales,
    thread const Crew& crew,
    threadgroup real_t<T>* partial) {
  typedef real_t<T> R;
  const uint threads = crew.simds * 32;
  R c = R(0);
  R r = R(0);
  for (uint own = crew.tid; own < n; own += threads) {
    c += square_of(A[own + i * stride]);
    r += square_of(A[i + own * stride]);
  }
  c = sum_of_all<GROUP>(c, crew, partial);
  r = sum_of_all<GROUP>(r, crew, partial);
  int e = 0;
  if (c > R(0) && r > R(0)) {
    const int distance = exponent_of(r) - exponent_of(c);
    const int quarter = int(uint(max(distance, -distance)) / 4u);
    e = distance < 0 ? -quarter : quarter;
    c = sqrt(c);
    r = sqrt(r);
    if (!(ldexp(c, e) + ldexp(r, -e) < R(0.95f) * (c + r))) e = 0;
  }
  if (e != 0) {
    for (uint own = crew.tid; own < n; own += threads) {
      if (own != i) {
        A[own + i * stride] = scale(A[own + i * stride], e);
        A[i + own * stride] = scale(A[i + own * stride], -e);
      } else {
        scales[i] += e;
      }
    }
  }
  meet<GROUP>();
  return e != 0;
}

// D^-1 A D with the powers of two D = 2^scales.
template <bool GROUP, typename T, typename P, typename Q>
inline void balance(
    P A, uint stride, uint n, Q scales, thread const Crew& crew, threadgroup real_t<T>* partial) {
  if (crew.tid < n) scales[crew.tid] = 0;
  bool changed = true;
  for (int pass = 0; pass < BALANCING_PASSES && changed; ++pass) {
    changed = false;
    for (uint i = 0; i < n; ++i) {
      if (balance_row<GROUP, T>(A, stride, n, i, scales, crew, partial)) changed = true;
    }
  }
}

template <typename T> inline T mul_add(T c, T a, T b) { return mul_sub(c, zero<T>() - a, b); }

// One row of A (I - tau v v^H), for the columns from `first` on where v is not zero.
template <typename T, typename P>
inline void reflect_row(P row, uint stride, uint first, uint n, threadgroup T* v, T tau) {
  T sum = zero<T>();
  for (uint j = first; j < n; ++j) sum = mul_add(sum, row[j * stride], v[j]);
  sum = mul(tau, sum);
  for (uint j = first; j < n; ++j) row[j * stride] = mul_sub(row[j * stride], sum, conj(v[j]));
}

// One column of (I - tau v v^H)^H A, likewise for rows.
template <typename T, typename P>
inline void reflect_column(P column, uint first, uint n, threadgroup T* v, T tau) {
  T sum = zero<T>();
  for (uint i = first; i < n; ++i) sum = mul_add(sum, conj(v[i]), column[i]);
  sum = mul(conj(tau), sum);
  for (uint i = first; i < n; ++i) column[i] = mul_sub(column[i], v[i], sum);
}

// The same by a simdgroup, which reads along memory.
template <typename T, typename P>
inline void reflect_column_together(
    P column, uint first, uint n, threadgroup T* v, T tau, uint lane) {
  T sum = zero<T>();
  for (uint i = first + lane; i < n; i += 32) sum = mul_add(sum, conj(v[i]), column[i]);
  sum = mul(conj(tau), simd_sum(sum));
  for (uint i = first + lane; i < n; i += 32) column[i] = mul_sub(column[i], v[i], sum);
}

// A := Q^H A Q and Z := Z Q with the Householder reflections of columns first ... last - 1, which
// make A zero below its first subdiagonal. v: n entries of threadgroup memory.
template <bool GROUP, typename T, typename P>
inline void reduce_columns(
    P A,
    P Z,
    uint stride,
    uint n,
    uint first,
    uint last,
    bool vectors,
    thread const Crew& crew,
    threadgroup T* v,
    threadgroup real_t<T>* partial) {
  typedef real_t<T> R;
  const uint own = crew.tid;
  for (uint k = first; k < last; ++k) {
    const bool below = own > k && own < n;
    const T entry = below ? A[own + k * stride] : zero<T>();
    const R largest = largest_of_all<GROUP>(largest_part(entry), crew, partial);
    const int exponent = exponent_of(largest);
    const T x = scale(entry, -exponent);
    const T alpha = scale(A[k + 1 + k * stride], -exponent);
    const R squares = sum_of_all<GROUP>(own > k + 1 ? square_of(x) : R(0), crew, partial);
    const Reflector<T> h = reflector(alpha, squares);
    meet<GROUP>();
    if (below) {
      const bool top = own == k + 1;
      v[own] = top ? one<T>() : mul(x, h.inverse);
      A[own + k * stride] = top ? from_real<T>(ldexp(h.beta, exponent)) : zero<T>();
    }
    meet<GROUP>();
    if (is_zero(h.tau)) continue;
    if constexpr (GROUP) {
      for (uint j = k + 1 + crew.simd; j < n; j += crew.simds) {
        reflect_column_together<T>(A + j * stride, k + 1, n, v, h.tau, crew.lane);
      }
    } else if (below) {
      reflect_column<T>(A + own * stride, k + 1, n, v, h.tau);
    }
    meet<GROUP>();
    if (own < n) {
      reflect_row<T>(A + own, stride, k + 1, n, v, h.tau);
      if (vectors) reflect_row<T>(Z + own, stride, k + 1, n, v, h.tau);
    }
    meet<GROUP>();
  }
}
