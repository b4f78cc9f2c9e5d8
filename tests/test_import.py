"""Importing mpslinalg changes nothing of torch."""

import json
import subprocess
import sys

PROBE = """
import json, os, sys, warnings
import torch
import torch.func, torch.library, torch.special

MODULES = {n: m for n, m in sys.modules.items() if n == "torch" or n.startswith("torch.")}
# Each by one of its names.
CLASSES = {
    f"{n}.{key}": value
    for value, n, key in {
        value: (value, n, key)
        for n, m in reversed(MODULES.items())
        for key, value in vars(m).items()
        if isinstance(value, type) and value.__module__.startswith("torch")
    }.values()
}
SETTINGS = {
    "dtype": torch.get_default_dtype,
    "device": torch.get_default_device,
    "gradients": torch.is_grad_enabled,
    "inference": torch.is_inference_mode_enabled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "threads": torch.get_num_threads,
    "precision": torch.get_float32_matmul_precision,
    "warn always": torch.is_warn_always_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "linalg library": torch.backends.cuda.preferred_linalg_library,
    "random numbers": lambda: torch.get_rng_state().tolist(),
    "printing": lambda: vars(torch._tensor_str.PRINT_OPTS).copy(),
    "warnings": lambda: warnings.filters[:],
    "showwarning": lambda: warnings.showwarning,
    "excepthook": lambda: sys.excepthook,
    "environment": lambda: dict(os.environ),
}

def state():
    # The values themselves are kept, for a new one may come to lie where an old one was.
    places = {n: dict(vars(x)) for n, x in (MODULES | CLASSES).items()}
    kernels = {
        name: torch._C._dispatch_dump(name)
        for name in torch._C._dispatch_get_all_op_names()
        if not name.startswith("mpslinalg::")
    }
    return places, kernels, {name: get() for name, get in SETTINGS.items()}

def changes(before, after):
    for n, old in before[0].items():
        new = after[0][n]
        for key in old.keys() | new.keys():
            # Modules of torch's own that are imported now, and our operators.
            added = key not in old and (
                sys.modules.get(f"{n}.{key}") is new[key] or (n, key) == ("torch.ops", "mpslinalg")
            )
            if not added and (key not in old or key not in new or old[key] is not new[key]):
                yield f"{n}.{key}"
    for one in (1, 2):
        old, new = before[one], after[one]
        yield from (k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k))

start = state()
import mpslinalg
imported = list(changes(start, state()))
torch.linalg.inv, torch.Tensor.put_, inv, put_ = (
    mpslinalg.inv, mpslinalg.put_, torch.linalg.inv, torch.Tensor.put_
)
torch.set_default_dtype(torch.float64)
changed = list(changes(start, state()))
torch.linalg.inv, torch.Tensor.put_ = inv, put_
torch.set_default_dtype(torch.float32)
mpslinalg.enable("cpu")
enabled = list(changes(start, state()))
print(json.dumps([imported, changed, enabled]))
"""


def test_importing_changes_nothing_of_torch() -> None:
    """Names of its modules and classes, kernels of its operators, settings; and the test sees."""
    # Of torch's own names some warn as soon as they are looked at.
    command = [sys.executable, "-W", "ignore::FutureWarning", "-c", PROBE]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    imported, changed, enabled = map(set, json.loads(done.stdout))
    assert imported == set()
    assert {"torch.linalg.inv", "torch._tensor.Tensor.put_", "dtype"} <= changed
    assert "aten::linalg_inv_ex" in enabled
