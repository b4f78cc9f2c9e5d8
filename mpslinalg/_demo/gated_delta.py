"""The linear attention of Qwen3-Next: one layer reads a prompt, a chunk of 64 tokens at a time.

32 heads of 128 x 128 with keys of norm 1, on random data that have a part in common. Each chunk
asks for the inverse of a unit lower triangular 64 x 64 matrix; beside it runs the formulation that
models use with torch, two calls of torch.linalg.solve_triangular. Both are held against the rule
token by token in float64.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg._demo.report import Check, Report, Section
from mpslinalg._timing import medians

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

HEADS, WIDTH, CHUNK = 32, 128, 64
TOKENS = {"cpu": 256}  # so that the demo stays short
GPU_TOKENS = 4096
JUDGED_HEADS = 2  # held against float64
EPS = 2.0**-24
SOLVE_BAR = 4e-7
OUTPUT_BAR = 64 * EPS  # of the largest entry


def prompt(tokens: int) -> tuple[Tensor, ...]:
    """query, key, value, g and beta of one sequence: keys of norm 1, decay and beta of gates."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, tokens, HEADS, WIDTH, generator=draw).unbind()
    k = k + torch.randn(HEADS, WIDTH, generator=draw)  # tokens of a text have much in common
    gates = torch.randn(2, 1, tokens, HEADS, generator=draw)
    g = -torch.nn.functional.softplus(gates[0]) / 8
    norm = torch.linalg.vector_norm
    return (
        q / norm(q, dim=-1, keepdim=True), k / norm(k, dim=-1, keepdim=True), v, g,
        gates[1].sigmoid(),
    )  # fmt: skip


def _chunks(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The one sequence of (1, T, H, *) as (C, H, 64, *)."""
    return tuple(x.view(-1, CHUNK, *x.shape[2:]).transpose(1, 2) for x in tensors)


def systems(k: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The strictly lower triangular A of every chunk, (C, H, 64, 64)."""
    k, g, beta = _chunks(k, g, beta)
    total = g.cumsum(-1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp()
    return (beta.unsqueeze(-1) * (k @ k.mT) * decay).tril(-1)


def two_solves(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The rule by chunks as models run it on torch alone."""
    A = systems(k, g, beta)
    q, k, v, g, beta = _chunks(q, k, v, g, beta)
    total = g.cumsum(-1).unsqueeze(-1)
    q, beta = q * WIDTH**-0.5, beta.unsqueeze(-1)
    solve = torch.linalg.solve_triangular
    U = solve(A, v * beta, upper=False, unitriangular=True)
    W = solve(A, k * beta * total.exp(), upper=False, unitriangular=True)
    inside = (q @ k.mT) * (total - total.mT).tril().exp().tril()
    q, k = q * total.exp(), (k * (total[:, :, -1:] - total).exp()).mT
    decay = total[:, :, -1:].exp()
    state, outputs = torch.zeros_like(decay[0] * k[0, :, :, :1] * v[0, :, :1]), []
    for c in range(len(q)):
        new = U[c] - W[c] @ state
        outputs.append(q[c] @ state + inside[c] @ new)
        state = state * decay[c] + k[c] @ new
    return torch.stack(outputs).transpose(1, 2).flatten(0, 1).unsqueeze(0)


def token_by_token(q: Array, k: Array, v: Array, g: Array, beta: Array) -> Array:
    """The rule as it is defined, (T, H, 128) in float64."""
    output = np.empty_like(v)
    state = np.zeros((v.shape[1], WIDTH, WIDTH))
    for t in range(len(v)):
        state = np.exp(g[t])[:, None, None] * state
        seen = np.einsum("hk,hkv->hv", k[t], state)
        state = state + k[t][:, :, None] * (beta[t][:, None] * (v[t] - seen))[:, None]
        output[t] = np.einsum("hk,hkv->hv", q[t], state) / np.sqrt(WIDTH)
    return output


def _solve_error(A: Tensor) -> float:
    """Worst error of the inverse of some chunks against SciPy's, relative to its largest entry."""
    rows = A.transpose(1, 2).flatten(0, 1).unsqueeze(0)
    (X,) = _chunks(LA.gated_delta.solve_tril(rows))
    worst = 0.0
    for c in range(0, len(A), max(len(A) // 4, 1)):
        for h in range(0, HEADS, 8):
            matrix = A[c, h].cpu().double().numpy() + np.eye(CHUNK)
            exact = scipy.linalg.solve_triangular(matrix, np.eye(CHUNK), lower=True)
            error = np.abs(X[c, h].cpu().double().numpy() - exact).max() / np.abs(exact).max()
            worst = float(np.maximum(worst, error))
    return worst


def run(device: torch.device) -> Report:
    tokens = TOKENS.get(device.type, GPU_TOKENS)
    inputs = prompt(tokens)
    q, k, v, g, beta = (x.to(device) for x in inputs)
    calls: dict[str, Callable[[], Tensor]] = {
        "kernels": lambda: LA.gated_delta.chunk_gated_delta_rule(q, k, v, g, beta)[0],
        "torch": lambda: two_solves(q, k, v, g, beta),
    }
    exact = token_by_token(*(x[0, :, :JUDGED_HEADS].double().numpy() for x in inputs))
    with LA.use("kernels"):
        solve_error = _solve_error(systems(k, g, beta))
        found = {name: call()[0, :, :JUDGED_HEADS] for name, call in calls.items()}
        seconds = medians(calls, device)
    by_token = {
        name: np.abs(x.cpu().double().numpy() - exact).max((1, 2)) / np.abs(exact).max()
        for name, x in found.items()
    }
    errors = {name: float(np.max(x)) for name, x in by_token.items()}
    rows = [
        [name, f"{1e3 * seconds[name]:.2f}", f"{tokens / seconds[name]:.0f}", f"{errors[name]:.1e}"]
        for name in calls
    ]
    return Report(
        case="gated-delta",
        title=f"Gated DeltaNet prefill: {tokens} tokens, {HEADS} heads, {WIDTH} x {WIDTH} float32",
        sections=[
            Section(
                f"One layer on {device.type}; kernels: one inverse a chunk and products; torch: "
                "two solve_triangular.\nError of the output against the rule token by token in "
                "float64, of its largest entry.",
                ("", "ms", "tokens/s", "error"),
                rows,
            )
        ],
        checks=[
            Check("error of a chunk's inverse", solve_error, SOLVE_BAR),
            Check("error of the output", errors["kernels"], OUTPUT_BAR),
            Check("its ratio to torch's", errors["kernels"] / max(errors["torch"], EPS), 3.0),
        ],
        plot=_plotter(by_token),
        data={
            "tokens": tokens,
            "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
            "errors": errors,
            "solve_error": solve_error,
        },
    )


def _plotter(by_token: dict[str, Any]) -> Callable[["Axes"], None]:
    def plot(axes: "Axes") -> None:
        for name, error in by_token.items():
            axes.semilogy(np.arange(len(error)), error, label=name, lw=1)
        axes.set_title("Gated DeltaNet: error of the output against float64")
        axes.set_xlabel("token")
        axes.set_ylabel("of the largest entry")
        axes.legend()

    return plot
