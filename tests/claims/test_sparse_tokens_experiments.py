"""The detectors that experiments on sparse tokens bring along."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.claims.sparse_tokens import alignment, attention_map, capacity, errors, regimes
from whichtoken.claims.sparse_tokens._tasks import attention, best_threshold, draw_scores, error_at, mean_token
from whichtoken.claims.sparse_tokens.capacity import separable
from whichtoken.claims.sparse_tokens.detection import Detection
from whichtoken.claims.sparse_tokens.detection import Point as DetectionPoint
from whichtoken.errors import UsageError
from whichtoken.lab import Predicted, Row, Rows
from whichtoken.lab.plan import make_plan
from whichtoken.theory.sparse_tokens import erm, linear_oracle, two_step_query

# whole numbers, apart: a cut between neighbors exists
scores = st.lists(st.integers(-1000, 1000), min_size=2, max_size=14, unique=True)


@given(values=scores, data=st.data())
def test_best_threshold_is_the_best_of_all_cuts(values, data):
    split = data.draw(st.integers(1, len(values) - 1))
    positive, negative = np.array(values[:split], dtype=float), np.array(values[split:], dtype=float)
    error, cut = best_threshold(positive, negative)
    every = [error_at(positive, negative, value + 0.5) for value in [min(values) - 1, *values]]
    assert error == pytest.approx(min(every))
    assert error_at(positive, negative, cut) == pytest.approx(error)


def test_attention_interpolates_between_mean_and_largest_token():
    tokens = np.random.default_rng(0).standard_normal((5, 30))
    np.testing.assert_allclose(attention(0.0)(tokens), tokens.mean(axis=1))
    np.testing.assert_allclose(attention(1e4)(tokens), tokens.max(axis=1))


def test_mean_score_errs_as_the_linear_oracle():
    drawn = draw_scores({"mean": mean_token}, 20, 4, 2.0, 40_000, np.random.default_rng(1))["mean"]
    expected = linear_oracle(length=20, signal_tokens=4, strength=2.0, prevalence=0.5)
    assert error_at(*drawn, 2.0 * 4 / 20 / 2) == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 80_000))


def test_separability_of_known_sets():
    square = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert not separable(square, np.array([1.0, 1.0, -1.0, -1.0]))  # exclusive or
    assert separable(square, np.array([-1.0, 1.0, 1.0, 1.0]))  # or, which needs the bias


def parts(experiment, rows):
    """The checks of single points, by code."""
    return {part.code: part for check in experiment.judge(rows) for part in check.parts or (check,)}


def measured(point, seed, predicted=None, **values):
    found = {name: Predicted(value) for name, value in (predicted or {}).items()}
    return Row(point, seed, "ok", "", values, 0.0, "", found)


def test_regimes_of_two_strengths_have_an_edge_each():
    """The advantage crosses zero at an alignment of 0.3 for one task, and 0.1 for the other."""
    rows = Rows(
        measured(point, seed, {"advantage": cosine - edge}, advantage=cosine - edge)
        for strength, edge in ((3.0, 0.3), (5.0, 0.1))
        for cosine in (0.0, 0.2, 0.4, 0.8)
        for point in [regimes.Point(strength=strength, alignment=cosine)]
        for seed in range(3)
    )
    edges = {code: part.theory for code, part in parts(regimes.Regimes(), rows).items() if ".edge." in code}
    assert edges == pytest.approx({"regimes.edge.tau1.strength-3": 0.3, "regimes.edge.tau1.strength-5": 0.1})


def test_edge_is_that_of_the_mean_advantage_with_the_scatter_of_the_crossing():
    """Noise in the advantage is divided by its slope, and repeats that cross twice do not shift the edge."""
    rng = np.random.default_rng(0)
    rows = Rows(
        measured(point, seed, {"advantage": cosine - 0.25}, advantage=cosine - 0.25 + 0.3 * rng.standard_normal())
        for cosine in (0.0, 0.2, 0.3, 0.4)
        for point in [regimes.Point(alignment=cosine)]
        for seed in range(4000)
    )
    edge = parts(regimes.Regimes(), rows)["regimes.edge.tau1"]
    values = edge.sample.values
    # half way between the two alignments beside it: the mean of two independent values of noise
    assert values.std() == pytest.approx(0.3 / math.sqrt(2), rel=0.05)
    assert values.mean() == pytest.approx(0.25, abs=4 * 0.3 / math.sqrt(2 * 4000))
    assert edge.points == {regimes.Point(alignment=0.2), regimes.Point(alignment=0.3)}


def test_errors_of_two_dimensions_and_tasks_are_judged_apart():
    rows = Rows(
        measured(
            errors.Point(dim=dim, strength=strength, split=split),
            seed,
            {"train_loss": strength, "test_error": strength},
            train_loss=strength,
            test_error=strength + dim,
        )
        for strength in (3.0, 5.0)
        for dim in (30, 60)
        for split in (True, False)
        for seed in range(3)
    )
    found = {
        code: (part.theory, part.sample.values.mean())
        for code, part in parts(errors.Errors(), rows).items()
        if part.sample.values.size
    }
    assert found["errors.test.attention.a2.ridge0.01.strength-3.dim-60"] == (3.0, 63.0)
    assert found["errors.reuse.test.attention.a2.ridge0.01.reuse.strength-5.dim-30"] == (5.0, 35.0)
    assert found["errors.reuse.logistic.strength-5.dim-60"] == (1.0, 1.0)


def test_reuse_without_rows_is_no_claim():
    point = errors.Point(split=False, length=5)
    rows = Rows(measured(point, seed, train_loss=0.1, test_error=0.1) for seed in range(3))
    assert not any("reuse.logistic" in code for code in parts(errors.Errors(), rows))


@pytest.mark.parametrize(("field", "value"), [("model", "vectorised"), ("query", "gven")])
def test_unknown_methods_are_refused(field, value):
    with pytest.raises(UsageError, match=f"{field}='{value}' is not accepted"):
        make_plan(errors.Errors(), "quick", {field: value})


def test_advantage_stays_finite_where_errors_underflow():
    point = regimes.Point(strength=60.0, dim=10, alignment=1.0)
    assert math.isfinite(regimes.Regimes().predict(point)["advantage"].value)
    assert math.isfinite(regimes.Regimes().run(point, np.random.default_rng(0))["advantage"])


QUANTITIES = {
    **dict.fromkeys(("train_loss", "test_error", "advantage", "capacity", "alignment", "deficit"), 0.1),
    **dict.fromkeys(("adjusted_alignment", "adjusted_norm", "query_norm", "readout_alignment"), 0.1),
}
JUDGED = [
    alignment.Alignment(), capacity.Capacity(), errors.Errors(), regimes.Regimes()
]  # fmt: skip


def rows_of(experiment, preset, status="ok"):
    """Rows as declared, all alike."""
    return [
        Row(experiment.point_type(**fields), seed, status, "", QUANTITIES, 0.0, "", {})
        for grid in experiment.presets[preset]
        for fields in grid.points({})
        for seed in range(2)
    ]


@pytest.mark.parametrize("preset", ["quick", "full"])
@pytest.mark.parametrize("experiment", JUDGED, ids=lambda experiment: experiment.id)
def test_codes_of_the_presets_are_those_on_record(experiment, preset):
    """No recorded code goes without a word, and the parts of a check have codes of their own."""
    checks = list(experiment.judge(Rows(rows_of(experiment, preset))))
    if preset in experiment.expected:
        assert set(experiment.expected[preset]) == {check.code for check in checks}
    codes = [part.code for check in checks for part in check.parts or (check,)]
    assert len(codes) == len(set(codes))
    assert all(part.code.startswith(f"{check.code}.") for check in checks for part in check.parts)


@pytest.mark.parametrize("experiment", JUDGED, ids=lambda experiment: experiment.id)
def test_every_check_names_the_points_it_depends_on(experiment):
    """So that failed runs count against their own checks alone; a point whose runs all failed belongs to some check."""
    rows = rows_of(experiment, "full")
    checks = list(experiment.judge(Rows(rows)))
    assert all(part.points for check in checks for part in check.parts or (check,))
    lost = rows[-1].point
    failed = [row for row in rows_of(experiment, "full", "failed") if row.point == lost]
    checks = list(experiment.judge(Rows([row for row in rows if row.point != lost], failed)))
    assert any(lost in (part.points or ()) for check in checks for part in check.parts or (check,))


@pytest.mark.parametrize(
    ("errors", "state"),
    [([0.0] * 10, "undecided"), ([0.0] * 9 + [0.05], "undecided"), ([0.0005] * 10, "agrees")],
)
def test_rare_mistakes_are_as_uncertain_as_repeats_and_draws_make_them(errors, state):
    """Ten times 50 draws without a mistake exclude no error of 1 %; nor do 10 repeats of which one has all the mistakes."""
    draws = 25 if sum(errors) == 0 else 10_000
    point = DetectionPoint(length=100, draws=draws)
    rows = Rows(
        measured(point, seed, attention_error=error, linear_error=0.5, weighted_error=0.5)
        for seed, error in enumerate(errors)
    )
    assert parts(Detection(), rows)["detection.attention.log"].settle(0.995).state == state


def test_brute_force_gradients_are_those_of_the_protocol():
    """The measurement that shares no code with the theory trains what the rest of the project trains."""
    point = attention_map.Point(dim=30, positions="early")
    tokens, labels, places = attention_map.draw_sequences(point, 60, np.random.default_rng(0))
    ours = two_step_query([(tokens, labels)], bias_correction=False).query
    np.testing.assert_allclose(attention_map.autograd_query(tokens, labels), ours, atol=1e-12)
    assert np.bincount(places.ravel(), minlength=10)[0] > 60 * 2 / 10


def test_least_squares_errors_fall_as_one_over_the_samples_in_theory():
    """The limit of samples times excess error exists: ten times the samples leave it as it is."""
    task = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
    fit = {"model": "pooled", "loss": "square", "ridge": 0.0, "accuracy": 1e-5}
    limit, some, more = (erm(**task, **fit, samples_per_dim=samples).test_error for samples in (1e7, 1e3, 1e4))
    assert 1e4 * (more - limit) == pytest.approx(1e3 * (some - limit), rel=0.02)


def test_probit_fit_of_separability_is_the_mean_of_the_crossings():
    """Sets that stop being separable at normally distributed sizes: half of them do at the mean."""
    crossings = np.random.default_rng(1).normal(2.4, 0.2, 4000)
    rows = Rows(
        measured(capacity.Point(), seed, {"capacity": 2.4}, capacity=value) for seed, value in enumerate(crossings)
    )
    [part] = [part for code, part in parts(capacity.Capacity(), rows).items() if "crossing" in code]
    half_way = part.sample.values.mean() * 2.4
    assert np.mean(crossings > half_way) == pytest.approx(0.5, abs=0.03)
