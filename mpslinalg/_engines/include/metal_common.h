// Metal's scalar names and vector types for C++17 and CUDA.
// Included after the engine's own header, which defines MPSL_INLINE.

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// Storage alone, as bfloat is in Metal: arithmetic is in float. The engine's header converts.
#define MPSL_HALF(T)                                                                               \
  struct T {                                                                                       \
    ushort bits;                                                                                   \
    T() = default;                                                                                 \
    MPSL_INLINE explicit T(float x);                                                               \
    MPSL_INLINE operator float() const;                                                            \
  };
MPSL_HALF(half)
MPSL_HALF(bfloat)
#undef MPSL_HALF

template <typename E, int N> struct vec;

template <typename E> struct alignas(2 * sizeof(E)) vec<E, 2> {
  E x, y;
  vec() = default;
  MPSL_INLINE explicit vec(E s) : x(s), y(s) {}
  MPSL_INLINE vec(E a, E b) : x(a), y(b) {}
  MPSL_INLINE E operator[](uint i) const { return i == 0 ? x : y; }
};

template <typename E> struct alignas(4 * sizeof(E) > 16 ? 16 : 4 * sizeof(E)) vec<E, 3> {
  E x, y, z;
  vec() = default;
  MPSL_INLINE vec(E a, E b, E c) : x(a), y(b), z(c) {}
};

template <typename E> struct alignas(4 * sizeof(E) > 16 ? 16 : 4 * sizeof(E)) vec<E, 4> {
  E x, y, z, w;
  vec() = default;
  MPSL_INLINE explicit vec(E s) : x(s), y(s), z(s), w(s) {}
  MPSL_INLINE vec(E a, E b, E c, E d) : x(a), y(b), z(c), w(d) {}
};

#define MPSL_ELEMENTWISE(op)                                                                       \
  template <typename E> MPSL_INLINE vec<E, 2> operator op(vec<E, 2> a, vec<E, 2> b) {              \
    return vec<E, 2>(a.x op b.x, a.y op b.y);                                                      \
  }                                                                                                \
  template <typename E> MPSL_INLINE vec<E, 4> operator op(vec<E, 4> a, vec<E, 4> b) {              \
    return vec<E, 4>(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w);                              \
  }
MPSL_ELEMENTWISE(+)
MPSL_ELEMENTWISE(-)
#undef MPSL_ELEMENTWISE
template <typename E> MPSL_INLINE vec<E, 2> operator-(vec<E, 2> a) { return vec<E, 2>(-a.x, -a.y); }

template <typename To, typename From> MPSL_INLINE To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  union {
    From from;
    To to;
  } bits = {x};
  return bits.to;
}

// CUDA has vector types of its own under these names; the shaders mean Metal's.
#define float2 metal_float2
#define float3 metal_float3
#define float4 metal_float4
#define double2 metal_double2
#define uint2 metal_uint2
#define uint3 metal_uint3
typedef vec<float, 2> float2;
typedef vec<float, 4> float4;
typedef vec<double, 2> double2;
typedef vec<uint, 2> uint2;
typedef vec<uint, 3> uint3;

// Metal has no double: what scalar.h says of float2 is said of double2 here.
template <typename T> struct scalar_traits;
template <> struct scalar_traits<double2> {
  typedef double real;
  enum { complex = 1 };
};

enum mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
enum memory_order { memory_order_relaxed };
struct atomic_uint {
  uint value;
};
