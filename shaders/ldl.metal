#include "reduce.h"
#include "scalar.h"
#include "tile.h"

// A = L D L^T or, with `hermitian`, A = L D L^H, of the lower triangle of A, with the pivots of
// Bunch and Kaufman (1977) as LAPACK's sytf2 and hetf2 choose and encode them: pivots[k] = p says
// that rows and columns k and p (from 1) were exchanged before step k; -p at k and k + 1 says that
// D has a 2 x 2 block there and that k + 1 and p were exchanged. Column k of L keeps the order of
// rows of step k. info: the first zero (or NaN) pivot, from 1, else 0.

template <typename T> inline T adjoint_if(T a, bool hermitian) { return hermitian ? conj(a) : a; }

// An entry of the diagonal, whose imaginary part a Hermitian matrix does not have.
template <typename T> inline T diagonal_entry(T a, bool hermitian) {
  if constexpr (scalar_traits<T>::complex) {
    return hermitian ? T(a.x, real_t<T>(0)) : a;
  } else {
    return a;
  }
}

// What a step does with column k: the diagonal entry as it is, a 1 x 1 pivot from further down, or
// a 2 x 2 pivot. `dead` columns are zero, or NaN on the diagonal, and eliminate nothing.
struct Choice {
  bool dead;
  bool keep;
  bool two;
};

// Whether the largest entry below the diagonal is large enough for a look at its own column.
template <typename R> inline bool must_search(R diagonal, R below) {
  return diagonal < R(0.640388203202207556) * below;
}

// (1 + sqrt(17)) / 8 bounds the growth of two 1 x 1 steps and of one 2 x 2 step alike. `below` and
// `across` are the largest weights of the two columns off their diagonals.
template <typename R> inline Choice choose(R diagonal, R below, R other, R across) {
  const R alpha = R(0.640388203202207556);
  const bool dead = diagonal != diagonal || (diagonal == R(0) && below == R(0));
  const bool keep =
      dead || !must_search(diagonal, below) || diagonal >= alpha * below * (below / across);
  Choice choice = {dead, keep, !keep && !(other >= alpha * across)};
  return choice;
}

// The 2 x 2 block ((a, b^H), (b, c)) of D as its LU factors: b, which outweighs a, is the pivot.
template <typename T> struct Block {
  T b;
  T c;
  T multiplier;
  T rest;
};

template <typename T> inline Block<T> block_of(T a, T b, T c, bool hermitian) {
  const T multiplier = quotient(a, b);
  Block<T> block = {b, c, multiplier, mul_sub(adjoint_if(b, hermitian), multiplier, c)};
  return block;
}

// (u, v) := D^-1 (u, v). With b^H for b this is the row (u, v) D^-1.
template <typename T> inline void solve_block(thread T& u, thread T& v, Block<T> block) {
  const T y = quotient(mul_sub(u, block.multiplier, v), block.rest);
  u = quotient(mul_sub(v, block.c, y), block.b);
  v = y;
}

// Over each run of `width` lanes: the largest weight.
template <int width, typename R> inline R lane_max(R weight) {
  if constexpr (width == 32) {
    return simd_max_weight(weight);
  } else {
#pragma unroll
    for (int distance = width / 2; distance > 0; distance /= 2) {
      weight = max(weight, simd_shuffle_xor(weight, ushort(distance)));
    }
    return weight;
  }
}

template <int BLOCKS> inline void team_barrier() {
  if constexpr (BLOCKS == 1) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Where a thread stands in its team of N lanes, BLOCKS x BLOCKS times: it owns N columns, from
// block * N on, of `row`; `place` is its place among the lanes, `inside` whether there is a matrix.
struct Member {
  uint place;
  uint row;
  uint block;
  bool inside;
};

// The steps of ldl_simd and ldl_group. The team holds both triangles in registers and exchanges
// rows and columns in name only: position says where a row stands. The rows of the pivots go
// through threadgroup memory: `rows` takes 3 of them, `leads` two entries. All threads of the
// group call it.
template <typename T, int N, int BLOCKS>
inline void ldl_steps(
    thread T (&a)[N],
    threadgroup T* rows,
    threadgroup uint* leads,
    device T* LD,
    device int* pivots,
    device int* info,
    uint n,
    Member member,
    bool hermitian) {
  typedef real_t<T> R;
  constexpr uint SIZE = N * BLOCKS;
  uint position[BLOCKS];
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {
    const uint row = uint(b * N) + member.place;
    position[b] = member.inside && row < n ? row : UINT_MAX;
  }
  uint own = member.inside && member.row < n ? member.row : UINT_MAX;
  uint k = member.inside ? 0u : n;
  int failed = 0;
  uint parity = 0;
  threadgroup T* second = rows + 2 * SIZE;
  for (uint slowest = 0; slowest < n;) {
    // Of two rows in turn one is written while the other may still be read.
    threadgroup T* first = rows + parity * SIZE;
    if (own == k) {
#pragma unroll
      for (int j = 0; j < N; ++j) first[member.block * uint(N) + uint(j)] = a[j];
      leads[parity] = member.row;
    }
    team_barrier<BLOCKS>();
    R below = R(-1);
    uint largest = UINT_MAX;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      const uint row = uint(b * N) + member.place;
      const bool open = position[b] != UINT_MAX && position[b] > k;
      const R weight = open ? pivot_weight(first[row]) : R(-1);
      // Equal weights fall to the upper row, as in LAPACK; the row comes along in the low digits.
      const uint code = open ? position[b] * SIZE + row : UINT_MAX;
      const bool better = weight > below || (weight == below && code < largest);
      below = better ? weight : below;
      largest = better ? code : largest;
    }
    lane_argmax<(N < 32 ? N : 32)>(below, largest);
    below = max(below, R(0));
    const uint other_row = largest % SIZE;
    const T d1 = diagonal_entry(first[min(leads[parity], SIZE - 1)], hermitian);
    const bool search = k < n && must_search(cabs1(d1), below);
    if (search && member.row == other_row) {
#pragma unroll
      for (int j = 0; j < N; ++j) second[member.block * uint(N) + uint(j)] = a[j];
    }
    team_barrier<BLOCKS>();
    R across = R(-1);
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      const uint row = uint(b * N) + member.place;
      const bool open = search && position[b] != UINT_MAX && position[b] >= k && row != other_row;
      across = max(across, open ? pivot_weight(second[row]) : R(-1));
    }
    across = lane_max<(N < 32 ? N : 32)>(across);
    const T d2 = diagonal_entry(search ? second[other_row] : one<T>(), hermitian);
    const Choice choice = choose(cabs1(d1), below, cabs1(d2), across);
    if (k < n) {
      const uint last = choice.two ? k + 1 : k;
      const uint pivot = choice.keep ? k : largest / SIZE;
      if (!choice.keep) {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
          const bool moved = uint(b * N) + member.place == other_row;
          position[b] = moved ? last : (position[b] == last ? pivot : position[b]);
        }
        own = member.row == other_row ? last : (own == last ? pivot : own);
      }
      const bool open = own != UINT_MAX && own > last;
      const bool writes = own != UINT_MAX && member.block == 0;
      device T* column = LD + ulong(k) * n;
      threadgroup const T* u = first + member.block * uint(N);
      threadgroup const T* v = second + member.block * uint(N);
      if (choice.two) {
        const T b = adjoint_if(first[other_row], hermitian);
        T l1 = adjoint_if(first[member.row], hermitian);
        T l2 = adjoint_if(second[member.row], hermitian);
        solve_block(l1, l2, block_of(d1, adjoint_if(b, hermitian), d2, hermitian));
        if (writes) {
          column[own] = open ? l1 : (own == k ? d1 : (own == last ? b : zero<T>()));
          column[n + own] = open ? l2 : (own == last ? d2 : zero<T>());
        }
        if (open) {
#pragma unroll
          for (int j = 0; j < N; ++j) a[j] = mul_sub(mul_sub(a[j], l1, u[j]), l2, v[j]);
        }
      } else {
        const T w = adjoint_if(choice.keep ? first[member.row] : second[member.row], hermitian);
        const T d = choice.keep ? d1 : d2;
        const T l = choice.dead ? w : quotient(w, d);
        if (writes) column[own] = open ? l : (own == k ? d : zero<T>());
        if (open && !choice.dead) {
          u = choice.keep ? u : v;
#pragma unroll
          for (int j = 0; j < N; ++j) a[j] = mul_sub(a[j], l, u[j]);
        }
      }
      if (member.row == 0 && member.block == 0) {
        const int code = int(pivot) + 1;
        pivots[k] = choice.two ? -code : code;
        if (choice.two) pivots[k + 1] = -code;
      }
      failed = choice.dead && failed == 0 ? int(k) + 1 : failed;
      k = last + 1;
    }
    parity = 1 - parity;
    slowest = simd_min(k);
  }
  if (member.inside && member.row == 0 && member.block == 0) *info = failed;
}

// N lanes factor one n x n matrix, n <= N, a row a lane; a simdgroup holds 32 / N matrices.
// A has any strides; LD is column-major.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void ldl_simd(
    device const T* A [[buffer(0)]],
    device T* LD [[buffer(1)]],
    device int* pivots [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& batch [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& hermitian [[buffer(9)]],
    uint id [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tiles, 32 * (N + 1));
  THREADGROUP_ARRAY(uint, leads, 64 / N);
  const uint matrix = id / uint(N);
  const uint place = lane % uint(N);
  const uint team = lane / uint(N);
  threadgroup T* tile = tiles + team * uint(N * (N + 1));
  const bool inside = matrix < batch;
  device const T* from = A + long(matrix) * batch_stride;
  // The lanes read along memory, and mirror what they read.
  const bool by_rows = column_stride < row_stride;
#pragma unroll(8)
  for (uint i = 0; i < uint(N); ++i) {
    const uint row = by_rows ? i : place;
    const uint column = by_rows ? place : i;
    if (inside && row < n && column <= row) {
      const T entry = from[long(row) * long(row_stride) + long(column) * long(column_stride)];
      tile[column * uint(N + 1) + row] = adjoint_if(entry, hermitian != 0);
      tile[row * uint(N + 1) + column] = entry;
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  T a[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    a[j] = inside && place < n && uint(j) < n ? tile[place * uint(N + 1) + uint(j)] : zero<T>();
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  Member member = {place, place, 0u, inside};
  ldl_steps<T, N, 1>(
      a, tile, leads + 2 * team, LD + ulong(matrix) * n * n, pivots + ulong(matrix) * n,
      info + matrix, n, member, hermitian != 0);
}

// One threadgroup of 32 x BLOCKS^2 threads factors one n x n matrix, n <= 32 BLOCKS: a simdgroup
// owns 32 rows of 32 columns. A has any strides; LD is column-major.
template <typename T, int BLOCKS>
[[max_total_threads_per_threadgroup(512)]] kernel void ldl_group(
    device const T* A [[buffer(0)]],
    device T* LD [[buffer(1)]],
    device int* pivots [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant uint& hermitian [[buffer(8)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, rows, 3 * 32 * BLOCKS);
  THREADGROUP_ARRAY(uint, leads, 2);
  Member member = {lane, simd % uint(BLOCKS) * 32 + lane, simd / uint(BLOCKS), true};
  device const T* from = A + long(group) * batch_stride;
  T a[32];
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const uint column = member.block * 32 + uint(j);
    const uint i = max(member.row, column);
    const uint k = min(member.row, column);
    T entry = zero<T>();
    if (i < n) entry = from[long(i) * long(row_stride) + long(k) * long(column_stride)];
    a[j] = adjoint_if(entry, hermitian != 0 && column > member.row);
  }
  ldl_steps<T, 32, BLOCKS>(
      a, rows, leads, LD + ulong(group) * n * n, pivots + ulong(group) * n, info + group, n, member,
      hermitian != 0);
}

// What the threads of ldl_panel share. `top` is a simdgroup's own; `heads` holds the entries in
// rows k and k + 1 of both columns of a step, then their diagonal entries.
template <typename T> struct PanelView {
  device T* matrix;
  device T* L;
  device T* W;
  threadgroup T* top;
  threadgroup T* heads;
  threadgroup real_t<T>* weights;
  threadgroup uint* rows;
  threadgroup T* entries;
  uint n;
  uint tid;
  uint threads;
  uint lane;
  uint simd;
  bool hermitian;
};

// The largest entry of a column off its diagonal; of none the weight is 0.
template <typename T> struct Largest {
  real_t<T> weight;
  uint row;
  T entry;
};

// The most simdgroups of ldl_panel.
constexpr constant uint PANEL_SIMDS = 16;

// Column c, brought up to date with the `done` columns of the panel, from row k on, to W. A step
// has two such columns, `which` is 0 or 1. A thread takes ROWS rows at once: what it waits for is
// memory. All threads of the group call it.
template <typename T, int ROWS>
inline Largest<T> updated_column(
    thread const PanelView<T>& view, uint k, uint c, uint done, uint which) {
  typedef real_t<T> R;
  constexpr int AHEAD = ROWS == 1 ? 8 : 4;
  const uint n = view.n;
  view.top[view.lane] = view.lane < done ? view.W[ulong(view.lane) * n + c] : zero<T>();
  simdgroup_barrier(mem_flags::mem_threadgroup);
  device T* column = view.W + ulong(done + which) * n;
  Largest<T> own = {R(-1), UINT_MAX, zero<T>()};
  for (uint first = k + view.tid; first < n; first += ROWS * view.threads) {
    T x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const uint i = min(first + uint(r) * view.threads, n - 1);
      const bool lower = i >= c;
      const T entry = view.matrix[ulong(lower ? c : i) * n + (lower ? i : c)];
      x[r] = adjoint_if(entry, view.hermitian && !lower);
    }
    // The columns that are not done are zero.
    device const T* l = view.L;
    for (uint j = 0; j < done; j += uint(AHEAD)) {
      T next[AHEAD][ROWS];
#pragma unroll
      for (int e = 0; e < AHEAD; ++e) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          next[e][r] = l[uint(e) * n + min(first + uint(r) * view.threads, n - 1)];
        }
      }
#pragma unroll
      for (int e = 0; e < AHEAD; ++e) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) x[r] = mul_sub(x[r], next[e][r], view.top[j + uint(e)]);
      }
      l += uint(AHEAD) * n;
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const uint i = first + uint(r) * view.threads;
      if (i < n) {
        const T entry = i == c ? diagonal_entry(x[r], view.hermitian) : x[r];
        column[i] = entry;
        if (i <= k + 1) view.heads[2 * which + i - k] = entry;
        if (i == c) view.heads[4 + which] = entry;
        const R weight = i == c ? R(-1) : pivot_weight(entry);
        const bool larger = weight > own.weight;
        own.row = larger ? i : own.row;
        own.entry = larger ? entry : own.entry;
        own.weight = max(own.weight, weight);
      }
    }
  }
  R weight = own.weight;
  uint row = own.row;
  lane_argmax<32>(weight, row);
  const uint place = which * PANEL_SIMDS + view.simd;
  if (own.row == row && (row != UINT_MAX || view.lane == 0)) {
    view.weights[place] = weight;
    view.rows[place] = row;
    view.entries[place] = own.entry;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint other = which * PANEL_SIMDS + view.lane;
  const bool filled = view.lane < view.threads / 32;
  const R candidate = filled ? view.weights[other] : R(-1);
  const R best = simd_max_weight(candidate);
  // The place of the entry comes along in the low digits. Of no entry they mean nothing.
  const bool leads = filled && candidate == best;
  const uint code = simd_min(leads ? view.rows[other] * PANEL_SIMDS + view.lane : UINT_MAX);
  Largest<T> largest = {
      max(best, R(0)), code / PANEL_SIMDS, view.entries[which * PANEL_SIMDS + code % PANEL_SIMDS]};
  return largest;
}

// One threadgroup factors the columns of one matrix from where the panel before ended up to `last`,
// one more if a 2 x 2 block begins in the column before; COLUMNS is the most there can be. The
// columns are left-looking, as in LAPACK's lasyf: what is right of them stays as it is but for the
// exchanges. The trailing matrix from `last` on then loses L W^T, where L and W hold the columns of
// L and of L D (of its conjugate, if Hermitian), zero where the panel has no column and in the row
// that it took beyond `last`. `next` keeps where the panel ended.
template <typename T, int COLUMNS, int ROWS>
[[max_total_threads_per_threadgroup(512)]] kernel void ldl_panel(
    device T* LD [[buffer(0)]],
    device T* L [[buffer(1)]],
    device T* W [[buffer(2)]],
    device int* pivots [[buffer(3)]],
    device int* info [[buffer(4)]],
    device int* next [[buffer(5)]],
    constant uint& n [[buffer(6)]],
    constant uint& last [[buffer(7)]],
    constant uint& is_first [[buffer(8)]],
    constant uint& hermitian [[buffer(9)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> R;
  THREADGROUP_ARRAY(T, tops, PANEL_SIMDS * 32);
  THREADGROUP_ARRAY(T, heads, 6);
  THREADGROUP_ARRAY(R, weights, 2 * PANEL_SIMDS);
  THREADGROUP_ARRAY(uint, rows, 2 * PANEL_SIMDS);
  THREADGROUP_ARRAY(T, entries, 2 * PANEL_SIMDS);
  const ulong panel = ulong(group) * COLUMNS * n;
  device T* matrix = LD + ulong(group) * n * n;
  device T* own_L = L + panel;
  device T* own_W = W + panel;
  const bool adjoint = hermitian != 0;
  PanelView<T> view = {matrix,  own_L, own_W, tops + simd * 32, heads, weights, rows,
                       entries, n,     tid,   threads,          lane,  simd,    adjoint};
  const uint begin = is_first != 0 ? 0u : uint(next[group]);
  int failed = is_first != 0 ? 0 : info[group];
  for (uint i = begin + tid; i < n; i += threads) {
    for (uint j = 0; j < uint(COLUMNS); ++j) own_L[ulong(j) * n + i] = zero<T>();
  }
  uint k = begin;
  // The first step reads none of these zeros, and ends with a barrier.
  while (k < last) {
    const uint done = k - begin;
    const Largest<T> below = updated_column<T, ROWS>(view, k, k, done, 0);
    const T d1 = heads[4];
    R across = R(0);
    T d2 = one<T>();
    // A corner that moves is overwritten by another thread than the one that moves it.
    T corner = zero<T>();
    T next_corner = zero<T>();
    if (must_search(cabs1(d1), below.weight)) {
      corner = matrix[ulong(k) * (n + 1)];
      next_corner = matrix[ulong(k + 1) * (n + 1)];
      across = updated_column<T, ROWS>(view, k, below.row, done, 1).weight;
      d2 = heads[5];
    }
    const Choice choice = choose(cabs1(d1), below.weight, cabs1(d2), across);
    const uint end = choice.two ? k + 1 : k;
    const uint pivot = choice.keep ? k : below.row;
    const bool moves = pivot != end;
    // From here to the end of the step no thread reads what another one writes.
    if (moves && tid < done) {
      device T* of_W = own_W + ulong(tid) * n;
      const T w = of_W[end];
      of_W[end] = of_W[pivot];
      of_W[pivot] = w;
      device T* of_L = own_L + ulong(tid) * n;
      const T l = of_L[end];
      of_L[end] = of_L[pivot];
      of_L[pivot] = l;
    }
    device const T* moved = matrix + ulong(end) * n;
    device T* column = matrix + ulong(k) * n;
    device T* l1 = own_L + ulong(done) * n;
    device T* l2 = l1 + n;
    device T* w1 = own_W + ulong(done) * n;
    device T* w2 = w1 + n;
    const T b = below.entry;
    const T d = choice.keep ? d1 : d2;
    Block<T> block = {b, d2, zero<T>(), one<T>()};
    if (choice.two) block = block_of(d1, adjoint_if(b, adjoint), d2, adjoint);
    for (uint i = k + tid; i < n; i += threads) {
      T x = w1[i];
      T y = choice.keep ? x : w2[i];
      if (moves && i > end) {
        if (i > pivot) {
          matrix[ulong(pivot) * n + i] = moved[i];
        } else if (i < pivot) {
          matrix[ulong(i) * n + pivot] = adjoint_if(moved[i], adjoint);
        } else {
          matrix[ulong(pivot) * n + pivot] = choice.two ? next_corner : corner;
          x = heads[end - k];
          y = heads[2 + end - k];
        }
      } else if (moves && i == end) {
        x = b;
        y = d2;
      }
      if (choice.two) {
        w1[i] = adjoint_if(x, adjoint);
        w2[i] = adjoint_if(y, adjoint);
        solve_block(x, y, block);
        l1[i] = x;
        l2[i] = y;
        column[i] = i == k ? d1 : (i == end ? b : x);
        if (i >= end) column[n + i] = i == end ? d2 : y;
      } else {
        const T l = choice.dead ? y : quotient(y, d);
        w1[i] = choice.dead ? zero<T>() : adjoint_if(y, adjoint);
        l1[i] = choice.dead ? zero<T>() : l;
        column[i] = i == k ? d : l;
      }
    }
    if (tid == 0) {
      const int code = int(pivot) + 1;
      device int* to = pivots + ulong(group) * n + k;
      to[0] = choice.two ? -code : code;
      if (choice.two) to[1] = -code;
    }
    failed = choice.dead && failed == 0 ? int(k) + 1 : failed;
    k = end + 1;
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
  for (uint i = last + tid; i < n; i += threads) {
    for (uint j = i < k ? 0u : k - begin; j < uint(COLUMNS); ++j) {
      own_L[ulong(j) * n + i] = zero<T>();
      own_W[ulong(j) * n + i] = zero<T>();
    }
  }
  if (tid == 0) {
    next[group] = int(k);
    info[group] = failed;
  }
}

// What a panel leaves to do: the lower triangle from row and column `last` on loses L W^T. One tile
// of it by a group of 256 threads, which have 4 x 4 entries each. Nothing above the diagonal
// changes.
template <typename T, int COLUMNS>
[[max_total_threads_per_threadgroup(256)]] kernel void ldl_update(
    device T* LD [[buffer(0)]],
    device const T* L [[buffer(1)]],
    device const T* W [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& last [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr uint SIDE = 64;
  constexpr uint DEPTH = 8;
  constexpr int OWN = 4;
  constexpr uint LANES = SIDE / OWN;
  THREADGROUP_ARRAY(T, left, SIDE * DEPTH);
  THREADGROUP_ARRAY(T, right, SIDE * DEPTH);
  const ulong panel = ulong(group.z) * COLUMNS * n;
  const uint row = last + group.x * SIDE;
  const uint column = last + group.y * SIDE;
  const uint i = tid % LANES;
  const uint j = tid / LANES;
  if (group.x >= group.y) {
    T sum[OWN][OWN];
#pragma unroll
    for (int r = 0; r < OWN; ++r) {
#pragma unroll
      for (int c = 0; c < OWN; ++c) sum[r][c] = zero<T>();
    }
    for (uint first = 0; first < uint(COLUMNS); first += DEPTH) {
#pragma unroll
      for (uint e = tid; e < SIDE * DEPTH; e += 256) {
        const uint place = e % SIDE;
        const ulong from = panel + ulong(first + e / SIDE) * n;
        left[e] = row + place < n ? L[from + row + place] : zero<T>();
        right[e] = column + place < n ? W[from + column + place] : zero<T>();
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (uint k = 0; k < DEPTH; ++k) {
        T a[OWN];
        T b[OWN];
#pragma unroll
        for (int r = 0; r < OWN; ++r) {
          a[r] = left[k * SIDE + uint(r) * LANES + i];
          b[r] = right[k * SIDE + uint(r) * LANES + j];
        }
#pragma unroll
        for (int r = 0; r < OWN; ++r) {
#pragma unroll
          for (int c = 0; c < OWN; ++c) sum[r][c] = mul_sub(sum[r][c], a[r], b[c]);
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    device T* matrix = LD + ulong(group.z) * n * n;
#pragma unroll
    for (int c = 0; c < OWN; ++c) {
      const uint to_column = column + uint(c) * LANES + j;
#pragma unroll
      for (int r = 0; r < OWN; ++r) {
        const uint to_row = row + uint(r) * LANES + i;
        if (to_row < n && to_column <= to_row) {
          device T* entry = matrix + ulong(to_column) * n + to_row;
          *entry = *entry + sum[r][c];
        }
      }
    }
  }
}

// What a row of D is: a pivot of its own, or the first or second row of a 2 x 2 block.
constexpr constant uint SINGLE = 0;
constexpr constant uint FIRST = 1;
constexpr constant uint SECOND = 2;

// Before column k of L is read. `role` is that of the column before, k + 1.
inline uint role_of(int pivot, uint k, uint role) {
  return role == SECOND ? FIRST : (pivot < 0 && k > 0 ? SECOND : SINGLE);
}

// Pivots are the caller's: one that names no row is taken for the last.
inline uint row_of(int pivot, uint n) {
  return min((pivot < 0 ? uint(-pivot) : uint(pivot)) - 1, n - 1);
}

// After column k was read: its exchange is undone, that of a block after its first column.
inline uint moved_by(uint at, int pivot, uint k, uint role, uint n) {
  const uint a = role == FIRST ? k + 1 : k;
  const uint b = row_of(pivot, n);
  return role == SECOND ? at : (at == a ? b : (at == b ? a : at));
}

// N lanes solve for N columns of one matrix with n <= N rows; a simdgroup holds 32 / N such teams.
// The factors lie in threadgroup memory, L with its rows in their last order and L^T above it; a
// lane's column lies in its registers. LD and B have any strides; X is column-major.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void ldl_solve_simd(
    device const T* LD [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    device const T* B [[buffer(2)]],
    device T* X [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& columns [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& ld_row_stride [[buffer(7)]],
    constant uint& ld_column_stride [[buffer(8)]],
    constant long& ld_batch_stride [[buffer(9)]],
    constant long& pivot_batch_stride [[buffer(10)]],
    constant uint& row_stride [[buffer(11)]],
    constant uint& column_stride [[buffer(12)]],
    constant long& batch_stride [[buffer(13)]],
    constant uint& hermitian [[buffer(14)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tiles, 32 * (N + 1));
  THREADGROUP_ARRAY(T, diagonals, 32);
  THREADGROUP_ARRAY(T, corners, 32);
  THREADGROUP_ARRAY(uint, all_roles, 32);
  THREADGROUP_ARRAY(uint, sources, 32);
  const uint team = lane / uint(N);
  const uint place = lane % uint(N);
  const uint matrix = group.y * (32 / N) + team;
  const uint first = group.x * uint(N);
  const bool inside = matrix < batch;
  const uint own_columns = inside ? min(uint(N), columns - first) : 0u;
  threadgroup T* tile = tiles + team * uint(N * (N + 1));
  threadgroup T* diagonal = diagonals + team * uint(N);
  threadgroup T* corner = corners + team * uint(N);
  threadgroup uint* roles = all_roles + team * uint(N);
  threadgroup uint* source = sources + team * uint(N);
  // A lane's column of B is its row of B^T.
  T x[N];
  load_row<T, N>(
      x, B + long(matrix) * batch_stride + long(first) * long(column_stride), inside, place,
      own_columns, n, column_stride, row_stride, tile);
  device const T* factors = LD + long(matrix) * ld_batch_stride;
  device const int* swaps = pivots + long(matrix) * pivot_batch_stride;
  uint at = place;
  T d = one<T>();
  T e = zero<T>();
  uint own_role = SINGLE;
  // The walk comes twice: the right-hand side needs its end before the tile takes the factors.
  if (inside) {
    uint role = SINGLE;
    for (uint i = n; i > 0; --i) {
      role = role_of(swaps[i - 1], i - 1, role);
      at = moved_by(at, swaps[i - 1], i - 1, role, n);
      own_role = i - 1 == place ? role : own_role;
    }
    if (place < n) {
      device const T* entry =
          factors + long(place) * (long(ld_row_stride) + long(ld_column_stride));
      d = diagonal_entry(*entry, hermitian != 0);
      if (own_role == FIRST) e = entry[ld_row_stride];
    }
  }
  source[place] = at;
  roles[place] = own_role;
  diagonal[place] = d;
  corner[place] = e;
#pragma unroll
  for (int i = 0; i < N; ++i) tile[place * uint(N + 1) + uint(i)] = x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = tile[place * uint(N + 1) + source[i]];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (inside) {
    at = place;
    for (uint i = n; i > 0; --i) {
      const uint k = i - 1;
      const uint role = roles[k];
      if (place > k && place < n) {
        const bool in_block = role == FIRST && place == k + 1;
        T entry = zero<T>();
        if (!in_block)
          entry = factors[long(at) * long(ld_row_stride) + long(k) * long(ld_column_stride)];
        tile[k * uint(N) + place] = entry;
        tile[place * uint(N) + k] = adjoint_if(entry, hermitian != 0);
      }
      at = moved_by(at, swaps[k], k, role, n);
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  substitute<T, N, true>(x, tile, n, true);
  // Each step works on entry 0 and passes the others down by one; the last has them back in place.
  T second = zero<T>();
#pragma unroll(1)
  for (uint i = 0; i < uint(N); ++i) {
    T known = x[0];
    if (roles[i] == SECOND) {
      known = second;
    } else if (roles[i] == FIRST && i + 1 < n) {
      second = x[1];
      solve_block(known, second, block_of(diagonal[i], corner[i], diagonal[i + 1], hermitian != 0));
    } else {
      known = quotient(known, diagonal[i]);
    }
#pragma unroll
    for (int j = 1; j < N; ++j) x[j - 1] = x[j];
    x[N - 1] = known;
  }
  substitute<T, N, false>(x, tile, n, true);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  store_columns<T, N>(
      x, X + (ulong(matrix) * columns + first) * n, place, n, own_columns, n, source, tile);
}

// One simdgroup solves for COLUMNS columns of one matrix with n <= ROWS rows, as LAPACK's sytrs
// does: every exchange and elimination in its turn, L as it lies in memory; the columns lie in
// threadgroup memory. LD and B have any strides; X is column-major.
template <typename T, int ROWS, int COLUMNS>
[[max_total_threads_per_threadgroup(64)]] kernel void ldl_solve_columns(
    device const T* LD [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    device const T* B [[buffer(2)]],
    device T* X [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& columns [[buffer(5)]],
    constant uint& ld_row_stride [[buffer(6)]],
    constant uint& ld_column_stride [[buffer(7)]],
    constant long& ld_batch_stride [[buffer(8)]],
    constant long& pivot_batch_stride [[buffer(9)]],
    constant uint& row_stride [[buffer(10)]],
    constant uint& column_stride [[buffer(11)]],
    constant long& batch_stride [[buffer(12)]],
    constant uint& hermitian [[buffer(13)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, x, ROWS * COLUMNS);
  const bool adjoint = hermitian != 0;
  const uint first = group.x * uint(COLUMNS);
  const uint count = min(uint(COLUMNS), columns - first);
  const long below = long(ld_row_stride);
  const long right = long(ld_column_stride);
  device const T* factors = LD + long(group.y) * ld_batch_stride;
  device const int* swaps = pivots + long(group.y) * pivot_batch_stride;
  device const T* from = B + long(group.y) * batch_stride + long(first) * long(column_stride);
  for (uint i = lane; i < n; i += 32) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      x[c * ROWS + int(i)] =
          uint(c) < count ? from[long(i) * long(row_stride) + c * long(column_stride)] : zero<T>();
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = 0; k < n;) {
    const bool two = swaps[k] < 0 && k + 1 < n;
    const uint last = two ? k + 1 : k;
    device const T* column = factors + long(k) * right;
    threadgroup T* own = x + lane * uint(ROWS);
    if (lane < uint(COLUMNS)) {
      const uint other = row_of(swaps[k], n);
      const T moved = own[last];
      own[last] = own[other];
      own[other] = moved;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = last + 1 + lane; i < n; i += 32) {
      const T l1 = column[long(i) * below];
      const T l2 = two ? column[right + long(i) * below] : zero<T>();
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        T entry = mul_sub(x[c * ROWS + int(i)], l1, x[c * ROWS + int(k)]);
        if (two) entry = mul_sub(entry, l2, x[c * ROWS + int(last)]);
        x[c * ROWS + int(i)] = entry;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < uint(COLUMNS)) {
      const T d1 = diagonal_entry(column[long(k) * below], adjoint);
      if (two) {
        T u = own[k];
        T v = own[last];
        const T d2 = diagonal_entry(column[right + long(last) * below], adjoint);
        solve_block(u, v, block_of(d1, column[long(last) * below], d2, adjoint));
        own[k] = u;
        own[last] = v;
      } else {
        own[k] = quotient(own[k], d1);
      }
    }
    k = last + 1;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  // Sums of products come first and the entry last: it outweighs them when D^-1 is large.
  for (uint end = n; end > 0;) {
    const bool two = swaps[end - 1] < 0 && end > 1;
    const uint k = two ? end - 2 : end - 1;
    device const T* column = factors + long(k) * right;
    T sum1[COLUMNS];
    T sum2[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      sum1[c] = zero<T>();
      sum2[c] = zero<T>();
    }
    for (uint i = end + lane; i < n; i += 32) {
      const T l1 = adjoint_if(column[long(i) * below], adjoint);
      const T l2 = two ? adjoint_if(column[right + long(i) * below], adjoint) : zero<T>();
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const T entry = x[c * ROWS + int(i)];
        sum1[c] = mul_sub(sum1[c], l1, entry);
        if (two) sum2[c] = mul_sub(sum2[c], l2, entry);
      }
    }
    T own1 = zero<T>();
    T own2 = zero<T>();
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const T total1 = simd_sum(sum1[c]);
      const T total2 = simd_sum(sum2[c]);
      own1 = lane == uint(c) ? total1 : own1;
      own2 = lane == uint(c) ? total2 : own2;
    }
    // A sum over lanes orders no memory: what is exchanged below has been read.
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < uint(COLUMNS)) {
      threadgroup T* own = x + lane * uint(ROWS);
      const uint other = row_of(swaps[k], n);
      own[k] = own[k] + own1;
      if (two) own[end - 1] = own[end - 1] + own2;
      const T moved = own[end - 1];
      own[end - 1] = own[other];
      own[other] = moved;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    end = k;
  }
  device T* to = X + (ulong(group.y) * columns + first) * n;
  for (uint c = 0; c < count; ++c) {
    for (uint i = lane; i < n; i += 32) to[ulong(c) * n + i] = x[c * uint(ROWS) + i];
  }
}

// One thread per row: L below the diagonal, column-major, with its rows in their last order; the
// row of A that the exchanges moved to each row; and the roles of the rows of D.
template <typename T>
kernel void ldl_unpack(
    device const T* LD [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    device T* L [[buffer(2)]],
    device int* permutation [[buffer(3)]],
    device int* roles [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant long& pivot_batch_stride [[buffer(9)]],
    uint2 id [[thread_position_in_grid]]) {
  device const T* factors = LD + long(id.y) * batch_stride;
  device const int* swaps = pivots + long(id.y) * pivot_batch_stride;
  device T* to = L + ulong(id.y) * n * n;
  const uint row = id.x;
  uint at = row;
  uint role = SINGLE;
  uint own_role = SINGLE;
  // Where an entry lies depends on pivots alone: several are on their way at once.
  constexpr int AHEAD = 8;
  for (uint i = n; i > 0; i -= min(i, uint(AHEAD))) {
    T entries[AHEAD];
#pragma unroll
    for (int e = 0; e < AHEAD; ++e) {
      entries[e] = zero<T>();
      if (uint(e) < i) {
        const uint k = i - 1 - uint(e);
        const int pivot = swaps[k];
        role = role_of(pivot, k, role);
        own_role = k == row ? role : own_role;
        const bool in_block = role == FIRST && row == k + 1;
        if (row > k && !in_block) {
          entries[e] = factors[long(at) * long(row_stride) + long(k) * long(column_stride)];
        }
        at = moved_by(at, pivot, k, role, n);
      }
    }
#pragma unroll
    for (int e = 0; e < AHEAD; ++e) {
      if (uint(e) < i && row > i - 1 - uint(e)) to[ulong(i - 1 - uint(e)) * n + row] = entries[e];
    }
  }
  permutation[ulong(id.y) * n + row] = int(at);
  roles[ulong(id.y) * n + row] = int(own_role);
}

// X := D^-1 X for column-major X. One thread per row and column does a block of D, the thread of
// its first row for both.
template <typename T>
kernel void ldl_divide(
    device const T* LD [[buffer(0)]],
    device const int* roles [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& columns [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant uint& hermitian [[buffer(8)]],
    uint3 id [[thread_position_in_grid]]) {
  const long next = long(row_stride) + long(column_stride);
  device const T* entry = LD + long(id.z) * batch_stride + long(id.x) * next;
  device T* x = X + (ulong(id.z) * columns + id.y) * n + id.x;
  const uint role = uint(roles[ulong(id.z) * n + id.x]);
  const T d = diagonal_entry(*entry, hermitian != 0);
  if (role == FIRST) {
    T u = x[0];
    T v = x[1];
    const T c = diagonal_entry(entry[next], hermitian != 0);
    solve_block(u, v, block_of(d, entry[row_stride], c, hermitian != 0));
    x[0] = u;
    x[1] = v;
  } else if (role == SINGLE) {
    x[0] = quotient(x[0], d);
  }
}
