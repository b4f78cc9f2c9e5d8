#include "scalar.h"
#include "householder.h"

// What the kernels of a level keep of a node, a merge of two halves: arrays of as many numbers as
// the node has rows. A place is an index into its poles in ascending order without those whose
// weight is negligible; a chain is a run of places whose poles count as one; a slot is a new
// eigenvalue: first one a chain, the roots, then the deflated ones.
constexpr constant uint POLES = 0;       // of a root: the pole before it
constexpr constant uint WEIGHTS = 1;     // of a root: the component of z at its pole
constexpr constant uint SLOTS = 2;       // of a slot: its value
constexpr constant uint TAUS = 3;        // of a root: its distance from its origin
constexpr constant uint CENTERS = 4;     // of a place: its pole, later the mean of its chain so far
constexpr constant uint COMPONENTS = 5;  // of a place: its component of z
constexpr constant uint NORMS = 6;       // of a place: that of its chain's components so far
constexpr constant uint COEFFICIENTS = 7;  // of a row: its share of its chain
constexpr constant uint NUMBERS = 8;

constexpr constant uint KEPT = 0;     // of a row: the root of its chain, or -1
constexpr constant uint PLACES = 1;   // of a row: its place, or -1
constexpr constant uint ROWS = 2;     // of a place: its row
constexpr constant uint HEADS = 3;    // of a place: where its chain begins
constexpr constant uint SOURCES = 4;  // of a deflated slot: its row, or -1 - its place
constexpr constant uint ORIGINS = 5;  // of a root: the pole nearest to it
constexpr constant uint RANKS = 6;    // of a slot: its column
constexpr constant uint COUNTS = 7;   // how many roots; the power of two that was taken out
constexpr constant uint INTEGERS = 8;

// The power of two of a node of zeros: any number times it is none.
constexpr constant int OF_ZERO = -4000;

// |a| up to this counts as zero, where the norm of a node is near 1: LAPACK's laed2.
template <typename R> inline R negligible_weight() { return R(8) * unit_roundoff<R>(); }

template <int width, typename N> inline N team_sum(N x) {
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2) {
    x = x + simd_shuffle_xor(x, ushort(distance));
  }
  return x;
}
template <int width, typename N> inline N team_product(N x) {
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2) {
    x = x * simd_shuffle_xor(x, ushort(distance));
  }
  return x;
}

// What decouples rows beyond the n-th and sorts behind all others: more than any eigenvalue or
// singular value.
template <typename T> inline T bound(device const T* d, device const T* e, uint n, uint lane) {
  T largest = T(0);
  for (uint i = lane; i < n; i += 32u) {
    const T off = i + 1 < n ? fabs(e[i]) : T(0);
    largest = max(largest, max(fabs(d[i]), off));
  }
  largest = simd_max(largest);
  return largest > T(0) ? T(4) * largest : T(1);
}

// The leaves as dense matrices of `rows` rows, a simdgroup each, a column a lane. Of T: less the
// rank-one matrices |e| v v^T, v = (1, sign e), that couple them. SINGULAR: of the transpose of B,
// without the last row of each leaf but the last. couplings: of each leaf with the next one.
template <typename T, int SINGULAR>
kernel void divide_leaves(
    device const T* d [[buffer(0)]],
    device const T* e [[buffer(1)]],
    device T* dense [[buffer(2)]],
    device T* couplings [[buffer(3)]],
    constant uint& n [[buffer(4)]],
    constant uint& rows [[buffer(5)]],
    constant uint& leaves [[buffer(6)]],
    uint leaf [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint matrix = leaf / leaves;
  const uint first = leaf % leaves * rows;
  device const T* diagonal = d + ulong(matrix) * n;
  device const T* off = e + ulong(matrix) * (n - 1);
  const T padding = first + rows > n ? bound<T>(diagonal, off, n, lane) : T(0);
  const uint row = first + lane;
  const bool last = lane == rows - 1;
  T before = SINGULAR == 0 && row > 0 && row < n ? off[row - 1] : T(0);
  T after = row + 1 < n ? off[row] : T(0);
  T middle = row < n ? diagonal[row] : padding;
  if (last) {
    couplings[2 * leaf] = SINGULAR != 0 ? middle : fabs(after);
    couplings[2 * leaf + 1] = after;
  }
  if (SINGULAR != 0) {
    if (last && (leaf + 1) % leaves != 0) middle = T(0);
  } else {
    if (lane == 0) middle -= fabs(before);
    if (last) middle -= fabs(after);
  }
  if (lane < rows) {
    device T* column = dense + (ulong(leaf) * rows + lane) * rows;
    for (uint i = 0; i < rows; ++i) {
      const T beside = i + 1 == lane ? before : (i == lane + 1 ? after : T(0));
      column[i] = i == lane ? middle : beside;
    }
  }
}

// Brings the singular values of leaves into ascending order, a simdgroup each, a column a lane; the
// null vector of one that is not the last of its matrix, whose left vector is the last row's alone,
// comes last.
template <typename T>
kernel void divide_ascending(
    device const T* old_values [[buffer(0)]],
    device const T* old_right [[buffer(1)]],
    device const T* old_left [[buffer(2)]],
    device T* values [[buffer(3)]],
    device T* right [[buffer(4)]],
    device T* left [[buffer(5)]],
    constant uint& rows [[buffer(6)]],
    constant uint& leaves [[buffer(7)]],
    uint leaf [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const ulong start = ulong(leaf) * rows * rows;
  const bool active = lane < rows;
  const bool has_null = (leaf + 1) % leaves != 0;
  const T of_last_row = active ? old_left[start + lane * rows + rows - 1] : T(0);
  const uint null = simd_max(has_null && fabs(of_last_row) > T(0.5f) ? lane : 0u);
  if (active) {
    uint column = rows - 1 - lane;
    if (has_null) column = lane == null ? rows - 1 : (lane < null ? column - 1 : column);
    values[leaf * rows + column] = old_values[leaf * rows + lane];
    for (uint i = 0; i < rows; ++i) {
      right[start + column * rows + i] = old_right[start + lane * rows + i];
      left[start + column * rows + i] = old_left[start + lane * rows + i];
    }
  }
}

// The sum over the threads before this one; `total`: over all.
inline uint counted_before(
    uint own, uint tid, uint threads, threadgroup uint* partial, thread uint& total) {
  const uint lane = tid % 32u;
  uint sum = own;
#pragma unroll
  for (uint distance = 1; distance < 32u; distance *= 2) {
    const uint before = simd_shuffle(sum, ushort(lane >= distance ? lane - distance : lane));
    if (lane >= distance) sum += before;
  }
  if (lane == 31u) partial[tid / 32u] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint offset = 0;
  total = 0;
  for (uint i = 0; i < threads / 32u; ++i) {
    if (i == tid / 32u) offset = total;
    total += partial[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return offset + sum - own;
}

// How many of `count` ascending numbers are less than x, or with `equal` not more.
template <typename T> inline uint position(device const T* a, uint count, T x, bool equal) {
  uint first = 0;
  uint last = count;
  while (first < last) {
    const uint middle = (first + last) / 2;
    const T other = a[middle];
    if (other < x || (equal && other == x)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

// Two poles become one where a rotation that takes one component of z away leaves nothing of note
// outside the diagonal.
template <typename T> struct Joint {
  T norm;
  T cosine;
  T sine;
  T gap;
  bool joins;
};
template <typename T> inline Joint<T> joint(T center, T norm, T next_center, T component) {
  Joint<T> j;
  j.norm = sqrt(fma(norm, norm, component * component));
  j.cosine = fabs(component) / j.norm;
  j.sine = norm / j.norm;
  j.gap = next_center - center;
  j.joins = j.gap * j.cosine * j.sine <= negligible_weight<T>();
  return j;
}

// Deflates a node, one threadgroup each. Of T = V diag(d) V^T, d the eigenvalues of the two halves,
// plus a rank-one matrix it makes diag(poles) + z z^T, z from the last row of V of the first half
// and the first row of that of the second. SINGULAR: of B, with row h - 1 = (alpha, beta) between
// the halves, it makes M = [z^T; diag(poles)], whose first pole is 0; column h - 1 is the null
// vector of the first half, and unless the node is the last of its matrix so is the last one.
template <typename T, int SINGULAR>
[[max_total_threads_per_threadgroup(256)]] kernel void divide_deflate(
    device const T* values [[buffer(0)]],
    device const T* V [[buffer(1)]],
    device const T* couplings [[buffer(2)]],
    device T* numbers [[buffer(3)]],
    device int* integers [[buffer(4)]],
    constant uint& h [[buffer(5)]],
    constant uint& leaves [[buffer(6)]],
    constant uint& nodes [[buffer(7)]],
    uint node [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  THREADGROUP_ARRAY(T, partial_max, 32);
  THREADGROUP_ARRAY(uint, partial, 32);
  const uint size = 2 * h;
  device const T* d = values + ulong(node) * size;
  device const T* last_row = V + ulong(node) * size * h + h - 1;
  device const T* first_row = last_row + ulong(h) * h - (h - 1);
  device T* number = numbers + ulong(node) * NUMBERS * size;
  device int* integer = integers + ulong(node) * INTEGERS * size;
  device T* centers = number + CENTERS * size;
  device T* components = number + COMPONENTS * size;
  device T* norms = number + NORMS * size;
  device int* rows = integer + ROWS * size;
  device int* heads = integer + HEADS * size;
  const bool has_null = SINGULAR != 0 && (node + 1) % nodes != 0;
  const uint left = SINGULAR != 0 ? h - 1 : h;
  const uint right = has_null ? h - 1 : h;
  const uint count = left + right + SINGULAR;
  device const T* coupling = couplings + (ulong(node) * leaves + leaves / 2 - 1) * 2;
  const T alpha = coupling[0];
  const T beta = coupling[1];

  // Poles whose component is zero do not count for what is negligible.
  T largest = max(fabs(alpha), fabs(beta));
  for (uint p = tid; p < size; p += threads) {
    const T component = p < h ? last_row[ulong(p) * h] : first_row[ulong(p - h) * h];
    const bool of_pole = p < h ? p < left : p < h + right;
    if (of_pole && component != T(0)) largest = max(largest, fabs(d[p]));
  }
  largest = simd_max(largest);
  if (tid % 32u == 0) partial_max[tid / 32u] = largest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < threads / 32u; ++i) largest = max(largest, partial_max[i]);
  const int exponent = largest > T(0) ? exponent_of(largest) : OF_ZERO;
  T left_factor = ldexp(alpha, -exponent);
  T right_factor = ldexp(beta, -exponent);
  T least = negligible_weight<T>();
  if (SINGULAR == 0) {
    left_factor = sqrt(left_factor);
    right_factor = right_factor < T(0) ? -left_factor : left_factor;
    least = least / (T(1.41421356f) * left_factor);
  }

  // Ascending order of all poles: of equals those of the first half lead.
  device int* order = integer + RANKS * size;
  for (uint p = tid; p < left; p += threads) {
    order[SINGULAR + p + position(d + h, right, d[p], false)] = int(p);
  }
  for (uint p = tid; p < right; p += threads) {
    order[SINGULAR + p + position(d, left, d[h + p], true)] = int(h + p);
  }
  if (SINGULAR != 0 && tid == 0) order[0] = int(h - 1);
  threadgroup_barrier(mem_flags::mem_device);

  const uint share = (count + threads - 1) / threads;
  const uint begin = min(tid * share, count);
  const uint end = min(begin + share, count);
  uint own = 0;
  for (uint r = begin; r < end; ++r) {
    const uint p = uint(order[r]);
    const T z =
        p < h ? left_factor * last_row[ulong(p) * h] : right_factor * first_row[ulong(p - h) * h];
    if (fabs(z) > least || (SINGULAR != 0 && r == 0)) own += 1;
  }
  uint places = 0;
  uint place = counted_before(own, tid, threads, partial, places);
  for (uint r = begin; r < end; ++r) {
    const uint p = uint(order[r]);
    const T z =
        p < h ? left_factor * last_row[ulong(p) * h] : right_factor * first_row[ulong(p - h) * h];
    const bool separates = SINGULAR != 0 && r == 0;
    if (fabs(z) > least || separates) {
      centers[place] = separates ? T(0) : ldexp(d[p], -exponent);
      components[place] = z;
      norms[place] = fabs(z);
      rows[place] = int(p);
      heads[place] = int(place);
      integer[PLACES * size + p] = int(place);
      place += 1;
    } else {
      const uint slot = count - 1 - (r - place);
      number[SLOTS * size + slot] = d[p];
      number[COEFFICIENTS * size + p] = T(0);
      integer[SOURCES * size + slot] = int(p);
      integer[PLACES * size + p] = -1;
      integer[KEPT * size + p] = -1;
    }
  }
  if (SINGULAR != 0 && tid == 0) {
    // The null vectors of both halves, turned so that the last column has no component.
    const T z = components[0];
    const T other = has_null ? right_factor * first_row[ulong(h - 1) * h] : T(0);
    const T norm = sqrt(fma(z, z, other * other));
    const bool negligible = norm <= least;
    norms[0] = negligible ? least : norm;
    number[COEFFICIENTS * size + h - 1] = negligible ? T(1) : z / norm;
    if (has_null) {
      number[COEFFICIENTS * size + size - 1] = negligible ? T(0) : other / norm;
      number[SLOTS * size + size - 1] = T(INFINITY);
      integer[SOURCES * size + size - 1] = int(size - 1);
      integer[PLACES * size + size - 1] = -1;
      integer[KEPT * size + size - 1] = 0;
    }
  }
  threadgroup_barrier(mem_flags::mem_device);

  // Pairs of places that join, a bit each: chains begin there, and are rare.
  device int* words = integer + ORIGINS * size;
  const uint count_of_words = (places + 31u) / 32u;
  for (uint w = tid; w < count_of_words; w += threads) {
    uint word = 0;
    for (uint b = 0; b < 32u; ++b) {
      const uint q = 32u * w + b;
      if (q > SINGULAR && q < places &&
          joint(centers[q - 1], norms[q - 1], centers[q], components[q]).joins) {
        word |= 1u << (b & 31u);
      }
    }
    words[w] = int(word);
  }
  threadgroup_barrier(mem_flags::mem_device);
  if (tid == 0) {
    uint next = 0;
    for (uint w = 0; w < count_of_words; ++w) {
      uint word = uint(words[w]);
      for (uint b = 0; word != 0; ++b, word >>= 1) {
        uint q = 32u * w + b;
        if ((word & 1u) == 0 || q < next) continue;
        const uint head = q - 1;
        T center = centers[head];
        T norm = norms[head];
        for (; q < places; ++q) {
          const Joint<T> j = joint(center, norm, centers[q], components[q]);
          if (!j.joins) break;
          centers[q - 1] = fma(j.gap * j.sine, j.sine, center);
          center = fma(j.gap * j.cosine, j.cosine, center);
          norm = j.norm;
          heads[q] = int(head);
          norms[q] = norm;
        }
        centers[q - 1] = center;
        next = q + 1;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_device);

  const uint places_share = (places + threads - 1) / threads;
  const uint first = min(tid * places_share, places);
  const uint last = min(first + places_share, places);
  own = 0;
  for (uint q = first; q < last; ++q) {
    if (q + 1 == places || heads[q + 1] == int(q + 1)) own += 1;
  }
  uint roots = 0;
  uint root = counted_before(own, tid, threads, partial, roots);
  for (uint q = first; q < last; ++q) {
    integer[KEPT * size + uint(rows[q])] = int(root);
    if (q + 1 == places || heads[q + 1] == int(q + 1)) {
      // A pole that is not the first keeps off zero.
      const bool low = SINGULAR != 0 && root == 1;
      number[POLES * size + root] = low ? max(centers[q], least / T(2)) : centers[q];
      number[WEIGHTS * size + root] = norms[q];
      root += 1;
    } else {
      const uint slot = roots + q - root;
      number[SLOTS * size + slot] = ldexp(centers[q], exponent);
      integer[SOURCES * size + slot] = -1 - int(q);
    }
  }
  if (tid == 0) {
    integer[COUNTS * size] = int(roots);
    integer[COUNTS * size + 1] = exponent;
  }
  threadgroup_barrier(mem_flags::mem_device);
  for (uint q = SINGULAR + tid; q < places; q += threads) {
    const uint p = uint(rows[q]);
    const uint of = uint(integer[KEPT * size + p]);
    number[COEFFICIENTS * size + p] = components[q] / number[WEIGHTS * size + of];
  }
}

// pole - root for the root at origin + tau, and SINGULAR pole^2 - root^2: to full relative accuracy
// where origin is the pole nearest to the root.
template <typename T, int SINGULAR> inline T difference(T pole, T origin, T tau) {
  const T apart = (pole - origin) - tau;
  return SINGULAR != 0 ? apart * ((pole + origin) + tau) : apart;
}

template <int size> struct unsigned_of {
  typedef uint type;
};
template <> struct unsigned_of<8> {
  typedef ulong type;
};

// The root x of c - own / x + other / (width - x), which has the value f and these slopes at t.
template <typename T> inline T root_between(T f, T slope, T far_slope, T t, T far, T width) {
  const T own = t * t * slope;
  const T other = far * far * far_slope;
  const T c = f + t * slope - far * far_slope;
  const T a = fma(c, width, own + other);
  const T b = fma(c, width, other - own);
  const T root = sqrt(fma(b, b, T(4) * own * other));
  return a > T(0) ? T(2) * own * width / (a + root) : (a - root) / (T(2) * c);
}

// Roots of f(x) = 1 + sum z_i^2 / difference(pole_i, x), a team of lanes each. The next guess is
// the root of a function of the two poles around: with their own weights first, then in turn with
// the nearer one's own and the slope of f, and with the slopes of either side of f (Li 1993). Where
// that is not in the bracket of the root, and every fourth time, it halves the bracket instead, of
// the bits of the distance to the nearer pole: positive numbers order as their bits do.
template <typename T, int TEAM, int SINGULAR>
kernel void divide_roots(
    device T* numbers [[buffer(0)]],
    device int* integers [[buffer(1)]],
    constant uint& size [[buffer(2)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  typedef typename unsigned_of<sizeof(T)>::type Bits;
  device T* number = numbers + ulong(group.x) * NUMBERS * size;
  device int* integer = integers + ulong(group.x) * INTEGERS * size;
  device const T* poles = number + POLES * size;
  device const T* weights = number + WEIGHTS * size;
  const uint roots = uint(integer[COUNTS * size]);
  const int exponent = integer[COUNTS * size + 1];
  const uint lane = tid % uint(TEAM);
  const uint root = (group.y * threads.x + tid) / uint(TEAM);
  const bool active = root < roots;
  const bool inner = root + 1 < roots;

  T sum = T(0);
  for (uint i = lane; i < roots; i += uint(TEAM)) sum = fma(weights[i], weights[i], sum);
  sum = team_sum<TEAM>(sum);
  uint nearest = active ? root : 0u;
  T origin = active ? poles[nearest] : T(0);
  const T next = inner ? poles[root + 1] : T(0);
  const T width = difference<T, SINGULAR>(next, origin, T(0));
  // Behind the last pole: what rounding may add to the bound is less than an eighth of it.
  const T end = SINGULAR != 0 ? sum / (origin + sqrt(fma(origin, origin, sum))) : sum;
  T sign = T(1);
  Bits low = as_type<Bits>(T(0x1p-100f));
  Bits high = as_type<Bits>(inner ? (next - origin) / T(2) : T(1.125f) * end);
  Bits guess = high;
  bool settled = !active;
  for (int step = 0; step < int(40 * sizeof(T)) && simd_any(!settled); ++step) {
    const T length = as_type<T>(guess);
    T tau = sign * length;
    T below = T(0);
    T above = T(0);
    T slope_below = T(0);
    T slope_above = T(0);
    uint i = lane;
    for (; i <= root && i < roots; i += uint(TEAM)) {
      const T x = weights[i] / difference<T, SINGULAR>(poles[i], origin, tau);
      below = fma(weights[i], x, below);
      slope_below = fma(x, x, slope_below);
    }
    for (; i < roots; i += uint(TEAM)) {
      const T x = weights[i] / difference<T, SINGULAR>(poles[i], origin, tau);
      above = fma(weights[i], x, above);
      slope_above = fma(x, x, slope_above);
    }
    below = team_sum<TEAM>(below);
    above = team_sum<TEAM>(above);
    slope_below = team_sum<TEAM>(slope_below);
    slope_above = team_sum<TEAM>(slope_above);
    if (!settled) {
      const T f = T(1) + (below + above);
      if (step == 0) {
        // In the middle between two poles f tells which of them is nearer.
        if (inner && f < T(0)) {
          nearest += 1;
          origin = next;
          sign = T(-1);
          tau = -tau;
        }
      } else if (sign * f < T(0)) {
        low = guess;
      } else {
        high = guess;
      }
      if (fabs(f) <= T(4) * unit_roundoff<T>() * (T(1) + (above - below))) {
        settled = true;
      } else if (high - low <= 1) {
        guess = high;
        settled = true;
      } else {
        const T t = SINGULAR != 0 ? length * fma(T(2), origin, tau) : length;
        const T far = width - t;
        const T of_origin = weights[nearest] / t;
        T slope = sign > T(0) ? slope_below : slope_above;
        T far_slope = sign > T(0) ? slope_above : slope_below;
        if (step == 0) {
          const T of_other = inner ? weights[sign > T(0) ? root + 1 : root] / far : T(0);
          slope = of_origin * of_origin;
          far_slope = of_other * of_other;
        } else if (inner && step % 2 == 1) {
          far_slope += fma(-of_origin, of_origin, slope);
          slope = of_origin * of_origin;
        }
        T better = inner ? root_between(sign * f, slope, far_slope, t, far, width)
                         : t * t * slope / fma(t, slope, f);
        if (SINGULAR != 0) {
          better = better / (origin + sqrt(max(fma(origin, origin, sign * better), T(0))));
        }
        guess = as_type<Bits>(better);
        if (step % 4 == 3 || guess <= low || guess >= high) guess = low + (high - low) / 2;
      }
    }
  }
  if (active && lane == 0) {
    const T tau = sign * as_type<T>(guess);
    number[TAUS * size + root] = tau;
    number[SLOTS * size + root] = ldexp(origin + tau, exponent);
    integer[ORIGINS * size + root] = int(nearest);
  }
}

// Of each slot its rank; of each pole the weight that makes the computed roots exact ones, by the
// formula of Loewner: it takes the place of the weight that was given.
template <typename T, int TEAM, int SINGULAR>
kernel void divide_weights(
    device T* numbers [[buffer(0)]],
    device int* integers [[buffer(1)]],
    constant uint& size [[buffer(2)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  device T* number = numbers + ulong(group.x) * NUMBERS * size;
  device int* integer = integers + ulong(group.x) * INTEGERS * size;
  device const T* poles = number + POLES * size;
  device const T* taus = number + TAUS * size;
  device const T* slots = number + SLOTS * size;
  device const int* origins = integer + ORIGINS * size;
  const uint roots = uint(integer[COUNTS * size]);
  const uint lane = tid % uint(TEAM);
  const uint slot = (group.y * threads.x + tid) / uint(TEAM);

  const T value = slot < size ? slots[slot] : T(0);
  uint rank = 0;
  for (uint i = lane; i < size; i += uint(TEAM)) {
    const T other = slots[i];
    if (other < value || (other == value && i < slot)) rank += 1;
  }
  rank = team_sum<TEAM>(rank);

  const T pole = slot < roots ? poles[slot] : T(0);
  T product = T(1);
  for (uint j = lane; slot < roots && j < roots; j += uint(TEAM)) {
    const T of_root = difference<T, SINGULAR>(pole, poles[origins[j]], taus[j]);
    const T of_pole = difference<T, SINGULAR>(pole, poles[j], T(0));
    product *= j == slot ? -of_root : of_root / of_pole;
  }
  product = team_product<TEAM>(product);
  if (lane == 0 && slot < size) integer[RANKS * size + slot] = int(rank);
  if (lane == 0 && slot < roots) number[WEIGHTS * size + slot] = sqrt(fabs(product));
}

// The new eigenvalues in ascending order, `columns` of them, and their vectors in terms of those of
// the halves; SINGULAR and in the last level of all in descending order.
template <typename T, int TEAM, int SINGULAR>
kernel void divide_vectors(
    device const T* numbers [[buffer(0)]],
    device const int* integers [[buffer(1)]],
    device T* values [[buffer(2)]],
    device T* right [[buffer(3)]],
    device T* left [[buffer(4)]],
    constant uint& size [[buffer(5)]],
    constant uint& columns [[buffer(6)]],
    constant uint& descending [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]],
    uint tid [[thread_index_in_threadgroup]]) {
  device const T* number = numbers + ulong(group.x) * NUMBERS * size;
  device const int* integer = integers + ulong(group.x) * INTEGERS * size;
  device const T* poles = number + POLES * size;
  device const T* weights = number + WEIGHTS * size;
  device const T* coefficients = number + COEFFICIENTS * size;
  device const int* kept = integer + KEPT * size;
  const uint roots = uint(integer[COUNTS * size]);
  const uint lane = tid % uint(TEAM);
  const uint slot = (group.y * threads.x + tid) / uint(TEAM);
  const bool is_root = slot < roots;

  const T tau = is_root ? number[TAUS * size + slot] : T(0);
  const T origin = is_root ? poles[integer[ORIGINS * size + slot]] : T(0);
  // In units of the distance to the nearest pole no square overflows.
  const T unit = fabs(tau);
  T right_squares = T(0);
  T left_squares = T(0);
  for (uint i = lane; is_root && i < roots; i += uint(TEAM)) {
    const T x = unit * weights[i] / difference<T, SINGULAR>(poles[i], origin, tau);
    right_squares = fma(x, x, right_squares);
    if (SINGULAR != 0) left_squares = fma(poles[i] * x, poles[i] * x, left_squares);
  }
  right_squares = team_sum<TEAM>(right_squares);
  if (SINGULAR != 0) left_squares = fma(unit, unit, team_sum<TEAM>(left_squares));
  if (slot < size) {
    uint column = uint(integer[RANKS * size + slot]);
    if (descending != 0 && column < columns) column = columns - 1 - column;
    if (lane == 0 && column < columns) {
      values[ulong(group.x) * columns + column] = number[SLOTS * size + slot];
    }
    const ulong start = (ulong(group.x) * size + column) * size;
    const uint separator = size / 2 - 1;
    if (is_root) {
      const T right_inverse = T(1) / sqrt(right_squares);
      const T left_inverse = SINGULAR != 0 ? T(1) / sqrt(left_squares) : T(0);
      for (uint p = lane; p < size; p += uint(TEAM)) {
        const int of = kept[p];
        T x = T(0);
        T y = T(0);
        if (of >= 0) {
          x = unit * weights[of] / difference<T, SINGULAR>(poles[of], origin, tau) *
              coefficients[p];
          y = poles[of] * x * left_inverse;
        }
        right[start + p] = x * right_inverse;
        if (SINGULAR != 0) left[start + p] = p == separator ? -unit * left_inverse : y;
      }
    } else {
      const int source = integer[SOURCES * size + slot];
      const uint place = source < 0 ? uint(-1 - source) : 0u;
      const int head = integer[HEADS * size + place];
      const T norm = number[NORMS * size + place];
      const T next = source < 0 ? number[COMPONENTS * size + place + 1] : T(0);
      const T joint_norm = source < 0 ? number[NORMS * size + place + 1] : T(1);
      const bool null = SINGULAR != 0 && source == int(size) - 1 && kept[size - 1] == 0 &&
                        integer[PLACES * size + size - 1] < 0;
      for (uint p = lane; p < size; p += uint(TEAM)) {
        T x = int(p) == source ? T(1) : T(0);
        const int own = integer[PLACES * size + p];
        if (source < 0 && own >= head && own <= int(place)) {
          // The chain so far, less its share of the next.
          x = number[COMPONENTS * size + uint(own)] / norm * (next / joint_norm);
        } else if (source < 0 && own == int(place) + 1) {
          x = -norm / joint_norm;
        }
        if (SINGULAR != 0) left[start + p] = x;
        if (null && p == separator) x = -coefficients[size - 1];
        if (null && p == size - 1) x = coefficients[separator];
        right[start + p] = x;
      }
    }
  }
}
