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
template <typename T> inline constexpr int max_parts() { return sizeof(T) > 8 ? 8 : 16; }

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
    T sum = sums[place.column];
    for (uint p = 1; p < place.parts; ++p) sum = sum + sums[p * 32 + place.column];
    top = sums[uint(PARTS) * 32 + place.column];
    return sum;
  }
}

// Householder's reduction of the columns in the lanes of a team, `steps` of them, each column
// divided by 2^exponent. Part 0 holds the top rows: row k stands at entry 0 at step k, then goes to
// `top` as LAPACK's geqrf leaves it, and every part turns its entries by one. Returns the column's
// tau; below the top rows v is left.
template <typename T, int W, int N, int PARTS>
inline T reduce_columns(
    thread T (&a)[N],
    Place place,
    uint steps,
    int exponent,
    threadgroup T* top,
    threadgroup T* sums) {
  const bool head = place.part == 0;
  T tau = zero<T>();
  T inverse = one<T>();
#pragma unroll(1)
  for (uint k = 0; k < steps; ++k) {
    const ushort source = ushort(place.first_lane + k);
    const T x = simd_shuffle(a[0], source);
    T minus = head ? zero<T>() : mul_sub(zero<T>(), conj(x), a[0]);
#pragma unroll
    for (int i = 1; i < N; ++i) minus = mul_sub(minus, conj(simd_shuffle(a[i], source)), a[i]);
    T entry = a[0];
    threadgroup T* buffer = sums + (k & 1) * uint(sums_size<PARTS>());
    const T products = zero<T>() - sum_parts<T, PARTS>(minus, entry, place, buffer);
    const Reflector<T> h =
        reflector<T>(simd_shuffle(entry, source), real_part(simd_shuffle(products, source)));
    // f = conj(tau) v^H a; of the columns on the left v is what is left to scale.
    const bool right = place.column > k;
    T f = mul(conj(h.tau), entry + mul(conj(h.inverse), products));
    if (!right) f = zero<T>();
    const T g = mul(h.inverse, f);
    if (head) {
      T left = scale(right ? entry - f : from_real<T>(h.beta), exponent);
      if (place.column < k) left = mul(entry, inverse);
      top[k * uint(W + 1) + place.column] = left;
    }
    if (place.column == k) {
      tau = h.tau;
      inverse = h.inverse;
    }
    const T first = head ? zero<T>() : mul_sub(a[0], x, g);
#pragma unroll
    for (int i = 1; i < N; ++i) a[i - 1] = mul_sub(a[i], simd_shuffle(a[i], source), g);
    a[N - 1] = first;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = mul(a[i], inverse);
  return tau;
}

// The columns of Q = H_0 ... H_(steps - 1) in place of what reduce_columns left, last reflector
// first; the entries turn back. Columns without a reflector begin as those of the identity.
template <typename T, int W, int N, int PARTS>
inline void form_columns(
    thread T (&a)[N],
    Place place,
    uint steps,
    T tau,
    threadgroup const T* top,
    threadgroup T* sums) {
  const bool head = place.part == 0;
  if (place.column >= steps) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      a[i] = head && steps + uint(i) == place.column ? one<T>() : zero<T>();
    }
  }
#pragma unroll(1)
  for (uint step = 0; step < steps; ++step) {
    const uint k = steps - 1 - step;
    const ushort source = ushort(place.first_lane + k);
    const T last = a[N - 1];
    const T x = simd_shuffle(last, source);
    T minus = head ? zero<T>() : mul_sub(zero<T>(), conj(x), last);
#pragma unroll
    for (int i = 1; i < N; ++i) {
      minus = mul_sub(minus, conj(simd_shuffle(a[i - 1], source)), a[i - 1]);
    }
    T unused = zero<T>();
    threadgroup T* buffer = sums + (k & 1) * uint(sums_size<PARTS>());
    const T products = zero<T>() - sum_parts<T, PARTS>(minus, unused, place, buffer);
    const T factor = simd_shuffle(tau, source);
    T g = zero<T>();
    T first = zero<T>();
    if (place.column > k) {
      g = mul(factor, products);
      first = zero<T>() - g;
    } else if (place.column == k) {
      // v - (1 + tau) v
      g = one<T>() + factor;
      first = one<T>() - factor;
    } else if (head) {
      first = top[k * uint(W + 1) + place.column];
    }
    if (!head) first = mul_sub(last, x, g);
#pragma unroll
    for (int i = N - 1; i > 0; --i) {
      a[i] = mul_sub(a[i - 1], simd_shuffle(a[i - 1], source), g);
    }
    a[0] = first;
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
  const uint column = lane % uint(W);
  const uint matrix = group * TEAMS + lane / uint(W);
  const bool active = matrix < batch;
  const uint steps = min(m, n);
  threadgroup T* tile = tiles + lane / uint(W) * uint(W * (W + 1));
  const Place place = {column, lane - column, 0, 1};

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

  const T tau = reduce_columns<T, W, W, 1>(a, place, steps, exponent, tile, tile);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (active && column < r_rows) {
    device T* to = R + ulong(matrix) * r_rows * n + column;
    for (uint j = 0; j < n; ++j) {
      const bool filled = column < steps && column <= j;
      *to = filled ? tile[column * uint(W + 1) + j] : zero<T>();
      to += r_rows;
    }
  }
  if (q_columns > 0) {
    form_columns<T, W, W, 1>(a, place, steps, tau, tile, tile);
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
template <typename T, int PARTS>
inline int read_panel(
    thread T (&a)[ROWS],
    device const T* matrix,
    uint rows,
    uint n,
    uint row_stride,
    uint column_stride,
    Place place,
    threadgroup real_t<T>* maxima) {
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
  maxima[place.part * 32 + place.column] = largest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint p = 0; p < place.parts; ++p) largest = max(largest, maxima[p * 32 + place.column]);
  const int exponent = exponent_of(largest);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) a[i] = scale(a[i], -exponent);
  return exponent;
}

// Columns of `rows` x `columns` from the threads that hold them, through `tile`: entry i of a part
// is its row (i + turned) % ROWS. Rows above `begin` are left alone.
template <typename T>
inline void write_panel(
    thread const T (&a)[ROWS],
    device T* to,
    uint begin,
    uint rows,
    uint columns,
    uint stride,
    uint turned,
    uint parts,
    Place place,
    threadgroup T* tile) {
  for (uint part = 0; part < parts; ++part) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (place.part == part) {
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        tile[place.column * 33 + (uint(i) + turned) % uint(ROWS)] = a[i];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint row = part * uint(ROWS) + place.column;
    for (uint j = place.part; j < columns; j += parts) {
      if (row >= begin && row < rows) to[ulong(j) * stride + row] = tile[j * 33 + place.column];
    }
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
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  THREADGROUP_ARRAY(T, sums, (2 * sums_size<PARTS>()));
  const Place place = {lane, 0, simd, parts};
  const uint begin = group.x * rows;
  const uint height = min(rows, m - begin);
  const uint steps = min(height, n);
  T a[ROWS];
  THREADGROUP_ARRAY(real_t<T>, maxima, PARTS * 32);
  const int exponent = read_panel<T, PARTS>(
      a, A + long(group.y) * batch_stride + long(begin) * long(row_stride), height, n, row_stride,
      column_stride, place, maxima);
  const T tau = reduce_columns<T, 32, ROWS, PARTS>(a, place, steps, exponent, tile, sums);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint r_rows = min(rows, n);
  device T* r = R + ulong(group.y) * groups.x * r_rows * n + group.x * r_rows;
  for (uint j = simd; j < n; j += parts) {
    if (lane < r_rows) {
      const bool filled = lane < steps && lane <= j;
      r[ulong(j) * groups.x * r_rows + lane] = filled ? tile[lane * 33 + j] : zero<T>();
    }
  }
  if (q_wanted != 0) {
    form_columns<T, 32, ROWS, PARTS>(a, place, steps, tau, tile, sums);
    write_panel<T>(a, Q + ulong(group.y) * m * n + begin, 0, height, n, m, 0, parts, place, tile);
  }
}

// LAPACK's geqr2 in place on the columns [first, last) of a column-major m x n matrix from row
// `first` on, a threadgroup a matrix.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void qr_panel(
    device T* A [[buffer(0)]],
    device T* tau [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& first [[buffer(4)]],
    constant uint& last [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint parts [[simdgroups_per_threadgroup]]) {
  constexpr int PARTS = max_parts<T>();
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  THREADGROUP_ARRAY(T, sums, (2 * sums_size<PARTS>()));
  THREADGROUP_ARRAY(real_t<T>, maxima, PARTS * 32);
  const Place place = {lane, 0, simd, parts};
  const uint height = m - first;
  const uint width = last - first;
  const uint steps = min(height, width);
  device T* panel = A + (ulong(group) * n + first) * m + first;
  T a[ROWS];
  const int exponent = read_panel<T, PARTS>(a, panel, height, width, 1u, m, place, maxima);
  const T own = reduce_columns<T, 32, ROWS, PARTS>(a, place, steps, exponent, tile, sums);
  if (simd == 0 && lane < steps) tau[ulong(group) * min(m, n) + first + lane] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint j = simd; j < width; j += parts) {
    if (lane < steps) panel[ulong(j) * m + lane] = tile[lane * 33 + j];
  }
  write_panel<T>(a, panel, steps, height, width, m, steps, parts, place, tile);
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

// Reflectors whose first columns are the orthonormal columns of Y, up to signs: with those as the
// diagonal of D, I - Y D = V U by elimination that needs no pivots, tau is the diagonal of U, and R
// becomes D R (Ballard, Demmel, Grigori, Jacquelin, Knight, Nguyen, 2015). They replace the panel
// from row and column `first` of A on. Each threadgroup eliminates, and takes 128 rows.
template <typename T>
[[max_total_threads_per_threadgroup(128)]] kernel void qr_reconstruct(
    device const T* Y [[buffer(0)]],
    device const T* R [[buffer(1)]],
    device T* A [[buffer(2)]],
    device T* tau [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& first [[buffer(6)]],
    constant uint& width [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(T, top, 32 * 33);
  THREADGROUP_ARRAY(T, u, 32 * 32);
  THREADGROUP_ARRAY(Real, signs, 32);
  const uint height = m - first;
  const uint lane = tid % 32;
  const uint walker = tid / 32;
  device const T* y = Y + ulong(group.y) * height * width;
  for (uint j = walker; j < WIDTH; j += 4) {
    const bool inside = lane < width && j < width;
    top[lane * 33 + j] = inside ? y[ulong(j) * height + lane] : zero<T>();
  }
  for (uint k = 0; k < width; ++k) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const T corner = top[k * 33 + k];
    const Real sign = real_part(corner) > Real(0) ? Real(-1) : Real(1);
    const T pivot = one<T>() - mul(from_real<T>(sign), corner);
    const T l = quotient(mul(from_real<T>(-sign), top[lane * 33 + k]), pivot);
    if (lane > k) {
      for (uint j = k + 1 + walker; j < width; j += 4) {
        top[lane * 33 + j] = mul_sub(top[lane * 33 + j], l, top[k * 33 + j]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (walker == 0 && lane > k) top[lane * 33 + k] = l;
    if (tid == k) {
      top[k * 33 + k] = pivot;
      signs[k] = sign;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint j = walker; j < width; j += 4) {
    const T entry = top[lane * 33 + j];
    u[lane * 32 + j] = lane == j ? entry : mul(from_real<T>(-signs[j]), entry);
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
  }
  const uint row = group.x * 128 + tid;
  if (row >= width && row < height) {
    T x[WIDTH];
#pragma unroll
    for (uint j = 0; j < WIDTH; ++j) {
      x[j] = j < width ? mul(from_real<T>(-signs[j]), y[ulong(j) * height + row]) : zero<T>();
    }
    // V U = - Y D is lower triangular for the row of V, U^T being stored by columns.
    substitute<T, WIDTH, true>(x, u, width, false);
#pragma unroll
    for (uint j = 0; j < WIDTH; ++j) {
      if (j < width) panel[ulong(j) * m + row] = x[j];
    }
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

template <typename T>
inline void load_reflectors(
    device const T* V, uint begin, uint rows, uint width, uint stride, uint tid, threadgroup T* v) {
  constexpr uint DEPTH = depth<T>();
  for (uint e = tid; e < DEPTH * 32; e += 256) {
    const uint i = e % DEPTH;
    const uint j = e / DEPTH;
    const bool inside = begin + i < rows;
    v[i * 33 + j] = inside ? reflector_entry(V, begin + i, j, width, stride) : zero<T>();
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
    constant uint& block [[buffer(6)]],
    constant uint& blocks [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, v, block_size<T>());
  THREADGROUP_ARRAY(T, gram, 32 * 33);
  const uint own = block + group.x;
  const uint first = own * WIDTH;
  const uint width = min(WIDTH, count - first);
  device const T* V = A + (ulong(group.y) * n + first) * m + first;
  T minus[4][4];
  clear_products<T>(minus);
  for (uint begin = 0; begin < m - first; begin += depth<T>()) {
    load_reflectors<T>(V, begin, m - first, width, m, tid, v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_products<T>(minus, v, v, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  gather_products<T>(minus, gram, tid);
  device T* out = triangles + (ulong(group.y) * blocks + own) * (WIDTH * WIDTH);
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

// C := (I - V op(T) V^H) C for at most 32 columns of C.
template <typename T>
inline void apply_block(
    device const T* V,
    uint v_stride,
    device const T* triangle,
    device T* C,
    uint rows,
    uint width,
    uint columns,
    uint row_stride,
    uint column_stride,
    bool adjoint,
    bool conjugated,
    uint tid,
    threadgroup T* v,
    threadgroup T* c,
    threadgroup T* w) {
  constexpr uint DEPTH = depth<T>();
  T minus[4][4];
  clear_products<T>(minus);
  for (uint begin = 0; begin < rows; begin += DEPTH) {
    load_reflectors<T>(V, begin, rows, width, v_stride, tid, v);
    const bool along_rows = column_stride < row_stride;
    for (uint e = tid; e < DEPTH * 32; e += 256) {
      const uint i = along_rows ? e / 32 : e % DEPTH;
      const uint j = along_rows ? e % 32 : e / DEPTH;
      T entry = zero<T>();
      if (begin + i < rows && j < columns) {
        entry = C[long(begin + i) * long(row_stride) + long(j) * long(column_stride)];
      }
      c[i * 33 + j] = conjugated ? conj(entry) : entry;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_products<T>(minus, v, c, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  gather_products<T>(minus, w, tid);
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
  for (uint begin = 0; begin < rows; begin += DEPTH) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_reflectors<T>(V, begin, rows, width, v_stride, tid, v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint i = tid % DEPTH;
    if (begin + i < rows) {
#pragma unroll
      for (uint s = tid / DEPTH; s < WIDTH; s += 256 / DEPTH) {
        if (s < columns) {
          device T* to = C + long(begin + i) * long(row_stride) + long(s) * long(column_stride);
          T sum = conjugated ? conj(*to) : *to;
#pragma unroll(8)
          for (uint l = 0; l < WIDTH; ++l) sum = mul_sub(sum, v[i * 33 + l], w[l * 33 + s]);
          *to = conjugated ? conj(sum) : sum;
        }
      }
    }
  }
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
  apply_block<T>(
      A + (ulong(group.y) * n + first) * m + first, m,
      triangles + (ulong(group.y) * blocks + first / WIDTH) * (WIDTH * WIDTH),
      C + long(group.y) * batch_stride + long(begin) * long(column_stride), m - first, width,
      min(WIDTH, columns - begin), row_stride, column_stride, adjoint != 0, conjugated != 0, tid, v,
      c, w);
}

// The same, adjoint, on the columns from `last` on of the factor itself.
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
  apply_block<T>(
      matrix + ulong(first) * m + first, m,
      triangles + (ulong(group.y) * blocks + first / WIDTH) * (WIDTH * WIDTH),
      matrix + ulong(begin) * m + first, m - first, last - first, min(WIDTH, n - begin), 1u, m,
      true, false, tid, v, c, w);
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
