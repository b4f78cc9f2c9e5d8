// Searches over the lanes of a simdgroup. Call them in uniform flow only.

// Over each run of `width` lanes: the largest weight, and the smallest index that has it.
template <int width, typename R> inline void lane_argmax(thread R& weight, thread uint& index) {
  if constexpr (width == 32) {
    const R best = simd_max(weight);
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
