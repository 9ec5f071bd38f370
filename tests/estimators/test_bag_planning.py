"""Plans from a pilot: trusted where the pilot agrees with the theory, and honest where it does not."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from whichtoken import BagClassifier
from whichtoken.app.pages.planning import study_lines, write_figure
from whichtoken.datasets import SparseTokens
from whichtoken.estimators import plan_study
from whichtoken.estimators.bags import planning as forecast
from whichtoken.theory.sparse_tokens import exact_error

TASK = {"length": 8, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}


def source(dim):
    return SparseTokens(**TASK, dim=dim, signal=np.ones(dim))


@pytest.fixture(scope="module")
def sparse():
    return plan_study(pilot=source(15).sample(120, np.random.default_rng(0)), target_error=0.05)


@pytest.fixture(scope="module")
def pictures():
    """Threes against eights, the rows of a picture as tokens: not at all the theory's model."""
    X, y = load_digits(return_X_y=True)
    chosen = np.isin(y, (3, 8))
    return plan_study(pilot=(X[chosen].reshape(-1, 8, 8)[:150], y[chosen][:150]), target_error=0.1)


@pytest.mark.slow
def test_the_theory_is_trusted_where_it_holds(sparse):
    assert sparse.fits
    assert sparse.theory.signal_tokens == 1
    assert study_lines(sparse)[0].startswith("The theory of sparse tokens agrees with the cross-validation")
    assert [point.samples for point in sparse.learning_curve] == [240, 600, 1200]
    for point in sparse.learning_curve:
        model = BagClassifier(random_state=0).fit(*source(15).sample(point.samples, np.random.default_rng(1)))
        truth = exact_error(
            model.readouts_[0, 0], model.intercept_[0], source(15).direction, query=model.queries_[0, 0], **TASK
        )
        assert point.low <= truth <= point.high
    assert sparse.samples_needed <= sparse.samples_sure


def test_a_contradiction_comes_first_and_no_limit_is_claimed(pictures):
    assert not pictures.fits
    lines = study_lines(pictures)
    assert lines[0] == "The theory of sparse tokens does not hold for this pilot:"
    assert lines[1].strip() == pictures.contradictions[0]
    said = " ".join([*lines, *pictures.notes])
    assert "no classifier" not in said
    assert "not a limit for these data" in said
    # the theory's own floor lies above what is reached, and does not make the target impossible
    assert pictures.theory.bayes_floor > pictures.pilot.error
    assert pictures.samples_needed is not None
    low, high = pictures.pilot.error_interval
    assert low <= pictures.pilot.error <= high


@pytest.mark.slow
def test_ragged_constant_and_dependent_features_are_named():
    X, y = source(6).sample(120, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    wide = np.concatenate([X, np.full((*X.shape[:2], 1), 7.0), X[:, :, :1] - 2 * X[:, :, 1:2]], axis=2)
    study = plan_study(
        pilot=([bag[: rng.integers(5, 9)] for bag in wide], np.where(y > 0, "yes", "no")),
        features=["a", "b", "c", "d", "e", "f", "flat", "twin"],
    )
    said = " ".join(study.notes)
    assert "bags have 5 to 8 instances, and the theory is for one length: it sees 6 instances drawn from each" in said
    assert "leaves out flat: the same within every negative bag" in said
    assert "linear in the others" in said
    assert study.estimate.dim == 6
    assert study.pilot.classes == ("no", "yes")


def test_too_few_bags_for_the_theory_still_have_a_curve():
    study = plan_study(pilot=source(4).sample(24, np.random.default_rng(0)))
    assert study.theory is None
    assert any("needs at least 20 sequences of each class" in note for note in study.notes)
    assert study_lines(study)[0].startswith("The theory of sparse tokens could not be applied")
    assert study.learning_curve[0].low < study.learning_curve[0].error < study.learning_curve[0].high


def test_intervals_of_power_laws_hold_the_errors_of_power_laws():
    """Sixty learning curves, each seen through the mistakes of one pilot: the share of intervals that hold is the nominal one."""
    rng = np.random.default_rng(0)
    sizes, held = np.array([25.0, 45.0, 80.0]), 0
    for seed in range(60):
        limit, now, exponent = rng.uniform(0, 0.1), rng.uniform(0.1, 0.3), np.exp(rng.normal(np.log(0.6), 0.5))
        errors = limit + (now - limit) * (np.append(sizes, 400) / 80) ** -exponent
        wrong = (rng.uniform(size=(1, 100)) < errors[:3, None]).astype(float)  # the same bags are hard at every size
        measured = forecast.CrossValidated(sizes, wrong)
        curves = forecast.power_curves(measured, np.append(sizes, 400), 0.5, np.random.default_rng(seed))
        weights = forecast.normalized(measured.decline(curves[:, :3]))
        (point,) = forecast.curve_points(curves[:, 3:], weights, [400], np.random.default_rng(seed))
        held += point.low <= errors[3] <= point.high
    assert 50 <= held <= 59


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 9}, "length=9 must be that of the pilot, 8"),
        ({"samples": 2}, "samples=2 must be a whole number of at least 4"),
        ({"target_error": 0.7}, "target_error=0.7 must lie in (0, 0.5)"),
    ],
)
def test_bad_wishes_are_one_sentence(change, message):
    with pytest.raises(ValueError) as caught:
        plan_study(pilot=source(4).sample(30, np.random.default_rng(0)), **change)
    assert message in str(caught.value)


def test_three_classes_are_refused():
    X, _ = source(4).sample(30, np.random.default_rng(0))
    with pytest.raises(ValueError, match="planning is for two classes; this pilot has 3: 0, 1, 2"):
        plan_study(pilot=(X, np.arange(30) % 3))


@pytest.mark.slow
def test_the_figure_shows_the_measured_error(sparse, tmp_path):
    write_figure(sparse, tmp_path / "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text()


def test_the_command_takes_what_fit_bags_takes(whichtoken, tmp_path):
    X, y = source(5).sample(60, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    rows = [
        {
            "molecule": f"m{i}",
            "active": "yes" if label > 0 else "no",
            **{f"x{j}": v for j, v in enumerate(x)},
            "flat": 1.0,
        }
        for i, (bag, label) in enumerate(zip(X, y, strict=True))
        for x in bag[: rng.integers(4, 9)]
    ]
    pd.DataFrame(rows).to_json(tmp_path / "pilot.jsonl.gz", orient="records", lines=True, compression="gzip")
    done = whichtoken(
        "plan", "--pilot", "pilot.jsonl.gz", "--bag", "molecule", "--label", "active", "--json", "plan.json"
    )
    assert done.returncode == 0, done.stderr
    assert "60 bags of 4 to 8 instances with 6 features" in done.stdout
    assert "90 % interval" in done.stdout
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert [point["samples"] for point in plan["learning_curve"]] == [120, 300, 600]
    assert plan["pilot"]["classes"] == ["no", "yes"]


@pytest.mark.slow
def test_texts_gaps_and_another_encoding_are_read_as_fit_bags_reads_them(whichtoken, tmp_path):
    X, y = source(3).sample(40, np.random.default_rng(0))
    frame = pd.DataFrame(X.reshape(-1, 3), columns=["größe", "b", "c"])
    frame["color"] = np.where(np.arange(len(frame)) % 2, "rot", "grün")
    frame.loc[5, "b"] = np.nan
    frame = frame.assign(bag=np.repeat(np.arange(40), 8), label=np.repeat(y, 8).astype(int))
    frame.to_csv(tmp_path / "pilot.csv", index=False, encoding="latin-1")
    done = whichtoken("plan", "--pilot", "pilot.csv", "--encoding", "latin-1", "--rows", "280", "--json", "plan.json")
    assert done.returncode == 0, done.stderr
    assert "Pilot: 35 bags of 8 instances with 5 features" in done.stdout
    notes = json.loads((tmp_path / "plan.json").read_text())["notes"]
    assert "column 'color' holds texts and becomes 2 columns of 0 and 1" in notes
    assert any(note.startswith("column 'b' has 1 gap in 280 rows, which is filled") for note in notes)
    done = whichtoken("plan", "--pilot", "pilot.csv", "--encoding", "latin-1", "--drop-missing")
    assert "1 row with a gap was left out" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_limit_that_nothing_beats_is_claimed():
    weak = SparseTokens(length=8, signal_tokens=1, strength=4.0, prevalence=0.5, dim=10)
    study = plan_study(pilot=weak.sample(80, np.random.default_rng(0)))
    assert study.beats_floor is None
    assert "no classifier can do better than" in study_lines(study)[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "who"), [(6, "pilot"), (4, "forecast")])
def test_no_limit_is_claimed_that_the_pilot_beats(seed, who):
    weak = SparseTokens(length=8, signal_tokens=1, strength=4.0, prevalence=0.5, dim=10)
    study = plan_study(pilot=weak.sample(80, np.random.default_rng(seed)), target_error=0.02)
    assert study.fits
    assert study.beats_floor == who
    said = " ".join([*study_lines(study), *study.notes])
    assert "no classifier" not in said
    assert "best possible classifier" not in said
    assert f"The error of the {who} lies below the" in said
    assert "in one of the two stages" not in said, "nothing is split"


def test_a_handful_of_bags_is_too_few_and_what_is_given_is_not_passed_over():
    X, y = np.random.default_rng(0).standard_normal((8, 5, 3)), np.arange(8) % 2
    X[y == 1] += 5
    study = plan_study(pilot=(X, y), strength=3.0, target_error=0.1)
    assert study.pilot.error == 0
    assert study_lines(study)[0].startswith("This pilot is too small to plan from: one class has only 4 bags")
    assert study.recommendation.startswith("Collect at least 10 bags of each class")
    assert study.pilot.error_interval[1] > 0.3
    assert all(point.high >= study.pilot.error_interval[1] for point in study.learning_curve)
    assert study.samples_sure is None
    assert "the forecast does not follow the theory, so it does not use the given strength of 3" in study.notes
