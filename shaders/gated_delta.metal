#include "scalar.h"

// Rows of a block: what a lane keeps of its column of X in registers.
constexpr constant int BLOCK = 16;

// Matrices of 16 x 16 share a simdgroup: without the gap they would share its banks of memory too.
template <int N> inline constexpr int tile_size() { return N * N + (N == 16 ? 16 : 0); }

// X = (I + A)^-1 of one chunk by forward substitution; a lane owns the column `column` of X. A is
// strictly lower in `tile`. The simdgroups of a chunk do not wait for each other: each keeps the
// rows of X that it still needs where no other one reads, the first in place of A, the second above
// the diagonal. Rows from `rows` on are not stored. All threads of a simdgroup call it.
template <typename Out, typename T, int N>
inline void invert_tile(
    threadgroup T* tile, device Out* X, ulong x_stride, uint rows, uint column) {
  const uint first = column / 32 * 32;
  // The next row to store: products of 64 bits for each would cost more than the rest.
  device Out* own = X + column;
  for (uint r = 0; r < first; ++r) {
    if (r < rows) *own = Out(T(0));
    own += x_stride;
  }
  threadgroup T* solved = tile + column;
  for (uint top = first; top < uint(N); top += uint(BLOCK)) {
    threadgroup const T* a = tile + top * uint(N);
    T x[BLOCK];
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) x[i] = top + uint(i) == column ? T(1) : T(0);
#pragma unroll(1)
    for (uint k = first; k < top; k += 4u) {
      T known[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) known[j] = solved[(k - first + uint(j)) * uint(N)];
#pragma unroll
      for (int i = 0; i < BLOCK; ++i) {
        const vec<T, 4> entry = *(threadgroup const vec<T, 4>*)(a + uint(i * N) + k);
        x[i] = fma(-entry.x, known[0], x[i]);
        x[i] = fma(-entry.y, known[1], x[i]);
        x[i] = fma(-entry.z, known[2], x[i]);
        x[i] = fma(-entry.w, known[3], x[i]);
      }
    }
#pragma unroll
    for (int i = 1; i < BLOCK; ++i) {
#pragma unroll
      for (int k = 0; k < i; k += 4) {
        const vec<T, 4> entry = *(threadgroup const vec<T, 4>*)(a + uint(i * N) + top + uint(k));
        x[i] = fma(-entry.x, x[k], x[i]);
        if (k + 1 < i) x[i] = fma(-entry.y, x[k + 1], x[i]);
        if (k + 2 < i) x[i] = fma(-entry.z, x[k + 2], x[i]);
        if (k + 3 < i) x[i] = fma(-entry.w, x[k + 3], x[i]);
      }
    }
    // The lanes have read this block of A before the first of them writes over it.
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) {
      const uint r = top + uint(i);
      if (top + uint(BLOCK) < uint(N)) solved[(r - first) * uint(N)] = x[i];
      // Above the diagonal x is zero, unless a NaN of A met that zero.
      if (r < rows) *own = Out(column > r ? T(0) : x[i]);
      own += x_stride;
    }
  }
}

// The same from a chunk in device memory, of which only what lies below the diagonal is read; rows
// from `rows` on count as zero. All threads of the group call it.
template <typename In, typename Out, typename T, int N>
inline void invert_chunk(
    device const In* A,
    long row_stride,
    uint column_stride,
    device Out* X,
    ulong x_stride,
    uint rows,
    uint column,
    threadgroup T* tile) {
  const uint first = column / 32 * 32;
  device const In* from = A + long(first) * row_stride + ulong(column) * column_stride;
#pragma unroll(16)
  for (uint r = first; r < uint(N); ++r) {
    T entry = T(0);
    if (column < r && r < rows) entry = T(*from);
    tile[r * uint(N) + column] = entry;
    from += row_stride;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  invert_tile<Out, T, N>(tile, X, x_stride, rows, column);
}

// A group of 64 threads inverts the chunks of N rows that its threads have columns for. A is
// [batch, length, heads, N] with strides, X the same without a gap; neighbouring matrices are of
// neighbouring heads.
template <typename In, typename Out, typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void gated_delta_solve(
    device const In* A [[buffer(0)]],
    device Out* X [[buffer(1)]],
    constant uint& matrices [[buffer(2)]],
    constant uint& length [[buffer(3)]],
    constant uint& heads [[buffer(4)]],
    constant long& batch_stride [[buffer(5)]],
    constant long& row_stride [[buffer(6)]],
    constant long& head_stride [[buffer(7)]],
    constant uint& column_stride [[buffer(8)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, tile, 64 / N * tile_size<N>());
  const uint matrix = group * uint(64 / N) + tid / uint(N);
  const uint chunks = (length + uint(N) - 1) / uint(N);
  const uint head = matrix % heads;
  const uint first = matrix / heads % chunks * uint(N);
  const uint batch = matrix / heads / chunks;
  const uint rows = matrix < matrices ? min(uint(N), length - first) : 0u;
  invert_chunk<In, Out, T, N>(
      A + long(batch) * batch_stride + long(first) * row_stride + long(head) * head_stride,
      row_stride, column_stride, X + ((ulong(batch) * length + first) * heads + head) * uint(N),
      ulong(heads) * uint(N), rows, tid % uint(N), tile + tid / uint(N) * uint(tile_size<N>()));
}

// The same for sequences one after the other: sequence s has the rows starts[s] .. starts[s + 1].
// Its chunks have the numbers from starts[s] / N + s on, which leaves none for two: floor(a / N) +
// ceil((b - a) / N) <= floor(b / N) + 1. A number that no chunk has is no work.
template <typename In, typename Out, typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void gated_delta_solve_packed(
    device const In* A [[buffer(0)]],
    device const int* starts [[buffer(1)]],
    device Out* X [[buffer(2)]],
    constant uint& matrices [[buffer(3)]],
    constant uint& length [[buffer(4)]],
    constant uint& heads [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    constant long& row_stride [[buffer(7)]],
    constant long& head_stride [[buffer(8)]],
    constant uint& column_stride [[buffer(9)]],
    constant uint& sequences [[buffer(10)]],
    constant uint& starts_stride [[buffer(11)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, tile, 64 / N * tile_size<N>());
  const uint matrix = group * uint(64 / N) + tid / uint(N);
  const uint chunks = length / uint(N) + sequences;
  const uint head = matrix % heads;
  const uint chunk = matrix / heads % chunks;
  const uint batch = matrix / heads / chunks;
  uint first = 0;
  uint rows = 0;
  if (matrix < matrices) {
    device const int* of_batch = starts + ulong(batch) * starts_stride;
    uint sequence = 0;
    for (uint after = sequences; after - sequence > 1u;) {
      const uint middle = (sequence + after) / 2u;
      const bool reached = uint(of_batch[middle]) / uint(N) + middle <= chunk;
      sequence = reached ? middle : sequence;
      after = reached ? after : middle;
    }
    const uint start = uint(of_batch[sequence]);
    const uint end = min(uint(of_batch[sequence + 1u]), length);
    first = start + (chunk - start / uint(N) - sequence) * uint(N);
    rows = first < end ? min(uint(N), end - first) : 0u;
    first = rows != 0u ? first : 0u;
  }
  invert_chunk<In, Out, T, N>(
      A + long(batch) * batch_stride + long(first) * row_stride + long(head) * head_stride,
      row_stride, column_stride, X + ((ulong(batch) * length + first) * heads + head) * uint(N),
      ulong(heads) * uint(N), rows, tid % uint(N), tile + tid / uint(N) * uint(tile_size<N>()));
}

constexpr constant int SLAB = 32;
constexpr constant uint SLAB_STRIDE = SLAB + 4;

// Adds a block of 32 x 32 of K K^T, from a slab of SLAB columns of K, to a simdgroup's sums: a lane
// has the rows y + 4 i of `left` by the rows x + 8 j of `right`.
template <typename T>
inline void add_products(
    thread T (&sums)[8][4], threadgroup const T* left, threadgroup const T* right, uint lane) {
  threadgroup const T* a = left + lane / 8 * SLAB_STRIDE;
  threadgroup const T* b = right + lane % 8 * SLAB_STRIDE;
#pragma unroll(1)
  for (uint k = 0; k < uint(SLAB); k += 4u) {
    vec<T, 4> known[4];
#pragma unroll
    for (uint j = 0; j < 4u; ++j) {
      known[j] = *(threadgroup const vec<T, 4>*)(b + 8u * j * SLAB_STRIDE + k);
    }
#pragma unroll
    for (uint i = 0; i < 8u; ++i) {
      const vec<T, 4> entry = *(threadgroup const vec<T, 4>*)(a + 4u * i * SLAB_STRIDE + k);
#pragma unroll
      for (uint j = 0; j < 4u; ++j) {
        T sum = sums[i][j];
        sum = fma(entry.x, known[j].x, sum);
        sum = fma(entry.y, known[j].y, sum);
        sum = fma(entry.z, known[j].z, sum);
        sums[i][j] = fma(entry.w, known[j].w, sum);
      }
    }
  }
}

// X = (I + A)^-1 for the strictly lower A[i][j] = beta[i] exp(total[i] - total[j]) keys[i] .
// keys[j] of a chunk of 64 tokens, by a group of 96 threads: its simdgroups form the blocks of 32 x
// 32 of A that are not zero, the first two of them on the diagonal, and these then invert.
template <typename T>
[[max_total_threads_per_threadgroup(96)]] kernel void gated_delta_system(
    device const T* keys [[buffer(0)]],
    device const T* beta [[buffer(1)]],
    device const T* total [[buffer(2)]],
    device T* X [[buffer(3)]],
    constant uint& width [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, tile, 64 * 64);
  const uint top = simd == 0 ? 0u : 32u;
  const uint left = simd == 1 ? 32u : 0u;
  device const T* own = keys + ulong(group) * 64 * width;
  T sums[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = T(0);
  }
  for (uint begin = 0; begin < width; begin += uint(SLAB)) {
    const bool inside = begin + lane < width;
    device const T* from = own + ulong(simd) * width + begin + lane;
#pragma unroll(11)
    for (uint i = 0; i < 22u; ++i) {
      const uint r = simd + 3u * i;
      T entry = T(0);
      if (inside && r < 64u) entry = *from;
      // There is room for what lies past the last row.
      tile[r * SLAB_STRIDE + lane] = entry;
      from += 3u * width;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_products(sums, tile + top * SLAB_STRIDE, tile + left * SLAB_STRIDE, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  device const T* rates = beta + ulong(group) * 64;
  device const T* decay = total + ulong(group) * 64;
#pragma unroll
  for (uint i = 0; i < 8u; ++i) {
    const uint row = top + lane / 8u + 4u * i;
    const T rate = rates[row];
    const T here = decay[row];
#pragma unroll
    for (uint j = 0; j < 4u; ++j) {
      const uint column = left + lane % 8u + 8u * j;
      const T entry = rate * exp(here - decay[column]) * sums[i][j];
      tile[row * 64u + column] = column < row ? entry : T(0);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simd < 2) invert_tile<T, T, 64>(tile, X + ulong(group) * 64 * 64, 64, 64, tid);
}

// The rows of a state that one kernel takes, and the simdgroups that share them.
constexpr constant uint MAX_KEYS = 256;
constexpr constant uint STEP_SIMDS = 4;

// The gated delta rule for `length` tokens: a group of 128 threads has 32 columns of the state of
// one head, a simdgroup every fourth row of them. For a token
//   S <- exp(g) S + k (beta (v - exp(g) S^T k))^T, o = S^T q,
// and both products with S are taken before it changes. `last` holds the state between tokens; a
// thread reads back what it wrote. Queries and keys are divided by their norms if `normalized`.
template <typename In, typename T>
[[max_total_threads_per_threadgroup(128)]] kernel void gated_delta_step(
    device const In* query [[buffer(0)]],
    device const In* key [[buffer(1)]],
    device const In* value [[buffer(2)]],
    device const T* g [[buffer(3)]],
    device const In* beta [[buffer(4)]],
    device const T* state [[buffer(5)]],
    device In* output [[buffer(6)]],
    device T* last [[buffer(7)]],
    constant uint& length [[buffer(8)]],
    constant uint& groups [[buffer(9)]],
    constant uint& heads [[buffer(10)]],
    constant uint& keys [[buffer(11)]],
    constant uint& values [[buffer(12)]],
    constant uint& normalized [[buffer(13)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, q, MAX_KEYS);
  THREADGROUP_ARRAY(T, k, MAX_KEYS);
  THREADGROUP_ARRAY(T, sums, 2 * STEP_SIMDS * 32);
  const uint column = group.x * 32 + lane;
  const bool inside = column < values;
  const uint batch = group.y / heads;
  const uint head = group.y % heads;
  const ulong of_state = ulong(group.y) * keys * values + column;
  device T* own = last + of_state;
  for (uint t = 0; t < length; ++t) {
    const ulong token = ulong(batch) * length + t;
    const ulong of_keys = (token * groups + head / (heads / groups)) * keys;
    for (uint r = tid; r < keys; r += 32u * STEP_SIMDS) {
      q[r] = T(query[of_keys + r]);
      k[r] = T(key[of_keys + r]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    T qq = T(0);
    T kk = T(0);
    T qk = T(0);
    for (uint r = lane; r < keys; r += 32u) {
      qq = fma(q[r], q[r], qq);
      kk = fma(k[r], k[r], kk);
      qk = fma(q[r], k[r], qk);
    }
    qk = simd_sum(qk);
    // flash-linear-attention's constant under the root.
    qq = normalized != 0 ? T(1) / sqrt(simd_sum(qq) + T(1e-6f)) : T(1);
    kk = normalized != 0 ? T(1) / sqrt(simd_sum(kk) + T(1e-6f)) : T(1);

    device const T* before = t == 0 ? state + of_state : own;
    T with_k = T(0);
    T with_q = T(0);
#pragma unroll(8)
    for (uint r = simd; r < keys; r += STEP_SIMDS) {
      const T entry = inside ? before[ulong(r) * values] : T(0);
      with_k = fma(k[r], entry, with_k);
      with_q = fma(q[r], entry, with_q);
    }
    sums[simd * 32 + lane] = with_k;
    sums[(STEP_SIMDS + simd) * 32 + lane] = with_q;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    with_k = T(0);
    with_q = T(0);
#pragma unroll
    for (uint s = 0; s < STEP_SIMDS; ++s) {
      with_k += sums[s * 32 + lane];
      with_q += sums[(STEP_SIMDS + s) * 32 + lane];
    }
    const T decay = exp(g[token * heads + head]);
    const ulong of_value = (token * heads + head) * values + column;
    const T given = inside ? T(value[of_value]) : T(0);
    const T written = T(beta[token * heads + head]) * fma(-decay * kk, with_k, given);
    if (simd == 0 && inside) {
      const T scale = qq / sqrt(T(keys));
      output[of_value] = In(scale * fma(decay, with_q, kk * qk * written));
    }
#pragma unroll(8)
    for (uint r = simd; r < keys; r += STEP_SIMDS) {
      if (inside) {
        own[ulong(r) * values] = fma(decay, before[ulong(r) * values], kk * k[r] * written);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
