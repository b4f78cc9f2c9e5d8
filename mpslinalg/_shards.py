"""Distributed tensors: every process calls the function for the matrices that it holds."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from mpslinalg._names import call_by_own_names, other_names

P = ParamSpec("P")
R = TypeVar("R")

# Functions whose tensors are batches of matrices and whose results have the batch first.
MATRICES = frozenset(
    (
        *("cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "cond", "det"),
        *("eig", "eigh", "eigvals", "eigvalsh", "geqrf", "householder_product", "inv", "inv_ex"),
        *("ldl_factor", "ldl_factor_ex", "ldl_solve", "lstsq", "lu", "lu_factor", "lu_factor_ex"),
        *("lu_solve", "lu_unpack", "matrix_exp", "matrix_power", "matrix_rank", "matrix_sqrth"),
        *("ormqr", "pinv", "polar", "qr", "qr_pivoted", "slogdet", "solve", "solve_ex"),
        *("solve_triangular", "svd", "svdvals", "svd_lowrank"),
    )
)
# Functions of single elements.
ELEMENTS = frozenset(
    (
        *("eq", "ne", "lt", "le", "gt", "ge", "frexp", "heaviside", "airy_ai", "log_ndtr", "ndtri"),
        *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l"),
        "legendre_polynomial_p",
        *(f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"),
    )
)
# Functions of which not every result is asked for; what is not has the shape (0,), and no batch.
PARTIAL = frozenset(("lstsq", "lu", "lu_unpack", "qr"))
# Functions that index the whole of a tensor, and their arguments of which a part will do.
WHOLE = {"take": ("index",), "put": ()}
# Dimensions behind the batch of those of their arguments that are no matrices.
BEHIND_BATCH = {"pivots": 1, "LU_pivots": 1, "tau": 1, "atol": 0, "rtol": 0}
# Where B may be a vector for each matrix, by torch's rule.
VECTORS = frozenset(("solve", "solve_ex", "lstsq"))


class _Layout(NamedTuple):
    """How a batch lies: for each dimension of the mesh the one of the batch that it shares out."""

    mesh: Any
    batch: torch.Size
    sharded: list[int | None]


def by_batch(
    function: Callable[..., Any], local: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call `local` for the matrices of this process where a DTensor is given, else `function`.

    `local` is `function` for tensors that are not distributed. Where the batch of one argument is
    sharded, so are those of all and the results; a sharded dimension of matrices is gathered.
    """
    name = function.__name__
    known = name in MATRICES or name in ELEMENTS or name in WHOLE
    if not known or not is_distributed(*args, *kwargs.values()):
        return function(*args, **kwargs)
    given = inspect.signature(function).bind(*args, **kwargs)
    tensors: dict[str, Any] = {
        key: x for key, x in given.arguments.items() if isinstance(x, Tensor)
    }
    mesh = _mesh(name, tensors)
    batches = {key: x.shape[: x.dim() - _behind(name, key, tensors)] for key, x in tensors.items()}
    try:
        batch = torch.broadcast_shapes(*batches.values())  # type: ignore[no-untyped-call]
    except RuntimeError:
        return function(*args, **kwargs)  # which has torch's words for it
    placed = [(x.placements, batches[key]) for key, x in tensors.items()]
    layout = _Layout(mesh, batch, [_sharded(i, batch, placed) for i in range(mesh.ndim)])
    for key, x in tensors.items():
        given.arguments[key] = _part(x, batches[key], layout)
    try:
        result = local(*given.args, **given.kwargs)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        if any(dim is not None for dim in layout.sharded):
            error.add_note("Batch elements are counted in the part of the batch on this process.")
        raise
    if isinstance(result, Tensor):
        return _whole(result, layout)
    results = [_whole(x, layout, x.shape == (0,) and function.__name__ in PARTIAL) for x in result]
    return getattr(type(result), "_make", type(result))(results)


def is_distributed(*given: Any) -> bool:
    """Whether one of the arguments is a DTensor that no graph is made of."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or torch.compiler.is_compiling():
        return False
    return any(isinstance(x, distributed.DTensor) for x in given)


def over_batches(function: Callable[P, R]) -> Callable[P, R]:
    """A public function without a record of its calls, `by_batch`."""
    names = other_names(function)

    @functools.wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name in names:
                return call_by_own_names(either, names, args, kwargs)
        result: R = by_batch(function, function, args, kwargs)
        return result

    return either


def counted_by_parts(
    local: Callable[..., Tensor], input: Any, weights: Any, minlength: int
) -> Tensor:
    """bincount of what each process holds: a DTensor of parts whose sum is wanted."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    tensors = {"input": input} if weights is None else {"input": input, "weights": weights}
    mesh = _mesh("bincount", tensors)
    placed = [(input.placements, input.shape)]
    sharded = [_sharded(i, input.shape, placed) for i in range(mesh.ndim)]
    layout = _Layout(mesh, input.shape, sharded)
    parts = {key: _part(x.detach(), x.shape, layout) for key, x in tensors.items()}
    values = parts["input"]
    bins = values.new_zeros((), dtype=torch.int64)
    if values.numel() > 0:
        bins = (values.max() + 1).long()
    placements: list[Any] = []
    for i, dim in enumerate(sharded):
        placements.append(Replicate() if dim is None else Partial())
        if dim is not None:
            # All count as many bins as the one with the largest value.
            torch.distributed.all_reduce(bins, torch.distributed.ReduceOp.MAX, mesh.get_group(i))
    counts = local(values, parts.get("weights"), max(int(bins), minlength))
    return DTensor.from_local(counts, mesh, placements, run_check=False)


def _mesh(name: str, tensors: dict[str, Any]) -> Any:
    meshes = [getattr(x, "device_mesh", None) for x in tensors.values()]
    if any(mesh is None or mesh != meshes[0] for mesh in meshes):
        given = ", ".join(
            f"{key} of {'torch.Tensor' if mesh is None else mesh}"
            for key, mesh in zip(tensors, meshes, strict=True)
        )
        raise RuntimeError(
            f"mpslinalg.{name}: expected DTensors of one mesh, got {given}; "
            "torch.distributed.tensor.distribute_tensor makes a DTensor of a tensor"
        )
    return meshes[0]


def _behind(function: str, name: str, tensors: dict[str, Any]) -> int:
    """Dimensions of an argument behind its batch."""
    if function in ELEMENTS:
        return 0
    if function in WHOLE:
        return 0 if name in WHOLE[function] else int(tensors[name].dim())
    if name == "B" and function in VECTORS:
        A, B = tensors["A"], tensors["B"]
        return 1 if B.dim() == 1 or B.shape == A.shape[:-1] else 2
    return BEHIND_BATCH.get(name, 2)


def _sharded(i: int, batch: torch.Size, placed: list[tuple[Any, torch.Size]]) -> int | None:
    """The dimension of the batch that dimension i of the mesh shares out in the first argument."""
    for placements, own in placed:
        dim = getattr(placements[i], "dim", len(own))
        if dim < len(own) and own[dim] == batch[dim - len(own)]:
            return int(len(batch) - len(own) + dim)
    return None


def _part(x: Any, own: torch.Size, layout: _Layout) -> Tensor:
    """What this process needs of an argument with the batch `own`; its gradient goes back."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    first = len(layout.batch) - len(own)
    placements: list[Any] = [
        Shard(dim - first)
        if dim is not None and dim >= first and own[dim - first] == layout.batch[dim]
        else Replicate()
        for dim in layout.sharded
    ]
    # A matrix that several parts of a batch share has a part of its gradient from each.
    gradients = [
        Partial() if dim is not None and placement.is_replicate() else placement
        for dim, placement in zip(layout.sharded, placements, strict=True)
    ]
    if x.placements != tuple(placements):
        x = x.redistribute(placements=placements)
    part: Tensor = x.to_local(grad_placements=gradients)
    return part


def _whole(part: Tensor, layout: _Layout, whole: bool = False) -> Tensor:
    """The result of which this process has computed a part, or the whole."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    rank = len(layout.batch)
    placements = [Replicate() if d is None or whole else Shard(d) for d in layout.sharded]
    shape = part.shape if whole else torch.Size((*layout.batch, *part.shape[rank:]))
    stride = [1] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (part.stride(dim), -dim)):
        stride[dim] = step
        step *= max(shape[dim], 1)
    result: Tensor = DTensor.from_local(
        part, layout.mesh, placements, run_check=False, shape=shape, stride=tuple(stride)
    )
    return result
