"""The public names, and that each has torch's signature."""

import inspect
import re
from typing import Any

import pytest
import torch

import mpslinalg as LA

FUNCTIONS = sorted(
    name
    for name, value in vars(LA).items()
    if inspect.isfunction(value) and not name.startswith("_") and name != "which"
)


def torch_function(name: str) -> Any:
    return getattr(torch.linalg, name, None) or getattr(torch, name)


def torch_signature(name: str) -> inspect.Signature:
    """The signature of a built-in of torch, from the first line of its documentation."""
    line = torch_function(name).__doc__.strip().splitlines()[0]
    parameters = re.search(r"\((.*?)\) ->", line)
    assert parameters is not None
    text = re.sub(r"\b(bool|Tensor) ", "", parameters[1])
    scope: dict[str, Any] = {}
    exec(f"def function({text}): ...", scope)
    return inspect.signature(scope["function"])


def test_public_names() -> None:
    assert FUNCTIONS == [
        "cholesky",
        "cholesky_ex",
        "cholesky_inverse",
        "cholesky_solve",
        "det",
        "geqrf",
        "householder_product",
        "inv",
        "inv_ex",
        "ldl_factor",
        "ldl_factor_ex",
        "ldl_solve",
        "lstsq",
        "lu",
        "lu_factor",
        "lu_factor_ex",
        "lu_solve",
        "lu_unpack",
        "ormqr",
        "qr",
        "slogdet",
        "solve",
        "solve_ex",
        "solve_triangular",
    ]
    assert vars(torch.linalg)["LinAlgError"] is LA.LinAlgError


@pytest.mark.parametrize("name", FUNCTIONS)
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
    prefix = "torch.linalg" if hasattr(torch.linalg, name) else "torch"
    assert f"Same contract as `{prefix}.{name}`. Differences: " in text
    for section in ("Args:", "Returns:", "Raises:"):
        assert section in text
