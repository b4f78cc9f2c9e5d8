#include "scalar.h"
#include "householder.h"
#include "reduce.h"

template <typename T> inline real_t<T> square_of(T a) { return real_part(mul(conj(a), a)); }

// A column in the search for the next: what is left of it has the norm weight * 2^exponent.
template <typename R> struct Candidate {
  R weight;
  int exponent;
  uint position;
};

// NaN counts as infinite, so that it never hides behind a number; zero has the least exponent.
template <typename R> inline Candidate<R> candidate(R norm, int exponent, uint position) {
  const R weight = norm != norm ? R(INFINITY) : norm;
  const Candidate<R> made = {weight, weight == R(0) ? -4000 : exponent, position};
  return made;
}

// A column that is not to be chosen.
template <typename R> inline Candidate<R> no_candidate() {
  return candidate<R>(R(-INFINITY), 0, UINT_MAX);
}

// Of equals the first in order leads, as in LAPACK.
template <typename R> inline bool leads(Candidate<R> a, Candidate<R> b) {
  const int exponent = max(a.exponent, b.exponent);
  const R own = ldexp(a.weight, a.exponent - exponent);
  const R other = ldexp(b.weight, b.exponent - exponent);
  return own > other || (own == other && a.position < b.position);
}

// The leading candidate of each run of `width` lanes, in all of them.
template <int width, typename R> inline Candidate<R> leader(Candidate<R> best) {
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2) {
    const Candidate<R> other = {
        simd_shuffle_xor(best.weight, ushort(distance)),
        simd_shuffle_xor(best.exponent, ushort(distance)),
        simd_shuffle_xor(best.position, ushort(distance))};
    if (leads(other, best)) best = other;
  }
  return best;
}

// A column whose sum of squares is less is scaled up again: its entries are then near rounding, and
// what they become in later steps may be much smaller.
template <typename R> inline R small_square() { return R(0x1p-20f); }

// The square root of the unit roundoff: a norm downdated to less of its square has lost its digits.
template <typename R> inline R cancelled() { return sizeof(R) == 4 ? R(0x1p-12f) : R(0x1p-26f); }

// Takes the power of two out that brings the largest entry near 1; returns the sum of squares.
template <typename T, int N> inline real_t<T> rescale(thread T (&a)[N], thread int& exponent) {
  real_t<T> largest = real_t<T>(0);
#pragma unroll
  for (int i = 0; i < N; ++i) largest = max(largest, largest_part(a[i]));
  const int taken = exponent_of(largest);
  exponent += taken;
  real_t<T> sum = real_t<T>(0);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    a[i] = scale(a[i], -taken);
    sum += square_of(a[i]);
  }
  return sum;
}

// Q, R and the order of the columns of matrices with at most W rows and columns, 32 / W of them a
// simdgroup, a column a lane. Columns stay in their lanes; a lane knows the position of its column.
// Q has q_columns columns, none with 0; R has r_rows rows. At step k row k stands at entry 0.
template <typename T, int W>
kernel void qr_pivoted_simd(
    device const T* A [[buffer(0)]],
    device T* Q [[buffer(1)]],
    device T* R [[buffer(2)]],
    device int* P [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& row_stride [[buffer(7)]],
    constant uint& column_stride [[buffer(8)]],
    constant long& batch_stride [[buffer(9)]],
    constant uint& q_columns [[buffer(10)]],
    constant uint& r_rows [[buffer(11)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef real_t<T> Real;
  constexpr uint TEAMS = 32 / W;
  constexpr uint STRIDE = W + 1;
  THREADGROUP_ARRAY(T, tiles, (W * (W + 1) * TEAMS));
  THREADGROUP_ARRAY(uint, orders, 32);
  const uint column = lane % uint(W);
  const uint first_lane = lane - column;
  const uint matrix = group * TEAMS + lane / uint(W);
  const bool active = matrix < batch;
  const uint steps = min(m, n);
  threadgroup T* tile = tiles + lane / uint(W) * (W * STRIDE);
  threadgroup uint* order = orders + first_lane;

  T a[W];
  device const T* from =
      A + long(active ? matrix : 0u) * batch_stride + long(column) * long(column_stride);
#pragma unroll
  for (int i = 0; i < W; ++i) {
    a[i] = active && column < n && uint(i) < m ? *from : zero<T>();
    from += row_stride;
  }
  int exponent = 0;
  Real sum = rescale<T, W>(a, exponent);
  uint position = column;
  T tau = zero<T>();
  T inverse = one<T>();
#pragma unroll(1)
  for (uint k = 0; k < steps; ++k) {
    // The lane comes with the position.
    const bool open = position >= k && column < n;
    const Candidate<Real> own =
        open ? candidate<Real>(sqrt(sum), exponent, position * 32 + lane) : no_candidate<Real>();
    const uint chosen = leader<W>(own).position;
    const ushort source = ushort(chosen % 32);
    if (lane == chosen % 32) {
      position = k;
    } else if (position == k) {
      position = chosen / 32;
    }
    const T entry = a[0];
    const T x = simd_shuffle(entry, source);
    T minus = zero<T>();
#pragma unroll
    for (int i = 1; i < W; ++i) minus = mul_sub(minus, conj(simd_shuffle(a[i], source)), a[i]);
    const T products = zero<T>() - minus;
    const Reflector<T> h = reflector<T>(x, real_part(simd_shuffle(products, source)));
    // f = conj(tau) v^H a; of the columns that went before v is what is left to scale.
    const bool right = position > k;
    const T f = right ? mul(conj(h.tau), entry + mul(conj(h.inverse), products)) : zero<T>();
    const T g = mul(h.inverse, f);
    T left = scale(right ? entry - f : from_real<T>(h.beta), exponent);
    if (position < k) left = mul(entry, inverse);
    tile[k * STRIDE + column] = left;
    if (position == k) {
      tau = h.tau;
      inverse = h.inverse;
    }
    sum = Real(0);
#pragma unroll
    for (int i = 1; i < W; ++i) {
      a[i - 1] = mul_sub(a[i], simd_shuffle(a[i], source), g);
      sum += square_of(a[i - 1]);
    }
    a[W - 1] = zero<T>();
    if (right && sum < small_square<Real>()) sum = rescale<T, W>(a, exponent);
  }
#pragma unroll
  for (int i = 0; i < W; ++i) a[i] = mul(a[i], inverse);
  order[position] = column;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (active && column < n) P[ulong(matrix) * n + column] = int(order[column]);
  if (active && column < r_rows) {
    device T* to = R + ulong(matrix) * r_rows * n + column;
    for (uint j = 0; j < n; ++j) {
      const bool filled = column < steps && column <= j;
      *to = filled ? tile[column * STRIDE + order[j]] : zero<T>();
      to += r_rows;
    }
  }
  if (q_columns > 0) {
    // H_0 ... H_(steps - 1) times the identity, last reflector first, in place of the reflectors.
    if (position >= steps) {
#pragma unroll
      for (int i = 0; i < W; ++i) a[i] = steps + uint(i) == position ? one<T>() : zero<T>();
    }
#pragma unroll(1)
    for (uint step = 0; step < steps; ++step) {
      const uint k = steps - 1 - step;
      const ushort source = ushort(first_lane + order[k]);
      T minus = zero<T>();
#pragma unroll
      for (int i = 1; i < W; ++i) {
        minus = mul_sub(minus, conj(simd_shuffle(a[i - 1], source)), a[i - 1]);
      }
      const T factor = simd_shuffle(tau, source);
      T g = zero<T>();
      T first = zero<T>();
      if (position > k) {
        g = zero<T>() - mul(factor, minus);
        first = zero<T>() - g;
      } else if (position == k) {
        // v - (1 + tau) v
        g = one<T>() + factor;
        first = one<T>() - factor;
      } else {
        first = tile[k * STRIDE + column];
      }
#pragma unroll
      for (int i = W - 1; i > 0; --i) {
        a[i] = mul_sub(a[i - 1], simd_shuffle(a[i - 1], source), g);
      }
      a[0] = first;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < W; ++i) tile[position * STRIDE + uint(i)] = a[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (active && column < m) {
      device T* to = Q + ulong(matrix) * m * q_columns + column;
      for (uint j = 0; j < q_columns; ++j) {
        *to = tile[j * STRIDE + column];
        to += m;
      }
    }
  }
}

// Copies matrices to W, column-major, each column divided by a power of two, a simdgroup a column.
// The state begins: norms, what they were when last computed, exponents and the order.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void qr_pivoted_start(
    device const T* A [[buffer(0)]],
    device T* W [[buffer(1)]],
    device real_t<T>* norms [[buffer(2)]],
    device real_t<T>* computed [[buffer(3)]],
    device int* exponents [[buffer(4)]],
    device int* order [[buffer(5)]],
    constant uint& m [[buffer(6)]],
    constant uint& n [[buffer(7)]],
    constant uint& row_stride [[buffer(8)]],
    constant uint& column_stride [[buffer(9)]],
    constant long& batch_stride [[buffer(10)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  const uint j = group.x * 8 + simd;
  const uint rows = j < n ? m : 0u;
  device const T* from =
      A + long(group.y) * batch_stride + long(min(j, n - 1)) * long(column_stride);
  device T* to = W + (ulong(group.y) * n + min(j, n - 1)) * m;
  Real largest = Real(0);
  for (uint i = lane; i < rows; i += 32) {
    const T entry = from[long(i) * long(row_stride)];
    to[i] = entry;
    largest = max(largest, largest_part(entry));
  }
  const int exponent = exponent_of(simd_max(largest));
  Real sum = Real(0);
  for (uint i = lane; i < rows; i += 32) {
    const T entry = scale(to[i], -exponent);
    to[i] = entry;
    sum += square_of(entry);
  }
  const Real norm = sqrt(simd_sum(sum));
  if (lane == 0 && j < n) {
    const ulong state = ulong(group.y) * 2 * n + j;
    norms[state] = norm;
    computed[ulong(group.y) * n + j] = norm;
    exponents[state] = exponent;
    order[state] = int(j);
  }
}

// Steps first to last - 1 of LAPACK's laqp2 with the columns left where they are, a simdgroup a
// column at a time. The groups of a matrix all choose the pivot and make its reflector; each takes
// a share of the columns, and one step only, since what the others write is seen in the next
// launch. So norms, exponents and the order are kept twice: step k reads one and writes the other.
// Rows above k are those of R; v stays in W without its scale `inverses`.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void qr_pivoted_steps(
    device T* W [[buffer(0)]],
    device real_t<T>* norms [[buffer(1)]],
    device real_t<T>* computed [[buffer(2)]],
    device int* exponents [[buffer(3)]],
    device int* order [[buffer(4)]],
    device T* tau [[buffer(5)]],
    device T* inverses [[buffer(6)]],
    device T* diagonal [[buffer(7)]],
    device int* P [[buffer(8)]],
    constant uint& m [[buffer(9)]],
    constant uint& n [[buffer(10)]],
    constant uint& first [[buffer(11)]],
    constant uint& last [[buffer(12)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(Real, best_weights, 8);
  THREADGROUP_ARRAY(int, best_exponents, 8);
  THREADGROUP_ARRAY(uint, best_positions, 8);
  THREADGROUP_ARRAY(Real, sums, 8);
  const uint steps = min(m, n);
  device T* matrix = W + ulong(group.y) * m * n;
  device Real* last_norms = computed + ulong(group.y) * n;
  for (uint k = first; k < last; ++k) {
    const ulong old_state = (ulong(group.y) * 2 + k % 2) * n;
    const ulong new_state = (ulong(group.y) * 2 + (k + 1) % 2) * n;
    Candidate<Real> best = no_candidate<Real>();
    for (uint i = k + tid; i < n; i += 256) {
      const uint c = uint(order[old_state + i]);
      const Candidate<Real> other =
          candidate<Real>(norms[old_state + c], exponents[old_state + c], i);
      if (leads(other, best)) best = other;
    }
    best = leader<32>(best);
    if (lane == 0) {
      best_weights[simd] = best.weight;
      best_exponents[simd] = best.exponent;
      best_positions[simd] = best.position;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint s = 0; s < 8; ++s) {
      const Candidate<Real> other = {best_weights[s], best_exponents[s], best_positions[s]};
      if (leads(other, best)) best = other;
    }
    const uint chosen = best.position;
    const uint p = uint(order[old_state + chosen]);
    device const T* x = matrix + ulong(p) * m;
    Real part = Real(0);
    for (uint i = k + 1 + tid; i < m; i += 256) part += square_of(x[i]);
    part = simd_sum(part);
    if (lane == 0) sums[simd] = part;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Real squares = Real(0);
    for (uint s = 0; s < 8; ++s) squares += sums[s];
    const Reflector<T> h = reflector<T>(x[k], squares);
    if (group.x == 0 && tid == 0) {
      const ulong at = ulong(group.y) * steps + k;
      tau[at] = h.tau;
      inverses[at] = h.inverse;
      diagonal[at] = scale(from_real<T>(h.beta), exponents[old_state + p]);
      P[ulong(group.y) * n + k] = int(p);
    }
    for (uint begin = k + 1; begin < n; begin += groups.x * 8) {
      const uint i = begin + group.x * 8 + simd;
      const bool inside = i < n;
      // The column that was at k takes the place of the chosen one.
      const uint c = uint(order[old_state + (inside && i != chosen ? i : k)]);
      device T* column = matrix + ulong(c) * m;
      const uint rows = inside ? m : 0u;
      T minus = zero<T>();
      for (uint r = k + 1 + lane; r < rows; r += 32) minus = mul_sub(minus, conj(x[r]), column[r]);
      const T products = zero<T>() - simd_sum(minus);
      const T entry = inside ? column[k] : zero<T>();
      const T f = mul(conj(h.tau), entry + mul(conj(h.inverse), products));
      const T g = mul(h.inverse, f);
      for (uint r = k + 1 + lane; r < rows; r += 32) column[r] = mul_sub(column[r], x[r], g);
      const T above = entry - f;
      // The norm of what is left, as Drmac and Bujanovic (2008) have it: computed anew where too
      // many digits cancel.
      int exponent = exponents[old_state + c];
      Real norm = norms[old_state + c];
      const Real share = safe_modulus(above) / norm;
      const Real left = max(Real(0), (Real(1) - share) * (Real(1) + share));
      const Real since = norm / last_norms[c];
      const bool kept = left * since * since > cancelled<Real>();
      norm = norm * sqrt(left);
      Real largest = Real(0);
      for (uint r = k + 1 + lane; r < (kept ? 0u : rows); r += 32) {
        largest = max(largest, largest_part(column[r]));
      }
      const int taken = exponent_of(simd_max(largest));
      Real sum = Real(0);
      for (uint r = k + 1 + lane; r < (kept ? 0u : rows); r += 32) {
        const T scaled = scale(column[r], -taken);
        column[r] = scaled;
        sum += square_of(scaled);
      }
      sum = simd_sum(sum);
      if (inside && lane == 0) {
        column[k] = scale(above, exponent);
        if (!kept) {
          norm = sqrt(sum);
          exponent += taken;
          last_norms[c] = norm;
        }
        norms[new_state + c] = norm;
        exponents[new_state + c] = exponent;
        order[new_state + i] = int(c);
        if (k + 1 == steps) P[ulong(group.y) * n + i] = int(c);
      }
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
}

// R with the reflectors below it, the columns in their order, of what the steps left. From row m on
// the factor's `rows` are zero. An entry a thread.
template <typename T>
kernel void qr_pivoted_gather(
    device const T* W [[buffer(0)]],
    device const T* inverses [[buffer(1)]],
    device const T* diagonal [[buffer(2)]],
    device const int* P [[buffer(3)]],
    device T* factor [[buffer(4)]],
    constant uint& m [[buffer(5)]],
    constant uint& n [[buffer(6)]],
    constant uint& rows [[buffer(7)]],
    uint3 id [[thread_position_in_grid]]) {
  const uint steps = min(m, n);
  const uint j = id.y;
  const ulong at = ulong(id.z) * steps + j;
  T entry = zero<T>();
  if (id.x < m) entry = W[(ulong(id.z) * n + uint(P[ulong(id.z) * n + j])) * m + id.x];
  if (j < steps && id.x == j) entry = diagonal[at];
  if (j < steps && id.x > j) entry = mul(entry, inverses[at]);
  factor[(ulong(id.z) * n + j) * rows + id.x] = entry;
}
