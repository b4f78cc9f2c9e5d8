"""Bad input to products, norms and functions built on others: torch's error class and words."""

import re
from typing import Any

import pytest
import torch

import mpslinalg as LA
from tests.inputs import all_on

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values to real discards")


HALF = torch.ones(3, 3).half()
T = torch.ones


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("cross", (T(2, 3).bool(), T(2, 3).bool()), {}),
        ("cross", (T(()), T(())), {}),
        ("cross", (T(2, 3), T(2, 3)), {"out": torch.empty(2, 3).double()}),
        ("cross", (T(2, 3), T(2, 3)), {"dim": 5}),
        ("cross", (T(2, 3), T(2, 3).double()), {}),
        ("vecdot", (T(3), T(4)), {}),
        ("vecdot", (T(3), T(3).double()), {}),
        ("vecdot", (T(3).long(), T(3).long()), {}),
        ("vecdot", (T(2, 3), T(3)), {"dim": 5}),
        ("vecdot", (T(2, 3), T(3)), {"out": torch.empty(2).double()}),
        ("matmul", (T(3), T(4)), {}),
        ("matmul", (T(3, 3), T(3, 3).double()), {}),
        ("multi_dot", ([T(2, 3)],), {}),
        ("multi_dot", ((),), {}),
        ("multi_dot", ([T(2, 3), T(2)],), {}),
        ("multi_dot", ([T(2, 3), T(3).double()],), {}),
        ("multi_dot", ([T(2, 3, 3), T(3)],), {}),
        ("multi_dot", ([T(2, 3), T(3), T(3)],), {}),
        ("multi_dot", ([T(2, 3), T(3, 4)],), {"out": torch.empty(1).double()}),
        ("matrix_power", (T(2, 3), 2), {}),
        ("matrix_power", (T(3), 2), {}),
        ("matrix_power", (T(3, 3).long(), -2), {}),
        ("matrix_power", (HALF, -2), {}),
        ("matrix_power", (T(2, 2), -1), {}),
        ("matrix_power", (T(2, 2), 1.5), {}),
        ("matrix_power", (T(2, 2).bool(), 2), {}),
        ("matrix_power", (T(2, 2), True), {}),
        ("matrix_power", (T(2, 2), 2**63), {}),
        ("matrix_exp", (T(2, 3),), {}),
        ("matrix_exp", (T(3),), {}),
        ("matrix_exp", (T(3, 3).long(),), {}),
        ("vander", (T(()),), {}),
        ("vander", (T(3),), {"N": 1}),
        ("vander", (T(3),), {"N": 2.0}),
        ("vander", (T(3).bool(),), {}),
        ("vander", (T(3).half(),), {}),
        (
            "tensorinv",
            (2 * torch.eye(4),),
            {"ind": 1, "out": torch.empty(4, 4, requires_grad=True)},
        ),
        *(
            (f, (2 * torch.eye(2),), {"out": (T(2, 2),)})
            for f in ("inv", "det", "cholesky", "norm")
        ),
        *((f, (T(2, 2), T(2, 2)), {"out": [T(2, 2)]}) for f in ("solve", "vecdot")),
        ("tensorinv", (T(4, 6),), {"ind": 0}),
        ("tensorinv", (T(4, 6),), {"ind": 1}),
        ("tensorinv", (T(4, 4),), {"ind": 1}),
        ("tensorinv", (T(4, 4),), {"ind": 3}),
        ("tensorinv", (T(4, 4).long(),), {"ind": 1}),
        ("tensorinv", (T(4, 4),), {"ind": 1.5}),
        ("tensorsolve", (T(2, 3, 6), T(3, 2)), {}),
        ("tensorsolve", (T(2, 3, 5), T(2, 3)), {}),
        ("tensorsolve", (T(6, 6), T(6).double()), {}),
        ("tensorsolve", (T(2, 3, 6), T(2, 3)), {"dims": (5,)}),
        ("tensorsolve", (T(6, 6), T(6)), {"dims": (0, 0)}),
        ("tensorsolve", (T(6, 6), T(6)), {"dims": 0}),
        ("norm", (T(3), "fro"), {}),
        ("norm", (T(3, 3), "fro"), {"dim": 0}),
        ("norm", (T(2, 3, 4), 2), {}),
        ("norm", (T(3, 3), 3), {}),
        ("norm", (T(3, 3), "x"), {}),
        ("norm", (T(2, 3, 4), 1), {"dim": (0, 1, 2)}),
        ("norm", (T(2, 3), 2), {"dim": []}),
        ("norm", (T(2, 3),), {"dim": []}),
        ("norm", (T(()), 2), {}),
        ("norm", (T(3).long(),), {}),
        ("norm", (T(2, 3),), {"out": torch.empty(0).double()}),
        ("vector_norm", (T(3), 1j), {}),
        ("vector_norm", (T(3), None), {}),
        ("vector_norm", (T(3), 2**64), {}),
        ("vector_norm", (T(3), -(2**63) - 1), {}),
        ("vector_norm", (T(3), "fro"), {}),
        ("vector_norm", (T(0), torch.inf), {}),
        ("vector_norm", (T(0), -1), {}),
        ("vector_norm", (T(2, 0), torch.inf), {"dim": 1}),
        ("vector_norm", (T(3),), {"dtype": torch.half}),
        ("vector_norm", (T(3),), {"dtype": torch.complex64}),
        ("vector_norm", (T(3) + 0j,), {"dtype": torch.float32}),
        ("vector_norm", (T(3, 3),), {"dim": (0, 0)}),
        ("vector_norm", (T(3, 3),), {"dim": 2}),
        ("vector_norm", (T(3, 3),), {"dim": 1.0}),
        ("vector_norm", (T(3, 3),), {"keepdim": 1}),
        ("vector_norm", (T(3),), {"out": torch.empty(0).half()}),
        ("diagonal", (T(3),), {}),
        ("diagonal", (T(3, 3),), {"dim1": 0, "dim2": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_torchs(
    name: str, args: tuple[Any, ...], options: dict[str, Any], device: str
) -> None:
    def error(module: Any, args: Any, options: Any) -> tuple[type, str]:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            getattr(module, name)(*args, **options)
        # What torch got is in its words, and we pass it all arguments.
        return caught.type, re.sub(r" - got.*| \(position \d\)", "", str(caught.value))

    there = all_on(device, (args, options))
    with LA.use("kernels"):
        ours = error(LA, *there)
    # Of its products torch says other things on a GPU.
    if ours != error(torch.linalg, args, options):
        assert ours == error(torch.linalg, *there)
