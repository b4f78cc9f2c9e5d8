"""What `import mpslinalg` and the first call of a function cost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# What takes long to import and few programs need; some versions of torch import parts of it.
HEAVY = {
    *("decimal", "fractions", "matplotlib", "platformdirs", "rich", "scipy", "transformers"),
    *("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "cuda", "cuda.core"),
    *("mpslinalg._aten", "mpslinalg._bench", "mpslinalg._demo", "mpslinalg._doctor"),
    "mpslinalg.testing",
}

IMPORTS = """
import json, os, sys, time
start = time.process_time()
import torch
torchs = time.process_time() - start
before = set(sys.modules)
# A first process writes the bytecode, which an installation comes with.
first = os.fork()
if first == 0:
    import mpslinalg
    os._exit(0)
assert os.waitpid(first, 0)[1] == 0
start = time.process_time()
import mpslinalg
ours = time.process_time() - start
print(json.dumps([torchs, ours, sorted(set(sys.modules) - before)]))
"""

CALLS = """
import json, os, sys, torch, mpslinalg as LA
from mpslinalg._engines import launched
A, b = torch.eye(8), torch.ones(8, 1)
found = []
for call in (
    lambda: None,
    lambda: LA.inv(A),
    lambda: LA.solve(A, b),
    lambda: LA.cholesky(A),
    lambda: LA.det(A),
    lambda: LA.inv(A[:5, :5]),
):
    with LA.use("kernels"):
        call()
    found.append([len(launched), len(os.listdir(os.environ["MPSLINALG_CACHE"]))])
print(json.dumps([found, "torch._dynamo" in sys.modules]))
"""


def printed(code: str, **environment: str) -> Any:
    """What a fresh process prints."""
    command = [sys.executable, "-c", code]
    variables = os.environ | environment
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=variables)
    return json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_import_is_short_beside_that_of_torch(tmp_path: Path) -> None:
    """In processor time, for other processes run meanwhile."""
    variables = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    torchs, ours, modules = printed(IMPORTS, **variables)
    assert HEAVY.isdisjoint(modules)
    assert ours < 0.1 * torchs


def test_a_first_call_compiles_only_what_it_launches(tmp_path: Path) -> None:
    """A library for each variant, and the engine's own; nor does torch load its compiler."""
    found, compiler = printed(CALLS, MPSLINALG_CACHE=str(tmp_path))
    assert not compiler
    assert found == [[0, 0], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5]]
