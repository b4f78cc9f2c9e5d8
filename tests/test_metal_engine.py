"""Every launch of the LU family through the Metal engine, on a stand-in for the real call."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _engines
from mpslinalg._engines import ShaderError, cpu, metal, source
from tests import metal_stand_in
from tests.metal_stand_in import PROLOGUE, Misbound, compile_shader, host

SHADER = """template <typename T>
[[max_total_threads_per_threadgroup(64)]] kernel void work(
    device T* A [[buffer(0)]],
    device const T* B [[buffer(1)]],
    constant uint& n [[buffer(2)]],
    constant long& stride [[buffer(3)]],
    constant float& scale [[buffer(4)]],
    uint id [[thread_position_in_grid]]) {
  A[id] = B[long(id) * stride] + T(scale) + T(n);
}
template <typename T>
kernel void fill(device T* A [[buffer(0)]], uint3 id [[thread_position_in_grid]]) {
  A[id.x] = T(1);
}
template <typename T>
kernel void swapped(
    device T* A [[buffer(2)]], device const T* B [[buffer(0)]], constant uint& n [[buffer(1)]],
    uint id [[thread_position_in_grid]]) {
  A[id] = B[id] + T(n);
}
"""
HOST_NAME = '[[host_name("{}")]] [[kernel]]'


def instance(name: str, kernel: str) -> str:
    return f"template {HOST_NAME.format(name)} decltype({kernel}) {kernel};\n"


INSTANCES = instance("work", "work<float>") + instance("fill", "fill<float>")
TEXT = f"{PROLOGUE}{SHADER}{INSTANCES}"
CASTS = {2: "int32"}


@pytest.fixture
def work() -> Any:
    return compile_shader(TEXT).work


def call(kernel: Any, *, at: int = -1, argument: Any = None, **options: Any) -> list[float]:
    """A right call of `work`, but for the argument at one place and the options."""
    A = torch.zeros(4)
    arguments: list[Any] = [A, torch.arange(8.0), 10, 2, 0.5]
    if at >= 0:
        arguments[at] = argument
    kernel(*arguments, **{"arg_casts": CASTS} | options)
    return A.tolist()


# The stand-in's rules


def test_a_right_call(work: Any) -> None:
    expected = [10.5, 12.5, 14.5, 16.5]
    assert call(work) == expected
    assert call(work, threads=4, group_size=2) == expected
    assert call(work, threads=(4,), group_size=(64,)) == expected
    assert call(work, threads=[2]) == [*expected[:2], 0, 0]


def test_a_library(work: Any) -> None:
    library = compile_shader(TEXT)
    assert dir(library) == ["fill", "work"]
    assert work.max_threads_per_threadgroup == 64
    assert library.fill.max_threads_per_threadgroup == 1024
    assert work.thread_execution_width == 32
    # What was not instantiated does not exist.
    with pytest.raises(RuntimeError, match="function state object for: swapped"):
        _ = library.swapped


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT + "// \N{GREEK SMALL LETTER PI}\n", "ASCII"),
        (TEXT.removeprefix("#include <metal_stdlib>\n"), "not declared"),
        (TEXT.replace("#define THREADGROUP_ARRAY", "#define OTHER"), "not declared"),
        (TEXT.replace("T(scale)", "T(size)"), "size"),
        (TEXT + instance("none", "none<float>"), "none"),
        (TEXT + instance("work", "work<float2>"), "before"),
        (TEXT.replace("decltype(work<float>)", "decltype(work<int>)"), "otherwise"),
        (TEXT.replace("[[buffer(1)]]", "[[buffer(0)]]"), "repeat"),
        (TEXT.replace("[[buffer(1)]]", "[[buffer(31)]]"), "exceed 30"),
        (
            TEXT.replace("uint id [[", "threadgroup T* s [[threadgroup(0)]], uint id [["),
            "threadgroup",
        ),
    ],
)
def test_bad_texts(text: str, words: str) -> None:
    assert text != TEXT
    with pytest.raises(SyntaxError, match=words):
        compile_shader(text)


@pytest.mark.parametrize(
    ("at", "argument", "error", "words"),
    [
        (1, host(torch.ones(8)), RuntimeError, "Passed CPU tensor to MPS op"),
        (1, torch.ones(8).double(), TypeError, "MPS has no float64"),
        (2, None, RuntimeError, "Unsupported argument type"),
        (2, 1j, RuntimeError, "Unsupported argument type"),
        (2, "10", RuntimeError, "Unsupported argument type"),
        (2, np.int64(10), RuntimeError, "Unsupported argument type"),
        (2, [], RuntimeError, "Empty list/tuple"),
        (2, ["10"], RuntimeError, "Unexpected argument types"),
        # The real call takes what follows, and the kernel reads something else.
        (0, 3, Misbound, "A is read as T, bound as long"),
        (1, [torch.ones(8)], Misbound, "B is read as T, bound as addresses"),
        (2, 10.0, Misbound, "n is read as uint, bound as float"),
        (2, torch.tensor(10), Misbound, "n is read as uint, bound as tensor"),
        (2, [10, 11], Misbound, "n is read as uint, bound as int array"),
        (2, -1, Misbound, "n: uint cannot hold -1"),
        (2, 2**32, Misbound, "n: uint cannot hold 4294967296"),
        (3, 2.0, Misbound, "stride is read as long, bound as float"),
        (4, 1, Misbound, "scale is read as float, bound as long"),
        (4, True, Misbound, "scale is read as float, bound as long"),
        (4, [1.0, 2.0], Misbound, "scale is read as float, bound as float array"),
    ],
)
def test_bad_arguments(
    work: Any, at: int, argument: Any, error: type[Exception], words: str
) -> None:
    casts = {} if at == 2 and isinstance(argument, float) else CASTS
    with pytest.raises(error, match=words):
        call(work, at=at, argument=argument, arg_casts=casts)


@pytest.mark.parametrize(
    ("casts", "error", "words"),
    [
        (None, Misbound, "n is read as uint, bound as long"),
        ({}, Misbound, "n is read as uint, bound as long"),
        ("int32", Misbound, "stride is read as long, bound as int"),
        ({2: "int16"}, Misbound, "n is read as uint, bound as short"),
        ({2: "int32", 4: "fp16"}, Misbound, "scale is read as float, bound as half"),
        ({2: "uint32"}, RuntimeError, "Unsupported cast instruction uint32"),
        ({2: "int64"}, RuntimeError, "Unsupported cast instruction int64"),
        (["int32"], RuntimeError, "Unexpected caster arg type list"),
    ],
)
def test_casts(work: Any, casts: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(work, arg_casts=casts)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"group_size": 65}, ValueError, "Threadgroup size exceeds 64 limit"),
        ({"threads": (4, 1), "group_size": (9, 9)}, ValueError, "exceeds 64 limit"),
        ({"threads": (4, 1), "group_size": (4,)}, RuntimeError, "same number of dimensions"),
        ({"threads": (4, 1, 1, 1)}, RuntimeError, "vec.size"),
        ({"threads": ()}, RuntimeError, "vec.size"),
        ({"threads": (-4,)}, RuntimeError, "Unable to cast threads"),
        ({"threads": (4.0,)}, RuntimeError, "Unable to cast threads"),
        ({"threads": (0,)}, Misbound, "a grid of"),
        ({"threads": (2**32,)}, Misbound, "a grid of"),
        ({"group_size": (0,)}, Misbound, "a grid of"),
    ],
)
def test_grids(work: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(work, **options)


def test_default_grids() -> None:
    fill = compile_shader(TEXT).fill
    A = torch.zeros(2, 3)
    fill(A)
    assert (A == 1).all()
    with pytest.raises(RuntimeError, match="Number of threads is undefined"):
        fill(3)


@pytest.mark.parametrize("count", [0, 2])
def test_number_of_arguments(count: int) -> None:
    with pytest.raises(Misbound, match="fill: "):
        compile_shader(TEXT).fill(*[torch.zeros(4)] * count, threads=4)
    with pytest.raises(RuntimeError, match="32 arguments, and Metal has 31 buffers"):
        compile_shader(TEXT).fill(*[torch.zeros(4)] * 32, threads=4)


def test_arguments_go_by_their_index() -> None:
    library = compile_shader(TEXT + instance("swapped", "swapped<float>"))
    A = torch.zeros(4)
    library.swapped(torch.arange(4.0), 10, A, arg_casts={1: "int32"})
    assert A.tolist() == [10, 11, 12, 13]


def test_memory_is_read_as_it_is(work: Any) -> None:
    """From the storage offset, without strides, without the conj and neg bits."""
    B = torch.arange(1.0, 12)
    assert call(work, at=1, argument=B[3:]) == [14.5, 16.5, 18.5, 20.5]
    assert call(work, at=1, argument=B[3:].view(2, 4).T) == [14.5, 16.5, 18.5, 20.5]
    assert call(work, at=1, argument=torch._neg_view(B[3:])) == [14.5, 16.5, 18.5, 20.5]
    text = TEXT.replace("T(scale) + T(n)", "T(0)") + instance("z", "work<float2>")
    z = torch.tensor([1 + 2j, 3 + 4j])
    out = torch.zeros_like(z)
    text = text.replace("T(0)", "T(scale, scale)").replace(INSTANCES, "")
    compile_shader(text).z(out, z.conj(), 0, 1, 0.0, arg_casts=CASTS)
    assert torch.equal(out, z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_host_tensor_without_dimensions(work: Any, dtype: torch.dtype) -> None:
    A = torch.zeros(1)
    work(A, host(torch.tensor(2, dtype=dtype)), 10, 1, 0.5, arg_casts=CASTS)
    assert A.item() == 12.5


# The engine


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts the stand-in beneath torch.mps.compile_shader; the texts that it is given."""
    given: list[str] = []

    def compiled(text: str) -> metal_stand_in.Library:
        given.append(text)
        return compile_shader(text)

    monkeypatch.setattr(torch._C, "_mps_compileShader", compiled, raising=False)
    return given


METAL = metal.MetalEngine()


@pytest.fixture
def on_metal(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Calls a function with the kernels on the Metal engine."""
    monkeypatch.setenv("MPSLINALG_CHECK", "1")
    # On the CPU engine the plans are to choose the same kernels.
    monkeypatch.setattr(cpu.ENGINE, "side_by_side", METAL.side_by_side, raising=False)

    def run(function: Callable[..., Any], *arguments: Tensor) -> Any:
        with monkeypatch.context() as engines, LA.use("kernels"):
            engines.setitem(_engines.ENGINES, "cpu", METAL)
            return function(*arguments)

    return run


def test_each_variant_is_a_library(texts: list[str]) -> None:
    METAL.compile("lu", "lu_tiny", ("float2", "3"))
    (text,) = texts
    assert text.rstrip().endswith(
        'template [[host_name("lu_tiny_float2_3")]] [[kernel]] '
        "decltype(lu_tiny<float2, 3>) lu_tiny<float2, 3>;"
    )
    assert metal_stand_in.shader_of(text) == source.text("lu")


def test_a_text_that_does_not_compile(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "text", lambda _: SHADER.replace("T(scale)", "T(size)"))
    with pytest.raises(
        ShaderError, match=r"k.metal: work<float> does not compile for Metal \(torch"
    ):
        METAL.compile("k", "work", ("float",))


def triangular(A: Tensor, B: Tensor) -> Tensor:
    X: Tensor = torch.ops.mpslinalg.solve_triangular(A, B, True, False, 2)
    return X


def factors(A: Tensor) -> tuple[Tensor, Tensor]:
    """Of torch's, at the strides that A has."""
    LU, pivots = torch.linalg.lu_factor(A)
    return torch.empty_like(A).copy_(LU) if A.is_contiguous() else LU, pivots


def definite(A: Tensor) -> Tensor:
    return A @ A.mH + torch.eye(A.shape[-1])


# Each takes A and B; of a matrix that is not square only the first ones.
RECTANGULAR: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "lu_factor": lambda A, B: LA.lu_factor(A),
    "lu_factor_no_pivot": lambda A, B: LA.lu_factor(A, pivot=False),
    "lu_factor_ex": lambda A, B: LA.lu_factor_ex(A),
    "lu": lambda A, B: LA.lu(A),
    "lu_unpack": lambda A, B: LA.lu_unpack(*factors(A)),
    "geqrf": lambda A, B: LA.geqrf(A),
    "qr": lambda A, B: LA.qr(A),
    "qr_complete": lambda A, B: LA.qr(A, mode="complete"),
    "qr_pivoted": lambda A, B: LA.qr_pivoted(A),
    "qr_r": lambda A, B: LA.qr(A, mode="r"),
}
SQUARE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "lu_solve": lambda A, B: LA.lu_solve(*factors(A), B),
    "lu_solve_adjoint": lambda A, B: LA.lu_solve(*factors(A), B, adjoint=True),
    "lu_solve_right": lambda A, B: LA.lu_solve(*factors(A), B.mT, left=False),
    "solve": lambda A, B: LA.solve(A, B),
    "solve_right": lambda A, B: LA.solve(A, B.mT, left=False),
    "solve_ex": lambda A, B: LA.solve_ex(A, B),
    "solve_vector": lambda A, B: LA.solve(A, B[..., 0].contiguous()),
    "solve_triangular": triangular,
    "inv": lambda A, B: LA.inv(A),
    "householder_product": lambda A, B: LA.householder_product(A, A[..., 0].contiguous()),
    "ormqr_right": lambda A, B: LA.ormqr(A, A[..., 0].contiguous(), B.mT, left=False),
    "lstsq_gelsy": lambda A, B: LA.lstsq(A, B, driver="gelsy"),
    "inv_ex": lambda A, B: LA.inv_ex(A),
    "cholesky": lambda A, B: LA.cholesky(definite(A)),
    "cholesky_ex_upper": lambda A, B: LA.cholesky_ex(definite(A), upper=True),
    "cholesky_solve": lambda A, B: LA.cholesky_solve(B, torch.linalg.cholesky(definite(A))),
    "cholesky_inverse": lambda A, B: LA.cholesky_inverse(torch.linalg.cholesky(definite(A))),
    "det": lambda A, B: LA.det(A),
    "slogdet": lambda A, B: LA.slogdet(A),
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])


def matrices(batch: tuple[int, ...], m: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * m + n)
    A = torch.randn(*batch, m, n, dtype=dtype, generator=generator)
    return A + 0.1 * torch.eye(m, n), torch.randn(*batch, m, 3, dtype=dtype, generator=generator)


def same_bits(got: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return len(got) == len(expected) and all(map(same_bits, got, expected))
    assert (got.dtype, got.shape, got.stride()) == (
        expected.dtype, expected.shape, expected.stride(),
    )  # fmt: skip
    ours, theirs = (x.resolve_conj().resolve_neg().numpy().tobytes() for x in (got, expected))
    return bool(ours == theirs)


def near(got: Any, expected: Any) -> bool:
    """Far nearer than what other entries or signs would give."""
    if isinstance(expected, tuple):
        return all(map(near, got, expected))
    return bool((got - expected).abs().sum() <= 1e-3 * expected.abs().sum())


def agrees(on_metal: Callable[..., Any], function: Callable[..., Any], *arguments: Tensor) -> bool:
    with LA.use("kernels"):
        expected = function(*arguments)
    return same_bits(on_metal(function, *arguments), expected)


# One size for each kernel: what is bound does not depend on the variant.
@DTYPES
@pytest.mark.parametrize("n", [4, 7, 40])
@pytest.mark.parametrize("name", [*RECTANGULAR, *SQUARE])
def test_every_function(
    name: str, n: int, dtype: torch.dtype, on_metal: Callable[..., Any]
) -> None:
    function = (RECTANGULAR | SQUARE)[name]
    assert agrees(on_metal, function, *matrices((3,), n, n, dtype))


@DTYPES
@pytest.mark.parametrize(("m", "n"), [(5, 3), (2, 7), (20, 40), (40, 20), (40, 260)])
@pytest.mark.parametrize("name", RECTANGULAR)
def test_rectangular(
    name: str, m: int, n: int, dtype: torch.dtype, on_metal: Callable[..., Any]
) -> None:
    assert agrees(on_metal, RECTANGULAR[name], *matrices((2,), m, n, dtype))


@DTYPES
@pytest.mark.parametrize("name", ["lu_solve", "lu_solve_adjoint", "solve_triangular", "cholesky"])
def test_beyond_one_threadgroup(
    name: str, dtype: torch.dtype, on_metal: Callable[..., Any]
) -> None:
    function = (RECTANGULAR | SQUARE)[name]
    assert agrees(on_metal, function, *matrices((1,), 257, 257, dtype))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "conj": lambda x: x.conj() if x.is_complex() else torch._neg_view(x),
    "adjoint": lambda x: x.mT.contiguous().mH,
    "offset": lambda x: torch.cat((x.flatten()[:5], x.flatten()))[5:].view(x.shape),
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand(3, -1, -1),
    "no batch": lambda x: x[0],
    "batch of batches": lambda x: torch.stack((x, x.flip(0)), 1),
    "empty batch": lambda x: x[:0],
}


VIEWED = (
    "lu_factor",
    "lu_unpack",
    "lu_solve",
    "lu_solve_right",
    "solve",
    "solve_triangular",
    "inv",
    "det",
)


# Each name with each view and size, and any two of them with either dtype.
@pytest.mark.parametrize(
    ("name", "view", "n", "dtype"),
    [
        pytest.param(name, view, n, dtype, id=f"{name}-{view}-{n}-{str(dtype)[6:]}")
        for (i, name), (j, view), (k, n) in product(
            enumerate(VIEWED), enumerate(VIEWS), enumerate((4, 7, 40))
        )
        for dtype in [(torch.float32, torch.complex64)[(i + j + k) % 2]]
    ],
)
def test_views(
    name: str, view: str, n: int, dtype: torch.dtype, on_metal: Callable[..., Any]
) -> None:
    function = (RECTANGULAR | SQUARE)[name]
    A, B = (VIEWS[view](x) for x in matrices((3,), n, n, dtype))
    assert agrees(on_metal, function, A, B)
    copies = (x.resolve_conj().resolve_neg().contiguous() for x in (A, B))
    assert near(on_metal(function, A, B), on_metal(function, *copies))


POINTS = torch.linspace(0.05, 0.95, 12).view(3, 4)
ELEMENTWISE: dict[str, Callable[[Tensor], Any]] = {
    "frexp": lambda x: tuple(LA.frexp(x)),
    "frexp of half": lambda x: tuple(LA.frexp(x.half())),
    "heaviside": lambda x: LA.heaviside(x.half(), x[0].half()),
    "lt": lambda x: LA.lt(x, 0.5),
    "ge": lambda x: LA.ge((10 * x).to(torch.uint16), (9 * x).to(torch.uint16).mT.mT),
    "logspace": lambda x: LA.logspace(-1, 1, 5),
    "integers": lambda x: LA.logspace(0, 2, 5, dtype=torch.uint8),
    "bool": lambda x: LA.logspace(-1, 2, 5, dtype=torch.bool),
    "airy_ai": LA.special.airy_ai,
    "log_ndtr": LA.special.log_ndtr,
    "ndtri": LA.special.ndtri,
    "chebyshev": lambda x: LA.special.shifted_chebyshev_polynomial_w(x, x[0]),
    "legendre": lambda x: LA.special.legendre_polynomial_p(x, 3),
    "laguerre": lambda x: LA.special.laguerre_polynomial_l(x.mT, 3),
    "hermite": lambda x: LA.special.hermite_polynomial_h(x, torch.arange(4)),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, on_metal: Callable[..., Any]) -> None:
    assert agrees(on_metal, ELEMENTWISE[name], POINTS)


@pytest.mark.parametrize("name", ["airy_ai", "log_ndtr", "legendre", "laguerre", "hermite"])
def test_derivatives_of_elementwise(name: str, on_metal: Callable[..., Any]) -> None:
    def derivatives(x: Tensor) -> tuple[Tensor, ...]:
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(ELEMENTWISE[name](x).sum(), x, create_graph=True)
        return first.detach(), *torch.autograd.grad(first.sum(), x)

    assert agrees(on_metal, derivatives, POINTS)


def test_kernels_are_launched_on_metal(
    on_metal: Callable[..., Any], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And on no other engine, once it stands in for the CPU's."""
    monkeypatch.setattr(source, "text", lambda _: SHADER)
    monkeypatch.setattr(_engines, "launched", set())
    fill = _engines.Kernel("k", "fill", ("float",))
    A = torch.zeros(3)
    on_metal(lambda: fill(A, threads=(3, 1, 1), group=(3, 1, 1)))
    assert len(texts) == 1
    assert list(fill._launchers) == [METAL]
    assert (A == 1).all()
