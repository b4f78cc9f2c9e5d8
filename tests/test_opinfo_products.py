"""torch's own samples and error inputs for products, norms and functions built on others."""

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import mpslinalg as LA
from tests.inputs import DOUBLES, SINGLES, all_on, name, on

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values to real discards")

NAMES = [
    "linalg.cross",
    "linalg.diagonal",
    "linalg.matrix_norm",
    "linalg.matrix_power",
    "linalg.multi_dot",
    "linalg.norm",
    "linalg.tensorinv",
    "linalg.tensorsolve",
    "linalg.vander",
    "linalg.vecdot",
    "linalg.vector_norm",
    "matmul",
    "matrix_exp",
]
OPS = [op for op in op_db if op.name in NAMES and op.variant_test_name == ""]
WITHOUT_OUT = ("diagonal", "vander", "matrix_exp")
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
# Integers and half precision where torch has them; of those it rounds products as we do not.
OTHERS = (torch.int64, torch.bfloat16)


def function(op: Any) -> Any:
    return getattr(LA, op.name.removeprefix("linalg."))


def given(device: str, values: Any) -> Any:
    if isinstance(values, Tensor):
        return on(device, values.detach()).requires_grad_(values.requires_grad)
    if isinstance(values, (tuple, list)):
        return type(values)(given(device, v) for v in values)
    return values


def samples(op: Any, dtype: torch.dtype, gradient: bool = False) -> Iterator[tuple[Any, Any]]:
    """Arguments and options of all samples, in single precision with gaps between entries too."""
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=gradient):
        yield (sample.input, *sample.args), sample.kwargs
        if dtype in SINGLES:
            apart = sample.noncontiguous()
            yield (apart.input, *apart.args), apart.kwargs


def exp_error(A: Tensor, X: Tensor) -> float:
    """The largest ||X - exp(A)|| / (n cond eps ||exp(A)||) of a batch, by SciPy in double.

    Of one sample torch's own result in single precision has an entry with three digits.
    """
    errors = [0.0]
    n, eps = A.shape[-1], torch.finfo(A.dtype).eps / 2
    wide = torch.complex128 if A.is_complex() else torch.float64
    if A.numel() > 0:
        pairs = (Y.to("cpu", wide).reshape(-1, n, n).numpy() for Y in (A, X))
        for a, x in zip(*pairs, strict=True):
            exact = scipy.linalg.expm(a)
            allowed = n * eps * scipy.linalg.expm_cond(a) * np.linalg.norm(exact)
            errors.append(float(np.linalg.norm(x - exact) / allowed))
    return float(np.max(errors))


def torch_lacks(op: Any, args: Any, options: Any) -> bool:
    """Whether torch has no such elements on the device, as products of integers on CUDA."""
    try:
        op.op(*args, **options)
    except NotImplementedError:
        return True
    return False


def test_every_function_has_samples() -> None:
    assert sorted(op.name for op in OPS) == NAMES


@pytest.mark.parametrize("dtype", SINGLES + DOUBLES + OTHERS, ids=name)
@each_op
def test_samples(op: Any, dtype: torch.dtype, device: str) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("torch has no such elements here")
    if op.name == "matrix_exp" and dtype == torch.bfloat16:
        pytest.skip("torch's is NaN: test_matrix_functions.py has ours")
    tolerance = 0 if dtype == torch.int64 else 1e3 * torch.finfo(dtype).eps
    if dtype == torch.bfloat16:
        tolerance = 0.1
    count = 0
    for args, options in samples(op, dtype):
        expected, there = op.op(*args, **options), given(device, args)
        count += 1
        if dtype == torch.int64 and torch_lacks(op, there, options):
            with LA.use("kernels"), pytest.raises(NotImplementedError, match="for 'Long'"):
                function(op)(*there, **options)
            continue
        with LA.use("kernels"):
            got = function(op)(*there, **options)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert not got.is_conj()
        if op.name == "matrix_exp" and dtype in SINGLES:
            assert exp_error(args[0], got) <= 1
        else:
            torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance)
        if dtype in SINGLES and op.name.removeprefix("linalg.") not in WITHOUT_OUT:
            out = torch.empty(0, dtype=expected.dtype, device=device)
            with LA.use("kernels"):
                assert function(op)(*there, **options, out=out) is out
            torch.testing.assert_close(out.cpu(), expected, rtol=tolerance, atol=tolerance)
    assert count >= 2


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
@each_op
def test_gradients(op: Any, dtype: torch.dtype, device: str) -> None:
    count = 0
    for args, options in samples(op, dtype, gradient=True):
        if count == 20:
            break
        flat = [a for a in torch.utils._pytree.tree_leaves(args) if isinstance(a, Tensor)]
        expected = op.op(*args, **options)
        if not expected.requires_grad or expected.numel() == 0:
            continue
        ours = given(device, args)
        with LA.use("kernels"):
            got = function(op)(*ours, **options)
        leaves = [a for a in torch.utils._pytree.tree_leaves(ours) if isinstance(a, Tensor)]
        weight = torch.linspace(0.5, 1.5, expected.numel(), dtype=dtype).view(expected.shape)
        weight = weight.to(expected.dtype)
        theirs = torch.autograd.grad(expected, flat, weight, allow_unused=True)
        with LA.use("kernels"):
            gradients = torch.autograd.grad(got, leaves, on(device, weight), allow_unused=True)
        for g, e in zip(gradients, theirs, strict=True):
            if e is None or e.isnan().any():
                continue
            torch.testing.assert_close(g.cpu(), e, rtol=1e-8, atol=1e-8)
        count += 1
    assert count >= 2


@pytest.mark.parametrize(
    "op", [op for op in OPS if op.error_inputs_func is not None], ids=lambda op: op.name
)
def test_torchs_error_inputs(op: Any, device: str) -> None:
    count = 0
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        args = (sample.input, *sample.args)
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            op.op(*args, **sample.kwargs)
        there, options = all_on(device, (args, sample.kwargs))
        with LA.use("kernels"), pytest.raises(Exception) as ours:  # noqa: PT011
            function(op)(*there, **options)
        assert (ours.type, str(ours.value)) == (theirs.type, str(theirs.value))
        count += 1
    assert count > 0


HALF = torch.ones(3, 3).half()
T = torch.ones


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("cross", (T(2, 3).bool(), T(2, 3).bool()), {}),
        ("cross", (T(()), T(())), {}),
        ("cross", (T(2, 3), T(2, 3)), {"out": torch.empty(2, 3).double()}),
        ("cross", (T(2, 3), T(2, 3)), {"dim": 5}),
        ("cross", (T(2, 3), T(2, 3).double()), {}),
        ("vecdot", (T(3), T(4)), {}),
        ("vecdot", (T(3), T(3).double()), {}),
        ("vecdot", (T(3).long(), T(3).long()), {}),
        ("vecdot", (T(2, 3), T(3)), {"dim": 5}),
        ("vecdot", (T(2, 3), T(3)), {"out": torch.empty(2).double()}),
        ("matmul", (T(3), T(4)), {}),
        ("matmul", (T(3, 3), T(3, 3).double()), {}),
        ("multi_dot", ([T(2, 3)],), {}),
        ("multi_dot", ((),), {}),
        ("multi_dot", ([T(2, 3), T(2)],), {}),
        ("multi_dot", ([T(2, 3), T(3).double()],), {}),
        ("multi_dot", ([T(2, 3, 3), T(3)],), {}),
        ("multi_dot", ([T(2, 3), T(3), T(3)],), {}),
        ("multi_dot", ([T(2, 3), T(3, 4)],), {"out": torch.empty(1).double()}),
        ("matrix_power", (T(2, 3), 2), {}),
        ("matrix_power", (T(3), 2), {}),
        ("matrix_power", (T(3, 3).long(), -2), {}),
        ("matrix_power", (HALF, -2), {}),
        ("matrix_power", (T(2, 2), -1), {}),
        ("matrix_power", (T(2, 2), 1.5), {}),
        ("matrix_power", (T(2, 2).bool(), 2), {}),
        ("matrix_power", (T(2, 2), True), {}),
        ("matrix_exp", (T(2, 3),), {}),
        ("matrix_exp", (T(3),), {}),
        ("matrix_exp", (T(3, 3).long(),), {}),
        ("vander", (T(()),), {}),
        ("vander", (T(3),), {"N": 1}),
        ("vander", (T(3),), {"N": 2.0}),
        ("vander", (T(3).bool(),), {}),
        ("vander", (T(3).half(),), {}),
        ("tensorinv", (T(4, 6),), {"ind": 0}),
        ("tensorinv", (T(4, 6),), {"ind": 1}),
        ("tensorinv", (T(4, 4),), {"ind": 1}),
        ("tensorinv", (T(4, 4),), {"ind": 3}),
        ("tensorinv", (T(4, 4).long(),), {"ind": 1}),
        ("tensorinv", (T(4, 4),), {"ind": 1.5}),
        ("tensorsolve", (T(2, 3, 6), T(3, 2)), {}),
        ("tensorsolve", (T(2, 3, 5), T(2, 3)), {}),
        ("tensorsolve", (T(6, 6), T(6).double()), {}),
        ("tensorsolve", (T(2, 3, 6), T(2, 3)), {"dims": (5,)}),
        ("tensorsolve", (T(6, 6), T(6)), {"dims": (0, 0)}),
        ("tensorsolve", (T(6, 6), T(6)), {"dims": 0}),
        ("norm", (T(3), "fro"), {}),
        ("norm", (T(3, 3), "fro"), {"dim": 0}),
        ("norm", (T(2, 3, 4), 2), {}),
        ("norm", (T(3, 3), 3), {}),
        ("norm", (T(3, 3), "x"), {}),
        ("norm", (T(2, 3, 4), 1), {"dim": (0, 1, 2)}),
        ("norm", (T(2, 3), 2), {"dim": []}),
        ("norm", (T(2, 3),), {"dim": []}),
        ("norm", (T(()), 2), {}),
        ("norm", (T(3).long(),), {}),
        ("norm", (T(2, 3),), {"out": torch.empty(0).double()}),
        ("vector_norm", (T(3), 1j), {}),
        ("vector_norm", (T(3), None), {}),
        ("vector_norm", (T(3), "fro"), {}),
        ("vector_norm", (T(0), torch.inf), {}),
        ("vector_norm", (T(0), -1), {}),
        ("vector_norm", (T(2, 0), torch.inf), {"dim": 1}),
        ("vector_norm", (T(3),), {"dtype": torch.half}),
        ("vector_norm", (T(3),), {"dtype": torch.complex64}),
        ("vector_norm", (T(3) + 0j,), {"dtype": torch.float32}),
        ("vector_norm", (T(3, 3),), {"dim": (0, 0)}),
        ("vector_norm", (T(3, 3),), {"dim": 2}),
        ("vector_norm", (T(3, 3),), {"dim": 1.0}),
        ("vector_norm", (T(3, 3),), {"keepdim": 1}),
        ("vector_norm", (T(3),), {"out": torch.empty(0).half()}),
        ("diagonal", (T(3),), {}),
        ("diagonal", (T(3, 3),), {"dim1": 0, "dim2": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_torchs(
    name: str, args: tuple[Any, ...], options: dict[str, Any], device: str
) -> None:
    def error(module: Any, args: Any, options: Any) -> tuple[type, str]:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            getattr(module, name)(*args, **options)
        # What torch got is in its words, and we pass it all arguments.
        return caught.type, re.sub(r" - got.*| \(position \d\)", "", str(caught.value))

    there = all_on(device, (args, options))
    with LA.use("kernels"):
        ours = error(LA, *there)
    # Of its products torch says other things on a GPU.
    if ours != error(torch.linalg, args, options):
        assert ours == error(torch.linalg, *there)
