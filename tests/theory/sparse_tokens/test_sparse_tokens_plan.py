"""The planner and what it estimates from a pilot sample."""

from __future__ import annotations

import math

import numpy as np
import pytest

from whichtoken.datasets.sparse_tokens import SparseTokens
from whichtoken.theory import sparse_tokens
from whichtoken.theory.sparse_tokens import Task, planner, token_noise
from whichtoken.theory.sparse_tokens.design import Design, best_design, best_shared_design, design_error
from whichtoken.theory.sparse_tokens.planner import bag_error, recommend, shared_target

ONE = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
WEAK = {"length": 10, "signal_tokens": 3, "strength": 2.0, "prevalence": 0.2}


def pilot(task, dim, samples, seed=0, mix=None):
    tokens, labels = SparseTokens(**task, dim=dim).sample(samples, np.random.default_rng(seed))
    return (tokens if mix is None else tokens @ mix + 1.0), labels


@pytest.fixture(scope="module")
def with_target():
    return sparse_tokens.plan(**ONE, dim=300, samples=1200, target_error=0.05)


def test_forecasts_are_those_of_the_theory(with_target):
    design = with_target.design
    direct = sparse_tokens.erm(
        **ONE,
        alignment=design.alignment,
        inverse_temperature=design.inverse_temperature,
        samples_per_dim=4 * (1 - design.query_share),
        ridge=1e-2,
    )
    assert with_target.attention.error == pytest.approx(direct.test_error, rel=1e-2)
    pooled = sparse_tokens.erm(model="pooled", **ONE, samples_per_dim=4, ridge=1e-2)
    assert with_target.pooled.error == pytest.approx(pooled.test_error, rel=1e-6)
    assert with_target.pooled.capacity == pytest.approx(300 * 2.950, rel=1e-3)


def test_separable_samples_are_those_of_the_whole_study(with_target):
    design = with_target.design
    query = {"alignment": design.alignment, "inverse_temperature": design.inverse_temperature}
    readout = 300 * sparse_tokens.capacity(**ONE, **query)
    assert with_target.attention.capacity * (1 - design.query_share) == pytest.approx(readout, rel=5e-2)


def test_all_samples_for_both_need_fewer_than_a_split(with_target):
    shared = with_target.shared_design
    direct = sparse_tokens.reused_erm(
        **ONE, samples_per_dim=4.0, inverse_temperature=shared.inverse_temperature, ridge=shared.ridge
    )
    assert with_target.reuse.error == pytest.approx(direct.test_error, rel=1e-2)
    assert with_target.reuse.error < with_target.attention.error
    assert 0.4 < with_target.reuse.samples_needed / with_target.attention.samples_needed < 0.85
    assert with_target.reuse.samples_needed <= with_target.bag_classifier.samples_needed
    needed = with_target.reuse.samples_needed / 300
    again = best_shared_design(Task(**ONE), needed).error(Task(**ONE), needed, 1 << 13)
    assert again == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(
    ("errors", "best"),
    [
        ((0.2, 0.1, 0.101), "BagClassifier"),
        ((0.2, 0.1, 0.11), "reuse"),
        ((0.1, 0.2, 0.3), "split"),
        ((0.1, math.nan, math.nan), "split"),
    ],
)
def test_the_least_error_is_recommended(errors, best):
    assert recommend(*errors) == best


def test_bag_targets_and_errors_are_inverse():
    task = Task(5, 2, 3.0, 0.3)
    assert bag_error(task, shared_target(task, 0.1)) == pytest.approx(0.1)
    assert bag_error(task, 0.1) > 0.1


def test_limits_are_in_order(with_target):
    floor, limit = with_target.bayes_floor, with_target.attention.unlimited_error
    assert floor < limit < with_target.attention.error < with_target.linear_oracle < with_target.pooled.error
    assert limit == pytest.approx(with_target.attention_oracle, rel=0.05)


def test_needed_samples_give_the_target_error(with_target):
    needed = with_target.attention.samples_needed
    again = sparse_tokens.plan(**ONE, dim=300, samples=needed)
    assert again.attention.error == pytest.approx(0.05, rel=0.03)
    assert with_target.pooled.samples_needed is None
    assert any("mean pooling does not reach an error of 0.05" in warning for warning in with_target.warnings)


@pytest.mark.slow
def test_rare_errors_are_planned_with_a_design_for_the_law():
    """The best design for 1e-4 on a small set of points fits these, not the law, and misses the target on more."""
    task = sparse_tokens.Task(**{**ONE, "strength": 10.0})
    needed = planner._samples_needed(task, 500, "attention", 1e-4)
    design = best_design(task, needed / 500)
    rule = (design.query_share, design.inverse_temperature, design.bias_correction)
    assert design_error(task, needed / 500, *rule, points=1 << 14) < 1.1e-4
    assert needed <= 128


def test_few_samples_are_called_few(with_target):
    assert not any("rarer class" in warning for warning in with_target.warnings)
    task, design = sparse_tokens.Task(**{**ONE, "prevalence": 0.1}), Design(0.8, 1.0, False, alignment=0.9)
    for samples, needed, few in ((2500, None, False), (2400, None, True), (2500, 2400, True)):
        forecasts = dict.fromkeys(("attention", "pooled", "vectorized"), planner.Forecast(0.05, 0.05, needed, 100.0))
        warnings = " ".join(planner._warnings(task, 300, samples, 0.06 if needed else None, design, forecasts))
        assert ("of 2400 sequences only about 48 are of the rarer class" in warnings) == few


@pytest.mark.slow
def test_needed_samples_are_made_for_their_own_design():
    """With the best design for 512 samples it takes 375; 225 are enough with their own."""
    task = sparse_tokens.Task(50, 1, 8.0, 0.5)
    needed = planner._samples_needed(task, 500, "attention", 0.01)
    assert needed < 235
    design = best_design(task, needed / 500)
    rule = (design.query_share, design.inverse_temperature, design.bias_correction)
    assert design_error(task, needed / 500, *rule, points=1 << 14) == pytest.approx(0.01, rel=0.1)


@pytest.mark.slow
def test_strong_signals_have_no_error_and_a_plan():
    result = sparse_tokens.plan(**{**ONE, "strength": 50.0}, dim=500, samples=2000)
    assert result.attention.error == 0.0
    assert result.bayes_floor < 1e-100


def test_noise_of_long_sequences_is_drawn_once_for_all_designs():
    token_noise._short_form.cache_clear()
    task = sparse_tokens.Task(8000, 5, 4.0, 0.5)
    for tau in (0.5, 1.0, 2.0):
        design_error(task, 4.0, 0.5, tau, False)
    assert token_noise._short_form.cache_info().misses == 1


def test_no_correction_is_reported_that_the_design_does_not_make():
    forecasts = dict.fromkeys(("attention", "pooled", "vectorized"), planner.Forecast(0.1, 0.1, None, 100.0))
    for corrected in (False, True):
        design = Design(0.5, 1.0, corrected, alignment=-0.3)
        warnings = " ".join(planner._warnings(sparse_tokens.Task(**WEAK), 300, 2000, None, design, forecasts))
        assert "turns away from the signal (alignment -0.30)" in warnings
        assert ("the plan sets the bias" in warnings) == corrected
        assert ("even with bias correction" in warnings) == corrected


def test_design_is_a_minimum():
    task = sparse_tokens.Task(**ONE)
    design = best_design(task, 4.0)
    rule = (design.query_share, design.inverse_temperature, design.bias_correction)
    best = design_error(task, 4.0, *rule)
    for share, tau in ((0.1, 1.0), (0.9, 1.0), (0.5, 0.2), (0.5, 6.0), (0.5, 1.0)):
        assert design_error(task, 4.0, share, tau, design.bias_correction) >= best * 0.999


def test_anti_alignment_is_corrected_and_named():
    result = sparse_tokens.plan(**WEAK, dim=300, samples=1200)
    assert result.design.bias_correction
    assert result.design.alignment > 0.3
    assert any("turn away from the signal" in warning for warning in result.warnings)


@pytest.mark.slow
def test_attention_that_loses_is_named():
    """A signal in most tokens is a matter of means: the query costs samples and helps little."""
    result = sparse_tokens.plan(length=4, signal_tokens=3, strength=1.0, prevalence=0.5, dim=200, samples=200)
    assert result.attention.error >= min(result.pooled.error, result.vectorized.error)
    assert any("attention loses to a linear model" in warning for warning in result.warnings)


@pytest.mark.parametrize(("signal_tokens", "strength", "prevalence"), [(1, 5.0, 0.5), (3, 4.0, 0.3)])
def test_pilot_estimate_covers_the_truth_through_any_linear_map(signal_tokens, strength, prevalence):
    """Correlated, scaled and shifted coordinates: whitening by the negatives undoes it, up to the signal's length."""
    dim = 40
    task = {"length": 10, "signal_tokens": signal_tokens, "strength": strength, "prevalence": prevalence}
    mix = np.linalg.qr(np.random.default_rng(9).standard_normal((dim, dim)))[0] * np.linspace(0.5, 3, dim)
    plain = sparse_tokens.estimate_task(*pilot(task, dim, 300))
    mapped = sparse_tokens.estimate_task(*pilot(task, dim, 300, mix=mix))
    for estimate in (plain, mapped):
        assert estimate.signal_tokens == signal_tokens
        assert estimate.strength_interval[0] <= strength <= estimate.strength_interval[1]
        assert estimate.warnings == estimate.misfits == ()
    assert mapped.strength == pytest.approx(plain.strength, rel=1e-6)


def test_pilot_knows_how_far_its_strength_may_be_off():
    """A hundred pilots with much signal, whose common whitening is what is most uncertain: left out, it makes the spread 2.8."""
    task = {"length": 5, "signal_tokens": 2, "strength": 5.0, "prevalence": 0.5}
    off = []
    for seed in range(100):
        estimate = sparse_tokens.estimate_task(*pilot(task, 20, 100, seed), signal_tokens=2)
        (found,) = estimate.candidates
        off.append((found.log_strength - math.log(5)) / found.deviation)
    assert 0.8 < np.std(off) < 1.5, "of Student's t with 9 degrees of freedom: 1.13"


def test_pilot_moments_are_unbiased():
    """Forty small pilots at a dimension where the plain difference of means is three times too long."""
    task = {"length": 8, "signal_tokens": 2, "strength": 3.0, "prevalence": 0.5}
    found = [sparse_tokens.estimate_task(*pilot(task, 60, 120, seed)) for seed in range(40)]
    shift = np.array([estimate.mean_shift**2 for estimate in found])
    second = np.array([estimate.second_moment for estimate in found])
    assert shift.mean() == pytest.approx((3.0 * 2 / 8) ** 2, abs=3 * shift.std() / math.sqrt(40))
    assert second.mean() == pytest.approx(9.0 * 2 / 8, abs=4 * second.std() / math.sqrt(40))


def test_what_is_known_of_the_task_decides_what_is_estimated():
    """A known number of signal tokens leaves the strength that goes with it; a known strength, the number."""
    tokens, labels = pilot({"length": 12, "signal_tokens": 5, "strength": 2.5, "prevalence": 0.5}, 40, 80)
    free = sparse_tokens.estimate_task(tokens, labels)
    assert len(free.candidates) > 1
    for candidate in free.candidates:
        fixed = sparse_tokens.estimate_task(tokens, labels, signal_tokens=candidate.signal_tokens)
        assert fixed.signal_tokens_interval == (candidate.signal_tokens, candidate.signal_tokens)
        assert fixed.strength == pytest.approx(math.exp(candidate.log_strength))
    given = sparse_tokens.estimate_task(tokens, labels, strength=2.5)
    assert given.strength_interval == pytest.approx((2.5, 2.5))
    low, high = given.signal_tokens_interval
    assert free.signal_tokens_interval[0] <= low <= 5 <= high <= free.signal_tokens_interval[1]


@pytest.mark.parametrize("values", [(-1, 1), (0, 1), (1, 2)])
def test_larger_label_is_positive(values):
    tokens, labels = pilot(ONE, 20, 120)
    named = np.where(labels > 0, values[1], values[0])
    assert sparse_tokens.estimate_task(tokens, named) == sparse_tokens.estimate_task(tokens, labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X, y + (np.arange(120) == 3)), "pilot labels must take two values; got 3"),
        (lambda X, y: (X * [1, 0, 1, 1], y), "pilot features must vary within sequences; constant, counted from 0: 1"),
        (lambda X, y: (X @ np.diag([1, 1, 1, 0]) + X[:, :, :1] * [0, 0, 0, 3], y), "must be linearly independent"),
    ],
)
def test_pilots_that_cannot_be_whitened_or_labeled_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        sparse_tokens.estimate_task(*change(*pilot(ONE, 4, 120)))


def test_noise_far_from_gaussian_is_named():
    rng = np.random.default_rng(0)
    tokens, labels = pilot({**ONE, "strength": 15.0}, 30, 300)
    heavy = tokens + 2 * rng.standard_t(3, size=tokens.shape)
    assert any("not Gaussian" in sentence for sentence in sparse_tokens.estimate_task(heavy, labels).misfits)


def test_too_few_negatives_for_whitening_are_named():
    estimate = sparse_tokens.estimate_task(*pilot({**ONE, "strength": 7.0}, 200, 160))
    assert any("scaled but not decorrelated" in warning for warning in estimate.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": None}, "the size of the study is open: give samples"),
        ({"signal_tokens": 10}, "signal_tokens=10 must be smaller than length=10"),
        ({"dim": 1}, "dim=1 must be a whole number of at least 2"),
        ({"length": math.inf}, "length=inf must be a whole number of at least 2"),
        ({"length": math.nan}, "length=nan must be a whole number of at least 2"),
        ({"strength": "7"}, "strength='7' must lie in [0, inf)"),
        ({"samples": "7"}, "samples='7' must be a whole number of at least 4"),
        ({"samples": 0}, "samples=0 must be a whole number of at least 4"),
        (
            {"target_error": 0.001},
            "target_error=0.001 must be above 0.01782, the error of the best possible classifier",
        ),
        ({"target_error": 0.0}, "target_error=0.0 must lie in (0, 0.5)"),
        (
            {"prevalence": 0.1, "target_error": 0.2},
            "target_error=0.2 must be below 0.1, the error of a constant answer",
        ),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    with pytest.raises(ValueError) as caught:
        sparse_tokens.plan(**{**ONE, "dim": 300, "samples": 600, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((np.zeros((50, 10, 3)), np.ones(50)), "pilot needs at least 20 sequences of each class; one class has 0"),
        ((np.full((50, 10, 3), math.nan), np.ones(50)), "pilot must be finite"),
        ((np.zeros((50, 10)), np.ones(50)), "pilot tokens (50, 10) and labels (50,) must have shapes"),
    ],
)
def test_a_bad_pilot_is_one_sentence(sample, message):
    with pytest.raises(ValueError) as caught:
        sparse_tokens.estimate_task(*sample)
    assert message in str(caught.value)


def test_tokens_that_depend_on_each_other_are_named():
    tokens, labels = pilot(ONE, 20, 200)
    shared = np.random.default_rng(1).standard_normal((len(tokens), 1, 20))
    assert any("depend on each other" in said for said in sparse_tokens.estimate_task(tokens + shared, labels).misfits)


def test_a_signal_of_several_directions_is_named():
    tokens, labels = pilot(ONE, 20, 300)
    rng = np.random.default_rng(1)
    for direction in (5, 9):
        tokens[labels > 0, :, direction] += 3 * rng.choice([-1.0, 1.0], (int((labels > 0).sum()), tokens.shape[1]))
    assert any("directions, not along the one" in said for said in sparse_tokens.estimate_task(tokens, labels).misfits)


def test_an_error_moved_to_a_limit_is_named():
    """Hardly any signal: the number computed is a little above a constant answer's, and is shown as that."""
    task = sparse_tokens.Task(**ONE)
    floor = 0.02
    assert planner._clip_to_limits(0.0195, task, floor) == (floor, "that of the best classifier of all")
    assert planner._clip_to_limits(0.504, task, floor) == (0.5, "that of a constant answer")
    assert planner._clip_to_limits(0.1, task, floor) == (0.1, None)
    forecasts = dict.fromkeys(("attention", "pooled", "vectorized"), planner.Forecast(0.1, 0.1, None, 100.0))
    forecasts["pooled"] = planner.Forecast(0.5, 0.5, None, 100.0, moved="that of a constant answer")
    warnings = list(planner._warnings(task, 300, 2000, None, Design(0.5, 1.0, False, alignment=0.5), forecasts))
    assert any("computed for mean pooling lies beyond that of a constant answer" in warning for warning in warnings)


def test_pilot_without_signal_is_refused():
    with pytest.raises(ValueError, match="pilot shows no reliable difference"):
        sparse_tokens.estimate_task(*pilot({**ONE, "strength": 0.0}, 40, 100))
