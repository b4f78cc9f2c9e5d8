"""What runs: use, which, and that the kernels never hand work to torch.linalg."""

import re
import threading
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import mpslinalg as LA
from mpslinalg import _route

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "lu_factor": LA.lu_factor,
    "lu_factor_ex": LA.lu_factor_ex,
    "lu": LA.lu,
    "lu_unpack": lambda A: LA.lu_unpack(A, _identity_pivots(A)),
    "lu_solve": lambda A: LA.lu_solve(A, _identity_pivots(A), A),
    "solve": lambda A: LA.solve(A, A),
    "solve_ex": lambda A: LA.solve_ex(A, A),
    "inv": LA.inv,
    "inv_ex": LA.inv_ex,
    "det": LA.det,
    "slogdet": LA.slogdet,
    "cholesky": LA.cholesky,
    "cholesky_ex": LA.cholesky_ex,
    "cholesky_solve": lambda A: LA.cholesky_solve(A, A),
    "cholesky_inverse": LA.cholesky_inverse,
    "eig": lambda A: tuple(x.abs() for x in LA.eig(A)),
    "eigvals": lambda A: LA.eigvals(A).abs(),
    "eigh": LA.eigh,
    "eigvalsh": LA.eigvalsh,
    "qr": LA.qr,
    "svd": LA.svd,
    "svdvals": LA.svdvals,
    "lstsq": lambda A: LA.lstsq(A, A),
    "gelsd": lambda A: LA.lstsq(A, A, driver="gelsd"),
    "pinv": LA.pinv,
    "pinv_hermitian": lambda A: LA.pinv(A, hermitian=True),
    "matrix_rank": LA.matrix_rank,
    "matrix_norm": lambda A: LA.matrix_norm(A, 2),
    "cond": LA.cond,
    "cond_of_inverse": lambda A: LA.cond(A, 1),
    "polar": LA.polar,
    "matrix_sqrth": LA.matrix_sqrth,
    "svd_lowrank": lambda A: LA.svd_lowrank(A, 2),
    "geqrf": LA.geqrf,
    "householder_product": lambda A: LA.householder_product(A, A[..., 0]),
    "ormqr": lambda A: LA.ormqr(A, A[..., 0], A),
}


def _identity_pivots(A: Tensor) -> Tensor:
    count = torch.arange(1, A.shape[-1] + 1, dtype=torch.int32, device=A.device)
    return count.expand(A.shape[:-1]).contiguous()


class Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the names of the ops that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def ops_of(call: Callable[[Tensor], Any], A: Tensor) -> tuple[set[str], set[str]]:
    """Our ops and torch's linear algebra among the ops of a call."""
    with Ops() as ops:
        call(A)
    ours = {name for name in ops.names if name.startswith("mpslinalg::")}
    torchs = {
        name for name in ops.names if re.search("linalg|lu_|cholesky|(?<!s)qr|svd", name)
    } - ours
    return ours, torchs - {"aten::_linalg_check_errors"}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("grad", [False, True])
def test_kernels_means_kernels(name: str, grad: bool, device: str) -> None:
    if grad and name in ("geqrf", "matrix_rank"):
        pytest.skip("has no derivative")
    A = torch.eye(3, device=device).requires_grad_(grad)

    def call(A: Tensor) -> None:
        result = CALLS[name](A)
        results = result if isinstance(result, tuple) else (result,)
        if grad:
            sum(x.sum() for x in results if x.requires_grad).backward()

    with LA.use("kernels"):
        ours, torchs = ops_of(call, A)
    assert ours
    assert not torchs


@pytest.mark.parametrize("name", [name for name in CALLS if name not in _route.CPU_LACKS])
def test_torch_means_torch(name: str) -> None:
    with LA.use("torch"):
        ours, torchs = ops_of(CALLS[name], torch.eye(3))
    assert not ours
    assert torchs


@pytest.mark.parametrize("name", CALLS)
def test_auto_on_the_cpu_is_torch(name: str) -> None:
    ours, torchs = ops_of(CALLS[name], torch.eye(3))
    assert not ours
    assert torchs


def test_auto_on_the_cpu_takes_kernels_where_torch_cannot_or_is_slower() -> None:
    for function in (LA.lu_factor, LA.lu_factor_ex, LA.lu):
        ours, torchs = ops_of(partial(function, pivot=False), torch.eye(3))
        assert ours
        assert not torchs
    batch = torch.eye(_route.INV_CPU_N).expand(_route.INV_CPU_BATCH, -1, -1)
    assert ops_of(LA.inv, batch) == ({"mpslinalg::inv"}, set())
    assert ops_of(LA.inv, batch[1:])[0] == set()
    with LA.use("torch"), pytest.raises(RuntimeError, match="LU without pivoting"):
        LA.lu(torch.eye(3), pivot=False)


def test_use_nests_and_restores() -> None:
    A = torch.eye(2)
    kernels = LA.use("kernels")

    def runs_kernels() -> bool:
        return bool(ops_of(LA.det, A)[0])

    assert not runs_kernels()
    with kernels:
        assert runs_kernels()
        with LA.use("torch"):
            assert not runs_kernels()
            with kernels:
                assert runs_kernels()
            assert not runs_kernels()
        assert runs_kernels()
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(runs_kernels()))
        thread.start()
        thread.join()
        assert seen == [False]
    assert not runs_kernels()
    with pytest.raises(KeyError), kernels:
        raise KeyError
    assert not runs_kernels()


@pytest.mark.parametrize("mode", ["metal", "", None])
def test_unknown_mode(mode: Any) -> None:
    with pytest.raises(ValueError, match="'auto', 'kernels' or 'torch'"):
        LA.use(mode)


def test_compiled_code_follows_the_mode() -> None:
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(str(module.graph))
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(LA.det, fullgraph=True, backend=backend)
    A = torch.eye(2)
    compiled(A)
    with LA.use("kernels"):
        compiled(A)
    compiled(A)
    assert ["mpslinalg.det" in graph for graph in graphs] == [False, True]


def test_which_says_what_runs() -> None:
    A = torch.eye(4).expand(2, 3, 4, 4)
    assert LA.which("lu_factor", A) == "lu_factor: torch.linalg on cpu: measured faster here"
    with LA.use("torch"):
        assert LA.which("inv", A) == "inv: torch.linalg on cpu: use('torch')"
    with LA.use("kernels"):
        text = LA.which("solve", A, A[..., :1])
        assert text.startswith("solve: kernels (cpu engine): 2 x 3 x 4 x 4 float32, ")
        assert LA.which("inv", A=A).startswith("inv: kernels (cpu engine): ")
    assert LA.which("lu", A, pivot=False).startswith("lu: kernels (cpu engine): ")
    assert LA.which("det", A.to("meta")) == "det: torch.linalg on meta: no engine for this device"
    for name in (
        *("cholesky_of_nothing", "use", "which", "__name__", "inv.inv"),
        *("gated_delta", "gated_delta.nothing", "gated_delta.patch_transformers"),
    ):
        with pytest.raises(ValueError, match=name):
            LA.which(name, A)


@pytest.mark.parametrize("name", ["det", "inv", "lu_factor", "solve"])
def test_auto_costs_at_most_5_us_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A = torch.eye(3)
    args = (A, A) if name == "solve" else (A,)
    monkeypatch.setattr(torch.linalg, name, lambda *_, **__: None)
    ours, theirs = (
        min(timeit.repeat(partial(getattr(module, name), *args), number=1000, repeat=7)) / 1000
        for module in (LA, torch.linalg)
    )
    assert ours - theirs < 5e-6


def test_which_looks_at_the_factor_and_the_right_hand_side() -> None:
    with LA.use("kernels"):
        text = LA.which("cholesky_solve", torch.ones(8, 80, 1), torch.eye(80).expand(8, 80, 80))
    assert "8 x 80 x 80 float32, triangular_step" in text


def test_which_of_a_submodule() -> None:
    A = torch.ones(2, 64, 3, 16, dtype=torch.bfloat16)
    rule = (A, A, A, A[..., 0], A[..., 0])
    assert LA.which("gated_delta.solve_tril", A).startswith("gated_delta.solve_tril: torch.linalg")
    with LA.use("kernels"):
        solve = LA.which("gated_delta.solve_tril", A)
        chunks = LA.which("gated_delta.chunk_gated_delta_rule", *rule)
        tokens = LA.which("gated_delta.recurrent_gated_delta_rule", *rule)
        whole = LA.which("gated_delta.solve_tril", A.int())
    assert "kernels (cpu engine): 2 x 64 x 3 x 16 bfloat16, gated_delta_solve" in solve
    assert "bfloat16, gated_delta_system" in chunks
    assert "bfloat16, gated_delta_step" in tokens
    assert "raises torch's error" in whole
    assert "torch.bfloat16" in whole


@pytest.mark.parametrize(
    "name", ["solve_tril", "chunk_gated_delta_rule", "recurrent_gated_delta_rule"]
)
def test_auto_on_cuda_takes_the_kernels_of_gated_delta(name: str) -> None:
    assert _route.kernels_win(name, "cuda", 1, 3, 16)
    assert hasattr(LA.gated_delta, name)


def test_which_asks_what_the_function_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(_route, "kernels", lambda name, *_: asked.append(name))
    A = torch.zeros(1, 64, 2, 64)
    rule = (A, A, A, A[..., 0], A[..., 0])
    for name, args in (
        ("solve_tril", (A,)),
        ("chunk_gated_delta_rule", rule),
        ("recurrent_gated_delta_rule", rule),
    ):
        asked.clear()
        LA.which(f"gated_delta.{name}", *args)
        getattr(LA.gated_delta, name)(*args)
        assert asked[0] == name
        assert name in asked[1:]


def test_auto_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_route, "compiler_found", lambda: False)
    A = torch.eye(4).expand(4096, 4, 4)
    assert not _route.kernels("inv", A)
    assert torch.equal(LA.inv(A), A)


@pytest.mark.parametrize("A", [torch.ones(3), torch.ones(2, 2, dtype=torch.int32), 3])
def test_which_of_what_is_no_matrix(A: Any) -> None:
    with LA.use("kernels"):
        assert LA.which("inv", A).startswith("inv: raises torch's error")


@pytest.mark.parametrize(
    ("name", "n", "kernels"),
    [
        ("lu_factor", 4, "lu_tiny"),
        ("lu_factor", 40, "lu_rows"),
        ("lu_factor", 200, "lu_panel of 32 columns, lu_swap, products"),
        ("lu_factor", 2000, "lu_panel of 32 columns, lu_swap_next, lu_panel_next"),
        ("det", 40, "lu_rows, lu_det_simd"),
        ("slogdet", 8, "slogdet_simd"),
        ("solve", 8, "solve_simd"),
        ("inv", 40, "inverse_rows"),
        ("cholesky", 3, "cholesky_packed"),
        ("cholesky_ex", 40, "cholesky_rows"),
        ("cholesky", 200, "cholesky_whole"),
        ("cholesky", 300, "cholesky_step of 64 columns"),
        ("cholesky", 2100, "cholesky_step of 64 columns, matmul"),
        ("qr", 32, "qr_simd"),
        ("svd", 32, "svd_simd"),
        ("geqrf", 4, "qr_panel of 32 columns"),
        ("geqrf", 40, "qr_panel of 32 columns, qr_update"),
        ("cholesky_inverse", 32, "cholesky_inverse_simd"),
        ("ldl_factor", 300, "ldl_panel of 31 columns, ldl_update"),
    ],
)
def test_which_names_the_kernels(name: str, n: int, kernels: str) -> None:
    with LA.use("kernels"):
        args = (torch.ones(n, n),) * (1 + (name == "solve"))
        assert LA.which(name, *args).endswith(kernels)


def test_which_knows_modes_and_drivers() -> None:
    A, B = torch.ones(40, 8), torch.ones(40, 1)
    with LA.use("kernels"):
        assert LA.which("qr", A).endswith("qr_group")
        assert LA.which("qr", A, "complete").endswith("qr_panel of 32 columns, qr_update, qr_apply")
        assert LA.which("qr_pivoted", A, "complete").endswith("qr_apply")
        assert LA.which("lstsq", A, B, driver="none").startswith("lstsq: torch.linalg")
        with pytest.raises(RuntimeError, match="driver"):
            LA.lstsq(A, B, driver="none")
    with LA.use("torch"):
        assert LA.which("qr_pivoted", A).startswith("qr_pivoted: raises an error")


def test_what_is_built_on_a_decomposition_goes_where_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for built_on in _route.BUILT_ON.values():
        assert hasattr(LA, built_on)
    for not_measured in (_route.CUDA_NOT_MEASURED, frozenset[str]()):
        monkeypatch.setattr(_route, "CUDA_NOT_MEASURED", not_measured)
        for name, built_on in _route.BUILT_ON.items():
            expected = name in _route.CUDA_LACKS or _route.kernels_win(built_on, "cuda", 64, 8, 8)
            assert _route.kernels_win(name, "cuda", 64, 8, 8) == expected


def test_auto_on_cuda_takes_what_won_there() -> None:
    for name in ("lu_factor", "solve_triangular", "cholesky", "qr", "lstsq"):
        assert _route.kernels_win(name, "cuda", 64, 8, 8)
        assert not _route.kernels_win(name, "cuda", 1, 1023, 1023)
    assert _route.kernels_win("qr", "cuda", 1, 65536, 8)
    assert not _route.kernels_win("lu_factor", "cuda", 1, 65536, 8)
    for name in ("svd", "matrix_exp", "ldl_factor"):
        assert _route.kernels_win(name, "cuda", 1, 300, 256)
        assert not _route.kernels_win(name, "cuda", 1, 300, 255)
    for name in ("lu_factor", "solve", "eigh"):
        assert _route.kernels_win(name, "cuda", 1, 1024, 1024)
    assert _route.kernels_win("eigh", "cuda", 1, 4096, 4096)
    assert not _route.kernels_win("lu_factor", "cuda", 1, 2049, 2048)
    assert not _route.kernels_win("eigh", "cuda", 1, 300, 300)
    assert not _route.kernels_win("matrix_norm", "cuda", 64, 8, 8)
    assert not _route.kernels_win("qr", "meta", 64, 8, 8)
    assert _route.kernels_win("geqrf", "mps", 1, 8, 8)
