"""The IEEE 14-bus test case, from its Common Data Format file; per unit on 100 MVA."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ComplexArray = NDArray[np.complex128]


class Branch(NamedTuple):
    source: int
    target: int
    r: float
    x: float
    charging: float = 0.0
    tap: float = 1.0

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


BUSES = 14
BASE_MVA = 100.0
BRANCHES = (
    Branch(1, 2, 0.01938, 0.05917, 0.0528),
    Branch(1, 5, 0.05403, 0.22304, 0.0492),
    Branch(2, 3, 0.04699, 0.19797, 0.0438),
    Branch(2, 4, 0.05811, 0.17632, 0.0340),
    Branch(2, 5, 0.05695, 0.17388, 0.0346),
    Branch(3, 4, 0.06701, 0.17103, 0.0128),
    Branch(4, 5, 0.01335, 0.04211),
    Branch(4, 7, 0.0, 0.20912, tap=0.978),
    Branch(4, 9, 0.0, 0.55618, tap=0.969),
    Branch(5, 6, 0.0, 0.25202, tap=0.932),
    Branch(6, 11, 0.09498, 0.19890),
    Branch(6, 12, 0.12291, 0.25581),
    Branch(6, 13, 0.06615, 0.13027),
    Branch(7, 8, 0.0, 0.17615),
    Branch(7, 9, 0.0, 0.11001),
    Branch(9, 10, 0.03181, 0.08450),
    Branch(9, 14, 0.12711, 0.27038),
    Branch(10, 11, 0.08205, 0.19207),
    Branch(12, 13, 0.22092, 0.19988),
    Branch(13, 14, 0.17093, 0.34802),
)
SHUNTS = {9: 0.19j}
# Synchronous machines: a subtransient reactance to ground, for the fault study only.
MACHINES = (1, 2, 3, 6)
MACHINE_REACTANCE = 0.2

MAGNITUDE = np.array(
    [1.06, 1.045, 1.01, 1.019, 1.02, 1.07, 1.062, 1.09, 1.056, 1.051, 1.057, 1.055, 1.05, 1.036]
)
DEGREES = -np.array(
    [0, 4.98, 12.72, 10.33, 8.78, 14.22, 13.37, 13.36, 14.94, 15.1, 14.79, 15.07, 15.16, 16.04]
)
# MW + j MVAr drawn at each bus, generation counted negative.
DRAWN_MVA = np.array(
    [
        *(-232.4 + 16.9j, -18.3 - 29.7j, 94.2 - 4.4j, 47.8 - 3.9j, 7.6 + 1.6j, 11.2 - 4.7j, 0),
        *(-17.4j, 29.5 + 16.6j, 9 + 5.8j, 3.5 + 1.8j, 6.1 + 1.6j, 13.5 + 5.8j, 14.9 + 5j),
    ]
)
# The published |V| of bus 4 is 1.019, but the power flow of these very data solves to 1.0177.
BUS_4_MAGNITUDE = 1.018


def admittance(branches: Sequence[Branch], *, machines: bool) -> ComplexArray:
    Y = np.zeros((BUSES, BUSES), np.complex128)
    for branch in branches:
        i, j = branch.source - 1, branch.target - 1
        series, shunt = 1 / complex(branch.r, branch.x), 0.5j * branch.charging
        Y[i, i] += (series + shunt) / branch.tap**2
        Y[j, j] += series + shunt
        Y[i, j] -= series / branch.tap
        Y[j, i] -= series / branch.tap
    for bus, susceptance in SHUNTS.items():
        Y[bus - 1, bus - 1] += susceptance
    if machines:
        for bus in MACHINES:
            Y[bus - 1, bus - 1] += 1 / (1j * MACHINE_REACTANCE)
    return Y


def voltage(magnitude: NDArray[np.float64] = MAGNITUDE) -> ComplexArray:
    return np.asarray(magnitude * np.exp(1j * np.deg2rad(DEGREES)))


def power_mismatch(V: ComplexArray) -> NDArray[np.float64]:
    """By how many MVA the power that V drives into each bus misses the published one."""
    Y = admittance(BRANCHES, machines=False)
    return np.asarray(np.abs(-BASE_MVA * V * np.conj(Y @ V) - DRAWN_MVA))


def islanded(branches: Sequence[Branch]) -> list[int]:
    """Buses that no path joins to a machine."""
    fed = set(MACHINES)
    for _ in range(BUSES):
        for branch in branches:
            if branch.source in fed or branch.target in fed:
                fed |= {branch.source, branch.target}
    return sorted(set(range(1, BUSES + 1)) - fed)
