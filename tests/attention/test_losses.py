"""Losses, their slopes and logarithms: against many digits, and against each other."""

import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from whichtoken.attention.losses import LOSSES, logistic, logistic_slope, logistic_with_slope

MARGINS = np.array([-700.0, -40.0, -3.0, -1e-9, 0.0, 0.5, 1.0, 2.0, 30.0, 36.9, 37.1, 40.0, 600.0])
EXACT = {
    "logistic": (lambda m: mpmath.log1p(mpmath.exp(-m)), lambda m: -1 / (1 + mpmath.exp(m))),
    "exponential": (lambda m: mpmath.exp(-m), lambda m: -mpmath.exp(-m)),
}


def logarithm(number):
    return float(mpmath.log(abs(number))) if number else -np.inf


@pytest.mark.parametrize("name", LOSSES)
def test_right_to_the_last_digits(name):
    loss, (value, slope) = LOSSES[name], EXACT[name]
    with mpmath.workdps(400):
        exact = [(value(mpmath.mpf(m)), slope(mpmath.mpf(m))) for m in MARGINS.tolist()]
        logs, log_slopes = np.array([[logarithm(part) for part in pair] for pair in exact]).T
    np.testing.assert_allclose(loss.log_value(MARGINS), logs, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(loss.log_slope(MARGINS), log_slopes, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", ["logistic", "exponential"])
def test_logarithms_go_on_where_the_loss_is_below_every_float(name):
    for found in (LOSSES[name].log_value(1e4), LOSSES[name].log_slope(1e4)):
        assert found == -1e4


def test_loss_and_slope_come_from_one_exponential():
    for margin in MARGINS:
        assert logistic_with_slope(margin) == (logistic(margin), logistic_slope(margin))


FORMS = """
import sys
import numpy as np
from whichtoken.attention.losses import LOSSES, compiled_log_slope, log_logistic, log_logistic_slope
loss = LOSSES["logistic"]
if sys.argv[1] == "arrays":
    over_arrays = [float(form(np.ones(2))[0]) for form in (loss.log_value, loss.log_slope)]
    print(over_arrays, compiled_log_slope("logistic")(1.0))
else:
    print([log_logistic(1.0), log_logistic_slope(1.0)], log_logistic_slope(1.0))
"""


@pytest.mark.process
@pytest.mark.parametrize("order", [("arrays", "scalars"), ("scalars", "arrays")])
def test_a_scalar_loss_can_be_called_whatever_form_another_process_compiled_first(order, tmp_path):
    """One cache for the forms of a function would give Python the form of the arrays, which it cannot call."""
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
