#include "scalar.h"
#include "householder.h"
#include "tile.h"

// Columns of a panel, and of the widest matrix that lies in registers.
constexpr constant uint WIDTH = 32;
// Rows of a thread of a group; a part is the simdgroup that holds so many rows of all columns.
constexpr constant int ROWS = 32;
// Two buffers of sums, one for each part, and the top row.
template <int PARTS> inline constexpr int sums_size() { return PARTS == 1 ? 1 : (PARTS + 1) * 32; }
// Parts that leave room in threadgroup memory.
template <typename T> inline constexpr int max_parts() { return sizeof(T) > 8 ? 2 : 16; }
// Entries above the diagonal of a triangular factor, by columns: (i, k) is k (k - 1) / 2 + i.
constexpr constant uint PACKED = 32 * 31 / 2;
inline uint packed_column(uint k) { return k * (k - 1) / 2; }

// A thread owns rows of column `column`; the lanes of a column's team hold the others.
struct Place {
  uint column;
  uint first_lane;
  uint part;
  uint parts;
};

// The sum of a value over the parts, in all of them, and the top row that part 0 has.
template <typename T, int PARTS>
inline T sum_parts(T value, thread T& top, Place place, threadgroup T* sums) {
  if constexpr (PARTS == 1) {
    return value;
  } else {
    sums[place.part * 32 + place.column] = value;
    if (place.part == 0) sums[uint(PARTS) * 32 + place.column] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // In pairs and without a branch, so that no load waits for another.
    T sum[2] = {zero<T>(), zero<T>()};
#pragma unroll
    for (uint p = 0; p < uint(PARTS); ++p) {
      const T entry = sums[p * 32 + place.column];
      sum[p % 2] = p < place.parts ? sum[p % 2] + entry : sum[p % 2];
    }
    top = sums[uint(PARTS) * 32 + place.column];
    return sum[0] + sum[1];
  }
}

// Householder's reduction of the columns in the lanes of a team, `steps` of them. Part 0 holds the
// top rows: row k stands at entry 0 at step k, then goes to `top` as LAPACK's geqrf leaves it, and
// every part turns its entries by one. Returns the column's tau; below the top rows v is left.
// `gram` gets the products v_i^H v_k, packed; the columns on the left have them in hand.
template <typename T, int W, int N, int PARTS>
inline T reduce_columns(
    thread T (&a)[N],
    Place place,
    uint steps,
    threadgroup T* top,
    threadgroup T* gram,
    threadgroup T* sums,
    Pivot<T> pivot) {
  const bool head = place.part == 0;
  T tau = zero<T>();
  T inverse = one<T>();
#pragma unroll(1)
  for (uint k = 0; k < steps; ++k) {
    const ushort source = ushort(place.first_lane + k);
    threadgroup const T* x = share<T, N>(a, place.column == k, pivot.at(k));
    // Two sums: a product need not wait for the one before.
    T minus[2] = {head ? zero<T>() : mul_sub(zero<T>(), conj(x[0]), a[0]), zero<T>()};
#pragma unroll
    for (int i = 1; i < N; ++i) minus[i % 2] = mul_sub(minus[i % 2], conj(x[i]), a[i]);
    T entry = a[0];
    threadgroup T* buffer = sums + (k & 1) * uint(sums_size<PARTS>());
    const T products = zero<T>() - sum_parts<T, PARTS>(minus[0] + minus[1], entry, place, buffer);
    const Reflector<T> h =
        reflector<T>(simd_shuffle(entry, source), real_part(simd_shuffle(products, source)));
    // f = conj(tau) v^H a; of the columns on the left v is what is left to scale.
    const bool right = place.column > k;
    const T whole = entry + mul(conj(h.inverse), products);
    const T f = right ? mul(conj(h.tau), whole) : zero<T>();
    const T g = mul(h.inverse, f);
    if (head) {
      T left = right ? entry - f : from_real<T>(h.beta);
      if (place.column < k) left = mul(entry, inverse);
      top[k * uint(W + 1) + place.column] = left;
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

// x := T x for the triangular factor T of a block of reflectors, a vector a lane of one simdgroup:
// T^-1 is diag(1 / tau) and above it V^H V (Puglisi, 1992), whose entries are `packed`. `tile` is
// overwritten.
template <typename T>
inline void multiply_factor(
    thread T (&x)[32],
    T tau,
    uint steps,
    uint lane,
    threadgroup const T* packed,
    threadgroup T* tile) {
  for (uint l = 1; l < steps; ++l) {
    const T factor = simd_shuffle(tau, ushort(l));
    if (lane < l) tile[l * 32 + lane] = mul(packed[packed_column(l) + lane], factor);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  substitute<T, 32, false>(x, tile, steps, true);
#pragma unroll
  for (int k = 0; k < 32; ++k) x[k] = mul(simd_shuffle(tau, ushort(k)), x[k]);
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Four rows of a part as they stand in `rows` to a column-major matrix: they follow its row `top`,
// the last of all is followed by the first. Those outside of [begin, end) are left alone.
template <typename T>
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
  for (uint e = lane; e < 4 * 32; e += 32) {
    const uint row = part * uint(ROWS) + (top + e % 4) % uint(ROWS);
    const uint j = e / 4;
    if (row >= begin && row < end && j < columns) {
      to[ulong(j) * stride + row] = rows[e % 4 * 32 + j];
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
  const T tau = reduce_columns<T, W, W, 1>(a, place, steps, tile, tile, tile, pivot);
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
template <typename T, int PARTS>
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
  maxima[place.part * 32 + place.column] = from_real<T>(largest);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint p = 0; p < place.parts; ++p) {
    largest = max(largest, real_part(maxima[p * 32 + place.column]));
  }
  const int exponent = exponent_of(largest);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) a[i] = scale(a[i], -exponent);
  return exponent;
}

// The columns of Q of a block of `height` rows from what reduce_columns left, to a column-major
// matrix whose columns are m apart: Q = I - V M with M = T V1^H, V1 being the top of V.
template <typename T>
inline void write_columns(
    thread T (&a)[ROWS],
    T tau,
    uint steps,
    uint height,
    uint n,
    device T* to,
    uint m,
    uint simd,
    uint lane,
    threadgroup const T* packed,
    threadgroup T* tile,
    threadgroup T* shared) {
  T x[32];
  if (simd == 0) {
#pragma unroll
    for (uint k = 0; k < 32; ++k) {
      const T below = k < lane ? conj(tile[lane * 33 + k]) : zero<T>();
      x[k] = lane < steps ? (k == lane ? one<T>() : below) : zero<T>();
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const uint row = (uint(i) + steps) % uint(ROWS);
      if (row < steps && row > lane) a[i] = tile[row * 33 + lane];
      if (row < steps && row == lane) a[i] = one<T>();
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simd == 0) {
    multiply_factor<T>(x, tau, steps, lane, packed, tile);
#pragma unroll
    for (uint k = 0; k < 32; ++k) tile[lane * 33 + k] = x[k];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup T* four = shared + simd * 128;
#pragma unroll(1)
  for (uint i = 0; i < uint(ROWS); i += 4) {
    const uint top = (i + steps) % uint(ROWS);
    T sum[4];
#pragma unroll
    for (uint k = 0; k < 4; ++k) {
      four[k * 32 + lane] = a[k];
      sum[k] = simd == 0 && (top + k) % uint(ROWS) == lane ? one<T>() : zero<T>();
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(8)
    for (uint k = 0; k < 32; ++k) {
      const T entry = tile[lane * 33 + k];
#pragma unroll
      for (uint l = 0; l < 4; ++l) sum[l] = mul_sub(sum[l], four[l * 32 + k], entry);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint k = 0; k < 4; ++k) four[k * 32 + lane] = sum[k];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    write_rows<T>(four, to, simd, top, 0, height, n, m, lane);
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int k = 0; k < ROWS - 4; ++k) a[k] = a[k + 4];
  }
}

// Q and R of blocks of at most 32 columns, a threadgroup a block of `rows` rows, of which the last
// may have fewer. R of all blocks stand below one another. With q_wanted = 0 there is no Q.
template <typename T>
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
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint parts [[simdgroups_per_threadgroup]]) {
  constexpr int PARTS = max_parts<T>();
  constexpr int PIVOTS = 2 * PARTS * ROWS;
  constexpr int SUMS = sums_size<PARTS>();
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  THREADGROUP_ARRAY(T, packed, PACKED);
  THREADGROUP_ARRAY(T, shared, (PIVOTS + 2 * SUMS));
  const Place place = {lane, 0, simd, parts};
  const Pivot<T> pivot = {shared + simd * uint(ROWS), uint(PARTS * ROWS)};
  const uint begin = group.x * rows;
  const uint height = min(rows, m - begin);
  const uint steps = min(height, n);
  T a[ROWS];
  const int exponent = read_panel<T, PARTS>(
      a, A + long(group.y) * batch_stride + long(begin) * long(row_stride), height, n, row_stride,
      column_stride, place, shared + PIVOTS + SUMS);
  const T tau =
      reduce_columns<T, 32, ROWS, PARTS>(a, place, steps, tile, packed, shared + PIVOTS, pivot);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint r_rows = min(rows, n);
  device T* r = R + ulong(group.y) * groups.x * r_rows * n + group.x * r_rows;
  for (uint j = simd; j < n; j += parts) {
    const int column_exponent = simd_shuffle(exponent, ushort(j));
    if (lane < r_rows) {
      const bool filled = lane < steps && lane <= j;
      r[ulong(j) * groups.x * r_rows + lane] =
          filled ? scale(tile[lane * 33 + j], column_exponent) : zero<T>();
    }
  }
  if (q_wanted != 0) {
    write_columns<T>(
        a, tau, steps, height, n, Q + ulong(group.y) * m * n + begin, m, simd, lane, packed, tile,
        shared);
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
  constexpr int PARTS = max_parts<T>();
  constexpr int PIVOTS = 2 * PARTS * ROWS;
  constexpr int SUMS = sums_size<PARTS>();
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  THREADGROUP_ARRAY(T, packed, PACKED);
  THREADGROUP_ARRAY(T, shared, (PIVOTS + 2 * SUMS));
  const Place place = {lane, 0, simd, parts};
  const Pivot<T> pivot = {shared + simd * uint(ROWS), uint(PARTS * ROWS)};
  const uint height = m - first;
  const uint width = last - first;
  const uint steps = min(height, width);
  device T* panel = A + (ulong(group) * n + first) * m + first;
  T a[ROWS];
  const int exponent =
      read_panel<T, PARTS>(a, panel, height, width, 1u, m, place, shared + PIVOTS + SUMS);
  const T own =
      reduce_columns<T, 32, ROWS, PARTS>(a, place, steps, tile, packed, shared + PIVOTS, pivot);
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
    write_rows<T>(four, panel, simd, (uint(i) + steps) % uint(ROWS), steps, height, width, m, lane);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simd == 0) {
    T x[32];
#pragma unroll
    for (uint k = 0; k < 32; ++k) x[k] = k == lane && k < steps ? one<T>() : zero<T>();
    multiply_factor<T>(x, own, steps, lane, packed, tile);
    device T* out = triangles + (ulong(group) * blocks + first / WIDTH) * (WIDTH * WIDTH);
#pragma unroll
    for (uint k = 0; k < 32; ++k) out[lane * WIDTH + k] = x[k];
  }
}

// Q of each block of rows times its block of the Q of the blocks' R: the second step of TSQR.
// A row a thread.
template <typename T>
[[max_total_threads_per_threadgroup(128)]] kernel void qr_combine(
    device const T* S [[buffer(0)]],
    device T* Q [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& rows [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, factor, 32 * 32);
  device const T* s = S + ulong(group.z) * groups.y * n * n + group.y * n;
  for (uint e = tid; e < WIDTH * n; e += 128) {
    const uint l = e % WIDTH;
    factor[e] = l < n ? s[ulong(e / WIDTH) * groups.y * n + l] : zero<T>();
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint inside = group.x * 128 + tid;
  const uint row = group.y * rows + inside;
  if (inside < rows && row < m) {
    device T* q = Q + ulong(group.z) * m * n + row;
    T x[WIDTH];
#pragma unroll
    for (uint l = 0; l < WIDTH; ++l) x[l] = l < n ? q[ulong(l) * m] : zero<T>();
    for (uint c = 0; c < n; ++c) {
      T minus = zero<T>();
#pragma unroll
      for (uint l = 0; l < WIDTH; ++l) minus = mul_sub(minus, x[l], factor[c * WIDTH + l]);
      q[ulong(c) * m] = zero<T>() - minus;
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
