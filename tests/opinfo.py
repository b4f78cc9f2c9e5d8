"""torch's database of samples: which entries are ours, in which views, and what judges a result."""

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import mpslinalg as LA
from mpslinalg import testing
from tests.inputs import DOUBLES, SINGLES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.definitions import linalg as linalg

# Functions of ours whose entries are elsewhere in the database.
LINEAR = (
    "cholesky_inverse",
    "cholesky_solve",
    "geqrf",
    "lu_unpack",
    "matmul",
    "matrix_exp",
    "ormqr",
)
ELEMENTS = (
    *("frexp", "logspace", "take", "put", "heaviside", "eq", "ne", "lt", "le", "gt", "ge"),
    *(f"special.{name}" for name in LA.special.__all__),
    "bincount",
)
PYTHON_REFERENCE = "torch's own reference in Python of an entry that runs, not another function"
# Entries that do not run, and why.
EXCEPTIONS = {op.name: PYTHON_REFERENCE for op in linalg.python_ref_db}
# Entries that run, but not with out=.
WITHOUT_OUT = {"linalg.lstsq": "out= is in no signature that torch documents, and not in ours"}


def ident(op: Any) -> str:
    """What a test calls an entry, which has a name and perhaps a variant's."""
    return f"{op.name}-{op.variant_test_name}" if op.variant_test_name else str(op.name)


DATABASE = [
    *linalg.op_db,
    *linalg.python_ref_db,
    *(op for op in op_db if op.name in (*LINEAR, *ELEMENTS)),
]
OPS = [op for op in DATABASE if ident(op) not in EXCEPTIONS]

# Entries whose function is made of one of torch's.
COMPOSED: dict[str, Callable[..., Any]] = {
    "linalg.lstsq-grad_oriented": lambda a, b, driver: LA.lstsq(a, b, driver=driver)[:2],
    "linalg.pinv-singular": lambda a, b: LA.pinv(a @ b.mT),
}


def dtypes(op: Any) -> list[torch.dtype]:
    """The dtypes of an entry's tests: of integers few, for kernels know only their sizes."""
    others = [torch.int64, torch.bfloat16, torch.float16]
    if op.name in ELEMENTS:
        others += [torch.int32, torch.uint8, torch.bool]
    return [d for d in (*SINGLES, *DOUBLES, *others) if d in op.supported_dtypes("cpu")]


def function(op: Any) -> Callable[..., Any]:
    """Our function of an entry."""
    module, _, name = op.name.rpartition(".")
    ours: Callable[..., Any] = getattr(LA.special if module == "special" else LA, name)
    return COMPOSED.get(ident(op), ours)


# Torch's X of lstsq lies in a copy of B, whose other rows are residuals.
ANY_STRIDES = ("linalg.lstsq", "linalg.lstsq-grad_oriented")
# Every so many samples, where there are hundreds that differ in little: in the values of scalars,
# or in what the loss looks at.
STEPS = {
    "logspace": 31,
    "logspace-tensor_overload": 97,
    "linalg.pinv-singular": 28,
    "linalg.svd": 4,
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "conj": lambda t: t.conj() if t.is_complex() else t,
    # Of the same values: a negated matrix is not positive definite.
    "neg": lambda t: torch._neg_view(-t) if t.is_floating_point() else t,
    "offset": lambda t: torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape),
}


class Pair(NamedTuple):
    """One sample twice, in the same view: for torch on the CPU, for us on the device."""

    cpu: Any
    ours: Any


def plain(op: Any, dtype: torch.dtype, gradient: bool = False) -> list[Any]:
    """Samples of the CPU, which LAPACK can answer: on CUDA there is LU without pivoting.

    From the function itself: the method seeds anew for each, which takes longer than the call.
    """
    torch.manual_seed(0)
    random.seed(0)
    with warnings.catch_warnings():
        # Some are made by functions that torch no longer recommends.
        warnings.simplefilter("ignore")
        every = list(op.sample_inputs_func(op, "cpu", dtype, requires_grad=gradient))
    return every[:: STEPS.get(ident(op), 1)]


def moved(sample: Any, device: str) -> Any:
    """A sample on another device, options included."""
    there = sample.transform(lambda t: t.to(device) if isinstance(t, Tensor) else t)
    if "device" in there.kwargs or not tensors(there):
        there.kwargs["device"] = device
    return there


def pairs(op: Any, dtype: torch.dtype, device: str, turn: int, turns: int) -> Iterator[Pair]:
    """All samples, then this turn's without contiguous tensors, then those as views of every kind.

    All turns together see every sample in every kind of view.
    """
    both = [Pair(s, moved(s, device)) for s in plain(op, dtype)]
    yield from both
    own = both[turn::turns]
    yield from (Pair(s.noncontiguous(), there.noncontiguous()) for s, there in own)
    for view in VIEWS.values():

        def seen(t: Any, view: Callable[[Tensor], Tensor] = view) -> Any:
            return view(t) if isinstance(t, Tensor) else t

        yield from (Pair(s.transform(seen), there.transform(seen)) for s, there in own)


def call(function: Callable[..., Any], sample: Any) -> Any:
    return function(sample.input, *sample.args, **sample.kwargs)


WIDE = {
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
}


def doubled(value: Any) -> Any:
    """A tensor in double precision, and a dtype."""
    if isinstance(value, Tensor) and value.dtype in WIDE:
        return value.to(WIDE[value.dtype])
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def check(name: str, sample: Any, got: list[Tensor], expected: list[Tensor]) -> None:
    """Results against those in double precision; of what is not unique, what defines it."""
    dtype = next((x.dtype for x in got if x.dtype in WIDE or x.dtype in DOUBLES), None)
    tolerance = 0.0
    if dtype is not None:
        tolerance = (1e3 if dtype in (*SINGLES, *DOUBLES) else 4) * torch.finfo(dtype).eps

    def close(x: Tensor, y: Tensor) -> None:
        torch.testing.assert_close(
            x, y, rtol=tolerance, atol=tolerance, equal_nan=True, check_dtype=False
        )

    def orthonormal(Q: Tensor) -> None:
        close(Q.mH @ Q, torch.eye(Q.shape[-1]).expand(Q.mT.shape[:-1] + Q.shape[-1:]).to(Q))

    if name == "linalg.svd":
        U, S, Vh = map(doubled, got)
        k = S.shape[-1]
        close(S, expected[1])
        close((U[..., :k] * S.unsqueeze(-2)) @ Vh[..., :k, :], doubled(sample.input))
        orthonormal(U)
        orthonormal(Vh.mH)
    elif name == "linalg.eigh":
        L, V = map(doubled, got)
        close(L, expected[0])
        close(
            (V * L.unsqueeze(-2)) @ V.mH, (expected[1] * expected[0].unsqueeze(-2)) @ expected[1].mH
        )
        orthonormal(V)
    elif name == "linalg.eig":
        L, V = map(doubled, got)
        close(doubled(sample.input).to(V.dtype) @ V, V * L.unsqueeze(-2))
        close(torch.linalg.vector_norm(V, dim=-2), torch.ones(L.shape))
    elif name == "linalg.eigvals":
        close(in_order_of(expected[0], doubled(got[0])), expected[0])
    elif name in ("matrix_exp", "linalg.multi_dot") and dtype is not None:
        # Errors are small beside the norm: single entries may have cancelled.
        norm = torch.linalg.matrix_norm(expected[0])[..., None, None]
        # Halves do not reach as far as doubles do.
        known = got[0].isfinite() | (expected[0].abs() < torch.finfo(got[0].dtype).max)
        close((doubled(got[0]) / norm)[known], (expected[0] / norm)[known])
    else:
        for x, y in zip(got, expected, strict=True):
            close(x, y)


def reference(op: Any, sample: Any, theirs: Any) -> list[Tensor]:
    """Torch's results in double precision, where results are rounded to less."""
    if op.name == "special.airy_ai":
        # Torch's own is off by 1e-8 near -2.
        return [
            torch.from_numpy(
                np.asarray(scipy.special.airy(sample.input.double().numpy(force=True))[0])
            )
        ]
    if all(x.dtype not in WIDE for x in listed(theirs)):
        return listed(theirs)
    integers = isinstance(sample.input, Tensor) and not (
        sample.input.is_floating_point() or sample.input.is_complex()
    )
    wide = sample.transform(
        lambda t: t.double() if integers and isinstance(t, Tensor) else doubled(t)
    )
    return listed(call(op.op, wide))


def check_results(
    op: Any, sample: Any, got: Any, theirs: Any, device: str, strides: bool = True
) -> None:
    """Types, shapes and strides as torch's, values as those in double precision."""
    assert type(got) is type(theirs)
    for x, y in zip(listed(got), listed(theirs), strict=True):
        assert (x.dtype, x.shape, x.device.type) == (y.dtype, y.shape, device)
        if strides and ident(op) not in ANY_STRIDES and x.numel() > 0:
            assert x.stride() == y.stride()
        assert x.is_conj() <= y.is_conj()
        assert x.is_neg() <= y.is_neg()
    check(op.name, sample, [x.cpu() for x in listed(got)], reference(op, sample, theirs))


def in_order_of(theirs: Tensor, L: Tensor, V: Tensor | None = None) -> Any:
    """Eigenvalues, or eigenvectors V of L, in the order of others of the same matrix."""
    distance = (L.unsqueeze(-2) - theirs.unsqueeze(-1)).abs()
    order = distance.argmin(-1) if L.numel() else distance.new_zeros(L.shape, dtype=torch.int64)
    if L.numel():
        assert torch.equal(
            order.sort(-1)[0], torch.arange(L.shape[-1], device=L.device).expand(L.shape)
        )
    if V is None:
        return L.gather(-1, order)
    return V.gather(-1, order.unsqueeze(-2).expand(V.shape))


def loss(op: Any, function: Callable[..., Any], sample: Any) -> list[Tensor]:
    """What the database differentiates: results that no choice of phases changes."""
    result = op.gradcheck_wrapper(function, sample.input, *sample.args, **sample.kwargs)
    leaves = tree_leaves(sample.output_process_fn_grad(result))
    return [x for x in leaves if isinstance(x, Tensor) and x.requires_grad and x.numel()]


def tensors(sample: Any) -> list[Tensor]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return [x for x in leaves if isinstance(x, Tensor)]


def differentiated(sample: Any) -> list[Tensor]:
    return [x for x in tensors(sample) if x.requires_grad]


class Gradients(NamedTuple):
    """Torch's, by these weights of the loss, and the eigenvalues in torch's order if it has one."""

    values: tuple[Tensor, ...]
    weights: list[Tensor]
    eigenvalues: Tensor


# An input that a result does not depend on has the gradient zero or none.
ALL = {"allow_unused": True, "materialize_grads": True}


def torchs_gradients(op: Any, sample: Any) -> Gradients:
    firsts: list[Tensor] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        result = op.op(*args, **kwargs)
        firsts.append(listed(result)[0].detach())
        return result

    results = loss(op, noted, sample)
    weights = [testing.random(x.shape, x.dtype, seed=5) for x in results]
    if not results:
        return Gradients((), [], firsts[0])
    values = torch.autograd.grad(results, differentiated(sample), weights, **ALL)
    return Gradients(values, weights, firsts[0])


def check_gradients(
    op: Any, function: Callable[..., Any], sample: Any, theirs: Gradients, device: str
) -> None:
    ours = sample.transform(
        lambda t: (
            t.detach().to(device).requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t
        )
    )

    def in_torchs_order(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        first = theirs.eigenvalues.to(device)
        if op.name == "linalg.eig":
            return in_order_of(first, result[0]), in_order_of(first, *result)
        return in_order_of(first, result) if op.name == "linalg.eigvals" else result

    results = loss(op, in_torchs_order, ours)
    assert [x.shape for x in results] == [w.shape for w in theirs.weights]
    if not results:
        return
    weights = [w.to(device) for w in theirs.weights]
    gradients = torch.autograd.grad(results, differentiated(ours), weights, **ALL)
    for g, e in zip(gradients, theirs.values, strict=True):
        torch.testing.assert_close(g.cpu(), e, rtol=1e-8, atol=1e-8, equal_nan=True)


def outs(size: str, results: list[Tensor], device: str) -> list[Tensor]:
    """Tensors for out=, of a size that fits or that torch changes, maybe with a warning."""
    shapes = [{"empty": (0,), "right": r.shape, "wrong": (3, 1, 7)}[size] for r in results]
    return [
        torch.zeros(s, dtype=r.dtype, device=device) for s, r in zip(shapes, results, strict=True)
    ]


def warned(
    function: Callable[..., Any], sample: Any, outs: list[Tensor]
) -> tuple[list[Tensor], list[str]]:
    """Results, which must be `outs` themselves, and the warnings."""
    options = {**sample.kwargs, "out": outs[0] if len(outs) == 1 else tuple(outs)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = listed(function(sample.input, *sample.args, **options))
    assert all(r is o for r, o in zip(results, outs, strict=True))
    return results, sorted(str(w.message) for w in caught)


def check_out(op: Any, function: Callable[..., Any], pair: Pair, size: str, device: str) -> None:
    """Results in tensors of out= against those without, and the same warnings."""
    plain = call(op.op, pair.cpu)
    results = listed(plain)
    theirs, words = warned(op.op, pair.cpu, outs(size, results, "cpu"))
    got, our_words = warned(function, pair.ours, outs(size, results, device))
    assert our_words == words
    for x, y in zip(got, theirs, strict=True):
        assert x.shape == y.shape
        assert ident(op) in ANY_STRIDES or x.stride() == y.stride() or x.numel() == 0
    check(op.name, pair.cpu, [x.cpu() for x in got], reference(op, pair.cpu, plain))
