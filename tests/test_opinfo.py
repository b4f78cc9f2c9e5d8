"""torch's own test samples for these functions, through the kernels, against torch.linalg.

The samples' database has error inputs for ormqr only: test_errors.py has ours.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import mpslinalg as LA

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

NAMES = [
    "cholesky_inverse",
    "cholesky_solve",
    "geqrf",
    "linalg.cholesky",
    "linalg.cholesky_ex",
    "linalg.cond",
    "linalg.det",
    "linalg.eigvalsh",
    "linalg.householder_product",
    "linalg.inv",
    "linalg.inv_ex",
    "linalg.ldl_factor",
    "linalg.ldl_factor_ex",
    "linalg.ldl_solve",
    "linalg.lu",
    "linalg.lu_factor",
    "linalg.lu_factor_ex",
    "linalg.lu_solve",
    "linalg.matrix_norm",
    "linalg.matrix_rank",
    "linalg.pinv",
    "linalg.qr",
    "linalg.slogdet",
    "linalg.solve",
    "linalg.solve_ex",
    "linalg.solve_triangular",
    "linalg.svdvals",
    "lu_unpack",
    "ormqr",
]
# Of pinv there are two kinds of samples more: test_pinv.py has such matrices, but for the products
# of factors of which "singular" consists.
OPS = [op for op in op_db if op.name in NAMES and op.variant_test_name != "singular"]
# Samples, views included, where there are less than 24.
FEW = {"linalg.cond": 7, "linalg.ldl_factor": 12, "linalg.ldl_factor_ex": 12}
SINGLES = [torch.float32, torch.complex64]
DOUBLES = [torch.float64, torch.complex128]
SIZES = ["empty", "right", "wrong"]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "conj": lambda t: t.conj() if t.is_complex() else t,
    # Of the same values: a negated matrix is not positive definite.
    "neg": lambda t: torch._neg_view(-t) if t.is_floating_point() else t,
    "offset": lambda t: torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape),
}


def samples(op: Any, dtype: torch.dtype, device: str, turn: int, turns: int) -> Iterator[Any]:
    """All samples, then this turn's without contiguous tensors, then those as views of every kind.

    The CPU's samples, which LAPACK can answer: on CUDA the database adds LU without pivoting.
    All turns together see every sample in every kind of view.
    """
    torch.manual_seed(0)
    plain = [
        s.transform(lambda t: t.to(device) if isinstance(t, Tensor) else t)
        for s in op.sample_inputs("cpu", dtype)
    ]
    yield from plain
    own = plain[turn::turns]
    yield from (s.noncontiguous() for s in own)
    for view in VIEWS.values():
        yield from (
            s.transform(lambda t, v=view: v(t) if isinstance(t, Tensor) else t) for s in own
        )


def to_cpu(A: Any) -> Any:
    """A on the CPU, a conjugate view as one: torch chooses strides by it."""
    if not isinstance(A, Tensor):
        return A
    return A.conj().cpu().conj() if A.is_conj() else A.cpu()


def test_every_function_has_samples() -> None:
    assert sorted({op.name for op in OPS}) == sorted(NAMES)
    assert {op.name for op in OPS if op.error_inputs_func is not None} == {"ormqr"}


@pytest.mark.parametrize("dtype", SINGLES + DOUBLES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_samples(op: Any, dtype: torch.dtype, device: str) -> None:
    if device == "mps" and dtype in DOUBLES:
        pytest.skip("mps has no float64")
    function = getattr(LA, op.name.removeprefix("linalg."))
    tolerance = 1e3 * torch.finfo(dtype).eps
    count = 0
    # Real samples take their turns in both precisions, and so do complex ones.
    for sample in samples(op, dtype, device, int(dtype in DOUBLES), 2):
        args = (sample.input, *sample.args)
        with LA.use("kernels"):
            got = function(*args, **sample.kwargs)
        expected = op.op(*map(to_cpu, args), **sample.kwargs)
        assert type(got) is type(expected)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        for ours, theirs in pairs:
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert ours.stride() == theirs.stride()
            assert ours.device.type == device
            assert not ours.is_conj()
            assert not ours.is_neg()
            torch.testing.assert_close(ours.cpu(), theirs, rtol=tolerance, atol=tolerance)
        count += 1
    assert count >= FEW.get(op.name, 24)


@pytest.mark.parametrize("dtype", SINGLES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("size", SIZES)
def test_samples_to_out(op: Any, dtype: torch.dtype, size: str, device: str) -> None:
    function = getattr(LA, op.name.removeprefix("linalg."))
    tolerance = 1e3 * torch.finfo(dtype).eps
    torch.manual_seed(0)
    count = 0
    for sample in samples(op, dtype, device, SIZES.index(size), len(SIZES)):
        args = (sample.input, *sample.args)
        cpu = tuple(map(to_cpu, args))
        result = op.op(*cpu, **sample.kwargs)

        def outs(on: torch.device, result: Any = result) -> Any:
            results = result if isinstance(result, tuple) else (result,)
            shapes = [{"empty": (0,), "right": r.shape, "wrong": (3, 1, 7)}[size] for r in results]
            made = tuple(
                torch.zeros(s, dtype=r.dtype, device=on)
                for s, r in zip(shapes, results, strict=True)
            )
            return made if isinstance(result, tuple) else made[0]

        got, words = warned(function, args, outs(args[0].device), sample.kwargs)
        expected, torchs_words = warned(op.op, cpu, outs(cpu[0].device), sample.kwargs)
        assert words == torchs_words
        assert type(got) is type(expected)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        for ours, theirs in pairs:
            assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
            torch.testing.assert_close(ours.cpu(), theirs, rtol=tolerance, atol=tolerance)
        count += 1
    assert count >= FEW.get(op.name, 24) / 3


def warned(
    function: Callable[..., Any], args: tuple[Tensor, ...], out: Any, kwargs: dict[str, Any]
) -> tuple[Any, list[str]]:
    """The result, which must be `out` itself, and the warnings."""
    with warnings.catch_warnings(record=True) as caught, LA.use("kernels"):
        warnings.simplefilter("always")
        result = function(*args, out=out, **kwargs)
    pairs = zip(result, out, strict=True) if isinstance(out, tuple) else [(result, out)]
    assert all(r is o for r, o in pairs)
    return result, sorted(str(w.message) for w in caught)
