#include "atomic.h"
#include "scalar.h"

// Of a tensor that has four, the first of a size that need not be known.
struct Sides {
  long size1, size2, size3, stride0, stride1, stride2, stride3;
};

// Where the element lies that is counted row-major. With SIDES = 1 the tensor is a vector.
template <int SIDES> inline ulong offset_of(Sides at, ulong element) {
  if constexpr (SIDES == 1) {
    return ulong(long(element) * at.stride3);
  } else {
    const ulong row3 = element / ulong(at.size3);
    const ulong row2 = row3 / ulong(at.size2);
    const ulong row1 = row2 / ulong(at.size1);
    const long of_sides =
        long(row1) * at.stride0 + (long(row2) - long(row1) * at.size1) * at.stride1;
    return ulong(
        of_sides + (long(row3) - long(row2) * at.size2) * at.stride2 +
        (long(element) - long(row3) * at.size3) * at.stride3);
  }
}

// An index of torch's, from the end where it is negative; 0, and noted, where it is outside.
inline ulong wrapped(long index, long length, thread long& outside) {
  const bool inside = index >= -length && index < length;
  if (!inside && outside == 0l) outside = index;
  return inside ? ulong(index < 0l ? index + length : index) : 0ul;
}

// The halves of a thread's first index outside. 0 says that there is none: as an index it is
// outside a tensor without elements alone, and no kernel gets such a one.
inline void note(device int* halves, long outside) {
  halves[0] = as_type<int>(uint(ulong(outside) & 0xfffffffful));
  halves[1] = as_type<int>(uint(ulong(outside) >> 32));
}

// Indices that a thread reads before it needs the first of them, so that it waits for all at once.
constexpr constant uint AHEAD = 4;

template <typename I> struct Indices {
  I at[AHEAD];
};

// index[i], index[i + step], ...; 0 behind the end.
template <typename I>
inline Indices<I> indices(device const I* index, ulong i, ulong step, ulong count) {
  Indices<I> read;
#pragma unroll
  for (uint j = 0; j < AHEAD; ++j) read.at[j] = i + j * step < count ? index[i + j * step] : I(0);
  return read;
}

// result[i] := input[index[i]]. A thread takes every threads.x-th index of its batch.
template <typename T, typename I, int SIDES>
kernel void indexing_take(
    device const T* input [[buffer(0)]],
    device const I* index [[buffer(1)]],
    device T* result [[buffer(2)]],
    device int* outside [[buffer(3)]],
    constant long& length [[buffer(4)]],
    constant long& count [[buffer(5)]],
    constant long& size1 [[buffer(6)]],
    constant long& size2 [[buffer(7)]],
    constant long& size3 [[buffer(8)]],
    constant long& stride0 [[buffer(9)]],
    constant long& stride1 [[buffer(10)]],
    constant long& stride2 [[buffer(11)]],
    constant long& stride3 [[buffer(12)]],
    uint2 place [[thread_position_in_grid]],
    uint2 threads [[threads_per_grid]]) {
  const Sides at = {size1, size2, size3, stride0, stride1, stride2, stride3};
  const ulong first = ulong(place.y) * ulong(count), before = ulong(place.y) * ulong(length);
  const ulong step = threads.x;
  long bad = 0l;
  for (ulong i = place.x; i < ulong(count); i += AHEAD * step) {
    const Indices<I> read = indices(index + first, i, step, ulong(count));
    T taken[AHEAD];
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j) {
      const ulong element = before + wrapped(long(read.at[j]), length, bad);
      taken[j] = input[offset_of<SIDES>(at, element)];
    }
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j) {
      if (i + j * step < ulong(count)) result[first + i + j * step] = taken[j];
    }
  }
  note(outside + 2ul * (ulong(place.y) * threads.x + place.x), bad);
}

// keys[i] := index[i], counted in the whole batch, or `elements` where that is outside. A thread
// takes every threads.x-th of its batch.
template <typename I, typename K>
kernel void indexing_keys(
    device const I* index [[buffer(0)]],
    device K* keys [[buffer(1)]],
    device int* outside [[buffer(2)]],
    constant long& length [[buffer(3)]],
    constant long& count [[buffer(4)]],
    constant long& elements [[buffer(5)]],
    uint2 place [[thread_position_in_grid]],
    uint2 threads [[threads_per_grid]]) {
  const ulong first = ulong(place.y) * ulong(count), before = ulong(place.y) * ulong(length);
  long bad = 0l;
  for (ulong i = place.x; i < ulong(count); i += threads.x) {
    long own_bad = 0l;
    const ulong element = before + wrapped(long(index[first + i]), length, own_bad);
    keys[first + i] = own_bad == 0l ? K(element) : K(elements);
    if (bad == 0l) bad = own_bad;
  }
  note(outside + 2ul * (ulong(place.y) * threads.x + place.x), bad);
}

// Three launches put elements, of those with equal indices the last. The first clears the claims on
// all elements that are indexed, and one behind them on that nothing is written. The second claims
// an element for the largest number, counted from 1, among its indices, and nothing if an index is
// outside. The third writes what has a claim.
template <typename I>
kernel void indexing_clear(
    device const I* index [[buffer(0)]],
    device atomic_uint* claims [[buffer(1)]],
    constant long& length [[buffer(2)]],
    constant long& count [[buffer(3)]],
    constant long& elements [[buffer(4)]],
    uint2 place [[thread_position_in_grid]],
    uint2 threads [[threads_per_grid]]) {
  const ulong first = ulong(place.y) * ulong(count), before = ulong(place.y) * ulong(length);
  const ulong step = threads.x;
  long bad = 0l;
  if (place.x == 0u && place.y == 0u) {
    atomic_store_explicit(claims + ulong(elements), 0u, memory_order_relaxed);
  }
  for (ulong i = place.x; i < ulong(count); i += AHEAD * step) {
    const Indices<I> read = indices(index + first, i, step, ulong(count));
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j) {
      const ulong element = before + wrapped(long(read.at[j]), length, bad);
      atomic_store_explicit(claims + element, 0u, memory_order_relaxed);
    }
  }
}

template <typename I>
kernel void indexing_claim(
    device const I* index [[buffer(0)]],
    device atomic_uint* claims [[buffer(1)]],
    device int* outside [[buffer(2)]],
    constant long& length [[buffer(3)]],
    constant long& count [[buffer(4)]],
    constant long& elements [[buffer(5)]],
    uint2 place [[thread_position_in_grid]],
    uint2 threads [[threads_per_grid]]) {
  const ulong first = ulong(place.y) * ulong(count), before = ulong(place.y) * ulong(length);
  const ulong step = threads.x;
  long bad = 0l;
  for (ulong i = place.x; i < ulong(count); i += AHEAD * step) {
    const Indices<I> read = indices(index + first, i, step, ulong(count));
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j) {
      const ulong own = i + j * step;
      const ulong element = before + wrapped(long(read.at[j]), length, bad);
      if (own < ulong(count)) {
        const uint number = uint(first + own) + 1u;
        atomic_fetch_max_explicit(claims + element, number, memory_order_relaxed);
      }
    }
  }
  if (bad != 0l) atomic_store_explicit(claims + ulong(elements), 1u, memory_order_relaxed);
  note(outside + 2ul * (ulong(place.y) * threads.x + place.x), bad);
}

// kept[i] says whether source[i] was written.
template <typename T, typename I, int SIDES>
kernel void indexing_put(
    device const T* source [[buffer(0)]],
    device const I* index [[buffer(1)]],
    device const uint* claims [[buffer(2)]],
    device T* result [[buffer(3)]],
    device uchar* kept [[buffer(4)]],
    constant long& length [[buffer(5)]],
    constant long& count [[buffer(6)]],
    constant long& elements [[buffer(7)]],
    constant long& size1 [[buffer(8)]],
    constant long& size2 [[buffer(9)]],
    constant long& size3 [[buffer(10)]],
    constant long& stride0 [[buffer(11)]],
    constant long& stride1 [[buffer(12)]],
    constant long& stride2 [[buffer(13)]],
    constant long& stride3 [[buffer(14)]],
    uint2 place [[thread_position_in_grid]],
    uint2 threads [[threads_per_grid]]) {
  const Sides at = {size1, size2, size3, stride0, stride1, stride2, stride3};
  const ulong first = ulong(place.y) * ulong(count), before = ulong(place.y) * ulong(length);
  const ulong step = threads.x;
  const bool refused = claims[elements] != 0u;
  long bad = 0l;
  for (ulong i = place.x; i < ulong(count); i += AHEAD * step) {
    const Indices<I> read = indices(index + first, i, step, ulong(count));
    ulong element[AHEAD];
    uint claim[AHEAD];
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j) {
      element[j] = before + wrapped(long(read.at[j]), length, bad);
      claim[j] = claims[element[j]];
    }
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j) {
      const ulong own = first + i + j * step;
      const bool last = claim[j] == uint(own) + 1u && !refused;
      if (i + j * step < ulong(count)) {
        kept[own] = last ? uchar(1) : uchar(0);
        if (last) result[offset_of<SIDES>(at, element[j])] = source[own];
      }
    }
  }
}

// result[keys[i]] += values[i] for ascending keys; a thread sums RUN entries. A key ends in one run
// only, and there the result gets what the run has of it. The sum of a run's last key, which may go
// on, is entry id of the partial sums, ascending again, or goes to the result if the run is the
// only one. If `ordered`, entry i has the value order[i]. An index outside is the last of all keys,
// and then the result gets nothing.
template <typename T, typename K, int RUN, int SIDES>
kernel void indexing_add(
    device const T* values [[buffer(0)]],
    device const K* keys [[buffer(1)]],
    device const long* order [[buffer(2)]],
    device T* result [[buffer(3)]],
    device T* partial_values [[buffer(4)]],
    device K* partial_keys [[buffer(5)]],
    constant uint& ordered [[buffer(6)]],
    constant long& count [[buffer(7)]],
    constant long& elements [[buffer(8)]],
    constant long& size1 [[buffer(9)]],
    constant long& size2 [[buffer(10)]],
    constant long& size3 [[buffer(11)]],
    constant long& stride0 [[buffer(12)]],
    constant long& stride1 [[buffer(13)]],
    constant long& stride2 [[buffer(14)]],
    constant long& stride3 [[buffer(15)]],
    uint id [[thread_position_in_grid]],
    uint threads [[threads_per_grid]]) {
  const Sides at = {size1, size2, size3, stride0, stride1, stride2, stride3};
  const bool refused = long(keys[count - 1l]) == elements;
  const ulong begin = ulong(id) * ulong(RUN);
  const ulong end = min(begin + ulong(RUN), ulong(count));
  K key = keys[begin];
  T sum = zero<T>();
  for (ulong i = begin; i < end; ++i) {
    if (keys[i] != key) {
      const ulong place = offset_of<SIDES>(at, ulong(key));
      if (!refused) result[place] = result[place] + sum;
      key = keys[i];
      sum = zero<T>();
    }
    sum = sum + values[ordered != 0u ? ulong(order[i]) : i];
  }
  if (threads == 1u) {
    const ulong place = offset_of<SIDES>(at, ulong(key));
    if (!refused) result[place] = result[place] + sum;
  } else {
    partial_keys[id] = key;
    partial_values[id] = sum;
  }
}

// Counts of low, low + 1, ..., less than low + span. A threadgroup takes every groups-th piece of
// the input and writes its counts to the row `group`, and behind them the largest value it met,
// less low: span for all larger ones, span + 1 where one was less than low.
// Threads count equal values in a row before they meet others at a counter.
template <typename I, int BINS>
[[max_total_threads_per_threadgroup(256)]] kernel void indexing_count(
    device const I* input [[buffer(0)]],
    device int* counts [[buffer(1)]],
    constant long& low [[buffer(2)]],
    constant uint& span [[buffer(3)]],
    constant long& count [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  THREADGROUP_ARRAY(atomic_uint, bins, BINS + 1);
  for (uint bin = tid; bin <= span; bin += 256u) clear(bins + bin);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  uint bin = 0u, equal = 0u, largest = 0u;
  for (ulong i = ulong(group) * 256ul + tid; i < ulong(count); i += ulong(groups) * 256ul) {
    const long value = long(input[i]);
    uint own = span + 1u;
    if (value >= low) own = value - low < long(span) ? uint(value - low) : span;
    if (own != bin) {
      if (equal != 0u && bin < span) add(bins + bin, equal);
      largest = max(largest, own);
      bin = own;
      equal = 0u;
    }
    equal += 1u;
  }
  if (equal != 0u && bin < span) add(bins + bin, equal);
  raise(bins + span, largest);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint own = tid; own <= span; own += 256u) {
    counts[ulong(group) * (span + 1u) + own] = as_type<int>(counted(bins + own));
  }
}

// result[k] := the sum over the rows of counts of k - low; one thread a bin, and one for the
// largest value of all rows, less low.
template <typename I>
kernel void indexing_total(
    device const I* counts [[buffer(0)]],
    device long* result [[buffer(1)]],
    device int* largest [[buffer(2)]],
    constant long& low [[buffer(3)]],
    constant uint& span [[buffer(4)]],
    constant uint& rows [[buffer(5)]],
    constant uint& bins [[buffer(6)]],
    uint bin [[thread_position_in_grid]]) {
  const long column = bin < bins ? long(bin) - low : long(span);
  const bool of_bin = column >= 0l && column < long(span);
  long sum = 0l;
  int most = 0;
  if (of_bin || bin == bins) {
    for (uint row = 0u; row < rows; ++row) {
      const int found = int(counts[ulong(row) * (span + 1u) + ulong(column)]);
      sum += long(found);
      most = max(most, found);
    }
  }
  if (bin < bins) result[bin] = sum;
  if (bin == bins) largest[0] = most;
}

// The number of entries less than a value in ascending order.
template <typename I> inline ulong below(device const I* ascending, ulong count, long value) {
  ulong begin = 0ul, end = count;
  while (begin < end) {
    const ulong middle = (begin + end) / 2ul;
    const bool less = long(ascending[middle]) < value;
    begin = less ? middle + 1ul : begin;
    end = less ? end : middle;
  }
  return begin;
}

// result[k] := how often k is among ascending values; one thread a bin.
template <typename I>
kernel void indexing_runs(
    device const I* ascending [[buffer(0)]],
    device long* result [[buffer(1)]],
    constant long& count [[buffer(2)]],
    uint bin [[thread_position_in_grid]]) {
  const ulong first = below(ascending, ulong(count), long(bin));
  result[bin] = long(below(ascending, ulong(count), long(bin) + 1l) - first);
}
