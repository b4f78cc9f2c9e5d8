"""take, put, put_ and bincount held against NumPy and torch."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _indexing
from tests.inputs import DOUBLES, all_on, name, on

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

OPS: dict[str, Any] = {op.name: op for op in op_db if op.name in ("take", "put", "bincount")}
DTYPES = sorted(_indexing.DTYPES, key=str)


def raised(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[type, str]:
    with pytest.raises(Exception) as error:  # noqa: PT011
        function(*args, **options)
    return error.type, str(error.value)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("function", ["take", "put"])
def test_samples(function: str, dtype: torch.dtype, device: str) -> None:
    if device == "mps" and dtype in DOUBLES:
        pytest.skip("mps has no float64")
    torch.manual_seed(0)
    samples = list(OPS[function].sample_inputs("cpu", dtype))
    assert len(samples) >= 8
    for sample in samples + [s.noncontiguous() for s in samples]:
        args = [on(device, a) if isinstance(a, Tensor) else a for a in (sample.input, *sample.args)]
        ours = getattr(LA, function)(*args, **sample.kwargs)
        theirs = OPS[function].op(sample.input, *sample.args, **sample.kwargs)
        assert (ours.dtype, ours.shape, ours.stride()) == (
            theirs.dtype,
            theirs.shape,
            theirs.stride(),
        )
        torch.testing.assert_close(ours.cpu(), theirs)


def test_bincount_of_samples(device: str) -> None:
    for dtype in _indexing.COUNTED:
        for sample in OPS["bincount"].sample_inputs("cpu", dtype):
            ours = LA.bincount(on(device, sample.input), **all_on(device, sample.kwargs))
            theirs = torch.bincount(sample.input, **sample.kwargs)
            torch.testing.assert_close(ours.cpu(), theirs)


def test_torchs_error_inputs_of_take(device: str) -> None:
    count = 0
    for error in OPS["take"].error_inputs("cpu"):
        sample = error.sample_input
        args = sample.input, *sample.args
        given, options = all_on(device, (args, sample.kwargs))
        assert raised(LA.take, *given, **options) == raised(torch.take, *args, **sample.kwargs)
        count += 1
    assert count > 0


A, FIRST = torch.arange(6.0), torch.tensor([0, 1])
EMPTY, NONE = torch.empty(0), torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        ("take", (A, torch.tensor([6]))),
        ("take", (A, torch.tensor([-7]))),
        ("take", (EMPTY, FIRST)),
        ("take", (A, FIRST.float())),
        ("take", (A, FIRST.short())),
        ("take", (A, [0])),
        ("take", (A.to(torch.uint16), FIRST)),
        ("take", (A.to(torch.float8_e4m3fn), FIRST)),
        ("put", (A, torch.tensor([6]), A[:1])),
        ("put", (A, torch.tensor([-7]), A[:1])),
        ("put", (EMPTY, FIRST, A[:2])),
        ("put", (A, FIRST, A[:3])),
        ("put", (A, FIRST, A[:2].double())),
        ("put", (A, FIRST.short(), A[:2])),
        ("put", (A, FIRST, A[:2], 1)),
        ("put_", (A + 0, torch.tensor([0, 6]), torch.ones(2))),
        ("put_", (A, FIRST, torch.ones(3))),
        ("put_", (A, FIRST, torch.ones(2), None)),
        ("put_", (torch.ones(1).expand(6), FIRST, torch.ones(2))),
        ("put_", (torch.ones(6, requires_grad=True), FIRST, torch.ones(2))),
        ("put_", (A, FIRST, A[1:3])),
        ("put_", (FIRST, FIRST, FIRST.clone())),
        ("bincount", (FIRST[None],)),
        ("bincount", (FIRST - 1,)),
        ("bincount", (A,)),
        ("bincount", (FIRST.bool(),)),
        ("bincount", (FIRST, torch.ones(3))),
        ("bincount", (FIRST, None, -1)),
        ("bincount", (FIRST, None, 1.0)),
        ("bincount", (FIRST, None, 2**63)),
        ("bincount", (EMPTY,)),
    ],
    ids=str,
)
def test_errors_are_torchs(function: str, args: tuple[Any, ...], device: str) -> None:
    theirs: Any = torch.Tensor.put_ if function == "put_" else getattr(torch, function)
    given = all_on(device, args)
    before = args[0].detach().clone()
    ours = raised(getattr(LA, function), *given)
    assert torch.equal(given[0].detach().cpu(), before)
    assert ours == raised(theirs, *args)


def test_put_into_a_tensor_of_inference_mode(device: str) -> None:
    index, source = on(device, FIRST), torch.ones(2, device=device)
    LA.put_(torch.zeros(6, device=device), index, source)
    with torch.inference_mode():
        x = torch.zeros(6, device=device)
    # Also where a call of the kind was recorded before.
    for _ in range(2):
        assert raised(LA.put_, x, index, source) == raised(torch.Tensor.put_, x, index, source)
    with torch.inference_mode():
        x.zero_()
        assert LA.put_(x, index, source) is x
    assert x.tolist() == [1, 1, 0, 0, 0, 0]


def test_empty(device: str) -> None:
    none, some = on(device, NONE), on(device, A)
    assert LA.take(on(device, EMPTY), none.view(2, 0)).shape == (2, 0)
    assert torch.equal(LA.put(some, none, some[:0]), some)
    assert LA.put_(on(device, EMPTY), none, some[:0]).shape == (0,)
    for weights in (None, A[:0]):
        for minlength in (0, 3):
            ours = LA.bincount(none, all_on(device, weights), minlength)
            torch.testing.assert_close(ours.cpu(), torch.bincount(NONE, weights, minlength))


def test_put_is_in_place_and_counted(device: str) -> None:
    base = on(device, torch.zeros(4, 6))
    view, version = base[1:3, ::2], base._version
    result = LA.put_(view, on(device, torch.tensor([0, -1, 0])), on(device, A[1:4]))
    assert result is view
    assert base._version > version
    expected = torch.zeros(4, 6)
    expected[1, 0], expected[2, 4] = 3, 2
    assert torch.equal(base.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=name)
def test_the_same_bits_every_time_and_the_last_one_wins(dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    at = torch.randint(-50, 50, (5000,), generator=generator)
    B = torch.randn(5000, generator=generator).to(dtype)
    start, at, B = on(device, torch.zeros(50, dtype=dtype)), on(device, at), on(device, B)
    sums = LA.put(start, at, B, True)
    assert torch.equal(sums, LA.put(start, at, B, True))
    wide = torch.zeros(50, dtype=torch.complex128).put(at.cpu(), B.cpu().to(torch.complex128), True)
    # One rounding of the sum for half precision, and for the others some of its terms.
    tolerance = torch.finfo(dtype).eps * (1 if dtype == torch.bfloat16 else 30)
    assert (sums.cpu().to(torch.complex128) - wide).abs().max() <= tolerance * wide.abs().max()
    last = {i % 50: x for i, x in zip(at.tolist(), B.tolist(), strict=True)}
    assert LA.put(start, at, B).tolist() == [last[i] for i in range(50)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool], ids=name)
def test_integers_wrap_around(dtype: torch.dtype, device: str) -> None:
    largest = torch.tensor([1 if dtype == torch.bool else torch.iinfo(dtype).max], dtype=dtype)
    at = torch.zeros(3, dtype=torch.int64)
    ours = LA.put(on(device, largest), on(device, at), on(device, largest.expand(3)), True)
    assert torch.equal(ours.cpu(), largest.put(at, largest.expand(3), True))


@pytest.mark.parametrize("weights", [torch.float32, torch.float16, torch.int32], ids=name)
def test_weights(weights: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 4, (3000,), generator=generator)
    w = torch.randint(-9, 9, (3000,), generator=generator).to(weights)
    ours = LA.bincount(on(device, values), on(device, w), 6)
    if device != "mps":
        assert ours.dtype == torch.bincount(values, w).dtype
    assert np.array_equal(ours.cpu().numpy(), np.bincount(values.numpy(), w.numpy(), 6))


def test_weights_have_no_gradient(device: str) -> None:
    w = on(device, torch.ones(2)).requires_grad_()
    assert not LA.bincount(on(device, FIRST), w).requires_grad


AT = torch.tensor([[0, 3, -1], [7, 3, 2]])


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_are_torchs(accumulate: bool, device: str) -> None:
    def gradients(module: Any, device: str) -> list[Tensor]:
        X = torch.arange(12.0, device=device).view(3, 4).requires_grad_()
        B = torch.arange(3.0, device=device).requires_grad_()
        at = torch.tensor([5, 0, -1], device=device)
        result = module.take(module.put(X, at, B, accumulate), at[[0, 0, 1, 2]]).square().sum()
        return [g.cpu() for g in torch.autograd.grad(result, (X, B))]

    for ours, theirs in zip(gradients(LA, device), gradients(torch, "cpu"), strict=True):
        assert torch.equal(ours, theirs)


def test_vmap(device: str) -> None:
    X, B = (on(device, torch.randn(s, dtype=torch.float64)) for s in ((3, 4, 2), (3, 5)))
    at = torch.tensor([[0, 3, -1, 3, 2], [7, 1, 1, 1, 0], [0, 1, 2, 3, 4]], device=device)
    taken = torch.func.vmap(LA.take)(X, at)
    of_one = torch.func.vmap(LA.take, (0, None))(X, at[0])
    for accumulate in (False, True):
        result = torch.func.vmap(lambda x, i, b, a=accumulate: LA.put(x, i, b, a), (0, 0, 0))(
            X, at, B
        )
        shared = torch.func.vmap(lambda b, a=accumulate: LA.put(X[0], at[0], b, a))(B)
        for i in range(3):
            assert torch.equal(result[i], LA.put(X[i], at[i], B[i], accumulate))
            assert torch.equal(shared[i], LA.put(X[0], at[0], B[i], accumulate))
    for i in range(3):
        assert torch.equal(taken[i], LA.take(X[i], at[i]))
        assert torch.equal(of_one[i], LA.take(X[i], at[0]))
    rows = torch.func.jacrev(lambda x: LA.take(x, at[0]))(X[0])
    assert torch.equal(rows, torch.func.jacfwd(lambda x: LA.take(x, at[0]))(X[0]))


def test_compile(device: str) -> None:
    X, B, at = on(device, torch.randn(3, 4)), on(device, torch.randn(6)), AT.to(device)

    def function(X: Tensor, B: Tensor) -> Tensor:
        Y = LA.put_(X * 1, at, B, True)
        return LA.take(LA.put(Y, at, B), at)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X, B), function(X, B))
    X.requires_grad_()
    (ours,) = torch.autograd.grad(compiled(X, B).sum(), X)
    assert torch.equal(ours, torch.autograd.grad(function(X, B).sum(), X)[0])
    bad = torch.compile(lambda X: LA.take(X, at + 12), fullgraph=True, backend="aot_eager")
    with pytest.raises(IndexError, match="out of range: tried to access index"):
        bad(X.detach())


def test_opcheck(device: str) -> None:
    X, B, at = on(device, torch.randn(3, 4)), on(device, torch.randn(2, 3)), AT.to(device)
    torch.library.opcheck(torch.ops.mpslinalg.take.default, (X, at, 2, 2))
    for accumulate in (False, True):
        torch.library.opcheck(torch.ops.mpslinalg.put.default, (X, at, B, accumulate, 2, 2))


def test_which(device: str) -> None:
    assert LA.which("take", A.to(device), FIRST).endswith("indexing_take")
    assert LA.which("put_", A.to(device), FIRST, A).endswith("indexing_claim, indexing_put")
    assert LA.which("put", A.to(device), FIRST, A, True).endswith("torch's sort, indexing_add")
    assert "indexing_count up to 4096" in LA.which("bincount", FIRST.to(device))
    with LA.use("torch"):
        assert LA.which("take", A, FIRST) == "take: torch on cpu: use('torch')"
    with LA.use("auto"):
        assert LA.which("take", A, FIRST) == "take: torch on cpu: its own kernels do"


@pytest.mark.parametrize("mode", ["auto", "torch"])
def test_without_kernels_torch_runs(mode: str) -> None:
    values, at = A.clone(), FIRST.int()
    with LA.use(mode):
        assert LA.take(values, at).tolist() == [0, 1]
        assert LA.put(values, at, A[4:]).tolist() == [4, 5, 2, 3, 4, 5]
        assert LA.put_(values, at, A[4:], True) is values
        assert LA.bincount(at).tolist() == [1, 1]
    assert values.tolist() == [4, 6, 2, 3, 4, 5]
