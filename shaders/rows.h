#include "reduce.h"
#include "scalar.h"

// One threadgroup holds a matrix in registers: TEAM threads a row, of which thread `part` keeps the
// columns part, part + TEAM, ..., WIDTH of them. The simdgroups of a part hold 32 rows each.
struct RowTeam {
  uint row;
  uint part;
  uint row_simd;
  uint row_simds;
  uint lane;
};

// Columns of a part that a tile takes at once: 32 bytes of each row are one access to memory.
template <typename T> inline constexpr int tile_columns() { return 32 / int(sizeof(T)); }

// Entries of a tile for at most 512 threads.
template <typename T, int TEAM> inline constexpr int tile_entries() {
  return 512 / TEAM * (tile_columns<T>() * TEAM + 1);
}

// The rows of an m x n matrix of any strides, zero outside it. The group reads along memory into
// `tile`, some columns at a time.
template <typename T, int WIDTH, int TEAM>
inline void load_rows(
    thread T (&a)[WIDTH],
    device const T* matrix,
    uint m,
    uint n,
    uint row_stride,
    uint column_stride,
    thread const RowTeam& team,
    uint tid,
    uint threads,
    threadgroup T* tile) {
  constexpr int LOCAL = tile_columns<T>();
  constexpr uint COLUMNS = LOCAL * TEAM;
  const uint rows = team.row_simds * 32;
  const bool along_rows = column_stride < row_stride;
#pragma unroll
  for (int begin = 0; begin < WIDTH; begin += LOCAL) {
#pragma unroll
    for (int e = 0; e < LOCAL; ++e) {
      const uint entry = uint(e) * threads + tid;
      // The other way a part walks one column of the tile with all its rows.
      const uint i = along_rows ? entry / COLUMNS : team.row;
      const uint j = along_rows ? entry % COLUMNS : uint(e) * uint(TEAM) + team.part;
      const uint column = uint(begin) * uint(TEAM) + j;
      T value = zero<T>();
      if (i < m && column < n) {
        value = matrix[long(i) * long(row_stride) + long(column) * long(column_stride)];
      }
      tile[i * (COLUMNS + 1) + j] = value;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int c = 0; c < LOCAL; ++c) {
      a[begin + c] = tile[team.row * (COLUMNS + 1) + uint(c) * uint(TEAM) + team.part];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// What the threads share in one step: the heaviest row of each simdgroup, the pivot's row by parts
// and, for the parts that do not hold it, the column.
template <typename T> struct RowMemory {
  threadgroup real_t<T>* weights;
  threadgroup uint* positions;
  threadgroup T* top;
  threadgroup T* column;
};

// The position of the next pivot among the rows that are `eligible`, in all threads. Part `owner`
// holds the column, at entry 0. The lowest position of the largest weights, as in LAPACK. All
// threads of the group call it.
template <typename T, int TEAM>
inline uint next_pivot(
    T entry,
    uint position,
    bool eligible,
    uint owner,
    thread const RowTeam& team,
    RowMemory<T> memory) {
  if (team.part == owner) {
    real_t<T> weight = eligible ? pivot_weight(entry) : real_t<T>(-1);
    uint candidate = position;
    lane_argmax<32>(weight, candidate);
    if (team.lane == 0) {
      memory.weights[team.row_simd] = weight;
      memory.positions[team.row_simd] = candidate;
    }
    if (TEAM > 1) memory.column[team.row] = entry;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const bool filled = team.lane < team.row_simds;
  real_t<T> best = filled ? memory.weights[team.lane] : real_t<T>(-1);
  uint chosen = filled ? memory.positions[team.lane] : UINT_MAX;
  lane_argmax<32>(best, chosen);
  return chosen;
}
