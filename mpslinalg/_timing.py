"""Median times of calls that take turns on one device."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

MINIMUM_TIMINGS = 20
MAXIMUM_TIMINGS = 200
ENOUGH_S = 0.1  # spent on all calls together, once each has the minimum
SLOW_CALL_S = 0.05  # three timings must do above this


def medians(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    minimum: int = MINIMUM_TIMINGS,
    lead: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Median seconds of each call; they take turns, so that all see the same machine.

    `lead` occupies a GPU before each timing, so that the host is ahead when `call` starts.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for done in range(1, MAXIMUM_TIMINGS + 1):
        for name, call in calls.items():
            samples[name].append(_seconds(call, device, lead))
        slow = any(timings[0] > SLOW_CALL_S for timings in samples.values())
        if done >= (3 if slow else minimum) and sum(map(sum, samples.values())) > ENOUGH_S:
            break
    return {name: median(timings) for name, timings in samples.items()}


def _seconds(
    call: Callable[[], object], device: torch.device, lead: Callable[[], object] | None
) -> float:
    if device.type == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    backend = getattr(torch, device.type)
    begin, end = (backend.Event(enable_timing=True) for _ in range(2))
    backend.synchronize()
    if lead:
        lead()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
