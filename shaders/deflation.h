#include "secular.h"

// |a| up to this counts as zero, where the norm of a node is near 1: LAPACK's laed2.
template <typename R> inline R negligible_weight() { return R(8) * unit_roundoff<R>(); }

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

// The halves of all nodes: values, vectors, and what couples each leaf with the next.
template <typename T> struct Halves {
  device const T* values;
  device const T* V;
  device const T* couplings;
  uint leaves;  // of a node
  uint nodes;   // of a matrix
};

// Deflates a node, by a threadgroup. Of T = V diag(d) V^T, d the eigenvalues of the two halves,
// plus a rank-one matrix it makes diag(poles) + z z^T, z from the last row of V of the first half
// and the first row of that of the second. SINGULAR: of B, with row h - 1 = (alpha, beta) between
// the halves, it makes M = [z^T; diag(poles)], whose first pole is 0; column h - 1 is the null
// vector of the first half, and unless the node is the last of its matrix so is the last one.
template <typename T, int SINGULAR>
inline void deflate(
    Node<T> node,
    Halves<T> of,
    uint index,
    uint tid,
    uint threads,
    threadgroup T* partial_max,
    threadgroup uint* partial) {
  const uint size = node.size;
  const uint h = size / 2;
  device const T* d = of.values + ulong(index) * size;
  device const T* last_row = of.V + ulong(index) * size * h + h - 1;
  device const T* first_row = last_row + ulong(h) * h - (h - 1);
  device T* centers = node.number(CENTERS);
  device T* components = node.number(COMPONENTS);
  device T* norms = node.number(NORMS);
  device int* rows = node.integer(ROWS);
  device int* heads = node.integer(HEADS);
  const bool has_null = SINGULAR != 0 && (index + 1) % of.nodes != 0;
  const uint left = SINGULAR != 0 ? h - 1 : h;
  const uint right = has_null ? h - 1 : h;
  const uint count = left + right + SINGULAR;
  device const T* coupling = of.couplings + (ulong(index) * of.leaves + of.leaves / 2 - 1) * 2;
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
  device int* order = node.integer(RANKS);
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
      node.integer(PLACES)[p] = int(place);
      place += 1;
    } else {
      const uint slot = count - 1 - (r - place);
      node.number(SLOTS)[slot] = d[p];
      node.number(COEFFICIENTS)[p] = T(0);
      node.integer(SOURCES)[slot] = int(p);
      node.integer(PLACES)[p] = -1;
      node.integer(KEPT)[p] = -1;
    }
  }
  if (SINGULAR != 0 && tid == 0) {
    // The null vectors of both halves, turned so that the last column has no component.
    const T z = components[0];
    const T other = has_null ? right_factor * first_row[ulong(h - 1) * h] : T(0);
    const T norm = sqrt(fma(z, z, other * other));
    const bool negligible = norm <= least;
    norms[0] = negligible ? least : norm;
    node.number(COEFFICIENTS)[h - 1] = negligible ? T(1) : z / norm;
    if (has_null) {
      node.number(COEFFICIENTS)[size - 1] = negligible ? T(0) : other / norm;
      node.number(SLOTS)[size - 1] = T(INFINITY);
      node.integer(SOURCES)[size - 1] = int(size - 1);
      node.integer(PLACES)[size - 1] = -1;
      node.integer(KEPT)[size - 1] = 0;
    }
  }
  threadgroup_barrier(mem_flags::mem_device);

  // Pairs of places that join, a bit each: chains begin there, and are rare.
  device int* words = node.integer(ORIGINS);
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
    node.integer(KEPT)[uint(rows[q])] = int(root);
    if (q + 1 == places || heads[q + 1] == int(q + 1)) {
      // A pole that is not the first keeps off zero.
      const bool low = SINGULAR != 0 && root == 1;
      node.number(POLES)[root] = low ? max(centers[q], least / T(2)) : centers[q];
      node.number(WEIGHTS)[root] = norms[q];
      root += 1;
    } else {
      const uint slot = roots + q - root;
      node.number(SLOTS)[slot] = ldexp(centers[q], exponent);
      node.integer(SOURCES)[slot] = -1 - int(q);
    }
  }
  if (tid == 0) {
    node.integer(COUNTS)[0] = int(roots);
    node.integer(COUNTS)[1] = exponent;
  }
  threadgroup_barrier(mem_flags::mem_device);
  for (uint q = SINGULAR + tid; q < places; q += threads) {
    const uint p = uint(rows[q]);
    const uint of = uint(node.integer(KEPT)[p]);
    node.number(COEFFICIENTS)[p] = components[q] / node.number(WEIGHTS)[of];
  }
}
