// The triangular factor of a block reflector I - V T V^H.

// Entries above the diagonal of a triangular factor, by columns: (i, k) is k (k - 1) / 2 + i.
template <int W> inline constexpr int packed_size() { return W * (W - 1) / 2; }
inline uint packed_column(uint k) { return k * (k - 1) / 2; }

// The triangular factor T of a block of reflectors: T^-1 is diag(1 / tau) and above it V^H V
// (Puglisi, 1992), whose entries `packed` has and T's replace. Where T1 and T2 are the factors of
// neighbouring blocks and G12 is what V^H V has right of T1, T12 is -T1 G12 T2: all threads of the
// group make blocks of 2, 4, 8 ... of them.
template <typename T>
inline void make_factor(
    threadgroup T* packed,
    threadgroup const T* tau,
    uint steps,
    uint tid,
    uint threads,
    threadgroup T* scratch) {
#pragma unroll(1)
  for (uint b = 1, bits = 0; b < steps; b *= 2, ++bits) {
    const uint count = (steps + b - 1) / (2 * b) * b * b;
    for (uint e = tid; e < count; e += threads) {
      const uint middle = (e >> (2 * bits & 31u)) * 2 * b + b;
      const uint i = middle - b + (e & (b - 1));
      const uint j = middle + (e >> (bits & 31u) & (b - 1));
      if (j < steps) {
        threadgroup const T* column = packed + packed_column(j);
        threadgroup const T* row = packed + packed_column(middle) + i;
        T minus = mul_sub(zero<T>(), column[i], tau[j]);
#pragma unroll(4)
        for (uint l = middle; l < j; ++l) {
          minus = mul_sub(minus, *row, column[l]);
          row += l;
        }
        scratch[e] = minus;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < count; e += threads) {
      const uint middle = (e >> (2 * bits & 31u)) * 2 * b + b;
      const uint i = middle - b + (e & (b - 1));
      const uint j = middle + (e >> (bits & 31u) & (b - 1));
      if (j < steps) {
        threadgroup const T* column = scratch + e;
        threadgroup const T* row = packed + packed_column(i + 1) + i;
        T minus = mul_sub(zero<T>(), tau[i], *column);
#pragma unroll(4)
        for (uint l = i + 1; l < middle; ++l) {
          column += 1;
          minus = mul_sub(minus, *row, *column);
          row += l;
        }
        packed[packed_column(j) + i] = zero<T>() - minus;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// All of T, zero below the diagonal and from column `steps` on, to a column-major 32 x 32 matrix.
template <typename T>
inline void write_factor(
    threadgroup const T* packed,
    threadgroup const T* tau,
    uint steps,
    uint tid,
    uint threads,
    device T* to) {
  for (uint e = tid; e < 32 * 32; e += threads) {
    const uint i = e % 32;
    const uint j = e / 32;
    T entry = zero<T>();
    if (i < j && j < steps) entry = packed[packed_column(j) + i];
    if (i == j && j < steps) entry = tau[j];
    to[e] = entry;
  }
}
