"""The public names, and that each has torch's signature."""

import inspect
import itertools
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
import torch

import mpslinalg as LA
from tests import surface

FUNCTIONS = sorted(
    name
    for name, value in vars(LA).items()
    if inspect.isfunction(value) and not name.startswith("_") and name not in ("disable", "which")
)

# Every function of torch.linalg 2.15; older ones lack some.
TORCH_LINALG = {
    "cholesky": "A, *, upper=False, out=None",
    "cholesky_ex": "A, *, upper=False, check_errors=False, out=None",
    "cond": "A, p=None, *, out=None",
    "cross": "input, other, *, dim=-1, out=None",
    "det": "A, *, out=None",
    "diagonal": "A, *, offset=0, dim1=-2, dim2=-1",
    "eig": "A, *, out=None",
    "eigh": "A, UPLO='L', *, out=None",
    "eigvals": "A, *, out=None",
    "eigvalsh": "A, UPLO='L', *, out=None",
    "householder_product": "A, tau, *, out=None",
    "inv": "A, *, out=None",
    "inv_ex": "A, *, check_errors=False, out=None",
    "ldl_factor": "A, *, hermitian=False, out=None",
    "ldl_factor_ex": "A, *, hermitian=False, check_errors=False, out=None",
    "ldl_solve": "LD, pivots, B, *, hermitian=False, out=None",
    "lstsq": "A, B, rcond=None, *, driver=None",
    "lu": "A, *, pivot=True, out=None",
    "lu_factor": "A, *, pivot=True, out=None",
    "lu_factor_ex": "A, *, pivot=True, check_errors=False, out=None",
    "lu_solve": "LU, pivots, B, *, left=True, adjoint=False, out=None",
    "matmul": "input, other, *, out=None",
    "matrix_exp": "A",
    "matrix_norm": "A, ord='fro', dim=(-2, -1), keepdim=False, *, dtype=None, out=None",
    "matrix_power": "A, n, *, out=None",
    "matrix_rank": "A, *, atol=None, rtol=None, hermitian=False, out=None",
    "matrix_sqrth": "A",
    "multi_dot": "tensors, *, out=None",
    "norm": "input, ord=None, dim=None, keepdim=False, *, out=None, dtype=None",
    "pinv": "A, *, atol=None, rtol=None, hermitian=False, out=None",
    "polar": "A, *, out=None",
    "qr": "A, mode='reduced', *, out=None",
    "slogdet": "A, *, out=None",
    "solve": "A, B, *, left=True, out=None",
    "solve_ex": "A, B, *, left=True, check_errors=False, out=None",
    "solve_triangular": "A, B, *, upper, left=True, unitriangular=False, out=None",
    "svd": "A, full_matrices=True, *, driver=None, out=None",
    "svdvals": "A, *, driver=None, out=None",
    "tensorinv": "A, ind=2, *, out=None",
    "tensorsolve": "A, B, dims=None, *, out=None",
    "vander": "x, N=None",
    "vecdot": "x, y, *, dim=-1, out=None",
    "vector_norm": "x, ord=2, dim=None, keepdim=False, *, dtype=None, out=None",
}
# What else is public.
OTHERS = {
    "bincount",
    "cholesky_inverse",
    "cholesky_solve",
    "eq",
    "frexp",
    "ge",
    "geqrf",
    "gt",
    "heaviside",
    "le",
    "logspace",
    "lt",
    "lu_unpack",
    "ne",
    "ormqr",
    "put",
    "put_",
    "qr_pivoted",
    "svd_lowrank",
    "take",
}

# What torch has not, and whose contract it has.
OWN = {
    "qr_pivoted": "scipy.linalg.qr(A, pivoting=True)",
    "gated_delta.solve_tril": "fla.ops.utils.solve_tril",
    "gated_delta.chunk_gated_delta_rule": "torch_chunk_gated_delta_rule",
    "gated_delta.recurrent_gated_delta_rule": "torch_recurrent_gated_delta_rule",
}
# Exact, or sums and products as torch has them, or by another function of these, which is named.
WITHOUT_SOURCE = {
    *("eq", "ne", "lt", "le", "gt", "ge", "frexp", "heaviside", "logspace"),
    *("take", "put", "bincount", "diagonal", "lu_unpack"),
    *("cross", "matmul", "matrix_power", "multi_dot", "vander", "vecdot"),
    *("tensorinv", "tensorsolve"),
}
# What torch's parser calls some arguments, and NumPy.
OTHER_NAMES = (("input", "x", "a", "x1"), ("other", "x2", "b", "input2"), ("input3",))
DTYPES = re.compile(r"float32|float64|floating|integers|numbers|dtype|bool|see\s+`")
# What torch has as a method, or without documentation.
PUT = "input, index, source, accumulate=False"
WRITTEN = TORCH_LINALG | {"put": PUT, "put_": PUT, "take": "input, index, *, out=None"}


def torch_signature(name: str) -> inspect.Signature:
    """The signature of a function of torch; of a built-in, from the start of its documentation."""
    text = WRITTEN.get(name)
    if text is None:
        with suppress(ValueError):
            return inspect.signature(getattr(torch, name))
        line = getattr(torch, name).__doc__.strip().splitlines()[0]
        parameters = re.search(r"\((.*?)\) ->", line)
        assert parameters is not None
        text = re.sub(r"\b(bool|Tensor) ", "", parameters[1])
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def function({text}): ...", scope)
    return inspect.signature(scope["function"])


def test_public_names() -> None:
    assert set(FUNCTIONS) == OTHERS | TORCH_LINALG.keys()
    assert vars(torch.linalg)["LinAlgError"] is LA.LinAlgError


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in OWN])
def test_signature_is_torchs(name: str) -> None:
    ours = inspect.signature(getattr(LA, name)).parameters.values()
    theirs = torch_signature(name).parameters.values()
    assert [(p.name, p.kind, p.default) for p in ours] == [
        (p.name, p.kind, p.default) for p in theirs
    ]


class _Called(Exception):
    pass


def _call(*args: Any, **kwargs: Any) -> None:
    raise _Called(args, kwargs)


def torchs(name: str) -> Any:
    """The function of torch, if it has one."""
    short = name.removeprefix("special.")
    modules = (torch.linalg, torch.special, torch)
    return next((getattr(m, short) for m in modules if hasattr(m, short)), None)


# torch.polar is another function, svd_lowrank draws a matrix, bincount has torch's one name.
UNLIKE = ("polar", "svd_lowrank", "bincount")


@pytest.mark.parametrize(
    "name", [n for n in surface.public() if torchs(n) is not None and n not in UNLIKE]
)
def test_other_names_of_arguments_that_torch_takes(name: str) -> None:
    case = next(case for case in surface.CASES if case.public == name)
    with pytest.raises(_Called) as called:
        case.call(_call, *case.tensors(case.dtypes[-1], "cpu"))
    args, options = called.value.args
    function = surface.named(name)
    parameters = inspect.signature(function).parameters
    given = dict(zip(parameters, args, strict=False))
    others = [
        [own, *more]
        for own, more in itertools.zip_longest(given, OTHER_NAMES[: len(given)], fillvalue=())
    ]
    for own, numpys, value in (("dim", "axis", -1), ("keepdim", "keepdims", True)):
        if own in parameters:
            given[own] = options.pop(own, value)
            others.append([own, numpys])
    expected = surface.flat(function(**given, **options))
    taken = 0
    for names in itertools.product(*others):
        spelled = dict(zip(names, given.values(), strict=True)) | options
        if len(spelled) < len(given) + len(options):
            continue
        try:
            torchs(name)(**spelled)
        except TypeError:
            continue
        taken += 1
        results = surface.flat(function(**spelled))
        for ours, theirs in zip(results, expected, strict=True):
            assert torch.equal(ours, theirs)
    assert taken > 0


def test_which_knows_other_names() -> None:
    A = torch.eye(3)
    assert LA.which("cholesky", input=A) == LA.which("cholesky", A)
    assert LA.which("pinv", x=A, rtol=1e-3) == LA.which("pinv", A, rtol=1e-3)
    assert LA.which("gated_delta.solve_tril", A) == LA.which("gated_delta.solve_tril", A=A)


def test_an_argument_by_two_of_its_names() -> None:
    A = torch.eye(2)
    both: list[dict[str, Any]] = [{"A": A, "input": A}, {"x": A, "input": A}]
    for given in both:
        with pytest.raises(TypeError, match="cholesky"):
            LA.cholesky(**given)
        with pytest.raises(TypeError, match="matrix_exp"):
            LA.matrix_exp(**given)
    with pytest.raises(TypeError, match="multiple values"):
        LA.cholesky(A, input=A)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", surface.public())
def test_documentation_states_the_contract(name: str) -> None:
    function = surface.named(name)
    text = inspect.getdoc(function)
    assert text is not None
    prefix = "torch.linalg" if name in TORCH_LINALG else "torch"
    if name == "put_":
        prefix = "torch.Tensor"
    contract = OWN.get(name, f"{prefix}.{name}")
    assert re.search(rf"Same contract as `{re.escape(contract)}`[\w\s]*\. Differences:\s", text)
    _, args, returns, raises = re.split(r"^(?:Args|Returns|Raises):$", text, flags=re.MULTILINE)
    described = re.findall(r"^    (\w[\w, ]*):", args, re.MULTILINE)
    listed = [parameter for names in described for parameter in names.split(", ")]
    assert listed == list(inspect.signature(function).parameters)
    assert DTYPES.search(args)
    assert re.search(r"^    \w[\w., ]*: ", raises, re.MULTILINE)
    assert returns.strip()
    sourced = re.search(r"^Source|see `|see there", raises, re.MULTILINE)
    assert (name in WITHOUT_SOURCE) == (sourced is None)


def test_importing_does_not_import_torch_compile() -> None:
    """It takes as long as torch itself."""
    code = "import sys, mpslinalg; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_functions_are_allowed_in_graphs_that_come_later() -> None:
    code = (
        "import torch, mpslinalg as LA\n"
        "A = torch.randn(3, 3, dtype=torch.float64).requires_grad_()\n"
        "with LA.use('kernels'):\n"
        "    f = torch.compile(LA.det, fullgraph=True, backend='aot_eager')\n"
        "    f(A).backward()\n"
        "expected = (torch.linalg.det(A) * torch.linalg.inv(A).mT).detach()\n"
        "assert (A.grad - expected).norm() <= 1e-12 * expected.norm()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
