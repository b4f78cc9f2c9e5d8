"""Calls that are repeated from a record give what the calls themselves give."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _inverse_plan, _repeat, _triangular_plan, testing
from mpslinalg._engines import Kernel, graph
from mpslinalg._engines.program import Program

pytestmark = pytest.mark.usefixtures("kernels")


def programs(function: Callable[..., Any]) -> list[Program | None]:
    """What a function has recorded."""
    held = [function]
    # A function may hold itself.
    for holder in held:
        for cell in getattr(holder, "__closure__", None) or ():
            content = cell.cell_contents
            if isinstance(content, dict):
                return list(content.values())
            if callable(content) and content not in held and getattr(content, "__closure__", None):
                held.append(content)
    raise AssertionError("nothing is recorded here")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return testing.random(shape, torch.float32, seed)


def solve_factored(A: Tensor, B: Tensor) -> Tensor:
    LU, pivots = torch.linalg.lu_factor(A)
    return LA.lu_solve(LU, pivots, B)


CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "lu_factor": lambda A, B: LA.lu_factor(A),
    "lu": lambda A, B: LA.lu(A),
    "lu_solve": solve_factored,
    "inv": lambda A, B: LA.inv(A),
    "solve": lambda A, B: LA.solve(A, B),
    "solve_right": lambda A, B: LA.solve(A, B.mT, left=False),
    "det": lambda A, B: LA.det(A),
    "slogdet": lambda A, B: LA.slogdet(A),
    "qr": lambda A, B: LA.qr(A),
    "qr_r": lambda A, B: LA.qr(A, "r").R,
    "lstsq": lambda A, B: LA.lstsq(A, B, driver="gels")[:2],
    "lstsq_tall": lambda A, B: LA.lstsq(A[..., :3], B, driver="gels")[:2],
    "solve_triangular": lambda A, B: LA.solve_triangular(A, B, upper=True),
    "cholesky_solve": lambda A, B: LA.cholesky_solve(B, A.tril()),
}


@pytest.mark.parametrize("n", [4, 20, 140])
@pytest.mark.parametrize("name", CALLS)
def test_other_values_of_the_same_kind(name: str, n: int, device: str) -> None:
    kept = []
    for seed in range(3):
        A = (draw(2, n, n, seed=seed) / (3 * n**0.5) + torch.eye(n)).to(device)
        B = draw(2, n, 3, seed=seed + 9).to(device)
        first = A[:1].clone(), B[:1].clone()
        kept.append((CALLS[name](A, B), CALLS[name](*first)))
        # Results live on while calls repeat, and a call of another kind computes the same.
        for whole, alone in kept:
            pairs = (r if isinstance(r, tuple) else (r,) for r in (whole, alone))
            for x, y in zip(*pairs, strict=True):
                torch.testing.assert_close(x[:1], y, rtol=1e-4, atol=1e-4)


def test_a_second_call_repeats_the_first(device: str) -> None:
    A = draw(5, 1, 7, 3, 3).to(device)
    before = len(programs(LA.inv))
    first = LA.inv(A)
    assert len(programs(LA.inv)) == before + 1
    assert isinstance(programs(LA.inv)[-1], Program)
    assert torch.equal(LA.inv(A), first)
    assert len(programs(LA.inv)) == before + 1


N = 16
MATRICES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "lu_factor": lambda A, B: LA.lu_factor(A),
    "inv": lambda A, B: LA.inv(A),
    "det": lambda A, B: LA.det(A),
    "solve, k=1": lambda A, B: LA.solve(A, B[..., :1]),
    "solve, k=n": lambda A, B: LA.solve(A, B),
    "cholesky": lambda A, B: LA.cholesky(A),
    "cholesky_solve, k=1": lambda A, B: LA.cholesky_solve(B[..., :1], A),
    "cholesky_solve, k=8": lambda A, B: LA.cholesky_solve(B[..., :8], A),
    "solve_triangular": lambda A, B: LA.solve_triangular(A, B, upper=True),
}
ELEMENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "frexp": lambda x, y, at: LA.frexp(x),
    "heaviside": lambda x, y, at: LA.heaviside(x, y),
    "lt": lambda x, y, at: LA.lt(x, y),
    "eq, a number": lambda x, y, at: LA.eq(x, 1),
    "ge, a fraction": lambda x, y, at: LA.ge(x, 0.5),
    "ne, parts of a tensor": lambda x, y, at: LA.ne(*at.view(2, -1).unbind()),
    "le, with itself": lambda x, y, at: LA.le(at, at),
    "logspace": lambda x, y, at: LA.logspace(0, 2.5, 9, device=x.device),
    "legendre": lambda x, y, at: LA.special.legendre_polynomial_p(x, y),
    "take": lambda x, y, at: LA.take(x, at),
    "put": lambda x, y, at: LA.put(x, at, y),
    "put, sums": lambda x, y, at: LA.put(x, at, y, True),
    "put_": lambda x, y, at: LA.put_(x.clone(), at, y),
    "put_, sums": lambda x, y, at: LA.put_(x.clone(), at, y, True),
    "put_, rows": lambda x, y, at: LA.put_(x.clone().mT, at, y.mT),
    "bincount": lambda x, y, at: LA.bincount(at.flatten()),
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often records ran, and kernels outside of them."""
    found = {"records": 0, "launches": 0}

    def counted(call: Callable[..., Any], what: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            found[what] += 1
            return call(*args, **kwargs)

        return run

    monkeypatch.setattr(Program, "run", counted(Program.run, "records"))
    monkeypatch.setattr(Kernel, "__call__", counted(Kernel.__call__, "launches"))
    return found


def assert_repeated(call: Callable[[], Any], counts: dict[str, int]) -> None:
    """That a call, made before, is one record and nothing else, and gives the same."""
    results = [call() for _ in range(2)]
    counts.update(records=0, launches=0)
    results.append(call())
    assert counts == {"records": 1, "launches": 0}
    for first, *others in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        for other in others:
            assert torch.equal(first, other)


@pytest.mark.parametrize("name", MATRICES)
def test_calls_of_matrices_are_repeated(name: str, counts: dict[str, int], device: str) -> None:
    A, B = draw(2, N, N).to(device), draw(2, N, N, seed=1).to(device)
    A = A @ A.mT + N * torch.eye(N, device=device)
    assert_repeated(lambda: MATRICES[name](A, B), counts)


@pytest.mark.parametrize("name", ELEMENTS)
def test_calls_of_elements_are_repeated(name: str, counts: dict[str, int], device: str) -> None:
    x, y = draw(4, 5).to(device), draw(4, 5, seed=1).to(device)
    at = torch.arange(20, device=device).view(4, 5)
    assert_repeated(lambda: ELEMENTS[name](x, y, at), counts)


def test_fractions_are_kinds(device: str) -> None:
    x = torch.tensor([0.5, -0.0, torch.nan], device=device)
    for _ in range(3):
        for number in (0.5, 1.5, 0.0, -0.0, float("nan"), 0.5):
            assert torch.equal(LA.eq(x, number), torch.eq(x, number))
        for end in (1.0, 2.0):
            powers = LA.logspace(0.0, end, 3, device=device)
            torch.testing.assert_close(powers, torch.logspace(0.0, end, 3, device=device))


def test_a_fraction_that_does_not_come_again_is_not_recorded(device: str) -> None:
    x = draw(2, 3, 7).to(device)
    for i in range(5):
        LA.lt(x, i + 0.25)
    assert not any(isinstance(p, Program) for p in programs(LA.lt)[-5:])


def test_parts_of_one_tensor(device: str) -> None:
    both = torch.arange(24, device=device).view(2, 12)
    for _ in range(3):
        both = both.flip(0)
        whole = both.expand(3, 2, 12)
        assert torch.equal(LA.lt(*both), both[0] < both[1])
        assert torch.equal(LA.lt(both[:, :9], both[:, 3:]), both[:, :9] < both[:, 3:])
        assert torch.equal(LA.gt(whole[:, 0], whole[:, 1]), whole[:, 0] > whole[:, 1])


def test_a_result_that_is_an_argument(device: str) -> None:
    both = torch.arange(24, device=device).view(2, 12)
    first = _repeat.repeated(lambda a, b: a, lambda a, b: None)
    for _ in range(3):
        assert first(both[0], both[1]).data_ptr() == both.data_ptr()


def test_put_of_parts_of_one_tensor(device: str) -> None:
    at = torch.tensor([3, 0], device=device)
    for accumulate in (False, True):
        for step in range(3):
            both = torch.arange(8.0, device=device).view(2, 4) + step
            expected = both.clone()
            expected[0].put_(at, both[1, :2].clone(), accumulate)
            assert LA.put_(both[0], at, both[1, :2], accumulate).data_ptr() == both.data_ptr()
            assert torch.equal(both, expected)
            version = both._version
            LA.put_(both, at, expected[0, :2], accumulate)
            assert both._version > version
            with pytest.raises(RuntimeError, match="memory"):
                LA.put_(both[0], at, both[0, 1:3], accumulate)


@pytest.mark.parametrize("accumulate", [False, True])
def test_an_index_outside_is_found_when_repeated(accumulate: bool, device: str) -> None:
    A, B = draw(12).to(device), draw(3, seed=1).to(device)
    at = torch.tensor([2, -12, 5], device=device)
    for _ in range(2):
        LA.take(A, at)
        LA.put_(A, at, B, accumulate)
    at[1] = 12
    before = A.clone()
    for _ in range(2):
        with pytest.raises(IndexError, match="index 12 on"):
            LA.take(A, at)
        for function in (LA.put, LA.put_):
            with pytest.raises(IndexError, match="index 12 on"):
                function(A, at, B, accumulate)
    assert torch.equal(A, before)


def test_strides_and_flags_are_kinds(device: str) -> None:
    A, B = draw(3, 6, 6).to(device), draw(3, 6, 2).to(device)
    for upper in (True, False):
        for unit in (True, False):
            for matrix in (A, A.mT, A[:, ::2, ::2], A.expand(2, 3, 6, 6)):
                right = B[:, : matrix.shape[-1]].expand(*matrix.shape[:-2], -1, -1)
                for _ in range(2):
                    X = LA.solve_triangular(matrix, right, upper=upper, unitriangular=unit)
                    T = matrix.triu() if upper else matrix.tril()
                    if unit:
                        T = T - torch.diag_embed(T.diagonal(dim1=-2, dim2=-1) - 1)
                    assert testing.solve_ratio(T, X, right).max() < testing.LU_THRESHOLD


def test_arguments_that_share_memory(device: str) -> None:
    A = draw(4, 5, 5).to(device)
    B = draw(4, 5, 5, seed=1).to(device)
    for _ in range(2):
        for right in (A, B, A.clone()):
            ratios = testing.solve_ratio(A, LA.solve(A, right), right)
            assert ratios.max() < testing.LU_THRESHOLD


def test_a_singular_matrix_is_found_when_repeated(device: str) -> None:
    A = torch.eye(3, device=device).repeat(4, 1, 1)
    for _ in range(2):
        assert torch.equal(LA.inv(A), A)
    A[2, 1, 1] = 0
    for _ in range(2):
        with pytest.raises(LA.LinAlgError, match="Batch element 2"):
            LA.inv(A)
    A[2, 1, 1] = 1
    assert torch.equal(LA.inv(A), A)


def test_offsets_and_modes(device: str) -> None:
    big = draw(9, 4, 4).to(device)
    expected = LA.inv(big)
    for first in (0, 3, 5):
        torch.testing.assert_close(LA.inv(big[first : first + 4]), expected[first : first + 4])
    with torch.inference_mode():
        torch.testing.assert_close(LA.inv(big), expected)
    with LA.use("torch"):
        assert testing.inverse_ratio(big, LA.inv(big)).max() < testing.LU_THRESHOLD
    x = big.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(LA.inv(x).sum(), x)
    assert gradient.shape == x.shape
    torch.testing.assert_close(torch.func.vmap(LA.inv)(big), expected)
    assert not LA.inv(big).requires_grad


def test_what_has_no_memory(device: str) -> None:
    A = 2 * torch.eye(8, device=device)
    for _ in range(2):
        LA.solve(A, torch.ones(8, 8, device=device))
    zero = torch._efficientzerotensor((8, 8), device=device)
    assert not LA.solve(A, zero).any()
    meta = LA.inv(A.to("meta"))
    assert (meta.shape, meta.device.type) == (A.shape, "meta")


def test_tracing_is_refused(device: str) -> None:
    A = 2 * torch.eye(8, device=device)
    LA.inv(A)
    with (
        pytest.raises(NotImplementedError, match="cannot see a launch"),
        warnings.catch_warnings(action="ignore"),
    ):
        torch.jit.trace(LA.inv, (A,), check_trace=False)  # type: ignore[no-untyped-call]


def test_other_dtypes_never_reach_a_kernel(device: str) -> None:
    A = torch.eye(8, device=device)
    X = _triangular_plan.solve_triangular(A, A, False, False, 0)
    assert torch.equal(X, A)
    with pytest.raises(TypeError, match="bfloat16"):
        _triangular_plan.solve_triangular(A, A.bfloat16(), False, False, 0)


def test_threads(device: str) -> None:
    matrices = [draw(50, 4, 4, seed=seed).to(device) for seed in range(4)]
    expected = [LA.inv(A) for A in matrices]
    wrong: list[int] = []

    def work(i: int) -> None:
        with LA.use("kernels"):
            for _ in range(50):
                if not torch.equal(LA.inv(matrices[i]), expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_plans_repeat_inside_derivatives(device: str) -> None:
    A = draw(3, 4, 4).to(device).requires_grad_()
    for _ in range(2):
        (g,) = torch.autograd.grad(LA.inv(A).sum(), A)
    assert any(isinstance(p, Program) for p in programs(_inverse_plan.inv_op))
    X = torch.linalg.inv(A.detach())
    torch.testing.assert_close(g, -X.mT @ torch.ones_like(X) @ X.mT, rtol=1e-3, atol=1e-3)


@pytest.fixture
def on_gpu(device: str) -> None:
    if device != "cuda":
        pytest.skip("only CUDA has graphs")


def large(seed: int, n: int = 600) -> Tensor:
    A = draw(n, n, seed=seed)
    return (A + A.mT).cuda()


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("function", [LA.qr, LA.eigh, LA.svdvals, LA.inv])
def test_graphs_give_the_same_bits(function: Callable[[Tensor], Any]) -> None:
    def results(A: Tensor) -> list[Tensor]:
        result = function(A)
        return [result] if isinstance(result, Tensor) else list(result)

    A, B = large(1), large(2)
    first, second = results(A), results(B)
    for _ in range(3):
        held = results(A)
        others = results(B)
        for result, expected in zip([*held, *others], [*first, *second], strict=True):
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()


@pytest.mark.usefixtures("on_gpu")
def test_graphs_of_streams_and_views() -> None:
    A = large(3)
    expected = LA.eigh(A).eigenvalues
    for _ in range(3):
        LA.eigh(A)
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        values = LA.eigh(A).eigenvalues
    aside.synchronize()
    assert torch.equal(values, expected)
    for _ in range(4):
        assert torch.equal(LA.eigh(A.expand(2, 600, 600)).eigenvalues[1], expected)


@pytest.mark.usefixtures("on_gpu")
def test_graphs_are_dropped_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MOST_BYTES", 20 * 4 * 600**2)
    A = large(4)
    for n in (600, 590, 580, 600):
        expected = LA.eigh(A[:n, :n].contiguous())
        for _ in range(4):
            again = LA.eigh(A[:n, :n].contiguous())
            assert torch.equal(again.eigenvectors, expected.eigenvectors)


@pytest.mark.usefixtures("on_gpu")
def test_graphs_raise_what_calls_raise() -> None:
    A = large(5)
    for _ in range(4):
        LA.eigh(A)
    A[0, 0] = torch.nan
    with pytest.raises(LA.LinAlgError):
        LA.eigh(A)
