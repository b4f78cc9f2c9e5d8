"""The launch plans of take, put and bincount on the checked engine."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _engines, _indexing, _indexing_plan
from mpslinalg._engines import metal
from tests.inputs import DOUBLES, SINGLES, name, on
from tests.metal_stand_in import compile_shader

pytestmark = pytest.mark.usefixtures("checked")

MOVED = (torch.uint8, torch.bfloat16, torch.float32, torch.complex64, torch.complex128)
RUN = _indexing_plan.RUN


def numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


def indices(length: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(-length, length, shape, generator=generator).to(dtype)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row_major": lambda A: A,
    "column_major": lambda A: A.mT.contiguous().mT,
    "gaps": lambda A: torch.stack((A, A), -1).flatten(-2)[..., ::2],
    "offset": lambda A: torch.cat((A.flatten()[:1], A.flatten()))[1:].view(A.shape),
    "one": lambda A: A[:1, :1, :1].expand(A.shape),
    "five_sides": lambda A: torch.stack((A, A), -1).view(3, 4, 2, 3, 2)[::2, :3, :, ::2].mT,
}


@pytest.mark.parametrize("index", _indexing.INDICES, ids=name)
@pytest.mark.parametrize("view", VIEWS)
def test_take(view: str, index: torch.dtype, device: str) -> None:
    A = VIEWS[view](numbers(torch.float32, 3, 4, 6))
    at = indices(A.numel(), 5, 7, dtype=index)
    taken = _indexing_plan.take(on(device, A), on(device, at), A.dim(), 2)
    assert np.array_equal(taken.cpu().numpy(), A.numpy().ravel()[at.numpy()])


@pytest.mark.parametrize("dtype", MOVED, ids=name)
def test_elements_of_every_size(dtype: torch.dtype, device: str) -> None:
    A, B = on(device, numbers(dtype, 40)), on(device, numbers(dtype, 3, 4))
    at = on(device, indices(40, 12))
    taken = _indexing_plan.take(A, at, 1, 1)
    assert taken.tolist() == [A.tolist()[i] for i in at.tolist()]
    expected = A.tolist()
    for i, value in zip(at.tolist(), B.flatten().tolist(), strict=True):
        expected[i] = value
    result, _ = _indexing_plan.put(A, at, B, False, 1, 1)
    assert result.tolist() == expected


@pytest.mark.parametrize("dtype", SINGLES + DOUBLES + (torch.int32, torch.int64), ids=name)
@pytest.mark.parametrize("length", [1, 3, 500])
@pytest.mark.parametrize("count", [1, RUN - 1, RUN, RUN + 1, RUN * RUN // 2 + 1])
def test_sums(count: int, length: int, dtype: torch.dtype, device: str) -> None:
    A, B, at = numbers(dtype, length), numbers(dtype, count), indices(length, count)
    expected = A.numpy().copy()
    np.add.at(expected, at.numpy(), B.numpy())
    A, at, B = (on(device, x) for x in (A, at, B))
    result, kept = _indexing_plan.put(A, at, B, True, 1, 1)
    # Sums of so small integers are exact.
    assert np.array_equal(result.cpu().numpy(), expected)
    assert kept.shape == (0,)


def test_keys_of_64_bits(device: str) -> None:
    """Of a tensor whose elements all lie in one place."""
    base = on(device, torch.zeros(1))
    length = _indexing_plan.NARROW + 2
    at, B = on(device, torch.tensor([length - 1, 0, -1])), on(device, torch.tensor([1.0, 2.0, 4.0]))
    _indexing_plan.put_into(base.expand(length), at, B, True, 1, 1)
    assert base.item() == 7


def test_more_elements_than_numbers_are_refused(device: str) -> None:
    A = on(device, torch.zeros(3))
    many = _indexing_plan.MAX_PUT + 1
    at, B = A[:1].long().expand(many), A[:1].expand(many)
    with pytest.raises(RuntimeError, match="put parts of them"):
        _indexing_plan.put_into(A, at, B, False, 1, 1)


def test_sums_of_one_long_run_are_accurate(device: str) -> None:
    A, B = torch.zeros(2), torch.full((20000,), 0.1)
    at = torch.ones(20000, dtype=torch.int64)
    A, at, B = (on(device, x) for x in (A, at, B))
    result, _ = _indexing_plan.put(A, at, B, True, 1, 1)
    assert result.tolist() == [0, pytest.approx(20000 * B[0].item(), rel=1e-6)]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("view", [v for v in VIEWS if v != "one"])
def test_put_in_place(view: str, accumulate: bool, device: str) -> None:
    A = on(device, VIEWS[view](numbers(torch.float32, 3, 4, 6)))
    at, B = indices(A.numel(), 90), numbers(torch.float32, 90)
    expected = A.cpu().numpy().copy().ravel()
    if accumulate:
        np.add.at(expected, at.numpy(), B.numpy())
    else:
        expected[at.numpy()] = B.numpy()
    kept = _indexing_plan.put_into(A, on(device, at), on(device, B), accumulate, A.dim(), 1)
    assert np.array_equal(A.cpu().numpy().ravel(), expected)
    if not accumulate:
        last = {i % A.numel(): place for place, i in enumerate(at.tolist())}
        assert kept.nonzero().flatten().tolist() == sorted(last.values())


def test_batches(device: str) -> None:
    A, at, B = numbers(torch.float32, 3, 4, 5), indices(20, 3, 7), numbers(torch.float32, 3, 7)
    A, at, B = (on(device, x) for x in (A, at, B))
    taken = _indexing_plan.take(A, at, 2, 1)
    for accumulate in (False, True):
        result, _ = _indexing_plan.put(A, at, B, accumulate, 2, 1)
        for i in range(3):
            assert torch.equal(taken[i], _indexing_plan.take(A[i], at[i], 2, 1))
            alone, _ = _indexing_plan.put(A[i], at[i], B[i], accumulate, 2, 1)
            assert torch.equal(result[i], alone)


@pytest.mark.parametrize("index", [20, -21, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("dtype", _indexing.INDICES, ids=name)
def test_an_index_outside(dtype: torch.dtype, index: int, device: str) -> None:
    A = on(device, numbers(torch.float32, 20))
    at = on(device, torch.tensor([3, index, 4], dtype=dtype))
    before = A.clone()
    words = f"out of range: tried to access index {index} on a tensor of 20 elements."
    with pytest.raises(IndexError, match=words):
        _indexing_plan.take(A, at, 1, 1)
    for accumulate in (False, True):
        # With sums of sums, too.
        for several in (at, at.repeat(RUN)):
            B = on(device, numbers(torch.float32, several.numel()))
            with pytest.raises(IndexError, match=words):
                _indexing_plan.put_into(A, several, B, accumulate, 1, 1)
    assert torch.equal(A, before)


def test_the_ends_of_the_range(device: str) -> None:
    A = on(device, numbers(torch.float32, 20))
    at = on(device, torch.tensor([-20, 19, -1, 0]))
    assert _indexing_plan.take(A, at, 1, 1).tolist() == A[[0, 19, 19, 0]].tolist()


def test_threads_take_several_indices(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_indexing_plan, "THREADS", 8)
    A, B = on(device, numbers(torch.float32, 90)), on(device, numbers(torch.float32, 45))
    at = on(device, indices(90, 45))
    assert torch.equal(_indexing_plan.take(A, at, 1, 1), A[at])
    expected = A.cpu().numpy().copy()
    expected[at.cpu().numpy()] = B.cpu().numpy()
    result, _ = _indexing_plan.put(A, at, B, False, 1, 1)
    assert np.array_equal(result.cpu().numpy(), expected)
    at[19], at[27] = 91, 92
    with pytest.raises(IndexError, match="index 91 on"):
        _indexing_plan.take(A, at, 1, 1)


def test_a_large_index_outside(device: str) -> None:
    A, at = on(device, numbers(torch.float32, 20)), on(device, torch.tensor([0, 5 << 40]))
    with pytest.raises(IndexError, match=f"index {5 << 40} on"):
        _indexing_plan.take(A, at, 1, 1)


@pytest.mark.parametrize("dtype", _indexing.COUNTED, ids=name)
@pytest.mark.parametrize("low", [0, 7])
@pytest.mark.parametrize("count", [1, 255, 257, 2 * _indexing_plan.COUNTED + 1])
def test_bincount(count: int, low: int, dtype: torch.dtype, device: str) -> None:
    values = (indices(40, count) % 40 + low).to(dtype)
    counts = _indexing_plan.bincount(on(device, values), None, 20)
    expected = np.bincount(values.numpy(), minlength=20)
    assert np.array_equal(counts.cpu().numpy(), expected)


@pytest.mark.parametrize("low", [0, 3])
@pytest.mark.parametrize("span", [_indexing_plan.BINS, _indexing_plan.BINS + 1])
@pytest.mark.parametrize("dtype", _indexing.INDICES, ids=name)
def test_many_bins(dtype: torch.dtype, span: int, low: int, device: str) -> None:
    values = torch.cat((torch.tensor([low, low + span - 1]), indices(100, 500) + 103)).to(dtype)
    for minlength in (0, _indexing_plan.BINS + 5):
        counts = _indexing_plan.bincount(on(device, values), None, minlength)
        expected = np.bincount(values.numpy(), minlength=minlength)
        assert np.array_equal(counts.cpu().numpy(), expected)


@pytest.mark.parametrize("dtype", _indexing.INDICES, ids=name)
def test_a_negative_value(dtype: torch.dtype, device: str) -> None:
    for others in (0, 2 * _indexing_plan.BINS, 2**31 - 1):
        values = torch.full((300,), others, dtype=dtype)
        values[270] = -1
        with pytest.raises(RuntimeError, match="non-negative"):
            _indexing_plan.bincount(on(device, values), None, 5)


def test_launches_as_metal_takes_them(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device != "cpu":
        pytest.skip("a stand-in for Metal runs on the CPU")
    A, at = numbers(torch.float32, 4, 6)[:, :3], indices(12, 70)
    B, values = numbers(torch.float32, 70), indices(40, 300).abs()

    def results() -> list[Tensor]:
        return [
            _indexing_plan.take(A, at, 2, 1),
            *(_indexing_plan.put(A, at, B, accumulate, 2, 1)[0] for accumulate in (False, True)),
            _indexing_plan.bincount(values, None, 50),
            _indexing_plan.bincount(values * 100, None, 0),
        ]

    expected = results()
    monkeypatch.setattr(torch._C, "_mps_compileShader", compile_shader, raising=False)
    monkeypatch.setitem(_engines.ENGINES, "cpu", metal.MetalEngine())
    for ours, theirs in zip(results(), expected, strict=True):
        assert torch.equal(ours, theirs)
