#include "scalar.h"
#include "householder.h"
#include "jacobi.h"
#include "reduce.h"

// Rows of a column that a lane holds; TEAM lanes have a pair of columns.
template <typename T> inline constexpr int rows() { return sizeof(T) > 4 ? 8 : 16; }

// Cosines up to this many unit roundoffs are left as they are; up to LIMIT they may be rounding.
constexpr constant int SMALL = 4;
constexpr constant int LIMIT = 16;

// Threads of the group that orders and completes the columns.
constexpr constant uint FINISHING = 256;

// Columns of a block, such that the rotations of two blocks take 8 KiB at most.
template <typename T> inline constexpr int block_width() { return sizeof(T) > 8 ? 8 : 16; }

// Blocks of all columns, and one more where their number is odd: each meets another in a round.
inline uint blocks_of(uint n, uint width) {
  const uint blocks = (n + width - 1) / width;
  return blocks + (blocks & 1);
}

// Entries from one column in threadgroup memory to the next, for TEAM lanes with COUNT rows each.
// The gap lets the teams of a simdgroup, whose columns follow one another, read different banks.
template <int TEAM, int COUNT> inline constexpr int pitch() { return (COUNT + 1) * TEAM; }

// 2^e for |e| <= 126.
template <typename R> inline R power_of_two(int e) {
  if constexpr (sizeof(R) == sizeof(int)) {
    return as_type<R>((e + 127) << 23);
  } else {
    return ldexp(R(1), e);
  }
}

// A column is what its lanes have times 2^exponent; its norm is in the same unit, and 0 where the
// column is, so that it comes after all others.
template <typename R> struct Size {
  R norm;
  int exponent;
};

// What a pair of columns becomes: high is multiplied by a phase, then (low, high) by a matrix of
// two rows.
template <typename R> struct Mixture {
  R low_low;
  R low_high;
  R high_low;
  R high_high;
};

// `columns` for those of A, each in units of its exponent, `turns` for V. Where a column shrinks
// its new size is `uncertain`. `any`: whether a pair of the simdgroup moves.
template <typename T> struct Turn {
  T phase;
  Mixture<real_t<T>> columns;
  Mixture<real_t<T>> turns;
  bool moves;
  bool uncertain;
  bool any;
};

template <typename T>
inline void blend(thread T& low, thread T& high, T phase, Mixture<real_t<T>> by) {
  const T turned = mul(high, phase);
  const T new_low = times(low, by.low_low) + times(turned, by.low_high);
  high = times(low, by.high_low) + times(turned, by.high_high);
  low = new_low;
}

// What a thread learns of its pairs: whether a column was written to, and whether another sweep is
// needed.
struct Progress {
  bool changed;
  bool unfinished;
};

// The size of a column that may have shrunk; then a power of two is taken out of it.
template <typename T, int TEAM>
inline void measure(thread T (&x)[rows<T>()], thread Size<real_t<T>>& size, int least) {
  typedef real_t<T> Real;
  Real sum = Real(0);
  Real largest = Real(0);
#pragma unroll
  for (int i = 0; i < rows<T>(); ++i) largest = max(largest, largest_part(x[i]));
  largest = team_max<TEAM>(largest);
  const int taken = largest < Real(0x1p-10f) ? exponent_of(largest) : 0;
  const bool vanished = largest == Real(0) || size.exponent + taken < least;
#pragma unroll
  for (int i = 0; i < rows<T>(); ++i) {
    x[i] = vanished ? zero<T>() : scale(x[i], -taken);
    sum += square_of(x[i]);
  }
  size.exponent = vanished ? OF_ZERO : size.exponent + taken;
  size.norm = sqrt(team_sum<TEAM>(sum));
}

// How two columns become orthogonal, the longer one the lower, and their new sizes. Of norms that
// rounding may have made differ each stays.
template <typename T, int TEAM>
inline Turn<T> meet(
    thread const T (&low)[rows<T>()],
    thread const T (&high)[rows<T>()],
    thread Size<real_t<T>>& low_size,
    thread Size<real_t<T>>& high_size,
    thread Progress& progress) {
  typedef real_t<T> Real;
  T minus = zero<T>();
#pragma unroll
  for (int i = 0; i < rows<T>(); ++i) minus = mul_sub(minus, conj(low[i]), high[i]);
  const T product = zero<T>() - team_sum<TEAM>(minus);
  const int gap = max(min(high_size.exponent - low_size.exponent, 126), -126);
  const Real high_unit = power_of_two<Real>(gap);
  const bool ordered = low_size.norm >= high_size.norm * high_unit;
  // p is the longer, q the shorter one.
  const Real p_norm = ordered ? low_size.norm : high_size.norm;
  const Real q_norm = ordered ? high_size.norm : low_size.norm;
  const Real q_unit = ordered ? high_unit : power_of_two<Real>(-gap);
  const Real size = modulus(product);
  const Real cosine = q_norm > Real(0) ? size / (p_norm * q_norm) : Real(0);
  const Real quotient_of_norms = p_norm > Real(0) ? q_norm / p_norm : Real(0);
  const Real ratio = quotient_of_norms * q_unit;
  const bool turning = cosine > Real(SMALL) * unit_roundoff<Real>();
  const bool exchange = !ordered && ratio < Real(1) - Real(0x1p-16f);
  const Real difference = (Real(1) - ratio) * (Real(1) + ratio);
  const Real twice = Real(2) * ratio * cosine;
  const Real root = sqrt(difference * difference + twice * twice);
  const Real share = turning ? Real(2) * cosine / (difference + root) : Real(0);
  const Real tangent = ratio * share;
  const Real c = Real(1) / sqrt(Real(1) + tangent * tangent);
  const Real s = c * tangent;
  // What p takes of q and q of p, of A in units of their exponents.
  const Real of_q = s * q_unit;
  const Real of_p = -c * share * quotient_of_norms;

  Turn<T> turn;
  turn.phase = turning ? conj(times(product, Real(1) / size)) : one<T>();
  turn.columns.low_low = exchange ? of_q : c;
  turn.columns.low_high = exchange ? c : (ordered ? of_q : of_p);
  turn.columns.high_low = exchange ? c : (ordered ? of_p : of_q);
  turn.columns.high_high = exchange ? of_p : c;
  turn.turns.low_low = exchange ? s : c;
  turn.turns.low_high = exchange ? c : (ordered ? s : -s);
  turn.turns.high_low = exchange ? c : (ordered ? -s : s);
  turn.turns.high_high = exchange ? -s : c;
  turn.moves = turning || exchange;
  if (turn.moves) progress.changed = true;
  // A sweep in which columns change their places has not met every pair.
  if (exchange || cosine > Real(LIMIT) * unit_roundoff<Real>()) progress.unfinished = true;

  const Real lost = share * cosine;
  const Real new_p = p_norm * sqrt(Real(1) + ratio * ratio * lost);
  const Real new_q = q_norm * sqrt(max(Real(1) - lost, Real(0)));
  turn.uncertain = turning && (lost > Real(0.875f) || new_q < Real(0x1p-10f));
  const bool low_leads = ordered || exchange;
  const int lower = exchange ? high_size.exponent : low_size.exponent;
  high_size.exponent = exchange ? low_size.exponent : high_size.exponent;
  low_size.exponent = lower;
  low_size.norm = low_leads ? new_p : new_q;
  high_size.norm = low_leads ? new_q : new_p;
  return turn;
}

// The same, done.
template <typename T, int TEAM>
inline Turn<T> turn_pair(
    thread T (&low)[rows<T>()],
    thread T (&high)[rows<T>()],
    thread Size<real_t<T>>& low_size,
    thread Size<real_t<T>>& high_size,
    int least,
    thread Progress& progress) {
  Turn<T> turn = meet<T, TEAM>(low, high, low_size, high_size, progress);
  const bool any = simd_any(turn.moves);
  turn.any = any;
  if (any) {
#pragma unroll
    for (int i = 0; i < rows<T>(); ++i) blend(low[i], high[i], turn.phase, turn.columns);
    if (simd_any(turn.uncertain)) {
      measure<T, TEAM>(low, low_size, least);
      measure<T, TEAM>(high, high_size, least);
    }
  }
  return turn;
}

// WIDTH columns from `first` on, all threads of the group together; what is outside is zero.
template <typename T, int TEAM, int WIDTH>
inline void load_block(
    threadgroup T* tile, device const T* matrix, uint first, uint n, uint tid, uint threads) {
  constexpr uint HEIGHT = rows<T>() * TEAM;
#pragma unroll(1)
  for (uint e = tid; e < WIDTH * HEIGHT; e += threads) {
    const uint row = e % HEIGHT;
    const uint column = e / HEIGHT;
    const bool inside = row < n && first + column < n;
    tile[column * uint(pitch<TEAM, rows<T>()>()) + row] =
        inside ? matrix[(first + column) * n + row] : zero<T>();
  }
}

template <typename T, int TEAM, int WIDTH>
inline void store_block(
    threadgroup const T* tile, device T* matrix, uint first, uint n, uint tid, uint threads) {
  constexpr uint HEIGHT = rows<T>() * TEAM;
#pragma unroll(1)
  for (uint e = tid; e < WIDTH * HEIGHT; e += threads) {
    const uint row = e % HEIGHT;
    const uint column = e / HEIGHT;
    if (row < n && first + column < n) {
      matrix[(first + column) * n + row] = tile[column * uint(pitch<TEAM, rows<T>()>()) + row];
    }
  }
}

template <typename T, int TEAM, int COUNT>
inline void read_tile(thread T (&x)[COUNT], threadgroup const T* column, uint place) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) x[i] = column[place + uint(i * TEAM)];
}

template <typename T, int TEAM, int COUNT>
inline void write_tile(thread const T (&x)[COUNT], threadgroup T* column, uint place) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) column[place + uint(i * TEAM)] = x[i];
}

// The sizes of the columns in threadgroup memory, twice: what a round writes is read by the next.
template <typename R, int WIDTH> struct Sizes {
  threadgroup R* norms;
  threadgroup int* exponents;

  Size<R> at(uint round, uint column) const thread {
    const uint i = (round & 1) * WIDTH + column;
    const Size<R> size = {norms[i], exponents[i]};
    return size;
  }
  void set(uint round, uint column, Size<R> size) const thread {
    const uint i = (round & 1) * WIDTH + column;
    norms[i] = size.norm;
    exponents[i] = size.exponent;
  }
};

// The size of a column that has come to threadgroup memory; returns whether it counts as zero now
// and did not before.
template <typename T, int TEAM, int WIDTH>
inline bool begin_column(
    threadgroup T* tile,
    Sizes<real_t<T>, WIDTH> sizes,
    uint round,
    uint column,
    int exponent,
    int least,
    uint place) {
  T x[rows<T>()];
  threadgroup T* entries = tile + column * uint(pitch<TEAM, rows<T>()>());
  read_tile<T, TEAM, rows<T>()>(x, entries, place);
  Size<real_t<T>> size = {real_t<T>(0), exponent};
  measure<T, TEAM>(x, size, least);
  write_tile<T, TEAM, rows<T>()>(x, entries, place);
  if (place == 0) sizes.set(round, column, size);
  return size.exponent == OF_ZERO && exponent != OF_ZERO;
}

// Rows of the rotations W of COUNT columns that a lane has; a team may have more lanes than rows.
template <int TEAM, int COUNT> inline constexpr int turned_rows() {
  return COUNT > TEAM ? COUNT / TEAM : 1;
}

// The same rotation of two columns of W.
template <typename T, int TEAM, int TURNED>
inline void accumulate(
    threadgroup T* low, threadgroup T* high, thread const Turn<T>& turn, uint place) {
  T w_low[TURNED];
  T w_high[TURNED];
  read_tile<T, TEAM, TURNED>(w_low, low, place);
  read_tile<T, TEAM, TURNED>(w_high, high, place);
#pragma unroll
  for (int k = 0; k < TURNED; ++k) blend(w_low[k], w_high[k], turn.phase, turn.turns);
  write_tile<T, TEAM, TURNED>(w_low, low, place);
  write_tile<T, TEAM, TURNED>(w_high, high, place);
}

// V := V W in the columns from `first` and from `second` on, COUNT / 2 of each. Every team has a
// column of both halves, and of it a few rows at a time.
template <typename T, int TEAM, int COUNT>
inline void multiply(
    device T* V,
    threadgroup const T* W,
    uint stride,
    uint n,
    uint first,
    uint second,
    uint team,
    uint place) {
  constexpr uint HALF = COUNT / 2;
  constexpr int FEW = rows<T>() / 4;
#pragma unroll(1)
  for (uint begin = 0; begin < n; begin += FEW * TEAM) {
    T low[FEW];
    T high[FEW];
#pragma unroll
    for (int i = 0; i < FEW; ++i) low[i] = high[i] = zero<T>();
#pragma unroll(2)
    for (uint k = 0; k < uint(COUNT); ++k) {
      const uint column = k < HALF ? first + k : second + k - HALF;
      const T minus_low = zero<T>() - W[team * stride + k];
      const T minus_high = zero<T>() - W[(HALF + team) * stride + k];
#pragma unroll
      for (int i = 0; i < FEW; ++i) {
        const uint row = begin + place + uint(i * TEAM);
        const T entry = row < n && column < n ? V[column * n + row] : zero<T>();
        low[i] = mul_sub(low[i], entry, minus_low);
        high[i] = mul_sub(high[i], entry, minus_high);
      }
    }
    threadgroup_barrier(mem_flags::mem_device);
#pragma unroll
    for (int i = 0; i < FEW; ++i) {
      const uint row = begin + place + uint(i * TEAM);
      if (row < n && first + team < n) V[(first + team) * n + row] = low[i];
      if (row < n && second + team < n) V[(second + team) * n + row] = high[i];
    }
  }
}

// How far below the least column of A one may shrink. What is less counts as zero: in each column
// of A that is an error of a part of a roundoff, and singular values as small are made of
// roundings.
template <typename R> inline int least_shrinkage() { return sizeof(R) == 4 ? -34 : -63; }

// X := A with the power of two taken out of each column, into `exponents`, of n + 1 a matrix: the
// last is the least that a column may have. V := I. info: 1 until it has converged, and -4 for a
// matrix that is not finite, as LAPACK's gesdd. A threadgroup of 256 a matrix.
template <typename T>
kernel void svd_begin(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    device T* V [[buffer(2)]],
    device int* exponents [[buffer(3)]],
    device int* info [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& row_stride [[buffer(6)]],
    constant uint& column_stride [[buffer(7)]],
    constant long& batch_stride [[buffer(8)]],
    constant uint& vectors [[buffer(9)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(int, of_simdgroups, 16);
  const ulong offset = ulong(matrix) * n * n;
  int least = -OF_ZERO;
  uint infinite = 0;
  for (uint j = simd; j < n; j += 8) {
    device const T* from = A + long(matrix) * batch_stride + long(j) * long(column_stride);
    Real largest = Real(0);
    for (uint i = lane; i < n; i += 32) {
      const T entry = from[long(i) * long(row_stride)];
      if (!is_finite(entry)) infinite = 1;
      largest = max(largest, largest_part(entry));
    }
    largest = team_max<32>(largest);
    const int taken = exponent_of(largest);
    const int exponent = largest == Real(0) ? OF_ZERO : taken;
    if (exponent != OF_ZERO) least = min(least, exponent);
    if (lane == 0) exponents[ulong(matrix) * (n + 1) + j] = exponent;
    for (uint i = lane; i < n; i += 32) {
      X[offset + j * n + i] = scale(from[long(i) * long(row_stride)], -taken);
      if (vectors != 0) V[offset + j * n + i] = i == j ? one<T>() : zero<T>();
    }
  }
  infinite = simd_max(infinite);
  if (lane == 0) {
    of_simdgroups[simd] = least;
    of_simdgroups[8 + simd] = int(infinite);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) {
    for (uint i = 1; i < 8; ++i) {
      least = min(least, of_simdgroups[i]);
      infinite = max(infinite, uint(of_simdgroups[8 + i]));
    }
    exponents[ulong(matrix) * (n + 1) + n] = least + least_shrinkage<Real>();
    info[matrix] = infinite != 0 ? -4 : 1;
  }
}

// Begins a sweep: all pairs of columns inside of one block. A matrix has `blocks` marks for sweeps
// of each parity; one whose marks the last sweep left all zero has converged: info becomes 0. A
// team has a pair; the columns are in threadgroup memory, and so is the product of the rotations.
template <typename T, int TEAM>
[[max_total_threads_per_threadgroup(256)]] kernel void svd_within(
    device T* X [[buffer(0)]],
    device T* V [[buffer(1)]],
    device int* exponents [[buffer(2)]],
    device int* marks [[buffer(3)]],
    device int* info [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& sweep [[buffer(7)]],
    constant uint& vectors [[buffer(8)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  constexpr int WIDTH = block_width<T>();
  constexpr uint HALF = WIDTH / 2;
  constexpr uint PITCH = pitch<TEAM, rows<T>()>();
  constexpr int TURNED = turned_rows<TEAM, WIDTH>();
  constexpr uint STRIDE = pitch<TEAM, TURNED>();
  THREADGROUP_ARRAY(T, tile, (WIDTH * pitch<TEAM, rows<T>()>()));
  THREADGROUP_ARRAY(T, W, (WIDTH * pitch<TEAM, TURNED>()));
  THREADGROUP_ARRAY(Real, norms, (2 * WIDTH));
  THREADGROUP_ARRAY(int, scales, (2 * WIDTH));
  THREADGROUP_ARRAY(int, flags, 3);
  const Sizes<Real, WIDTH> sizes = {norms, scales};
  const uint team = tid / uint(TEAM);
  const uint place = tid % uint(TEAM);
  const uint matrix = group.y;
  const uint blocks = blocks_of(n, WIDTH);
  const uint first = group.x * WIDTH;
  device T* columns = X + ulong(matrix) * n * n;
  device int* exponent = exponents + ulong(matrix) * (n + 1);
  device int* mark = marks + ulong(sweep & 1) * batch * blocks + ulong(matrix) * blocks;
  device const int* mark_before =
      marks + ulong(~sweep & 1) * batch * blocks + ulong(matrix) * blocks;

  const bool open = info[matrix] == 1;
  if (tid == 0) {
    flags[0] = flags[1] = 0;
    flags[2] = open && sweep == 0 ? 1 : 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (open && sweep > 0) {
    for (uint i = tid; i < blocks; i += HALF * TEAM) {
      if (mark_before[i] != 0) flags[2] = 1;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (flags[2] != 0 && first < n) {
    const int least = exponent[n];
    load_block<T, TEAM, WIDTH>(tile, columns, first, n, tid, HALF * TEAM);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Progress progress = {false, false};
#pragma unroll(1)
    for (uint other = 0; other < uint(WIDTH); other += HALF) {
      const uint i = other + team;
      const int before = first + i < n ? exponent[first + i] : OF_ZERO;
      if (begin_column<T, TEAM, WIDTH>(tile, sizes, 1, i, before, least, place)) {
        progress.changed = true;
      }
      for (uint row = place; row < STRIDE; row += TEAM) {
        W[i * STRIDE + row] = row == i ? one<T>() : zero<T>();
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll(1)
    for (uint highest = 1; highest < uint(WIDTH); highest *= 2) {
#pragma unroll(1)
      for (uint r = highest; r < 2 * highest; ++r) {
        // Column i of a pair lacks the highest bit of r.
        const uint i = team + (team & ~(highest - 1));
        const uint j = i ^ r;
        T low[rows<T>()];
        T high[rows<T>()];
        read_tile<T, TEAM, rows<T>()>(low, tile + i * PITCH, place);
        read_tile<T, TEAM, rows<T>()>(high, tile + j * PITCH, place);
        Size<Real> low_size = sizes.at(r, i);
        Size<Real> high_size = sizes.at(r, j);
        const Turn<T> turn = turn_pair<T, TEAM>(low, high, low_size, high_size, least, progress);
        if (turn.any) {
          write_tile<T, TEAM, rows<T>()>(low, tile + i * PITCH, place);
          write_tile<T, TEAM, rows<T>()>(high, tile + j * PITCH, place);
        }
        if (turn.any && vectors != 0) {
          accumulate<T, TEAM, TURNED>(W + i * STRIDE, W + j * STRIDE, turn, place);
        }
        if (place == 0) {
          sizes.set(r + 1, i, low_size);
          sizes.set(r + 1, j, high_size);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
    if (progress.changed) flags[0] = 1;
    if (progress.unfinished) flags[1] = 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (flags[0] != 0) {
      store_block<T, TEAM, WIDTH>(tile, columns, first, n, tid, HALF * TEAM);
      if (tid < uint(WIDTH) && first + tid < n)
        exponent[first + tid] = sizes.at(WIDTH, tid).exponent;
      if (vectors != 0) {
        multiply<T, TEAM, WIDTH>(
            V + ulong(matrix) * n * n, W, STRIDE, n, first, first + HALF, team, place);
      }
    }
  }
  if (tid == 0) {
    mark[group.x] = flags[1];
    if (open && flags[2] == 0) info[matrix] = 0;
  }
}

// The pairs of columns of two blocks, which meet in round `round` of the sweep. A team keeps one
// column of the lower block in its registers; those of the other block, in threadgroup memory,
// come round.
template <typename T, int TEAM>
[[max_total_threads_per_threadgroup(512)]] kernel void svd_between(
    device T* X [[buffer(0)]],
    device T* V [[buffer(1)]],
    device int* exponents [[buffer(2)]],
    device int* marks [[buffer(3)]],
    device const int* info [[buffer(4)]],
    constant uint& n [[buffer(5)]],
    constant uint& batch [[buffer(6)]],
    constant uint& sweep [[buffer(7)]],
    constant uint& vectors [[buffer(8)]],
    constant uint& round [[buffer(9)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  constexpr int WIDTH = block_width<T>();
  constexpr uint PITCH = pitch<TEAM, rows<T>()>();
  constexpr int TURNED = turned_rows<TEAM, 2 * WIDTH>();
  constexpr uint STRIDE = pitch<TEAM, TURNED>();
  THREADGROUP_ARRAY(T, tile, (WIDTH * pitch<TEAM, rows<T>()>()));
  THREADGROUP_ARRAY(T, W, (2 * WIDTH * pitch<TEAM, TURNED>()));
  THREADGROUP_ARRAY(Real, norms, (2 * WIDTH));
  THREADGROUP_ARRAY(int, scales, (2 * WIDTH));
  THREADGROUP_ARRAY(int, flags, 2);
  const Sizes<Real, WIDTH> sizes = {norms, scales};
  const uint team = tid / uint(TEAM);
  const uint place = tid % uint(TEAM);
  const uint matrix = group.y;
  const uint blocks = blocks_of(n, WIDTH);
  // The last block stays where it is, the others go round a circle.
  const uint circle = blocks - 1;
  const uint one_block = (round + group.x) % circle;
  const uint other_block = group.x == 0 ? circle : (round + circle - group.x) % circle;
  const uint first = min(one_block, other_block) * WIDTH;
  const uint second = max(one_block, other_block) * WIDTH;
  device T* columns = X + ulong(matrix) * n * n;
  device int* exponent = exponents + ulong(matrix) * (n + 1);

  if (info[matrix] == 1 && second < n) {
    const int least = exponent[n];
    T low[rows<T>()];
    load_block<T, TEAM, WIDTH>(tile, columns, first, n, tid, WIDTH * TEAM);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    read_tile<T, TEAM, rows<T>()>(low, tile + team * PITCH, place);
    const int low_before = exponent[first + team];
    Size<Real> low_size = {Real(0), low_before};
    measure<T, TEAM>(low, low_size, least);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_block<T, TEAM, WIDTH>(tile, columns, second, n, tid, WIDTH * TEAM);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const int before = second + team < n ? exponent[second + team] : OF_ZERO;
    const bool vanished = begin_column<T, TEAM, WIDTH>(tile, sizes, 0, team, before, least, place);
    const bool low_vanished = low_size.exponent == OF_ZERO && low_before != OF_ZERO;
#pragma unroll
    for (int k = 0; k < TURNED; ++k) {
      const uint row = place + uint(k * TEAM);
      W[team * STRIDE + row] = row == team ? one<T>() : zero<T>();
      W[(WIDTH + team) * STRIDE + row] = row == WIDTH + team ? one<T>() : zero<T>();
    }
    if (tid == 0) flags[0] = flags[1] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Progress progress = {vanished || low_vanished, false};
#pragma unroll(1)
    for (uint r = 0; r < uint(WIDTH); ++r) {
      const uint j = team ^ r;
      T high[rows<T>()];
      read_tile<T, TEAM, rows<T>()>(high, tile + j * PITCH, place);
      Size<Real> high_size = sizes.at(r, j);
      const Turn<T> turn = turn_pair<T, TEAM>(low, high, low_size, high_size, least, progress);
      if (turn.any) write_tile<T, TEAM, rows<T>()>(high, tile + j * PITCH, place);
      if (turn.any && vectors != 0) {
        accumulate<T, TEAM, TURNED>(W + team * STRIDE, W + (WIDTH + j) * STRIDE, turn, place);
      }
      if (place == 0) sizes.set(r + 1, j, high_size);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (progress.changed) flags[0] = 1;
    if (progress.unfinished) flags[1] = 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (flags[0] != 0) {
      store_block<T, TEAM, WIDTH>(tile, columns, second, n, tid, WIDTH * TEAM);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      write_tile<T, TEAM, rows<T>()>(low, tile + team * PITCH, place);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      store_block<T, TEAM, WIDTH>(tile, columns, first, n, tid, WIDTH * TEAM);
      if (place == 0) {
        exponent[first + team] = low_size.exponent;
        if (second + team < n) exponent[second + team] = sizes.at(WIDTH, team).exponent;
      }
      if (vectors != 0) {
        multiply<T, TEAM, 2 * WIDTH>(
            V + ulong(matrix) * n * n, W, STRIDE, n, first, second, team, place);
      }
    }
    if (tid == 0 && flags[1] != 0) {
      marks[ulong(sweep & 1) * batch * blocks + ulong(matrix) * blocks + group.x] = 1;
    }
  }
}

// Sum, in all threads, of what each of the 8 simdgroups has.
template <typename R> inline R sum_of_group(R x, threadgroup R* parts, uint simd, uint lane) {
  x = team_sum<32>(x);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) parts[simd] = x;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  R sum = parts[0];
  for (uint i = 1; i < 8; ++i) sum += parts[i];
  return sum;
}

// S, the order of the columns, in `order`, and in place of each its unit vector. Where columns are
// zero, it is what two projections leave of the unit vector that is farthest from those there are.
// A threadgroup of 256 a matrix; a thread is a row, and in turn a column.
template <typename T>
kernel void svd_finish(
    device T* X [[buffer(0)]],
    device real_t<T>* S [[buffer(1)]],
    device const int* exponents [[buffer(2)]],
    device const int* marks [[buffer(3)]],
    device int* order [[buffer(4)]],
    device int* info [[buffer(5)]],
    constant uint& n [[buffer(6)]],
    constant uint& batch [[buffer(7)]],
    constant uint& sweep [[buffer(8)]],
    constant uint& blocks [[buffer(9)]],
    constant uint& vectors [[buffer(10)]],
    uint matrix [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
  typedef real_t<T> Real;
  THREADGROUP_ARRAY(Real, norms, FINISHING);
  THREADGROUP_ARRAY(T, w, FINISHING);
  THREADGROUP_ARRAY(T, shares, FINISHING);
  THREADGROUP_ARRAY(uint, sources, FINISHING);
  THREADGROUP_ARRAY(Real, parts, 8);
  THREADGROUP_ARRAY(uint, chosen_rows, 8);
  device T* columns = X + ulong(matrix) * n * n;
  device const int* exponent = exponents + ulong(matrix) * (n + 1);
  const int state = info[matrix];
  const bool finite = state != -4;
  for (uint j = simd; j < n; j += 8) {
    Real sum = Real(0);
    for (uint i = lane; i < n; i += 32) sum += square_of(columns[j * n + i]);
    const Real norm = finite ? sqrt(team_sum<32>(sum)) : Real(0);
    if (lane == 0) norms[j] = norm;
    if (vectors != 0 && norm > Real(0)) {
      for (uint i = lane; i < n; i += 32)
        columns[j * n + i] = times(columns[j * n + i], Real(1) / norm);
    }
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  uint rank = 0;
  for (uint j = 0; j < n; ++j) rank += norms[j] > Real(0) ? 1 : 0;
  if (tid < n) {
    const Real norm = norms[tid];
    uint position = 0;
    for (uint j = 0; j < n; ++j) {
      const bool before = j < tid ? leads(norms[j], exponent[j], norm, exponent[tid])
                                  : !leads(norm, exponent[tid], norms[j], exponent[j]);
      if (before) position += 1;
    }
    S[ulong(matrix) * n + position] = finite ? ldexp(norm, exponent[tid]) : Real(NAN);
    order[ulong(matrix) * n + position] = int(tid);
    sources[position] = tid;
  }
  if (tid == 0 && state == 1) {
    int unfinished = 0;
    for (uint i = 0; i < blocks; ++i) {
      unfinished = max(unfinished, marks[(ulong(sweep & 1) * batch + matrix) * blocks + i]);
    }
    info[matrix] = unfinished;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (vectors != 0 && finite && rank < n) {
    // What the rows of the columns there are lack of length 1.
    Real left = tid < n ? Real(1) : Real(-1);
    for (uint j = 0; j < rank && tid < n; ++j) left -= square_of(columns[sources[j] * n + tid]);
    for (uint k = rank; k < n; ++k) {
      Real weight = tid < n ? max(left, Real(0)) : Real(-1);
      uint chosen = tid;
      lane_argmax<32>(weight, chosen);
      if (lane == 0) {
        parts[simd] = weight;
        chosen_rows[simd] = chosen;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint i = 0; i < 8; ++i) {
        if (parts[i] > weight || (parts[i] == weight && chosen_rows[i] < chosen)) {
          weight = parts[i];
          chosen = chosen_rows[i];
        }
      }
      T entry = tid == chosen ? one<T>() : zero<T>();
#pragma unroll(1)
      for (int pass = 0; pass < 2; ++pass) {
        w[tid] = entry;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = simd; j < k; j += 8) {
          T minus = zero<T>();
          for (uint i = lane; i < n; i += 32) {
            minus = mul_sub(minus, conj(columns[sources[j] * n + i]), w[i]);
          }
          minus = team_sum<32>(minus);
          if (lane == 0) shares[j] = zero<T>() - minus;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = 0; j < k && tid < n; ++j) {
          entry = mul_sub(entry, columns[sources[j] * n + tid], shares[j]);
        }
      }
      const Real norm = sqrt(sum_of_group(square_of(entry), parts, simd, lane));
      entry = times(entry, Real(1) / norm);
      left -= square_of(entry);
      if (tid < n) columns[sources[k] * n + tid] = entry;
      threadgroup_barrier(mem_flags::mem_device);
    }
  }
}

// The columns of U and V in the order of S, those of V conjugated; of V there is twice as much.
template <typename T>
kernel void svd_order(
    device const T* U [[buffer(0)]],
    device const T* twice_V [[buffer(1)]],
    device const int* order [[buffer(2)]],
    device const int* info [[buffer(3)]],
    device T* X [[buffer(4)]],
    device T* Y [[buffer(5)]],
    constant uint& n [[buffer(6)]],
    constant uint& x_row [[buffer(7)]],
    constant uint& x_column [[buffer(8)]],
    constant uint& y_row [[buffer(9)]],
    constant uint& y_column [[buffer(10)]],
    uint3 at [[thread_position_in_grid]]) {
  const ulong offset = ulong(at.z) * n * n;
  const ulong from = offset + ulong(order[ulong(at.z) * n + at.y]) * n + at.x;
  const bool finite = info[at.z] != -4;
  const T invalid = from_real<T>(real_t<T>(NAN));
  X[offset + at.x * x_row + at.y * x_column] = finite ? U[from] : invalid;
  Y[offset + at.x * y_row + at.y * y_column] = finite ? scale(conj(twice_V[from]), -1) : invalid;
}

// X := A.
template <typename T>
kernel void svd_copy(
    device const T* A [[buffer(0)]],
    device T* X [[buffer(1)]],
    constant uint& row_stride [[buffer(2)]],
    constant uint& column_stride [[buffer(3)]],
    constant long& batch_stride [[buffer(4)]],
    constant uint& x_row [[buffer(5)]],
    constant uint& x_column [[buffer(6)]],
    constant long& x_batch [[buffer(7)]],
    uint3 at [[thread_position_in_grid]]) {
  X[long(at.z) * x_batch + long(at.x) * long(x_row) + long(at.y) * long(x_column)] =
      A[long(at.z) * batch_stride + long(at.x) * long(row_stride) +
        long(at.y) * long(column_stride)];
}
