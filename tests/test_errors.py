"""Bad input: torch's own error class and words, and nothing written to out=."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mpslinalg as LA

Call = tuple[str, tuple[Any, ...], dict[str, Any]]

OUTPUTS = {
    "lu_factor": 2,
    "lu_factor_ex": 3,
    "lu": 3,
    "lu_unpack": 3,
    "lu_solve": 1,
    "solve": 1,
    "solve_ex": 2,
    "ldl_factor": 2,
    "ldl_factor_ex": 3,
    "ldl_solve": 1,
    "inv": 1,
    "inv_ex": 2,
    "det": 1,
    "slogdet": 2,
    "solve_triangular": 1,
    "cholesky": 1,
    "cholesky_ex": 2,
    "cholesky_solve": 1,
    "cholesky_inverse": 1,
    "qr": 2,
    "eig": 2,
    "eigvals": 1,
    "eigh": 2,
    "eigvalsh": 1,
    "geqrf": 2,
    "householder_product": 1,
    "ormqr": 1,
    "svd": 3,
    "svdvals": 1,
    "pinv": 1,
    "matrix_rank": 1,
    "matrix_norm": 1,
    "cond": 1,
}
CHOLESKY = ("cholesky", "cholesky_ex", "cholesky_inverse")
EIG = ("eig", "eigvals", "eigh", "eigvalsh")
SQUARE = ("inv", "inv_ex", "det", "slogdet", "ldl_factor", "ldl_factor_ex", *CHOLESKY, *EIG)
BUILT_ON_SVD = ("pinv", "matrix_rank", "cond")
ONE_MATRIX = (
    *("lu_factor", "lu_factor_ex", "lu", "qr", "geqrf", "svd", "svdvals", *BUILT_ON_SVD),
    *SQUARE,
)
SYSTEM = ("solve", "solve_ex")


def torch_function(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(torch.linalg, name, None) or getattr(torch, name)
    return function


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def pivots(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int32)


def singular(*batch: int, n: int = 3, at: int = 1) -> Tensor:
    """Identities; the matrix number `at` and those after it are singular in their last row."""
    A = torch.eye(n).repeat(*batch, 1, 1)
    A.view(-1, n, n)[at:, -1] = 0
    return A


def bad_calls() -> list[Call]:
    calls: list[Call] = []
    half, bfloat16, integer, boolean = torch.half, torch.bfloat16, torch.int64, torch.bool
    for name in ONE_MATRIX:
        calls += [(name, (A,), {}) for A in (ones(), ones(3), [1.0], None)]
        calls += [(name, (ones(3, 3, dtype=d),), {}) for d in (half, bfloat16, integer, boolean)]
    for name in SQUARE:
        calls += [(name, (ones(2, 3),), {}), (name, (ones(4, 3, 2),), {})]
    for A, tau in [
        (ones(3), ones(3)),
        (ones(3, 4), ones(3)),
        (ones(4, 3), ones(4)),
        (ones(4, 3), ones()),
        (ones(2, 4, 3), ones(3)),
        (ones(2, 4, 3), ones(3, 3)),
        (ones(4, 3), ones(3, dtype=torch.float64)),
        (ones(4, 3, dtype=half), ones(3, dtype=half)),
        (ones(4, 3, dtype=integer), ones(3, dtype=integer)),
        (ones(4, 3), [1.0, 1.0, 1.0]),
        (None, ones(3)),
    ]:
        calls.append(("householder_product", (A, tau), {}))
    for A, tau, C in [
        (ones(4), ones(3), ones(3, 2)),
        (ones(4, 3), ones(3), ones(3)),
        (ones(4, 3), ones(2), ones(4, 2)),
        (ones(4, 3), ones(4), ones(4, 2)),
        (ones(4, 3), ones(3), ones(3, 2)),
        (ones(2, 4, 3), ones(2, 3), ones(4, 2)),
        (ones(2, 4, 3), ones(2, 3), ones(3, 4, 2)),
        (ones(2, 4, 3), ones(3, 3), ones(2, 4, 2)),
        (ones(4, 3), ones(3), ones(4, 2, dtype=torch.float64)),
        (ones(4, 3), ones(3, dtype=torch.float64), ones(4, 2)),
        (ones(4, 3, dtype=half), ones(3, dtype=half), ones(4, 2, dtype=half)),
        (ones(4, 3), ones(3), [1.0]),
    ]:
        calls.append(("ormqr", (A, tau, C), {}))
    calls.append(("ormqr", (ones(4, 3), ones(3), ones(4, 2)), {"left": False}))
    calls += [("qr", (ones(3, 3), mode), {}) for mode in ("R", "full", None, 1)]
    calls += [("svd", (ones(3, 3), full), {}) for full in (None, 1)]
    calls += [(n, (ones(3, 3),), {"driver": d}) for n in ("svd", "svdvals") for d in ("gesdd", 1)]
    for name in SYSTEM:
        for A, B in [
            (ones(3), ones(3)),
            (ones(2, 3), ones(2)),
            (ones(3, 3), ones()),
            (ones(3, 3), ones(4)),
            (ones(3, 3), ones(4, 2)),
            (ones(2, 3, 3), ones(4, 3, 2)),
            (ones(1, 3, 3), ones(2, 3)),
            (ones(3, 3), ones(3, dtype=torch.float64)),
            (ones(3, 3), ones(3, dtype=half)),
            (ones(3, 3, dtype=torch.complex64), ones(3)),
            (ones(3, 3, dtype=half), ones(3, dtype=half)),
            (ones(3, 3, dtype=integer), ones(3, dtype=integer)),
            (ones(3, 3), [1.0, 2.0, 3.0]),
        ]:
            calls.append((name, (A, B), {}))
        for A, B in [(ones(3, 3), ones(3)), (ones(3, 3), ones(3, 2)), (ones(2, 3, 3), ones(2, 3))]:
            calls.append((name, (A, B), {"left": False}))
    for LU, P, B in [
        (ones(4), pivots(4), ones(4, 2)),
        (ones(3, 4), pivots(3), ones(3, 2)),
        (ones(4, 4), pivots(4), ones(4)),
        (ones(4, 4), pivots(4), ones(3, 2)),
        (ones(4, 4), pivots(4).long(), ones(4, 2)),
        (ones(4, 4), pivots(4).float(), ones(4, 2)),
        (ones(4, 4), pivots(3), ones(4, 2)),
        (ones(2, 4, 4), pivots(4), ones(4, 2)),
        (ones(4, 4), pivots(2, 4), ones(4, 2)),
        (ones(2, 4, 4), pivots(2, 4), ones(3, 4, 2)),
        (ones(4, 4), pivots(4), ones(4, 2, dtype=torch.float64)),
        (ones(4, 4, dtype=half), pivots(4), ones(4, 2, dtype=half)),
        (ones(4, 4, dtype=integer), pivots(4), ones(4, 2, dtype=integer)),
        (ones(4, 4), [1, 2, 3, 4], ones(4, 2)),
        (ones(4, 4), pivots(4), None),
    ]:
        calls.append(("lu_solve", (LU, P, B), {}))
        # There torch takes integers of any width.
        if not (isinstance(P, Tensor) and P.dtype == torch.int64):
            calls.append(("ldl_solve", (LU, P, B), {}))
    calls.append(("lu_solve", (ones(4, 4), pivots(4), ones(4, 2)), {"left": False}))
    for matrix, right, left in [
        (ones(3), ones(3, 1), True),
        (ones(2, 3), ones(2, 1), True),
        (ones(3, 3), ones(3), True),
        (ones(3, 3), ones(4, 2), True),
        (ones(3, 3), ones(3, 2), False),
        (ones(2, 3, 3), ones(4, 3, 2), True),
        (ones(3, 3, dtype=half), ones(3, 1, dtype=half), True),
        (ones(3, 3, dtype=integer), ones(3, 1, dtype=integer), True),
        (ones(3, 3), [[1.0], [2.0], [3.0]], True),
        (None, ones(3, 1), True),
    ]:
        calls.append(("solve_triangular", (matrix, right), {"upper": True, "left": left}))
    for B, L in [
        (ones(3), ones(3, 3)),
        (ones(3, 2), ones(3)),
        (ones(4, 2), ones(3, 3)),
        (ones(3, 2), ones(2, 3)),
        (ones(2, 3, 2), ones(4, 3, 3)),
        (ones(3, 2, dtype=torch.float64), ones(3, 3)),
        (ones(3, 2, dtype=torch.complex64), ones(3, 3)),
        (ones(3, 2, dtype=half), ones(3, 3, dtype=half)),
        (ones(3, 2, dtype=integer), ones(3, 3, dtype=integer)),
        ([1.0], ones(3, 3)),
        (ones(3, 2), None),
    ]:
        calls.append(("cholesky_solve", (B, L), {}))
    for LU, P in [
        (ones(4), pivots(4)),
        (ones(4, 4), pivots(4).long()),
        (ones(4, 4), None),
    ]:
        calls.append(("lu_unpack", (LU, P), {}))
    return calls


def raised(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[type, str]:
    with pytest.raises(Exception) as error:  # noqa: PT011
        function(*args, **kwargs)
    return error.type, str(error.value)


def on(device: str, value: Any) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def describe(value: Any) -> str:
    if isinstance(value, tuple):
        name, args, kwargs = value
        shown = [
            f"{str(a.dtype)[6:]}{list(a.shape)}" if isinstance(a, Tensor) else str(a) for a in args
        ]
        return f"{name}({', '.join([*shown, *map(str, kwargs.values())])})".replace(" ", "")
    return str(value)


@pytest.mark.parametrize("call", bad_calls(), ids=describe)
def test_bad_input_raises_torchs_error(call: Call, device: str) -> None:
    name, args, kwargs = call
    if device == "mps" and any(isinstance(a, Tensor) and a.dtype == torch.float64 for a in args):
        pytest.skip("mps has no float64")
    expected = raised(torch_function(name), args, kwargs)
    outs = [torch.full((2,), 7.0, device=device) for _ in range(OUTPUTS[name])]
    with LA.use("kernels"):
        args = tuple(on(device, a) for a in args)
        assert raised(getattr(LA, name), args, kwargs) == expected
        out = outs[0] if len(outs) == 1 else tuple(outs)
        raised(getattr(LA, name), args, {**kwargs, "out": out})
    assert all(o.tolist() == [7.0, 7.0] for o in outs)


@pytest.mark.parametrize("name", ONE_MATRIX + SYSTEM)
@pytest.mark.parametrize("wrong", [torch.float64, torch.int32, torch.complex64])
def test_out_of_another_dtype(name: str, wrong: torch.dtype) -> None:
    cast = name in ("cholesky_inverse", "geqrf", *BUILT_ON_SVD)
    if cast and (wrong != torch.int32 or name == "matrix_rank"):
        pytest.skip("torch casts the result to what loses nothing")
    A = 2 * torch.eye(3)
    args = (A, A) if name in SYSTEM else (A,)
    for position in range(OUTPUTS[name]):
        result = torch_function(name)(*args)
        results = list(result) if isinstance(result, tuple) else [result]
        if results[position].dtype == wrong:
            continue
        outs = [torch.full((2,), 7, dtype=r.dtype) for r in results]
        outs[position] = torch.full((2,), 7, dtype=wrong)
        before = [o.clone() for o in outs]
        out = outs[0] if len(outs) == 1 else tuple(outs)
        with LA.use("kernels"):
            ours = raised(getattr(LA, name), args, {"out": out})
        assert all(torch.equal(o, b) for o, b in zip(outs, before, strict=True))
        assert ours == raised(torch_function(name), args, {"out": out})


@pytest.mark.parametrize("name", ["inv", "det", "solve", "lu_factor"])
@pytest.mark.parametrize("of_out", [False, True])
def test_out_with_a_gradient(name: str, of_out: bool) -> None:
    A = torch.eye(3).requires_grad_(not of_out)
    args = (A, A) if name == "solve" else (A,)
    outs = [torch.zeros(2).requires_grad_(of_out), torch.zeros(2, dtype=torch.int32)]
    out = tuple(outs) if name == "lu_factor" else outs[0]
    with LA.use("kernels"):
        ours = raised(getattr(LA, name), args, {"out": out})
    assert ours == raised(torch_function(name), args, {"out": out})
    assert ours[0] is RuntimeError


def test_wrong_number_of_outputs() -> None:
    A, out = torch.eye(3), (torch.zeros(2), torch.zeros(2))
    with LA.use("kernels"):
        ours = raised(LA.lu, (A,), {"out": out})
    assert ours == raised(torch.linalg.lu, (A,), {"out": out})


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cholesky", {}),
        ("cholesky_ex", {"check_errors": True}),
        ("cholesky_inverse", {}),
        ("lu_factor", {}),
        ("lu_factor_ex", {"check_errors": True}),
        ("inv", {}),
        ("inv_ex", {"check_errors": True}),
        ("solve", {}),
        ("solve_ex", {"check_errors": True}),
    ],
)
def test_singular(name: str, options: dict[str, Any], batch: tuple[int, ...], device: str) -> None:
    A = singular(*batch, at=2 if batch else 0)
    args = (A, torch.ones(3, 1)) if name in SYSTEM else (A,)
    expected = raised(torch_function(name), args, options)
    assert re.search(r"singular|U\[3,3\] is zero|minor of order 3", expected[1])
    assert ("(Batch element 2)" in expected[1]) == bool(batch)
    outs = [torch.full((2,), 7.0, device=device) for _ in range(OUTPUTS[name])]
    for o in outs[1:]:
        o.data = o.to(torch.int32)
    out = outs[0] if len(outs) == 1 else tuple(outs)
    with LA.use("kernels"):
        args = tuple(on(device, a) for a in args)
        assert raised(getattr(LA, name), args, options) == expected
        assert raised(getattr(LA, name), args, {**options, "out": out}) == expected
    assert all(o.tolist() == [7, 7] for o in outs)


@pytest.mark.parametrize(
    "name", ["lu_factor_ex", "inv_ex", "solve_ex", "det", "slogdet", "lu", "cholesky_ex"]
)
def test_singular_without_an_error(name: str, device: str) -> None:
    A = singular(4, at=2)
    args = (A, torch.ones(3, 1)) if name in SYSTEM else (A,)
    expected = torch_function(name)(*args)
    with LA.use("kernels"):
        got = getattr(LA, name)(*(on(device, a) for a in args))
    for ours, theirs in zip(
        *((r if isinstance(r, tuple) else (r,)) for r in (got, expected)), strict=True
    ):
        unfinished = name in ("inv_ex", "solve_ex", "cholesky_ex")
        good = slice(0, 2) if unfinished and ours.dim() > 1 else slice(None)
        torch.testing.assert_close(ours[good].cpu(), theirs[good])


MIXED: list[Call] = [
    ("solve", (ones(3, 3), ones(3).to("meta")), {}),
    ("solve_ex", (ones(3, 3).to("meta"), ones(3)), {}),
    ("lu_solve", (ones(3, 3), pivots(3).to("meta"), ones(3, 1)), {}),
    ("lu_solve", (ones(3, 3), pivots(3), ones(3, 1).to("meta")), {}),
    ("lu_unpack", (ones(3, 3), pivots(3).to("meta")), {}),
    ("solve_triangular", (ones(3, 3), ones(3, 1).to("meta")), {"upper": True}),
    ("cholesky", (ones(3, 3),), {"out": ones(3, 3).to("meta")}),
    ("ldl_solve", (ones(3, 3), pivots(3), ones(3, 1).to("meta")), {}),
    ("inv", (ones(3, 3),), {"out": ones(3, 3).to("meta")}),
    ("slogdet", (ones(3, 3),), {"out": (ones(2), ones(2).to("meta"))}),
]


@pytest.mark.parametrize("call", MIXED, ids=lambda c: c[0])
def test_mixed_devices(call: Call) -> None:
    name, args, kwargs = call
    with LA.use("kernels"):
        kind, words = raised(getattr(LA, name), args, kwargs)
    assert kind is RuntimeError
    # On a CPU torch computes garbage here; these are its words on a GPU.
    assert words.startswith("Expected all tensors to be on the same device, but got ")
    assert ", different from other tensors on " in words


def test_mixed_devices_on_a_gpu(device: str) -> None:
    if device != "cuda":
        pytest.skip("torch checks devices on CUDA only")
    A, B = torch.eye(3), torch.eye(3)
    LU, P = torch.linalg.lu_factor(A)
    for name, args in [
        ("solve", (A.cuda(), B)),
        ("solve", (A, B.cuda())),
        ("lu_solve", (LU.cuda(), P, B.cuda())),
        ("lu_solve", (LU.cuda(), P.cuda(), B)),
    ]:
        with LA.use("kernels"):
            ours = raised(getattr(LA, name), args, {})
        assert ours == raised(torch_function(name), args, {})


@pytest.mark.parametrize("shape", [(2,), (1, 4), (5,)])
def test_lu_unpack_refuses_pivots_of_another_shape(shape: tuple[int, ...], device: str) -> None:
    # torch reads past the end of such pivots.
    with LA.use("kernels"), pytest.raises(RuntimeError, match=r"\[4\], but got "):
        LA.lu_unpack(ones(4, 4).to(device), pivots(*shape).to(device))


@pytest.mark.parametrize("dtype", [torch.half, torch.int32])
def test_lu_unpack_refuses_what_has_no_kernel(dtype: torch.dtype, device: str) -> None:
    with LA.use("kernels"), pytest.raises(RuntimeError, match=r"lu_unpack: .*float32.* but got"):
        LA.lu_unpack(ones(4, 4, dtype=dtype).to(device), pivots(4).to(device))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_half_precision(dtype: torch.dtype) -> None:
    A = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)) + 4 * torch.eye(4)
    with torch.autocast("cpu", torch.bfloat16), LA.use("kernels"):
        X = LA.inv(A.to(dtype))
        Y = LA.solve(A.to(dtype), A)
    assert X.dtype == Y.dtype == torch.float32
    torch.testing.assert_close(X, torch.linalg.inv(A.to(dtype).float()))
    torch.testing.assert_close(Y, torch.linalg.solve(A.to(dtype).float(), A))


@pytest.mark.parametrize("pivots", [[9, 9, 9], [0, 1, 1], [1, -5, 3]])
def test_pivots_out_of_range(pivots: list[int]) -> None:
    args = (torch.eye(3), torch.tensor(pivots, dtype=torch.int32))
    with LA.use("kernels"):
        ours = raised(LA.lu_unpack, args, {})
    assert ours == raised(torch.lu_unpack, args, {})


EYE, ONES = torch.eye(2), torch.ones(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("name", "args", "flag"),
    [
        ("lu_factor", (EYE,), "pivot"),
        ("lu_factor_ex", (EYE,), "check_errors"),
        ("lu", (EYE,), "pivot"),
        ("lu_unpack", (EYE, ONES), "unpack_data"),
        ("lu_solve", (EYE, ONES, EYE), "left"),
        ("lu_solve", (EYE, ONES, EYE), "adjoint"),
        ("solve", (EYE, EYE), "left"),
        ("solve_ex", (EYE, EYE), "check_errors"),
        ("inv_ex", (EYE,), "check_errors"),
        ("cholesky", (EYE,), "upper"),
        ("cholesky_ex", (EYE,), "upper"),
        ("cholesky_ex", (EYE,), "check_errors"),
        ("cholesky_inverse", (EYE,), "upper"),
        ("cholesky_solve", (EYE, EYE), "upper"),
        ("ldl_factor", (EYE,), "hermitian"),
        ("ldl_factor_ex", (EYE,), "check_errors"),
        ("ldl_solve", (EYE, ONES, EYE), "hermitian"),
    ],
)
@pytest.mark.parametrize("value", [1, None, "no"])
def test_flags_are_bool(name: str, args: tuple[Tensor, ...], flag: str, value: Any) -> None:
    with LA.use("kernels"):
        ours = raised(getattr(LA, name), args, {flag: value})
    assert ours[0] is TypeError
    assert ours == raised(torch_function(name), args, {flag: value})


def test_a_vector_on_the_right_has_no_left() -> None:
    args, kwargs = (torch.tensor([[2.0]]), torch.tensor([1.0])), {"left": False}
    with LA.use("kernels"):
        ours = raised(LA.solve, args, kwargs)
    assert ours == raised(torch.linalg.solve, args, kwargs)
