"""Sharding rules of the ops under the public functions, for torch.distributed.tensor."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mpslinalg import _check

# Dimensions behind the batch of the first argument of an op. With its batch all arguments and
# results begin. Without a rule are bincount, whose result has a length that values decide, and
# logspace, which has no argument to shard.
BEHIND_BATCH = {
    **dict.fromkeys(("cholesky", "cholesky_inverse", "cholesky_solve", "det", "eig", "eigh"), 2),
    **dict.fromkeys(("geqrf", "gels", "householder_product", "inv", "ldl_factor", "ldl_solve"), 2),
    **dict.fromkeys(("lu_det", "lu_factor", "lu_solve", "lu_unpack", "matrix_exp", "ormqr"), 2),
    **dict.fromkeys(("product", "qr", "qr_pivoted", "slogdet", "solve", "solve_triangular"), 2),
    **dict.fromkeys(("svd", "svdvals"), 2),
    **dict.fromkeys(("compare", "frexp", "heaviside", "special_airy", "special_normal"), 0),
    "special_polynomial": 0,
    "gated_delta_system": 2,
    "gated_delta_solve_tril": 3,
    "gated_delta_step": 3,
}


def register() -> None:
    """Tell DTensor how the ops of `torch.ops.mpslinalg` shard: by their batches.

    The public functions take DTensors without it. It is for code that calls the ops themselves,
    and for `torch.compile`, which sees them. An op runs on the matrices of each process where they
    are, and its results are sharded as its arguments; a sharded dimension of matrices is gathered.
    A second call changes nothing. Nothing of torch's own is changed.

    Raises:
        RuntimeError: this torch was built without torch.distributed.

    Example:
        >>> mpslinalg.distributed.register()
        >>> X, info = torch.ops.mpslinalg.inv(A)  # A: a DTensor placed as Shard(0)
    """
    if not torch.distributed.is_available():
        raise RuntimeError("mpslinalg.distributed: this torch was built without torch.distributed")
    # Not before: to import it takes longer than torch itself.
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    _check.distributed = (DTensor,)
    rules = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    ops = {name: getattr(torch.ops.mpslinalg, name).default for name in (*BEHIND_BATCH, *INDEXING)}
    for name, op in ops.items():
        rule = INDEXING[name] if name in INDEXING else _Rule(op, BEHIND_BATCH[name])
        register_sharding(op)(rule)
        # Results are remembered by the arguments from the first int on. There may be none, and
        # shapes depend on flags and modes too.
        rules[op] = replace(rules[op], static_argnum=0)


class _Rule:
    """Placements of the arguments and results of an op: all replicated, or a batch dimension."""

    def __init__(self, op: Any, behind: int) -> None:
        self.op, self.behind = op, behind

    def __call__(self, *args: Any) -> list[tuple[list[Any], list[Any]]]:
        from torch.distributed.tensor import Replicate, Shard

        given = [_is_tensor(x) for x in args]
        empty = [_like(x) if tensor else x for x, tensor in zip(args, given, strict=True)]
        results = self.op(*empty)
        results = (results,) if isinstance(results, Tensor) else results
        batch = empty[0].shape[: empty[0].dim() - self.behind]
        # Only what was not asked for, of shape (0,), has no batch.
        batched = [x.shape[: len(batch)] == batch for x in results]
        rules = []
        for placement in (Replicate(), *map(Shard, range(len(batch)))):
            into = [placement if tensor else None for tensor in given]
            rules.append(([placement if x else Replicate() for x in batched], into))
        return rules


def _take(input: Any, index: Any, sides: int, index_sides: int) -> list[Any]:
    """Each part of the index takes from the whole tensor, or from its own one of a batch."""
    from torch.distributed.tensor import Replicate, Shard

    batch = len(input.tensor_meta.shape) - sides
    rules: list[Any] = [([Replicate()], [Replicate(), Replicate(), None, None])]
    for dim in range(len(index.tensor_meta.shape)):
        whole = Shard(dim) if dim < batch else Replicate()
        rules.append(([Shard(dim)], [whole, Shard(dim), None, None]))
    return rules


def _put(
    input: Any, index: Any, source: Any, accumulate: bool, sides: int, index_sides: int
) -> list[Any]:
    """All into the whole tensor, or into its own one of a batch."""
    from torch.distributed.tensor import Replicate, Shard

    batch = len(input.tensor_meta.shape) - sides
    rules = []
    for placement in (Replicate(), *map(Shard, range(batch))):
        kept = Replicate() if accumulate else placement
        rules.append(([placement, kept], [*[placement] * 3, None, None, None]))
    return rules


# Rules of their own.
INDEXING = {"take": _take, "put": _put}


def _is_tensor(spec: Any) -> bool:
    """Whether an argument is what DTensor shows of a tensor."""
    return hasattr(spec, "tensor_meta")


def _like(spec: Any) -> Tensor:
    meta = spec.tensor_meta
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")
