#include "reduce.h"
#include "scalar.h"
#include "tile.h"

// LU with partial pivoting in the registers of one thread or one simdgroup.

// a := its LU factors in registers. Returns the first zero pivot, from 1, else 0.
template <typename T, int N>
inline int factor(thread T (&a)[N][N], thread int (&pivots)[N], bool pivoting) {
  int failed = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const uint p = pivot_row<T, N>(a, k, pivoting);
    pivots[k] = int(p) + 1;
    swap_rows<T, N>(a, k, p);
    const bool singular = is_zero(a[k][k]);
    failed = singular && failed == 0 ? k + 1 : failed;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i > k) {
        a[i][k] = singular ? a[i][k] : quotient(a[i][k], a[k][k]);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (j > k) a[i][j] = mul_sub(a[i][j], a[i][k], a[k][j]);
        }
      }
    }
  }
  return failed;
}

// x := (L U)^-1 x for the factors in `a`.
template <typename T, int N>
inline void substitute_factors(thread const T (&a)[N][N], thread T (&x)[N]) {
#pragma unroll
  for (int i = 1; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < i; ++j) x[i] = mul_sub(x[i], a[i][j], x[j]);
  }
#pragma unroll
  for (int i = N - 1; i >= 0; --i) {
#pragma unroll
    for (int j = N - 1; j > i; --j) x[i] = mul_sub(x[i], a[i][j], x[j]);
    x[i] = quotient(x[i], a[i][i]);
  }
}

// Where a lane's row stands in the elimination of its team of N lanes. At step k the rows at
// positions below k are done; UINT_MAX is the position of a lane without a row. The lane of row k
// keeps what step k chose: pivot, as LAPACK's, and diagonal, the entry of U.
template <typename T> struct RowState {
  uint row;
  uint first_lane;
  uint position;
  int pivot;
  int failed;
  T diagonal;
};

// The steps from N - ACTIVE on. Rows that are done go through the update with l = 0.
template <typename T, int N, int ACTIVE>
inline void eliminate_rows(thread T (&a)[N], thread RowState<T>& state, uint steps, bool pivoting) {
  constexpr int STEPS = ACTIVE < SEGMENT ? ACTIVE : SEGMENT;
#pragma unroll(1)
  for (int step = 0; step < STEPS; ++step) {
    const uint k = uint(N - ACTIVE + step);
    T l = a[0];
    if (k < steps) {
      const bool open = state.position != UINT_MAX && state.position >= k;
      const bool eligible = open && (pivoting || state.position == k);
      real_t<T> weight = eligible ? pivot_weight(l) : real_t<T>(-1);
      // Equal weights fall to the higher row, as in LAPACK; the row comes along in the low bits.
      uint choice = state.position * 32 + state.row;
      lane_argmax<N>(weight, choice);
      const uint pivot_position = choice / 32;
      const uint pivot_row = choice % 32;
      const ushort pivot_lane = ushort(state.first_lane + pivot_row);
      const bool chosen = state.row == pivot_row;
      state.pivot = state.row == k ? int(pivot_position) + 1 : state.pivot;
      state.position = chosen ? k : (state.position == k ? pivot_position : state.position);
      const T pivot = simd_shuffle(l, pivot_lane);
      state.diagonal = state.row == k ? pivot : state.diagonal;
      const bool singular = is_zero(pivot);
      state.failed = singular && state.failed == 0 ? int(k) + 1 : state.failed;
      const bool below = open && !chosen;
      if (below && !singular) l = quotient(l, pivot);
      const T factor = below ? l : zero<T>();
#pragma unroll
      for (int j = 1; j < ACTIVE; ++j) {
        T u = simd_shuffle(a[j], pivot_lane);
        if (j > ACTIVE - STEPS) u = j < ACTIVE - step ? u : zero<T>();
        a[j - 1] = mul_sub(a[j], factor, u);
      }
    } else {
#pragma unroll
      for (int j = 1; j < ACTIVE; ++j) a[j - 1] = a[j];
    }
    a[ACTIVE - 1] = l;
  }
  if constexpr (ACTIVE > STEPS) eliminate_rows<T, N, ACTIVE - STEPS>(a, state, steps, pivoting);
}
