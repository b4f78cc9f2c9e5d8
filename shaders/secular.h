#include "scalar.h"
#include "householder.h"

// The rank-one eigenproblem diag(poles) + z z^T of a node, and the SVD of M = [z^T; diag(poles)].

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

template <typename T> struct Node {
  device T* numbers;
  device int* integers;
  uint size;

  device T* number(uint field) const thread { return numbers + field * size; }
  device int* integer(uint field) const thread { return integers + field * size; }
};
template <typename T>
inline Node<T> node_at(device T* numbers, device int* integers, uint size, uint index) {
  const Node<T> node = {
      numbers + ulong(index) * NUMBERS * size, integers + ulong(index) * INTEGERS * size, size};
  return node;
}

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

// Less than any root's from its pole, where what is left of poles and weights is some roundoffs.
template <typename R> inline R least_distance() {
  return R(0x1p-100f) * (sizeof(R) == 4 ? R(1) : R(0x1p-120f));
}

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

// A root of f(x) = 1 + sum z_i^2 / difference(pole_i, x), by a team of lanes. The next guess is
// the root of a function of the two poles around: with their own weights first, then in turn with
// the nearer one's own and the slope of f, and with the slopes of either side of f (Li 1993). Where
// that is not in the bracket of the root, and every fourth time, it halves the bracket instead, of
// the bits of the distance to the nearer pole: positive numbers order as their bits do.
template <typename T, int TEAM, int SINGULAR>
inline void find_root(Node<T> node, uint root, uint lane) {
  typedef typename unsigned_of<sizeof(T)>::type Bits;
  device const T* poles = node.number(POLES);
  device const T* weights = node.number(WEIGHTS);
  const uint roots = uint(node.integer(COUNTS)[0]);
  const int exponent = node.integer(COUNTS)[1];
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
  Bits low = as_type<Bits>(least_distance<T>());
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
    node.number(TAUS)[root] = tau;
    node.number(SLOTS)[root] = ldexp(origin + tau, exponent);
    node.integer(ORIGINS)[root] = int(nearest);
  }
}

// Of a slot its rank, and of a root's pole the weight that makes the computed roots exact ones, by
// the formula of Loewner (Gu, Eisenstat 1994): it takes the place of the weight that was given.
template <typename T, int TEAM, int SINGULAR>
inline void correct_weight(Node<T> node, uint slot, uint lane) {
  device const T* poles = node.number(POLES);
  device const T* taus = node.number(TAUS);
  device const T* slots = node.number(SLOTS);
  device const int* origins = node.integer(ORIGINS);
  const uint roots = uint(node.integer(COUNTS)[0]);
  const uint size = node.size;

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
  if (lane == 0 && slot < size) node.integer(RANKS)[slot] = int(rank);
  if (lane == 0 && slot < roots) node.number(WEIGHTS)[slot] = sqrt(fabs(product));
}

// Where the new eigenvalues of node `index` go, `columns` of them in ascending order, and their
// vectors in terms of those of the halves. `last`: of whole matrices; singular values descend
// there.
template <typename T> struct Results {
  device T* values;
  device T* right;
  device T* left;
  uint index;
  uint columns;
  uint last;
};

template <typename T, int TEAM, int SINGULAR>
inline void write_vector(Node<T> node, Results<T> to, uint slot, uint lane) {
  device const T* poles = node.number(POLES);
  device const T* weights = node.number(WEIGHTS);
  device const T* coefficients = node.number(COEFFICIENTS);
  device const int* kept = node.integer(KEPT);
  const uint roots = uint(node.integer(COUNTS)[0]);
  const uint size = node.size;
  const bool is_root = slot < roots;

  const T tau = is_root ? node.number(TAUS)[slot] : T(0);
  const T origin = is_root ? poles[node.integer(ORIGINS)[slot]] : T(0);
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
    uint column = uint(node.integer(RANKS)[slot]);
    if (SINGULAR != 0 && to.last != 0 && column < to.columns) column = to.columns - 1 - column;
    if (lane == 0 && column < to.columns) {
      to.values[ulong(to.index) * to.columns + column] = node.number(SLOTS)[slot];
    }
    const ulong start = (ulong(to.index) * size + column) * size;
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
        to.right[start + p] = x * right_inverse;
        if (SINGULAR != 0) to.left[start + p] = p == separator ? -unit * left_inverse : y;
      }
    } else {
      const int source = node.integer(SOURCES)[slot];
      const uint place = source < 0 ? uint(-1 - source) : 0u;
      const int head = node.integer(HEADS)[place];
      const T norm = node.number(NORMS)[place];
      const T next = source < 0 ? node.number(COMPONENTS)[place + 1] : T(0);
      const T joint_norm = source < 0 ? node.number(NORMS)[place + 1] : T(1);
      // What was deflated for its weight belongs to no root.
      const bool null = SINGULAR != 0 && source == int(size) - 1 && kept[size - 1] == 0;
      for (uint p = lane; p < size; p += uint(TEAM)) {
        T x = int(p) == source ? T(1) : T(0);
        const int own = node.integer(PLACES)[p];
        if (source < 0 && own >= head && own <= int(place)) {
          // The chain so far, less its share of the next.
          x = node.number(COMPONENTS)[uint(own)] / norm * (next / joint_norm);
        } else if (source < 0 && own == int(place) + 1) {
          x = -norm / joint_norm;
        }
        if (SINGULAR != 0) to.left[start + p] = x;
        if (null && p == separator) x = -coefficients[size - 1];
        if (null && p == size - 1) x = coefficients[separator];
        to.right[start + p] = x;
      }
    }
  }
}
