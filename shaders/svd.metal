#include "scalar.h"
#include "householder.h"
#include "jacobi.h"
#include "reduce.h"

// Takes the power of two out that brings the largest entry near 1; returns the sum of squares.
template <typename T, int N> inline real_t<T> rescale(thread T (&a)[N], thread int& exponent) {
  real_t<T> largest = real_t<T>(0);
#pragma unroll
  for (int i = 0; i < N; ++i) largest = max(largest, largest_part(a[i]));
  const int taken = exponent_of(largest);
  exponent = largest == real_t<T>(0) ? OF_ZERO : exponent + taken;
  real_t<T> sum = real_t<T>(0);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    a[i] = scale(a[i], -taken);
    sum += square_of(a[i]);
  }
  return sum;
}

// Columns from `rank` on of the matrix in `tile`, W + 1 entries a column, become orthonormal to
// those before: what two projections leave of the unit vector that is farthest from them. A lane
// is a row, and in turn a column of those before.
template <typename T, int W>
inline void complete(threadgroup T* tile, uint rank, uint m, uint columns, uint lane) {
  typedef real_t<T> Real;
  constexpr uint STRIDE = W + 1;
  const uint own = lane % uint(W);
  const uint first_lane = lane - own;
  for (uint k = simd_min(rank); k < columns; ++k) {
    const bool missing = k >= rank;
    Real left = Real(1);
    for (uint j = 0; j < k; ++j) left -= square_of(tile[j * STRIDE + own]);
    Real weight = own < m ? max(left, Real(0)) : Real(-1);
    uint chosen = own;
    lane_argmax<W>(weight, chosen);
    T w = own == chosen ? one<T>() : zero<T>();
#pragma unroll(1)
    for (int pass = 0; pass < 2; ++pass) {
      if (missing) tile[k * STRIDE + own] = w;
      simdgroup_barrier(mem_flags::mem_threadgroup);
      T minus = zero<T>();
      for (uint i = 0; i < m; ++i) {
        minus = mul_sub(minus, conj(tile[own * STRIDE + i]), tile[k * STRIDE + i]);
      }
      for (uint j = 0; j < k; ++j) {
        const T share = simd_shuffle(minus, ushort(first_lane + j));
        w = w + mul(share, tile[j * STRIDE + own]);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    const Real norm = sqrt(team_sum<W>(square_of(w)));
    if (missing) tile[k * STRIDE + own] = times(w, Real(1) / norm);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// A = X S Y^H of matrices with at most W rows and no more columns, 32 / W of them a simdgroup, by
// one-sided Jacobi. A lane has a column of A in registers, and one of Y in threadgroup memory. X
// has `columns` columns; with 0 only S is found. Y is written conjugated. info: -4 for a matrix
// that is not finite, as LAPACK's gesdd; 1 for one that does not converge.
template <typename T, int W>
kernel void svd_simd(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    device real_t<T>* S [[buffer(2)]],
    device T* Y [[buffer(3)]],
    device int* info [[buffer(4)]],
    constant uint& m [[buffer(5)]],
    constant uint& n [[buffer(6)]],
    constant uint& batch [[buffer(7)]],
    constant uint& row_stride [[buffer(8)]],
    constant uint& column_stride [[buffer(9)]],
    constant long& batch_stride [[buffer(10)]],
    constant uint& columns [[buffer(11)]],
    constant uint& x_row [[buffer(12)]],
    constant uint& x_column [[buffer(13)]],
    constant uint& y_row [[buffer(14)]],
    constant uint& y_column [[buffer(15)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  typedef real_t<T> Real;
  constexpr uint TEAMS = 32 / W;
  constexpr uint STRIDE = W + 1;
  // Cosines up to this many unit roundoffs may be rounding, and those turned are left as small.
  constexpr int LIMIT = W <= 8 ? 4 : W / 2;
  THREADGROUP_ARRAY(T, tiles, (W * (W + 1) * TEAMS));
  const uint column = lane % uint(W);
  const uint matrix = group * TEAMS + lane / uint(W);
  const bool active = matrix < batch;
  threadgroup T* tile = tiles + lane / uint(W) * (W * STRIDE);

  threadgroup T* v = tile + column * STRIDE;
  T a[W];
  device const T* from =
      A + long(active ? matrix : 0u) * batch_stride + long(column) * long(column_stride);
  uint infinite = 0;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    a[i] = active && column < n && uint(i) < m ? *from : zero<T>();
    if (!is_finite(a[i])) infinite = 1;
    from += row_stride;
    v[i] = uint(i) == column ? one<T>() : zero<T>();
  }
  const bool finite = team_max<W>(infinite) == 0;
#pragma unroll
  for (int i = 0; i < W; ++i) a[i] = finite ? a[i] : zero<T>();
  // A column is a 2^exponent: so columns of any scales have products that do not underflow.
  int exponent = 0;
  Real norm = sqrt(rescale<T, W>(a, exponent));
  const int least = team_max<W>(exponent) + least_exponent<Real>();

  bool done = false;
#pragma unroll(1)
  for (uint sweep = 0; sweep < SWEEPS; ++sweep) {
    Real worst = Real(0);
    // A sweep in which columns change their lanes has not met every pair.
    uint exchanged = 0;
#pragma unroll(1)
    for (uint distance = 1; distance < uint(W); ++distance) {
      const ushort partner = ushort(lane ^ distance);
      const bool low = lane < uint(partner);
      T minus = zero<T>();
#pragma unroll
      for (int i = 0; i < W; ++i) minus = mul_sub(minus, conj(a[i]), simd_shuffle(a[i], partner));
      // Both lanes of a pair go on with the same product, which is that of the lower one.
      const T product = zero<T>() - simd_shuffle(minus, low ? ushort(lane) : partner);
      const Real other_norm = simd_shuffle(norm, partner);
      const int other_exponent = simd_shuffle(exponent, partner);
      const Real low_norm = low ? norm : other_norm;
      const Real high_norm = low ? other_norm : norm;
      const int low_exponent = low ? exponent : other_exponent;
      const int high_exponent = low ? other_exponent : exponent;
      // Of the pair p is the longer, q the shorter column, and p goes to the lower lane; of norms
      // that rounding may have made differ each stays.
      const bool ordered = leads(low_norm, low_exponent, high_norm, high_exponent);
      const Real p_norm = ordered ? low_norm : high_norm;
      const Real q_norm = ordered ? high_norm : low_norm;
      const int p_exponent = ordered ? low_exponent : high_exponent;
      const int q_exponent = ordered ? high_exponent : low_exponent;
      const Real size = modulus(product);
      const Real cosine = q_norm > Real(0) ? size / (p_norm * q_norm) : Real(0);
      if (!done) worst = max(worst, cosine);
      const bool turn = !done && cosine > unit_roundoff<Real>();
      const Real quotient_of_norms = p_norm > Real(0) ? q_norm / p_norm : Real(0);
      const Real ratio = ldexp(quotient_of_norms, q_exponent - p_exponent);
      const bool exchange = !done && !ordered && ratio < Real(1) - Real(0x1p-16f);
      if (exchange) exchanged = 1;
      const bool moves = turn || exchange;
      if (!simd_any(moves)) continue;
      // q turned by `phase` has a positive product with p, and tan = ratio share.
      const Real difference = (Real(1) - ratio) * (Real(1) + ratio);
      const Real twice = Real(2) * ratio * cosine;
      const Real root = sqrt(difference * difference + twice * twice);
      const Real share = turn ? Real(2) * cosine / (difference + root) : Real(0);
      const Real tangent = ratio * share;
      const Real c = Real(1) / sqrt(Real(1) + tangent * tangent);
      const T direct = turn ? times(product, Real(1) / size) : one<T>();
      const T phase = ordered ? conj(direct) : direct;
      // What of p and of q the lane's new column is, of A in units of its new exponent, and of V.
      const bool leading = low == ordered;
      const bool takes_p = leading != exchange;
      const Real bit = c * tangent;
      T p_share = from_real<T>(takes_p ? c : -c * share * quotient_of_norms);
      T q_share = times(phase, takes_p ? ldexp(bit, q_exponent - p_exponent) : c);
      T p_turned = from_real<T>(takes_p ? c : -bit);
      T q_turned = times(phase, takes_p ? bit : c);
      if (!moves) {
        p_share = p_turned = leading ? one<T>() : zero<T>();
        q_share = q_turned = leading ? zero<T>() : one<T>();
      }
      const T own_share = leading ? p_share : q_share;
      const T other_share = zero<T>() - (leading ? q_share : p_share);
      Real sum = Real(0);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        a[i] = mul_sub(mul(a[i], own_share), simd_shuffle(a[i], partner), other_share);
        sum += square_of(a[i]);
      }
      if (columns > 0) {
        const T own_turned = leading ? p_turned : q_turned;
        const T other_turned = zero<T>() - (leading ? q_turned : p_turned);
#pragma unroll
        for (int i = 0; i < W; ++i) {
          const T entry = v[i];
          v[i] = mul_sub(mul(entry, own_turned), simd_shuffle(entry, partner), other_turned);
        }
      }
      if (moves) exponent = takes_p ? p_exponent : q_exponent;
      if (sum < Real(0x1p-20f)) {
        sum = rescale<T, W>(a, exponent);
        if (exponent < least) {
          exponent = OF_ZERO;
          sum = Real(0);
        }
      }
      if (moves) norm = sqrt(sum);
    }
    worst = team_max<W>(worst);
    const bool met_all = team_max<W>(exchanged) == 0;
    done = done || (met_all && worst <= Real(LIMIT) * unit_roundoff<Real>());
    if (!simd_any(!done)) break;
  }

  // The order of the columns, the first of equals first; lanes without a column stay.
  uint position = column < n ? 0u : column;
  for (uint j = 0; j < n; ++j) {
    const ushort source = ushort(lane - column + j);
    const Real other_norm = simd_shuffle(norm, source);
    const int other_exponent = simd_shuffle(exponent, source);
    const bool before = j < column ? leads(other_norm, other_exponent, norm, exponent)
                                   : !leads(norm, exponent, other_norm, other_exponent);
    if (column < n && before) position += 1;
  }
  const Real invalid = Real(NAN);
  if (active && column < n) {
    S[ulong(matrix) * n + position] = finite ? ldexp(norm, exponent) : invalid;
  }
  if (active && column == 0) info[matrix] = finite ? (done ? 0 : 1) : -4;
  if (columns > 0) {
    // While U takes the threadgroup memory, each lane's column of V waits where V will be written.
    device T* waiting =
        Y + ulong(active ? matrix : 0u) * n * n + ulong(column < n ? column : 0u) * y_column;
    const uint rows_waiting = active && column < n ? n : 0u;
    for (uint i = 0; i < rows_waiting; ++i) waiting[ulong(i) * y_row] = v[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const bool full = norm > Real(0);
    const Real inverse = full ? Real(1) / norm : Real(0);
#pragma unroll
    for (int i = 0; i < W; ++i) tile[position * STRIDE + uint(i)] = times(a[i], inverse);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const uint rank = team_sum<W>(full ? 1u : 0u);
    complete<T, W>(tile, active ? rank : columns, m, columns, lane);
    if (active && column < m) {
      device T* to = X + ulong(matrix) * m * columns + ulong(column) * x_row;
      for (uint j = 0; j < columns; ++j) {
        *to = finite ? tile[j * STRIDE + column] : from_real<T>(invalid);
        to += x_column;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      a[i] = uint(i) < rows_waiting ? waiting[ulong(i) * y_row] : zero<T>();
      v[i] = a[i];
    }
    simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    // Roundings of hundreds of turns add up: one step of Newton and Schulz, V (3 - V^H V) / 2,
    // takes their first order away.
#pragma unroll(1)
    for (uint k = 0; k < n; ++k) {
      threadgroup const T* other = tile + k * STRIDE;
      T minus = k == column ? one<T>() : zero<T>();
#pragma unroll(8)
      for (int i = 0; i < W; ++i) minus = mul_sub(minus, conj(other[i]), v[i]);
      const T share = scale(zero<T>() - minus, -1);
#pragma unroll
      for (int i = 0; i < W; ++i) a[i] = mul_sub(a[i], other[i], share);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < W; ++i) tile[position * STRIDE + uint(i)] = a[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (active && column < n) {
      device T* to = Y + ulong(matrix) * n * n + ulong(column) * y_row;
      for (uint j = 0; j < n; ++j) {
        *to = finite ? conj(tile[j * STRIDE + column]) : from_real<T>(invalid);
        to += y_column;
      }
    }
  }
}
