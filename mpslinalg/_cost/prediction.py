"""The price of a case with the factors that were found on the H200."""

from dataclasses import replace
from typing import NamedTuple

from mpslinalg._cost.factors import factor
from mpslinalg._cost.machines import Machine
from mpslinalg._cost.model import price
from mpslinalg._cost.plan import Plan


class Prediction(NamedTuple):
    """Microseconds, between what the least and the most of factors and launches give."""

    expected: float
    least: float
    most: float
    limit: str


def predict(plan: Plan, machine: Machine) -> Prediction:
    expected = price(plan, machine, lambda kernel: factor(kernel).median)
    fast = replace(machine, launch=machine.least_launch)
    slow = replace(machine, launch=machine.most_launch)
    least = price(plan, fast, lambda kernel: factor(kernel).least)
    most = price(plan, slow, lambda kernel: factor(kernel).most)
    return Prediction(expected.total, least.total, most.total, expected.limit)
