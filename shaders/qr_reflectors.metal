#include "scalar.h"
#include "householder.h"
#include "tile.h"
#include "triangular_factor.h"

// Reflectors of a block.
constexpr constant uint WIDTH = 32;

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
  // A row a lane, every fourth column a simdgroup: entry 0 is the one whose turn comes next. V1 and
  // U take the place of Y, U without the signs. `u` has row and column k, kept twice.
  T a[WIDTH / 4];
#pragma unroll
  for (uint j = 0; j < WIDTH / 4; ++j) a[j] = top[lane * 33 + walker + j * 4];
#pragma unroll(1)
  for (uint k = 0; k < width; ++k) {
    threadgroup T* column = u + (k & 1) * (2 * WIDTH);
    threadgroup T* x = column + WIDTH + walker * (WIDTH / 4);
    const bool turn = walker == k % 4;
    if (turn) column[lane] = a[0];
    if (lane == k) {
#pragma unroll
      for (uint j = 0; j < WIDTH / 4; ++j) x[j] = a[j];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const T pivot = column[k];
    const Real sign = real_part(pivot) > Real(0) ? Real(-1) : Real(1);
    // Of modulus 1 to 2.
    const T corner = one<T>() - mul(from_real<T>(sign), pivot);
    const Real square = real_part(mul(conj(corner), corner));
    const T factor = mul(from_real<T>(-sign / square), conj(corner));
    const T l = lane > k ? mul(factor, column[lane]) : zero<T>();
#pragma unroll
    for (uint j = 0; j < WIDTH / 4; ++j) a[j] = mul_sub(a[j], l, x[j]);
    if (turn) {
      top[lane * 33 + k] = lane > k ? l : (lane == k ? corner : column[lane]);
      if (lane == k) {
        signs[k] = sign;
        factors[k] = factor;
      }
#pragma unroll
      for (uint j = 1; j < WIDTH / 4; ++j) a[j - 1] = a[j];
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
  THREADGROUP_ARRAY(T, packed, (packed_size<32>()));
  THREADGROUP_ARRAY(T, factors, 32);
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
  if (tid < WIDTH) {
    factors[tid] = tid < width ? tau[ulong(group.y) * count + first + tid] : zero<T>();
  }
  for (uint k = tid / 32; k < WIDTH; k += 8) {
    if (tid % 32 < k) packed[packed_column(k) + tid % 32] = gram[tid % 32 * 33 + k];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  make_factor<T>(packed, factors, width, tid, 256, gram);
  write_factor<T>(
      packed, factors, width, tid, 256,
      triangles + (ulong(group.y) * groups.x + group.x) * (WIDTH * WIDTH));
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

// w := op(T) w. Zeros of T are multiplied too, so that no load waits for a bound.
template <typename T>
inline void multiply_triangle(device const T* triangle, bool adjoint, uint tid, threadgroup T* w) {
  const uint j = tid % 32;
  const uint row_step = adjoint ? WIDTH : 1u;
  const uint step = adjoint ? 1u : WIDTH;
  device const T* rows = triangle + tid / 32 * row_step;
  T minus[4] = {zero<T>(), zero<T>(), zero<T>(), zero<T>()};
#pragma unroll(8)
  for (uint l = 0; l < WIDTH; ++l) {
    const T entry = w[l * 33 + j];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const T t = rows[uint(r) * 8 * row_step + l * step];
      minus[r] = mul_sub(minus[r], adjoint ? conj(t) : t, entry);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int r = 0; r < 4; ++r) w[(tid / 32 + uint(r) * 8) * 33 + j] = zero<T>() - minus[r];
}

// A row's entries of C that a thread works on.
template <typename T>
inline void fetch_columns(thread T (&c)[own<T>()], Columns<T> C, uint row, uint end, uint tid) {
#pragma unroll
  for (int e = 0; e < own<T>(); ++e) {
    const uint j = tid / depth<T>() + uint(e) * (256 / depth<T>());
    c[e] = row < end && j < C.count ? C.get(row, j) : zero<T>();
  }
}

// C := C - V w over the rows [begin, end). What a tile needs is fetched while the one before is
// worked on.
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
  const uint i = tid % DEPTH;
  T v_next[OWN];
  T c_next[OWN];
  fetch_reflectors<T>(v_next, V, begin, end, width, v_stride, tid);
  fetch_columns<T>(c_next, C, begin + i, end, tid);
  for (uint row = begin; row < end; row += DEPTH) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_reflectors<T>(v_next, tid, v);
    T sums[OWN];
#pragma unroll
    for (int e = 0; e < OWN; ++e) sums[e] = c_next[e];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    fetch_reflectors<T>(v_next, V, row + DEPTH, end, width, v_stride, tid);
    fetch_columns<T>(c_next, C, row + DEPTH + i, end, tid);
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
  T sums[4] = {zero<T>(), zero<T>(), zero<T>(), zero<T>()};
#pragma unroll(4)
  for (uint p = 0; p < groups.y; ++p) {
#pragma unroll
    for (uint r = 0; r < 4; ++r) {
      const uint e = tid + r * 256;
      if (e < some.count * WIDTH) sums[r] = sums[r] + own_parts[ulong(p) * columns * WIDTH + e];
    }
  }
#pragma unroll
  for (uint r = 0; r < 4; ++r) w[tid % WIDTH * 33 + tid / WIDTH + r * 8] = sums[r];
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
    for (uint l = 0; l < WIDTH; ++l) x[l] = reflector_entry(reflectors, row, l, width, m);
    // Apart from the loads, which could not pass a store.
#pragma unroll
    for (uint l = 0; l < WIDTH; ++l) {
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
