// Metal's names for C++17 on the CPU engine: every GPU thread is a fiber of runtime.cpp.

#define MPSL_INLINE inline __attribute__((always_inline))
#include "metal_common.h"
#include "runtime.h"

#define kernel static inline
#define device
#define constant const
#define threadgroup
#define thread
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define UINT_MAX 0xffffffffu

namespace mpsl {
MPSL_INLINE uint bits_of(float x) {
  uint bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
MPSL_INLINE float float_of(uint bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
}  // namespace mpsl

// Both round to nearest even. A half below 2^-14 is a multiple of 2^-24; no float32 denormal takes
// part, as the checked engine flushes those.
MPSL_INLINE half::operator float() const {
  const uint sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return mpsl::float_of(sign | 0x7f800000u | magnitude << 13);
  const float x = magnitude < 0x400u ? float(magnitude) * 0x1p-24f
                                     : mpsl::float_of((magnitude << 13) + (112u << 23));
  return sign != 0 ? -x : x;
}
MPSL_INLINE half::half(float x) {
  const uint sign = mpsl::bits_of(x) >> 16 & 0x8000u, magnitude = mpsl::bits_of(x) & 0x7fffffffu;
  uint rounded = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
  if (magnitude < 0x38800000u) {
    rounded = mpsl::bits_of(mpsl::float_of(magnitude) * 0x1p24f + 0x1p23f) & 0x7fffffu;
  } else if (magnitude >= 0x477ff000u) {
    rounded = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  }
  bits = sign | rounded;
}
MPSL_INLINE bfloat::operator float() const { return mpsl::float_of(uint(bits) << 16); }
MPSL_INLINE bfloat::bfloat(float x) {
  const uint wide = mpsl::bits_of(x);
  bits = x != x ? 0x7fc0u : (wide + 0x7fffu + (wide >> 16 & 1u)) >> 16;
}

#define MPSL_PER_TYPE(T)                                                                           \
  MPSL_INLINE T min(T a, T b) { return b < a ? b : a; }                                            \
  MPSL_INLINE T max(T a, T b) { return a < b ? b : a; }                                            \
  MPSL_INLINE T select(T a, T b, bool c) { return c ? b : a; }
MPSL_PER_TYPE(int)
MPSL_PER_TYPE(uint)
MPSL_PER_TYPE(long)
MPSL_PER_TYPE(ulong)
MPSL_PER_TYPE(float)
MPSL_PER_TYPE(double)
#undef MPSL_PER_TYPE

MPSL_INLINE ulong mulhi(ulong a, ulong b) { return ulong((unsigned __int128)a * b >> 64); }
MPSL_INLINE float fabs(float x) { return __builtin_fabsf(x); }
MPSL_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
MPSL_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MPSL_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MPSL_INLINE float exp(float x) { return __builtin_expf(x); }
MPSL_INLINE float log(float x) { return __builtin_logf(x); }
MPSL_INLINE float ldexp(float x, int k) { return __builtin_ldexpf(x, k); }
MPSL_INLINE float frexp(float x, int& k) { return __builtin_frexpf(x, &k); }
MPSL_INLINE double fabs(double x) { return __builtin_fabs(x); }
MPSL_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
MPSL_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
MPSL_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
MPSL_INLINE double exp(double x) { return __builtin_exp(x); }
MPSL_INLINE double log(double x) { return __builtin_log(x); }
MPSL_INLINE double ldexp(double x, int k) { return __builtin_ldexp(x, k); }
MPSL_INLINE double frexp(double x, int& k) { return __builtin_frexp(x, &k); }
namespace fast {
MPSL_INLINE float divide(float x, float y) { return x / y; }
MPSL_INLINE double divide(double x, double y) { return x / y; }
}  // namespace fast

static const mpsl::Runtime* mpsl_runtime;
#if defined(MPSL_RACES)
#define MPSL_UNTOLD __attribute__((visibility("hidden"), no_sanitize("thread")))
// What -fsanitize=thread makes of every access; its own runtime knows nothing of fibers.
#define MPSL_TELLS(name, size, write)                                                              \
  extern "C" MPSL_UNTOLD void __tsan_##name(void* p) { mpsl_runtime->access(p, size, write); }
#define MPSL_TELLS_BOTH(size)                                                                      \
  MPSL_TELLS(read##size, size, false)                                                              \
  MPSL_TELLS(write##size, size, true)                                                              \
  MPSL_TELLS(unaligned_read##size, size, false)                                                    \
  MPSL_TELLS(unaligned_write##size, size, true)
MPSL_TELLS_BOTH(1)
MPSL_TELLS_BOTH(2)
MPSL_TELLS_BOTH(4)
MPSL_TELLS_BOTH(8)
MPSL_TELLS_BOTH(16)
#undef MPSL_TELLS_BOTH
#undef MPSL_TELLS
extern "C" MPSL_UNTOLD void __tsan_read_range(void* p, unsigned long size) {
  mpsl_runtime->access(p, uint(size), false);
}
extern "C" MPSL_UNTOLD void __tsan_write_range(void* p, unsigned long size) {
  mpsl_runtime->access(p, uint(size), true);
}
extern "C" MPSL_UNTOLD void __tsan_init() {}
extern "C" MPSL_UNTOLD void __tsan_func_entry(void*) {}
extern "C" MPSL_UNTOLD void __tsan_func_exit() {}
extern "C" __attribute__((no_sanitize("thread")))
#else
extern "C"
#endif
void mpsl_bind(const mpsl::Runtime* runtime) { mpsl_runtime = runtime; }

#define THREADGROUP_ARRAY(T, name, count)                                                          \
  T* const name = (T*)mpsl_runtime->threadgroup_array(sizeof(T) * (count), #name)

// Atomics do not race.
#if defined(MPSL_RACES)
#define MPSL_ATOMIC static __attribute__((noinline, no_sanitize("thread")))
#else
#define MPSL_ATOMIC MPSL_INLINE
#endif
// A threadgroup's memory is one operating-system thread's: its fibers take turns.
MPSL_ATOMIC void atomic_store_explicit(atomic_uint* a, uint v, memory_order) { a->value = v; }
MPSL_ATOMIC uint atomic_load_explicit(const atomic_uint* a, memory_order) { return a->value; }
MPSL_ATOMIC uint atomic_fetch_add_explicit(atomic_uint* a, uint v, memory_order) {
  const uint before = a->value;
  a->value = before + v;
  return before;
}
// Of device memory too, which groups on other threads share.
MPSL_ATOMIC uint atomic_fetch_max_explicit(atomic_uint* a, uint v, memory_order) {
  uint before = __atomic_load_n(&a->value, __ATOMIC_RELAXED);
  while (before < v && !__atomic_compare_exchange_n(&a->value, &before, v, true, __ATOMIC_RELAXED,
                                                    __ATOMIC_RELAXED)) {
  }
  return before;
}

inline void threadgroup_barrier(int, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  mpsl_runtime->barrier({"threadgroup_barrier", file, line});
}
inline void simdgroup_barrier(int, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  mpsl_runtime->simd_barrier({"simdgroup_barrier", file, line});
}

namespace mpsl {
// One round of a simd function: every lane of the simdgroup gives `value`, then reads what it wants.
template <typename V> struct Lanes {
  const char* slots;
  Lanes(V value, Site site)
      : slots((const char*)mpsl_runtime->exchange(&value, sizeof(V), site)) {}
  V operator[](uint lane) const { return *(const V*)(slots + SLOT * (lane & 31)); }
};
}  // namespace mpsl

template <typename V> V simd_shuffle(V v, ushort lane, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  return mpsl::Lanes<V>(v, {"simd_shuffle", file, line})[lane];
}
template <typename V> V simd_broadcast(V v, ushort lane, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  return mpsl::Lanes<V>(v, {"simd_broadcast", file, line})[lane];
}
template <typename V> V simd_shuffle_xor(V v, ushort mask, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  const mpsl::Lanes<V> lanes(v, {"simd_shuffle_xor", file, line});
  return lanes[mpsl_runtime->lane() ^ mask];
}
template <typename V> V simd_max(V v, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  const mpsl::Lanes<V> lanes(v, {"simd_max", file, line});
  V best = lanes[0];
  for (uint i = 1; i < 32; ++i) best = max(best, lanes[i]);
  return best;
}
template <typename V> V simd_min(V v, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  const mpsl::Lanes<V> lanes(v, {"simd_min", file, line});
  V best = lanes[0];
  for (uint i = 1; i < 32; ++i) best = min(best, lanes[i]);
  return best;
}
template <typename V> V simd_sum(V v, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  const mpsl::Lanes<V> lanes(v, {"simd_sum", file, line});
  V sum = lanes[0];
  for (uint i = 1; i < 32; ++i) sum = sum + lanes[i];
  return sum;
}
inline bool simd_any(bool v, const char* file = __builtin_FILE(), uint line = __builtin_LINE()) {
  const mpsl::Lanes<bool> lanes(v, {"simd_any", file, line});
  bool any = false;
  for (uint i = 0; i < 32; ++i) any = any || lanes[i];
  return any;
}
