"""Losses, their slopes and logarithms: against many digits, and against each other."""

import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from whichtoken.attention.losses import (
    LOG_SLOPES,
    log_exponential_slope,
    log_logistic,
    logistic,
    logistic_slope,
    logistic_with_slope,
)

MARGINS = np.array([-700.0, -40.0, -3.0, -1e-9, 0.0, 0.5, 1.0, 2.0, 30.0, 36.9, 37.1, 40.0, 600.0])
LOGARITHMS = {"logistic": log_logistic, "exponential": log_exponential_slope}
EXACT = {
    "logistic": (lambda m: mpmath.log1p(mpmath.exp(-m)), lambda m: -1 / (1 + mpmath.exp(m))),
    "exponential": (lambda m: mpmath.exp(-m), lambda m: -mpmath.exp(-m)),
}


def logarithm(number):
    return float(mpmath.log(abs(number))) if number else -np.inf


@pytest.mark.parametrize("name", LOGARITHMS)
def test_right_to_the_last_digits(name):
    value, slope = EXACT[name]
    with mpmath.workdps(400):
        exact = [(value(mpmath.mpf(m)), slope(mpmath.mpf(m))) for m in MARGINS.tolist()]
        logs, log_slopes = np.array([[logarithm(part) for part in pair] for pair in exact]).T
    for function, expected in ((LOGARITHMS[name], logs), (LOG_SLOPES[name], log_slopes)):
        np.testing.assert_allclose([function(margin) for margin in MARGINS], expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_go_on_where_the_loss_is_below_every_float(name):
    assert LOGARITHMS[name](1e4) == LOG_SLOPES[name](1e4) == -1e4


def test_loss_and_slope_come_from_one_exponential():
    for margin in MARGINS:
        assert logistic_with_slope(margin) == (logistic(margin), logistic_slope(margin))


FORMS = """
import sys
from whichtoken.attention.losses import compiled_log_slope, log_logistic_slope
print(log_logistic_slope(1.0) if sys.argv[1] == "python" else compiled_log_slope("logistic")(1.0))
"""


@pytest.mark.process
@pytest.mark.parametrize("order", [("python", "C"), ("C", "python")])
def test_a_scalar_loss_can_be_called_whatever_form_another_process_compiled_first(order, tmp_path):
    """One cache for the forms of a function would give Python the form for C, which it cannot call."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", FORMS, form],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for form in order
    )
    assert first == second
