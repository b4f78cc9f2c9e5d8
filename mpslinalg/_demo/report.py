"""What a study hands back: tables to read, checks that can fail, numbers to keep."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Check:
    name: str
    value: float
    bar: float

    @property
    def passed(self) -> bool:
        return self.value <= self.bar  # a NaN fails


@dataclass(frozen=True)
class Section:
    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Report:
    case: str
    title: str
    sections: Sequence[Section]
    checks: Sequence[Check]
    plot: Callable[["Axes"], None]
    data: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        checks = [asdict(check) | {"passed": check.passed} for check in self.checks]
        return self.data | {"checks": checks}
