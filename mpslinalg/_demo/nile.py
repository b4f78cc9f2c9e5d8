"""Gaussian-process regression of the Nile's annual flow, its hyperparameter by marginal likelihood.

The flow is a level that wanders as a Brownian motion plus independent noise: a Gaussian process
with covariance s2 (I + q min(t, t')) and an unknown mean. Batches of 100 x 100 covariances, one for
each ratio q, are factored at once; derivatives by log q come through the factorisation.

Data: annual flow at Aswan, 1871-1970, in 10^8 m^3: Cobb, "The problem of the Nile", Biometrika 65
(1978). Estimates to compare with: Durbin, Koopman, "Time Series Analysis by State Space Methods",
second edition (2012), section 2.10. Formulas: Rasmussen, Williams, "Gaussian Processes for Machine
Learning" (2006), section 2.7.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._demo.report import Check, Report, Section
from mpslinalg._timing import medians

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST_YEAR = 1871
FLOW = """
1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 1140
1100 1210 1150 1250 1260 1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 1050 969
831 726 456 824 702 1120 1100 832 764 821 768 845 864 862 698 845 744 796 1040 759
781 865 845 944 984 897 822 1010 771 676 649 846 812 742 801 1040 860 874 848 890
744 749 838 1050 918 986 797 923 975 815 1020 906 901 1170 912 746 919 718 714 740
"""
# What Durbin and Koopman print: the variances of the noise and of a year's step of the level.
NOISE, STEP = 15099.0, 1469.1

EPS = 2.0**-24
THRESHOLD = testing.LU_THRESHOLD
GRID = 32
# Of a log likelihood, 0.01 decides nothing; the published numbers have five digits.
LIKELIHOOD_BAR, ESTIMATE_BAR = 1e-2, 1e-3

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """The process at the most likely ratio, and the level that it sees in each year."""

    ratio: float
    noise: float
    step: float
    log_likelihood: float
    level: list[float]
    deviation: list[float]


def flow() -> Array:
    return np.array(list(map(float, FLOW.split())))


def covariance(log_ratio: Tensor) -> Tensor:
    """(*, n, n) of unit noise, one for each log q."""
    t = torch.arange(float(len(flow())), device=log_ratio.device)
    brownian = torch.minimum(t[:, None], t)
    return torch.eye(len(t), device=t.device) + log_ratio.exp()[..., None, None] * brownian


def log_likelihood(log_ratio: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The log likelihood of each ratio, and its noise variance; mean and variance maximise it."""
    n = len(y)
    L = LA.cholesky(covariance(log_ratio))
    rows = torch.stack((y, torch.ones_like(y)), -1).expand(*log_ratio.shape, n, 2)
    X = LA.cholesky_solve(rows, L)
    (yy, y1), (_, ones) = (rows.mT @ X).movedim((-2, -1), (0, 1))
    noise = (yy - y1.square() / ones) / (n - 1)
    half_log_det = L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    constant = n * math.log(2 * math.pi) + n - 1
    value = -(constant + (n - 1) * noise.log() + ones.log()) / 2 - half_log_det
    return value, noise


def slopes(log_ratio: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The log likelihood of each ratio and its derivative with respect to log q."""
    variable = log_ratio.clone().requires_grad_()
    value, _ = log_likelihood(variable, y)
    (slope,) = torch.autograd.grad(value.sum(), variable)
    return value.detach(), slope


def refined(grid: Tensor, slope: Tensor) -> Tensor:
    """A grid between the two points where the slope changes its sign."""
    k = int((slope > 0).sum()) - 1
    return torch.linspace(grid[k].item(), grid[k + 1].item(), len(grid), device=grid.device)


def fit(log_ratio: Tensor, y: Tensor) -> tuple[Fit, Tensor, Tensor, Tensor]:
    """The fit, and K, its factor and its inverse."""
    K = covariance(log_ratio)
    L = LA.cholesky(K)
    inverse = LA.cholesky_inverse(L)
    ones = inverse.sum(-1)
    # Without what the unknown mean takes up.
    P = inverse - torch.outer(ones, ones) / ones.sum()
    value, noise = log_likelihood(log_ratio, y)
    ratio = log_ratio.exp()
    deviation = (noise * (1 - P.diagonal())).sqrt()
    found = Fit(
        ratio=ratio.item(),
        noise=noise.item(),
        step=(noise * ratio).item(),
        log_likelihood=value.item(),
        level=(y - P @ y).tolist(),
        deviation=deviation.tolist(),
    )
    return found, K, L, inverse


def scipy_fit(ratio: float) -> Fit:
    """The same in double precision."""
    y = flow()
    n = len(y)
    t = np.arange(n)
    factor = scipy.linalg.cho_factor(np.eye(n) + ratio * np.minimum.outer(t, t), lower=True)
    inverse = scipy.linalg.cho_solve(factor, np.eye(n))
    ones = inverse.sum(-1)
    P = inverse - np.outer(ones, ones) / ones.sum()
    noise = float(y @ P @ y) / (n - 1)
    log_det = 2 * np.log(np.diag(factor[0])).sum() + np.log(ones.sum())
    constant = n * np.log(2 * np.pi) + n - 1
    return Fit(
        ratio=ratio,
        noise=noise,
        step=noise * ratio,
        log_likelihood=float(-(constant + (n - 1) * np.log(noise) + log_det) / 2),
        level=(y - P @ y).tolist(),
        deviation=np.sqrt(noise * (1 - np.diag(P))).tolist(),
    )


def run(device: torch.device) -> Report:
    y = torch.from_numpy(flow().astype(np.float32)).to(device)
    with LA.use("kernels"):
        grid = finer = torch.linspace(-5.0, 1.0, GRID, device=device)
        values, slope = slopes(grid, y)
        # Float32 knows where the slope is zero to some 1e-4.
        for _ in range(2):
            finer = refined(finer, slopes(finer, y)[1])
        log_ratio = refined(finer, slopes(finer, y)[1]).mean()
        found, K, L, inverse = fit(log_ratio, y)
        batch = covariance(grid)
        engine = LA.which("cholesky", batch)
        seconds = medians(
            {
                "kernels": lambda: LA.cholesky(batch),
                "torch": lambda: torch.linalg.cholesky(batch),
            },
            device,
        )
    exact = scipy_fit(found.ratio)
    ratios = np.exp(grid.cpu().double().numpy())
    scipy_values = [scipy_fit(float(q)).log_likelihood for q in ratios]
    h = 1e-4
    scipy_slopes = [
        (
            scipy_fit(float(q) * math.exp(h)).log_likelihood
            - scipy_fit(float(q) * math.exp(-h)).log_likelihood
        )
        / (2 * h)
        for q in ratios
    ]
    errors = {
        "log_likelihood": _worst(values.cpu().double().numpy() - np.array(scipy_values)),
        "slope": _worst(slope.cpu().double().numpy() - np.array(scipy_slopes)),
        "level": _worst(np.array(found.level) / np.array(exact.level) - 1),
        "deviation": _worst(np.array(found.deviation) / np.array(exact.deviation) - 1),
    }
    judged = {
        "cholesky": float(testing.cholesky_ratio(K, L)),
        "inverse": float(testing.inverse_ratio(K, inverse)),
    }
    count, n = batch.shape[:2]
    return Report(
        case="nile",
        title="Flow of the Nile at Aswan, 1871-1970: a Gaussian process fitted by its likelihood",
        sections=[
            Section(
                f"{engine}.\nAll {count} covariances of {n} x {n} factored in "
                f"{1e6 * seconds['kernels']:.0f} us, by torch.linalg on the same device in "
                f"{1e6 * seconds['torch']:.0f} us."
            ),
            _estimates(found, exact),
            _likelihoods(ratios, values, slope, scipy_values, scipy_slopes),
            _levels(found, exact),
        ],
        checks=[
            Check("variances beside the published ones", _published(found), ESTIMATE_BAR),
            Check("log likelihoods beside SciPy's", errors["log_likelihood"], LIKELIHOOD_BAR),
            Check("their derivatives beside SciPy's", errors["slope"], LIKELIHOOD_BAR),
            Check("error of the level / eps", errors["level"] / EPS, THRESHOLD * n),
            Check("error of its deviation / eps", errors["deviation"] / EPS, THRESHOLD * n),
            Check("Cholesky ratio", judged["cholesky"], THRESHOLD),
            Check("inverse ratio", judged["inverse"], THRESHOLD),
        ],
        plot=_plotter(found),
        data={
            "engine": engine,
            "microseconds": {name: 1e6 * value for name, value in seconds.items()},
            "fit": asdict(found),
            "scipy": asdict(exact),
            "grid": ratios.tolist(),
            "log_likelihoods": values.tolist(),
            "slopes": slope.tolist(),
            "errors": errors,
            "ratios": judged,
        },
    )


def _worst(errors: Array) -> float:
    return float(np.abs(errors).max())


def _published(found: Fit) -> float:
    return max(abs(found.noise / NOISE - 1), abs(found.step / STEP - 1))


def _digits(value: float, exact: float) -> str:
    error = abs(value / exact - 1)
    return f"{-math.log10(error):.1f}" if error else "all"


def _estimates(found: Fit, exact: Fit) -> Section:
    rows = [
        [name, f"{value:.2f}", f"{reference:.2f}", _digits(value, reference), printed]
        for name, value, reference, printed in (
            ("noise variance", found.noise, exact.noise, f"{NOISE:g}"),
            ("variance of a step", found.step, exact.step, f"{STEP:g}"),
            ("log likelihood", found.log_likelihood, exact.log_likelihood, "-"),
        )
    ]
    return Section(
        f"At the most likely q = {found.ratio:.5f}, beside SciPy in double precision",
        ("", "float32", "SciPy", "digits", "published"),
        rows,
    )


def _likelihoods(
    ratios: Array, values: Tensor, slope: Tensor, scipy_values: Any, scipy_slopes: Any
) -> Section:
    rows = [
        [
            f"{ratios[k]:.4f}",
            f"{values[k].item():.3f}",
            f"{scipy_values[k]:.3f}",
            f"{slope[k].item():.4f}",
            f"{scipy_slopes[k]:.4f}",
        ]
        for k in range(0, len(ratios), 4)
    ]
    return Section(
        "Log likelihood and its derivative with respect to log q",
        ("q", "float32", "SciPy", "derivative", "SciPy"),
        rows,
    )


def _levels(found: Fit, exact: Fit) -> Section:
    y = flow()
    rows = [
        [
            str(FIRST_YEAR + k),
            f"{y[k]:g}",
            f"{found.level[k]:.2f} +- {found.deviation[k]:.2f}",
            f"{exact.level[k]:.2f} +- {exact.deviation[k]:.2f}",
        ]
        for k in range(0, len(y), 9)
    ]
    return Section("Level", ("year", "flow", "float32", "SciPy"), rows)


def _plotter(found: Fit) -> Callable[["Axes"], None]:
    def plot(axes: "Axes") -> None:
        years = FIRST_YEAR + np.arange(len(found.level))
        level, deviation = np.array(found.level), np.array(found.deviation)
        axes.plot(years, flow(), ".", color="0.5", label="flow")
        axes.plot(years, level, label="level")
        axes.fill_between(
            years, level - 2 * deviation, level + 2 * deviation, alpha=0.2, label="2 deviations"
        )
        axes.set_title("Nile at Aswan: level by Gaussian-process regression")
        axes.set_xlabel("year")
        axes.set_ylabel("flow ($10^8$ m$^3$)")
        axes.legend()

    return plot
