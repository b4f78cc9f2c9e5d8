"""The search of info for an error."""

import pytest
import torch

from mpslinalg._engines import kernel


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("count", [1, 31, 256, 1000])
def test_any(count: int, device: str) -> None:
    search = kernel("info", "info_any", "int")
    info = torch.zeros(count, dtype=torch.int32, device=device)
    found = torch.zeros(1, dtype=torch.int32, device=device)
    search(info, found, count, threads=(256,), group=(256,))
    assert found.item() == 0
    for place in {0, count // 2, count - 1}:
        info.zero_()[place] = place + 1
        found.zero_()
        search(info, found, count, threads=(256,), group=(256,))
        assert found.item() == 1
