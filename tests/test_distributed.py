"""DTensors of batches that two processes share out, against the same calls in one process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import mpslinalg as LA
from mpslinalg._shards import ELEMENTS, MATRICES, WHOLE
from tests import distributed_worker as worker

PROCESSES = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process reports."""
    folder = tmp_path_factory.mktemp("processes")
    files = [folder / f"{rank}.pt" for rank in range(PROCESSES)]
    # The package under test, and not another that is installed.
    path = [str(Path(LA.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = (sys.executable, worker.__file__)
    running = [
        subprocess.Popen(
            [*command, str(rank), str(PROCESSES), str(folder / "rendezvous"), str(file)],
            env=environment,
        )
        for rank, file in enumerate(files)
    ]
    try:
        assert [process.wait(timeout=300) for process in running] == [0] * PROCESSES
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [torch.load(file) for file in files]


def alone(call: Any, given: tuple[Any, ...]) -> tuple[Any, Any]:
    """Results and gradients of one process."""
    given = tuple(x.requires_grad_() for x in given)
    with LA.use("kernels"):
        results = call(*given)
        return worker.tensors(results), worker.gradients(results, given)


def agree(name: str, seen: dict[str, Any], results: Any, back: Any, *placements: str) -> None:
    """Whether values and strides are those of one process, and all lies as expected."""
    for ours, expected in zip(seen["results"], results, strict=True):
        torch.testing.assert_close(ours["values"], expected.detach(), msg=lambda m: f"{name}: {m}")
        assert ours["stride"] == expected.stride(), name
        assert ours["placements"] == list(placements), name
    for ours, expected in zip(seen["gradients"], back, strict=True):
        assert (ours is None) == (expected is None), name
        if ours is not None:
            torch.testing.assert_close(ours["values"], expected, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("rank", range(PROCESSES))
def test_batches_stay_where_they_are(rank: int, found: list[dict[str, Any]]) -> None:
    own = (3, 2)[rank]
    for name, call in worker.SHARDED.items():
        seen = found[rank][name]
        agree(name, seen, *alone(call, worker.inputs()), "0")
        assert seen["collectives"] == 0, name
        assert any(x is not None for x in seen["gradients"]), name
        assert all(x["local"][0] == own for x in seen["results"]), name
        assert all(x is None or x["placements"] == ["0"] for x in seen["gradients"]), name


def test_other_placements(found: list[dict[str, Any]]) -> None:
    A, _, B = worker.inputs()
    one = found[0]["one matrix"]
    agree("one matrix", one, *alone(LA.solve, (A[0], B)), "0")
    # Each process has a part of the gradient of the one matrix: nobody has to wait for the sum.
    assert one["collectives"] == 0
    assert [x["placements"] for x in one["gradients"]] == [["Partial"], ["0"]]

    many = A.expand(2, *A.shape).contiguous()
    agree("two dimensions", found[0]["two dimensions"], *alone(LA.inv, (many,)), "1")
    grid = found[0]["two dimensions of the mesh"]
    agree("two dimensions of the mesh", grid, *alone(LA.inv, (many,)), "1", "0")
    assert grid["collectives"] == 0
    gathered = found[1]["one matrix sharded"]
    agree("one matrix sharded", gathered, *alone(LA.solve, (A[:1], B)), "0")
    assert [x["placements"] for x in gathered["gradients"]] == [["0"], ["0"]]
    agree("sums", found[0]["sums"], alone(LA.inv, (A,))[0], [], "Replicate")
    agree("replicated", found[0]["replicated"], *alone(LA.inv, (A,)), "Replicate")
    agree("rows sharded", found[0]["rows sharded"], *alone(LA.inv, (A,)), "Replicate")
    assert found[0]["two dimensions"]["collectives"] == 0
    assert found[0]["replicated"]["collectives"] == 0
    assert found[0]["rows sharded"]["collectives"] == 1
    fewer = [seen["fewer than processes"] for seen in found]
    agree("fewer", fewer[0], *alone(LA.inv, (A[:1],)), "0")
    assert [seen["results"][0]["local"][0] for seen in fewer] == [1, 0]
    for seen in found:
        agree("info", seen["one number"], LA.inv_ex(A[:1].detach()), [], "0")


def test_comparisons_stay_where_they_are(found: list[dict[str, Any]]) -> None:
    for name, call in worker.COUNTS.items():
        agree(name, found[1][name], worker.tensors(call(*worker.inputs())), [], "0")
        assert found[1][name]["collectives"] == 0


def test_indexing(found: list[dict[str, Any]]) -> None:
    seen = found[1]
    A, _, _ = worker.inputs()
    index, values = worker.numbers()
    taken = alone(lambda A: LA.take(A, index), (A,))
    agree("take", seen["take"], *taken, "0")
    assert seen["take"]["collectives"] == 0
    assert [x["placements"] for x in seen["take"]["gradients"]] == [["Partial"]]
    agree("take of parts", seen["take of parts"], *taken, "0")
    given = (A.detach(), values)
    put = alone(lambda A, x: LA.put(A, index, x, accumulate=True), given)
    agree("put", seen["put"], *put, "Replicate")
    agree("put_", seen["put_"], (torch.put(A, index, values),), [], "0")
    count = index.abs()
    agree("bincount", seen["bincount"], (torch.bincount(count),), [], "Partial")
    weighted = seen["bincount with weights"]
    agree("weights", weighted, (torch.bincount(count, values.detach(), 50),), [], "Partial")
    everywhere = seen["bincount everywhere"]
    agree("bincount", everywhere, (torch.bincount(count),), [], "Replicate")
    assert everywhere["collectives"] == 0


def test_errors(found: list[dict[str, Any]]) -> None:
    first, second = found
    # Only the process that has the singular matrix can know.
    assert first["singular"] == ""
    assert second["singular"].startswith("linalg.inv: (Batch element 1): The diagonal element 1")
    assert "counted in the part of the batch on this process" in second["singular"]
    assert first["compiled singular"] == ""
    assert second["singular"].startswith(second["compiled singular"])
    assert second["compiled singular"] != ""
    A, _, B = worker.inputs()
    for name, right in (("shapes", B[:, 1:]), ("batches", B[1:])):
        with pytest.raises(RuntimeError) as error:
            torch.linalg.solve(A, right)
        assert first[name] == str(error.value)
    assert "got A of DeviceMesh" in first["mixed"]
    assert "B of torch.Tensor" in first["mixed"]


def test_ops_are_registered_when_asked_for(found: list[dict[str, Any]]) -> None:
    assert not found[0]["imported"]
    assert "does not have a sharding strategy registered" in found[0]["unregistered"]
    for name, call in worker.OPS.items():
        seen = found[0][f"op {name}"]
        assert seen["collectives"] == 0, name
        for ours, expected in zip(
            seen["results"], worker.tensors(call(*worker.inputs())), strict=True
        ):
            assert torch.equal(ours["values"], expected), name
            assert ours["stride"] == expected.stride(), name
            assert ours["placements"] == (["Replicate"] if expected.shape == (0,) else ["0"]), name
    agree("compiled", found[0]["compiled"], *alone(LA.inv, worker.inputs()[:1]), "0")
    rows = found[0]["op rows sharded"]
    assert rows["collectives"] == 1
    assert torch.equal(rows["results"][0]["values"], worker.ops.inv(worker.inputs()[0])[0])


def test_every_op_has_a_rule() -> None:
    names = torch._C._dispatch_get_all_op_names()
    ours = {name.partition("::")[2] for name in names if name.startswith("mpslinalg::")}
    rules = LA.distributed.BEHIND_BATCH.keys() | LA.distributed.INDEXING.keys()
    # Of a length that values decide, and without an argument to shard.
    assert ours - {"bincount", "logspace"} == rules


# Public functions that take DTensors in another way than by their batches, or not at all.
OTHERS = {
    "bincount": "sums of the counts of each process",
    "put_": "put, and a copy into what each process holds",
    "logspace": "has no argument to shard",
    **dict.fromkeys(("disable", "enable", "use", "which"), "take no tensors to compute with"),
    **dict.fromkeys(("cross", "diagonal", "matmul", "multi_dot", "vander"), "torch's operations"),
    **dict.fromkeys(("matrix_norm", "norm", "vecdot", "vector_norm"), "torch's operations"),
    **dict.fromkeys(("tensorinv", "tensorsolve"), "inv and solve of torch's views"),
}


def test_functions_are_known() -> None:
    modules = (LA, LA.special)
    public = {
        name
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", "").startswith("mpslinalg")
        and not name.startswith("_")
        and (module is LA or name in LA.special.__all__)
    }
    known = MATRICES | ELEMENTS | WHOLE.keys()
    assert public == known | OTHERS.keys()
    assert not known & OTHERS.keys()
