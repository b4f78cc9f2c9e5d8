"""Plain torch.linalg calls on our kernels: operations, samples, errors, derivatives."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

import mpslinalg as LA
from mpslinalg import _aten_elementwise, _enable, _route, testing
from tests.inputs import SINGLES, on, random_definite, random_hermitian
from tests.opinfo import check, doubled, listed
from tests.test_errors import bad_calls, raised, singular, torch_function

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated",
    "ignore:torch.cholesky is deprecated",
    "ignore:torch.triangular_solve is deprecated",
)
# The operations that calls of these functions become.
FUNCTIONS = {
    "linalg_lu_factor_ex": ("linalg.lu_factor", "linalg.lu_factor_ex"),
    "linalg_lu": ("linalg.lu",),
    "lu_unpack": ("lu_unpack",),
    "linalg_lu_solve": ("linalg.lu_solve",),
    "linalg_solve_triangular": ("linalg.solve_triangular",),
    "triangular_solve": ("triangular_solve",),
    "_linalg_solve_ex": ("linalg.solve", "linalg.solve_ex"),
    "linalg_inv_ex": ("linalg.inv", "linalg.inv_ex"),
    "_linalg_det": ("linalg.det",),
    "_linalg_slogdet": ("linalg.slogdet",),
    "linalg_cholesky_ex": ("linalg.cholesky", "linalg.cholesky_ex"),
    "cholesky": ("cholesky",),
    "_cholesky_solve_helper": ("cholesky_solve",),
    "cholesky_inverse": ("cholesky_inverse",),
    "linalg_ldl_factor_ex": ("linalg.ldl_factor", "linalg.ldl_factor_ex"),
    "linalg_ldl_solve": ("linalg.ldl_solve",),
    "linalg_qr": ("linalg.qr",),
    "geqrf": ("geqrf",),
    "linalg_householder_product": ("linalg.householder_product",),
    "ormqr": ("ormqr",),
    "_linalg_svd": ("linalg.svd", "linalg.svdvals"),
    "_linalg_eigh": ("linalg.eigh", "linalg.eigvalsh"),
    "linalg_eig": ("linalg.eig",),
    "_linalg_eigvals": ("linalg.eigvals",),
    # Only to out=.
    "linalg_eigvals": ("linalg.eigvals",),
    "linalg_matrix_exp": ("matrix_exp",),
    "linalg_lstsq": ("linalg.lstsq",),
}
# torch declares no types for them.
make_dual: Any = forward_ad.make_dual
unpack_dual: Any = forward_ad.unpack_dual
OPS = {op.name: op for op in op_db if op.variant_test_name == ""}
CALLED = [(a, name) for a, names in FUNCTIONS.items() for name in names]
TO_OUT = [c for c in CALLED if OPS[c[1]].supports_out and c[0] != "_linalg_eigvals"]
SAMPLES = 4


@pytest.fixture
def enabled(device: str) -> Iterator[None]:
    """Our kernels under torch.linalg on the device of the tests, everywhere."""
    with LA.use("kernels"), LA.enable(device):
        yield


def samples(name: str, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(0)
    op: Any = OPS[name]
    every = [
        s
        for s in op.sample_inputs("cpu", dtype)
        if all(x.numel() > 0 for x in (s.input, *s.args) if isinstance(x, Tensor))
    ]
    few = every[:: max(len(every) // SAMPLES, 1)][:SAMPLES]
    return [*few, few[0].noncontiguous(), few[-1].transform(_conjugate_view)]


def _conjugate_view(value: Any) -> Any:
    return value.conj().resolve_conj().conj() if isinstance(value, Tensor) else value


def test_every_operation_is_tested() -> None:
    matrices = {name for name, op in _aten_elementwise.OPERATIONS.items() if op.route is not None}
    assert set(FUNCTIONS) == matrices


def strided_like(name: str, ours: list[Tensor], theirs: list[Tensor]) -> bool:
    # Torch's X of lstsq lies in a copy of B, whose other rows are residuals.
    pairs = zip(ours, theirs, strict=True)
    return name == "linalg.lstsq" or all(x.stride() == y.stride() for x, y in pairs)


@pytest.mark.parametrize("dtype", SINGLES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize(("aten", "name"), [c for c in CALLED if c[0] != "linalg_eigvals"])
def test_samples(aten: str, name: str, dtype: torch.dtype, launches: dict[str, int]) -> None:
    op, cases = OPS[name].op, []
    for sample in samples(name, dtype):
        args = (sample.input, *sample.args)
        theirs = op(*args, **sample.kwargs)
        cases.append((sample, args, theirs, op(*map(doubled, args), **sample.kwargs)))
    got = []
    with LA.enable("cpu"):
        for sample, args, _, _ in cases:
            before = launches[aten]
            got.append(op(*args, **sample.kwargs))
            assert launches[aten] > before
    for ours, (sample, _, theirs, expected) in zip(got, cases, strict=True):
        assert type(ours) is type(theirs)
        for x, y in zip(listed(ours), listed(theirs), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert strided_like(name, listed(ours), listed(theirs))
        check(name, sample, listed(ours), listed(expected))


@pytest.mark.parametrize(("aten", "name"), TO_OUT)
def test_samples_to_out(aten: str, name: str, launches: dict[str, int]) -> None:
    op, cases = OPS[name].op, []
    for sample in samples(name, torch.float32)[:2]:
        args = (sample.input, *sample.args)
        result = listed(op(*args, **sample.kwargs))
        expected = listed(op(*map(doubled, args), **sample.kwargs))
        for shapes in (
            [(0,) for _ in result],
            [tuple(r.shape) for r in result],
            [(3, 1, 7) for _ in result],
        ):
            theirs, ours = (
                [torch.zeros(s, dtype=r.dtype) for s, r in zip(shapes, result, strict=True)]
                for _ in range(2)
            )
            _, words = warned(op, args, theirs, sample.kwargs)
            cases.append((sample, args, theirs, words, ours, expected))
    with LA.enable("cpu"):
        for sample, args, _, words, ours, _ in cases:
            before = launches[aten]
            returned, our_words = warned(op, args, ours, sample.kwargs)
            assert launches[aten] > before
            assert our_words == words
            assert all(r is o for r, o in zip(listed(returned), ours, strict=True))
    for sample, _, theirs, _, ours, expected in cases:
        assert [x.shape for x in ours] == [x.shape for x in theirs]
        assert strided_like(name, ours, theirs)
        check(name, sample, ours, expected)


def test_out_may_be_an_argument(launches: dict[str, int]) -> None:
    A = random_definite((2, 3, 3), torch.float32)
    X = torch.linalg.inv(A)
    with LA.enable("cpu"):
        torch.linalg.inv(A, out=A)
    assert launches["linalg_inv_ex"] > 0
    torch.testing.assert_close(A, X)


def warned(
    op: Callable[..., Any], args: tuple[Any, ...], outs: list[Tensor], kwargs: dict[str, Any]
) -> tuple[Any, list[str]]:
    """The result in `outs`, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = op(*args, **kwargs, out=outs[0] if len(outs) == 1 else tuple(outs))
    # Which torch's own kernel of old functions says once in a process.
    words = (str(w.message) for w in caught)
    return result, sorted(w for w in words if "is deprecated in favor of" not in w)


def test_results_are_as_the_meta_functions_say(enabled: None, device: str) -> None:
    """Of the operations themselves, whose other results the functions do not show."""
    for transposed in (False, True):
        A = random_definite((2, 3, 3), torch.float32).to(device)
        A = A.mT if transposed else A
        B, b = A[..., :2], A[..., 0]
        calls: dict[str, list[tuple[Any, ...]]] = {
            "_linalg_solve_ex": [(A, B), (A, b), (A[0], B), (A, b[0])],
            "_linalg_det": [(A,)],
            "_linalg_slogdet": [(A,)],
            "_linalg_svd": [(A, True, True), (A, False, False), (B,)],
            "_linalg_eigh": [(A, "L", True), (A, "U", False)],
            "linalg_eig": [(A,)],
        }
        for name, args in calls.items():
            for given in args:
                function = getattr(torch.ops.aten, name)
                with FakeTensorMode() as mode:
                    fakes = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in given]
                    promised = function(*fakes)
                for ours, theirs in zip(function(*given), promised, strict=True):
                    assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
                    assert ours.dtype == theirs.dtype


def test_errors_are_torchs() -> None:
    calls = bad_calls()
    expected = [raised(torch_function(name), args, kwargs) for name, args, kwargs in calls]
    with LA.use("kernels"), LA.enable("cpu"):
        got = [raised(torch_function(name), args, kwargs) for name, args, kwargs in calls]
    assert got == expected


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_singular_matrices_raise_torchs_error(batch: tuple[int, ...]) -> None:
    A = singular(*batch, at=2 if batch else 0)
    calls: list[Callable[[], Any]] = [
        lambda: torch.linalg.inv(A),
        lambda: torch.linalg.inv_ex(A, check_errors=True),
        lambda: torch.linalg.solve(A, A),
        lambda: torch.linalg.solve_ex(A, A, check_errors=True),
        lambda: torch.linalg.lu_factor(A),
        lambda: torch.linalg.lu_factor_ex(A, check_errors=True),
        lambda: torch.linalg.cholesky(A),
        lambda: torch.linalg.cholesky_ex(A, check_errors=True),
        lambda: torch.cholesky_inverse(A),
        lambda: torch.linalg.inv(A, out=torch.empty(0)),
        lambda: torch.linalg.eig(A / 0),
    ]
    expected = [raised(call, (), {}) for call in calls]
    with LA.enable("cpu"):
        assert [raised(call, (), {}) for call in calls] == expected


def test_out_of_another_dtype_is_torchs(launches: dict[str, int]) -> None:
    A = torch.eye(3)
    wide = torch.empty(0, dtype=torch.float64)
    with LA.enable("cpu"):
        with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float"):
            torch.linalg.inv(A, out=wide)
        assert torch.equal(
            torch.linalg.householder_product(A, A[0], out=wide), torch.diag(1 - A[0]).double()
        )


DERIVATIVES: dict[str, Callable[[Tensor], Any]] = {
    "lu_factor": lambda A: torch.linalg.lu_factor(A)[0],
    "lu": lambda A: torch.linalg.lu(A)[1:],
    "lu_solve": lambda A: torch.linalg.lu_solve(A, torch.linalg.lu_factor(A)[1], A),
    "solve": lambda A: torch.linalg.solve(A, A.mT.cos()),
    "solve of vectors": lambda A: torch.linalg.solve(A, A[..., 0]),
    "solve on the right": lambda A: torch.linalg.solve(A, A.cos(), left=False),
    "solve_triangular": lambda A: torch.linalg.solve_triangular(A, A.mT, upper=True),
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "slogdet": lambda A: torch.linalg.slogdet(A)[1],
    "cholesky": lambda A: torch.linalg.cholesky(A @ A.mH),
    "cholesky_solve": lambda A: torch.cholesky_solve(A.mT, A),
    "cholesky_inverse": lambda A: torch.cholesky_inverse(torch.linalg.cholesky(A @ A.mH)),
    "qr": torch.linalg.qr,
    "householder_product": lambda A: torch.linalg.householder_product(A, A[..., 0]),
    "ormqr": lambda A: torch.ormqr(A, A[..., 0], A.mT),
    "svd": lambda A: torch.linalg.svd(A)[1],
    "svdvals": torch.linalg.svdvals,
    "pinv": torch.linalg.pinv,
    "eigh": lambda A: torch.linalg.eigh(A + A.mH)[0],
    "eigvals": torch.linalg.eigvals,
    "matrix_exp": torch.linalg.matrix_exp,
    "lstsq": lambda A: torch.linalg.lstsq(A, A.mT.cos())[0],
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float64) for name in DERIVATIVES),
        *((name, torch.complex128) for name in ("solve", "qr", "svd", "eigvals", "cholesky")),
    ],
    ids=str,
)
def test_derivatives_are_torchs(name: str, dtype: torch.dtype, launches: dict[str, int]) -> None:
    """Backward and forward, of row-major and of column-major matrices, against torch alone."""
    function = DERIVATIVES[name]
    given = testing.random((2, 3, 3), dtype, 3) + 3 * torch.eye(3)

    def derivatives(A: Tensor) -> list[Tensor]:
        results = listed(function(A))
        weights = [testing.random(r.shape, r.dtype, 5) for r in results]
        backward = torch.autograd.grad(results, A, weights)
        if name == "ormqr":
            # It has no other derivative in torch.
            return list(backward)
        with forward_ad.dual_level():
            duals = listed(function(make_dual(A.detach(), testing.random(A.shape, dtype, 7))))
            forward = [unpack_dual(dual).tangent for dual in duals]
        return [*backward, *(f for f in forward if f is not None)]

    for A in (given, given.mT.contiguous().mT):
        A = A.detach().requires_grad_()
        theirs = derivatives(A)
        before = sum(launches.values())
        with LA.enable("cpu"):
            ours = derivatives(A)
        assert sum(launches.values()) > before
        assert len(ours) == len(theirs) > 0
        torch.testing.assert_close(ours, theirs)


def test_transforms_and_second_derivatives(launches: dict[str, int], device: str) -> None:
    A = on(device, random_definite((2, 3, 3), torch.float64)).requires_grad_()
    B = torch.ones_like(A)
    runs: list[Callable[[], Any]] = [
        lambda: torch.func.vmap(torch.linalg.solve)(A, B),
        lambda: torch.func.vmap(torch.linalg.solve, (None, 0))(A[0], B),
        lambda: torch.func.jacfwd(torch.linalg.inv)(A[0]),
        lambda: torch.func.jacrev(torch.linalg.inv)(A[0]),
        lambda: torch.func.hessian(torch.linalg.det)(A[0]),
    ]
    expected = [run() for run in runs]
    with LA.use("kernels"), LA.enable(device):
        for run, theirs in zip(runs, expected, strict=True):
            before = sum(launches.values())
            torch.testing.assert_close(run(), theirs)
            assert sum(launches.values()) > before
        assert torch.autograd.gradgradcheck(torch.linalg.inv, (A,))
        assert torch.autograd.gradgradcheck(lambda A: torch.linalg.eigh(A + A.mT)[0], (A,))


def compiled(A: Tensor) -> Tensor:
    Q, R = torch.linalg.qr(A)
    L, V = torch.linalg.eigh(A)
    U, S, Vh = torch.linalg.svd(A)
    X: Tensor = torch.linalg.solve(A, A.mT) * torch.linalg.det(A)[:, None, None]
    X += Q @ R + (V * L.unsqueeze(-2)) @ V.mH + (U * S.unsqueeze(-2)) @ Vh
    return X


def test_compiled_graphs(launches: dict[str, int], device: str) -> None:
    A = on(device, random_hermitian((2, 3, 3), torch.float64, 3))
    theirs = torch.func.grad_and_value(lambda A: compiled(A).cos().sum())(A)
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    with LA.use("kernels"), LA.enable(device):
        given = A.clone().requires_grad_()
        value = run(given).cos().sum()
        (gradient,) = torch.autograd.grad(value, given)
    torch.testing.assert_close((gradient, value.detach()), theirs)
    used = ("linalg_qr", "_linalg_eigh", "_linalg_svd", "_linalg_solve_ex", "_linalg_det")
    assert all(launches[name] > 0 for name in used)


def test_a_graph_of_inductor(launches: dict[str, int], device: str) -> None:
    A = random_definite((2, 3, 3), torch.float32).to(device)
    run = torch.compile(lambda A: torch.linalg.solve(A, torch.linalg.qr(A)[1]), fullgraph=True)
    expected = torch.linalg.solve(A, torch.linalg.qr(A)[1])
    with LA.use("kernels"), LA.enable(device):
        torch.testing.assert_close(run(A), expected)
    assert launches["linalg_qr"] > 0 < launches["_linalg_solve_ex"]
    before = dict(launches)
    # The graph holds torch's operation, which has its own kernel again.
    torch.testing.assert_close(run(A), expected)
    assert launches == before


DUMPS = """
import torch
def dumps():
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    return {name: torch._C._dispatch_dump(name) for name in names}
before = dumps()
import mpslinalg
assert dumps() == before
A = torch.eye(3)
assert torch.equal(mpslinalg.inv(A), A)
assert dumps() == before
with mpslinalg.enable("cpu"), mpslinalg.enable("mps"), mpslinalg.enable("cuda"):
    changed = dumps()
    assert 180 < sum(changed[name] != before[name] for name in before) < 220
assert dumps() == before
mpslinalg.enable()
mpslinalg.enable()
mpslinalg.disable()
assert dumps() == before
"""


def test_import_changes_nothing_and_disable_restores_all() -> None:
    """And none of it warns or prints."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", DUMPS], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def is_ours(launches: dict[str, int]) -> bool:
    before = launches["linalg_inv_ex"]
    torch.linalg.inv(torch.eye(3))
    return launches["linalg_inv_ex"] > before


def test_blocks_and_calls(launches: dict[str, int]) -> None:
    assert not is_ours(launches)
    LA.enable("cpu")
    try:
        assert is_ours(launches)
        with LA.enable("cpu"):
            assert is_ours(launches)
        assert is_ours(launches)
    finally:
        LA.disable(torch.device("cpu"))
    assert not is_ours(launches)
    LA.disable("cpu")
    block = LA.enable("cpu")
    for _ in range(2):
        with block:
            with pytest.raises(ZeroDivisionError), LA.enable("cpu"), LA.enable("cpu"):
                raise ZeroDivisionError
            assert is_ours(launches)
        assert not is_ours(launches)
    with LA.enable("cpu"):
        LA.disable("cpu")
        assert not is_ours(launches)


def test_modes(launches: dict[str, int]) -> None:
    with LA.enable("cpu"):
        with LA.use("torch"):
            assert not is_ours(launches)
        with LA.use("kernels"):
            assert is_ours(launches)


def test_on_cuda_the_measurements_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_route, "CUDA_NOT_MEASURED", frozenset(("eig",)))

    class Matrices:
        is_cuda = True

        def __init__(self, *shape: int) -> None:
            self.shape = torch.Size(shape)

        def dim(self) -> int:
            return len(self.shape)

    assert _enable._wanted("inv_ex", Matrices(64, 3, 3))  # type: ignore[arg-type]
    assert not _enable._wanted("inv_ex", Matrices(3, 3))  # type: ignore[arg-type]
    assert not _enable._wanted("eig", Matrices(64, 3, 3))  # type: ignore[arg-type]
    with LA.use("kernels"):
        assert _enable._wanted("eig", Matrices(3, 3))  # type: ignore[arg-type]


def test_what_the_kernels_do_not_take_is_torchs(launches: dict[str, int]) -> None:
    with LA.enable("cpu"):
        with pytest.raises(RuntimeError, match="must be batches of square matrices"):
            torch.linalg.eig(torch.ones(2, 3))
        with pytest.raises(RuntimeError, match="should not contain infs or NaNs"):
            torch.linalg.eigvals(torch.eye(4) / 0)
    assert launches["linalg_eig"] == 0 < launches["_linalg_eigvals"]


def test_operations_that_torch_lacks_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(_enable, "get_kernel", none)
    operation = torch.ops.aten.linalg_inv_ex
    refuse = _enable._torchs(operation.default, "MPS")
    with pytest.raises(RuntimeError, match="must be batches of square matrices"):
        refuse(None, torch.ones(2, 3))
    with pytest.raises(RuntimeError, match=r"the kernels take .* but got torch.float32 \[2, 2\]"):
        refuse(None, torch.eye(2))
    refuse_out = _enable._torchs(operation.inverse, "MPS")
    wide, info = torch.empty(3, dtype=torch.float64), torch.empty(0, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float"):
        refuse_out(None, torch.eye(2), inverse=wide, info=info)


@pytest.mark.parametrize("device", ["meta", "cuda:0", "", torch.device("meta")])
def test_unknown_devices(device: Any) -> None:
    for function in (LA.enable, LA.disable):
        with pytest.raises(ValueError, match=r"expected 'mps', 'cuda' or 'cpu', got "):
            function(device)
