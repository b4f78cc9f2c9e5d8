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

// Row x of V times t, which is given by columns.
template <typename T>
inline void write_product(
    thread const T (&x)[WIDTH], threadgroup const T* t, device T* VT, uint stride, uint width) {
#pragma unroll(4)
  for (uint c = 0; c < WIDTH; ++c) {
    T minus = zero<T>();
#pragma unroll
    for (uint l = 0; l < WIDTH; ++l) minus = mul_sub(minus, x[l], t[c * WIDTH + l]);
    if (c < width) VT[ulong(c) * stride] = zero<T>() - minus;
  }
}

// Reflectors whose first columns are the orthonormal columns of Y, up to signs: with those as the
// diagonal of D, I - Y D = V U by elimination that needs no pivots, tau is the diagonal of U, and R
// becomes D R (Ballard, Demmel, Grigori, Jacquelin, Knight, Nguyen, 2015). They replace the panel
// from row and column `first` of A on; the block's triangular factor has T V1^H = U, V1 being the
// top of V. With `expanded` 1, V is written out too, with 2 also V T^H. Each threadgroup
// eliminates, and takes 128 rows.
template <typename T>
[[max_total_threads_per_threadgroup(128)]] kernel void qr_reconstruct(
    device const T* Y [[buffer(0)]],
    device const T* R [[buffer(1)]],
    device T* A [[buffer(2)]],
    device T* tau [[buffer(3)]],
    device T* triangles [[buffer(4)]],
    device T* V [[buffer(5)]],
    device T* VT [[buffer(6)]],
    constant uint& m [[buffer(7)]],
    constant uint& n [[buffer(8)]],
    constant uint& first [[buffer(9)]],
    constant uint& width [[buffer(10)]],
    constant uint& blocks [[buffer(11)]],
    constant uint& expanded [[buffer(12)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(T, top, 32 * 33);
  THREADGROUP_ARRAY(T, u, 32 * 32);
  THREADGROUP_ARRAY(T, factors, 32);
  THREADGROUP_ARRAY(Real, signs, 32);
  const uint height = m - first;
  const uint lane = tid % 32;
  const uint walker = tid / 32;
  device const T* y = Y + ulong(group.y) * height * width;
  for (uint j = walker; j < WIDTH; j += 4) {
    const bool inside = lane < width && j < width;
    top[lane * 33 + j] = inside ? y[ulong(j) * height + lane] : zero<T>();
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (walker == 0) {
    // A row a lane; entry 0 stands in column k at step k. V1 and U take the place of Y, U without
    // the signs.
    T a[WIDTH];
#pragma unroll
    for (uint j = 0; j < WIDTH; ++j) a[j] = top[lane * 33 + j];
    const Pivot<T> pivot = {u, WIDTH};
#pragma unroll(1)
    for (uint k = 0; k < width; ++k) {
      threadgroup const T* x = share<T, int(WIDTH)>(a, lane == k, pivot.at(k));
      const Real sign = real_part(x[0]) > Real(0) ? Real(-1) : Real(1);
      // Of modulus 1 to 2.
      const T corner = one<T>() - mul(from_real<T>(sign), x[0]);
      const Real square = real_part(mul(conj(corner), corner));
      const T factor = mul(from_real<T>(-sign / square), conj(corner));
      const T l = lane > k ? mul(factor, a[0]) : zero<T>();
      top[lane * 33 + k] = lane > k ? l : (lane == k ? corner : a[0]);
      if (lane == k) {
        signs[k] = sign;
        factors[k] = factor;
      }
#pragma unroll
      for (uint j = 1; j < WIDTH; ++j) a[j - 1] = mul_sub(a[j], l, x[j]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint j = walker; j < width; j += 4) u[j * 32 + lane] = conj(top[lane * 33 + j]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  T t[WIDTH];
  if (walker == 0 && (group.x == 0 || expanded == 2)) {
#pragma unroll
    for (uint j = 0; j < WIDTH; ++j) {
      const bool inside = lane <= j && j < width;
      t[j] = inside ? top[lane * 33 + j] : zero<T>();
      if (lane < j && inside) t[j] = mul(from_real<T>(-signs[j]), t[j]);
    }
    substitute<T, WIDTH, true>(t, u, width, true);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint j = walker; j < width; j += 4) {
    u[lane * 32 + j] = mul(factors[j], top[lane * 33 + j]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device T* panel = A + (ulong(group.y) * n + first) * m + first;
  if (group.x == 0) {
    device const T* r = R + ulong(group.y) * width * width;
    for (uint j = walker; j < width; j += 4) {
      if (lane < width) {
        const T above = lane <= j ? mul(from_real<T>(signs[lane]), r[j * width + lane]) : zero<T>();
        panel[ulong(j) * m + lane] = lane <= j ? above : top[lane * 33 + j];
      }
    }
    if (tid < width) tau[ulong(group.y) * min(m, n) + first + tid] = top[tid * 34];
    if (walker == 0) {
      device T* out = triangles + (ulong(group.y) * blocks + first / WIDTH) * (WIDTH * WIDTH);
#pragma unroll
      for (uint j = 0; j < WIDTH; ++j) out[j * WIDTH + lane] = t[j];
    }
  }
  const uint row = group.x * 128 + tid;
  T x[WIDTH];
  if (row >= width && row < height) {
#pragma unroll
    for (uint j = 0; j < WIDTH; ++j) {
      x[j] = j < width ? mul(factors[j], y[ulong(j) * height + row]) : zero<T>();
    }
    // V U = -Y D is lower triangular for the row of V, U^T being stored by columns and divided by
    // its diagonal.
    substitute<T, WIDTH, true>(x, u, width, true);
#pragma unroll
    for (uint j = 0; j < WIDTH; ++j) {
      if (j < width) panel[ulong(j) * m + row] = x[j];
    }
  } else {
#pragma unroll
    for (uint j = 0; j < WIDTH; ++j) {
      const T left = row < width && j < row ? top[row * 33 + j] : zero<T>();
      x[j] = row < width && j == row ? one<T>() : left;
    }
  }
  const ulong begin = ulong(group.y) * height * width + row;
  if (expanded != 0 && row < height) {
#pragma unroll
    for (uint l = 0; l < WIDTH; ++l) {
      if (l < width) V[begin + ulong(l) * height] = x[l];
    }
  }
  if (expanded == 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (walker == 0) {
#pragma unroll
      for (uint j = 0; j < WIDTH; ++j) u[lane * 32 + j] = conj(t[j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (row < height) write_product<T>(x, u, VT + begin, height, width);
  }
}

// The rows of a block's V or of C that meet at once, and the entries of a tile of them.
template <typename T> inline constexpr uint depth() { return sizeof(T) > 8 ? 8 : 32; }
template <typename T> inline constexpr uint block_size() { return depth<T>() * 33; }

// Entry (row, column) of V below a block's diagonal, unit lower.
template <typename T>
inline T reflector_entry(device const T* V, uint row, uint column, uint width, uint stride) {
  if (column >= width || row < column) return zero<T>();
  return row == column ? one<T>() : V[ulong(column) * stride + row];
}

// The entries of such a tile of V that a thread of 256 moves, and where they go.
template <typename T> inline constexpr int own() { return int(depth<T>() * 32 / 256); }

template <typename T>
inline void fetch_reflectors(
    thread T (&v)[own<T>()],
    device const T* V,
    uint begin,
    uint rows,
    uint width,
    uint stride,
    uint tid) {
  constexpr uint DEPTH = depth<T>();
#pragma unroll
  for (int e = 0; e < own<T>(); ++e) {
    const uint i = begin + (tid + uint(e) * 256) % DEPTH;
    const uint j = (tid + uint(e) * 256) / DEPTH;
    v[e] = i < rows ? reflector_entry(V, i, j, width, stride) : zero<T>();
  }
}

template <typename T>
inline void store_reflectors(thread const T (&v)[own<T>()], uint tid, threadgroup T* tile) {
  constexpr uint DEPTH = depth<T>();
#pragma unroll
  for (int e = 0; e < own<T>(); ++e) {
    const uint place = tid + uint(e) * 256;
    tile[place % DEPTH * 33 + place / DEPTH] = v[e];
  }
}

// sum += v^H c over a tile of rows, of which each of four slices of 64 threads takes its own; a
// thread has the entries (i + 8 r, j + 8 s).
template <typename T>
inline void add_products(
    thread T (&minus)[4][4], threadgroup const T* v, threadgroup const T* c, uint tid) {
  constexpr uint DEPTH = depth<T>();
  const uint i = tid % 8;
  const uint j = tid / 8 % 8;
#pragma unroll(2)
  for (uint row = tid / 64; row < DEPTH; row += 4) {
    T x[4];
    T y[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      x[r] = conj(v[row * 33 + i + uint(r) * 8]);
      y[r] = c[row * 33 + j + uint(r) * 8];
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int s = 0; s < 4; ++s) minus[r][s] = mul_sub(minus[r][s], x[r], y[s]);
    }
  }
}

// The sum of the slices as w[i * 33 + j], in all threads.
template <typename T>
inline void gather_products(thread const T (&minus)[4][4], threadgroup T* w, uint tid) {
  const uint i = tid % 8;
  const uint j = tid / 8 % 8;
  for (uint slice = 0; slice < 4; ++slice) {
    if (tid / 64 == slice) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          threadgroup T* entry = w + (i + uint(r) * 8) * 33 + j + uint(s) * 8;
          *entry = (slice == 0 ? zero<T>() : *entry) - minus[r][s];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

template <typename T> inline void clear_products(thread T (&minus)[4][4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int s = 0; s < 4; ++s) minus[r][s] = zero<T>();
  }
}

// The upper triangular factor of each block of 32 reflectors, H_0 H_1 ... = I - V T V^H (LAPACK's
// larft), 32 x 32 and column-major, from row `offset` on. A threadgroup a block.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void qr_triangle(
    device const T* A [[buffer(0)]],
    device const T* tau [[buffer(1)]],
    device T* triangles [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& count [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, v, block_size<T>());
  THREADGROUP_ARRAY(T, gram, 32 * 33);
  const uint first = group.x * WIDTH;
  const uint width = min(WIDTH, count - first);
  device const T* V = A + (ulong(group.y) * n + first) * m + first;
  T minus[4][4];
  clear_products<T>(minus);
  for (uint begin = 0; begin < m - first; begin += depth<T>()) {
    T entries[own<T>()];
    fetch_reflectors<T>(entries, V, begin, m - first, width, m, tid);
    store_reflectors<T>(entries, tid, v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_products<T>(minus, v, v, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  gather_products<T>(minus, gram, tid);
  device T* out = triangles + (ulong(group.y) * groups.x + group.x) * (WIDTH * WIDTH);
  if (tid < WIDTH) {
    // A row a lane: column k is -tau_k T(0:k, 0:k) V^H v_k, kept as row k below the diagonal.
    for (uint k = 0; k < WIDTH; ++k) {
      const T factor = k < width ? tau[ulong(group.y) * count + first + k] : zero<T>();
      T minus_sum = zero<T>();
      for (uint l = tid; l < k; ++l) {
        minus_sum = mul_sub(minus_sum, gram[l * 33 + tid], gram[l * 33 + k]);
      }
      const T entry = tid == k ? factor : (tid < k ? mul(factor, minus_sum) : zero<T>());
      if (tid <= k) gram[k * 33 + tid] = entry;
      out[k * WIDTH + tid] = entry;
    }
  }
}

// At most 32 columns of a matrix C, or of its conjugate.
template <typename T> struct Columns {
  device T* first;
  uint count;
  uint row_stride;
  uint column_stride;
  bool conjugated;

  device T* at(uint row, uint column) const thread {
    return first + long(row) * long(row_stride) + long(column) * long(column_stride);
  }
  T get(uint row, uint column) const thread {
    const T entry = *at(row, column);
    return conjugated ? conj(entry) : entry;
  }
  void set(uint row, uint column, T entry) const thread {
    *at(row, column) = conjugated ? conj(entry) : entry;
  }
};

// w := V^H C over the rows [begin, end). What a tile needs is fetched while the one before is
// worked on.
template <typename T>
inline void project(
    device const T* V,
    uint v_stride,
    uint width,
    Columns<T> C,
    uint begin,
    uint end,
    uint tid,
    threadgroup T* v,
    threadgroup T* c,
    threadgroup T* w) {
  constexpr uint DEPTH = depth<T>();
  constexpr int OWN = own<T>();
  // Neighbouring threads take neighbouring addresses, whichever way C lies.
  const bool along_rows = C.column_stride < C.row_stride;
  const uint first_row = along_rows ? tid / 32 : tid % DEPTH;
  const uint first_column = along_rows ? tid % 32 : tid / DEPTH;
  const uint row_step = along_rows ? 256 / 32 : 0;
  const uint column_step = along_rows ? 0 : 256 / DEPTH;
  T minus[4][4];
  clear_products<T>(minus);
  T v_next[OWN];
  T c_next[OWN];
  for (uint row = begin; row < end + DEPTH; row += DEPTH) {
    if (row > begin) {
      store_reflectors<T>(v_next, tid, v);
#pragma unroll
      for (int e = 0; e < OWN; ++e) {
        c[(first_row + uint(e) * row_step) * 33 + first_column + uint(e) * column_step] = c_next[e];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (row < end) {
      fetch_reflectors<T>(v_next, V, row, end, width, v_stride, tid);
#pragma unroll
      for (int e = 0; e < OWN; ++e) {
        const uint i = row + first_row + uint(e) * row_step;
        const uint j = first_column + uint(e) * column_step;
        c_next[e] = i < end && j < C.count ? C.get(i, j) : zero<T>();
      }
    }
    if (row > begin) add_products<T>(minus, v, c, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  gather_products<T>(minus, w, tid);
}

// w := op(T) w.
template <typename T>
inline void multiply_triangle(device const T* triangle, bool adjoint, uint tid, threadgroup T* w) {
  const uint j = tid % 32;
  T product[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const uint i = tid / 32 + uint(r) * 8;
    const uint begin = adjoint ? 0u : i;
    const uint end = adjoint ? i + 1 : WIDTH;
    T sum = zero<T>();
    for (uint l = begin; l < end; ++l) {
      const T t = adjoint ? conj(triangle[i * WIDTH + l]) : triangle[l * WIDTH + i];
      sum = mul_sub(sum, t, w[l * 33 + j]);
    }
    product[r] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int r = 0; r < 4; ++r) w[(tid / 32 + uint(r) * 8) * 33 + j] = zero<T>() - product[r];
}

// C := C - V w over the rows [begin, end).
template <typename T>
inline void subtract(
    device const T* V,
    uint v_stride,
    uint width,
    Columns<T> C,
    uint begin,
    uint end,
    uint tid,
    threadgroup T* v,
    threadgroup const T* w) {
  constexpr uint DEPTH = depth<T>();
  constexpr int OWN = own<T>();
  T v_next[OWN];
  fetch_reflectors<T>(v_next, V, begin, end, width, v_stride, tid);
  for (uint row = begin; row < end; row += DEPTH) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_reflectors<T>(v_next, tid, v);
    const uint i = tid % DEPTH;
    T sums[OWN];
#pragma unroll
    for (int e = 0; e < OWN; ++e) {
      const uint j = tid / DEPTH + uint(e) * (256 / DEPTH);
      sums[e] = row + i < end && j < C.count ? C.get(row + i, j) : zero<T>();
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    fetch_reflectors<T>(v_next, V, row + DEPTH, end, width, v_stride, tid);
#pragma unroll(8)
    for (uint l = 0; l < WIDTH; ++l) {
      const T entry = v[i * 33 + l];
#pragma unroll
      for (int e = 0; e < OWN; ++e) {
        const uint j = tid / DEPTH + uint(e) * (256 / DEPTH);
        sums[e] = mul_sub(sums[e], entry, w[l * 33 + j]);
      }
    }
#pragma unroll
    for (int e = 0; e < OWN; ++e) {
      const uint j = tid / DEPTH + uint(e) * (256 / DEPTH);
      if (row + i < end && j < C.count) C.set(row + i, j, sums[e]);
    }
  }
}

// C := (I - V op(T) V^H) C.
template <typename T>
inline void apply_block(
    device const T* V,
    uint v_stride,
    uint width,
    device const T* triangle,
    bool adjoint,
    Columns<T> C,
    uint rows,
    uint tid,
    threadgroup T* v,
    threadgroup T* c,
    threadgroup T* w) {
  project<T>(V, v_stride, width, C, 0, rows, tid, v, c, w);
  multiply_triangle<T>(triangle, adjoint, tid, w);
  subtract<T>(V, v_stride, width, C, 0, rows, tid, v, w);
}

// A block reflector, or its adjoint, times the columns of C: a threadgroup 32 columns. V starts at
// row and column `first` of a column-major factor of m rows and n columns; C has m - first rows.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void qr_apply(
    device const T* A [[buffer(0)]],
    device const T* triangles [[buffer(1)]],
    device T* C [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& first [[buffer(5)]],
    constant uint& width [[buffer(6)]],
    constant uint& blocks [[buffer(7)]],
    constant uint& columns [[buffer(8)]],
    constant uint& row_stride [[buffer(9)]],
    constant uint& column_stride [[buffer(10)]],
    constant long& batch_stride [[buffer(11)]],
    constant uint& adjoint [[buffer(12)]],
    constant uint& conjugated [[buffer(13)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, v, block_size<T>());
  THREADGROUP_ARRAY(T, c, block_size<T>());
  THREADGROUP_ARRAY(T, w, 32 * 33);
  const uint begin = group.x * WIDTH;
  const Columns<T> some = {
      C + long(group.y) * batch_stride + long(begin) * long(column_stride),
      min(WIDTH, columns - begin), row_stride, column_stride, conjugated != 0};
  apply_block<T>(
      A + (ulong(group.y) * n + first) * m + first, m, width,
      triangles + (ulong(group.y) * blocks + first / WIDTH) * (WIDTH * WIDTH), adjoint != 0, some,
      m - first, tid, v, c, w);
}

// What qr_apply does for tall matrices, in two launches, a threadgroup SPAN rows of 32 columns:
// first the parts of V^H C, 32 x columns a threadgroup row and column-major.
constexpr constant uint SPAN = 256;

template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void qr_project(
    device const T* V [[buffer(0)]],
    device T* C [[buffer(1)]],
    device T* parts [[buffer(2)]],
    constant uint& rows [[buffer(3)]],
    constant uint& width [[buffer(4)]],
    constant uint& columns [[buffer(5)]],
    constant uint& v_column_stride [[buffer(6)]],
    constant long& v_batch_stride [[buffer(7)]],
    constant uint& row_stride [[buffer(8)]],
    constant uint& column_stride [[buffer(9)]],
    constant long& batch_stride [[buffer(10)]],
    constant uint& conjugated [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, v, block_size<T>());
  THREADGROUP_ARRAY(T, c, block_size<T>());
  THREADGROUP_ARRAY(T, w, 32 * 33);
  const uint column = group.x * WIDTH;
  const Columns<T> some = {
      C + long(group.z) * batch_stride + long(column) * long(column_stride),
      min(WIDTH, columns - column), row_stride, column_stride, conjugated != 0};
  project<T>(
      V + long(group.z) * v_batch_stride, v_column_stride, width, some, group.y * SPAN,
      min((group.y + 1) * SPAN, rows), tid, v, c, w);
  device T* out = parts + ((ulong(group.z) * groups.y + group.y) * columns + column) * WIDTH;
  for (uint e = tid; e < some.count * WIDTH; e += 256) out[e] = w[e % WIDTH * 33 + e / WIDTH];
}

// Then op(T) times their sum, and C - V times that.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void qr_subtract(
    device const T* V [[buffer(0)]],
    device T* C [[buffer(1)]],
    device const T* parts [[buffer(2)]],
    device const T* triangles [[buffer(3)]],
    constant uint& rows [[buffer(4)]],
    constant uint& width [[buffer(5)]],
    constant uint& columns [[buffer(6)]],
    constant uint& v_column_stride [[buffer(7)]],
    constant long& v_batch_stride [[buffer(8)]],
    constant uint& row_stride [[buffer(9)]],
    constant uint& column_stride [[buffer(10)]],
    constant long& batch_stride [[buffer(11)]],
    constant uint& conjugated [[buffer(12)]],
    constant uint& block [[buffer(13)]],
    constant uint& blocks [[buffer(14)]],
    constant uint& adjoint [[buffer(15)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, v, block_size<T>());
  THREADGROUP_ARRAY(T, w, 32 * 33);
  const uint column = group.x * WIDTH;
  const Columns<T> some = {
      C + long(group.z) * batch_stride + long(column) * long(column_stride),
      min(WIDTH, columns - column), row_stride, column_stride, conjugated != 0};
  device const T* own_parts = parts + (ulong(group.z) * groups.y * columns + column) * WIDTH;
  for (uint e = tid; e < WIDTH * WIDTH; e += 256) {
    T sum = zero<T>();
    if (e < some.count * WIDTH) {
#pragma unroll(4)
      for (uint p = 0; p < groups.y; ++p) sum = sum + own_parts[ulong(p) * columns * WIDTH + e];
    }
    w[e % WIDTH * 33 + e / WIDTH] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  multiply_triangle<T>(
      triangles + (ulong(group.z) * blocks + block) * (WIDTH * WIDTH), adjoint != 0, tid, w);
  subtract<T>(
      V + long(group.z) * v_batch_stride, v_column_stride, width, some, group.y * SPAN,
      min((group.y + 1) * SPAN, rows), tid, v, w);
}

// What GEMMs need of a block reflector: V, and V op(T). A row a thread.
template <typename T>
[[max_total_threads_per_threadgroup(128)]] kernel void qr_expand(
    device const T* A [[buffer(0)]],
    device const T* triangles [[buffer(1)]],
    device T* V [[buffer(2)]],
    device T* VT [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& first [[buffer(6)]],
    constant uint& width [[buffer(7)]],
    constant uint& blocks [[buffer(8)]],
    constant uint& adjoint [[buffer(9)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, t, 32 * 32);
  device const T* triangle =
      triangles + (ulong(group.y) * blocks + first / WIDTH) * (WIDTH * WIDTH);
  for (uint e = tid; e < WIDTH * WIDTH; e += 128) {
    t[e] = adjoint != 0 ? conj(triangle[e % WIDTH * WIDTH + e / WIDTH]) : triangle[e];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint height = m - first;
  const uint row = group.x * 128 + tid;
  if (row < height) {
    device const T* reflectors = A + (ulong(group.y) * n + first) * m + first;
    const ulong begin = ulong(group.y) * height * width + row;
    T x[WIDTH];
#pragma unroll
    for (uint l = 0; l < WIDTH; ++l) {
      x[l] = reflector_entry(reflectors, row, l, width, m);
      if (l < width) V[begin + ulong(l) * height] = x[l];
    }
    write_product<T>(x, t, VT + begin, height, width);
  }
}

// What qr_apply does, adjoint, on the columns from `last` on of the factor itself.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void qr_update(
    device T* A [[buffer(0)]],
    device const T* triangles [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& first [[buffer(4)]],
    constant uint& last [[buffer(5)]],
    constant uint& blocks [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, v, block_size<T>());
  THREADGROUP_ARRAY(T, c, block_size<T>());
  THREADGROUP_ARRAY(T, w, 32 * 33);
  const uint begin = last + group.x * WIDTH;
  device T* matrix = A + ulong(group.y) * m * n;
  const Columns<T> some = {matrix + ulong(begin) * m + first, min(WIDTH, n - begin), 1u, m, false};
  apply_block<T>(
      matrix + ulong(first) * m + first, m, last - first,
      triangles + (ulong(group.y) * blocks + first / WIDTH) * (WIDTH * WIDTH), true, some,
      m - first, tid, v, c, w);
}

// The first columns of the identity, an entry a thread.
template <typename T>
kernel void qr_identity(
    device T* Q [[buffer(0)]],
    constant uint& m [[buffer(1)]],
    constant uint& columns [[buffer(2)]],
    uint3 id [[thread_position_in_grid]]) {
  Q[(ulong(id.z) * columns + id.y) * m + id.x] = id.x == id.y ? one<T>() : zero<T>();
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
