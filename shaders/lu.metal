#include "determinant.h"
#include "elimination.h"
#include "reduce.h"
#include "rows.h"
#include "scalar.h"
#include "tile.h"
#include "update.h"

// One thread factors one N x N matrix of any strides. LU is column-major.
// info: the first zero pivot, from 1, else 0.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void lu_tiny(
    device const T* A [[buffer(0)]],
    device T* LU [[buffer(1)]],
    device int* pivots [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant long& batch_stride [[buffer(6)]],
    constant uint& pivoting [[buffer(7)]],
    uint id [[thread_position_in_grid]]) {
  device const T* from = A + long(id) * batch_stride;
  T a[N][N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) a[i][j] = from[uint(i) * row_stride + uint(j) * column_stride];
  }
  int swaps[N];
  info[id] = factor<T, N>(a, swaps, pivoting != 0);
#pragma unroll
  for (int k = 0; k < N; ++k) pivots[ulong(id) * N + uint(k)] = swaps[k];
  device T* to = LU + ulong(id) * (N * N);
#pragma unroll
  for (int j = 0; j < N; ++j) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[j * N + i] = a[i][j];
  }
}

// The same where the matrices of A follow each other without a gap, 32 to a simdgroup.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void lu_packed(
    device const T* A [[buffer(0)]],
    device T* LU [[buffer(1)]],
    device int* pivots [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& row_stride [[buffer(4)]],
    constant uint& column_stride [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& pivoting [[buffer(7)]],
    uint simdgroup [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tile, 32 * (N * N + 1));
  const uint first = simdgroup * 32;
  const uint count = min(32u, batch - first);
  T a[N][N];
  load_packed<T, N>(a, A + ulong(first) * (N * N), count, row_stride, column_stride, lane, tile);
  if (lane < count) {
    int swaps[N];
    info[first + lane] = factor<T, N>(a, swaps, pivoting != 0);
#pragma unroll
    for (int k = 0; k < N; ++k) pivots[ulong(first + lane) * N + uint(k)] = swaps[k];
  }
  store_packed<T, N>(a, LU + ulong(first) * (N * N), count, lane, tile);
}

// N lanes factor one m x n matrix, m, n <= N: a lane owns a row in registers, and rows are swapped
// in name only. A simdgroup holds 32 / N matrices.
// A has any strides; LU is column-major. info: the first zero pivot, from 1, else 0.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void lu_simd(
    device const T* A [[buffer(0)]],
    device T* LU [[buffer(1)]],
    device int* pivots [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& row_stride [[buffer(7)]],
    constant uint& column_stride [[buffer(8)]],
    constant long& batch_stride [[buffer(9)]],
    constant uint& pivoting [[buffer(10)]],
    uint id [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint matrix = id / uint(N);
  const uint row = lane % uint(N);
  const bool owns = matrix < batch && row < m;
  THREADGROUP_ARRAY(T, tile, 32 * (N + 1));
  T a[N];
  load_row<T, N>(
      a, A + long(matrix) * batch_stride, matrix < batch, row, m, n, row_stride, column_stride,
      tile + lane / uint(N) * uint(N * (N + 1)));
  const uint steps = min(m, n);
  RowState<T> state = {row, lane - row, owns ? row : UINT_MAX, 0, 0, zero<T>()};
  eliminate_rows<T, N, N>(a, state, steps, pivoting != 0);
  if (matrix < batch) {
    if (row < steps) pivots[ulong(matrix) * steps + row] = state.pivot;
    if (row == 0) info[matrix] = state.failed;
  }
  device T* to = LU + ulong(matrix) * m * n + state.position;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (owns && uint(j) < n) to[uint(j) * m] = a[slot<N>(j)];
  }
}

// Where a thread of lu_rows stands.
template <typename T> struct RowElimination {
  RowMemory<T> memory;
  device int* pivots;
  uint m;
  uint steps;
  bool pivoting;
  uint position;
  int failed;
};

// Step k of the elimination, in which part `owner` holds the column at entry 0 of ACTIVE: chooses
// the pivot, leaves its row in memory.top and the multiplier at entry 0 of the owner. Returns the
// multiplier, zero where there is nothing to eliminate. All threads of the group call it.
template <typename T, int WIDTH, int TEAM, int ACTIVE>
inline T lu_rows_pivot(
    thread T (&a)[WIDTH],
    uint k,
    uint owner,
    thread const RowTeam& team,
    thread RowElimination<T>& state) {
  if (k >= state.steps) return zero<T>();
  const bool open = state.position < state.m && state.position >= k;
  const bool eligible = open && (state.pivoting || state.position == k);
  const uint chosen =
      next_pivot<T, TEAM>(a[0], state.position, eligible, owner, team, state.memory);
  const bool top_row = state.position == chosen;
  if (top_row) {
    threadgroup T* top = state.memory.top + team.part * uint(WIDTH);
#pragma unroll
    for (int c = 0; c < ACTIVE; ++c) top[c] = a[c];
  }
  const T entry = TEAM > 1 ? state.memory.column[team.row] : a[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const T diagonal = state.memory.top[owner * uint(WIDTH)];
  const bool singular = is_zero(diagonal);
  state.failed = singular && state.failed == 0 ? int(k) + 1 : state.failed;
  state.position = top_row ? k : (state.position == k ? chosen : state.position);
  if (team.row == 0 && team.part == 0) state.pivots[k] = int(chosen) + 1;
  if (!open || top_row || singular) return zero<T>();
  const T l = quotient(entry, diagonal);
  if (team.part == owner) a[0] = l;
  return l;
}

// The steps of lu_rows on the columns of a part from WIDTH - ACTIVE on: each is TEAM steps of the
// elimination, the last of which passes the entries down. All threads of the group call it.
template <typename T, int WIDTH, int TEAM, int ACTIVE>
inline void lu_rows_steps(
    thread T (&a)[WIDTH], thread const RowTeam& team, thread RowElimination<T>& state) {
  constexpr int STEPS = ACTIVE < SEGMENT ? ACTIVE : SEGMENT;
  const uint part = team.part;
  threadgroup const T* u = state.memory.top + part * uint(WIDTH);
#pragma unroll(1)
  for (int step = 0; step < STEPS; ++step) {
    const uint first = uint(WIDTH - ACTIVE + step) * uint(TEAM);
    // The last entries may be retired already.
#pragma unroll(1)
    for (uint owner = 0; owner + 1 < uint(TEAM); ++owner) {
      const T l = lu_rows_pivot<T, WIDTH, TEAM, ACTIVE>(a, first + owner, owner, team, state);
      if (part > owner) a[0] = mul_sub(a[0], l, u[0]);
#pragma unroll
      for (int c = 1; c < ACTIVE; ++c) {
        const bool active = c <= ACTIVE - STEPS || c < ACTIVE - step;
        a[c] = mul_sub(a[c], l, active ? u[c] : zero<T>());
      }
    }
    const T l = lu_rows_pivot<T, WIDTH, TEAM, ACTIVE>(a, first + TEAM - 1, TEAM - 1, team, state);
    const T retired = a[0];
#pragma unroll
    for (int c = 1; c < ACTIVE; ++c) {
      const bool active = c <= ACTIVE - STEPS || c < ACTIVE - step;
      a[c - 1] = mul_sub(a[c], l, active ? u[c] : zero<T>());
    }
    a[ACTIVE - 1] = retired;
  }
  if constexpr (ACTIVE > STEPS) lu_rows_steps<T, WIDTH, TEAM, ACTIVE - STEPS>(a, team, state);
}

// One threadgroup factors one m x n matrix in registers, n <= WIDTH * TEAM: TEAM threads a row.
// Rows are swapped in name only: a thread knows the position of its row. A has any strides; LU is
// column-major. info: the first zero pivot, from 1, else 0.
template <typename T, int WIDTH, int TEAM>
[[max_total_threads_per_threadgroup(512)]] kernel void lu_rows(
    device const T* A [[buffer(0)]],
    device T* LU [[buffer(1)]],
    device int* pivots [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& pivoting [[buffer(9)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(T, tile, (tile_entries<T, TEAM>()));
  THREADGROUP_ARRAY(T, top, WIDTH * TEAM);
  THREADGROUP_ARRAY(real_t<T>, weights, 16);
  THREADGROUP_ARRAY(uint, positions, 16);
  const uint row_simds = threads / uint(32 * TEAM);
  const RowTeam team = {
      simd % row_simds * 32 + lane, simd / row_simds, simd % row_simds, row_simds, lane};
  T a[WIDTH];
  load_rows<T, WIDTH, TEAM>(
      a, A + long(group) * batch_stride, m, n, row_stride, column_stride, team, tid, threads, tile);
  // What is read of it before the first pivot is multiplied by zero.
  for (uint c = tid; c < uint(WIDTH * TEAM); c += threads) top[c] = zero<T>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint steps = min(m, n);
  RowElimination<T> state = {
      {weights, positions, top, tile},
      pivots + ulong(group) * steps,
      m,
      steps,
      pivoting != 0,
      team.row < m ? team.row : UINT_MAX,
      0};
  lu_rows_steps<T, WIDTH, TEAM, WIDTH>(a, team, state);
  const uint position = state.position;
  if (tid == 0) info[group] = state.failed;
  device T* to = LU + ulong(group) * m * n + position;
#pragma unroll
  for (int c = 0; c < WIDTH; ++c) {
    const uint column = uint(c) * uint(TEAM) + team.part;
    if (position < m && column < n) to[ulong(column) * m] = a[slot<WIDTH>(c)];
  }
}

// Columns of a panel, and entries of one that its threads share: the pivot's row, L11 and what
// becomes U.
constexpr constant uint PANEL = 32;
template <int WIDTH> inline constexpr uint panel_entries() {
  return WIDTH + PANEL * PANEL + PANEL * WIDTH;
}

// What the threads of a panel share.
template <typename T> struct PanelMemory {
  threadgroup real_t<T>* weights;
  threadgroup uint* positions;
  threadgroup uint* swaps;
  threadgroup T* top;
};

// And where one of them stands.
template <typename T> struct Panel {
  PanelMemory<T> memory;
  uint m;
  uint first;
  uint begin;
  uint width;
  uint simds;
  uint tid;
  uint lane;
  uint simd;
  uint pivoting;
  // Whether a row of the matrix is in the simdgroup.
  bool holds;
  int failed;
};

// The steps of a sub-panel from WIDTH - ACTIVE on. All threads of the group call it.
// Rows are swapped in name only, as in lu_simd: position[r] says where row r of a thread stands.
template <typename T, int ROWS, int WIDTH, int ACTIVE>
inline void lu_panel_steps(
    thread T (&a)[ROWS][WIDTH], thread uint (&position)[ROWS], thread Panel<T>& panel) {
  constexpr int STEPS = ACTIVE < SEGMENT ? ACTIVE : SEGMENT;
#pragma unroll(1)
  for (int step = 0; step < STEPS; ++step) {
    const uint k = uint(WIDTH - ACTIVE + step);
    const uint pivot = panel.begin + k;
    T factor[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) factor[r] = zero<T>();
    if (k < panel.width) {
      real_t<T> weight = real_t<T>(-1);
      uint chosen = UINT_MAX;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const bool open = position[r] >= pivot && position[r] < panel.m;
        const bool eligible = open && (panel.pivoting != 0 || position[r] == pivot);
        const real_t<T> candidate = eligible ? pivot_weight(a[r][0]) : real_t<T>(-1);
        const bool better = candidate > weight || (candidate == weight && position[r] < chosen);
        weight = better ? candidate : weight;
        chosen = better ? position[r] : chosen;
      }
      lane_argmax<32>(weight, chosen);
      if (panel.lane == 0) {
        panel.memory.weights[panel.simd] = weight;
        panel.memory.positions[panel.simd] = chosen;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const bool filled = panel.lane < panel.simds;
      weight = filled ? panel.memory.weights[panel.lane] : real_t<T>(-1);
      chosen = filled ? panel.memory.positions[panel.lane] : UINT_MAX;
      lane_argmax<32>(weight, chosen);
      if (panel.tid == 0) panel.memory.swaps[pivot - panel.first] = chosen;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (position[r] == chosen) {
#pragma unroll
          for (int c = 0; c < ACTIVE; ++c) panel.memory.top[c] = a[r][c];
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const T diagonal = panel.memory.top[0];
      const bool singular = is_zero(diagonal);
      panel.failed = singular && panel.failed == 0 ? int(pivot) + 1 : panel.failed;
      const bool by_inverse = ROWS > 1 && has_inverse(diagonal);
      const T inverse = by_inverse ? quotient(one<T>(), diagonal) : diagonal;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const bool top = position[r] == chosen;
        position[r] = top ? pivot : (position[r] == pivot ? chosen : position[r]);
        if (position[r] > pivot && position[r] < panel.m && !singular) {
          a[r][0] = by_inverse ? mul(a[r][0], inverse) : quotient(a[r][0], diagonal);
          factor[r] = a[r][0];
        }
      }
    }
    if (ROWS > 1 || panel.holds) {
      // Rows that are done, and steps that are none, pass with a factor of zero.
      T retired[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) retired[r] = a[r][0];
#pragma unroll
      for (int c = 1; c < ACTIVE; ++c) {
        T u = panel.memory.top[c];
        if (c > ACTIVE - STEPS) u = c < ACTIVE - step ? u : zero<T>();
#pragma unroll
        for (int r = 0; r < ROWS; ++r) a[r][c - 1] = mul_sub(a[r][c], factor[r], u);
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) a[r][ACTIVE - 1] = retired[r];
    }
  }
  if constexpr (ACTIVE > STEPS) {
    lu_panel_steps<T, ROWS, WIDTH, ACTIVE - STEPS>(a, position, panel);
  }
}

// A group factors the columns [first, last) of a matrix below row `first`, at most PANEL of them,
// in sub-panels of WIDTH; a thread keeps ROWS rows of a sub-panel in registers, and there are at
// most ROWS times the threads. Rows stay where they are until the end: a sub-panel first catches up
// with those before it. The matrix is column-major; its panel comes from `source`, by columns of m
// rows too. info: set when a pivot is zero and none was before.
template <typename T, int ROWS, int WIDTH>
inline void factor_panel(
    device T* matrix,
    device const T* source,
    device int* pivots,
    device int* info,
    uint m,
    uint first,
    uint last,
    uint pivoting,
    PanelMemory<T> memory,
    uint threads,
    uint tid,
    uint lane,
    uint simd) {
  // From one row of a thread to its next: with several rows a thread the group has this size.
  constexpr uint STEP = 512;
  constexpr int MOVED = ROWS > 8 ? 64 / ROWS : 8;
  threadgroup T* top = memory.top;
  threadgroup T* l11 = top + WIDTH;
  threadgroup T* u = l11 + PANEL * PANEL;
  const uint row = first + tid;
  device T* own_rows = matrix + row;
  uint position[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const uint own = row + uint(r) * STEP;
    position[r] = own < m ? own : UINT_MAX;
  }
  if (tid < uint(WIDTH)) top[tid] = zero<T>();
  int failed = 0;
  for (uint begin = first; begin < last; begin += WIDTH) {
    const uint width = min(uint(WIDTH), last - begin);
    const uint before = begin - first;
    T a[ROWS][WIDTH];
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      device const T* from = source + ulong(begin - first + uint(c)) * m + row;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const bool inside = row + uint(r) * STEP < m && uint(c) < width;
        a[r][c] = inside ? from[uint(r) * STEP] : zero<T>();
      }
    }
    if (uint(WIDTH) < PANEL && before != 0) {
      // Of the rows that are pivots already these entries become U = L11^-1 of them.
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const uint i = position[r] - first;
        if (i < before) {
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) u[i * uint(WIDTH) + uint(c)] = a[r][c];
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint c = simd; c < uint(WIDTH); c += threads / 32) {
        T x = lane < before ? u[lane * uint(WIDTH) + c] : zero<T>();
        for (uint k = 0; k < before; ++k) {
          const T known = simd_shuffle(x, ushort(k));
          if (lane > k && lane < before) x = mul_sub(x, l11[k * PANEL + lane], known);
        }
        if (lane < before) u[lane * uint(WIDTH) + c] = x;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(2)
      for (uint k = 0; k < before; ++k) {
        device const T* left = own_rows + ulong(first + k) * m;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const bool open = position[r] >= begin && position[r] < m;
          const T l = open ? left[uint(r) * STEP] : zero<T>();
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) {
            a[r][c] = mul_sub(a[r][c], l, u[k * uint(WIDTH) + uint(c)]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const uint i = position[r] - first;
        if (i < before) {
#pragma unroll
          for (int c = 0; c < WIDTH; ++c) a[r][c] = u[i * uint(WIDTH) + uint(c)];
        }
      }
    }
    Panel<T> panel = {memory,
                      m,
                      first,
                      begin,
                      width,
                      threads / 32,
                      tid,
                      lane,
                      simd,
                      pivoting,
                      first + tid - lane < m,
                      failed};
    lu_panel_steps<T, ROWS, WIDTH, WIDTH>(a, position, panel);
    failed = panel.failed;
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      device T* to = own_rows + ulong(begin + uint(c)) * m;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const bool inside = row + uint(r) * STEP < m && uint(c) < width;
        if (inside) to[uint(r) * STEP] = a[r][slot<WIDTH>(c)];
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const uint i = position[r] - begin;
      if (i < width) {
        device const T* left = own_rows + ulong(first) * m + uint(r) * STEP;
        for (uint k = 0; k < before; ++k) l11[k * PANEL + before + i] = left[ulong(k) * m];
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
          if (uint(c) < i) l11[(before + uint(c)) * PANEL + before + i] = a[r][slot<WIDTH>(c)];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  // Now the rows move: all of a column are read before one is written.
  for (uint column = first; column < last; column += MOVED) {
    T moved[ROWS][MOVED];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const uint own = row + uint(r) * STEP;
      if (own < m && position[r] != own) {
        device const T* from = matrix + ulong(column) * m + own;
#pragma unroll
        for (int c = 0; c < MOVED; ++c) {
          if (column + uint(c) < last) moved[r][c] = *from;
          from += m;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_device);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const uint own = row + uint(r) * STEP;
      if (own < m && position[r] != own) {
        device T* to = matrix + ulong(column) * m + position[r];
#pragma unroll
        for (int c = 0; c < MOVED; ++c) {
          if (column + uint(c) < last) *to = moved[r][c];
          to += m;
        }
      }
    }
  }
  if (tid < last - first) pivots[first + tid] = int(memory.swaps[tid]) + 1;
  if (tid == 0) *info = first == 0 || *info == 0 ? failed : *info;
}

// One threadgroup factors the columns [first, last) of a matrix in place.
template <typename T, int ROWS, int WIDTH>
[[max_total_threads_per_threadgroup(512)]] kernel void lu_panel(
    device T* LU [[buffer(0)]],
    device int* pivots [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& first [[buffer(5)]],
    constant uint& last [[buffer(6)]],
    constant uint& pivoting [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(real_t<T>, weights, 32);
  THREADGROUP_ARRAY(uint, positions, 32);
  THREADGROUP_ARRAY(uint, swaps, PANEL);
  THREADGROUP_ARRAY(T, entries, (panel_entries<WIDTH>()));
  const PanelMemory<T> memory = {weights, positions, swaps, entries};
  device T* matrix = LU + ulong(group) * m * n;
  factor_panel<T, ROWS, WIDTH>(
      matrix, matrix + ulong(first) * m, pivots + ulong(group) * min(m, n), info + group, m, first,
      last, pivoting, memory, threads, tid, lane, simd);
}

// The same for the next panel [last, next) as lu_swap_next left it in `panels`, a group a matrix;
// the other groups meanwhile update the columns after it with the block [first, last), which no
// panel touches. Groups have 512 threads.
template <typename T, int ROWS, int WIDTH>
[[max_total_threads_per_threadgroup(512)]] kernel void lu_panel_next(
    device T* LU [[buffer(0)]],
    device const T* panels [[buffer(1)]],
    device int* pivots [[buffer(2)]],
    device int* info [[buffer(3)]],
    constant uint& m [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& first [[buffer(6)]],
    constant uint& last [[buffer(7)]],
    constant uint& next [[buffer(8)]],
    constant uint& batch [[buffer(9)]],
    constant uint& pivoting [[buffer(10)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(real_t<T>, weights, 32);
  THREADGROUP_ARRAY(uint, positions, 32);
  THREADGROUP_ARRAY(uint, swaps, PANEL);
  constexpr uint ENTRIES =
      panel_entries<WIDTH>() > update_entries<T>() ? panel_entries<WIDTH>() : update_entries<T>();
  THREADGROUP_ARRAY(T, entries, ENTRIES);
  if (group < batch) {
    const PanelMemory<T> memory = {weights, positions, swaps, entries};
    device T* matrix = LU + ulong(group) * m * n;
    device const T* panel = panels + ulong(group) * PANEL * m;
    factor_panel<T, ROWS, WIDTH>(
        matrix, panel, pivots + ulong(group) * min(m, n), info + group, m, last, next, pivoting,
        memory, threads, tid, lane, simd);
    const uint width = last - first;
    for (uint e = tid; e < width * (next - last); e += threads) {
      const ulong c = e / width;
      const uint row = first + e % width;
      matrix[(last + c) * m + row] = panel[c * m + row];
    }
  } else {
    const uint down = (m - last + UPDATE_ROWS - 1) / UPDATE_ROWS;
    const uint across = (n - next + UPDATE_COLUMNS - 1) / UPDATE_COLUMNS;
    const uint tile = (group - batch) % (down * across);
    device T* matrix = LU + ulong((group - batch) / (down * across)) * m * n;
    device const T* left = matrix + ulong(first) * m + last;
    device T* right = matrix + ulong(next) * m;
    const Update<T> update = {
        left, right + first, right + last, m - last, n - next, last - first, m, 1u, m, m, false};
    update_tile<T>(update, tile % down * UPDATE_ROWS, tile / down * UPDATE_COLUMNS, tid, entries);
  }
}

// The same for a panel too tall for registers: its columns stay in device memory, one at a time.
template <typename T>
[[max_total_threads_per_threadgroup(512)]] kernel void lu_streamed(
    device T* LU [[buffer(0)]],
    device int* pivots [[buffer(1)]],
    device int* info [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& first [[buffer(5)]],
    constant uint& last [[buffer(6)]],
    constant uint& pivoting [[buffer(7)]],
    uint group [[threadgroup_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(real_t<T>, weights, 32);
  THREADGROUP_ARRAY(uint, positions, 32);
  THREADGROUP_ARRAY(T, top, 32);
  device T* matrix = LU + ulong(group) * m * n;
  int failed = 0;
  for (uint pivot = first; pivot < last; ++pivot) {
    device T* column = matrix + ulong(pivot) * m;
    real_t<T> weight = real_t<T>(-1);
    uint chosen = UINT_MAX;
    for (uint row = pivot + tid; row < (pivoting != 0 ? m : pivot + 1); row += threads) {
      const real_t<T> candidate = pivot_weight(column[row]);
      chosen = candidate > weight ? row : chosen;
      weight = max(candidate, weight);
    }
    lane_argmax<32>(weight, chosen);
    if (lane == 0) {
      weights[simd] = weight;
      positions[simd] = chosen;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const bool filled = lane < threads / 32;
    weight = filled ? weights[lane] : real_t<T>(-1);
    chosen = filled ? positions[lane] : UINT_MAX;
    lane_argmax<32>(weight, chosen);
    if (tid < last - first) {
      device T* entries = matrix + ulong(first + tid) * m;
      const T moved = entries[chosen];
      entries[chosen] = entries[pivot];
      entries[pivot] = moved;
      top[tid] = moved;
    }
    if (tid == 0) pivots[ulong(group) * min(m, n) + pivot] = int(chosen) + 1;
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    const T diagonal = top[pivot - first];
    const bool singular = is_zero(diagonal);
    failed = singular && failed == 0 ? int(pivot) + 1 : failed;
    for (uint row = pivot + 1 + tid; row < m && !singular; row += threads) {
      const T l = quotient(column[row], diagonal);
      column[row] = l;
      for (uint k = pivot + 1; k < last; ++k) {
        device T* entry = matrix + ulong(k) * m + row;
        *entry = mul_sub(*entry, l, top[k - first]);
      }
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  }
  if (tid == 0) info[group] = first == 0 || info[group] == 0 ? failed : info[group];
}

// L11 of the block [first, last), and the tables of its swaps. All threads of the group call it.
template <typename T, int WIDTH>
inline void read_block(
    device const T* matrix,
    device const int* pivots,
    uint m,
    uint first,
    uint last,
    threadgroup uint* swaps,
    threadgroup uint* source,
    threadgroup uint* target,
    threadgroup T* l11,
    uint tid,
    uint threads) {
  const uint width = last - first;
  if (tid < width) swaps[tid] = uint(pivots[first + tid]) - 1;
#pragma unroll(8)
  for (uint i = tid; i < uint(WIDTH * WIDTH); i += threads) {
    const uint row = i % uint(WIDTH);
    const uint k = i / uint(WIDTH);
    const bool inside = row > k && row < width;
    l11[i] = inside ? matrix[ulong(first + k) * m + first + row] : zero<T>();
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  swap_tables<WIDTH>(swaps, first, width, source, target, tid, threads);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// One threadgroup brings COLUMNS columns outside the panel [first, last), last - first <= WIDTH, up
// to date with it: swaps for those on its left; swaps and U12 = L11^-1 A12 for those on its right.
template <typename T, int WIDTH, int COLUMNS>
[[max_total_threads_per_threadgroup(128)]] kernel void lu_swap(
    device T* LU [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& first [[buffer(4)]],
    constant uint& last [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(uint, swaps, WIDTH);
  THREADGROUP_ARRAY(uint, source, 2 * WIDTH);
  THREADGROUP_ARRAY(uint, target, 2 * WIDTH);
  THREADGROUP_ARRAY(T, l11, WIDTH * WIDTH);
  THREADGROUP_ARRAY(T, tile, COLUMNS * (tile_stride<T, WIDTH>()));
  device T* matrix = LU + ulong(group.y) * m * n;
  const uint left_groups = (first + uint(COLUMNS) - 1) / uint(COLUMNS);
  const bool right = group.x >= left_groups;
  const uint column = right ? last + (group.x - left_groups) * COLUMNS : group.x * COLUMNS;
  const uint count = min(uint(COLUMNS), (right ? n : first) - column);
  device T* columns = matrix + ulong(column) * m;
  read_block<T, WIDTH>(
      matrix, pivots + ulong(group.y) * min(m, n), m, first, last, swaps, source, target, l11, tid,
      threads.x);
  read_swapped<T, COLUMNS>(columns, m, count, last - first, right, l11, source, target, tile, tid);
  write_swapped<T>(columns, m, count, target, tile, tid);
}

// The same but for the next panel [last, next), which many groups bring up to date with all of the
// block, A22 := A22 - A21 U12, for a row a thread: groups read all of its rows before the swaps, so
// U12 and A22 go to `panels`, WIDTH columns of m rows for each matrix.
template <typename T, int WIDTH, int COLUMNS>
[[max_total_threads_per_threadgroup(128)]] kernel void lu_swap_next(
    device T* LU [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    device T* panels [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& first [[buffer(5)]],
    constant uint& last [[buffer(6)]],
    constant uint& next [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr uint STRIDE = tile_stride<T, WIDTH>();
  THREADGROUP_ARRAY(uint, swaps, WIDTH);
  THREADGROUP_ARRAY(uint, source, 2 * WIDTH);
  THREADGROUP_ARRAY(uint, target, 2 * WIDTH);
  THREADGROUP_ARRAY(T, l11, WIDTH * WIDTH);
  THREADGROUP_ARRAY(T, tile, COLUMNS * (tile_stride<T, WIDTH>()));
  device T* matrix = LU + ulong(group.y) * m * n;
  const uint width = last - first;
  const uint chunks = (next - last + uint(COLUMNS) - 1) / uint(COLUMNS);
  const uint ahead_groups = chunks * ((m - last + threads.x - 1) / threads.x);
  const uint left_groups = (first + uint(COLUMNS) - 1) / uint(COLUMNS);
  const bool ahead = group.x < ahead_groups;
  const bool left = !ahead && group.x - ahead_groups < left_groups;
  const uint begin = ahead ? last : (left ? 0u : next);
  const uint end = ahead ? next : (left ? first : n);
  const uint place = ahead ? group.x % chunks : group.x - ahead_groups - (left ? 0u : left_groups);
  const uint column = begin + place * COLUMNS;
  const uint count = min(uint(COLUMNS), end - column);
  device T* columns = matrix + ulong(column) * m;
  read_block<T, WIDTH>(
      matrix, pivots + ulong(group.y) * min(m, n), m, first, last, swaps, source, target, l11, tid,
      threads.x);
  read_swapped<T, COLUMNS>(columns, m, count, width, !left, l11, source, target, tile, tid);
  if (ahead) {
    device T* to = panels + (ulong(group.y) * WIDTH + column - last) * m;
    if (group.x < chunks) {
      for (uint e = tid; e < width * count; e += threads.x) {
        const uint c = e / width;
        to[ulong(c) * m + first + e % width] = tile[c * STRIDE + e % width];
      }
    }
    const uint row = last + group.x / chunks * threads.x + tid;
    if (row < m) {
      uint entry = UINT_MAX;
      for (uint e = WIDTH; e < uint(2 * WIDTH); ++e) entry = target[e] == row ? e : entry;
      T x[COLUMNS];
      device const T* from = columns + row;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        x[c] = zero<T>();
        if (uint(c) < count) x[c] = entry == UINT_MAX ? *from : tile[uint(c) * STRIDE + entry];
        from += m;
      }
      device const T* l = matrix + ulong(first) * m + row;
#pragma unroll(4)
      for (uint k = 0; k < width; ++k) {
        const T factor = *l;
        l += m;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) x[c] = mul_sub(x[c], factor, tile[uint(c) * STRIDE + k]);
      }
      // A narrow panel leaves columns that nobody reads.
      to += row;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        *to = x[c];
        to += m;
      }
    }
  } else {
    write_swapped<T>(columns, m, count, target, tile, tid);
  }
}

// Pivots that a group walks through at a time, and that a thread compares its row with at once.
constexpr constant uint STAGE = 512;
constexpr constant uint AT_ONCE = 8;

inline uint swapped(uint row, uint i, uint pivot) {
  return row == i ? pivot : (row == pivot ? i : row);
}

// row_before() for the threads of a group that walk, all of which call it: most pivots do not move
// a thread's row, and it passes by AT_ONCE of them.
inline uint staged_row_before(
    device const int* pivots,
    uint count,
    uint rows,
    uint row,
    bool walks,
    uint tid,
    uint threads,
    threadgroup uint* staged) {
  for (uint end = count; end > 0; end = (end - 1) / STAGE * STAGE) {
    const uint begin = (end - 1) / STAGE * STAGE;
    // Pivots are the caller's: one that names no row is taken for the last.
    for (uint e = tid; e < end - begin; e += threads) {
      staged[e] = min(uint(pivots[begin + e]) - 1, rows - 1);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (walks) {
      uint left = end - begin;
      for (; left % AT_ONCE != 0; --left) {
        row = swapped(row, begin + left - 1, staged[left - 1]);
      }
      while (left > 0) {
        left -= AT_ONCE;
        bool moves = row - (begin + left) < AT_ONCE;
#pragma unroll
        for (uint i = 0; i < AT_ONCE; ++i) moves = moves | (row == staged[left + i]);
        for (uint i = AT_ONCE; moves && i > 0; --i) {
          row = swapped(row, begin + left + i - 1, staged[left + i - 1]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  return row;
}

// One thread per entry: permutation[i] is the row of A that pivoting moved to row i.
template <typename I>
[[max_total_threads_per_threadgroup(64)]] kernel void lu_permutation(
    device const I* pivots [[buffer(0)]],
    device I* permutation [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    constant uint& count [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(uint, staged, STAGE);
  const ulong matrix = ulong(group.y);
  const uint row = group.x * threads.x + tid;
  const uint before =
      staged_row_before(pivots + matrix * count, count, m, row, row < m, tid, threads.x, staged);
  if (row < m) permutation[matrix * m + row] = I(before);
}

// One thread per entry of the larger of L and U, both row-major; steps = min(m, n).
template <typename T>
kernel void lu_split(
    device const T* LU [[buffer(0)]],
    device T* L [[buffer(1)]],
    device T* U [[buffer(2)]],
    constant uint& m [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    uint3 id [[thread_position_in_grid]]) {
  const uint j = id.x;
  const uint i = id.y;
  const uint steps = min(m, n);
  const T entry =
      LU[long(id.z) * batch_stride + long(i) * long(row_stride) + long(j) * long(column_stride)];
  if (j < steps) {
    L[(ulong(id.z) * m + i) * steps + j] = i > j ? entry : (i == j ? one<T>() : zero<T>());
  }
  if (i < steps) {
    U[(ulong(id.z) * steps + i) * n + j] = i <= j ? entry : zero<T>();
  }
}

// One thread per entry of P, row-major, from the permutation: A = P L U.
template <typename T>
kernel void lu_permutation_matrix(
    device const int* permutation [[buffer(0)]],
    device T* P [[buffer(1)]],
    constant uint& m [[buffer(2)]],
    uint3 id [[thread_position_in_grid]]) {
  const ulong matrix = ulong(id.z);
  const bool moved = permutation[matrix * m + id.x] == int(id.y);
  P[(matrix * m + id.y) * m + id.x] = moved ? one<T>() : zero<T>();
}

// One group of 256 threads moves 32 rows of `turns` times 32 columns, by way of threadgroup memory:
// X[i] = B[from[i]], or X[from[i]] = B[i] when `inverse`. `rows` holds the permutation `from`, or,
// where `count` is not 0, so many pivots. B has any strides; X is column-major.
template <typename T>
[[max_total_threads_per_threadgroup(256)]] kernel void lu_permute(
    device const T* B [[buffer(0)]],
    device const int* rows [[buffer(1)]],
    device T* X [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    constant uint& columns [[buffer(4)]],
    constant uint& row_stride [[buffer(5)]],
    constant uint& column_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant long& rows_batch_stride [[buffer(8)]],
    constant uint& count [[buffer(9)]],
    constant uint& turns [[buffer(10)]],
    constant uint& inverse [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(uint, staged, STAGE);
  THREADGROUP_ARRAY(uint, moved, 32);
  THREADGROUP_ARRAY(T, tile, 32 * 33);
  const uint first = group.x * 32;
  device const int* given = rows + long(group.z) * rows_batch_stride;
  const uint row = first + tid;
  const bool owns = tid < 32 && row < n;
  uint from = staged_row_before(given, count, n, row, owns, tid, 256, staged);
  if (owns && count == 0) from = uint(given[row]);
  if (owns) moved[tid] = from;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device const T* b = B + long(group.z) * batch_stride;
  device T* x = X + ulong(group.z) * columns * n;
  const bool along_rows = column_stride < row_stride;
  const uint last = min(columns, (group.y + 1) * turns * 32);
  for (uint column = group.y * turns * 32; column < last; column += 32) {
    T entries[4];
#pragma unroll
    for (uint load = 0; load < 4; ++load) {
      const uint e = tid + load * 256;
      const uint i = along_rows ? e / 32 : e % 32;
      const uint j = column + (along_rows ? e % 32 : e / 32);
      const bool inside = first + i < n && j < columns;
      const uint source = !inside ? 0u : (inverse != 0 ? first + i : moved[i]);
      device const T* at = b + long(source) * long(row_stride) + long(j) * long(column_stride);
      entries[load] = inside ? *at : zero<T>();
    }
#pragma unroll
    for (uint load = 0; load < 4; ++load) {
      const uint e = tid + load * 256;
      const uint i = along_rows ? e / 32 : e % 32;
      const uint j = along_rows ? e % 32 : e / 32;
      tile[j * 33 + i] = entries[load];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint load = 0; load < 4; ++load) {
      const uint i = tid % 32;
      const uint j = tid / 32 + load * 8;
      if (first + i < n && column + j < columns) {
        x[ulong(column + j) * n + (inverse != 0 ? moved[i] : first + i)] = tile[j * 33 + i];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// One thread solves for one column: op(A) x = b, A = P L U of N x N in device memory.
// `transposed` and `conjugated` say what op is. B has any strides; X is column-major.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void lu_solve_tiny(
    device const T* LU [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    device const T* B [[buffer(2)]],
    device T* X [[buffer(3)]],
    constant uint& columns [[buffer(4)]],
    constant uint& lu_row_stride [[buffer(5)]],
    constant uint& lu_column_stride [[buffer(6)]],
    constant long& lu_batch_stride [[buffer(7)]],
    constant long& pivot_batch_stride [[buffer(8)]],
    constant uint& row_stride [[buffer(9)]],
    constant uint& column_stride [[buffer(10)]],
    constant long& batch_stride [[buffer(11)]],
    constant uint& transposed [[buffer(12)]],
    constant uint& conjugated [[buffer(13)]],
    uint2 id [[thread_position_in_grid]]) {
  device const T* factors = LU + long(id.y) * lu_batch_stride;
  device const int* swaps = pivots + long(id.y) * pivot_batch_stride;
  device const T* b = B + long(id.y) * batch_stride + long(id.x) * long(column_stride);
  device T* to = X + (ulong(id.y) * columns + id.x) * N;
  T a[N][N];
  T x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x[i] = b[uint(i) * row_stride];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const T entry = factors[uint(i) * lu_row_stride + uint(j) * lu_column_stride];
      a[i][j] = conjugated != 0 ? conj(entry) : entry;
    }
  }
  if (transposed == 0) {
#pragma unroll
    for (int k = 0; k < N; ++k) swap_entries<T, N>(x, k, uint(swaps[k]) - 1);
    substitute_factors<T, N>(a, x);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j < i; ++j) x[i] = mul_sub(x[i], a[j][i], x[j]);
      x[i] = quotient(x[i], a[i][i]);
    }
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
#pragma unroll
      for (int j = N - 1; j > i; --j) x[i] = mul_sub(x[i], a[j][i], x[j]);
    }
#pragma unroll
    for (int k = N - 1; k >= 0; --k) swap_entries<T, N>(x, k, uint(swaps[k]) - 1);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = x[i];
}

// N lanes solve for N columns of one matrix with n <= N rows; a simdgroup holds 32 / N such teams.
// The factors lie in threadgroup memory, a lane's column in its registers. Strides as above.
template <typename T, int N>
[[max_total_threads_per_threadgroup(64)]] kernel void lu_solve_simd(
    device const T* LU [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    device const T* B [[buffer(2)]],
    device T* X [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& columns [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& lu_row_stride [[buffer(7)]],
    constant uint& lu_column_stride [[buffer(8)]],
    constant long& lu_batch_stride [[buffer(9)]],
    constant long& pivot_batch_stride [[buffer(10)]],
    constant uint& row_stride [[buffer(11)]],
    constant uint& column_stride [[buffer(12)]],
    constant long& batch_stride [[buffer(13)]],
    constant uint& transposed [[buffer(14)]],
    constant uint& conjugated [[buffer(15)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  THREADGROUP_ARRAY(T, tiles, 32 * (N + 1));
  THREADGROUP_ARRAY(uint, sources, 32);
  THREADGROUP_ARRAY(uint, targets, 32);
  const uint team = lane / uint(N);
  const uint place = lane % uint(N);
  const uint matrix = group.y * (32 / N) + team;
  const uint first = group.x * uint(N);
  const bool inside = matrix < batch;
  const uint own_columns = inside ? min(uint(N), columns - first) : 0u;
  threadgroup T* tile = tiles + team * uint(N * (N + 1));
  threadgroup uint* source = sources + team * uint(N);
  threadgroup uint* target = targets + team * uint(N);
  uint moved = place;
  if (inside && place < n) {
    moved = row_before(pivots + long(matrix) * pivot_batch_stride, n, n, place);
  }
  source[place] = transposed != 0 ? place : moved;
  target[place] = transposed != 0 ? moved : place;
  // A lane's column of B is its row of B^T.
  T x[N];
  load_permuted_row<T, N>(
      x, B + long(matrix) * batch_stride + long(first) * long(column_stride), inside, place,
      own_columns, n, column_stride, row_stride, source, tile);
  device const T* from = LU + long(matrix) * lu_batch_stride + long(place) * long(lu_row_stride);
#pragma unroll(8)
  for (uint j = 0; j < uint(N); ++j) {
    T entry = zero<T>();
    if (inside && place < n && j < n) entry = *from;
    from += lu_column_stride;
    tile[transposed != 0 ? place * uint(N) + j : j * uint(N) + place] =
        conjugated != 0 ? conj(entry) : entry;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (transposed == 0) {
    substitute<T, N, true>(x, tile, n, true);
    substitute<T, N, false>(x, tile, n, false);
  } else {
    substitute<T, N, true>(x, tile, n, false);
    substitute<T, N, false>(x, tile, n, true);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  store_columns<T, N>(
      x, X + (ulong(matrix) * columns + first) * n, place, n, own_columns, n, target, tile);
}

// Times the pivots first, first + step, ... of n, and their signs.
template <typename T>
inline Determinant<T> multiply_pivots(
    device const T* diagonal, device const int* swaps, uint first, uint step, uint n, long stride) {
  Determinant<T> det = {one<T>(), 0};
  for (uint i = first; i < n; i += step) {
    multiply_pivot<T>(det, diagonal[long(i) * stride], swaps[i] != int(i) + 1);
  }
  return det;
}

// One thread does one matrix.
template <typename T>
[[max_total_threads_per_threadgroup(64)]] kernel void lu_det_tiny(
    device const T* LU [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    device T* det [[buffer(2)]],
    device T* sign [[buffer(3)]],
    device real_t<T>* logabsdet [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant long& diagonal_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant long& pivot_batch_stride [[buffer(8)]],
    uint matrix [[thread_position_in_grid]]) {
  const Determinant<T> value = multiply_pivots<T>(
      LU + long(matrix) * batch_stride, pivots + long(matrix) * pivot_batch_stride, 0u, 1u, n,
      diagonal_stride);
  det[matrix] = determinant<T>(value);
  sign[matrix] = sign_of<T>(value);
  logabsdet[matrix] = log_of<T>(value);
}

// One simdgroup does one matrix.
template <typename T>
[[max_total_threads_per_threadgroup(64)]] kernel void lu_det_simd(
    device const T* LU [[buffer(0)]],
    device const int* pivots [[buffer(1)]],
    device T* det [[buffer(2)]],
    device T* sign [[buffer(3)]],
    device real_t<T>* logabsdet [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant long& diagonal_stride [[buffer(6)]],
    constant long& batch_stride [[buffer(7)]],
    constant long& pivot_batch_stride [[buffer(8)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  Determinant<T> value = multiply_pivots<T>(
      LU + long(matrix) * batch_stride, pivots + long(matrix) * pivot_batch_stride, lane, 32u, n,
      diagonal_stride);
  value = multiply_lanes<T, 32>(value);
  if (lane == 0) {
    det[matrix] = determinant<T>(value);
    sign[matrix] = sign_of<T>(value);
    logabsdet[matrix] = log_of<T>(value);
  }
}
