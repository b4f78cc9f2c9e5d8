"""Derivatives through torch.func and compilers, at singular matrices, against SciPy's.

test_conformance.py has those of every function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import mpslinalg as LA
from mpslinalg._triangular import solve_operator
from tests import surface
from tests.surface import Case

# torch's own forward mode and compiler do what they warn of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

Array = NDArray[Any]
DTYPES = [torch.float64, torch.complex128]


@pytest.fixture(autouse=True)
def _through_kernels(device: str) -> Any:
    if device == "mps":
        pytest.skip("mps has no float64")
    torch.manual_seed(0)
    with LA.use("kernels"):
        yield


# The others are compositions of torch's own operations, or element by element; svd_lowrank draws
# random numbers, which torch.func.jacfwd refuses.
CASES = [
    case
    for case in surface.CASES
    if case.dtypes == surface.LINEAR and case.public not in {"svd_lowrank", *surface.NO_DERIVATIVE}
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@each_case
def test_jacobians(case: Case, device: str) -> None:
    args = case.tensors(torch.float64, device, grad=True)
    every = tuple(range(len(args)))

    expected = torch.autograd.functional.jacobian(case.outputs, args)  # type: ignore[no-untyped-call]
    close(torch.func.jacrev(case.outputs, every)(*args), expected)
    close(torch.func.jacfwd(case.outputs, every)(*args), expected)


@each_case
def test_hessian(case: Case, device: str) -> None:
    """Forward over reverse, and reverse under vmap, both inside torch.func."""
    args = case.tensors(torch.float64, device)

    def loss(A: Tensor) -> Tensor:
        return torch.stack([r.square().sum() for r in case.outputs(A, *args[1:])]).sum()

    forward_reverse = torch.func.hessian(loss)(args[0])
    close(forward_reverse, torch.func.jacrev(torch.func.jacrev(loss))(args[0]))
    per_sample = torch.vmap(torch.func.grad(loss))(torch.stack([args[0], 2 * args[0]]))
    close(per_sample[1], torch.func.grad(loss)(2 * args[0]))


@each_dtype
@pytest.mark.parametrize(
    ("upper", "unit", "trans"),
    [(False, False, 0), (False, True, 1), (True, False, 2), (True, True, 0)],
)
def test_derivatives_of_operators(
    upper: bool, unit: bool, trans: int, dtype: torch.dtype, device: str
) -> None:
    (case,) = (c for c in CASES if c.name == "solve")
    args = case.tensors(dtype, device, grad=True)

    def solve(A: Tensor, B: Tensor) -> Tensor:
        return solve_operator(A, B, upper, unit, trans)

    assert gradcheck(solve, args, check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(solve, args, check_fwd_over_rev=True, fast_mode=True)


TRANSFORMS: list[tuple[str, str, Callable[..., Any]]] = [
    *((name, "grad", torch.func.grad) for name in ("det", "inv", "lu_factor", "lu_solve", "solve")),
    ("slogdet", "vmap_jacrev", lambda f: torch.vmap(torch.func.jacrev(f))),
    ("cholesky", "grad", torch.func.grad),
    ("eig", "grad", torch.func.grad),
    ("eigvals", "jacfwd", torch.func.jacfwd),
    ("eigh", "grad", torch.func.grad),
    ("eigvalsh", "jacfwd", torch.func.jacfwd),
    ("cholesky_solve", "jacfwd", torch.func.jacfwd),
    ("qr", "grad", torch.func.grad),
    ("qr", "jacfwd", torch.func.jacfwd),
    *((name, "jacfwd", torch.func.jacfwd) for name in ("det", "inv", "lu", "solve", "slogdet")),
    ("inv", "hessian", torch.func.hessian),
]


@pytest.mark.parametrize(
    ("name", "transform"), [pytest.param(n, t, id=f"{n}-{kind}") for n, kind, t in TRANSFORMS]
)
def test_compile_of_torch_func(name: str, transform: Callable[..., Any], device: str) -> None:
    """Where torch.compile gives wrong derivatives without a word when it traces a Function."""
    (case,) = (c for c in CASES if c.name == name)
    case = case._replace(inputs=((2, 3, 3), *case.inputs[1:]))
    A, *others = case.tensors(DTYPES[0], device)

    def loss(A: Tensor) -> Tensor:
        return torch.stack([r.sin().sum() for r in case.outputs(A, *others)]).sum()

    transformed: Callable[[Tensor], Tensor] = transform(loss)
    expected = transformed(A)
    torch._dynamo.reset()
    close(torch.compile(transformed, fullgraph=True, backend="aot_eager")(A), expected)


def test_compiled_code_raises_for_a_singular_matrix(device: str) -> None:
    A, singular = torch.eye(3, device=device), torch.zeros(3, 3, device=device)
    torch._dynamo.reset()
    # The result is not used: the check must survive the compiler.
    compiled = torch.compile(lambda A: (LA.inv(A), A + 1)[1], fullgraph=True, backend="aot_eager")
    close(compiled(A), A + 1)
    with pytest.raises(LA.LinAlgError, match=r"linalg\.inv: The diagonal element 1 is zero"):
        compiled(singular)


@pytest.mark.parametrize("device_type", ["cpu"])
def test_backward_within_autocast(device_type: str) -> None:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "cholesky": LA.cholesky,
        "lu_factor": lambda A: LA.lu_factor(A).LU,
        "inv": LA.inv,
        "solve_triangular": lambda A: LA.solve_triangular(A, A.detach() + 1, upper=False),
    }
    G = torch.arange(64.0).reshape(8, 8).cos()
    A = (3 * torch.eye(8) + G @ G.mT).requires_grad_()
    for function in functions.values():
        (expected,) = torch.autograd.grad(function(A).sum(), A)
        result = function(A).sum()
        with torch.autocast(device_type, dtype=torch.bfloat16):
            (gradient,) = torch.autograd.grad(result, A)
        assert gradient.dtype == torch.float32
        # Products in bfloat16 would be off by 4e-3.
        assert (gradient - expected).norm() <= 1e-5 * expected.norm()


def op_arguments(device: str) -> dict[str, list[tuple[Any, ...]]]:
    A, wide = (
        torch.randn(2, 3, 3, device=device),
        torch.randn(3, 5, device=device).to(torch.complex64),
    )
    B = torch.randn(2, 3, 2, device=device)
    LU, P = (x.to(device) for x in torch.linalg.lu_factor(A.cpu()))
    definite = A @ A.mT + torch.eye(3, device=device)
    L = torch.linalg.cholesky(definite.cpu()).to(device)
    return {
        "cholesky": [(definite, False), (definite[0].to(torch.complex64).mH, True)],
        "cholesky_solve": [(B, L, False), (B[0], L[0].mT, True)],
        "cholesky_inverse": [(L, False), (L[0].mT, True)],
        "lu_factor": [(A, True), (wide, False), (wide.mH, True)],
        "lu_solve": [(LU, P, B, 0), (LU.to(torch.complex64), P, B.to(torch.complex64), 2)],
        "lu_det": [(LU, P)],
        "lu_unpack": [(LU, P, True, True), (LU, P, False, True), (LU, P, True, False)],
        "eig": [(A, True), (wide[:, :3].mH, False)],
        "eigh": [(definite, True, True), (definite[0].to(torch.complex64).mH, False, False)],
        "ldl_factor": [(A, False), (A.to(torch.complex64).mH, True)],
        "ldl_solve": [(A, P, B, False), (A.to(torch.complex64), -P, B.to(torch.complex64), True)],
        "product": [(A, B), (wide.mH, wide)],
        "qr_pivoted": [(A, "reduced"), (wide.mH, "complete"), (wide, "r")],
        "qr": [(A, "reduced"), (wide.mH, "complete"), (wide, "r")],
        "geqrf": [(A,), (wide,)],
        "svd": [(A, True), (wide.mH, False), (wide, True)],
        "svdvals": [(A,), (wide.mH,)],
        "householder_product": [(A, B[..., 0]), (wide.mH, wide[:, 0])],
        "ormqr": [(A, B[..., 0], B, True, True), (wide.mH, wide[:, 0], wide, False, False)],
        "inv": [(A,), (A[0].conj().mT.to(torch.complex64),)],
        "solve_triangular": [(A, B, True, False, 0), (A, B.mT, False, True, 1, True)],
    }


@pytest.mark.parametrize("op", op_arguments("cpu"))
def test_opcheck(op: str, device: str) -> None:
    for args in op_arguments(device)[op]:
        torch.library.opcheck(getattr(torch.ops.mpslinalg, op).default, args)


@each_dtype
@pytest.mark.parametrize("upper", [False, True])
def test_the_gradient_of_cholesky_is_the_hermitian_part_of_torchs(
    upper: bool, dtype: torch.dtype, device: str
) -> None:
    X, weights = torch.randn(2, 2, 4, 4, dtype=dtype, device=device)
    A = (X @ X.mH + 4 * torch.eye(4, device=device)).requires_grad_()
    ours, torchs = (
        torch.autograd.grad((library.cholesky(A, upper=upper) * weights).sum().real, A)[0]
        for library in (LA, torch.linalg)
    )
    close(ours, ours.mH)
    close(ours, (torchs + torchs.mH) / 2)


def rank_one_less(name: str) -> Tensor:
    return torch.tensor(
        {
            "zero_row": [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [4.0, 1.0, 2.0]],
            "zero_column": [[0.0, 2.0, 3.0], [0.0, 5.0, 1.0], [0.0, 1.0, 2.0]],
            "multiple": [[1.0, 2.0, 1.0], [2.0, 4.0, 3.0], [0.0, 0.0, 4.0]],
            "jordan": [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]],
        }[name],
        dtype=torch.float64,
    )


def adjugate(A: Array) -> Array:
    """By minors, the definition."""
    n = len(A)
    minors = [
        [np.linalg.det(np.delete(np.delete(A, j, 0), i, 1)) * (-1) ** (i + j) for j in range(n)]
        for i in range(n)
    ]
    return np.array(minors)


@pytest.mark.parametrize("name", ["zero_row", "zero_column", "multiple", "jordan"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32])
def test_gradient_of_a_zero_determinant(name: str, dtype: torch.dtype, device: str) -> None:
    A = rank_one_less(name).to(device, dtype)
    if dtype.is_complex:
        A = A * 2j
    expected = adjugate(A.numpy(force=True).astype(complex)).conj().T
    assert np.abs(expected).max() > 0.5
    for scale in (1.0, 1e-6):
        scaled = (A * scale).requires_grad_()
        det = LA.det(scaled)
        assert det.item() == 0
        (gradient,) = torch.autograd.grad(det, scaled, torch.ones_like(det))
        tolerance = 20 * torch.finfo(dtype).eps * np.abs(expected).max()
        error = gradient.numpy(force=True) / scale**2 - expected
        assert np.abs(error).max() <= tolerance
        direction = torch.randn_like(A)
        forward: Tensor = torch.func.jvp(LA.det, (scaled.detach(),), (direction,))[1]
        product = np.sum(expected.conj() * direction.numpy(force=True))
        assert abs(forward.item() / scale**2 - product) <= 10 * tolerance


@pytest.mark.parametrize("name", ["zero_row", "zero_column", "multiple"])
def test_second_derivative_of_a_zero_determinant(name: str, device: str) -> None:
    A = rank_one_less(name).to(device).requires_grad_()
    assert gradcheck(LA.det, (A,), check_forward_ad=True)
    assert gradgradcheck(LA.det, (A,))


class Oracle(NamedTuple):
    """A function of mpslinalg and SciPy's own, on arrays."""

    name: str
    ours: Callable[[Tensor], tuple[Tensor, ...]]
    scipys: Callable[[Array], tuple[Array, ...]]


def right_hand_side(n: int) -> Array:
    B: Array = np.cos(np.arange(2.0 * n)).reshape(n, 2)
    return B


def slogdet(A: Array) -> tuple[Array, ...]:
    P, _, U = scipy.linalg.lu(A)
    pivots = np.diag(U)
    sign = np.linalg.det(P) * np.prod(pivots / np.abs(pivots))
    return np.asarray(sign), np.asarray(np.log(np.abs(pivots)).sum())


def our_solve(A: Tensor) -> tuple[Tensor, ...]:
    B = torch.from_numpy(right_hand_side(A.shape[-1])).to(A)
    return (LA.solve(A, B), LA.solve(A, B.mT, left=False))


def scipys_solve(A: Array) -> tuple[Array, ...]:
    B = right_hand_side(len(A))
    return scipy.linalg.solve(A, B), scipy.linalg.solve(A.T, B).T


def hermitian(A: Array) -> Array:
    made: Array = (A + A.conj().T) / 2 + 2 * len(A) * np.eye(len(A))
    return made


def our_cholesky(A: Tensor) -> tuple[Tensor, ...]:
    H = (A + A.mH) / 2 + 2 * len(A) * torch.eye(len(A), dtype=A.dtype, device=A.device)
    L = LA.cholesky(H)
    B = torch.from_numpy(right_hand_side(len(A))).to(A)
    return L, LA.cholesky(H, upper=True), LA.cholesky_solve(B, L), LA.cholesky_inverse(L.mH, True)


def scipys_cholesky(A: Array) -> tuple[Array, ...]:
    H = hermitian(A)
    L = scipy.linalg.cholesky(H, lower=True)
    X = scipy.linalg.cho_solve((L, True), right_hand_side(len(A)))
    return L, L.conj().T, X, scipy.linalg.cho_solve((L, True), np.eye(len(A)))


def scipys_qr(A: Array) -> tuple[Array, ...]:
    Q, R = scipy.linalg.qr(A, mode="economic")
    return Q, R


ORACLES = [
    Oracle("qr", lambda A: tuple(LA.qr(A)), scipys_qr),
    Oracle("cholesky", our_cholesky, scipys_cholesky),
    Oracle("solve", our_solve, scipys_solve),
    Oracle("inv", lambda A: (LA.inv(A),), lambda A: (scipy.linalg.inv(A),)),
    Oracle("det", lambda A: (LA.det(A),), lambda A: (np.asarray(scipy.linalg.det(A)),)),
    Oracle("slogdet", lambda A: tuple(LA.slogdet(A)), slogdet),
    Oracle("lu", lambda A: tuple(LA.lu(A)[1:]), lambda A: scipy.linalg.lu(A)[1:]),
]


ORACLE_CASES = [
    pytest.param(oracle, shape, id=f"{oracle.name}-{shape[0]}x{shape[1]}")
    for oracle in ORACLES
    for shape in [(3, 3), (6, 6), (40, 40), *([(6, 4), (4, 6)] if oracle.name == "lu" else [])]
]


@each_dtype
@pytest.mark.parametrize(("oracle", "shape"), ORACLE_CASES)
def test_gradients_are_differences_of_scipys(
    oracle: Oracle, shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """Of the real loss re(sum(conj(W) f(A))): dL = re(sum(conj(gradient) dA))."""
    random = np.random.default_rng(0)

    def noise(size: tuple[int, ...]) -> Array:
        made: Array = random.standard_normal(size)
        if dtype.is_complex:
            made = made + 1j * random.standard_normal(size)
        return made

    # A diagonal of 1.5, 2.5, ... sqrt(n) over unit noise keeps cond(A) small and pivots apart.
    A0 = (
        noise(shape)
        + np.sqrt(max(shape)) * np.diag(1.5 + np.arange(max(shape)))[: shape[0], : shape[1]]
    )
    if oracle.name == "det":
        A0 = A0 / np.abs(scipy.linalg.det(A0)) ** (1 / len(A0))
    weights = [noise(r.shape) for r in oracle.scipys(A0)]

    def loss(A: Array) -> float:
        pairs = zip(weights, oracle.scipys(A), strict=True)
        return float(sum(np.sum(w.conj() * r).real for w, r in pairs))

    A = torch.from_numpy(A0).to(device).requires_grad_()
    ours = sum(
        (torch.from_numpy(np.asarray(w.conj())).to(device) * r).sum().real
        for w, r in zip(weights, oracle.ours(A), strict=True)
    )
    assert isinstance(ours, Tensor)
    assert abs(ours.item() - loss(A0)) <= 1e-10 * max(abs(loss(A0)), 1)
    (gradient,) = torch.autograd.grad(ours, A)
    G = gradient.numpy(force=True)
    h = 1e-6 * np.abs(A0).max()
    if A0.size <= 36:
        units = np.eye(A0.size).reshape(-1, *shape)
        directions = np.concatenate((units, 1j * units)) if dtype.is_complex else units
    else:
        directions = np.stack([noise(shape) for _ in range(8)])
    expected = np.array([(loss(A0 + h * D) - loss(A0 - h * D)) / (2 * h) for D in directions])
    got = np.array([np.sum(G.conj() * D).real for D in directions])
    assert np.abs(expected).max() > 1e-3 * np.abs(G).max() > 0
    assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    "name", ["inv", "det", "slogdet", "lu_factor", "lu", "cholesky_inverse", "qr", "eigvalsh"]
)
def test_forward_over_forward_is_refused(name: str, device: str) -> None:
    """An outer forward level does not see the inner one's rule: the result would be zero."""
    A = inputs_of_one(device)
    function = getattr(LA, name)

    def loss(A: Tensor) -> Tensor:
        result = function(A)
        parts = result if isinstance(result, tuple) else (result,)
        return torch.stack([p.sum() for p in parts if p.is_floating_point()]).sum()

    with LA.use("kernels"):
        with pytest.raises(NotImplementedError, match="forward over reverse"):
            torch.func.jacfwd(torch.func.jacfwd(loss))(A)
        forward_over_reverse = torch.func.jacfwd(torch.func.jacrev(loss))(A)
        reverse_over_forward = torch.func.jacrev(torch.func.jacfwd(loss))(A)
    torch.testing.assert_close(forward_over_reverse, reverse_over_forward)


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0)])
@pytest.mark.parametrize(
    "name", ["lu_factor", "lu", "inv", "det", "cholesky", "cholesky_inverse", "qr", "eigh"]
)
def test_empty_matrices_have_empty_gradients(
    name: str, shape: tuple[int, ...], device: str
) -> None:
    A = torch.empty(shape, device=device, requires_grad=True)
    with LA.use("kernels"):
        result = getattr(LA, name)(A)
    parts = result if isinstance(result, tuple) else (result,)
    loss = torch.stack([p.sum() for p in parts if p.requires_grad]).sum()
    (gradient,) = torch.autograd.grad(loss, A)
    assert gradient.shape == A.shape


def inputs_of_one(device: str) -> Tensor:
    torch.manual_seed(3)
    dtype = torch.float32 if device == "mps" else torch.float64
    return torch.randn(3, 3, dtype=dtype, device=device)
