"""The price of a plan on a machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mpslinalg._cost import counts
from mpslinalg._cost.machines import LANES, Machine
from mpslinalg._cost.plan import Plan, Step

# Threads that a core runs at once: groups beyond them wait for their turn.
RESIDENT = 1024
# How many times its share of the bandwidth one core can draw.
DRAW = 2


@dataclass(frozen=True)
class Price:
    """Microseconds."""

    # Of the host that the GPU waits for, of waiting for its results, of starting launches.
    host: float
    wait: float
    launches: float
    # Of the launches of each kernel, and of all launches by what limits them.
    work: Mapping[str, float]
    limits: Mapping[str, float]

    @property
    def fixed(self) -> float:
        """What does not depend on how well a kernel is written."""
        return self.host + self.wait + self.launches

    @property
    def total(self) -> float:
        return self.fixed + sum(self.work.values())

    @property
    def kernel(self) -> str:
        """The kernel that takes most of the time."""
        return max(self.work, key=lambda name: self.work[name])

    @property
    def limit(self) -> str:
        """What takes most of the time."""
        parts = {"host": self.host, "wait": self.wait, "launches": self.launches, **self.limits}
        return max(parts, key=lambda part: parts[part])


def _as_modelled(kernel: str) -> float:
    return 1.0


def price(plan: Plan, machine: Machine, factor: Callable[[str], float] = _as_modelled) -> Price:
    """A launch takes the longest of its bytes, its operations and its chain, times a factor.

    The host queues launches while the GPU works; the slower of them decides. Operations that no
    launch names are spread over the others by their threads.
    """
    rest = plan.operations - sum(step.operations or 0 for step in plan.steps)
    sharing = sum(step.threads for step in plan.steps if step.operations is None)
    work: dict[str, float] = defaultdict(float)
    limits: dict[str, float] = defaultdict(float)
    for step in plan.steps:
        operations = step.operations
        if operations is None:
            operations = max(rest, 0) * step.threads / sharing
        limit, time = _longest(step, operations, machine)
        work[step.kernel] += time * factor(step.kernel)
        limits[limit] += time * factor(step.kernel)
    launches = machine.launch * len(plan.steps)
    queueing = machine.host * len(plan.steps)
    if machine.graph is not None and len(plan.steps) >= machine.graph:
        queueing = 0
    behind = max(queueing - launches - sum(work.values()), 0)
    return Price(machine.call + behind, machine.wait * plan.waits, launches, work, limits)


def _longest(step: Step, operations: float, machine: Machine) -> tuple[str, float]:
    busy = min(step.groups / machine.cores, step.threads / (machine.cores * LANES), 1.0)
    at_once = machine.cores * max(RESIDENT // step.group, 1)
    turns = -(-counts.chained(step.kernel, step.values, step.groups) // at_once)
    times = {
        "bandwidth": step.bytes / (machine.bytes * min(DRAW * busy, 1.0)),
        "arithmetic": operations / (machine.flops * busy),
        "chain": step.chain * turns / (machine.ghz * 1e3),
    }
    limit = max(times, key=lambda name: times[name])
    return limit, times[limit]
