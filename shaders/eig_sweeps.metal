#include "scalar.h"
#include "householder.h"
#include "hessenberg.h"
#include "shifts.h"
#include "schur.h"
#include "eigenvectors.h"

// The QR iteration of large Hessenberg matrices, in rounds of deflation and a sweep of several
// bulges (Braman, Byers, Mathias 2002). A threadgroup holds a window of at most W - 1 or W rows on
// the diagonal and the product of what it does there; eig_update then applies that to what is
// beside and above the window.

// Numbers of a matrix that launches leave to the next: rows that have not converged, rounds without
// a deflation, where the sweep begins, and its bulges.
constexpr constant uint STATE = 4;

// A sweep follows unless more than this part of a window's rows converge, in percent (LAPACK's).
constexpr constant uint NIBBLE = 14;

// Rounds without a deflation after which shifts are exceptional (LAPACK's).
constexpr constant uint STALLED_ROUNDS = 6;

// Bulges of a sweep, one right after the other: with the steps that they take in a window they
// fill it.
template <typename T, int W> inline constexpr uint most_bulges() {
  return uint(W) / (2 * bulge_rows<T>());
}
template <typename T, int W> inline constexpr uint steps_of_window() {
  return uint(W) - 1 - bulge_rows<T>() * most_bulges<T, W>();
}

template <typename T> inline void store_shift(device real_t<T>* to, Shift<T> shift) {
  if constexpr (scalar_traits<T>::complex) {
    to[0] = shift.re.x;
    to[1] = shift.re.y;
  } else {
    to[0] = shift.re;
    to[1] = shift.im;
  }
}

template <typename T> inline Shift<T> load_shift(device const real_t<T>* from) {
  typedef real_t<T> R;
  if constexpr (scalar_traits<T>::complex) {
    const Shift<T> shift = {T(from[0], from[1]), R(0)};
    return shift;
  } else {
    const Shift<T> shift = {from[0], from[1]};
    return shift;
  }
}

// The eigenvalues of rows first ... end - 1 of a Schur form as shifts, the last first. Real ones
// come in pairs; one that is left over counts twice.
template <typename T, typename P>
inline uint choose_shifts(P H, uint stride, uint first, uint end, device real_t<T>* to, uint most) {
  typedef real_t<T> R;
  uint count = 0;
  if constexpr (scalar_traits<T>::complex) {
    for (uint k = end; k > first && count < most; --k) {
      const Shift<T> shift = {H[(k - 1) * (stride + 1)], R(0)};
      store_shift<T>(to + 2 * count, shift);
      count += 1;
    }
  } else {
    bool held = false;
    T other = T(0);
    uint k = end;
    while (k > first && count < most) {
      const T own = H[(k - 1) * (stride + 1)];
      Shift<T> shift = {own, R(0)};
      bool whole = true;
      if (k > first + 1 && is_pair<T>(H, stride, k - 2, end)) {
        shift.im = pair_at<T>(H, stride, k - 2).w;
        k -= 2;
      } else {
        whole = held;
        if (held) {
          shift.re = own + (other - own) / R(2);
          shift.im = -fabs(other - own) / R(2);
        }
        other = own;
        held = !held;
        k -= 1;
      }
      if (whole) {
        store_shift<T>(to + 2 * count, shift);
        count += 1;
      }
    }
    if (held && count < most) {
      const Shift<T> shift = {other, R(0)};
      store_shift<T>(to + 2 * count, shift);
      count += 1;
    }
  }
  return count;
}

// The window and its U from threadgroup memory.
template <typename T, int W>
inline void store_window(
    threadgroup const T* h,
    threadgroup const T* u,
    uint rows,
    uint tid,
    uint threads,
    uint n,
    device T* H,
    device T* U) {
  for (uint item = tid; item < rows * uint(W); item += threads) {
    const uint i = item % uint(W);
    const uint j = item / uint(W);
    if (i < rows) {
      H[j * n + i] = h[j * (uint(W) + 1) + i];
      U[item] = u[j * (uint(W) + 1) + i];
    }
  }
}

// Aggressive early deflation: the last rows of what has not converged, at most W - 1, are brought
// to Schur form T = Z^H H Z. Where Z makes entries of the spike, the one subdiagonal entry before
// the window, small, eigenvalues have converged; the rest goes back to Hessenberg form and gives
// the shifts of a sweep. `turns` bounds the sweeps inside the window. windows: first row and rows
// of what U is to be applied to.
template <typename T, int W>
[[max_total_threads_per_threadgroup(128)]] kernel void eig_deflate(
    device T* H_all [[buffer(0)]],
    device T* U_all [[buffer(1)]],
    device int* state_all [[buffer(2)]],
    device int* windows [[buffer(3)]],
    device real_t<T>* shifts [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& turns [[buffer(6)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  typedef real_t<T> Real;
  constexpr uint STRIDE = W + 1;
  THREADGROUP_ARRAY(T, h, (W * (W + 1)));
  THREADGROUP_ARRAY(T, u, (W * (W + 1)));
  THREADGROUP_ARRAY(T, v, W);
  THREADGROUP_ARRAY(Real, partial, 32);
  const Crew crew = {tid, lane, simd, simds};
  const uint threads = simds * 32;
  device int* state = state_all + matrix * STATE;
  const uint active = uint(state[0]);
  const uint rows = min(active, uint(W) - 1);
  const uint first = active - rows;
  device T* H = H_all + ulong(matrix) * n * n + ulong(first) * (n + 1);
  // Row and column 0 stand for what is before the window: the spike is in column 0.
  for (uint item = tid; item < (rows + 1) * uint(W); item += threads) {
    const uint i = item % uint(W);
    const uint j = item / uint(W);
    T entry = zero<T>();
    if (i > 0 && i <= rows && j > 0) entry = H[(j - 1) * n + i - 1];
    if (i == 1 && j == 0 && first > 0) entry = H[-long(n)];
    h[j * STRIDE + i] = entry;
    u[j * STRIDE + i] = i == j ? one<T>() : zero<T>();
  }
  meet<true>();
  threadgroup T* window = h + STRIDE + 1;
  Iteration iteration = {rows, 0, 0};
  iterate<true, T>(window, u + STRIDE + 1, STRIDE, rows, true, turns, iteration, crew, partial);
  const T spike = h[1];
  threadgroup const T* top = u + STRIDE + 1;
  uint kept = rows;
  bool converged = true;
  while (kept > iteration.active && converged) {
    const uint k = kept - 1;
    const bool pair = kept > iteration.active + 1 && is_pair<T>(window, STRIDE, k - 1, rows);
    Real size = cabs1(window[k * (STRIDE + 1)]);
    Real reach = cabs1(mul(spike, conj(top[k * STRIDE])));
    if (pair) {
      size += pair_at<T>(window, STRIDE, k - 1).w;
      reach = max(reach, cabs1(mul(spike, conj(top[(k - 1) * STRIDE]))));
    }
    if (size == Real(0)) size = cabs1(spike);
    converged = reach <= max(vanishing<Real>(), spacing<Real>() * size);
    if (converged) kept -= pair ? 2 : 1;
  }
  const bool changed = rows > 0 && (kept < rows || first == 0);
  const bool sweeps = (rows - kept) * 100 <= NIBBLE * rows;
  meet<true>();
  if (tid == 0) {
    state[0] = int(first + kept);
    state[1] = kept < rows ? 0 : state[1] + 1;
    windows[matrix * 2] = int(first);
    windows[matrix * 2 + 1] = changed ? int(rows) : 0;
    uint count = 0;
    if (sweeps) {
      count = choose_shifts<T>(
          window, STRIDE, iteration.active, kept, shifts + ulong(matrix) * 2 * most_bulges<T, W>(),
          most_bulges<T, W>());
    }
    state[3] = int(count);
  }
  if (changed && first > 0) {
    for (uint i = tid; i < rows; i += threads) {
      h[i + 1] = i < kept ? mul(spike, conj(top[i * STRIDE])) : zero<T>();
    }
    meet<true>();
    reduce_columns<true, T>(h, u, STRIDE, rows + 1, 0, max(kept, 1u) - 1, true, crew, v, partial);
    if (tid == 0) H[-long(n)] = h[1];
  }
  if (changed) {
    store_window<T, W>(window, top, rows, tid, threads, n, H, U_all + ulong(matrix) * (W * W));
  }
}

// Where the rows begin that the next sweep turns, and its shifts if exceptional ones are due. No
// sweep where the next window holds those rows, unless this one did not help.
template <typename T, int W>
[[max_total_threads_per_threadgroup(256)]] kernel void eig_split(
    device T* H_all [[buffer(0)]],
    device int* state_all [[buffer(1)]],
    device real_t<T>* shifts_all [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]) {
  typedef real_t<T> Real;
  constexpr uint BULGES = most_bulges<T, W>();
  THREADGROUP_ARRAY(Real, partial, 32);
  const Crew crew = {tid, lane, simd, simds};
  device T* H = H_all + ulong(matrix) * n * n;
  device int* state = state_all + matrix * STATE;
  const uint active = uint(state[0]);
  const uint stalled = uint(state[1]);
  const uint bulges = uint(state[3]);
  uint candidate = 0;
  for (uint k = 1 + tid; k < active; k += simds * 32) {
    if (splits<T>(H, n, k, n)) candidate = k;
  }
  const uint top = last_of_all<true>(candidate, crew, partial);
  meet<true>();
  const uint rows = active - top;
  const bool sweeps = rows > 2 && (rows >= uint(W) || stalled > 0);
  const bool exceptional = sweeps && stalled > 0 && (stalled % STALLED_ROUNDS == 0 || bulges == 0);
  const uint most = min(BULGES, (max(rows, 1u) - 1) / 2);
  if (exceptional && tid < most) {
    device const T* at = H + (active - 1 - 2 * tid) * (n + 1);
    const Real size = cabs1(at[-long(n)]) + cabs1(at[-long(n) - 1 - long(n)]);
    const T a = at[0] + from_real<T>(Real(0.75f) * size);
    Shift<T> shift = {a, Real(0)};
    if constexpr (!scalar_traits<T>::complex) shift = shift_of(a, Real(-0.4375f) * size, size, a);
    store_shift<T>(shifts_all + (ulong(matrix) * BULGES + tid) * 2, shift);
  }
  if (tid == 0) {
    if (top > 0) H[top + (top - 1) * n] = zero<T>();
    state[2] = int(top);
    state[3] = sweeps ? int(exceptional ? most : bulges) : 0;
  }
}

template <typename T> inline void store_turn(threadgroup T* to, Turn<T> turn) {
  to[0] = turn.tau;
  to[1] = turn.v1;
  to[2] = turn.v2;
  to[3] = from_real<T>(turn.beta);
}

template <typename T> inline Turn<T> load_turn(threadgroup const T* from) {
  const Turn<T> turn = {from[0], from[1], from[2], real_part(from[3])};
  return turn;
}

// Entries that lie `step` apart, times a reflection of three or two rows.
template <typename T>
inline void turn_in_place(threadgroup T* a, uint step, bool three, T tau, T v1, T v2) {
  Bulge<T> x = {{a[0], a[step], three ? a[2 * step] : zero<T>()}};
  turn_three(x, tau, v1, v2);
  a[0] = x.x[0];
  a[step] = x.x[1];
  if (three) a[2 * step] = x.x[2];
}

// The part of a sweep that its number says: the window moves down by some rows, and all bulges in
// it by one row a step. In a step each bulge turns rows and columns of its own: first all turns are
// found, then all are applied from the left, then from the right.
template <typename T, int W>
[[max_total_threads_per_threadgroup(512)]] kernel void eig_chase(
    device T* H_all [[buffer(0)]],
    device T* U_all [[buffer(1)]],
    device const int* state_all [[buffer(2)]],
    device int* windows [[buffer(3)]],
    device const real_t<T>* shifts_all [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& number [[buffer(6)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  constexpr uint STRIDE = W + 1;
  constexpr uint ROWS = bulge_rows<T>();
  constexpr uint BULGES = most_bulges<T, W>();
  constexpr uint STEPS = steps_of_window<T, W>();
  THREADGROUP_ARRAY(T, h, (W * (W + 1)));
  THREADGROUP_ARRAY(T, u, (W * (W + 1)));
  THREADGROUP_ARRAY(T, turns, (4 * BULGES));
  device const int* state = state_all + matrix * STATE;
  const uint bottom = uint(max(state[0], 1)) - 1;
  const uint top = uint(state[2]);
  const uint bulges = uint(state[3]);
  // Bulge b is in row top + t - ROWS b at time t.
  const uint begin = number * STEPS;
  const uint behind = ROWS * (max(bulges, 1u) - 1);
  const uint end = min(begin + STEPS, bottom - top + behind);
  const bool open = bulges > 0 && begin < end;
  const uint first = begin > behind ? top + begin - behind - 1 : top;
  const uint rows = open ? min(top + begin + STEPS - 1 + ROWS, bottom) + 1 - first : 0;
  if (tid == 0) {
    windows[matrix * 2] = int(first);
    windows[matrix * 2 + 1] = int(rows);
  }
  device T* H = H_all + ulong(matrix) * n * n + ulong(first) * (n + 1);
  for (uint item = tid; item < rows * uint(W); item += threads) {
    const uint i = item % uint(W);
    const uint j = item / uint(W);
    h[j * STRIDE + i] = i < rows ? H[j * n + i] : zero<T>();
    u[j * STRIDE + i] = i == j ? one<T>() : zero<T>();
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint t = begin; open && t < end; ++t) {
    if (tid < bulges && t >= ROWS * tid && top + t - ROWS * tid < bottom) {
      const uint k = top + t - ROWS * tid;
      threadgroup T* at = h + (k - first) * (STRIDE + 1);
      const bool three = ROWS == 3 && k + 1 < bottom;
      Bulge<T> bulge = {{zero<T>(), zero<T>(), zero<T>()}};
      if (k == top) {
        const Shift<T> shift = load_shift<T>(shifts_all + (ulong(matrix) * BULGES + tid) * 2);
        bulge = first_bulge<T>(at, STRIDE, 0, shift);
      } else {
        threadgroup const T* x = at - STRIDE;
        bulge.x[0] = x[0];
        bulge.x[1] = x[1];
        if (three) bulge.x[2] = x[2];
      }
      store_turn<T>(turns + 4 * tid, turn_of(bulge));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint item = tid; item < bulges * uint(W); item += threads) {
      const uint b = item / uint(W);
      const uint j = item % uint(W);
      if (t >= ROWS * b && top + t - ROWS * b < bottom && j < rows) {
        const uint k = top + t - ROWS * b;
        const bool three = ROWS == 3 && k + 1 < bottom;
        const uint row = k - first;
        threadgroup T* a = h + j * STRIDE + row;
        const Turn<T> turn = load_turn<T>(turns + 4 * b);
        if (j >= row) {
          turn_in_place<T>(a, 1, three, conj(turn.tau), conj(turn.v1), conj(turn.v2));
        } else if (j + 1 == row && k > top) {
          a[0] = from_real<T>(turn.beta);
          a[1] = zero<T>();
          if (three) a[2] = zero<T>();
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint item = tid; item < 2 * bulges * uint(W); item += threads) {
      const uint b = item / (2 * uint(W));
      const uint of_both = item % (2 * uint(W));
      const bool of_h = of_both < uint(W);
      const uint i = of_h ? of_both : of_both - uint(W);
      if (t >= ROWS * b && top + t - ROWS * b < bottom && i < rows) {
        const uint k = top + t - ROWS * b;
        const bool three = ROWS == 3 && k + 1 < bottom;
        const uint column = k - first;
        const Turn<T> turn = load_turn<T>(turns + 4 * b);
        if (!of_h || i <= column + ROWS) {
          threadgroup T* a = (of_h ? h : u) + column * STRIDE + i;
          turn_in_place<T>(a, STRIDE, three, turn.tau, turn.v1, turn.v2);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (open) store_window<T, W>(h, u, rows, tid, threads, n, H, U_all + ulong(matrix) * (W * W));
}

// Lines that a threadgroup of eig_update takes: columns beside the window, rows above it, rows of
// Z.
constexpr constant uint LINES = 32;

// H := U^H H beside the window, H := H U above it and Z := Z U. 32 lines a threadgroup, of which
// the first third of the groups has columns, the next rows and the last rows of Z.
template <typename T, int W>
[[max_total_threads_per_threadgroup(256)]] kernel void eig_update(
    device T* H_all [[buffer(0)]],
    device T* Z_all [[buffer(1)]],
    device const T* U_all [[buffer(2)]],
    device const int* windows [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr uint OWN = (W + 7) / 8;
  THREADGROUP_ARRAY(T, u, (W * W));
  THREADGROUP_ARRAY(T, lines, (W * (LINES + 1)));
  const ulong matrix = group.y;
  const uint first = uint(windows[matrix * 2]);
  const uint rows = uint(windows[matrix * 2 + 1]);
  const uint blocks = (n + LINES - 1) / LINES;
  const uint part = group.x / blocks;
  const uint begin = group.x % blocks * LINES;
  const bool beside = part == 0;
  const uint low = beside ? first + rows : 0;
  const uint high = part == 1 ? first : n;
  const bool open = rows > 0 && begin < high && begin + LINES > low;
  const uint items = open ? LINES * rows : 0;
  device T* X = (part == 2 ? Z_all : H_all) + matrix * n * n;
  // Neighbouring threads take neighbouring addresses.
  for (uint item = tid; item < items; item += 256) {
    const uint k = beside ? item % rows : item / LINES;
    const uint line = begin + (beside ? item / rows : item % LINES);
    const bool inside = line >= low && line < high;
    const ulong place = beside ? ulong(line) * n + first + k : ulong(first + k) * n + line;
    lines[k * (LINES + 1) + line - begin] = inside ? X[place] : zero<T>();
  }
  for (uint item = tid; open && item < rows * uint(W); item += 256) {
    if (item % uint(W) < rows) {
      const T entry = U_all[matrix * (W * W) + item];
      u[item] = beside ? conj(entry) : entry;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  T minus[OWN];
#pragma unroll
  for (uint s = 0; s < OWN; ++s) minus[s] = zero<T>();
  const uint own = tid % LINES;
  for (uint k = 0; open && k < rows; ++k) {
    const T x = lines[k * (LINES + 1) + own];
#pragma unroll
    for (uint s = 0; s < OWN; ++s) {
      const uint i = tid / LINES + s * 8;
      if (i < rows) minus[s] = mul_sub(minus[s], x, u[i * uint(W) + k]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint s = 0; s < OWN; ++s) {
    const uint i = tid / LINES + s * 8;
    if (open && i < rows) lines[i * (LINES + 1) + own] = zero<T>() - minus[s];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint item = tid; item < items; item += 256) {
    const uint k = beside ? item % rows : item / LINES;
    const uint line = begin + (beside ? item / rows : item % LINES);
    const ulong place = beside ? ulong(line) * n + first + k : ulong(first + k) * n + line;
    if (line >= low && line < high) X[place] = lines[k * (LINES + 1) + line - begin];
  }
}
