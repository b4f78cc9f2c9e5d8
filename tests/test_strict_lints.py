"""The strict Metal check names each fault that it exists for, and passes sound text."""

import pytest

from tests.strict.check import Problem, check

PROLOGUE = """#include <metal_stdlib>
using namespace metal;
#define THREADGROUP_ARRAY(T, name, count) threadgroup T name[count]
#line 1 "shaders/bad.metal"
"""


def problems(text: str) -> list[Problem]:
    return check(PROLOGUE + text, "prologue")


def kernel(body: str) -> str:
    """A kernel on one line round statements, so that line numbers are those of the case."""
    return (
        "kernel void k(device float* a [[buffer(0)]], device float2* z [[buffer(1)]], "
        "constant uint& n [[buffer(2)]], device int* s [[buffer(3)]], "
        "uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]], "
        "uint simd [[simdgroup_index_in_threadgroup]], "
        "uint group [[threadgroup_position_in_grid]]) {" + body + "}"
    )


def template(body: str, arguments: str = "float, 4", parameters: str = "typename T, int N") -> str:
    return (
        f"template <{parameters}>\n"
        "kernel void k(device T* a [[buffer(0)]], constant uint& n [[buffer(1)]], "
        "uint lane [[thread_index_in_simdgroup]]) {" + body + "}\n"
        f'template [[host_name("k")]] [[kernel]] decltype(k<{arguments}>) k<{arguments}>;\n'
    )


IDS = "uint3 b [[threads_per_grid]]"
HALVE = "template <typename T> void halve(thread T& x) { x = x * T(0.5f); }\n"
SWAP = "template <typename T> void swap(thread T& x, thread T& y) { T c = x; x = y; y = c; }\n"

BAD: list[tuple[int, str, str, str]] = [
    # Lint, rule it is reported under, text, words of the message.
    (1, "lint 1", "void f(float* p) {}", "pointer type must have explicit address space qualifier"),
    (1, "lint 1", "void f(float& p) {}", "reference type must have explicit address space"),
    (1, "lint 1", kernel("float x = 0.0f; float* p = &x;"), "pointer type must have explicit"),
    (1, "lint 1", kernel("auto& x = a[0]; x = 1.0f;"), "reference type must have explicit"),
    (1, "lint 1", kernel("float x = 0.0f; ((thread int*)(float*)&x)[0] = 1;"), "explicit"),
    (1, "lint 1", "struct S { float* p; };", "pointer type must have explicit"),
    (1, "lint 1", "using P = float*;", "pointer type must have explicit"),
    (1, "lint 1", "float* f(device float* a);", "pointer type must have explicit"),
    (1, "lint 1", "template <typename T> T ld(T* p) { return *p; }", "pointer type must have"),
    (1, "lint 1", HALVE + kernel("halve(a[0]);"), "'x' is bound to 'device float &'"),
    (1, "lint 1", kernel("((thread float*)a)[0] = 1.0f;"), "changes address space"),
    (1, "lint 1", kernel("((thread float*)(a + 1))[0] = 1.0f;"), "changes address space"),
    (
        1,
        "clang",
        kernel("thread float* p = a; p[0] = 1.0f;"),
        "cannot initialize a variable of type 'float *' with an lvalue of type 'device float *'",
    ),
    (
        1,
        "clang",
        template("device T* p = a; threadgroup T* q = p; q[0] = a[0];"),
        "cannot initialize a variable of type 'threadgroup float *' with an lvalue of type",
    ),
    (
        1,
        "clang",
        "void g(thread const uint& x);" + kernel("g(n);"),
        "cannot bind reference in address space",
    ),
    (1, "clang", kernel("n = 3u;"), "const"),
    (2, "lint 2", "constexpr int N = 4;", "program scope variable must reside in constant"),
    (2, "lint 2", "namespace q { float x; }", "program scope variable must reside in constant"),
    (2, "lint 2", "struct S { static constexpr int N = 4; };", "program scope variable"),
    (2, "lint 2", "constant float x = sqrt(2.0f);", "global constructor"),
    (2, "clang", "constant float x;", "default initialization of an object of const type"),
    (3, "lint 3", kernel("static int c = 0; c = c + 1;"), "cannot be declared static"),
    (3, "lint 3", kernel("auto f = [](float x) { return x; }; a[0] = f(1.0f);"), "lambda"),
    (3, "lint 3", kernel("goto end; end: a[0] = 1.0f;"), "'goto' is not supported"),
    (3, "lint 3", "struct S { virtual void f() thread; };", "'virtual' is not supported"),
    (3, "lint 3", "uint f(uint n) { return n == 0u ? 1u : n * f(n - 1u); }", "calls itself"),
    (4, "clang", SWAP + kernel("float2 v = z[0]; swap(v.x, v.y);"), "cannot bind to vector"),
    (4, "clang", kernel("float2 v = z[0]; thread float* p = &v.x;"), "address of vector element"),
    (4, "clang", kernel("float2 v = z[0]; thread float& p = v.x;"), "cannot bind to vector"),
    (5, "lint 5", kernel("double s = 0.0f;"), "'double' is not supported in Metal"),
    (5, "lint 5", template("a[0] = T(0.0f);", "double, 4"), "'double' is not supported"),
    (5, "lint 5", "constant long long x = 1;", "'long long' is not supported in Metal"),
    (5, "lint 5", kernel("float r[n];"), "'float[n]' is not supported in Metal"),
    (5, "lint 5", template("T r[n]; r[0] = a[0];"), "is not supported in Metal"),
    (6, "lint 6", kernel("a[0] = a[0] * 0.5;"), "'0.5' is double in C++ and CUDA"),
    (6, "lint 6", kernel("a[0] = sqrt(1e-3);"), "'1e-3' is double in C++ and CUDA"),
    (7, "clang", kernel("a[0] = hypot(a[0], a[1]);"), "use of undeclared identifier 'hypot'"),
    (7, "clang", template("a[0] = hypot(a[0], a[1]);"), "undeclared identifier 'hypot'"),
    (7, "clang", kernel("a[0] = sqrtf(a[0]);"), "use of undeclared identifier 'sqrtf'"),
    (7, "lint 7", kernel("a[0] = std::sqrt(a[0]);"), "'std' does not exist in Metal"),
    (7, "lint 7", kernel("a[0] = __builtin_fabsf(a[0]);"), "is a name of one compiler"),
    (7, "lint 7", "#include <cmath>\n", "'cmath' is not a header of Metal"),
    (8, "clang", kernel("s[0] = int(max(n, 0));"), "call to 'max' is ambiguous"),
    (8, "clang", kernel("a[0] = sqrt(2);"), "call to 'sqrt' is ambiguous"),
    (8, "clang", kernel("a[0] = max(a[0], 0);"), "call to 'max' is ambiguous"),
    (8, "clang", template("a[0] = clamp(a[0], -1, 1);"), "call to 'clamp' is ambiguous"),
    (8, "lint 8", kernel("a[0] = pow(a[0], 2);"), "pow takes 'float' here, not 'int'"),
    (8, "lint 8", template("a[0] = fma(a[0], a[1], 0);"), "fma takes 'float' here, not 'int'"),
    (
        9,
        "lint 9",
        f"kernel void k(uint a [[thread_position_in_grid]], {IDS}) {{}}",
        "all scalar types or all vector types",
    ),
    (9, "lint 9", "kernel void k(uint a [[thread_id]]) {}", "unknown attribute 'thread_id'"),
    (9, "lint 9", "kernel void k(int a [[thread_position_in_grid]]) {}", "type 'int' is not valid"),
    (9, "lint 9", "kernel void k(uint2 a [[thread_index_in_simdgroup]]) {}", "is not valid for"),
    (
        9,
        "lint 9",
        "kernel void k(thread uint& a [[thread_position_in_grid]]) {}",
        "is not valid for attribute",
    ),
    (
        9,
        "lint 9",
        "kernel void k(uint a [[thread_position_in_grid]], uint b [[thread_position_in_grid]]) {}",
        "given twice",
    ),
    (
        9,
        "lint 9",
        "kernel void k(uint a [[thread_index_in_simdgroup]], "
        "ushort b [[simdgroup_index_in_threadgroup]]) {}",
        "differ",
    ),
    (10, "lint 10", "kernel void k(int n) {}", "invalid type 'int' for input declaration"),
    (10, "lint 10", "kernel int k(device int* a) { return 0; }", "invalid return type 'int'"),
    (10, "lint 10", "kernel void k(threadgroup int* a) {}", "invalid address space qualification"),
    (
        10,
        "lint 10",
        "kernel void k(device int* a [[buffer(0)]], device int* b [[buffer(0)]]) {}",
        "cannot reserve 'buffer' resource location at index 0",
    ),
    (10, "lint 10", "kernel void k(device int* a [[buffer(31)]]) {}", "between 0 and 30"),
    (10, "lint 10", "kernel void k(device int* a) {} kernel void k(device float* a) {}", "overloa"),
    (10, "lint 10", "kernel void k(device size_t* a) {}", "no size_t across the host border"),
    (
        10,
        "lint 10",
        "kernel void k(" + ", ".join(f"device int* a{i}" for i in range(32)) + ") {}",
        "32 buffers",
    ),
    (
        10,
        "lint 10",
        template("") + 'template [[host_name("k")]] decltype(k<int, 2>) k<int, 2>;',
        "twice",
    ),
    (11, "lint 11", kernel("THREADGROUP_ARRAY(bool, f, 4);"), "threadgroup bool 'f'"),
    (11, "lint 11", kernel("THREADGROUP_ARRAY(float, f, 4) = {0.0f};"), "has an initialiser"),
    (11, "lint 11", "void f() { THREADGROUP_ARRAY(float, f, 4); }", "outside a kernel"),
    (11, "clang", kernel("threadgroup float f[4]; f[0] = 1.0f;"), "qualified with an address"),
    (
        11,
        "lint 11",
        template("THREADGROUP_ARRAY(T, t, N * N); t[lane] = a[lane];", "float2, 65"),
        "k<float2, 65>: threadgroup memory size (33808) exceeds the maximum threadgroup memory",
    ),
    (
        11,
        "lint 11",
        kernel("THREADGROUP_ARRAY(float, t, 8192); THREADGROUP_ARRAY(int, i, 1); i[0] = t[0];"),
        "(32784)",
    ),
    (12, "lint 12", "void f(mem_flags f) { threadgroup_barrier(f); }", "must be literal, not 'f'"),
    (12, "lint 12", kernel("simdgroup_barrier(mem_flags(n));"), "must be literal"),
    (
        13,
        "lint 13",
        kernel("if (tid >= n) return;\nthreadgroup_barrier(mem_flags::mem_none);"),
        "return",
    ),
    (13, "lint 13", kernel("if (group >= n) return;\na[0] = simd_sum(a[0]);"), "return skips"),
    (13, "lint 13", template("if (lane >= n) return;\na[0] = simd_sum(a[0]);"), "return skips"),
    (
        13,
        "lint 13",
        kernel("if (tid < n) { threadgroup_barrier(mem_flags::mem_none); }"),
        "threadgroup_barrier where not all threads arrive",
    ),
    (
        13,
        "lint 13",
        kernel("for (uint i = tid; i < n; i += 32u) { a[i] = simd_max(a[i]); }"),
        "simd_max where not all threads arrive",
    ),
    (
        13,
        "lint 13",
        kernel("for (uint i = 0; i < n; i++) { if (i == lane) break;\na[i] = simd_sum(a[i]); }"),
        "simd_sum where not all threads arrive",
    ),
    (
        13,
        "lint 13",
        "float total(float x) { return simd_sum(x); }\n"
        + kernel("uint k = 0; if (lane == 0u) { k = 1u; } if (k == 0u) { a[0] = total(a[1]); }"),
        "total where not all threads arrive",
    ),
    (
        13,
        "lint 13",
        "float total(float x, uint i) { if (i > 3u) { return simd_sum(x); } return x; }\n"
        + kernel("a[0] = total(a[1], tid);"),
        "total where not all threads arrive",
    ),
    (
        13,
        "lint 13",
        "struct Place { uint count; uint lane; };\n"
        "float total(float x, thread Place& p) { p.count = p.lane; return x; }\n"
        + kernel(
            "Place p = {n, lane}; a[0] = total(a[1], p);\n"
            "if (p.count > 3u) { a[1] = simd_sum(a[1]); }"
        ),
        "simd_sum where not all threads arrive",
    ),
    (13, "lint 13", kernel("if (simd == 0u) { threadgroup_barrier(mem_flags::mem_none); }"), "all"),
    (
        13,
        "lint 13",
        "[[max_total_threads_per_threadgroup(32)]] kernel void k(device int* a) {}",
        "maximum of 32 threads or fewer",
    ),
    (14, "lint 14", kernel("switch (n) { case 0: return; default: a[0] = 1.0f; }"), "switch"),
    (14, "lint 14", kernel("while (true) { a[0] = 1.0f; }"), "loop without a bound"),
    (14, "lint 14", kernel("for (;;) { a[0] = 1.0f; }"), "loop without a bound"),
    (15, "clang", kernel("a[0] = float(simd_sum(ulong(lane)));"), "no matching function for call"),
    (15, "clang", kernel("a[0] = simd_sum(lane < n);"), "no matching function for call"),
    (15, "lint 15", kernel("a[0] = simd_shuffle(a[0], 32);"), "a ushort below 32"),
    (15, "lint 15", kernel("a[0] = simd_broadcast(a[0], 1.0f);"), "a ushort below 32"),
    (16, "clang", kernel("if (z[0] == z[1]) { a[0] = 1.0f; }"), "contextually convertible"),
    (16, "lint 16", kernel("z[0] = (z[0] == z[1]) ? z[0] : z[1];"), "contextually convertible"),
    (17, "clang", kernel("float4 v = 0.0f; float3 c = v;"), "cannot initialize a variable of type"),
    (17, "clang", kernel("int2 i = 0; float2 c = i;"), "cannot initialize a variable of type"),
    (18, "lint 18", kernel("s[0] = int(n << 32);"), "shift"),
    (18, "lint 18", kernel("s[0] = int(1u << lane);"), "mask the shift count: & 31u"),
    (18, "lint 18", template("a[0] = T(1u << N);", "float, 32"), "shift"),
    (19, "lint 19", kernel("int i = s[1]; s[0] = (i - 1) % 4;"), "on signed values"),
    (
        19,
        "lint 19",
        "int half_of(int i) { return i / 2; }\n"
        + kernel("s[0] = half_of(4); s[1] = half_of(s[0]);"),
        "on signed values",
    ),
    (19, "lint 19", kernel("for (int i = 4; i > -4; i--) { s[0] = i / 2; }"), "on signed values"),
    (19, "lint 19", kernel("s[0] /= s[1];"), "on signed values"),
    (19, "lint 19", kernel("s[0] = int(n % 0u);"), "zero"),
    (20, "lint 20", kernel("float p = a[0] * a[1]; a[2] = a[0] * a[1] - p;"), "is fused here"),
    (20, "lint 20", "float two_sum(float a, float b) { return a * b + b; }", "is fused here"),
    (21, "lint 21", "struct C { float re; C(float r) : re(r) {} };", "'C' needs one overload"),
    (
        21,
        "lint 21",
        "struct C { float re; operator float() const thread { return re; } };",
        "needs",
    ),
    (
        21,
        "lint 21",
        "struct C { float re; float f() const { return re; } };",
        "must end in 'thread'",
    ),
    (
        21,
        "clang",
        "float2 operator*(float2 a, float2 b) { return a; }",
        "overloaded 'operator*' must have at least one parameter of class",
    ),
    (22, "lint 22", kernel("float half = a[0] / 2.0f; a[0] = half;"), "'half' is a keyword"),
    (22, "lint 22", kernel("float device = 1.0f;"), "'device' is a keyword of Metal"),
    (22, "lint 22", "float length(float x) { return x; }", "is a name of the Metal library"),
    (22, "lint 22", "float j1(float x) { return x; }", "is a function of the C library"),
    (23, "lint 23", "// 3 \u2013 4\n", "not ASCII"),
    (24, "clang", kernel("float w = modf(a[1], a[0]); a[2] = w;"), "no matching function for call"),
    (24, "lint 24", kernel("float r[2]; a[0] = modf(a[1], r[0]);"), "takes a plain local variable"),
    (24, "clang", kernel("float2 v = z[0]; a[0] = sincos(a[1], v.y);"), "cannot bind to vector"),
    (25, "clang", "void f(threadgroup float a[4][5]) {}", "may not be qualified with an address"),
    (25, "lint 25", "void f(thread float a[4][5]) {}", "must be flat or a reference"),
    (25, "clang", kernel("float p[2]; float q[2] = {0.0f, 1.0f}; p = q;"), "array type"),
    (26, "lint 26", kernel("float r[16]; a[0] = r[n];"), "index of the private array 'r'"),
    (
        26,
        "lint 26",
        kernel("float r[4];\nfor (int i = 0; i < 4; i++) { r[i] = 0.0f; }"),
        "unrolling",
    ),
    (
        26,
        "lint 26",
        template("T r[N];\n#pragma unroll\nfor (uint i = 0; i < n; i++) { r[i] = a[i]; }"),
        "index of the private array 'r'",
    ),
    (26, "lint 26", template("T r[N][N]; a[0] = r[0][lane & 3u];"), "private array 'r'"),
    (26, "lint 26", template("T r[N]; a[0] = r[0];", "float, 200"), "exceeds the registers"),
    (
        27,
        "lint 27",
        "struct P { int q, r; }; P f() { return {1, 2}; }" + kernel("auto [q, r] = f();"),
        "decomposition declarations",
    ),
    (27, "lint 27", "namespace u::v { void f(); }", "nested namespace definition"),
    (
        27,
        "lint 27",
        kernel("if (int i = s[0]; i > 0) { a[0] = 1.0f; }"),
        "initialization statement",
    ),
    (28, "lint 28", "struct P { float3 v; }; kernel void k(constant P& p) {}", "another layout"),
    (28, "lint 28", "struct P { bool b; }; kernel void k(device P* p) {}", "another layout"),
    (28, "lint 28", "struct P { size_t b; }; kernel void k(device P* p) {}", "another layout"),
]


@pytest.mark.parametrize(("lint", "rule", "text", "expected"), BAD)
def test_fault_is_named(lint: int, rule: str, text: str, expected: str) -> None:
    found = problems(text)
    assert any(p.rule == rule and expected in p.message for p in found), "\n".join(map(str, found))


def test_every_lint_has_a_fault() -> None:
    assert {lint for lint, *_ in BAD} == set(range(1, 29))


def test_problem_prints_file_line_and_rule() -> None:
    (problem,) = problems("\n\n" + kernel("a[0] = a[0] * 0.5;"))
    assert str(problem) == (
        "shaders/bad.metal:3: [lint 6] '0.5' is double in C++ and CUDA: write 0.5f or T(0.5)"
    )


def test_line_directives_name_each_header() -> None:
    found = problems('void f();\n#line 7 "shaders/a.h"\nvoid g(float* p);\n#line 3 "b.h"\nint x;\n')
    assert [(p.file, p.line, p.rule) for p in found] == [
        ("shaders/a.h", 7, "lint 1"),
        ("b.h", 3, "lint 2"),
    ]


GOOD_FILE = r"""
#line 1 "shaders/scalar.h"
constant float tiny_norm = 0x1p-80f;
constant int order[4] = {3, 5, 7, 9};

template <typename T> struct real_of {
    using type = T;
};
template <> struct real_of<float2> {
    using type = float;
};
template <typename T> using real_t = typename real_of<T>::type;
template <typename T> struct width_of {
    static constexpr constant int value = is_same_v<T, float> ? 1 : 2;
};

inline float mul(float a, float b) { return a * b; }
inline float2 mul(float2 a, float2 b) {
    return float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
inline float conj(float a) { return a; }
inline float2 conj(float2 a) { return float2(a.x, -a.y); }
inline float cabs1(float a) { return fabs(a); }
inline float cabs1(float2 a) { return fabs(a.x) + fabs(a.y); }
inline float real(float a) { return a; }
inline float real(float2 a) { return a.x; }
inline float reciprocal(float a) { return 1.0f / a; }
inline float2 reciprocal(float2 a) {
    if (fabs(a.x) >= fabs(a.y)) {
        const float r = a.y / a.x;
        const float d = 1.0f / fma(a.y, r, a.x);
        return float2(d, -r * d);
    }
    const float r = a.x / a.y;
    const float d = 1.0f / fma(a.x, r, a.y);
    return float2(r * d, -d);
}
template <typename T> T make_scalar(real_t<T> re, real_t<T> im) {
    if constexpr (is_same_v<T, float2>) {
        return T(re, im);
    } else {
        return T(re);
    }
}
template <typename T> inline void exchange(thread T& a, thread T& b) {
    const T c = a;
    a = b;
    b = c;
}
template <typename T> inline T load_or_zero(device const T* a, bool inside) {
    return inside ? *a : T(0.0f);
}
inline float two_prod(float a, float b, thread float& error) {
    const float p = a * b;
    error = fma(a, b, -p);
    return p;
}
inline float two_prod_split(float a, float b) {
#pragma METAL fp contract(off)
    const float p = a * b;
    return a * b - p;
}
template <typename T, int N> inline T largest(thread const T (&r)[N]) {
    T best = r[0];
#pragma unroll
    for (int i = 1; i < N; i++) {
        best = max(best, r[i]);
    }
    return best;
}

#line 1 "shaders/reduce.h"
struct Pivot {
    float value;
    uint row;
};
struct Add {
    template <typename T> T operator()(T a, T b) const thread { return a + b; }
};
template <typename Op, typename T> T combine(T a, T b) {
    Op op;
    return op(a, b);
}
template <typename T> inline T group_sum(T x, threadgroup T* scratch, uint tid, uint groups) {
    const T partial = simd_sum(x);
    if ((tid & 31u) == 0u) {
        scratch[tid >> 5u] = partial;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < 32u) {
        const T total = simd_sum(tid < groups ? scratch[tid] : T(0.0f));
        if (tid == 0u) {
            scratch[0] = total;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const T total = scratch[0];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}
inline Pivot simd_pivot(float value, uint row) {
    const float best = simd_max(value);
    const uint winner = simd_min(value == best ? row : UINT_MAX);
    return {best, winner};
}

#line 1 "shaders/lu.metal"
// One simdgroup factors one matrix; lane i owns row i.
template <typename T, int N>
kernel void lu_simd(device const T* A [[buffer(0)]], device T* LU [[buffer(1)]],
                    device int* pivots [[buffer(2)]], device int* info [[buffer(3)]],
                    constant uint& n [[buffer(4)]], constant uint& batch [[buffer(5)]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint group [[threadgroup_position_in_grid]]) {
    device const T* a = A + ulong(group) * n * n;
    device T* lu = LU + ulong(group) * n * n;
    T r[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        r[j] = load_or_zero(a + lane * n + uint(j), lane < n && uint(j) < n);
    }
    int failed = 0;
    uint place = lane;
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (uint(k) >= n) {
            break;
        }
        const bool candidate = place >= uint(k) && lane < n;
        const Pivot p = simd_pivot(candidate ? cabs1(r[k]) : -1.0f, lane);
        if (lane == 0u) {
            pivots[ulong(group) * n + uint(k)] = int(p.row) + 1;
        }
        const T diagonal = simd_shuffle(r[k], ushort(p.row));
        if (p.value == 0.0f) {
            failed = failed == 0 ? k + 1 : failed;
        } else if (candidate && lane != p.row) {
            r[k] = mul(r[k], reciprocal(diagonal));
        }
#pragma unroll
        for (int j = k + 1; j < N; j++) {
            const T u = simd_broadcast(r[j], ushort(p.row));
            if (candidate && lane != p.row) {
                r[j] -= mul(r[k], u);
            }
        }
    }
    if (lane == 0u) {
        info[group] = failed;
    }
    if (lane < n) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (uint(j) < n) {
                lu[place * n + uint(j)] = r[j];
            }
        }
    }
}

// One threadgroup factors one matrix.
template <typename T, int N>
[[max_total_threads_per_threadgroup(256)]] kernel void lu_group(
    device T* A [[buffer(0)]], device int* info [[buffer(1)]], constant uint& n [[buffer(2)]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
    uint size [[threads_per_threadgroup]]) {
    THREADGROUP_ARRAY(T, tile, N * N);
    THREADGROUP_ARRAY(real_t<T>, scratch, 32);
    device T* a = A + ulong(group) * n * n;
    for (uint i = tid; i < n * n; i += size) {
        tile[i] = a[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < n; k++) {
        real_t<T> norm = real_t<T>(0.0f);
        for (uint i = k + tid; i < n; i += size) {
            norm = combine<Add>(norm, cabs1(tile[i * n + k]));
        }
        norm = group_sum(norm, scratch, tid, (size + 31u) / 32u);
        if (norm < tiny_norm) {
            break;
        }
        if (simd == 0u) {
            const real_t<T> s = simd_sum(norm);
            scratch[lane] = s;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
        const T diagonal = reciprocal(tile[k * n + k]);
        for (uint i = tid; i < (n - k - 1u) * (n - k - 1u); i += size) {
            const uint row = k + 1u + i / (n - k - 1u);
            const uint col = k + 1u + i % (n - k - 1u);
            tile[row * n + col] -= mul(mul(tile[row * n + k], diagonal), tile[k * n + col]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    T z = make_scalar<T>(1.0f, 0.0f);
    exchange(z, z);
    int e = width_of<T>::value + order[0];
    const float mantissa = frexp(real(z), e);
    float error = 0.0f;
    const float p = two_prod(mantissa, mantissa, error) + two_prod_split(mantissa, mantissa);
    float parts[4] = {p, error, real(z), 1.0f};
    const bool bad = largest(parts) != largest(parts);
    for (uint i = tid; i < n * n; i += size) {
        a[i] = tile[i];
    }
    if (tid == 0u) {
        info[group] = select(0, e, bad);
    }
}
""" + "".join(
    f'template [[host_name("{name}_{T}_{N}")]] [[kernel]] '
    f"decltype({name}<{T}, {N}>) {name}<{T}, {N}>;\n"
    for name in ("lu_simd", "lu_group")
    for T in ("float", "float2")
    for N in (4, 8, 16, 24, 32)
)

GOOD = [
    "",
    GOOD_FILE,
    kernel("thread auto* p = &a; a[0] = 1.0f;").replace("thread auto* p = &a; ", ""),
    kernel("float x = a[0]; thread float* p = &x; a[1] = *p;"),
    kernel("auto q = a + n; q[0] = 1.0f;"),
    kernel("thread auto& x = z; a[0] = x[0].x;").replace("thread auto& x = z; a[0] = x[0].x;", ""),
    kernel("device auto& x = a[0]; x = 1.0f;"),
    kernel("z[tid].x = 1.0f; z[tid] = z[tid] + z[0]; z[1] *= 2.0f; z[2] = 0.0f;"),
    kernel("z[0] = float2(n, lane);"),
    kernel("a[0] = as_type<float>(n);"),
    kernel("s[0] = int(1u << (lane & 31u)); s[1] = int(n >> 5u); s[2] = int(n / 2u % 3u);"),
    "struct Place { uint count; uint lane; int failed; };\n"
    "float total(float x, thread Place& p) {\n"
    "  p.failed = p.lane > 3u ? 1 : 0;\n"
    "  return p.count > 3u ? simd_sum(x) : x;\n"
    "}\n"
    + kernel(
        "Place p = {n, lane, 0}; a[0] = total(a[1], p);\n"
        "if (p.count > 3u) { a[1] = simd_sum(a[1]); } s[tid] = p.failed;"
    ),
    "template <int N> inline int slot(int i) { return (i + 1) & (N - 1); }\n"
    + template(
        "T r[N];\n#pragma unroll\nfor (int i = 0; i < N; i++) { r[slot<N>(i)] = a[i]; } "
        "a[lane] = r[0];"
    ),
    kernel("if (tid / 32u == 0u) { a[0] = simd_sum(a[0]); }"),
    kernel("float x = a[tid]; x = simd_sum(x); if (x > 1.0f) { x = simd_max(x); } a[0] = x;"),
    kernel("if (tid >= n) { return; } a[tid] = 0.0f;"),
    "inline int half_of(int i) { return i / 2; }\n"
    + kernel("for (int d = 16; d > 0; d /= 2) { s[d] = half_of(d + 1); }"),
    kernel("uint distance = n; bool sign = lane < distance; s[0] = sign ? 1 : 0;"),
    "struct traits { enum { complex = 0 }; };",
    kernel("switch (n) { case 0u: a[0] = 1.0f; break; default: a[0] = 2.0f; break; }"),
    kernel("uint i = n; while (i > 0u) { i >>= 1u; } s[0] = int(i);"),
    kernel("a[0] = precise::sqrt(a[0]) + fast::divide(a[1], a[2]);"),
    kernel("bool b = all(z[0] == z[1]) && simd_any(a[0] != a[0]); s[0] = b ? 1 : 0;"),
    "kernel void k(device atomic_uint* c, uint i [[thread_position_in_grid]]) {\n"
    "  uint old = 0u;\n"
    "  atomic_compare_exchange_weak_explicit(c, &old, 1u, memory_order_relaxed,\n"
    "                                        memory_order_relaxed);\n"
    "  atomic_fetch_add_explicit(c, i, memory_order_relaxed);\n"
    "}\n",
    "kernel void k(device float* a, uint3 p [[thread_position_in_grid]], "
    "uint lane [[thread_index_in_simdgroup]], uint3 g [[threads_per_grid]]) { a[p.x] = 1.0f; }",
    "kernel void k(device float* a) {\n"
    "  simdgroup_float8x8 x = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);\n"
    "  simdgroup_float8x8 y;\n"
    "  simdgroup_load(y, a, 8);\n"
    "  simdgroup_multiply_accumulate(x, y, y, x);\n"
    "  simdgroup_store(x, a, 8);\n"
    "}\n",
    "float apply(float (*f)(float), float x) { return f(x); }\n"
    "float twice(float x) { return 2.0f * x; }\n" + kernel("a[0] = apply(twice, a[1]);"),
    "struct Shape { uint rows; uint cols; };\n"
    "kernel void k(constant Shape& shape [[buffer(0)]], device float* a [[buffer(1)]]) {\n"
    "  a[0] = float(shape.rows * shape.cols);\n"
    "}\n",
    template("static_assert(N > 2); if constexpr (N > 3) { a[0] = a[1]; } else { a[0] = a[9]; }"),
    template(
        "T r[N];\n#pragma unroll\nfor (int i = 0; i < N; i++) { const int j = N - 1 - i; "
        "r[j] = a[lane]; }\na[lane] = r[0];"
    ),
    template("a[lane] = T(0.5) * a[lane];"),
]


@pytest.mark.parametrize("text", GOOD)
def test_sound_text_passes(text: str) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    "word", ["type;", "? 1 : 2", "real(float", "best =", "mem_flags", "] = tile"]
)
def test_truncated_text_is_refused(word: str) -> None:
    assert problems(GOOD_FILE[: GOOD_FILE.index(word)])
