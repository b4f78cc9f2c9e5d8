"""Times of calls that take turns on one device."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

MINIMUM_TIMINGS = 20
MAXIMUM_TIMINGS = 200
ENOUGH_S = 0.1  # spent on all calls together, once each has the minimum
# Seconds that one call may take in all before it has the minimum: it then stops at FEWEST_TIMINGS,
# and at any number once it took LONG_S.
BUDGET_S = 0.25
FEWEST_TIMINGS = 3
LONG_S = 0.5


def timings(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    minimum: int = MINIMUM_TIMINGS,
    lead: Callable[[], object] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each call, over and over; they take turns, so that all see the same machine.

    `lead` occupies a GPU before each timing, so that the host is ahead when `call` starts.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    waiting = set(calls)
    while waiting:
        for name, call in calls.items():
            if name in waiting:
                samples[name].append(seconds_of(call, device, lead))
        enough = sum(map(sum, samples.values())) > ENOUGH_S
        waiting = {name for name in waiting if not _done(samples[name], minimum, enough)}
    return samples


def _done(samples: list[float], minimum: int, enough: bool) -> bool:
    count, spent = len(samples), sum(samples)
    return (
        count == MAXIMUM_TIMINGS
        or (count >= minimum and enough)
        or (count >= FEWEST_TIMINGS and spent > BUDGET_S)
        or spent > LONG_S
    )


def medians(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    minimum: int = MINIMUM_TIMINGS,
    lead: Callable[[], object] | None = None,
) -> dict[str, float]:
    """The median of the timings of each call."""
    samples = timings(calls, device, minimum=minimum, lead=lead)
    return {name: median(taken) for name, taken in samples.items()}


def seconds_of(
    call: Callable[[], object], device: torch.device, lead: Callable[[], object] | None = None
) -> float:
    """Seconds of one call, by the device's own clock."""
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
