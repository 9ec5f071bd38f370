from dataclasses import replace

import mpmath
import numpy as np
import pytest

from whichtoken.datasets import AttentionTokens
from whichtoken.flows.regularization_path import regularization_path
from whichtoken.margin import key_query_svm
from whichtoken.norms import power_norm
from whichtoken.theory.mirror_descent import directional_divergence

EXPONENTS = [1.1, 1.75, 2.0, 3.0]


def problem(seed, **sizes):
    return AttentionTokens(**sizes).sample(np.random.default_rng(seed))


def path(case, radii, p, **options):
    return regularization_path(case, radii, p=p, rng=np.random.default_rng(0), **options)


def exact_log_excess(case, weights, loss):
    """log(L - L_inf) from the definition, with 400 digits."""
    with mpmath.workdps(400):
        terms = []
        for tokens, query, gamma in zip(case.tokens, case.queries, case.token_scores, strict=True):
            keys = [
                mpmath.fsum(mpmath.mpf(w) * mpmath.mpf(z) for w, z in zip(row, query, strict=True)) for row in weights
            ]
            scores = [mpmath.fsum(mpmath.mpf(x) * k for x, k in zip(token, keys, strict=True)) for token in tokens]
            weight = [mpmath.exp(score - max(scores)) for score in scores]
            margin = mpmath.fsum(w * mpmath.mpf(g) for w, g in zip(weight, gamma, strict=True)) / mpmath.fsum(weight)
            terms.append(loss(margin) - loss(mpmath.mpf(max(gamma))))
        return float(mpmath.log(mpmath.fsum(terms) / len(terms)))


LOSSES = {
    "logistic": lambda m: mpmath.log1p(mpmath.exp(-m)),
    "exponential": lambda m: mpmath.exp(-m),
    "linear": lambda m: -m,
}


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("radius", [0.1, 10.0, 1000.0])
def test_distance_to_the_infimum_keeps_its_digits(loss, radius):
    case = problem(1, sequences=3, length=4, dim=3)
    found = path(case, [radius], 2.0, loss=loss)
    exact = exact_log_excess(case, radius * found.directions[0], LOSSES[loss])
    assert found.log_excess[0] == pytest.approx(exact, rel=1e-11, abs=1e-12)


def test_log_slope_of_the_user_gives_the_named_loss():
    named, own = (path(problem(1), [3.0, 30.0], 2.0, loss=loss) for loss in ("exponential", lambda m: -m))
    np.testing.assert_allclose(own.log_excess, named.log_excess, rtol=1e-12)
    np.testing.assert_allclose(own.directions, named.directions, atol=1e-7)


@pytest.mark.parametrize("p", EXPONENTS)
def test_minimizers_have_unit_norm_and_are_stationary(p):
    found = path(problem(2), [3.0, 30.0, 300.0], p)
    np.testing.assert_allclose([power_norm(each, p) for each in found.directions], 1.0, rtol=1e-12)
    assert found.stationarity.max() < 1e-10
    assert (np.diff(found.log_excess) < 0).all()


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_no_point_nearby_is_better(p):
    case, radius = problem(3, sequences=3, length=4, dim=3), 5.0
    found = path(case, [radius], p)
    rng = np.random.default_rng(1)
    for size in (1e-1, 1e-2, 1e-3):
        other = found.directions[0] + size * rng.standard_normal((3, 3))
        worse = exact_log_excess(case, radius * other / power_norm(other, p), LOSSES["logistic"])
        assert worse > found.log_excess[0]


# p: least and largest divergence from the limit over three problems, at R = 10, 30, 100
REFERENCE = {
    1.75: [(0.13, 0.31), (0.026, 0.029), (0.0042, 0.0046)],
    2.0: [(0.085, 0.27), (0.018, 0.020), (0.0022, 0.0029)],
    3.0: [(0.033, 0.033), (0.006, 0.007)],
}


@pytest.mark.parametrize("p", list(REFERENCE))
def test_divergence_from_the_limit_matches_the_reference(p):
    radii = [3.0, 10.0, 30.0, 100.0][: 1 + len(REFERENCE[p])]
    table = []
    for seed in (1, 2, 3):
        found = path(problem(seed), radii, p)
        limit = key_query_svm(problem(seed).tokens, problem(seed).queries, found.selected, p=p).direction
        table.append([directional_divergence(limit, each, p) for each in found.directions[1:]])
    for measured, (low, high) in zip(np.transpose(table), REFERENCE[p], strict=True):
        digit = 0.06 * low  # two printed digits
        assert low - digit < measured.min() <= measured.max() < high + digit


def test_minimizer_of_two_tokens_is_known():
    """One sequence, two tokens: every increasing function of x.W z is largest at the dual direction of (x_1 - x_2) z^T."""
    case = problem(4, sequences=1, length=2, dim=3)
    for p in EXPONENTS:
        found = path(case, [2.0], p)
        best = key_query_svm(case.tokens, case.queries, found.selected, p=p).direction
        np.testing.assert_allclose(found.directions[0], best, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radii": []}, r"^radii=\[\] must be finite positive numbers, at least one$"),
        ({"radii": [0.0, 1.0]}, r"^radii=\[0.0, 1.0\] must be finite positive numbers"),
        ({"starts": 0}, r"^starts=0 must be a whole number of at least 1$"),
        ({"p": 1.0}, r"^p=1.0 must be a finite number above 1$"),
        ({"loss": "hinge"}, r"^loss='hinge' must be one of logistic, exponential, linear or a function"),
        ({"case": replace(problem(1), decoder=np.zeros(10))}, r"^token_scores must differ in some sequence"),
    ],
)
def test_bad_arguments_are_named(change, message):
    options = {"case": problem(1), "radii": [1.0], "p": 2.0, **change}
    with pytest.raises(ValueError, match=message):
        path(**options)
