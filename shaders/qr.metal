#include "scalar.h"
#include "householder.h"
#include "triangular_factor.h"

// Columns of a panel: one a lane.
constexpr constant uint WIDTH = 32;
// Columns more that a wide group has, one of four parts in the lanes of a simdgroup.
constexpr constant uint EXTRA = 8;
// Rows of a thread of a group; a part is the simdgroup that holds so many rows of all columns.
constexpr constant int ROWS = 32;
// Parts that leave room in threadgroup memory.
template <typename T, int W> inline constexpr int max_parts() {
  return W > 32 ? 8 : (sizeof(T) > 8 ? 2 : 16);
}
// From one part's sums to the next: those of one column lie on different banks.
template <int W> inline constexpr int sums_stride() { return W > 32 ? W + 1 : W; }
// The sums of a step, one for each part, and the top row.
template <int W, int PARTS> inline constexpr int sums_size() {
  return PARTS == 1 ? 1 : (PARTS + 1) * sums_stride<W>();
}
// What a group's threads tell each other: pivot columns twice and sums, these twice too where no
// barrier parts a step's from those before; later four rows of each part.
template <int W, int PARTS> inline constexpr int shared_size() {
  constexpr int STEPS = 2 * PARTS * ROWS + (W > 32 ? 1 : 2) * sums_size<W, PARTS>();
  return STEPS > 4 * W * PARTS ? STEPS : 4 * W * PARTS;
}
// From row to row of the top of a group's block: wide accesses stay aligned.
template <typename T, int W> inline constexpr int top_stride() { return W + int(16 / sizeof(T)); }
// A thread owns rows of column `column`; the lanes of a column's team hold the others.
struct Place {
  uint column;
  uint first_lane;
  uint part;
  uint parts;
};

template <int W> inline Place place_in_group(uint tid, uint parts) {
  if (W > 32 && tid >= parts * 32) {
    const uint extra = tid - parts * 32;
    const Place place = {32 + extra % EXTRA, 0, extra / EXTRA, parts};
    return place;
  }
  const Place place = {tid % 32, 0, tid / 32, parts};
  return place;
}

// What a thread's part wrote to threadgroup memory is there for the other threads of the part.
template <int W> inline void part_barrier() {
  if constexpr (W > 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// The sum of a value over the parts, in all of them, and the top row, which part `head` has.
template <typename T, int W, int PARTS>
inline T sum_parts(T value, thread T& top, bool head, Place place, threadgroup T* sums) {
  if constexpr (PARTS == 1) {
    return value;
  } else {
    constexpr uint STRIDE = sums_stride<W>();
    constexpr uint AT_ONCE = PARTS < 4 ? PARTS : 4;
    sums[place.part * STRIDE + place.column] = value;
    if (head) sums[uint(PARTS) * STRIDE + place.column] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Several at once and without a branch, so that no load waits for another.
    T sum[4] = {zero<T>(), zero<T>(), zero<T>(), zero<T>()};
#pragma unroll
    for (uint first = 0; first < uint(PARTS); first += AT_ONCE) {
      if (first < place.parts) {
#pragma unroll
        for (uint p = 0; p < AT_ONCE; ++p) {
          const T entry = sums[(first + p) * STRIDE + place.column];
          sum[p] = first + p < place.parts ? sum[p] + entry : sum[p];
        }
      }
    }
    top = sums[uint(PARTS) * STRIDE + place.column];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
}

// The sum over the parts for column k, of which each lane reads one.
template <typename T, int W, int PARTS>
inline real_t<T> sum_of_column(uint k, Place place, threadgroup const T* sums) {
  static_assert(PARTS == int(EXTRA), "lanes of a simdgroup read one part each, in runs of EXTRA");
  const uint p = place.column % EXTRA;
  const real_t<T> own = real_part(sums[p * uint(sums_stride<W>()) + k]);
  real_t<T> sum = p < place.parts ? own : real_t<T>(0);
#pragma unroll
  for (uint distance = EXTRA / 2; distance > 0; distance /= 2) {
    sum = sum + simd_shuffle_xor(sum, ushort(distance));
  }
  return sum;
}

// Householder's reduction of the columns in the lanes of a team, `steps` of them. The first parts
// hold the top rows: row k stands at entry 0 at step k, then goes to `top` as LAPACK's geqrf leaves
// it, and every part turns its entries by one. Returns the column's tau; below the top rows v is
// left. `gram` gets the products v_i^H v_k, packed; the columns on the left have them in hand.
template <typename T, int W, int N, int PARTS>
inline T reduce_columns(
    thread T (&a)[N],
    Place place,
    uint steps,
    threadgroup T* top,
    uint top_stride,
    threadgroup T* gram,
    threadgroup T* sums,
    Pivot<T> pivot) {
  T tau = zero<T>();
  T inverse = one<T>();
#pragma unroll(1)
  for (uint k = 0; k < steps; ++k) {
    const bool head = place.part == k / uint(ROWS);
    threadgroup const T* x = share<T, N>(a, place.column == k, pivot.at(k));
    if constexpr (W > 32) threadgroup_barrier(mem_flags::mem_threadgroup);
    // Two sums: a product need not wait for the one before.
    T minus[2] = {head ? zero<T>() : mul_sub(zero<T>(), conj(x[0]), a[0]), zero<T>()};
#pragma unroll
    for (int i = 1; i < N; ++i) minus[i % 2] = mul_sub(minus[i % 2], conj(x[i]), a[i]);
    T entry = a[0];
    threadgroup T* buffer = sums + (W > 32 ? 0u : (k & 1) * uint(sums_size<W, PARTS>()));
    const T products =
        zero<T>() - sum_parts<T, W, PARTS>(minus[0] + minus[1], entry, head, place, buffer);
    T corner;
    real_t<T> squares;
    if constexpr (W > 32) {
      corner = buffer[PARTS * sums_stride<W>() + int(k)];
      squares = -sum_of_column<T, W, PARTS>(k, place, buffer);
    } else {
      const ushort source = ushort(place.first_lane + k);
      corner = simd_shuffle(entry, source);
      squares = real_part(simd_shuffle(products, source));
    }
    const Reflector<T> h = reflector<T>(corner, squares);
    // f = conj(tau) v^H a; of the columns on the left v is what is left to scale.
    const bool right = place.column > k;
    const T whole = entry + mul(conj(h.inverse), products);
    const T f = right ? mul(conj(h.tau), whole) : zero<T>();
    const T g = mul(h.inverse, f);
    if (head) {
      T left = right ? entry - f : from_real<T>(h.beta);
      if (place.column < k) left = mul(entry, inverse);
      top[k * top_stride + place.column] = left;
      if constexpr (PARTS > 1) {
        if (place.column < k) gram[packed_column(k) + place.column] = conj(mul(inverse, whole));
      }
    }
    if (place.column == k) {
      tau = h.tau;
      inverse = h.inverse;
    }
    const T first = head ? zero<T>() : mul_sub(a[0], x[0], g);
#pragma unroll
    for (int i = 1; i < N; ++i) a[i - 1] = mul_sub(a[i], x[i], g);
    a[N - 1] = first;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = mul(a[i], inverse);
  return tau;
}

// The columns of Q = H_0 ... H_(steps - 1) in place of what reduce_columns left in a team's lanes,
// last reflector first; the entries turn back. Columns without a reflector begin as those of the
// identity.
template <typename T, int W>
inline void form_columns(
    thread T (&a)[W], Place place, uint steps, T tau, threadgroup const T* top, Pivot<T> pivot) {
  if (place.column >= steps) {
#pragma unroll
    for (int i = 0; i < W; ++i) a[i] = steps + uint(i) == place.column ? one<T>() : zero<T>();
  }
#pragma unroll(1)
  for (uint step = 0; step < steps; ++step) {
    const uint k = steps - 1 - step;
    threadgroup const T* x = share<T, W>(a, place.column == k, pivot.at(step));
    T products[2] = {zero<T>(), zero<T>()};
#pragma unroll
    for (int i = 1; i < W; ++i) {
      products[i % 2] = mul_sub(products[i % 2], conj(x[i - 1]), a[i - 1]);
    }
    const T factor = simd_shuffle(tau, ushort(place.first_lane + k));
    T g = zero<T>();
    T first = zero<T>();
    if (place.column > k) {
      g = mul(factor, zero<T>() - (products[0] + products[1]));
      first = zero<T>() - g;
    } else if (place.column == k) {
      // v - (1 + tau) v
      g = one<T>() + factor;
      first = one<T>() - factor;
    } else {
      first = top[k * uint(W + 1) + place.column];
    }
#pragma unroll
    for (int i = W - 1; i > 0; --i) a[i] = mul_sub(a[i - 1], x[i - 1], g);
    a[0] = first;
  }
}

// Four rows of a part as they stand in `rows` to a column-major matrix: they follow its row `top`,
// the last of all is followed by the first. Those outside of [begin, end) are left alone.
template <typename T, int W>
inline void write_rows(
    threadgroup const T* rows,
    device T* to,
    uint part,
    uint top,
    uint begin,
    uint end,
    uint columns,
    uint stride,
    uint lane) {
#pragma unroll
  for (uint e = lane; e < 4 * uint(W); e += 32) {
    const uint row = part * uint(ROWS) + (top + e % 4) % uint(ROWS);
    const uint j = e / 4;
    if (row >= begin && row < end && j < columns) {
      to[ulong(j) * stride + row] = rows[e % 4 * uint(W) + j];
    }
  }
}

// Q and R of matrices with at most W rows and columns, 32 / W of them a simdgroup, a column a lane.
// Q has q_columns columns, none with 0; R has r_rows rows.
template <typename T, int W>
kernel void qr_simd(
    device const T* A [[buffer(0)]],
    device T* Q [[buffer(1)]],
    device T* R [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& batch [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& q_columns [[buffer(9)]],
    constant uint& r_rows [[buffer(10)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint TEAMS = 32 / W;
  THREADGROUP_ARRAY(T, tiles, (W * (W + 1) * TEAMS));
  THREADGROUP_ARRAY(T, pivots, 2 * 32);
  THREADGROUP_ARRAY(int, exponents, 32);
  const uint column = lane % uint(W);
  const uint matrix = group * TEAMS + lane / uint(W);
  const bool active = matrix < batch;
  const uint steps = min(m, n);
  threadgroup T* tile = tiles + lane / uint(W) * uint(W * (W + 1));
  const Place place = {column, lane - column, 0, 1};
  const Pivot<T> pivot = {pivots + (lane - column), 32};

  T a[W];
  real_t<T> largest = real_t<T>(0);
  device const T* from =
      A + long(active ? matrix : 0u) * batch_stride + long(column) * long(column_stride);
#pragma unroll
  for (int i = 0; i < W; ++i) {
    a[i] = active && column < n && uint(i) < m ? *from : zero<T>();
    from += row_stride;
    largest = max(largest, largest_part(a[i]));
  }
  const int exponent = exponent_of(largest);
#pragma unroll
  for (int i = 0; i < W; ++i) a[i] = scale(a[i], -exponent);

  exponents[lane] = exponent;
  const T tau = reduce_columns<T, W, W, 1>(a, place, steps, tile, W + 1, tile, tile, pivot);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (active && column < r_rows) {
    device T* to = R + ulong(matrix) * r_rows * n + column;
    for (uint j = 0; j < n; ++j) {
      const bool filled = column < steps && column <= j;
      *to =
          filled ? scale(tile[column * uint(W + 1) + j], exponents[lane - column + j]) : zero<T>();
      to += r_rows;
    }
  }
  if (q_columns > 0) {
    form_columns<T, W>(a, place, steps, tau, tile, pivot);
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < W; ++i) tile[column * uint(W + 1) + uint(i)] = a[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (active && column < m) {
      device T* to = Q + ulong(matrix) * m * q_columns + column;
      for (uint j = 0; j < q_columns; ++j) {
        *to = tile[j * uint(W + 1) + column];
        to += m;
      }
    }
  }
}

// The thread's part of a column of `rows` x n, scaled; returns the exponent that was taken out.
// `maxima` may be written anew after a barrier.
template <typename T, int W>
inline int read_panel(
    thread T (&a)[ROWS],
    device const T* matrix,
    uint rows,
    uint n,
    uint row_stride,
    uint column_stride,
    Place place,
    threadgroup T* maxima) {
  const uint first = place.part * uint(ROWS);
  device const T* from =
      matrix + long(first) * long(row_stride) + long(place.column) * long(column_stride);
  real_t<T> largest = real_t<T>(0);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    a[i] = place.column < n && first + uint(i) < rows ? *from : zero<T>();
    from += row_stride;
    largest = max(largest, largest_part(a[i]));
  }
  maxima[place.part * uint(W) + place.column] = from_real<T>(largest);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint p = 0; p < place.parts; ++p) {
    largest = max(largest, real_part(maxima[p * uint(W) + place.column]));
  }
  const int exponent = exponent_of(largest);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) a[i] = scale(a[i], -exponent);
  return exponent;
}

// V of a block of `height` rows from what reduce_columns left, to a column-major matrix whose
// columns are m apart. All threads of the group call it.
template <typename T, int W>
inline void write_reflectors(
    thread T (&a)[ROWS],
    Place place,
    uint steps,
    uint height,
    uint n,
    device T* to,
    uint m,
    uint tid,
    threadgroup const T* top,
    threadgroup T* shared) {
  const uint first = place.part * uint(ROWS);
  threadgroup T* four = shared + place.part * uint(4 * W);
#pragma unroll
  for (int i = 0; i < ROWS; i += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint row = first + (uint(i + k) + steps) % uint(ROWS);
      T entry = a[i + k];
      if (row < steps) {
        const T above = row == place.column ? one<T>() : zero<T>();
        entry = row > place.column ? top[row * uint(top_stride<T, W>()) + place.column] : above;
      }
      four[uint(k * W) + place.column] = entry;
    }
    part_barrier<W>();
    if (tid < place.parts * 32) {
      write_rows<T, W>(
          four, to, place.part, (uint(i) + steps) % uint(ROWS), 0, height, n, m, tid % 32);
    }
    part_barrier<W>();
  }
}

// M = T V1^H, upper triangular, in place of the top of a block, whose strict lower triangle is that
// of V1.
template <typename T, int W>
inline void multiply_top(
    threadgroup const T* packed,
    threadgroup const T* tau,
    threadgroup T* top,
    uint steps,
    uint tid,
    uint threads) {
  constexpr uint STRIDE = top_stride<T, W>();
  for (uint e = tid; e < uint(W) * steps; e += threads) {
    const uint k = e % uint(W);
    const uint j = e / uint(W);
    if (k <= j) {
      threadgroup const T* row = packed + packed_column(k + 1) + k;
      T minus = zero<T>();
      T before = tau[k];
#pragma unroll(4)
      for (uint l = k; l < j; ++l) {
        minus = mul_sub(minus, before, conj(top[j * STRIDE + l]));
        before = *row;
        row += l + 1;
      }
      top[k * STRIDE + j] = before - minus;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint e = tid; e < uint(W) * steps; e += threads) {
    const uint j = e % uint(W);
    const uint k = e / uint(W);
    if (j < k || j >= steps) top[k * STRIDE + j] = zero<T>();
  }
}

// A row of Q = I - V M in place of V's, in a column-major matrix whose columns are m apart.
template <typename T, int W>
inline void multiply_row(
    device T* q, uint row, uint steps, uint n, uint m, threadgroup const T* product) {
  constexpr uint STRIDE = top_stride<T, W>();
  T sum[W];
#pragma unroll
  for (uint c = 0; c < uint(W); ++c) sum[c] = row == c && c < steps ? one<T>() : zero<T>();
  T next = q[0];
#pragma unroll(2)
  for (uint k = 0; k < steps; ++k) {
    const T x = next;
    if (k + 1 < steps) next = q[ulong(k + 1) * m];
#pragma unroll
    for (uint first = 0; first < uint(W); first += 8) {
      if (first + 8 > k) {
#pragma unroll
        for (uint c = first; c < first + 8; ++c) {
          sum[c] = mul_sub(sum[c], x, product[k * STRIDE + c]);
        }
      }
    }
  }
#pragma unroll
  for (uint c = 0; c < uint(W); ++c) {
    if (c < n) q[ulong(c) * m] = sum[c];
  }
}

// Q and R of blocks of at most W columns, a threadgroup a block of `rows` rows, of which the last
// may have fewer. R of all blocks stand below one another. With q_wanted = 0 there is no Q.
template <typename T, int W>
[[max_total_threads_per_threadgroup(512)]] kernel void qr_group(
    device const T* A [[buffer(0)]],
    device T* Q [[buffer(1)]],
    device T* R [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& rows [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& q_wanted [[buffer(9)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  constexpr int PARTS = max_parts<T, W>();
  constexpr int PIVOTS = 2 * PARTS * ROWS;
  constexpr int MAXIMA = PIVOTS + (W > 32 ? 0 : sums_size<W, PARTS>());
  constexpr uint STRIDE = top_stride<T, W>();
  THREADGROUP_ARRAY(T, tile, (W * int(STRIDE)));
  THREADGROUP_ARRAY(T, packed, (packed_size<W>()));
  THREADGROUP_ARRAY(T, shared, (shared_size<W, PARTS>()));
  THREADGROUP_ARRAY(T, factors, W);
  THREADGROUP_ARRAY(int, exponents, W);
  const uint threads = simds * 32;
  const Place place = place_in_group<W>(tid, (rows + uint(ROWS) - 1) / uint(ROWS));
  const Pivot<T> pivot = {shared + place.part * uint(ROWS), uint(PARTS * ROWS)};
  const uint begin = group.x * rows;
  const uint height = min(rows, m - begin);
  const uint steps = min(height, n);
  T a[ROWS];
  const int exponent = read_panel<T, W>(
      a, A + long(group.y) * batch_stride + long(begin) * long(row_stride), height, n, row_stride,
      column_stride, place, shared + MAXIMA);
  const T tau = reduce_columns<T, W, ROWS, PARTS>(
      a, place, steps, tile, STRIDE, packed, shared + PIVOTS, pivot);
  if (place.part == 0) {
    factors[place.column] = tau;
    exponents[place.column] = exponent;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint r_rows = min(rows, n);
  device T* r = R + ulong(group.y) * groups.x * r_rows * n + group.x * r_rows;
  for (uint e = tid; e < uint(W) * n; e += threads) {
    const uint i = e % uint(W);
    const uint j = e / uint(W);
    if (i < r_rows) {
      const bool filled = i < steps && i <= j;
      r[ulong(j) * groups.x * r_rows + i] =
          filled ? scale(tile[i * STRIDE + j], exponents[j]) : zero<T>();
    }
  }
  if (q_wanted != 0) {
    device T* q = Q + ulong(group.y) * m * n + begin;
    write_reflectors<T, W>(a, place, steps, height, n, q, m, tid, tile, shared);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    make_factor<T>(packed, factors, steps, tid, threads, shared);
    multiply_top<T, W>(packed, factors, tile, steps, tid, threads);
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (tid < height) multiply_row<T, W>(q + tid, tid, steps, n, m, tile);
  }
}

// LAPACK's geqr2 in place on the columns [first, last) of a column-major m x n matrix from row
// `first` on, and the triangular factor of their reflectors, a threadgroup a matrix.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void qr_panel(
    device T* A [[buffer(0)]],
    device T* tau [[buffer(1)]],
    device T* triangles [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& first [[buffer(5)]],
    constant uint& last [[buffer(6)]],
    constant uint& blocks [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint parts [[simdgroups_per_threadgroup]]) {
  constexpr int PARTS = max_parts<T, 32>();
  constexpr int PIVOTS = 2 * PARTS * ROWS;
  constexpr int MAXIMA = PIVOTS + sums_size<32, PARTS>();
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  THREADGROUP_ARRAY(T, packed, (packed_size<32>()));
  THREADGROUP_ARRAY(T, shared, (shared_size<32, PARTS>()));
  THREADGROUP_ARRAY(T, factors, 32);
  const Place place = {lane, 0, simd, parts};
  const Pivot<T> pivot = {shared + simd * uint(ROWS), uint(PARTS * ROWS)};
  const uint height = m - first;
  const uint width = last - first;
  const uint steps = min(height, width);
  device T* panel = A + (ulong(group) * n + first) * m + first;
  T a[ROWS];
  const int exponent = read_panel<T, 32>(a, panel, height, width, 1u, m, place, shared + MAXIMA);
  const T own =
      reduce_columns<T, 32, ROWS, PARTS>(a, place, steps, tile, 33, packed, shared + PIVOTS, pivot);
  if (simd == 0) factors[lane] = own;
  if (simd == 0 && lane < steps) tau[ulong(group) * min(m, n) + first + lane] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint j = simd; j < width; j += parts) {
    const int column_exponent = simd_shuffle(exponent, ushort(j));
    if (lane < steps) {
      const T entry = tile[lane * 33 + j];
      panel[ulong(j) * m + lane] = lane <= j ? scale(entry, column_exponent) : entry;
    }
  }
  threadgroup T* four = shared + simd * 128;
#pragma unroll
  for (int i = 0; i < ROWS; i += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) four[uint(k) * 32 + lane] = a[i + k];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    write_rows<T, 32>(
        four, panel, simd, (uint(i) + steps) % uint(ROWS), steps, height, width, m, lane);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  make_factor<T>(packed, factors, steps, simd * 32 + lane, parts * 32, shared);
  write_factor<T>(
      packed, factors, steps, simd * 32 + lane, parts * 32,
      triangles + (ulong(group) * blocks + first / WIDTH) * (WIDTH * WIDTH));
}

// Q of each block of rows times its block of the Q of the blocks' R: the second step of TSQR.
// A row a thread.
template <typename T, int W>
[[max_total_threads_per_threadgroup(128)]] kernel void qr_combine(
    device const T* S [[buffer(0)]],
    device T* Q [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& rows [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, factor, (W * W));
  device const T* s = S + ulong(group.z) * groups.y * n * n + group.y * n;
  for (uint e = tid; e < uint(W) * n; e += 128) {
    const uint l = e % uint(W);
    factor[e] = l < n ? s[ulong(e / uint(W)) * groups.y * n + l] : zero<T>();
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint inside = group.x * 128 + tid;
  const uint row = group.y * rows + inside;
  if (inside < rows && row < m) {
    device T* q = Q + ulong(group.z) * m * n + row;
    T x[W];
#pragma unroll
    for (uint l = 0; l < uint(W); ++l) x[l] = l < n ? q[ulong(l) * m] : zero<T>();
    for (uint c = 0; c < n; ++c) {
      T minus = zero<T>();
#pragma unroll
      for (uint l = 0; l < uint(W); ++l) minus = mul_sub(minus, x[l], factor[c * uint(W) + l]);
      q[ulong(c) * m] = zero<T>() - minus;
    }
  }
}

// Gives the diagonal of R the signs that Householder's reduction of all rows would have chosen,
// and Q's columns, of which S has `rows` rows. A1 being the top of A and V1 that of the reflectors,
// A1 - R = V1 U, where step k of the elimination finds the entry whose sign that of r_kk is not to
// have. A threadgroup a matrix of at most W columns.
template <typename T, int W>
[[max_total_threads_per_threadgroup(256)]] kernel void qr_signs(
    device const T* A [[buffer(0)]],
    device T* R [[buffer(1)]],
    device T* S [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& rows [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(T, a, (W * (W + 1)));
  THREADGROUP_ARRAY(T, r, (W * (W + 1)));
  THREADGROUP_ARRAY(Real, signs, W);
  device const T* top = A + long(group) * batch_stride;
  device T* triangle = R + ulong(group) * n * n;
  for (uint e = tid; e < uint(W) * n; e += 256) {
    const uint i = e % uint(W);
    const uint j = e / uint(W);
    if (i < n) {
      a[i * uint(W + 1) + j] = top[long(i) * long(row_stride) + long(j) * long(column_stride)];
      r[i * uint(W + 1) + j] = triangle[j * n + i];
    }
  }
#pragma unroll(1)
  for (uint k = 0; k < n; ++k) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const T* x = a + k * uint(W + 1);
    threadgroup const T* y = r + k * uint(W + 1);
    const bool alike = (real_part(x[k]) >= Real(0)) == (real_part(y[k]) >= Real(0));
    const T sign = from_real<T>(alike ? Real(-1) : Real(1));
    const T pivot = mul_sub(x[k], sign, y[k]);
    if (tid == 0) signs[k] = real_part(sign);
    for (uint i = k + 1 + tid % 32; i < n; i += 32) {
      threadgroup T* row = a + i * uint(W + 1);
      const T l = is_zero(pivot) ? zero<T>() : quotient(row[k], pivot);
      for (uint j = k + 1 + tid / 32; j < n; j += 8) {
        row[j] = mul_sub(row[j], l, mul_sub(x[j], sign, y[j]));
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint e = tid; e < uint(W) * n; e += 256) {
    const uint i = e % uint(W);
    const uint j = e / uint(W);
    if (i <= j && signs[i] < Real(0)) triangle[j * n + i] = zero<T>() - r[i * uint(W + 1) + j];
  }
  device T* s = S + ulong(group) * rows * n;
  for (uint j = tid / 32; j < n; j += 8) {
    if (signs[j] < Real(0)) {
      for (uint i = tid % 32; i < rows; i += 32) {
        s[ulong(j) * rows + i] = zero<T>() - s[ulong(j) * rows + i];
      }
    }
  }
}

// R of a factor: its upper triangle, with `rows` rows. An entry a thread.
template <typename T>
kernel void qr_upper(
    device const T* A [[buffer(0)]],
    device T* R [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& rows [[buffer(4)]],
    uint3 id [[thread_position_in_grid]]) {
  const bool filled = id.x <= id.y;
  R[(ulong(id.z) * n + id.y) * rows + id.x] =
      filled ? A[(ulong(id.z) * n + id.y) * m + id.x] : zero<T>();
}
