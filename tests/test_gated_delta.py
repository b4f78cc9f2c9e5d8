"""mpslinalg.gated_delta through the kernels: against SciPy, against the rule token by token."""

import functools
import importlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import mpslinalg as LA
from mpslinalg import _bench, _engines, _gated_delta_patch, _gated_delta_rule, _timing
from mpslinalg._demo import gated_delta as demo
from mpslinalg._engines import metal
from mpslinalg.gated_delta import (
    chunk_gated_delta_rule,
    patch_transformers,
    recurrent_gated_delta_rule,
    solve_tril,
)
from tests import metal_stand_in
from tests.inputs import name, on

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    # torch raises it against itself when forward mode is first used.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]

Array = NDArray[np.float64]

SIZES = (16, 32, 64)
EPS = 2.0**-24
HALVES = (torch.float16, torch.bfloat16)
LENGTH = 75  # more than one chunk of each size, and a part of one
STARTS = [0, 0, 1, 40, 75]
each_size = pytest.mark.parametrize("size", SIZES)
packed_or_not = pytest.mark.parametrize("starts", [None, STARTS], ids=["plain", "packed"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_rows(size: int, dtype: torch.dtype = torch.float64, batch: int = 1) -> Tensor:
    return torch.randn(batch, LENGTH, 2, size, dtype=dtype, generator=generator(size)) / 4


def ranges(size: int, starts: list[int]) -> Iterator[tuple[int, int]]:
    for start, end in itertools.pairwise(starts):
        for first in range(start, end, size):
            yield first, min(first + size, end)


def scipy_solve(A: Array, starts: list[int] | None = None) -> Array:
    """SciPy's inverse of I + A, for each chunk of A (B, T, H, BT)."""
    X = np.zeros_like(A)
    for b, h in np.ndindex(A.shape[0], A.shape[2]):
        for first, end in ranges(A.shape[3], starts or [0, A.shape[1]]):
            n = end - first
            L = A[b, first:end, h, :n]
            X[b, first:end, h, :n] = np.tril(
                scipy.linalg.solve_triangular(L, np.eye(n), lower=True, unit_diagonal=True)
            )
    return X


def gated_system(size: int, heads: int = 4) -> Tensor:
    """What a Gated DeltaNet layer inverts: keys of norm 1, beta = sigmoid, decay of a gate."""
    length = 4 * size
    k = torch.randn(1, length, heads, 128, dtype=torch.float64, generator=generator(1))
    k /= k.norm(dim=-1, keepdim=True)
    draw = torch.randn(2, 1, length, heads, dtype=torch.float64, generator=generator(2))
    beta, g = draw[0].sigmoid(), -torch.nn.functional.softplus(draw[1]) / 8

    def by_chunk(x: Tensor) -> Tensor:
        return x.reshape(1, -1, size, *x.shape[2:]).transpose(2, 3)

    k, beta, total = by_chunk(k), by_chunk(beta), by_chunk(g).cumsum(-1)
    # As correlated as the tokens of a text: otherwise A is next to nothing.
    k = k + k.mean(-2, keepdim=True) * 8
    k /= k.norm(dim=-1, keepdim=True)
    A = beta.unsqueeze(-1) * (k @ k.mT) * (total.unsqueeze(-1) - total.unsqueeze(-2)).exp()
    return A.tril(-1).transpose(2, 3).reshape(1, length, heads, size)


@pytest.mark.parametrize("mode", ["kernels", "auto", "torch"])
@packed_or_not
@each_size
def test_solve_tril(size: int, starts: list[int] | None, mode: str, device: str) -> None:
    A = random_rows(size, torch.float32)
    cu_seqlens = None if starts is None else torch.tensor(starts).to(device)
    with LA.use(mode):
        X = solve_tril(on(device, A), cu_seqlens)
    assert X.dtype == torch.float32
    assert X.is_contiguous()
    expected = scipy_solve(A.double().numpy(), starts)
    np.testing.assert_allclose(X.cpu(), expected, atol=2e-6 * abs(expected).max())
    assert torch.equal(X.cpu() == 0, torch.from_numpy(expected == 0))


@pytest.mark.parametrize(
    ("dtype", "result", "size"),
    [(torch.float16, torch.float32, 64), (torch.bfloat16, torch.bfloat16, 64)],
    ids=name,
)
@pytest.mark.parametrize("mode", ["kernels", "torch"])
def test_halves(dtype: torch.dtype, result: torch.dtype, size: int, mode: str, device: str) -> None:
    A = random_rows(size).to(dtype)
    with LA.use(mode):
        X = solve_tril(on(device, A), output_dtype=result)
    assert X.dtype == result
    expected = torch.from_numpy(scipy_solve(A.double().numpy()))
    error = (X.cpu().double() - expected).abs().max() / expected.abs().max()
    assert error < max(torch.finfo(result).eps, 2e-6)


@each_size
def test_forward_error_of_gated_systems(size: int, device: str) -> None:
    A = gated_system(size).float()
    X = solve_tril(on(device, A)).cpu().double().numpy()
    expected = scipy_solve(A.double().numpy())
    assert abs(expected).max() == pytest.approx(1, abs=1e-6)
    assert abs(expected - np.eye(size)[np.arange(4 * size) % size][None, :, None]).max() > 0.3
    assert abs(X - expected).max() < 4e-7
    assert np.linalg.norm(X - expected) / np.linalg.norm(expected) < 4e-7


@each_size
def test_backward_error_of_random_systems(size: int, device: str) -> None:
    # LAPACK's ratio of a triangular inverse, far below its threshold of 30.
    A = torch.randn(1, 3 * size, 2, size, generator=generator())
    X = solve_tril(on(device, A)).cpu().double().numpy()
    for first, h in itertools.product(range(0, 3 * size, size), range(2)):
        L = np.tril(A[0, first : first + size, h].double().numpy(), -1) + np.eye(size)
        inverse = X[0, first : first + size, h]
        norms = np.linalg.norm(L, 1) * np.linalg.norm(inverse, 1)
        assert np.linalg.norm(L @ inverse - np.eye(size), 1) / (size * norms * EPS) < 1


@packed_or_not
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=name)
def test_gradient_is_scipys(dtype: torch.dtype, starts: list[int] | None, device: str) -> None:
    A = random_rows(16).to(dtype)
    exact = A.double().numpy()
    weight = torch.randn(A.shape, dtype=torch.float64, generator=generator(9))
    result = torch.float64 if dtype == torch.float64 else torch.float32
    cu_seqlens = None if starts is None else torch.tensor(starts).to(device)
    of_device = on(device, A).requires_grad_()
    X = solve_tril(of_device, cu_seqlens, result)
    (gradient,) = torch.autograd.grad(X, of_device, weight.to(device, result))
    assert gradient.dtype == dtype
    step = 1e-5
    for seed in range(3):
        direction = np.random.default_rng(seed).standard_normal(A.shape)
        ends = [scipy_solve(exact + sign * step * direction, starts) for sign in (1, -1)]
        expected = ((ends[0] - ends[1]) / (2 * step) * weight.numpy()).sum()
        found = (gradient.cpu().double().numpy() * direction).sum()
        scale = np.linalg.norm(gradient.cpu().double()) * np.linalg.norm(direction)
        tolerance = 1e-8 if dtype == torch.float64 else float(torch.finfo(dtype).eps)
        assert abs(found - expected) < tolerance * scale
    below = torch.zeros_like(gradient, dtype=torch.bool)
    for first, end in ranges(16, starts or [0, LENGTH]):
        inside = torch.ones(end - first, 16).tril(-1).bool()
        below[:, first:end] = inside[:, None].to(below.device)
    assert (gradient[~below] == 0).all()
    assert (gradient[below] != 0).all()


def test_derivatives_of_packed_sequences(device: str) -> None:
    A = on(device, random_rows(16)[:, :20]).requires_grad_()
    cu_seqlens = torch.tensor([0, 3, 3, 20]).to(device)

    def solve(A: Tensor) -> Tensor:
        return solve_tril(A, cu_seqlens, torch.float64)

    assert gradcheck(solve, A, check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(solve, A, fast_mode=True)
    with torch.no_grad():
        batch = torch.stack((A, 2 * A, 3 * A), 2)
        mapped = torch.func.vmap(solve, in_dims=2)(batch)
        assert torch.equal(mapped[1], solve(2 * A))
        reverse, forward = torch.func.jacrev(solve)(A), torch.func.jacfwd(solve)(A)
        torch.testing.assert_close(reverse, forward)


def test_vmap_over_the_sequences(device: str) -> None:
    A = on(device, random_rows(16, torch.float32)[:, :20])
    starts = torch.tensor([[0, 3, 20], [0, 20, 20]]).to(device)
    mapped = torch.func.vmap(lambda s: solve_tril(A, s))(starts)
    for found, s in zip(mapped, starts, strict=True):
        assert torch.equal(found, solve_tril(A, s))


def test_compile_of_packed_sequences(device: str) -> None:
    A = on(device, random_rows(16, torch.float32)).requires_grad_()
    cu_seqlens = torch.tensor(STARTS).to(device)
    compiled = torch.compile(
        lambda A: solve_tril(A, cu_seqlens), fullgraph=True, backend="aot_eager"
    )
    X = solve_tril(A, cu_seqlens)
    assert torch.equal(compiled(A), X)
    (expected,) = torch.autograd.grad(X.square().sum(), A)
    (found,) = torch.autograd.grad(compiled(A).square().sum(), A)
    assert torch.equal(found, expected)


@packed_or_not
def test_opcheck(starts: list[int] | None, device: str) -> None:
    A = on(device, random_rows(16, torch.float32))
    cu_seqlens = None if starts is None else torch.tensor(starts, dtype=torch.int32).to(device)
    torch.library.opcheck(
        torch.ops.mpslinalg.gated_delta_solve_tril.default, (A, cu_seqlens, torch.float16)
    )


def test_op_of_the_system(device: str) -> None:
    draw = generator()
    keys, beta, total = (torch.randn(2, 64, *n, generator=draw) for n in ((5,), (), ()))
    given = tuple(on(device, x) for x in (keys / 4, beta, -total.abs().cumsum(-1)))
    torch.library.opcheck(torch.ops.mpslinalg.gated_delta_system.default, given)
    mapped = torch.func.vmap(torch.ops.mpslinalg.gated_delta_system.default)(*given)
    assert torch.equal(mapped, torch.ops.mpslinalg.gated_delta_system(*given))


def test_op_of_the_step(device: str) -> None:
    given = [on(device, x) for x in inputs(3, dtype=torch.float32)]
    torch.library.opcheck(torch.ops.mpslinalg.gated_delta_step.default, (*given, True))
    batch = [torch.stack((x, x / 2)) for x in given]
    mapped = torch.func.vmap(lambda *x: torch.ops.mpslinalg.gated_delta_step(*x, True))(*batch)
    halved = torch.ops.mpslinalg.gated_delta_step(*(x / 2 for x in given), True)
    for found, expected in zip(mapped, halved, strict=True):
        assert torch.equal(found[1], expected)


@pytest.mark.parametrize(("size", "tracked"), [(64, False), (64, True), (32, False)])
def test_what_the_rule_launches(
    size: int, tracked: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [on(device, x) for x in inputs(70, dtype=torch.float32)]
    seen: list[str] = []
    for function in ("_system", "_inverse"):
        ours = getattr(_gated_delta_rule, function)

        def spy(*given: Tensor, ours: Any = ours, name: str = function) -> Any:
            seen.append(name)
            return ours(*given)

        monkeypatch.setattr(_gated_delta_rule, function, spy)
    tensors[1].requires_grad_(tracked)
    rule(chunk_gated_delta_rule, tensors, chunk_size=size)
    assert seen == ["_system" if size == 64 and not tracked else "_inverse"]


A_GOOD = torch.zeros(1, 20, 2, 16)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None,), r"A must be .*\[B, T, H, BT\].* but got NoneType"),
        ((torch.zeros(20, 2, 16),), r"A must be .*but got torch.float32 \[20, 2, 16\]"),
        (
            (torch.zeros(1, 20, 2, 48),),
            r"BT of \(16, 32, 64\).*but got torch.float32 \[1, 20, 2, 4",
        ),
        (
            (torch.zeros(1, 20, 2, 16, dtype=torch.int32),),
            "bfloat16 or float64, but got torch.int32",
        ),
        ((A_GOOD, None, torch.complex64), "output_dtype must be .*but got torch.complex64"),
        ((A_GOOD, [0, 20]), r"cu_seqlens must be .*\[N \+ 1\].* but got list"),
        ((A_GOOD, torch.tensor([0])), r"with N >= 1.*but got torch.int64 \[1\]"),
        ((A_GOOD, torch.tensor([0.0, 20.0])), "int32 or int64.*but got torch.float32"),
        ((A_GOOD.expand(2, 20, 2, 16), torch.tensor([0, 20])), r"A then \[1, T, H, BT\].*\[2, 20,"),
        ((A_GOOD, torch.tensor([1, 20])), r"rise from 0 to the length 20 of A, but got \[1, 20\]"),
        ((A_GOOD, torch.tensor([0, 19])), r"rise from 0 .*but got \[0, 19\]"),
        ((A_GOOD, torch.tensor([0, 9, 3, 20])), r"rise from 0 .*but got \[0, 9, 3, 20\]"),
    ],
    ids=itertools.count(),
)
def test_solve_tril_refuses(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(RuntimeError, match=f"solve_tril: .*{words}"):
        solve_tril(*arguments)


# The rule


def inputs(
    length: int = LENGTH,
    groups: int = 2,
    heads: int = 4,
    dtype: torch.dtype = torch.float64,
    keys: int = 8,
    values: int = 6,
) -> list[Tensor]:
    """query, key, value, g, beta and a state, as a model would make them."""
    draw = generator(length)

    def randn(*shape: int) -> Tensor:
        return torch.randn(2, *shape, dtype=torch.float64, generator=draw)

    q, k = randn(length, groups, keys), randn(length, groups, keys)
    k = k / k.norm(dim=-1, keepdim=True)
    v, state = randn(length, heads, values), randn(heads, keys, values)
    g = -torch.nn.functional.softplus(randn(length, heads)) / 4
    beta = randn(length, heads).sigmoid()
    return [x.to(dtype) for x in (q, k, v, g, beta, state)]


def by_tokens(tensors: list[Tensor], normalized: bool = False) -> tuple[Array, Array]:
    """The rule as it is defined, a token after the other, in float64."""
    q, k, v, g, beta, state = (x.detach().cpu().double().numpy() for x in tensors)
    if normalized:
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    output = np.zeros_like(v)
    states = state.copy()
    for b, h in np.ndindex(v.shape[0], v.shape[2]):
        S, group = state[b, h], h // (v.shape[2] // k.shape[2])
        for t in range(v.shape[1]):
            S = np.exp(g[b, t, h]) * S
            key = k[b, t, group]
            S = S + np.outer(key, beta[b, t, h] * (v[b, t, h] - S.T @ key))
            output[b, t, h] = S.T @ q[b, t, group] / np.sqrt(key.size)
        states[b, h] = S
    return output, states


def rule(function: Callable[..., Any], tensors: list[Tensor], **options: Any) -> Any:
    return function(*tensors[:5], initial_state=tensors[5], output_final_state=True, **options)


CHUNKED = [(chunk_gated_delta_rule, {"chunk_size": size}) for size in SIZES]
RULES = [*CHUNKED, (recurrent_gated_delta_rule, {})]
each_rule = pytest.mark.parametrize(
    ("function", "options"), RULES, ids=[*map("chunks of {}".format, SIZES), "tokens"]
)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 63, 64, 65, LENGTH])
@each_rule
def test_rule(
    function: Callable[..., Any], options: dict[str, int], length: int, device: str
) -> None:
    tensors = [on(device, x) for x in inputs(length, dtype=torch.float32)]
    for normalized in (False, True):
        output, state = rule(function, tensors, use_qk_l2norm_in_kernel=normalized, **options)
        expected, last = by_tokens(tensors, normalized)
        assert output.dtype == state.dtype == torch.float32
        assert output.is_contiguous()
        np.testing.assert_allclose(output.cpu(), expected, atol=2e-6)
        np.testing.assert_allclose(state.cpu(), last, atol=4e-6)


@pytest.mark.parametrize(("groups", "heads"), [(1, 1), (1, 3), (3, 3)])
@each_rule
def test_heads(
    function: Callable[..., Any], options: dict[str, int], groups: int, heads: int, device: str
) -> None:
    tensors = [on(device, x) for x in inputs(20, groups, heads, torch.float32)]
    output, state = rule(function, tensors, **options)
    expected, last = by_tokens(tensors)
    np.testing.assert_allclose(output.cpu(), expected, atol=2e-6)
    np.testing.assert_allclose(state.cpu(), last, atol=4e-6)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@each_rule
def test_rule_in_halves(
    function: Callable[..., Any], options: dict[str, int], dtype: torch.dtype, device: str
) -> None:
    tensors = [on(device, x) for x in inputs(dtype=dtype)]
    output, state = rule(function, tensors, **options)
    expected, last = by_tokens(tensors)
    assert output.dtype == dtype
    assert state.dtype == torch.float32
    # Computed in float32, rounded once.
    torch.testing.assert_close(output.cpu(), torch.from_numpy(expected).to(dtype))
    np.testing.assert_allclose(state.cpu(), last, atol=4e-6)


@pytest.mark.parametrize("beta", [torch.bfloat16, torch.float32], ids=name)
@pytest.mark.parametrize("function", [chunk_gated_delta_rule, recurrent_gated_delta_rule])
def test_rule_in_the_dtypes_of_a_model(
    function: Callable[..., Any], beta: torch.dtype, device: str
) -> None:
    dtypes = (*[torch.bfloat16] * 3, torch.float32, beta, torch.float32)
    tensors = [on(device, x.to(d)) for x, d in zip(inputs(), dtypes, strict=True)]
    output, state = rule(function, tensors)
    expected, last = by_tokens(tensors)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.cpu(), torch.from_numpy(expected).bfloat16())
    np.testing.assert_allclose(state.cpu(), last, atol=4e-6)


@each_rule
def test_state_is_optional(
    function: Callable[..., Any], options: dict[str, int], device: str
) -> None:
    tensors = [on(device, x) for x in inputs(20, dtype=torch.float32)]
    tensors[5] = torch.zeros_like(tensors[5])
    expected, last = rule(function, tensors, **options)
    output, state = function(*tensors[:5], **options)
    assert state is None
    assert torch.equal(output, expected)
    assert torch.equal(function(*tensors[:5], output_final_state=True, **options)[1], last)


def test_more_rows_than_the_step_takes(device: str) -> None:
    tensors = [on(device, x) for x in inputs(2, 1, 1, torch.float32, keys=300)]
    output, state = rule(recurrent_gated_delta_rule, tensors)
    expected, last = by_tokens(tensors)
    np.testing.assert_allclose(output.cpu(), expected, atol=2e-6)
    np.testing.assert_allclose(state.cpu(), last, atol=4e-6)


def test_more_tokens_than_one_launch_takes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [on(device, x) for x in inputs(20, dtype=torch.float32)]
    expected = rule(recurrent_gated_delta_rule, tensors)
    monkeypatch.setattr(_gated_delta_rule, "STEP_TOKENS", 7)
    for found, whole in zip(rule(recurrent_gated_delta_rule, tensors), expected, strict=True):
        assert torch.equal(found, whole)


def test_a_long_text_goes_in_parts(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [on(device, x) for x in inputs(150, dtype=torch.float32)]
    expected = by_tokens(tensors)
    monkeypatch.setattr(_gated_delta_rule, "PART_TOKENS", 2 * 64)  # of two sequences
    parts: list[int] = []
    one = _gated_delta_rule._chunk_rule

    def spy(*given: Tensor) -> Any:
        parts.append(len(given[1]))
        return one(*given)

    monkeypatch.setattr(_gated_delta_rule, "_chunk_rule", spy)
    for found, exact in zip(rule(chunk_gated_delta_rule, tensors), expected, strict=True):
        np.testing.assert_allclose(found.cpu(), exact, atol=4e-6)
    assert parts == [1, 1, 1]


@each_rule
def test_no_sequences(function: Callable[..., Any], options: dict[str, int], device: str) -> None:
    tensors = [on(device, x)[:0] for x in inputs(20, dtype=torch.float32)]
    output, state = rule(function, tensors, **options)
    assert output.shape == (0, 20, 4, 6)
    assert state.shape == (0, 4, 8, 6)


def test_a_long_text_in_pieces(device: str) -> None:
    tensors = [on(device, x) for x in inputs(150, dtype=torch.float32)]
    expected, last = rule(chunk_gated_delta_rule, tensors)
    state, pieces = tensors[5], []
    for start, end in ((0, 70), (70, 149), (149, 150)):
        function = recurrent_gated_delta_rule if end - start == 1 else chunk_gated_delta_rule
        piece, state = rule(function, [*(x[:, start:end] for x in tensors[:5]), state])
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(state, last, atol=4e-6, rtol=0)


@each_rule
def test_gradients_of_the_rule(
    function: Callable[..., Any], options: dict[str, int], device: str
) -> None:
    length = 40 if options.get("chunk_size") == 16 else 70
    exact = inputs(length)
    tensors = [on(device, x).requires_grad_() for x in exact]
    output, state = rule(function, tensors, use_qk_l2norm_in_kernel=True, **options)
    # Not the same kernels as without derivatives.
    for found, exact_result in zip((output, state), by_tokens(exact, True), strict=True):
        np.testing.assert_allclose(found.detach().cpu(), exact_result, atol=1e-12)
    weights = [torch.randn(x.shape, dtype=x.dtype, generator=generator(3)) for x in (output, state)]
    gradients = torch.autograd.grad((output, state), tensors, [w.to(device) for w in weights])
    step = 1e-5

    def loss(tensors: list[Tensor]) -> float:
        results = by_tokens(tensors, normalized=True)
        return sum(float((r * w.numpy()).sum()) for r, w in zip(results, weights, strict=True))

    for i, gradient in enumerate(gradients):
        direction = torch.randn(exact[i].shape, dtype=torch.float64, generator=generator(i))
        ends = [
            loss([*exact[:i], exact[i] + sign * step * direction, *exact[i + 1 :]])
            for sign in (1, -1)
        ]
        found = float((gradient.cpu() * direction).sum())
        assert found == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("function", [chunk_gated_delta_rule, recurrent_gated_delta_rule])
@pytest.mark.parametrize(
    ("position", "bad", "words"),
    [
        (0, (2, 20, 2, 7), r"query must be \[2, 20, 2, 8\].*but got \[2, 20, 2, 7\]"),
        (1, (20, 2, 8), r"key must be a tensor of 4 dimensions .*but got torch.float32 \[20, 2, 8"),
        (2, (2, 19, 4, 6), r"value must be \[2, 20, 4, 6\].*but got \[2, 19, 4, 6\]"),
        (3, (2, 20, 2), r"g must be \[2, 20, 4\] for key .*but got \[2, 20, 2\]"),
        (4, (2, 20), "beta must be a tensor of 3 dimensions"),
        (5, (2, 4, 6, 8), r"initial_state must be \[2, 4, 8, 6\].*but got \[2, 4, 6, 8\]"),
    ],
    ids=itertools.count(),
)
def test_rule_refuses_shapes(
    function: Callable[..., Any], position: int, bad: tuple[int, ...], words: str
) -> None:
    tensors = inputs(20, dtype=torch.float32)
    tensors[position] = torch.zeros(bad)
    with pytest.raises(RuntimeError, match=f"{function.__name__}: {words}"):
        rule(function, tensors)


def test_rule_refuses_the_rest() -> None:
    tensors = inputs(20, groups=3, heads=4, dtype=torch.float32)
    with pytest.raises(RuntimeError, match=r"multiple of those of key, but got 4 and 3"):
        rule(chunk_gated_delta_rule, tensors)
    tensors = inputs(20, dtype=torch.float32)
    with pytest.raises(RuntimeError, match=r"chunk_size must be one of \(16, 32, 64\), but got 48"):
        rule(chunk_gated_delta_rule, tensors, chunk_size=48)
    tensors[3] = tensors[3].int()
    with pytest.raises(RuntimeError, match=r"g must be .* but got torch.int32"):
        rule(chunk_gated_delta_rule, tensors)


def test_launches_on_metal(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel, through the stand-in for torch's call: the bits of the CPU engine."""
    if device != "cpu":
        pytest.skip("the stand-in runs on the CPU engine")
    A, tensors = random_rows(16, torch.float32), inputs(70, dtype=torch.float32)

    def results() -> list[Tensor]:
        return [
            solve_tril(A, output_dtype=torch.bfloat16),
            solve_tril(A.half(), torch.tensor(STARTS)),
            *rule(chunk_gated_delta_rule, tensors),
            *rule(recurrent_gated_delta_rule, tensors, use_qk_l2norm_in_kernel=True),
        ]

    expected = results()
    texts: list[str] = []

    def compiled(text: str) -> metal_stand_in.Library:
        texts.append(text)
        return metal_stand_in.compile_shader(text)

    monkeypatch.setattr(torch._C, "_mps_compileShader", compiled, raising=False)
    monkeypatch.setitem(_engines.ENGINES, "cpu", metal.MetalEngine())
    for found, exact in zip(results(), expected, strict=True):
        assert torch.equal(found, exact)
    assert len(texts) == 4


# Hugging Face transformers


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def model(transformers: Any, family: str, device: str) -> Any:
    """A tiny model with random weights: three layers of linear attention and one of full."""
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
    }
    if family == "Qwen3Next":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        config = transformers.Qwen3NextConfig(
            **sizes, **experts, shared_expert_intermediate_size=16
        )
        kind = transformers.Qwen3NextForCausalLM
    else:
        config = transformers.Qwen3_5TextConfig(**sizes)
        kind = transformers.Qwen3_5ForCausalLM
    torch.manual_seed(0)
    return kind(config).to(device)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of ours that models call once they are patched."""
    seen: list[str] = []

    def spied(ours: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ours)
        def spy(*args: Any, **kwargs: Any) -> Any:
            seen.append(ours.__name__)
            return ours(*args, **kwargs)

        return spy

    functions = {name: spied(ours) for name, ours in _gated_delta_patch.FUNCTIONS.items()}
    monkeypatch.setattr(_gated_delta_patch, "FUNCTIONS", functions)
    return seen


@pytest.mark.parametrize("family", ["Qwen3Next", "Qwen3_5"])
def test_models_agree(
    family: str, transformers: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model(transformers, family, device)
    ids = torch.randint(0, 64, (2, 70), generator=generator()).to(device)

    def generated() -> Tensor:
        net.eval()
        result = net.generate(
            ids, max_new_tokens=3, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        return torch.stack(result.logits)

    def trained() -> tuple[Tensor, Tensor]:
        net.train()
        logits = net(ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        gradients = torch.autograd.grad(loss, net.parameters(), allow_unused=True)
        return logits.detach(), torch.cat([g.flatten() for g in gradients if g is not None])

    expected, (logits, gradient) = generated(), trained()
    seen = calls(monkeypatch)
    with patch_transformers():
        found = generated()
        assert seen.count("chunk_gated_delta_rule") == 3
        assert seen.count("recurrent_gated_delta_rule") == 6
        found_logits, found_gradient = trained()
        assert seen.count("chunk_gated_delta_rule") == 6
    assert torch.equal(generated(), expected)
    assert len(seen) == 12
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(found_logits, logits, atol=2e-6, rtol=1e-5)
    assert (found_gradient - gradient).norm() < 1e-5 * gradient.norm()


def test_patch_as_a_plain_call(transformers: Any) -> None:
    modules = [
        importlib.import_module(f"transformers.models.{m}.modeling_{m}")
        for m in ("qwen3_next", "qwen3_5", "qwen3_5_moe")
    ]
    names = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")

    def functions() -> list[Any]:
        return [getattr(module, name) for module in modules for name in names]

    before = functions()
    patch = patch_transformers()
    assert not any(a is b for a, b in zip(before, functions(), strict=True))
    with patch_transformers():
        pass
    assert not any(a is b for a, b in zip(before, functions(), strict=True))
    patch.undo()
    patch.undo()
    assert all(a is b for a, b in zip(before, functions(), strict=True))


def test_layers_that_hold_their_functions() -> None:
    """As in transformers 4, where a patch of the module would come too late for a model."""

    def theirs(*given: Tensor) -> Any:
        return "theirs"

    class OldGatedDeltaNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chunk_gated_delta_rule = theirs

    module = types.ModuleType("modeling_old")
    module.OldGatedDeltaNet = OldGatedDeltaNet  # type: ignore[attr-defined]
    before = OldGatedDeltaNet()
    with _gated_delta_patch.Patch() as patch:
        _gated_delta_patch._patch_module(module, patch)
        q, k, v, g, beta, _ = inputs(20, dtype=torch.float32)
        expected, _ = chunk_gated_delta_rule(q, k, v, g, beta)
        during = OldGatedDeltaNet()
        for layer in (before, during):
            assert torch.equal(layer.chunk_gated_delta_rule(q, k, v, g, beta)[0], expected)
        assert not hasattr(OldGatedDeltaNet, "recurrent_gated_delta_rule")
    for layer in (before, during, OldGatedDeltaNet()):
        assert layer.chunk_gated_delta_rule() == "theirs"


def test_patched_rule_refuses_packed_sequences(transformers: Any) -> None:
    module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    tensors = inputs(20, dtype=torch.float32)[:5]
    with patch_transformers(), pytest.raises(ValueError, match=r"packed ones \(cu_seqlens\)"):
        module.torch_chunk_gated_delta_rule(*tensors, cu_seqlens=torch.tensor([0, 20]))


def test_patch_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="needs transformers: pip install transformers"):
        patch_transformers()


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TOKENS", {"cpu": 64})
    monkeypatch.setattr(_timing, "ENOUGH_S", 0.0)
    monkeypatch.setattr(demo, "medians", functools.partial(_timing.medians, minimum=1))
    report = demo.run(torch.device("cpu"))
    assert all(check.passed for check in report.checks)
    assert len(report.checks) == 3
    rule = chunk_gated_delta_rule

    def wrong(*arguments: Any) -> tuple[Tensor, None]:
        return rule(*arguments)[0] * (1 + 1e-3), None

    monkeypatch.setattr(LA.gated_delta, "chunk_gated_delta_rule", wrong)
    passed = {check.name: check.passed for check in demo.run(torch.device("cpu")).checks}
    assert not passed["error of the output"]
    assert not passed["its ratio to torch's"]
    assert passed["error of a chunk's inverse"]


def test_bench_refuses_a_wrong_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _bench.Case(_bench.FAMILIES["gated_delta"].operations[0], 2, 64, torch.float32)
    (A,) = case.inputs(torch.device("cpu"))
    for result in case.call(LA, (A,)), case.call(torch.linalg, (A,)):
        assert case.judge((A,), result) < 1
        result[0][1, 40, 8, 3] += 1e-2
        with pytest.raises(_bench.WrongResult):
            case.judge((A,), result)
