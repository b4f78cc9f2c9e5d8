"""The demo's studies, against SciPy on data entered here a second time."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from numpy.typing import NDArray

import mpslinalg as LA
from mpslinalg import __main__ as command
from mpslinalg._demo import (
    ieee14,
    iris,
    longley,
    nile,
    power_grid,
    spectrum,
    tides,
    water,
    wilkinson,
)
from mpslinalg._demo.report import Check, Report

BRANCHES = """
1-2 .01938 .05917 .0528; 1-5 .05403 .22304 .0492; 2-3 .04699 .19797 .0438; 2-4 .05811 .17632 .034;
2-5 .05695 .17388 .0346; 3-4 .06701 .17103 .0128; 4-5 .01335 .04211 0; 4-7 0 .20912 0 .978;
4-9 0 .55618 0 .969; 5-6 0 .25202 0 .932; 6-11 .09498 .1989 0; 6-12 .12291 .25581 0;
6-13 .06615 .13027 0; 7-8 0 .17615 0; 7-9 0 .11001 0; 9-10 .03181 .0845 0; 9-14 .12711 .27038 0;
10-11 .08205 .19207 0; 12-13 .22092 .19988 0; 13-14 .17093 .34802 0
"""
MAGNITUDES = "1.06 1.045 1.01 1.019 1.02 1.07 1.062 1.09 1.056 1.051 1.057 1.055 1.05 1.036"
DEGREES = """
0 -4.98 -12.72 -10.33 -8.78 -14.22 -13.37 -13.36 -14.94 -15.1 -14.79 -15.07 -15.16 -16.04
"""
LOADS_MW = [0, 21.7, 94.2, 47.8, 7.6, 11.2, 0, 0, 29.5, 9, 3.5, 6.1, 13.5, 14.9]
LOADS_MVAR = [0, 12.7, 19, -3.9, 1.6, 7.5, 0, 0, 16.6, 5.8, 1.8, 1.6, 5.8, 5]
GENERATED_MW = {1: 232.4, 2: 40.0}
GENERATED_MVAR = {1: -16.9, 2: 42.4, 3: 23.4, 6: 12.2, 8: 17.4}

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]

EPS = 2.0**-24


def admittance(*, out: str | None = None, machines: bool = True) -> Complex:
    Y = np.zeros((15, 15), complex)
    for line in BRANCHES.split(";"):
        name, r, x, charging, *tap = line.split()
        if name == out:
            continue
        i, j = map(int, name.split("-"))
        a = float(tap[0]) if tap else 1.0
        y = 1 / (float(r) + 1j * float(x))
        end = 0.5j * float(charging)
        Y[i, i] += (y + end) / a**2
        Y[j, j] += y + end
        Y[i, j] -= y / a
        Y[j, i] -= y / a
    Y[9, 9] += 0.19j
    for bus in (1, 2, 3, 6) if machines else ():
        Y[bus, bus] -= 5j
    return Y[1:, 1:]


def magnitudes() -> Real:
    return np.array(list(map(float, MAGNITUDES.split())))


def radians() -> Real:
    return np.deg2rad(list(map(float, DEGREES.split())))


def published_power() -> Complex:
    """MVA that each bus feeds into the network."""
    power = -(np.array(LOADS_MW) + 1j * np.array(LOADS_MVAR))
    for bus, value in GENERATED_MW.items():
        power[bus - 1] += value
    for bus, value in GENERATED_MVAR.items():
        power[bus - 1] += 1j * value
    return power


def network_power(magnitude: Real, angle: Real) -> Complex:
    V = magnitude * np.exp(1j * angle)
    return np.asarray(100 * V * np.conj(admittance(machines=False) @ V))


@pytest.fixture(scope="module")
def report() -> Report:
    return power_grid.run(torch.device("cpu"))


def test_the_data_are_the_published_ones() -> None:
    for machines in (False, True):
        np.testing.assert_allclose(
            ieee14.admittance(ieee14.BRANCHES, machines=machines),
            admittance(machines=machines),
            rtol=1e-15,
            atol=1e-15,
        )
    np.testing.assert_allclose(ieee14.voltage(), magnitudes() * np.exp(1j * radians()), rtol=1e-15)
    np.testing.assert_allclose(-ieee14.DRAWN_MVA, published_power(), rtol=1e-15)


def test_published_voltages_draw_the_published_loads() -> None:
    mismatch = np.abs(network_power(magnitudes(), radians()) - published_power())
    assert np.delete(mismatch, 3).max() < 1.5
    assert mismatch[3] == pytest.approx(4.22, abs=0.01)
    corrected = magnitudes()
    corrected[3] = 1.018
    mismatch = np.abs(network_power(corrected, radians()) - published_power())
    assert mismatch.max() < 1.5
    np.testing.assert_allclose(
        ieee14.power_mismatch(ieee14.voltage(corrected)), mismatch, rtol=1e-9, atol=1e-11
    )


def test_only_bus_4_is_published_wrongly() -> None:
    """The power flow solved from the loads: |V| rounds to what is published, but for bus 4."""
    loads = [bus for bus in range(14) if bus + 1 not in (1, 2, 3, 6, 8)]

    def mismatch(unknowns: Real) -> Real:
        angle, magnitude = radians(), magnitudes()
        angle[1:], magnitude[loads] = unknowns[:13], unknowns[13:]
        difference = network_power(magnitude, angle) - published_power()
        return np.concatenate([difference.real[1:], difference.imag[loads]])

    start = np.concatenate([radians()[1:], magnitudes()[loads]])
    solution = scipy.optimize.root(mismatch, start, tol=1e-12)
    assert solution.success
    error = np.abs(solution.x[13:] - magnitudes()[loads])
    assert error[loads.index(3)] == pytest.approx(0.0013, abs=1e-4)
    assert np.delete(error, loads.index(3)).max() < 0.0006
    assert np.rad2deg(np.abs(solution.x[:13] - radians()[1:])).max() < 0.02


def test_fault_currents_are_scipys(report: Report) -> None:
    names = [line.split()[0] for line in BRANCHES.split(";")]
    outages = report.data["outages"]
    assert [outage["branch"] for outage in outages] == names
    solved = 0
    for out, case in [(None, report.data["base"]), *zip(names, outages, strict=True)]:
        if out == "7-8":
            continue
        Y = admittance(out=out)
        Z = scipy.linalg.inv(Y)
        expected = magnitudes() / np.abs(np.diagonal(Z))
        bound = np.linalg.cond(Y) * EPS
        np.testing.assert_allclose(case["solution"]["currents"], expected, rtol=bound)
        np.testing.assert_allclose(case["solution"]["scipy_currents"], expected, rtol=1e-12)
        assert 67 <= np.linalg.cond(Y) <= 113
        assert case["info"] == 0
        solved += 1
    assert solved == 20


def test_base_case_by_hand(report: Report) -> None:
    currents = report.data["base"]["solution"]["currents"]
    assert currents[0] == pytest.approx(12.7566106, rel=1e-5)
    assert currents[13] == pytest.approx(3.24540892, rel=1e-5)


def test_islanding_outage_is_reported_by_info(report: Report) -> None:
    *_, info = scipy.linalg.lapack.zgetrf(admittance(out="7-8"))
    assert info == 8
    (outage,) = [outage for outage in report.data["outages"] if outage["info"]]
    assert outage["branch"] == "7-8"
    assert outage["info"] == 8
    assert outage["islanded"] == [8]
    assert outage["solution"] is None


def test_the_study_runs_on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    lu_factor_ex = LA.lu_factor_ex

    @functools.wraps(lu_factor_ex)
    def spy(A: torch.Tensor) -> object:
        seen.append((LA.which("lu_factor_ex", A), A.dtype, tuple(A.shape)))
        return lu_factor_ex(A)

    monkeypatch.setattr(LA, "lu_factor_ex", spy)
    report = power_grid.run(torch.device("cpu"))
    assert all("kernels (cpu engine)" in which for which, *_ in seen)
    assert (report.data["engine"], torch.complex64, (20, 14, 14)) in seen


def run(*arguments: str) -> int:
    return command.main(["demo", "--device", "cpu", *arguments])


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers, picture = tmp_path / "demo.json", tmp_path / "demo.png"
    assert run("--case", "power-grid", "--json", str(numbers), "--plot", str(picture)) == 0
    text = capsys.readouterr().out
    assert "islands bus 8" in text
    assert "FAIL" not in text
    assert max(map(len, text.splitlines())) <= 120
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = json.loads(numbers.read_text())
    assert content["environment"]["torch"] == torch.__version__
    case = content["cases"]["power-grid"]
    assert all(check["passed"] for check in case["checks"])
    assert {check["name"] for check in case["checks"]} >= {"LU ratio", "solve ratio"}
    assert "cpu engine" in case["engine"]
    assert set(case["microseconds"]) == {"kernels", "torch"}
    assert len(case["outages"]) == 20


@pytest.mark.parametrize("error", [1e-4, float("nan")])
def test_command_fails_on_a_wrong_solution(
    error: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lu_solve = LA.lu_solve
    monkeypatch.setattr(LA, "lu_solve", lambda *arguments: lu_solve(*arguments) * (1 + error))
    assert run("--case", "power-grid") == 1
    assert "FAIL" in capsys.readouterr().out


def test_command_fails_on_a_wrong_info(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lu_factor_ex = LA.lu_factor_ex

    @functools.wraps(lu_factor_ex)
    def unaware(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        LU, pivots, info = lu_factor_ex(A)
        return LU, pivots, torch.where(info == 8, 9, info)

    monkeypatch.setattr(LA, "lu_factor_ex", unaware)
    assert run("--case", "power-grid") == 1
    assert "FAIL" in capsys.readouterr().out


def test_a_check_of_nan_fails() -> None:
    assert not Check("", float("nan"), 30.0).passed
    assert Check("", 30.0, 30.0).passed


def kalman(ratio: float, noise: float) -> tuple[Real, float]:
    """Level and log likelihood of the Nile by filter and smoother: no covariance matrix at all."""
    y = nile.flow()
    n = len(y)
    a, P, v, F = np.zeros(n), np.zeros(n), np.zeros(n), np.ones(n)
    a[1], P[1] = y[0], noise * (1 + ratio)  # from an unknown start the first flow is all there is
    for t in range(1, n):
        v[t], F[t] = y[t] - a[t], P[t] + noise
        if t + 1 < n:
            K = P[t] / F[t]
            a[t + 1], P[t + 1] = a[t] + K * v[t], P[t] * (1 - K) + noise * ratio
    level, r = np.zeros(n), 0.0
    for t in range(n - 1, 0, -1):
        r = v[t] / F[t] + (1 - P[t] / F[t]) * r
        level[t] = a[t] + P[t] * r
    level[0] = y[0] + noise * r
    return level, float(-(n * np.log(2 * np.pi) + np.log(F[1:]).sum() + (v**2 / F)[1:].sum()) / 2)


def test_the_level_of_the_nile_is_the_smoothed_one() -> None:
    report = nile.run(torch.device("cpu"))
    assert all(check.passed for check in report.checks)
    assert nile.flow().shape == (100,)
    assert nile.flow().mean() == 919.35
    fit = report.data["fit"]
    level, likelihood = kalman(fit["ratio"], fit["noise"])
    np.testing.assert_allclose(fit["level"], level, rtol=1e-5)
    assert fit["log_likelihood"] == pytest.approx(likelihood, abs=1e-2)
    # As Durbin and Koopman print them.
    assert fit["noise"] == pytest.approx(15099, abs=2)
    assert fit["step"] == pytest.approx(1469.1, abs=0.5)
    assert report.data["scipy"]["log_likelihood"] == pytest.approx(likelihood, abs=1e-3)


def test_a_wrong_factor_fails_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    cholesky = LA.cholesky
    wrong = functools.wraps(cholesky)(lambda A: cholesky(A) * (1 + 1e-4))
    monkeypatch.setattr(LA, "cholesky", wrong)
    assert not all(check.passed for check in nile.run(torch.device("cpu")).checks)


def scaled_lstsq(factor: float) -> Any:
    lstsq = LA.lstsq

    @functools.wraps(lstsq)
    def wrong(*arguments: Any, **options: Any) -> SimpleNamespace:
        result = lstsq(*arguments, **options)
        return SimpleNamespace(solution=result.solution * factor, residuals=result.residuals)

    return wrong


def test_longleys_table_has_the_certified_regression() -> None:
    """In 60 digits, so that one wrong digit of the table or of a certified value shows."""
    with mpmath.workdps(60):
        data = [
            [mpmath.mpf(word) for word in line.split()] for line in longley.DATA.split("\n")[1:-1]
        ]
        y = mpmath.matrix([row[0] for row in data])
        X = mpmath.matrix([[mpmath.mpf(1), *row[1:]] for row in data])
        inverse = (X.T * X) ** -1
        b = inverse * (X.T * y)
        variance = mpmath.norm(y - X * b) ** 2 / 9
        exact = [*b, *(mpmath.sqrt(variance * inverse[k, k]) for k in range(7))]
        exact.append(mpmath.sqrt(variance))
    certified = [*longley.CERTIFIED, *longley.CERTIFIED_DEVIATIONS]
    certified.append(longley.CERTIFIED_RESIDUAL_DEVIATION)
    np.testing.assert_allclose(certified, np.array(exact, float), rtol=1e-14)


def test_longleys_regression() -> None:
    report = longley.run(torch.device("cpu"))
    assert all(check.passed for check in report.checks)
    for dtype, bar in (("float64", 1e-10), ("float32", 1e-4)):
        fit = report.data[dtype]
        np.testing.assert_allclose(fit["coefficients"], longley.CERTIFIED, rtol=bar)
        np.testing.assert_allclose(fit["deviations"], longley.CERTIFIED_DEVIATIONS, rtol=bar)
        assert fit["residual_deviation"] == pytest.approx(304.854073561965, rel=bar)


@pytest.mark.parametrize("error", [1e-9, 1e-3, float("nan")])
def test_a_wrong_regression_fails_the_study(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LA, "lstsq", scaled_lstsq(1 + error))
    double, single = longley.run(torch.device("cpu")).checks
    assert not double.passed
    assert single.passed == (error == 1e-9)


def test_a_tide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tides, "SAMPLES", {"cpu": 400})
    report = tides.run(torch.device("cpu"))
    assert all(check.passed for check in report.checks)
    hours = np.arange(400) * (999_999 / 399 / 60)
    columns = [np.ones(400), hours / (1_000_000 / 120) - 1]
    for speed in (28.9841042, 30, 28.4397295, 15.0410686, 13.9430356):
        columns += [np.cos(speed * hours * np.pi / 180), np.sin(speed * hours * np.pi / 180)]
    A = np.column_stack(columns)
    level = tides.level(A)
    expected = np.linalg.lstsq(A, level, rcond=None)[0]
    np.testing.assert_allclose(report.data["coefficients"], expected, atol=1e-6)
    # M2 as made: 0.58 m, 210 degrees.
    M2 = complex(*report.data["coefficients"][2:4])
    assert abs(M2 - 0.58 * np.exp(1j * np.deg2rad(210))) < 0.02
    monkeypatch.setattr(LA, "lstsq", scaled_lstsq(1 + 1e-5))
    error, ratio, _ = tides.run(torch.device("cpu")).checks
    assert not error.passed
    assert not ratio.passed


def wrong(monkeypatch: pytest.MonkeyPatch, name: str, factor: float) -> None:
    """The function of mpslinalg with all that it returns, or its first result, times a factor."""
    right = getattr(LA, name)

    @functools.wraps(right)
    def function(*arguments: Any, **options: Any) -> Any:
        result = right(*arguments, **options)
        if isinstance(result, torch.Tensor):
            return result * factor
        return (result[0] * factor, *result[1:])

    monkeypatch.setattr(LA, name, function)


def failed(report: Report) -> int:
    return sum(not check.passed for check in report.checks)


def test_fishers_table() -> None:
    lengths, species = iris.table()
    assert lengths.shape == (150, 4)
    assert [species.count(name) for name in iris.SPECIES] == [50, 50, 50]
    # Means and variances that Fisher printed, table II; and the two flowers that copies have wrong.
    means = lengths.reshape(3, 50, 4).mean(1)
    np.testing.assert_allclose(
        means,
        [[5.006, 3.428, 1.462, 0.246], [5.936, 2.770, 4.260, 1.326], [6.588, 2.974, 5.552, 2.026]],
        atol=1e-12,
    )
    assert lengths[34].tolist() == [4.9, 3.1, 1.5, 0.2]
    assert lengths[37].tolist() == [4.9, 3.6, 1.4, 0.1]


def test_principal_components_of_irises(monkeypatch: pytest.MonkeyPatch) -> None:
    report = iris.run(torch.device("cpu"))
    assert failed(report) == 0
    # The eigenvalues of the covariances.
    covariance = np.cov(iris.table()[0], rowvar=False)
    expected = np.linalg.eigvalsh(covariance)[::-1]
    np.testing.assert_allclose(report.data["variances"], expected, rtol=1e-5)
    directions = np.array(report.data["directions"])
    np.testing.assert_allclose(directions @ covariance @ directions.T, np.diag(expected), atol=1e-5)
    wrong(monkeypatch, "svd", 1 + 1e-2)
    assert failed(iris.run(torch.device("cpu"))) == 1


def test_singular_values_of_longleys_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpmath.workdps(40):
        table = mpmath.matrix(spectrum.design().astype(float).tolist())
        exact = [float(mpmath.sqrt(x)) for x in mpmath.eigsy(table.T * table, eigvals_only=True)]
    monkeypatch.setattr(spectrum, "ORDERS", 50)
    report = spectrum.run(torch.device("cpu"))
    assert failed(report) == 0
    np.testing.assert_allclose(report.data["singular_values"], exact[::-1], rtol=1e-10)
    assert 40000 < report.data["scaled_condition"] < 50000
    wrong(monkeypatch, "svdvals", 1 + 1e-2)
    assert failed(spectrum.run(torch.device("cpu"))) == 1


def test_vibrations_of_water(monkeypatch: pytest.MonkeyPatch) -> None:
    def energy(places: Real) -> float:
        """Of springs, in mdyn angstrom, with angles in radians."""
        O, first, second = places.reshape(3, 3)  # noqa: E741
        a, b = first - O, second - O
        s, t = np.linalg.norm(a), np.linalg.norm(b)
        r, q, angle = s - 0.9572, t - 0.9572, np.arccos(a @ b / (s * t)) - np.deg2rad(104.52)
        squares = 8.454 * (r**2 + q**2) + 0.697 * angle**2
        return float(squares / 2 - 0.101 * r * q + 0.219 * (r + q) * angle)

    angle = np.deg2rad(104.52)
    rest = np.array([0, 0, 0, 0.9572, 0, 0, 0.9572 * np.cos(angle), 0.9572 * np.sin(angle), 0])
    h, units = 1e-4, np.eye(9)
    second = [
        [
            sum(
                p * q * energy(rest + h * (p * a + q * b)) for p in (-1, 1) for q in (-1, 1)
            ) / (4 * h * h)
            for a in units
        ]
        for b in units
    ]  # fmt: skip
    np.testing.assert_allclose(water.force_matrix(), second, atol=1e-5)
    report = water.run(torch.device("cpu"))
    assert failed(report) == 0
    light = report.data["frequencies"]["HH16"]
    np.testing.assert_allclose(light, [1648.47, 3832.17, 3942.53], rtol=5e-4)
    assert len(report.data["frequencies"]) == 18
    wrong(monkeypatch, "eigh", 1 + 1e-4)
    assert failed(water.run(torch.device("cpu"))) == 2


def test_roots_of_wilkinsons_polynomial(monkeypatch: pytest.MonkeyPatch) -> None:
    C = wilkinson.companions(2.0**-24)
    assert np.array_equal(C[0], C[0].astype(np.float32))
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(C[0]).real), np.arange(1, 11), atol=1e-6)
    # All roots are positive, so each coefficient moves one where it is larger by the same sign of
    # a_j x^j: then p changes by the sum of all |a_j x^j|.
    with mpmath.workdps(60):
        p = [mpmath.mpf(round(c)) for c in np.poly(np.arange(1, 11))]
        part = mpmath.mpf(10) ** -25
        moved = [c + part * abs(c) for c in p]
        for x, expected in enumerate(wilkinson.conditions(), start=1):
            root = mpmath.findroot(lambda z: mpmath.polyval(moved, z), x)
            assert float(abs(root - x) / part) == pytest.approx(expected, rel=1e-6)
    report = wilkinson.run(torch.device("cpu"))
    assert failed(report) == 0
    roots = np.array(report.data["roots"]["float64"])
    np.testing.assert_allclose(roots[:, 0], np.arange(1, 11), atol=1e-8)
    wrong(monkeypatch, "eigvals", 1 + 1e-3)
    assert failed(wilkinson.run(torch.device("cpu"))) == 3
