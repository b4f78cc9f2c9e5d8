"""Plain torch.linalg calls on our kernels: every operation, torch's samples, errors, derivatives."""

import itertools
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import mpslinalg as LA
from mpslinalg import _aten, _eig_plan, _enable, testing
from mpslinalg._engines import Kernel
from mpslinalg._engines.program import Program
from tests.inputs import random_definite, random_hermitian
from tests.test_errors import bad_calls, raised, singular, torch_function

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

# The operations that calls of these functions become.
FUNCTIONS = {
    "linalg_lu_factor_ex": ("linalg.lu_factor", "linalg.lu_factor_ex"),
    "linalg_lu": ("linalg.lu",),
    "lu_unpack": ("lu_unpack",),
    "linalg_lu_solve": ("linalg.lu_solve", "lu_solve"),
    "linalg_solve_triangular": ("linalg.solve_triangular",),
    "_linalg_solve_ex": ("linalg.solve", "linalg.solve_ex"),
    "linalg_inv_ex": ("linalg.inv", "linalg.inv_ex"),
    "_linalg_det": ("linalg.det",),
    "_linalg_slogdet": ("linalg.slogdet",),
    "linalg_cholesky_ex": ("linalg.cholesky", "linalg.cholesky_ex"),
    "_cholesky_solve_helper": ("cholesky_solve",),
    "cholesky_inverse": ("cholesky_inverse",),
    "linalg_ldl_factor_ex": ("linalg.ldl_factor", "linalg.ldl_factor_ex"),
    "linalg_ldl_solve": ("linalg.ldl_solve",),
    "linalg_qr": ("linalg.qr",),
    "geqrf": ("geqrf",),
    "linalg_householder_product": ("linalg.householder_product",),
    "ormqr": ("ormqr",),
    "_linalg_svd": ("linalg.svd", "linalg.svdvals"),
    "_linalg_eigh": ("linalg.eigh", "linalg.eigvalsh"),
    "linalg_eig": ("linalg.eig",),
    "_linalg_eigvals": ("linalg.eigvals",),
    # Only to out=.
    "linalg_eigvals": ("linalg.eigvals",),
    "linalg_lstsq": ("linalg.lstsq",),
}
OPS = {op.name: op for op in op_db if op.variant_test_name == ""}
CALLED = [(a, name) for a, names in FUNCTIONS.items() for name in names]
DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
SAMPLES = 6


@pytest.fixture
def enabled(device: str) -> Iterator[None]:
    """Our kernels under torch.linalg on the device of the tests, everywhere."""
    with LA.use("kernels"), LA.enable(device):
        yield


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Kernels launched by each operation of aten."""
    counts = dict.fromkeys(_aten.OPERATIONS, 0)
    inside: list[str] = []

    def counted(call: Callable[..., Any], of: Callable[..., int]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            for name in inside[-1:]:
                counts[name] += of(self)
            return call(self, *args, **kwargs)

        return run

    def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            inside.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                inside.pop()

        return run

    monkeypatch.setattr(Kernel, "__call__", counted(Kernel.__call__, lambda _: 1))
    monkeypatch.setattr(Program, "run", counted(Program.run, lambda self: len(self.launches)))
    for name, operation in _aten.OPERATIONS.items():
        replaced = operation._replace(run=named(name, operation.run))
        monkeypatch.setitem(_aten.OPERATIONS, name, replaced)
    return counts


def samples(name: str, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(0)
    every = [s for s in OPS[name].sample_inputs("cpu", dtype) if s.input.numel() > 0]
    few = every[:: max(len(every) // SAMPLES, 1)][:SAMPLES]
    return [*few, few[0].noncontiguous(), few[-1].transform(_conjugate_view)]


def _conjugate_view(value: Any) -> Any:
    return value.conj().resolve_conj().conj() if isinstance(value, Tensor) else value


def doubled(value: Any) -> Any:
    wide = isinstance(value, Tensor) and value.dtype in DOUBLE
    return value.to(DOUBLE[value.dtype]) if wide else value


def listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def check(name: str, sample: Any, got: list[Tensor], expected: list[Tensor]) -> None:
    """Results against those in double precision; of what is not unique, what defines it."""
    A = doubled(sample.input)
    tolerance = 1e3 * torch.finfo(sample.input.dtype).eps

    def close(x: Tensor, y: Tensor) -> None:
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, check_dtype=False)

    if name == "linalg.svd":
        U, S, Vh = map(doubled, got)
        k = S.shape[-1]
        close(S, expected[1])
        close((U[..., :k] * S.unsqueeze(-2)) @ Vh[..., :k, :], A)
        close(U.mH @ U, torch.eye(U.shape[-1]).expand(U.mT.shape[:-1] + U.shape[-1:]).to(U))
    elif name == "linalg.eigh":
        L, V = map(doubled, got)
        close(L, expected[0])
        close((V * L.unsqueeze(-2)) @ V.mH, (expected[1] * expected[0].unsqueeze(-2)) @ expected[1].mH)
    elif name == "linalg.eig":
        L, V = map(doubled, got)
        close(A.to(V.dtype) @ V, V * L.unsqueeze(-2))
        close(torch.linalg.vector_norm(V, dim=-2), torch.ones(L.shape))
    elif name == "linalg.eigvals":
        distance = (doubled(got[0]).unsqueeze(-1) - expected[0].unsqueeze(-2)).abs()
        for side in (-1, -2):
            close(distance.amin(side), torch.zeros(got[0].shape))
    else:
        for x, y in zip(got, expected, strict=True):
            close(x, y)


def test_every_operation_is_tested() -> None:
    assert set(FUNCTIONS) == set(_aten.OPERATIONS)


@pytest.mark.parametrize("dtype", DOUBLE, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize(("aten", "name"), CALLED)
def test_samples(aten: str, name: str, dtype: torch.dtype, launches: dict[str, int]) -> None:
    if aten == "linalg_eigvals":
        pytest.skip("torch composes it")
    op = OPS[name].op
    for sample in samples(name, dtype):
        args = (sample.input, *sample.args)
        theirs = op(*args, **sample.kwargs)
        expected = op(*map(doubled, args), **sample.kwargs)
        before = launches[aten]
        with LA.enable("cpu"):
            got = op(*args, **sample.kwargs)
        assert launches[aten] > before
        assert type(got) is type(theirs)
        for ours, torchs in zip(listed(got), listed(theirs), strict=True):
            assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape)
            # Torch's X of lstsq may lie in B, whose other rows are residuals.
            assert ours.stride() == torchs.stride() or name == "linalg.lstsq"
        check(name, sample, listed(got), listed(expected))


@pytest.mark.parametrize(("aten", "name"), CALLED)
def test_samples_to_out(aten: str, name: str, launches: dict[str, int]) -> None:
    op = OPS[name].op
    # Of these torch makes a copy of a result, and needs no operation with out=.
    aten = "linalg_eigvals" if name == "linalg.eigvals" else aten
    for sample in samples(name, torch.float32)[:3]:
        args = (sample.input, *sample.args)
        result = op(*args, **sample.kwargs)
        expected = op(*map(doubled, args), **sample.kwargs)
        for shape in [(0,), None]:
            def outs(shape: Any = shape, result: Any = result) -> Any:
                made = [
                    torch.zeros(r.shape if shape is None else shape, dtype=r.dtype)
                    for r in listed(result)
                ]
                return tuple(made) if isinstance(result, tuple) else made[0]

            theirs, ours = outs(), outs()
            op(*args, **sample.kwargs, out=theirs)
            before = launches[aten]
            with LA.enable("cpu"):
                returned = op(*args, **sample.kwargs, out=ours)
            assert launches[aten] > before
            assert all(r is o for r, o in zip(listed(returned), listed(ours), strict=True))
            for x, y in zip(listed(ours), listed(theirs), strict=True):
                assert (x.shape, x.stride()) == (y.shape, y.stride()) or name == "linalg.lstsq"
            check(name, sample, listed(ours), listed(expected))
