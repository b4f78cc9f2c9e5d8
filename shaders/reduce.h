// Searches and sums over the lanes of a simdgroup. Call them in uniform flow only.

// The largest weight of a simdgroup. Weights are not negative, or -1: so their bits order as they
// do, and the largest integer is one instruction where the largest float is many.
template <typename R> inline R simd_max_weight(R weight) {
  if constexpr (sizeof(R) == sizeof(int)) {
    return as_type<R>(simd_max(as_type<int>(weight)));
  } else {
    return simd_max(weight);
  }
}

// Over each run of `width` lanes: the largest weight, and the smallest index that has it.
template <int width, typename R> inline void lane_argmax(thread R& weight, thread uint& index) {
  if constexpr (width == 32) {
    const R best = simd_max_weight(weight);
    index = simd_min(weight == best ? index : UINT_MAX);
    weight = best;
  } else {
#pragma unroll
    for (int distance = width / 2; distance > 0; distance /= 2) {
      const R other_weight = simd_shuffle_xor(weight, ushort(distance));
      const uint other_index = simd_shuffle_xor(index, ushort(distance));
      const bool better = other_weight > weight || (other_weight == weight && other_index < index);
      weight = better ? other_weight : weight;
      index = better ? other_index : index;
    }
  }
}

// Sums of COUNT values over the lanes; a lane gets that of value lane % COUNT.
template <typename T, int COUNT> inline T sum_over_lanes(thread T (&values)[COUNT], uint lane) {
#pragma unroll
  for (int half_count = COUNT / 2; half_count > 0; half_count /= 2) {
    const bool upper = (lane & uint(half_count)) != 0;
#pragma unroll
    for (int i = 0; i < half_count; ++i) {
      const T kept = upper ? values[i + half_count] : values[i];
      const T given = upper ? values[i] : values[i + half_count];
      values[i] = kept + simd_shuffle_xor(given, ushort(half_count));
    }
  }
#pragma unroll
  for (int step = COUNT; step < 32; step *= 2) {
    values[0] = values[0] + simd_shuffle_xor(values[0], ushort(step));
  }
  return values[0];
}
