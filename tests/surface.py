"""Every public function with small, well-conditioned calls of it, and what a function has not."""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import gated_delta, special
from tests.inputs import on

MODULES = {"": LA, "special.": special, "gated_delta.": gated_delta}
# What computes nothing.
TOOLS = ("disable", "which", "gated_delta.patch_transformers")

LINEAR = (torch.float32, torch.float64, torch.complex64, torch.complex128)
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
STORED = (torch.bool, *INTEGERS, *FLOATING, torch.complex64, torch.complex128)
RINGS = (*INTEGERS, *FLOATING, torch.complex64, torch.complex128)
FIELDS = (*FLOATING, torch.complex64, torch.complex128)
REALS = (torch.bool, *INTEGERS, *UNSIGNED, *FLOATING)


def public() -> list[str]:
    """The names of all public functions."""
    return [
        prefix + name
        for prefix, module in MODULES.items()
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and not name.startswith("_")
        and value.__module__.startswith("mpslinalg")
        and prefix + name not in TOOLS
        and name in getattr(module, "__all__", (name,))
    ]


class Case(NamedTuple):
    """A call of a public function.

    name: of the function, and after a dash of this call among several.
    call: takes the function or one of the same contract, then tensors; the results depend smoothly
        on the tensors, so that no sign or phase is left open.
    inputs: a shape for a random matrix, or values.
    """

    name: str
    call: Callable[..., Any]
    inputs: tuple[tuple[int, ...] | Tensor, ...]
    dtypes: tuple[torch.dtype, ...] = LINEAR

    @property
    def public(self) -> str:
        return self.name.partition("-")[0]

    def function(self, *args: Tensor) -> Any:
        """The call of the function itself."""
        return self.call(named(self.public), *args)

    def outputs(self, *args: Tensor) -> tuple[Tensor, ...]:
        return flat(self.function(*args))

    def tensors(self, dtype: torch.dtype, device: str, grad: bool = False) -> tuple[Tensor, ...]:
        """Random matrices with a diagonal that keeps pivots, and the choice of them, apart."""
        torch.manual_seed(0)
        draw = torch.complex128 if dtype.is_complex else torch.float64
        made = []
        for position, given in enumerate(self.inputs):
            if isinstance(given, Tensor):
                A = given
            else:
                A = torch.randn(given, dtype=draw)
                if position == 0 and A.dim() > 1:
                    A.diagonal(dim1=-2, dim2=-1).add_(torch.arange(2, 2 + min(given[-2:])))
            if not (dtype.is_floating_point or dtype.is_complex):
                A = A.round() if dtype.is_signed else A.abs().round()
            made.append(on(device, A.to(dtype, copy=True)).requires_grad_(grad))
        return tuple(made)


def flat(result: Any) -> tuple[Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def named(name: str) -> Callable[..., Any]:
    """The public function of that name."""
    module, _, short = name.rpartition(".")
    function: Callable[..., Any] = getattr(MODULES[f"{module}." if module else ""], short)
    return function


def pivots(LU: Tensor) -> Tensor:
    """Pivots that swap: row i with the last one."""
    *batch, m, n = LU.shape
    return torch.full((*batch, min(m, n)), m, dtype=torch.int32, device=LU.device)


def plain(f: Callable[..., Any], *args: Tensor) -> Any:
    return f(*args)


def options(*more: Any, **given: Any) -> Callable[..., Any]:
    """The call with more arguments."""
    return lambda f, *args: f(*args, *more, **given)


def first(count: int, **given: Any) -> Callable[..., Any]:
    """The first of several results."""
    return lambda f, *args: tuple(f(*args, **given))[:count]


def lu_solve(left: bool, adjoint: bool) -> Callable[..., Any]:
    return lambda f, LU, B: f(LU, pivots(LU), B, left=left, adjoint=adjoint)


def solve_triangular(upper: bool, left: bool, unit: bool) -> Callable[..., Any]:
    return options(upper=upper, left=left, unitriangular=unit)


def definite(A: Tensor) -> Tensor:
    """A hermitian matrix with the diagonal of A, real: Cholesky reads one triangle of it."""
    return (A + A.mH) / 2 + 2 * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)


def of_definite(call: Callable[..., Any] = plain) -> Callable[..., Any]:
    return lambda f, A, *others: call(f, definite(A), *others)


def ldl_solve(hermitian: bool) -> Callable[..., Any]:
    """Differentiable in B only: the factors are constants, with a 2 x 2 block and an exchange."""

    def call(f: Callable[..., Any], B: Tensor) -> Any:
        LD = torch.tensor([[3.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 4.0, 0.5]]).to(B)
        if LD.is_complex():
            # Of a hermitian matrix, with a real diagonal.
            skew = torch.tensor([[0.0, 0, 0], [0.5, 0, 0], [0.1, 1, 0]]) if hermitian else LD.real
            LD = LD + 0.5j * skew.to(B.device)
        LD = LD.expand(*B.shape[:-2], 3, 3)
        swaps = torch.tensor([1, -3, -3], dtype=torch.int32, device=B.device)
        return f(LD, swaps.expand(LD.shape[:-1]), B, hermitian=hermitian)

    return call


def lstsq(driver: str, count: int = 1) -> Callable[..., Any]:
    return first(count, driver=driver)


def deficient(call: Callable[..., Any] = plain) -> Callable[..., Any]:
    """Of a matrix of rank 2, whatever L and R are."""
    return lambda f, L, R, *B: call(f, L @ R, *B)


def each_order(*orders: Any, **given: Any) -> Callable[..., Any]:
    return lambda f, A: tuple(f(A, order, **given) for order in orders)


def projections(U: Tensor, S: Tensor, V: Tensor) -> tuple[Tensor, ...]:
    """What does not depend on the phases of singular vectors."""
    weights = torch.arange(1, 1 + S.shape[-1], device=S.device)
    return S, (U * weights) @ U.mH, (V * weights) @ V.mH, (U * weights) @ V.mH


def svd(f: Callable[..., Any], A: Tensor) -> tuple[Tensor, ...]:
    U, S, Vh = f(A)
    k = S.shape[-1]
    return projections(U.narrow(-1, 0, k), S, Vh.narrow(-2, 0, k).mH)


def eigh(UPLO: str) -> Callable[..., Any]:
    """Eigenvalues and projectors on eigenvectors, which no sign or phase changes."""

    def call(f: Callable[..., Any], A: Tensor) -> tuple[Tensor, Tensor]:
        L, V = f(definite(A), UPLO)
        return L, V[..., :, None, :] * V[..., None, :, :].conj()

    return call


def eig(f: Callable[..., Any], A: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of eigenvalues and of projectors on eigenvectors."""
    L, V = f(A)
    projectors = V[..., :, None, :] * V[..., None, :, :].conj()
    return torch.view_as_real(L), torch.view_as_real(projectors)


def at(*numbers: int) -> Callable[[Tensor], Tensor]:
    return lambda like: torch.tensor(numbers, device=like.device)


# With an index twice, of which the last one wins.
TAKEN, WRITTEN = at(3, 0, 0, -1), at(3, 0, -1, 0)


def heaviside(f: Callable[..., Any], values: Tensor) -> Any:
    """Differentiable in the values, where the input is zero."""
    return f(torch.tensor([1, 0, 0, 2], device=values.device).to(values.dtype), values)


def of_degree(f: Callable[..., Any], x: Tensor) -> Any:
    return f(x, torch.tensor([1, 2, 3, 4, 6, 9], device=x.device))


def logspace(f: Callable[..., Any], like: Tensor) -> Any:
    return f(0, 3, 4, 2, dtype=like.dtype, device=like.device)


def rule(*more: Any) -> Callable[..., Any]:
    """The gated delta rule, with keys of length 1, decays below 0 and beta in (0, 1)."""

    def call(f: Callable[..., Any], *tensors: Tensor) -> Any:
        query, key, value, g, beta, state = tensors
        key = key / key.square().sum(-1, keepdim=True).sqrt()
        given = (query, key, value, -g.square(), beta.sigmoid(), *more)
        return f(*given, initial_state=state, output_final_state=True)

    return call


X = torch.tensor([-0.9, -0.45, 0.05, 0.2, 0.55, 0.83], dtype=torch.float64)
NUMBERS = torch.tensor([3.0, 0.0, 1.0, 7.0, 1.0], dtype=torch.float64)
SMALLER = torch.tensor([3.0, 1.0, 0.0, 6.0, 1.0], dtype=torch.float64)


def rule_inputs(tokens: int) -> tuple[tuple[int, ...], ...]:
    keys, values, gates = (1, tokens, 1, 3), (1, tokens, 2, 2), (1, tokens, 2)
    return keys, keys, values, gates, gates, (1, 2, 3, 2)


CASES = [
    Case("eig", eig, ((3, 3),)),
    Case("eig-batch", eig, ((2, 3, 3),)),
    Case("eigvals", lambda f, A: torch.view_as_real(f(A)), ((2, 3, 3),)),
    Case("eigh", eigh("L"), ((3, 3),)),
    Case("eigh-upper", eigh("U"), ((2, 3, 3),)),
    Case("eigvalsh", of_definite(), ((2, 3, 3),)),
    Case("cholesky", of_definite(), ((3, 3),)),
    Case("cholesky_ex-upper", of_definite(first(1, upper=True)), ((2, 3, 3),)),
    Case("cholesky_solve", lambda f, L, B: f(B, L), ((3, 3), (3, 2))),
    Case("cholesky_solve-upper", lambda f, L, B: f(B, L, True), ((3, 3), (2, 3, 1))),
    Case("cholesky_inverse", plain, ((3, 3),)),
    Case("cholesky_inverse-upper", options(True), ((2, 2, 2),)),
    Case("lu_factor", first(1), ((3, 3),)),
    Case("lu_factor-tall", first(1), ((4, 2),)),
    Case("lu_factor_ex-wide", first(1), ((2, 4),)),
    Case("lu_factor-no_pivot", first(1, pivot=False), ((3, 3),)),
    Case("lu", lambda f, A: f(A)[1:], ((2, 3, 3),)),
    Case("lu-no_pivot", lambda f, A: f(A, pivot=False)[1:], ((2, 3),)),
    Case("lu_unpack-tall", lambda f, LU: f(LU, pivots(LU))[1:], ((4, 3),)),
    Case("lu_unpack-wide", lambda f, LU: f(LU, pivots(LU))[1:], ((3, 4),)),
    Case("lu_solve", lu_solve(True, False), ((3, 3), (3, 2))),
    Case("lu_solve-adjoint", lu_solve(True, True), ((3, 3), (2, 3, 1))),
    Case("lu_solve-right", lu_solve(False, False), ((3, 3), (2, 3))),
    Case("lu_solve-right_adjoint", lu_solve(False, True), ((3, 3), (2, 3))),
    Case("solve", plain, ((3, 3), (3, 2))),
    Case("solve_ex-broadcast", first(1), ((2, 1, 2, 2), (2, 2, 1))),
    Case("solve-vector", plain, ((2, 3, 3), (2, 3))),
    Case("solve-right", options(left=False), ((3, 3), (2, 3))),
    Case("inv", plain, ((3, 3),)),
    Case("inv_ex", first(1), ((2, 2, 2),)),
    Case("det", plain, ((2, 3, 3),)),
    Case("slogdet", first(2), ((2, 3, 3),)),
    Case("ldl_factor", plain, ((3, 3),)),
    Case("ldl_factor-hermitian", of_definite(options(hermitian=True)), ((2, 3, 3),)),
    Case("ldl_factor_ex", plain, ((3, 3),)),
    Case("ldl_solve", ldl_solve(False), ((3, 2),)),
    Case("ldl_solve-hermitian", ldl_solve(True), ((2, 3, 2),)),
    Case("geqrf", plain, ((4, 3),)),
    Case("householder_product", plain, ((4, 3), (3,))),
    Case("ormqr", options(False, True), ((3, 3), (3,), (2, 3))),
    Case("lstsq", lstsq("gels", 2), ((2, 4, 3), (2, 4, 2))),
    Case("lstsq-wide", lstsq("gels"), ((2, 4), (2,))),
    Case("lstsq-gelsy", lstsq("gelsy"), ((2, 4, 3), (2, 4, 2))),
    Case("lstsq-gelsy_wide", lstsq("gelsy"), ((2, 4), (2,))),
    Case("lstsq-gelsy_deficient", deficient(lstsq("gelsy")), ((4, 2), (2, 3), (4, 2))),
    Case("lstsq-gelsd", lstsq("gelsd", 2), ((2, 4, 3), (2, 4, 2))),
    Case("lstsq-gelss_deficient", deficient(lstsq("gelss")), ((4, 2), (2, 3), (4, 2))),
    Case("pinv", plain, ((2, 4, 3),)),
    Case("pinv-deficient", deficient(), ((3, 2), (2, 4))),
    Case("pinv-hermitian", of_definite(options(hermitian=True)), ((3, 3),)),
    Case("matrix_rank", deficient(), ((2, 3, 2), (2, 2, 4))),
    Case("matrix_norm", each_order("fro", "nuc", -math.inf, dim=(-1, -2)), ((2, 2, 3),)),
    Case("vector_norm", each_order(1, 2, 3.5, math.inf, 0), ((3, 4),), FIELDS),
    Case("norm", each_order(2, "nuc"), ((3, 4),)),
    Case("norm-vector", options(3, 1), ((3, 4),), FIELDS),
    Case("cond", each_order(None, "nuc"), ((2, 2, 2),)),
    Case("cond-inverse", options("fro"), ((3, 3),)),
    Case("polar", first(2), ((3, 3),)),
    Case("polar-tall", first(2), ((2, 4, 3),)),
    Case("matrix_sqrth", of_definite(), ((2, 3, 3),)),
    Case("matrix_exp", plain, ((2, 3, 3),), FIELDS),
    Case("qr", first(2), ((3, 3),)),
    Case("qr-tall", first(2), ((2, 4, 3),)),
    Case("qr-wide", first(2, mode="complete"), ((2, 4),)),
    Case("qr_pivoted", first(2), ((2, 4, 3),)),
    Case("qr_pivoted-wide", first(2, mode="complete"), ((2, 4),)),
    Case("svd", svd, ((3, 3),)),
    Case("svd-tall", svd, ((2, 4, 3),)),
    Case("svd-wide", svd, ((2, 4),)),
    Case("svdvals", plain, ((2, 3, 4),)),
    Case("svd_lowrank", deficient(lambda f, A: projections(*f(A, 2, 1))), ((4, 2), (2, 3))),
    Case("solve_triangular", solve_triangular(True, True, False), ((2, 1, 3, 3), (2, 3, 2))),
    Case("solve_triangular-right", solve_triangular(False, False, True), ((3, 3), (2, 2, 3))),
    Case("cross", plain, ((2, 3), (2, 3)), RINGS),
    Case("diagonal", options(offset=1), ((3, 4),), STORED),
    Case("matmul", plain, ((2, 3), (3, 2)), RINGS),
    Case("matmul-vector", plain, ((2, 2, 3), (3,)), RINGS),
    Case("vecdot", plain, ((2, 3), (2, 3)), FIELDS),
    Case("multi_dot", lambda f, *x: f(x), ((2, 3), (3, 2), (2, 4)), RINGS),
    Case("matrix_power", options(3), ((3, 3),), RINGS),
    Case("matrix_power-inverse", options(-2), ((3, 3),)),
    Case("vander", options(N=3), ((3,),), (*INTEGERS, *LINEAR)),
    Case("tensorinv", options(1), ((4, 2, 2),)),
    Case("tensorsolve", plain, ((2, 2, 4), (2, 2))),
    Case("take", lambda f, A: f(A.mT, TAKEN(A)), ((2, 2),), STORED),
    Case("put", lambda f, A, B: f(A.mT, WRITTEN(A), B), ((2, 2), (4,)), STORED),
    Case("put-accumulate", lambda f, A, B: f(A, WRITTEN(A), B, True), ((2, 2), (4,)), STORED),
    Case("put_", lambda f, A, B: f(A.clone().mT, WRITTEN(A), B), ((2, 2), (4,)), STORED),
    Case("bincount", options(None, 9), (NUMBERS,), INTEGERS),
    Case("bincount-weights", lambda f, x: f(x, x.float()), (NUMBERS,), INTEGERS),
    Case("frexp", plain, (NUMBERS + 0.3,), FLOATING),
    Case("heaviside", heaviside, (NUMBERS[:4],), REALS),
    Case("logspace", logspace, (NUMBERS,), (*INTEGERS, *UNSIGNED, *FLOATING)),
    *(
        Case(name, plain, (NUMBERS, SMALLER), (*REALS, torch.complex64, torch.complex128))
        for name in ("eq", "ne")
    ),
    *(Case(name, plain, (NUMBERS, SMALLER), REALS) for name in ("lt", "le", "gt", "ge")),
    *(
        Case(f"special.{name}", of_degree, (X,), FLOATING)
        for name in special.__all__
        if "polynomial" in name
    ),
    Case("special.airy_ai", plain, (4 * X,), FLOATING),
    Case("special.log_ndtr", plain, (4 * X,), FLOATING),
    Case("special.ndtri", plain, ((X + 1) / 2,), FLOATING),
    Case(
        "gated_delta.solve_tril",
        lambda f, A: f(A, output_dtype=A.dtype),
        ((1, 20, 2, 16),),
        FLOATING,
    ),
    Case("gated_delta.chunk_gated_delta_rule", rule(16), rule_inputs(18), FLOATING),
    Case("gated_delta.recurrent_gated_delta_rule", rule(), rule_inputs(4), FLOATING),
]

NO_DERIVATIVE = {
    "matrix_rank": "an integer",
    "bincount": "it counts, and weights have none in torch either",
    "logspace": "its arguments are numbers",
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), "true or false"),
    **dict.fromkeys(("ldl_factor", "ldl_factor_ex", "geqrf"), "nor has torch's"),
}
EXCEPTIONS = {
    (function, aspect): reason
    for function, reason in NO_DERIVATIVE.items()
    for aspect in ("backward", "second", "forward mode")
} | {
    ("bincount", "vmap"): "the number of bins depends on the values",
}
# Of integers torch has no products on CUDA.
PRODUCTS = ("matmul", "multi_dot", "matrix_power")
# What a function has, but not in every way.
EXCEPT_THAT = {
    ("put_", "vmap"): "but not into a tensor without the batch dimension: nor does torch's",
    ("bincount", "compile"): (
        "with torch._dynamo.config.capture_dynamic_output_shape_ops, as torch's needs too"
    ),
}
