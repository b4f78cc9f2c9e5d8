"""The chunk solve on the checked engine, every chunk size, dtype and length of its last chunk."""

import itertools

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpslinalg import _gated_delta_plan
from mpslinalg._engines import cpu
from tests.inputs import VIEWS, name, on

pytestmark = pytest.mark.usefixtures("checked")

Array = NDArray[np.float64]

SIZES = (16, 32, 64)
EPS = 2.0**-24
# Each kernel variant takes the compiler time: halves where a size differs in how it is read.
CASES = [
    *((torch.float32, torch.float32, size) for size in SIZES),
    (torch.float16, torch.float32, 64),
    (torch.bfloat16, torch.float32, 16),
    (torch.float16, torch.float16, 32),
    (torch.bfloat16, torch.bfloat16, 64),
    (torch.float64, torch.float64, 32),
]
each_case = pytest.mark.parametrize(("dtype", "result", "size"), CASES, ids=name)
each_size = pytest.mark.parametrize("size", SIZES)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bounds(length: int, size: int, starts: list[int] | None) -> list[tuple[int, int]]:
    """The first row of each chunk and the one after its last."""
    ends = [0, length] if starts is None else starts
    return [
        (first, min(first + size, end))
        for start, end in itertools.pairwise(ends)
        for first in range(start, end, size)
    ]


def strictly_lower(A: Tensor, first: int, end: int) -> Array:
    """A chunk of (T, BT) rows as SciPy sees it."""
    return np.tril(A[first:end, : end - first].double().numpy(), -1)


def check(A: Tensor, X: Tensor, starts: list[int] | None = None, eps: float = EPS) -> None:
    """X has the inverse of every chunk, to the bound of a substitution, and zeros elsewhere."""
    A, X = A.cpu(), X.cpu()
    batch, length, heads, size = A.shape
    for b in range(batch):
        for h in range(heads):
            for first, end in bounds(length, size, starts):
                L = strictly_lower(A[b, :, h], first, end) + np.eye(end - first)
                exact = scipy.linalg.solve_triangular(
                    L, np.eye(end - first), lower=True, unit_diagonal=True
                )
                rows = X[b, first:end, h].double().numpy()
                bound = size * eps * (abs(exact) @ abs(L) @ abs(exact))
                assert (abs(rows[:, : end - first] - exact) <= bound).all()
                assert (np.triu(rows[:, : end - first], 1) == 0).all()
                assert (np.diagonal(rows) == 1).all()
                assert (rows[:, end - first :] == 0).all()


def solve(A: Tensor, dtype: torch.dtype = torch.float32, starts: list[int] | None = None) -> Tensor:
    cu_seqlens = None if starts is None else torch.tensor(starts, dtype=torch.int32).to(A.device)
    return _gated_delta_plan.solve_tril(A, cu_seqlens, dtype)


@each_case
def test_chunks(dtype: torch.dtype, result: torch.dtype, size: int, device: str) -> None:
    A = on(device, (random(2, 2 * size + 5, 3, size) / 4).to(dtype))
    X = solve(A, result)
    assert X.dtype == result
    assert X.is_contiguous()
    # A result in a half is rounded once more.
    wide = result in (torch.float32, torch.float64)
    check(A, X, eps=EPS if result == torch.float32 else torch.finfo(result).eps)
    if not wide:
        assert torch.equal(X, solve(A.float()).to(result))


@pytest.mark.parametrize("over", [-1, 0, 1])
@each_size
def test_last_chunk(size: int, over: int, device: str) -> None:
    for length in (1 + max(over, 0), size + over):
        A = on(device, random(1, length, 1, size) / 4)
        check(A, solve(A))


@each_size
def test_random_entries(size: int, device: str) -> None:
    # The inverse reaches 1e7 and more: only a bound with the moduli of its factors says anything.
    A = on(device, random(1, size, 2, size))
    check(A, solve(A))


@each_size
def test_only_what_is_below_the_diagonal_is_read(size: int, device: str) -> None:
    A = random(1, size + 3, 2, size) / 4
    X = solve(on(device, A))
    row = torch.arange(size + 3) % size
    above = torch.arange(size) >= row[:, None]
    for value in (torch.nan, torch.inf):
        spoiled = A.masked_fill(above[:, None], value)
        assert torch.equal(solve(on(device, spoiled)), X)


@each_size
def test_a_bad_chunk_spoils_itself_only(size: int, device: str) -> None:
    A = random(2, 2 * size, 2, size) / 4
    expected = solve(on(device, A)).cpu()
    A[0, size // 2, 1, 0] = torch.nan
    X = solve(on(device, A)).cpu()
    spoiled = torch.zeros(2, 2 * size, 2, dtype=torch.bool)
    spoiled[0, size // 2 : size, 1] = True
    assert torch.equal(X[~spoiled], expected[~spoiled])
    assert X[0, size // 2 : size, 1, 0].isnan().all()
    assert (X[0, :size, 1].triu(1) == 0).all()


PACKED = ([0, 40], [0, 1, 40], [0, 0, 7, 39, 39, 40], [0, 16, 32, 40], [0, *range(3, 40, 3), 40])


@pytest.mark.parametrize("starts", PACKED, ids=str)
@each_size
def test_packed_sequences(size: int, starts: list[int], device: str) -> None:
    A = on(device, random(1, 40, 3, size) / 4)
    X = solve(A, starts=starts)
    check(A, X, starts)
    assert not X.isnan().any()


@pytest.mark.parametrize("size", [16, 64])
def test_long_sequences(size: int, device: str) -> None:
    starts = [0, 5, 5, 200, 200 + 2 * size, 200 + 2 * size + 1, 500]
    A = on(device, random(1, 500, 1, size) / 4)
    check(A, solve(A, starts=starts), starts)


def test_starts_beyond_the_rows_read_and_write_nothing_there(device: str) -> None:
    A = on(device, random(1, 20, 1, 16) / 4)
    X = solve(A, starts=[0, 20, 1000])
    assert torch.equal(X, solve(A))


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "conj"])
@each_size
def test_views(size: int, view: str, device: str) -> None:
    A = on(device, random(2, size + 2, 3, size) / 4)
    assert torch.equal(solve(VIEWS[view](A)), solve(A))
    packed = A[:1]
    assert torch.equal(
        solve(VIEWS[view](packed), starts=[0, 9, size + 2]), solve(packed, starts=[0, 9, size + 2])
    )


def test_head_first(device: str) -> None:
    A = on(device, random(2, 3, 21, 16) / 4).transpose(1, 2)
    assert torch.equal(solve(A), solve(A.contiguous()))
    assert torch.equal(
        solve(A[:1].expand(2, 21, 3, 16)), solve(A[:1]).expand(2, 21, 3, 16).contiguous()
    )


@pytest.mark.parametrize("shape", [(0, 5, 2, 16), (2, 0, 2, 16), (2, 5, 0, 16)], ids=name)
def test_empty(shape: tuple[int, ...], device: str) -> None:
    assert solve(torch.empty(shape, device=device)).shape == shape


@pytest.mark.parametrize("width", [1, 31, 32, 33, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_system(dtype: torch.dtype, width: int, device: str) -> None:
    keys = random(2, 3, 64, width) + random(width, seed=1)
    keys = (keys / keys.norm(dim=-1, keepdim=True)).to(dtype)
    beta = random(2, 3, 64, seed=2).sigmoid().to(dtype)
    # Decay enough for exp to overflow above the diagonal.
    total = -random(2, 3, 64, seed=3).abs().mul(4).cumsum(-1).to(dtype)
    X = _gated_delta_plan.system(*(on(device, x) for x in (keys, beta, total))).cpu()
    assert X.dtype == dtype
    assert X.shape == (2, 3, 64, 64)
    k, b, t = (x.double().numpy() for x in (keys, beta, total))
    for i in np.ndindex(2, 3):
        decay = np.exp(np.tril(t[i][:, None] - t[i][None]))
        L = np.tril(b[i][:, None] * decay * (k[i] @ k[i].T), -1) + np.eye(64)
        exact = scipy.linalg.solve_triangular(L, np.eye(64), lower=True, unit_diagonal=True)
        assert abs(X[i].double().numpy() - exact).max() < 64 * torch.finfo(dtype).eps
        assert (X[i].triu(1) == 0).all()
    assert abs(L - np.eye(64)).max() > 0.1


def test_system_of_views(device: str) -> None:
    keys, beta, total = (on(device, x) for x in (random(3, 64, 5), random(3, 64), random(3, 64)))
    keys, total = keys / 4, -total.abs().cumsum(-1)
    expected = _gated_delta_plan.system(keys, beta, total)
    for view in ("gaps", "offset", "batch_inside", "neg"):
        given = [VIEWS[view](x) for x in (keys, beta, total)]
        assert torch.equal(_gated_delta_plan.system(*given), expected)
    assert _gated_delta_plan.system(keys[:0], beta[:0], total[:0]).shape == (0, 64, 64)


def by_tokens(tensors: tuple[Tensor, ...], normalized: bool) -> tuple[Array, Array]:
    q, k, v, g, beta, state = (x.double().numpy() for x in tensors)
    if normalized:
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q, k = (np.repeat(x, v.shape[2] // x.shape[2], 2) for x in (q, k))
    output, state = np.empty_like(v), state.copy()
    for t in range(v.shape[1]):
        state *= np.exp(g[:, t])[..., None, None]
        seen = np.einsum("bhk,bhkv->bhv", k[:, t], state)
        new = beta[:, t, :, None] * (v[:, t] - seen)
        state += k[:, t, :, :, None] * new[:, :, None]
        output[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], state) / np.sqrt(k.shape[-1])
    return output, state


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        (torch.float32, (1, 1, 1, 1, 1)),
        (torch.float32, (3, 2, 4, 33, 31)),
        (torch.float32, (2, 1, 2, 256, 33)),
        (torch.bfloat16, (2, 2, 2, 128, 64)),
        (torch.float64, (3, 1, 3, 5, 40)),
    ],
    ids=name,
)
def test_step(dtype: torch.dtype, sizes: tuple[int, ...], normalized: bool, device: str) -> None:
    length, groups, heads, keys, values = sizes
    inner = torch.float64 if dtype == torch.float64 else torch.float32
    q, k = (random(2, length, groups, keys, seed=seed).to(dtype) for seed in (0, 1))
    if not normalized:
        q, k = q / keys, k / keys
    v = random(2, length, heads, values, seed=2).to(dtype)
    g, beta = (random(2, length, heads, seed=seed).to(inner) for seed in (3, 4))
    beta = beta.sigmoid().to(dtype)
    tensors = (q, k, v, -g.abs(), beta, random(2, heads, keys, values, seed=5).to(inner))
    expected, last = by_tokens(tensors, normalized)
    q, k, v, g, beta, before = (on(device, x) for x in tensors)
    output, state = _gated_delta_plan.step(q, k, v, g, beta, before, normalized)
    assert output.dtype == dtype
    assert state.dtype == inner
    tolerance = 8 * torch.finfo(inner).eps
    np.testing.assert_allclose(state.cpu(), last, atol=tolerance * abs(last).max(), rtol=0)
    bound = max(tolerance, torch.finfo(dtype).eps) * abs(expected).max()
    np.testing.assert_allclose(output.cpu().double(), expected, atol=bound, rtol=0)


@pytest.mark.parametrize("empty", range(5))
def test_step_without_anything(empty: int, device: str) -> None:
    sizes = [2, 3, 2, 4, 5]
    sizes[empty] = 0
    batch, length, heads, keys, values = sizes
    shapes = [(batch, length, heads, n) for n in (keys, keys, values)]
    q, k, v = (torch.ones(shape, device=device) for shape in shapes)
    g = torch.zeros(batch, length, heads, device=device)
    state = random(batch, heads, keys, values).to(device)
    output, last = _gated_delta_plan.step(q, k, v, g, g, state, False)
    assert output.shape == v.shape
    assert (output == 0).all() or length == 0
    assert torch.equal(last, state)


CAST = """template <typename S>
kernel void widen(device const S* from [[buffer(0)]], device float* to [[buffer(1)]],
                  uint id [[thread_position_in_grid]]) {
  to[id] = float(from[id]);
}
template <typename S>
kernel void narrow(device const float* from [[buffer(0)]], device S* to [[buffer(1)]],
                   uint id [[thread_position_in_grid]]) {
  to[id] = S(from[id]);
}
"""
HALVES = {"half": torch.float16, "bfloat": torch.bfloat16}


def cast(kernel: str, template: str, source: Tensor, target: Tensor) -> Tensor:
    launch = cpu.ENGINE.compile_text(CAST, "cast", kernel, (template,))
    launch((source, target), (source.numel(),), (64,))
    return target


@pytest.mark.parametrize("template", HALVES)
def test_every_half_is_read_and_written_exactly(template: str) -> None:
    dtype = HALVES[template]
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = cast("widen", template, every, torch.empty(2**16))
    expected = every.float()
    assert torch.equal(wide.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(wide[numbers], expected[numbers])
    assert torch.equal(wide[numbers].signbit(), expected[numbers].signbit())
    back = cast("narrow", template, wide, torch.empty_like(every))
    assert torch.equal(back[numbers].view(torch.int16), every[numbers].view(torch.int16))
    assert back[~numbers].isnan().all()


@pytest.mark.parametrize("template", HALVES)
def test_halves_round_to_nearest_even(template: str) -> None:
    dtype = HALVES[template]
    every = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    finite = every[every.isfinite()]
    ties = (finite[1:] + finite[:-1]) / 2
    largest = torch.finfo(dtype).max
    near = torch.tensor([largest, largest * (1 + 2**-10), torch.inf, 1e30, 1e-30])
    up, down = ties.nextafter(torch.tensor(torch.inf)), ties.nextafter(torch.tensor(0.0))
    given = torch.cat((ties, up, down, near))
    given = given[(given >= 2.0**-126) | (dtype == torch.float16)]
    for signed in (given, -given):
        rounded = cast("narrow", template, signed, torch.empty(len(signed), dtype=dtype))
        assert torch.equal(rounded.view(torch.int16), signed.to(dtype).view(torch.int16))
