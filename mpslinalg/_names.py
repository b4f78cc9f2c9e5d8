"""Names of arguments that torch takes beside those of its documentation."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# What torch's parser calls the first argument: its own name, and those of NumPy.
FIRST = ("input", "x", "a", "x1")
# Other names of NumPy's that it knows, and what it calls arguments of single functions.
NUMPYS = {"x2": "other", "axis": "dim", "keepdims": "keepdim"}
PARSERS = {
    "cholesky_solve": {"input2": "L"},
    "lstsq": {"b": "B"},
    "ormqr": {"input2": "tau", "input3": "other"},
    "tensorsolve": {"other": "B", "x2": "B"},
}


def other_names(function: Callable[..., Any]) -> Mapping[str, str]:
    """The name in the signature for each other name of an argument."""
    code = function.__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = dict.fromkeys(FIRST, own[0]) | NUMPYS | PARSERS.get(function.__name__, {})
    return MappingProxyType(
        {other: name for other, name in names.items() if name in own and other not in own}
    )


def call_by_own_names(
    function: Callable[..., R], names: Mapping[str, str], args: Any, kwargs: Any
) -> R:
    """Call a function for arguments of which some have other names."""
    given = {names.get(name, name): value for name, value in kwargs.items()}
    if len(given) < len(kwargs):
        raise TypeError(f"{function.__name__}() got an argument by two of its names")
    return function(*args, **given)


def named_as_torchs(function: Callable[P, R]) -> Callable[P, R]:
    """A public function that no other decorator of this kind wraps."""
    names = other_names(function)

    @functools.wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name in names:
                return call_by_own_names(function, names, args, kwargs)
        return function(*args, **kwargs)

    return either
