"""Plots of what `bench --json` wrote of a family, as SVG; none without matplotlib."""

import io
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from mpslinalg._bench_report.document import Plot

Content = Mapping[str, Any]
PROVIDERS = {"kernels": "o-", "torch": "s--", "torch cpu": "^:"}
# Speed is shown from a tenth to a thousandfold: beyond, a colour says no more.
RATIOS = (0.1, 1000.0)


def available() -> bool:
    return find_spec("matplotlib") is not None


def _svg(name: str, figure: Any) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    # Text stays text; one figure makes one file, and names in it differ from those of others.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _axes(count: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    rows = -(-count // columns)
    figure = Figure(figsize=(width * min(columns, count), height * rows))
    figure.subplots_adjust(0.06, 0.15 / rows, 0.99, 1 - 0.1 / rows, 0.25, 0.5)
    axes = list(figure.subplots(rows, min(columns, count), squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def _operations(cells: Sequence[Content]) -> dict[str, list[Content]]:
    """The cells of the first dtype that were timed at more than one size, by operation."""
    found: dict[str, list[Content]] = {}
    for cell in cells:
        if cell["microseconds"] and cell["dtype"] == cells[0]["dtype"]:
            found.setdefault(cell["op"], []).append(cell)
    return {op: cells for op, cells in found.items() if len({c["n"] for c in cells}) > 1}


def times(name: str, family: Content) -> Plot | None:
    """Microseconds for one of the batch against n: batches on the left, single ones beside."""
    operations = _operations(family.get("cells", ()))
    if not operations:
        return None
    figure, axes = _axes(len(operations), 4, 3.2, 2.5)
    for axis, (operation, cells) in zip(axes, operations.items(), strict=True):
        for color, (provider, line) in enumerate(PROVIDERS.items()):
            for batched in (True, False):
                points = sorted(
                    (cell["n"], cell["microseconds"][provider] / cell["batch"])
                    for cell in cells
                    if provider in cell["microseconds"] and (cell["batch"] > 1) == batched
                )
                if points:
                    fill = "full" if batched else "none"
                    label = f"{provider}{'' if batched else ', one'}"
                    axis.plot(
                        *zip(*points, strict=True),
                        line,
                        color=f"C{color}",
                        fillstyle=fill,
                        markersize=4,
                        label=label,
                    )
        axis.set(xscale="log", yscale="log", title=operation, xlabel="n")
        axis.title.set_size(8)
        axis.minorticks_off()
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("microseconds for one of the batch", size=7)
    axes[0].legend(fontsize=6)
    dtype = family["cells"][0]["dtype"]
    caption = f"{name}, {dtype}: microseconds for one of the batch against n; lower is faster"
    return Plot(f"{name}-times", _svg(f"{name}-times", figure), caption)


def ratios(name: str, family: Content) -> Plot | None:
    """How many times faster than torch, by operation and by batch x n."""
    from matplotlib.colors import LogNorm

    cells = [cell for cell in family.get("cells", ()) if cell["speedup"] is not None]
    if not cells:
        return None
    across = sorted({(cell["batch"] == 1, cell["n"], cell["batch"]) for cell in cells})
    down = list(dict.fromkeys((cell["op"], cell["dtype"]) for cell in cells))
    values = np.full((len(down), len(across)), np.nan)
    for cell in cells:
        row = down.index((cell["op"], cell["dtype"]))
        values[row, across.index((cell["batch"] == 1, cell["n"], cell["batch"]))] = cell["speedup"]
    width, height = 3.5 + 0.62 * len(across), 1.2 + 0.28 * len(down)
    figure, (axis,) = _axes(1, 1, width, height)
    figure.subplots_adjust(2.6 / width, 0.9 / height, 1.0, 1 - 0.1 / height)
    # 1 is the middle of the map: red is slower than torch.
    norm = LogNorm(1 / RATIOS[1], RATIOS[1])
    image = axis.imshow(np.clip(values, *RATIOS), cmap="RdYlGn", norm=norm, aspect="auto")
    for row, column in zip(*np.nonzero(np.isfinite(values)), strict=True):
        value = values[row, column]
        axis.text(column, row, f"{value:.3g}", ha="center", va="center", size=7)
    axis.set_xticks(range(len(across)), [f"{batch} x {n}" for _, n, batch in across])
    axis.tick_params(axis="x", rotation=60, labelsize=7)
    axis.set_yticks(range(len(down)), [f"{op}, {dtype}" for op, dtype in down], size=7)
    figure.colorbar(image, ax=axis, pad=0.01).ax.tick_params(labelsize=6)
    caption = f"{name}: times torch's speed on the same device, by batch x n"
    return Plot(f"{name}-ratios", _svg(f"{name}-ratios", figure), caption)


def shares(families: Content) -> Plot | None:
    """The bytes a second of a call that memory bounds, over those of a copy."""
    found = {
        f"{family['stream']['op']} {family['stream']['batch']} x {family['stream']['n']}": (
            family["stream"]["share"]
        )
        for family in families.values()
        if "stream" in family and not family.get("apart")
    }
    if not found:
        return None
    height = 0.9 + 0.28 * len(found)
    figure, (axis,) = _axes(1, 1, 8.0, height)
    figure.subplots_adjust(0.34, 0.55 / height, 0.98, 1 - 0.1 / height)
    axis.barh(list(found), [100 * share for share in found.values()], color="C0")
    axis.invert_yaxis()
    axis.axvline(60, color="C3", linestyle="--", linewidth=1)
    axis.set_xlabel("% of the bytes a second that a copy moves in the same run", size=8)
    axis.tick_params(labelsize=8)
    axis.set_xlim(0, 100)
    caption = "Share of the bandwidth limit; 60 % is the bar of memory-bound kernels"
    return Plot("shares", _svg("shares", figure), caption)


def of_family(name: str, family: Content) -> Iterator[Plot]:
    if available():
        yield from filter(None, (times(name, family), ratios(name, family)))


def of_all(families: Content) -> Iterator[Plot]:
    if available():
        yield from filter(None, (shares(families),))
