// Metal's names for CUDA. Compiled with -default-device: a plain function is a device function.

#define MPSL_INLINE __forceinline__
#include "metal_common.h"
#undef INFINITY
#undef NAN
#undef UINT_MAX

// The rest of the mathematics has Metal's names and overloads in CUDA already.
MPSL_INLINE float frexp(float x, int& k) { return frexpf(x, &k); }
MPSL_INLINE double frexp(double x, int& k) { return frexp(x, &k); }
MPSL_INLINE ulong mulhi(ulong a, ulong b) { return __umul64hi(a, b); }
// Within two units of the last place for y of 2^-126 to 2^126, without the branch of x / y.
namespace fast {
MPSL_INLINE float divide(float x, float y) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  return x * inverse;
}
MPSL_INLINE double divide(double x, double y) { return x / y; }
}  // namespace fast

MPSL_INLINE half::operator float() const {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
MPSL_INLINE half::half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
MPSL_INLINE bfloat::operator float() const { return __uint_as_float(uint(bits) << 16); }
MPSL_INLINE bfloat::bfloat(float x) {
  const uint wide = __float_as_uint(x);
  bits = x != x ? 0x7fc0u : (wide + 0x7fffu + (wide >> 16 & 1u)) >> 16;
}

#define kernel static __forceinline__
#define device
#define constant const
#define threadgroup
#define thread
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define UINT_MAX 0xffffffffu

// Aligned, so that neighbouring accesses merge into wide ones.
#define THREADGROUP_ARRAY(T, name, count) __shared__ __align__(16) T name[count]

// Metal's device barrier orders within the threadgroup alone, and so does this one.
__forceinline__ void threadgroup_barrier(int) { __syncthreads(); }
__forceinline__ void simdgroup_barrier(int) { __syncwarp(); }

__forceinline__ void atomic_store_explicit(atomic_uint* a, uint v, memory_order) {
  *(volatile uint*)&a->value = v;
}
__forceinline__ uint atomic_load_explicit(const atomic_uint* a, memory_order) {
  return *(const volatile uint*)&a->value;
}
__forceinline__ uint atomic_fetch_add_explicit(atomic_uint* a, uint v, memory_order) {
  return atomicAdd(&a->value, v);
}
__forceinline__ uint atomic_fetch_max_explicit(atomic_uint* a, uint v, memory_order) {
  return atomicMax(&a->value, v);
}

namespace mpsl {
template <typename V> __forceinline__ V shuffle(V v, uint lane) {
  return __shfl_sync(0xffffffffu, v, lane);
}
template <typename E> __forceinline__ vec<E, 2> shuffle(vec<E, 2> v, uint lane) {
  return vec<E, 2>(shuffle(v.x, lane), shuffle(v.y, lane));
}
__forceinline__ uint lane() {
  uint id;
  asm("mov.u32 %0, %%laneid;" : "=r"(id));
  return id;
}
// Unsigned integers that order as the floats do: redux.sync reduces those in one instruction.
__forceinline__ uint ordered(float v) {
  const uint bits = __float_as_uint(v);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__forceinline__ float disordered(uint key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}
}  // namespace mpsl

template <typename V> __forceinline__ V simd_shuffle(V v, ushort lane) {
  return mpsl::shuffle(v, lane);
}
template <typename V> __forceinline__ V simd_broadcast(V v, ushort lane) {
  return mpsl::shuffle(v, lane);
}
template <typename V> __forceinline__ V simd_shuffle_xor(V v, ushort mask) {
  return mpsl::shuffle(v, mpsl::lane() ^ mask);
}
__forceinline__ uint simd_max(uint v) { return __reduce_max_sync(0xffffffffu, v); }
__forceinline__ uint simd_min(uint v) { return __reduce_min_sync(0xffffffffu, v); }
__forceinline__ int simd_max(int v) { return __reduce_max_sync(0xffffffffu, v); }
__forceinline__ int simd_min(int v) { return __reduce_min_sync(0xffffffffu, v); }
__forceinline__ float simd_max(float v) {
  return mpsl::disordered(__reduce_max_sync(0xffffffffu, mpsl::ordered(v)));
}
__forceinline__ float simd_min(float v) {
  return mpsl::disordered(__reduce_min_sync(0xffffffffu, mpsl::ordered(v)));
}
__forceinline__ double simd_max(double v) {
  for (uint d = 16; d > 0; d >>= 1) v = max(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}
__forceinline__ double simd_min(double v) {
  for (uint d = 16; d > 0; d >>= 1) v = min(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}
template <typename V> __forceinline__ V simd_sum(V v) {
  for (uint d = 16; d > 0; d >>= 1) v = v + mpsl::shuffle(v, mpsl::lane() ^ d);
  return v;
}
__forceinline__ bool simd_any(bool v) { return __any_sync(0xffffffffu, v) != 0; }
