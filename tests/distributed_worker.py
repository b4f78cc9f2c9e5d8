"""One of several processes of test_distributed.py: calls with DTensors, and what came of them.

Usage: distributed_worker.py RANK PROCESSES RENDEZVOUS RESULTS
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing

# Of five matrices the first process has three.
BATCH, N, COLUMNS = 5, 6, 2
ops = torch.ops.mpslinalg


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """General and positive definite matrices, and right-hand sides."""
    A = testing.random((BATCH, N, N), torch.float64, 0)
    S = A @ A.mH + torch.eye(N, dtype=A.dtype)
    return A, S, testing.random((BATCH, N, COLUMNS), torch.float64, 1)


def solve_factored(factors: Any, B: Any) -> Any:
    """By the results of lu_factor."""
    LU, pivots = factors
    return LA.lu_solve(LU, pivots, B)


# Functions of A, S and B that are called with all three sharded over the batch.
SHARDED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "solve": lambda A, S, B: LA.solve(A, B),
    "solve_vectors": lambda A, S, B: LA.solve(A, B[..., 0]),
    "solve_right": lambda A, S, B: LA.solve(A, B.mT, left=False),
    "inv": lambda A, S, B: LA.inv(A),
    "lu_factor": lambda A, S, B: LA.lu_factor(A),
    "lu_solve": lambda A, S, B: solve_factored(LA.lu_factor(A), B),
    "det": lambda A, S, B: LA.det(A),
    "cholesky": lambda A, S, B: LA.cholesky(S),
    "cholesky_solve": lambda A, S, B: LA.cholesky_solve(B, LA.cholesky(S)),
    "qr": lambda A, S, B: LA.qr(B),
    "qr_pivoted": lambda A, S, B: LA.qr_pivoted(B),
    "lstsq": lambda A, S, B: LA.lstsq(B, B, driver="gelsy").solution,
    "svd": lambda A, S, B: LA.svd(A),
    "svdvals": lambda A, S, B: LA.svdvals(B),
    "svd_lowrank": lambda A, S, B: LA.svd_lowrank(B, COLUMNS)[1],
    "frexp": lambda A, S, B: LA.frexp(A),
    "heaviside": lambda A, S, B: LA.heaviside(A, S),
    "hermite_polynomial_h": lambda A, S, B: LA.special.hermite_polynomial_h(A, 3),
    "polar": lambda A, S, B: LA.polar(B),
    "pinv": lambda A, S, B: LA.pinv(B, rtol=S[..., 0, 0].detach() * 0),
    "matrix_power": lambda A, S, B: LA.matrix_power(A, 3),
    "matrix_exp": lambda A, S, B: LA.matrix_exp(A),
    "matrix_sqrth": lambda A, S, B: LA.matrix_sqrth(S),
    "matrix_norm": lambda A, S, B: LA.matrix_norm(A, keepdim=True),
    "matrix_norm_spectral": lambda A, S, B: LA.matrix_norm(B, 2),
    "cond": lambda A, S, B: LA.cond(A, 1),
    "eigh": lambda A, S, B: LA.eigh(S),
    "solve_triangular": lambda A, S, B: LA.solve_triangular(A, B, upper=True),
    "solve_triangular_unit": lambda A, S, B: LA.solve_triangular(
        A, B, upper=False, unitriangular=True
    ),
}

# The same, without a derivative.
COUNTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "lt": lambda A, S, B: LA.lt(A, S),
    "eq": lambda A, S, B: LA.eq(A, 1),
}

# The ops themselves, after `register`. Modes and flags that change shapes come one after the other.
OPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "inv": lambda A, S, B: ops.inv(A),
    "solve": lambda A, S, B: ops.solve(A, B),
    "qr_reduced": lambda A, S, B: ops.qr(B, "reduced"),
    "qr_complete": lambda A, S, B: ops.qr(B, "complete"),
    "qr_r": lambda A, S, B: ops.qr(B, "r"),
    "eigvalsh": lambda A, S, B: ops.eigh(S, True, False),
    "eigh": lambda A, S, B: ops.eigh(S, True, True),
    "frexp": lambda A, S, B: ops.frexp(A),
    "take": lambda A, S, B: ops.take(B, (B > 0).long(), 2, 2),
    "put": lambda A, S, B: ops.put(B, (B > 0).long(), B, False, 2, 2),
    "lu_unpack": lambda A, S, B: ops.lu_unpack(*ops.lu_factor(A, True)[:2], True, False),
}


def numbers() -> tuple[Tensor, Tensor]:
    """An index into A, of which the last process has the largest, and what to put there."""
    return torch.tensor([0, 3, 3, -1, 40]), testing.random((5,), torch.float64, 2)


def tensors(result: Any) -> tuple[Any, ...]:
    """The results as a plain tuple."""
    return (result,) if isinstance(result, Tensor) else tuple(result)


def gradients(results: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What flows back to the arguments from the values of the results, placed as they are."""
    differentiable = [x for x in tensors(results) if x.requires_grad]
    values = [x.detach() for x in differentiable]
    return torch.autograd.grad(differentiable, given, values, allow_unused=True)


def report(x: Any) -> Any:
    """How a DTensor lies, and its values."""
    if x is None:
        return None
    return {
        "placements": [str(p.dim) if p.is_shard() else type(p).__name__ for p in x.placements],
        "local": tuple(x.to_local().shape),
        "stride": x.stride(),
        "values": x.detach().full_tensor(),
    }


def observed(call: Callable[..., Any], given: tuple[Any, ...], differentiate: bool) -> Any:
    """What a call with DTensors gives, and the number of collectives in it."""
    from torch.distributed.tensor.debug import CommDebugMode

    given = tuple(x.detach().requires_grad_(differentiate) for x in given)
    communication = CommDebugMode()  # type: ignore[no-untyped-call]
    with communication:
        results = call(*given)
        back = gradients(results, given) if differentiate else ()
    return {
        "collectives": communication.get_total_counts(),
        "results": [report(x) for x in tensors(results)],
        "gradients": [report(x) for x in back],
    }


def raised(call: Callable[[], Any]) -> str:
    """The words of the error of a call, or none."""
    try:
        call()
    except RuntimeError as error:
        return "\n".join((str(error), *getattr(error, "__notes__", ())))
    return ""


def main(rank: int, processes: int, rendezvous: str, file: str) -> None:
    """Run all cases and save what came of them."""
    found: dict[str, Any] = {"imported": "torch.distributed.tensor" in sys.modules}
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=processes
    )
    mesh = init_device_mesh("cpu", (processes,))

    def placed(x: Tensor, placement: Any) -> Any:
        return distribute_tensor(x, mesh, [placement])

    A, S, B = inputs()
    everywhere = [placed(x, Replicate()) for x in (A, S, B)]
    sharded = tuple(placed(x, Shard(0)) for x in (A, S, B))
    with LA.use("kernels"):
        for name, call in SHARDED.items():
            found[name] = observed(call, sharded, True)

        one = placed(A[0], Replicate())
        found["one matrix"] = observed(LA.solve, (one, sharded[2]), True)
        many = A.expand(2, *A.shape).contiguous()
        found["two dimensions"] = observed(LA.inv, (placed(many, Shard(1)),), True)
        grid = init_device_mesh("cpu", (processes, 1))
        on_grid = distribute_tensor(many, grid, [Shard(1), Shard(0)])
        found["two dimensions of the mesh"] = observed(LA.inv, (on_grid,), True)
        found["one matrix sharded"] = observed(
            LA.solve, (placed(A[:1], Shard(0)), sharded[2]), True
        )
        halves = DTensor.from_local(A / processes, mesh, [Partial()])
        found["sums"] = observed(LA.inv, (halves,), False)
        found["replicated"] = observed(LA.inv, (everywhere[0],), True)
        found["rows sharded"] = observed(LA.inv, (placed(A, Shard(1)),), True)
        for name, call in COUNTS.items():
            found[name] = observed(call, sharded, False)
        whole_index, whole_values = numbers()
        index, values = placed(whole_index, Shard(0)), placed(whole_values, Shard(0))
        found["take"] = observed(lambda A: LA.take(A, index), (everywhere[0],), True)
        found["take of parts"] = observed(lambda A: LA.take(A, index), (sharded[0],), True)
        found["put"] = observed(
            lambda A, x: LA.put(A, index, x, accumulate=True), (sharded[0], values), True
        )
        target = placed(A.clone(), Shard(0))
        found["put_"] = observed(lambda A, x: LA.put_(A, index, x), (target, values), False)
        count = index.abs()
        found["bincount"] = observed(LA.bincount, (count,), False)
        found["bincount with weights"] = observed(
            lambda x: LA.bincount(count, x, minlength=50), (values,), False
        )
        found["bincount everywhere"] = observed(
            LA.bincount, (placed(whole_index.abs(), Replicate()),), False
        )
        found["one number"] = observed(LA.inv_ex, (placed(A[:1], Shard(0)),), False)
        found["fewer than processes"] = observed(LA.inv, (placed(A[:1], Shard(0)),), True)

        singular = A.clone()
        singular[-1] = 0
        found["singular"] = raised(lambda: LA.inv(placed(singular, Shard(0))))
        found["mixed"] = raised(lambda: LA.solve(sharded[0], B))
        found["shapes"] = raised(lambda: LA.solve(sharded[0], placed(B[:, 1:], Shard(0))))
        found["batches"] = raised(lambda: LA.solve(sharded[0], placed(B[1:], Shard(0))))

        found["unregistered"] = raised(lambda: ops.inv(sharded[0]))
        LA.distributed.register()
        LA.distributed.register()
        for name, call in OPS.items():
            found[f"op {name}"] = observed(call, sharded, False)
        found["op rows sharded"] = observed(ops.inv, (placed(A, Shard(2)),), False)
        compiled = torch.compile(LA.inv, fullgraph=True, backend="aot_eager")
        # Nothing is compiled inside of the mode that counts collectives.
        A = sharded[0].detach().requires_grad_()
        X = compiled(A)
        found["compiled"] = {
            "results": [report(X)],
            "gradients": [*map(report, gradients(X, (A,)))],
        }
        found["compiled singular"] = raised(lambda: compiled(placed(singular, Shard(0))))
    torch.save(found, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
