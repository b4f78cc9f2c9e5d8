"""The public names, and that each has torch's signature."""

import inspect
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
import torch

import mpslinalg as LA

FUNCTIONS = sorted(
    name
    for name, value in vars(LA).items()
    if inspect.isfunction(value) and not name.startswith("_") and name != "which"
)

# What torch has not, and whose contract it has.
OWN = {"qr_pivoted": "scipy.linalg.qr(A, pivoting=True)"}
# Functions of torch 2.15.
YOUNG = {"matrix_sqrth": "matrix_sqrth(A)", "polar": "polar(A, *, out=None)"}


def torch_function(name: str) -> Any:
    return getattr(torch.linalg, name, None) or getattr(torch, name)


def torch_signature(name: str) -> inspect.Signature:
    """The signature of a function of torch; of a built-in, from the start of its documentation."""
    if name in YOUNG:
        line = f"{YOUNG[name]} -> ..."
    else:
        with suppress(ValueError):
            return inspect.signature(torch_function(name))
        line = torch_function(name).__doc__.strip().splitlines()[0]
    parameters = re.search(r"\((.*?)\) ->", line)
    assert parameters is not None
    text = re.sub(r"\b(bool|Tensor) ", "", parameters[1])
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def function({text}): ...", scope)
    return inspect.signature(scope["function"])


def test_public_names() -> None:
    assert FUNCTIONS == [
        "cholesky",
        "cholesky_ex",
        "cholesky_inverse",
        "cholesky_solve",
        "cond",
        "det",
        "eig",
        "eigh",
        "eigvals",
        "eigvalsh",
        "eq",
        "frexp",
        "ge",
        "geqrf",
        "gt",
        "heaviside",
        "householder_product",
        "inv",
        "inv_ex",
        "ldl_factor",
        "ldl_factor_ex",
        "ldl_solve",
        "le",
        "logspace",
        "lstsq",
        "lt",
        "lu",
        "lu_factor",
        "lu_factor_ex",
        "lu_solve",
        "lu_unpack",
        "matrix_norm",
        "matrix_rank",
        "matrix_sqrth",
        "ne",
        "ormqr",
        "pinv",
        "polar",
        "qr",
        "qr_pivoted",
        "slogdet",
        "solve",
        "solve_ex",
        "solve_triangular",
        "svd",
        "svd_lowrank",
        "svdvals",
    ]
    assert vars(torch.linalg)["LinAlgError"] is LA.LinAlgError


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in OWN])
def test_signature_is_torchs(name: str) -> None:
    ours = inspect.signature(getattr(LA, name)).parameters.values()
    theirs = torch_signature(name).parameters.values()
    assert [(p.name, p.kind, p.default) for p in ours] == [
        (p.name, p.kind, p.default) for p in theirs
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_documentation_states_the_contract(name: str) -> None:
    text = inspect.getdoc(getattr(LA, name))
    assert text is not None
    prefix = "torch.linalg" if hasattr(torch.linalg, name) or name in YOUNG else "torch"
    contract = OWN.get(name, f"{prefix}.{name}")
    assert f"Same contract as `{contract}`. Differences: " in text
    for section in ("Args:", "Returns:", "Raises:"):
        assert section in text


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
