"""What docs/conformance.md says of every public function, each cell executed."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from tests.inputs import DOUBLES, name
from tests.surface import (
    CASES,
    EXCEPT_THAT,
    EXCEPTIONS,
    NO_DERIVATIVE,
    PRODUCTS,
    Case,
    flat,
    public,
)
from tests.test_gated_delta import by_tokens, scipy_solve

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    # torch's own forward mode and compiler do what they warn of.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

# Larger inputs are checked in one random direction.
SLOW_INPUTS = 64

Conforms = Callable[[Case, str, torch.dtype], AbstractContextManager[None]]
REFUSALS = (NotImplementedError, RuntimeError)


class NoDerivative(NotImplementedError):
    """Nothing of the results depends on the tensors for torch."""


@pytest.fixture
def conforms(request: pytest.FixtureRequest, device: str) -> Conforms:
    """Records a cell of the table; what is listed as missing has to be so."""

    @contextmanager
    def block(case: Case, aspect: str, dtype: torch.dtype) -> Iterator[None]:
        reason = EXCEPTIONS.get((case.public, aspect))
        whole = not (dtype.is_floating_point or dtype.is_complex)
        if device == "cuda" and whole and case.public in PRODUCTS:
            reason = "torch has no products of integers on CUDA"
        note = f"none: {reason}" if reason else EXCEPT_THAT.get((case.public, aspect))
        cell = (case.public, aspect, name(dtype), note)
        request.node.user_properties.append(("conformance", cell))
        if reason is None:
            yield
        else:
            with pytest.raises(REFUSALS) as refused:
                yield
            # A wrong derivative is none that is missing.
            assert refused.type is not GradcheckError

    return block


def cells(choose: Callable[[Case], Iterable[torch.dtype]]) -> pytest.MarkDecorator:
    """Every case with some of its dtypes."""
    return pytest.mark.parametrize(
        ("case", "dtype"),
        [
            pytest.param(case, dtype, id=f"{case.name}-{name(dtype)}")
            for case in CASES
            for dtype in choose(case)
        ],
    )


def doubles(case: Case) -> Iterable[torch.dtype]:
    return [d for d in DOUBLES if d in case.dtypes] or [torch.int64]


def one_single(case: Case) -> Iterable[torch.dtype]:
    """float32 for a function's first call, complex64 for its others."""
    is_first = next(c for c in CASES if c.public == case.public) is case
    dtype = torch.float32 if is_first else torch.complex64
    return [dtype if dtype in case.dtypes else torch.int64]


def close(got: Any, expected: Any, dtype: torch.dtype = torch.float64) -> None:
    tolerance = 1e-9 if dtype in DOUBLES else 1e-4
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


# What is not of torch.


def matrices(signature: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy of one matrix, of tensors of many."""
    loop = np.vectorize(function, signature=signature)

    def of_tensors(A: Tensor) -> Any:
        out = loop(A.numpy())
        return (
            tuple(map(torch.from_numpy, out)) if isinstance(out, tuple) else torch.from_numpy(out)
        )

    return of_tensors


def eliminated(A: Tensor, *, pivot: bool) -> tuple[Tensor]:
    """L and U in one matrix, without pivoting."""
    assert not pivot
    LU = A.numpy().copy()
    for k in range(min(LU.shape) - 1):
        LU[k + 1 :, k] /= LU[k, k]
        LU[k + 1 :, k + 1 :] -= np.outer(LU[k + 1 :, k], LU[k, k + 1 :])
    return (torch.from_numpy(LU),)


def two_factors(A: Tensor, *, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
    (LU,) = eliminated(A, pivot=pivot)
    k = min(LU.shape)
    return torch.empty(0), LU[:, :k].tril(-1) + torch.eye(len(LU), k), LU[:k].triu()


def pivoted(A: Tensor, mode: str = "reduced") -> tuple[Tensor, ...]:
    kind = {"reduced": "economic", "complete": "full"}[mode]
    many = A.reshape(-1, *A.shape[-2:]).numpy()
    factors = [scipy.linalg.qr(a, mode=kind, pivoting=True)[:2] for a in many]
    stacks = (torch.from_numpy(np.stack(f)) for f in zip(*factors, strict=True))
    return tuple(f.reshape(*A.shape[:-2], *f.shape[1:]) for f in stacks)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """LAPACK's reads the real part of the diagonal alone."""
    L = (L.mH if upper else L).tril()
    inverse: Tensor = torch.linalg.inv(L @ L.mH)
    return inverse


def rule(*tensors: Any, initial_state: Tensor, output_final_state: bool) -> tuple[Tensor, Tensor]:
    output, state = by_tokens([*tensors[:5], initial_state])
    return torch.from_numpy(output), torch.from_numpy(state)


ORACLES: dict[str, Callable[..., Any]] = {
    "lu_factor-no_pivot": eliminated,
    "lu-no_pivot": two_factors,
    "cholesky_inverse": cholesky_inverse,
    "polar": matrices("(m,n)->(m,n),(n,n)", scipy.linalg.polar),
    "matrix_sqrth": matrices("(n,n)->(n,n)", scipy.linalg.sqrtm),
    "qr_pivoted": pivoted,
    "put_": Tensor.put_,
    "special.airy_ai": lambda x: torch.from_numpy(scipy.special.airy(x.numpy())[0]),
    "gated_delta.solve_tril": lambda A, output_dtype: torch.from_numpy(scipy_solve(A.numpy())),
    "gated_delta.chunk_gated_delta_rule": rule,
    "gated_delta.recurrent_gated_delta_rule": rule,
}


def oracle(case: Case) -> Callable[..., Any]:
    """A function of the same contract, of NumPy, SciPy or torch."""
    ours = ORACLES.get(case.name, ORACLES.get(case.public))
    if ours is not None:
        return ours
    short = case.public.removeprefix("special.")
    modules = (torch.special,) if short != case.public else (torch.linalg, torch)
    found: Callable[..., Any] = next(getattr(m, short) for m in modules if hasattr(m, short))
    return found


def wide(A: Tensor) -> Tensor:
    """On the CPU and in the widest dtype."""
    A = A.detach().cpu()
    if A.is_complex():
        return A.to(torch.complex128)
    return A.double() if A.is_floating_point() else A.to(torch.int64)


def test_every_public_function_has_a_case() -> None:
    assert {case.public for case in CASES} == set(public())
    assert len({case.name for case in CASES}) == len(CASES)
    assert {function for function, _ in EXCEPTIONS} <= set(public())


@cells(lambda case: case.dtypes)
def test_forward(case: Case, dtype: torch.dtype, conforms: Conforms, device: str) -> None:
    args = case.tensors(dtype, device)
    with conforms(case, "forward", dtype):
        got = case.outputs(*args)
        expected = flat(case.call(oracle(case), *map(wide, args)))
        for ours, exact in zip(got, expected, strict=True):
            assert ours.shape == exact.shape
            assert ours.device.type == device
            if ours.is_floating_point() or ours.is_complex():
                # Half precision that goes in rounds what comes out in single.
                rounded = dtype if dtype.is_floating_point or dtype.is_complex else ours.dtype
                roundings = 10 if rounded.itemsize == 2 else 1000
                tolerance = roundings * torch.finfo(rounded).eps * exact.abs().max()
                assert (wide(ours) - exact).abs().max() <= tolerance
            else:
                assert torch.equal(ours.cpu(), exact.to(ours.dtype))


def differentiable(outputs: tuple[Tensor, ...]) -> list[Tensor]:
    found = [r for r in outputs if r.requires_grad]
    if not found:
        raise NoDerivative
    return found


def fast(dtype: torch.dtype, args: tuple[Tensor, ...]) -> bool:
    return dtype.is_complex or sum(a.numel() for a in args) > SLOW_INPUTS


@cells(doubles)
def test_backward(case: Case, dtype: torch.dtype, conforms: Conforms, device: str) -> None:
    with conforms(case, "backward", dtype):
        args = case.tensors(dtype, device, grad=True)
        differentiable(case.outputs(*args))
        mode = fast(dtype, args)
        assert gradcheck(case.function, args, check_batched_grad=True, fast_mode=mode)


@cells(doubles)
def test_forward_mode(case: Case, dtype: torch.dtype, conforms: Conforms, device: str) -> None:
    with conforms(case, "forward mode", dtype):
        args = case.tensors(dtype, device, grad=True)
        with forward_ad.dual_level():
            make_dual: Any = forward_ad.make_dual
            unpack_dual: Any = forward_ad.unpack_dual
            duals = tuple(make_dual(a.detach(), torch.ones_like(a)) for a in args)
            out = case.outputs(*duals)
            if all(unpack_dual(r).tangent is None for r in out):
                raise NoDerivative
        assert gradcheck(
            case.function,
            args,
            check_forward_ad=True,
            check_backward_ad=False,
            check_undefined_grad=False,
            check_batched_grad=False,
            fast_mode=fast(dtype, args),
        )


@cells(doubles)
def test_second(case: Case, dtype: torch.dtype, conforms: Conforms, device: str) -> None:
    with conforms(case, "second", dtype):
        args = case.tensors(dtype, device, grad=True)
        differentiable(case.outputs(*args))
        assert gradgradcheck(case.function, args, fast_mode=True, check_fwd_over_rev=True)


def batch(x: Tensor, given: tuple[int, ...] | Tensor) -> Tensor:
    """Three tensors beside each other: of values the same in another order."""
    if isinstance(given, Tensor):
        return torch.stack([x, x.roll(1, 0), x.flip(0)], -1)
    return torch.stack([x, 2 * x, x + 1], -1)


@cells(doubles)
def test_vmap(case: Case, dtype: torch.dtype, conforms: Conforms, device: str) -> None:
    once = case.tensors(dtype, device)
    many = tuple(map(batch, once, case.inputs))
    count = len(many)
    ways = {(True,) * count, *(tuple(i == j for j in range(count)) for i in range(count))}

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        return case.outputs(*args)

    def check(batched: tuple[bool, ...]) -> None:
        args = tuple(y if b else x for x, y, b in zip(once, many, batched, strict=True))
        dims = tuple(-1 if b else None for b in batched)
        mapped = torch.vmap(case.outputs, in_dims=dims, randomness="same")
        if case.public == "put_" and not batched[0]:
            with pytest.raises(RuntimeError, match="vmap: inplace"):
                mapped(*args)
            return
        loop = [
            case.outputs(*(a[..., i] if b else a for a, b in zip(args, batched, strict=True)))
            for i in range(3)
        ]
        got = mapped(*args)
        for i, expected in enumerate(loop):
            close(tuple(r[i] for r in got), expected, dtype)
        if all(batched):
            twice = (torch.stack([a, a[..., [1, 2, 0]]]) for a in args)
            nested = torch.vmap(mapped, randomness="same")(*twice)
            for j, i in product(range(2), range(3)):
                close(tuple(r[j, i] for r in nested), loop[(i + j) % 3], dtype)

    with conforms(case, "vmap", dtype):
        for batched in ways:
            check(batched)


@cells(one_single)
def test_compile(case: Case, dtype: torch.dtype, conforms: Conforms, device: str) -> None:
    torch._dynamo.reset()
    bins = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=case.public == "bincount")
    with bins, conforms(case, "compile", dtype):
        args = case.tensors(dtype, device, grad=case.public not in NO_DERIVATIVE)
        expected = case.outputs(*args)
        compiled = torch.compile(case.outputs, fullgraph=True, backend="aot_eager")
        got = compiled(*args)
        close(got, expected, dtype)
        if any(r.requires_grad for r in expected):
            weights = [torch.randn_like(r) for r in expected if r.requires_grad]
            gradients, exact = (
                torch.autograd.grad(differentiable(r), args, weights) for r in (got, expected)
            )
            close(gradients, exact, dtype)
