"""Plain torch calls on our elementwise and indexing kernels, against torch alone."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import mpslinalg as LA
from mpslinalg import _aten_elementwise, _enable, _special_plan
from mpslinalg._elementwise_plan import COMPARISONS
from tests.inputs import on
from tests.opinfo import doubled, listed
from tests.test_enable import make_dual, unpack_dual, warned
from tests.test_errors import raised

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated",
    "ignore:.*should not be instantiated:DeprecationWarning",
)
SPECIAL = ("airy_ai", "log_ndtr", "ndtri", *_special_plan.POLYNOMIALS)
# The operations that calls of these functions become.
FUNCTIONS = {
    **{f"special_{name}": f"special.{name}" for name in SPECIAL},
    **{name: name for name in ("bincount", "frexp", "heaviside", "logspace", "take", *COMPARISONS)},
    **{f"{name}_": name for name in ("heaviside", "put", *COMPARISONS)},
}
IN_PLACE = [name for name in FUNCTIONS if name.endswith("_") and name != "put_"]
OPS: dict[str, Any] = {op.name: op for op in op_db if op.variant_test_name == ""}
WIDE = (torch.uint16, torch.uint32, torch.uint64)
SAMPLES = 4


def samples(name: str, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(0)
    every = [
        s
        for s in OPS[name].sample_inputs("cpu", dtype)
        if all(x.numel() > 0 for x in (s.input, *s.args) if isinstance(x, Tensor))
        and (name != "logspace" or (s.args[1] > 0 and s.kwargs.get("dtype") is None))
    ]
    few = every[:: max(len(every) // SAMPLES, 1)][:SAMPLES]
    return [*few, *(s.noncontiguous() for s in few[-2:])]


def close(ours: Any, expected: Any) -> None:
    tolerance = 1e3 * torch.finfo(torch.float32).eps
    for x, y in zip(listed(ours), listed(expected), strict=True):
        torch.testing.assert_close(
            x, y, rtol=tolerance, atol=tolerance, check_dtype=False, equal_nan=True
        )


def test_every_operation_is_tested() -> None:
    names = {
        name for name, operation in _aten_elementwise.OPERATIONS.items() if operation.route is None
    }
    assert names == set(FUNCTIONS)


@pytest.mark.parametrize("aten", [name for name in FUNCTIONS if name not in IN_PLACE])
def test_samples(aten: str, launches: dict[str, int]) -> None:
    name = FUNCTIONS[aten]
    op, compares = OPS[name].op, name in COMPARISONS
    dtype = torch.uint8 if compares else {"bincount": torch.int32}.get(name, torch.float32)
    cases = []
    for sample in samples(name, dtype):
        args = (sample.input, *sample.args)
        theirs = op(*args, **sample.kwargs)
        expected = theirs if name == "logspace" else op(*map(doubled, args), **sample.kwargs)
        cases.append((unsigned(args) if compares else args, sample.kwargs, theirs, expected))
    with LA.enable("cpu"):
        for args, kwargs, theirs, expected in cases:
            before = launches[aten]
            ours = op(*args, **kwargs)
            assert launches[aten] > before
            assert type(ours) is type(theirs)
            for x, y in zip(listed(ours), listed(theirs), strict=True):
                assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
            close(ours, expected)


def unsigned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.to(torch.uint16) if isinstance(x, Tensor) else x for x in args)


# bincount and put write to no out= that Python can name.
@pytest.mark.parametrize("aten", [a for a in FUNCTIONS if a[-1] != "_" and a != "bincount"])
def test_to_out(aten: str, launches: dict[str, int]) -> None:
    name = FUNCTIONS[aten]
    op, compares = OPS[name].op, name in COMPARISONS
    sample = samples(name, torch.uint8 if compares else torch.float32)[0]
    args = (sample.input, *sample.args)
    result = listed(op(*args, **sample.kwargs))
    cases = []
    for wide in (False, True) if compares or aten.startswith("special") else (False,):
        for shapes in ([(0,)] * len(result), [r.shape for r in result], [(3, 1, 7)] * len(result)):
            theirs, ours = (
                [
                    torch.zeros(s, dtype=torch.float64 if wide else r.dtype)
                    for s, r in zip(shapes, result, strict=True)
                ]
                for _ in range(2)
            )
            cases.append((theirs, warned(op, args, theirs, sample.kwargs)[1], ours))
    args = unsigned(args) if compares else args
    with LA.enable("cpu"):
        for _, words, ours in cases:
            before = launches[aten]
            returned, our_words = warned(op, args, ours, sample.kwargs)
            assert launches[aten] > before
            assert set(our_words) == set(words)  # torch may warn twice, where it casts
            assert all(r is o for r, o in zip(listed(returned), ours, strict=True))
    for theirs, _, ours in cases:
        assert [(x.shape, x.stride()) for x in ours] == [(x.shape, x.stride()) for x in theirs]
        close(tuple(ours), tuple(theirs))


def test_numbers_for_tensors(launches: dict[str, int]) -> None:
    x, n = torch.linspace(-1, 1, 5), torch.arange(5)
    for name in _special_plan.POLYNOMIALS:
        function = getattr(torch.special, name)
        expected = function(x.double(), 3), function(0.25, n.double())
        with LA.enable("cpu", comparisons=False):
            ours = function(x, 3), function(0.25, n)
            with LA.use("torch"):
                theirs = function(x, 3), function(0.25, n)
        assert launches[f"special_{name}"] > 1
        assert [y.dtype for y in ours] == [y.dtype for y in theirs] == [torch.float32] * 2
        close(ours, expected)
        close(theirs, expected)


@pytest.mark.parametrize("aten", IN_PLACE)
def test_in_place(aten: str, launches: dict[str, int]) -> None:
    x, y = torch.tensor([[0, 1, 2], [3, 2, 0]]), torch.tensor([1, 1, 2])
    expected = getattr(x.clone(), aten)(y)
    x, y = x.to(torch.uint32), y.to(torch.uint32)
    version = x._version
    with LA.enable("cpu"):
        ours = getattr(x, aten)(y)
    assert ours is x
    assert x._version == version + 1
    assert x.tolist() == expected.tolist()
    assert launches[aten] > 0


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_comparisons(name: str, dtype: torch.dtype) -> None:
    largest = torch.iinfo(dtype).max
    x, y = (
        torch.tensor([0, 1, largest, largest], dtype=dtype),
        torch.tensor([[1], [largest]], dtype=dtype),
    )
    numpys = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}
    numpys |= {"gt": "greater", "ge": "greater_equal"}
    compare = getattr(np, numpys[name])
    with LA.enable("cpu"):
        results = [
            (getattr(torch, name)(x, y), compare(x.numpy(), y.numpy())),
            (getattr(torch, name)(x, 1), compare(x.numpy(), 1)),
            (getattr(torch, name)(x, 0.5), compare(x.numpy(), 0.5)),
        ]
    for ours, expected in results:
        assert ours.tolist() == expected.tolist()


def test_comparisons_of_other_dtypes_are_torchs(launches: dict[str, int]) -> None:
    x = torch.arange(3.0)
    with LA.use("kernels"), LA.enable("cpu"):
        assert (x == x).all()
        assert (x < 2).tolist() == [True, True, False]
    assert launches["eq"] == launches["lt"] == 0


def test_comparisons_may_be_left_out(launches: dict[str, int]) -> None:
    x = torch.ones(2, dtype=torch.uint16)

    def is_ours() -> bool:
        before = launches["eq"]
        assert (x == x).all()
        return launches["eq"] > before

    with LA.enable("cpu", comparisons=False):
        assert not is_ours()
        torch.frexp(torch.ones(2))
        assert launches["frexp"] > 0
        with LA.enable("cpu"):
            assert is_ours()
        assert not is_ours()
    with LA.enable("cpu"):
        assert is_ours()
    assert not is_ours()


def bad_calls() -> list[Callable[[], Any]]:
    x, two, one = torch.ones(6), torch.ones(2), torch.ones(1)
    first, wide = torch.tensor([0, 1]), torch.arange(4).to(torch.uint16)
    special = torch.special
    return [
        lambda: torch.take(x, first + 5),
        lambda: torch.take(x, first.float()),
        lambda: torch.take(x, first.int()),
        lambda: torch.take(x[:0], first),
        lambda: torch.take(x, first, out=x),
        lambda: torch.take(x, first, out=two.double()),
        lambda: x.put_(first, two[:1]),
        lambda: x.put_(first, two.double()),
        lambda: x.put_(first + 5, two),
        lambda: x.put_(first, x[:2]),
        lambda: one.expand(4).put_(first, two),
        lambda: torch.put(x, first - 8, two),
        lambda: torch.heaviside(x, two),
        lambda: torch.heaviside(x, x.double()),
        lambda: torch.heaviside(x.to(torch.complex64), x.to(torch.complex64)),
        lambda: torch.heaviside(x, x, out=x.double()),
        lambda: torch.heaviside(x[:5], x[:5], out=x[1:]),
        lambda: one.expand(6).heaviside_(x),
        lambda: x.heaviside_(torch.ones(2, 6)),
        lambda: torch.frexp(first),
        lambda: torch.frexp(x, out=(x.double(), x.int())),
        lambda: torch.logspace(0, 1, -1),
        lambda: torch.logspace(two, 1, 3),
        lambda: torch.bincount(first - 1),
        lambda: torch.bincount(x),
        lambda: torch.bincount(first, x),
        lambda: torch.bincount(first, minlength=-1),
        lambda: special.airy_ai(x.to(torch.complex64)),
        lambda: special.airy_ai(x, out=x.int()),
        lambda: special.ndtri(x[:5], out=x[1:]),
        lambda: special.hermite_polynomial_h(x, two),
        lambda: special.hermite_polynomial_h(x, 2j),
        lambda: special.hermite_polynomial_h(x, 2, out=x.int()),
        lambda: torch.eq(wide, wide[:3]),
        lambda: torch.eq(wide, wide.to(torch.uint32)),
        lambda: torch.lt(wide, 1j),
        lambda: wide.eq_(wide.expand(2, 4)),
    ]


def test_errors_are_torchs() -> None:
    calls = bad_calls()
    expected = [raised(call, (), {}) for call in calls]
    assert None not in expected
    for mode in ("auto", "kernels"):
        with LA.use(mode), LA.enable("cpu"):
            assert [raised(call, (), {}) for call in calls] == expected


@pytest.mark.parametrize("name", [n for n in FUNCTIONS.values() if OPS[n].error_inputs_func])
def test_error_inputs(name: str) -> None:
    op = OPS[name]
    calls = [
        ((e.sample_input.input, *e.sample_input.args), e.sample_input.kwargs)
        for e in op.error_inputs("cpu")
    ]
    expected = [raised(op.op, *call) for call in calls]
    with LA.enable("cpu"):
        assert [raised(op.op, *call) for call in calls] == expected


INDEX = torch.tensor([[0, 3], [-1, 3]])
DERIVATIVES: dict[str, Callable[[Tensor], Any]] = {
    "frexp": lambda x: torch.frexp(x)[0],
    "take": lambda x: torch.take(x, INDEX),
    "put": lambda x: torch.put(x, INDEX[0], x[0, :2] ** 2),
    "put accumulate": lambda x: torch.put(x, INDEX, x[:2, :2] ** 2, accumulate=True),
    "put_": lambda x: (x * 2).put_(INDEX[0], x[0, 1:]),
    "log_ndtr": lambda x: torch.special.log_ndtr(x),
    "ndtri": lambda x: torch.special.ndtri(x.sigmoid()),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_torchs(name: str, launches: dict[str, int], device: str) -> None:
    function = DERIVATIVES[name]
    x = torch.linspace(-2, 3, 9, dtype=torch.float64).reshape(3, 3).requires_grad_()

    def derivatives() -> list[Tensor]:
        (result,) = (function(x),)
        (back,) = torch.autograd.grad(result, x, result.detach().cos(), create_graph=True)
        seconds = (
            torch.autograd.grad(back.sum(), x, allow_unused=True) if back.requires_grad else ()
        )
        with forward_ad.dual_level():
            dual = function(make_dual(x.detach(), x.detach().sin()))
            forward = unpack_dual(dual).tangent
        return [back.detach(), forward, *(s for s in seconds if s is not None)]

    theirs = derivatives()
    with LA.enable("cpu"):
        ours = derivatives()
    assert sum(launches.values()) > 0
    assert len(ours) == len(theirs)
    torch.testing.assert_close(ours, theirs)


def transformed(x: Tensor) -> list[Tensor]:
    n, index = torch.arange(3, device=x.device), INDEX.to(x.device)
    return [
        torch.func.vmap(torch.frexp)(x)[0],
        torch.func.vmap(torch.heaviside)(x, x),
        torch.func.vmap(torch.special.ndtri)(x.sigmoid()),
        torch.func.vmap(torch.special.log_ndtr)(x),
        torch.func.vmap(lambda x: torch.special.chebyshev_polynomial_t(x, n))(x),
        torch.func.vmap(torch.take, (None, 0))(x, index),
        torch.func.jacrev(lambda x: torch.take(x, index))(x),
        torch.func.jacfwd(lambda x: torch.take(x, index))(x),
        torch.func.functionalize(lambda x: (x + 1).put_(index, x[:2, :2]))(x),
    ]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms(launches: dict[str, int], device: str) -> None:
    x = torch.linspace(-2, 3, 9).reshape(3, 3)
    expected = transformed(x)
    with LA.use("kernels"), LA.enable(device):
        ours = transformed(on(device, x))
    close(tuple(y.cpu() for y in ours), tuple(expected))
    used = ("frexp", "heaviside", "special_ndtri", "special_log_ndtr", "take", "put_")
    assert all(launches[name] > 0 for name in (*used, "special_chebyshev_polynomial_t"))


def compiled(x: Tensor, index: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x)
    degrees = torch.special.legendre_polynomial_p(x, exponent)
    y = torch.heaviside(mantissa, x) + torch.special.airy_ai(x) + degrees
    return torch.take(y, index).put_(index[:1], x[:1])


def test_a_graph_of_operations(launches: dict[str, int], device: str) -> None:
    x, index = torch.linspace(-2, 3, 6), torch.tensor([0, 3])
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    expected = compiled(x, index)
    with LA.use("kernels"), LA.enable(device):
        ours = run(on(device, x), on(device, index))
    close(ours.cpu(), expected)
    used = ("frexp", "special_legendre_polynomial_p", "heaviside", "special_airy_ai", "take")
    assert all(launches[name] > 0 for name in (*used, "put_"))


def test_on_cuda_torch_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, cuda = _aten_elementwise._wanted, torch.device("cuda")
    assert not wanted(cuda, False)
    assert wanted(cuda, True)
    assert wanted(torch.device("mps"), False)
    with LA.use("kernels"):
        assert wanted(cuda, False)
    with LA.use("torch"):
        assert not wanted(torch.device("mps"), True)


def test_operations_that_torch_lacks_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(_enable, "get_kernel", none)
    x, index = torch.ones(3), torch.tensor([0, 1])
    for operation, args in (
        (torch.ops.aten.put_.default, (x, index, x)),
        (torch.ops.aten.take.default, (x, index.int())),
        (torch.ops.aten.eq_.Tensor, (x, x[:2].clone())),
        (torch.ops.aten.special_airy_ai.default, (x.to(torch.complex64),)),
    ):
        refuse = _enable._torchs(operation, "MPS")
        expected = raised(operation, args, {})
        assert expected is not None
        assert raised(refuse, (None, *args), {}) == expected
