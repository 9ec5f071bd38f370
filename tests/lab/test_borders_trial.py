"""A trial of the search: planted false variants of our claims, claims that are true, and borders that theory knows.

Each false variant changes one thing of a claim: a constant, an exponent by a tenth, or a condition that is left out. The search
is told nothing but the claim. `pytest tests/lab/test_borders_trial.py -m slow -s` prints what it found and its processor time.
"""

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from whichtoken.claims._checks import Criterion
from whichtoken.claims.group_sparse.learning_rate import EXPONENT, LearningRate
from whichtoken.claims.mirror_descent.direction import MirrorDirection
from whichtoken.claims.optimizers.margins import Margins, missing_exponent, own_share
from whichtoken.claims.sparse_tokens.alignment import Alignment
from whichtoken.claims.sparse_tokens.capacity import Capacity
from whichtoken.claims.trained_embeddings.one_step import OneStep
from whichtoken.claims.trained_embeddings.selection_conditions import SelectionConditions
from whichtoken.claims.trained_embeddings.selection_window import SelectionWindow
from whichtoken.lab import Every, Exact, Experiment, Grid, Mean, Resampled, Share, Worst, log_slope, stress
from whichtoken.lab.instances import Lemma, search_instances

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_workers")]
AtLeast, AtMost, Equals = (partial(Criterion, comparison) for comparison in ("at least", "at most", "equal"))
MINUTES = 2 * 10 * 60  # ten minutes on two cores, in seconds of processor time


@pytest.fixture
def searched(monkeypatch, tmp_path):
    """What a search finds for a claim, and how many seconds of processor time it took."""

    def search(claim, budget, **options):
        for module in ("borders", "worker"):
            monkeypatch.setattr(f"whichtoken.lab.{module}.find", lambda _: claim)
        began = time.process_time()
        found = stress(claim.id, budget, out=tmp_path, **options)
        seconds = time.process_time() - began
        places = [f"{b.field} {b.fails} {b.value:.3g}" for b in found.borders] + [str(c) for c in found.counterexamples]
        print(
            f"\n{claim.id}: {len(found.trials)} trials, {found.rows} rows, {seconds:.0f} s: {'; '.join(places) or '-'}"
        )
        return found, seconds

    return search


def variant(base, check, ranges, **grid):
    """A claim whose only check is the given function of its rows."""
    fields = {
        "id": base.id,
        "presets": {"map": (Grid(**grid),)},
        "ranges": ranges,
        "judge_point": lambda self, rows: iter([check(rows)]),
        "lemmas": (),
    }
    return type(f"Planted{base.__name__}", (base,), fields)()


def exact(rows, name):
    return Exact(rows[0].measured[name])


def two_step_law(factor):
    """log(1 - S) after two updates against the law of the gap, whose constant is 1/(8 pi)."""

    def check(rows):
        point, gap = rows[0].point, rows[0].predicted["gap"].value * factor
        law = -np.logaddexp(0.0, gap - np.log(point.groups - 1))
        return Equals("law", float(law), "the law of two steps", tolerance=1e-6 * abs(law))(exact(rows, "log_leakage"))

    return check


def aligned(factor, tolerance):
    def check(rows):
        theory = rows.predicted("alignment").value * factor
        return Equals("cosine", theory, "cosine", tolerance=tolerance)(rows.values("adjusted_alignment"))

    return check


def separable_at(factor):
    def check(rows):
        law = rows.predicted("capacity").value * factor
        return Equals("capacity", 1.0, "capacity over theory", tolerance=0.08)(rows.values("capacity") / law)

    return check


def at_least_half(name):
    return lambda rows: AtLeast("share", 0.5, "share of runs")(Share([bool(row.measured[name]) for row in rows]))


FALSE: dict[str, Any] = {
    "constant: divergence below 0.002 where it is 0.0046": (
        variant(MirrorDirection, lambda rows: AtMost("limit", 0.002, "divergence")(rows.values("divergence")),
                {"p": (1.5, 3.0), "lr": (0.01, 1.0)}, p=2.0, steps=2000, seeds=12), "300rows",
    ),
    "constant: the law of two steps with 1/(7 pi)": (
        variant(LearningRate, two_step_law(8 / 7), {"rate": (1.0, 16.0), "groups": (9, 128)}, method="map", steps=2, seeds=1),
        "100rows",
    ),
    "constant: cosine 5 % above theory": (
        variant(Alignment, aligned(1.05, 0.02), {"dim": (100, 1000)}, dim=250, samples_per_dim=4.0, seeds=12), "200rows",
    ),
    "constant: capacity 15 % above theory": (
        variant(Capacity, separable_at(1.15), {"strength": (0.5, 4.0)}, dim=50, seeds=16), "200rows",
    ),
    "exponent: error as dim^-0.45": (
        variant(OneStep, lambda rows: Equals("rate", -0.45, "exponent", tolerance=0.02)(log_slope(rows, "dim", "relative_error")),
                {"length": (16, 128)}, dim=[64, 256], sequences=300, seeds=16), "300rows",
    ),
    "exponent: missing margin as steps^-0.9": (
        variant(Margins, lambda rows: Equals("rate", -0.9, "exponent of steps in the missing share, median", tolerance=0.04)(
            Resampled([missing_exponent(row) for row in rows], np.median)),
            {"steps": (2000, 8000)}, method="sign", steps=4000, seeds=16), "200rows",
    ),
    "condition: the query turns to the signal however rare it is": (
        variant(Alignment, lambda rows: AtLeast("sign", 0.5, "share")(Share(rows.values("alignment") > 0)),
                {"strength": (0.5, 20.0), "prevalence": (0.02, 0.9)}, dim=200, samples_per_dim=4.0, seeds=10), "900rows",
    ),
    "condition: exponential at any learning rate": (
        variant(LearningRate, lambda rows: AtMost("phase", -EXPONENT, "phase")(
            Exact(rows[0].measured["log_leakage"] / rows[0].point.groups)),
            {"rate": (0.25, 64.0), "groups": (9, 128), "sigma": (0.2, 2.0)}, method="map", groups=32, rate=8.0,
            seeds=1), "300rows",
    ),
    "condition: every first step selects": (
        variant(SelectionWindow, at_least_half("complete"), {"lr": (10.0, 20_000.0)}, lr=2000.0, seeds=10), "900rows",
    ),
    "border: 95 % of the margin after any number of steps": (
        variant(Margins, lambda rows: AtLeast("own", 0.95, "share")(Mean([own_share(row) for row in rows])),
                {"steps": (64, 8000), "dim": (4, 16)}, method="sign", steps=4000, seeds=10), "500rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FALSE)
def test_a_false_variant_is_refuted(name, searched):
    found, seconds = searched(FALSE[name][0], FALSE[name][1])
    assert found.borders or found.counterexamples
    assert seconds < MINUTES


TRUE: dict[str, Any] = {
    "a divergence is not negative": (
        variant(MirrorDirection, lambda rows: AtLeast("divergence", 0.0, "divergence")(Worst(rows.values("divergence").min())),
                {"p": (1.2, 4.0), "lr": (0.01, 1.0), "dim": (4, 16)}, steps=200, seeds=4), "200rows",
    ),
    "the limit is certified": (
        variant(MirrorDirection, lambda rows: AtMost("gap", 1e-6, "gap")(Worst(rows.values("gap").max())),
                {"p": (1.2, 4.0), "length": (2, 12)}, steps=200, seeds=4), "200rows",
    ),
    "the law of two steps": (
        variant(LearningRate, two_step_law(1.0), {"rate": (0.25, 64.0), "groups": (9, 256), "sigma": (0.1, 4.0)},
                method="map", steps=2, seeds=1), "200rows",
    ),
    "attention on the others is at most 1": (
        variant(LearningRate, lambda rows: AtMost("log", 0.0, "log(1 - S)")(exact(rows, "log_leakage")),
                {"rate": (0.25, 64.0), "steps": (2, 500)}, method="map", seeds=1), "200rows",
    ),
    "nothing is lost below the cost of a lost token": (
        variant(SelectionWindow, lambda rows: AtLeast("loss", 1.0, "share")(
            Every([r.measured["complete"] for r in rows if r.measured["first_loss"] < r.measured["loss_limit"]] or [True])),
            {"lr": (100.0, 20_000.0), "pairs": (8, 48)}, lr=8000.0, step="flat", seeds=6), "300rows",
    ),
    "no more than the largest margin": (
        variant(Margins, lambda rows: AtMost("own", 1.0, "share", theory_error=1e-6)(Worst(max(map(own_share, rows)))),
                {"steps": (64, 4000), "dim": (4, 16), "length": (2, 12)}, method="sign", steps=500, seeds=4), "200rows",
    ),
    "a cosine is at most 1": (
        variant(Alignment, lambda rows: AtMost("cosine", 1.0, "cosine", theory_error=1e-9)(Worst(rows.values("alignment").max())),
                {"strength": (0.5, 20.0), "prevalence": (0.05, 0.9), "dim": (20, 400)}, dim=100, seeds=4), "200rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_a_true_claim_is_not_refuted(name, searched):
    found, seconds = searched(TRUE[name][0], TRUE[name][1])
    assert found.held
    assert found.borders + found.counterexamples == []
    assert seconds < MINUTES


def lipschitz(constant):
    """|softmax(a) - softmax(b)|_1 <= constant |a - b|_inf, true from 1 on."""

    def margin(at, numbers):
        def softmax(scores):
            weights = [numbers.exp(score) for score in scores]
            return [weight / sum(weights) for weight in weights]

        moved = sum(abs(x - y) for x, y in zip(softmax(at["a"]), softmax(at["b"]), strict=True))
        return numbers.number(constant) * max(abs(x - y) for x, y in zip(at["a"], at["b"], strict=True)) - moved

    return Lemma(
        "lipschitz", "softmax", lambda rng: {"a": rng.normal(size=3), "b": rng.normal(size=3)}, margin, "decimal"
    )


def weak_duality(factor):
    """min_k <a_k, w>^2 <= factor |sum_k l_k a_k|^2 |w|^2 / (sum_k l_k)^2 where <a_k, w>, l_k > 0, true from 1 on."""

    def margin(at, numbers):
        products = [a @ at["w"] for a in at["a"]]
        if min(products) <= 0 or min(at["l"]) <= 0:
            return float("inf")
        mean = sum(weight * a for weight, a in zip(at["l"], at["a"], strict=True)) / sum(at["l"])
        return numbers.number(factor) * (mean @ mean) * (at["w"] @ at["w"]) - min(products) ** 2

    def draw(rng):
        return {"a": rng.normal(size=(2, 3)) + 1, "w": rng.normal(size=3) + 1, "l": rng.random(2)}

    return Lemma("duality", "weak duality", draw, margin)


def logistic(constant):
    """log(1 + e^-x) <= constant e^-x, true from 1 on."""

    def margin(at, numbers):
        small = numbers.exp(-at["x"][0])
        return numbers.number(constant) * small - numbers.log(1 + small)

    return Lemma("logistic", "logistic loss", lambda rng: {"x": 3 * rng.normal(size=1)}, margin, "decimal")


@pytest.mark.parametrize(("lemma", "wrong"), [(lipschitz, "0.95"), (weak_duality, "0.95"), (logistic, "0.95")])
def test_a_wrong_constant_of_an_inequality_is_refuted_with_a_proof_and_the_right_one_is_not(lemma, wrong):
    certificate, tried = search_instances(lemma(wrong), seconds=60)
    print(f"\n{lemma.__name__} with {wrong}: {certificate and certificate.sentence}, instance {tried}")
    assert certificate is not None
    assert search_instances(lemma("1"), seconds=5)[0] is None


def test_a_remark_inside_a_proof_is_refuted_by_three_tokens_in_whole_numbers():
    """At the solution not every constraint is tight (proof of Lemma 3)."""
    from whichtoken.margin import prompt_svm

    certificate, _ = search_instances(SelectionConditions.lemmas[0])
    tokens = np.array([[int(number) for number in token] for token in certificate.instance["embeddings"]], dtype=float)
    limit = prompt_svm(tokens[None], [0])
    assert ((tokens[0] - tokens[1:]) @ limit.direction / limit.margin).max() > 1.01


@dataclass(frozen=True)
class StepPoint:
    lr: float = 0.1
    p: float = 3.0
    target: float = 0.5
    curvature: float = 2.0


class StableSteps(Experiment[StepPoint]):
    """Mirror descent on a quadratic, where steps up to 2 (p - 1) |w|^(p-2) / curvature are stable."""

    id = "toy/stable-steps"
    presets = {"map": (Grid(seeds=1),)}
    ranges = {"lr": (0.001, 50.0), "p": (1.5, 6.0), "curvature": (0.1, 100.0)}

    def run(self, point, rng):
        import torch

        from whichtoken.optim import MirrorDescent

        weight = torch.nn.Parameter(torch.tensor([point.target * 1.001], dtype=torch.float64))
        optimizer = MirrorDescent([weight], lr=point.lr, p=point.p)
        for _ in range(400):
            optimizer.zero_grad()
            (0.5 * point.curvature * (weight - point.target) ** 2).sum().backward()
            optimizer.step()
        return {"distance": abs(float(weight.detach()) - point.target)}

    def judge(self, rows):
        yield AtMost("stable", 0.001 * 0.5, "distance after 400 steps, at most that of the start")(
            exact(rows, "distance")
        )

    def draw(self, rows, figure):
        figure.subplots()


def test_the_stable_step_sizes_of_mirror_descent_are_found(searched):
    found, _ = searched(StableSteps(), "300rows")
    known = {"lr": 2 * 2.0 * 0.5 / 2.0, "curvature": 2 * 2.0 * 0.5 / 0.1}
    places = {border.field: border.value for border in found.borders}
    for name, place in known.items():
        assert places[name] == pytest.approx(place, rel=0.1)


@pytest.mark.parametrize("groups", [16, 32, 64])
def test_the_phase_of_the_group_map_is_found(groups, searched):
    """Known: a scan of the exact map at 400 rates, of which the search is not told."""
    claim = LearningRate()
    found, _ = searched(claim, "200rows", fields=["rate"], overrides={"groups": groups})

    def phase(rate):
        point = claim.point_type(method="map", groups=groups, rate=float(rate))
        return claim.run(point, np.random.default_rng(0))["log_leakage"] / groups < -EXPONENT

    rates = np.geomspace(8.0, 0.25, 400)
    known = next(rate for rate in rates if not phase(rate))
    nearest = max((border.value for border in found.borders if border.fails == "below"), default=0.0)
    assert nearest == pytest.approx(known, rel=0.1)


def test_the_window_of_first_steps_is_found(searched):
    """Known: the rows on record, 24 repeats at 11 steps; the share crosses 0.6 between 150 and 200 and between 300 and 500."""
    found, _ = searched(SelectionWindow(), "900rows", fields=["lr"])
    ends = {border.fails: border.value for border in found.borders}
    for side, known in _window_on_record().items():
        assert ends[side] == pytest.approx(known, rel=0.1)


def _window_on_record():
    """Where the share of complete runs on record crosses 0.6, by lines between its first steps in logarithms."""
    from whichtoken.lab.discovery import find
    from whichtoken.lab.plan import make_plan
    from whichtoken.lab.record import recorded_ledger

    claim = find(SelectionWindow.id)
    with recorded_ledger(claim.id) as ledger:
        rows = [row for row in ledger.rows(make_plan(claim, "full")).values() if row.point.step == "actual"]
    rates = sorted({row.point.lr for row in rows})
    shares = [float(np.mean([row.measured["complete"] for row in rows if row.point.lr == lr])) for lr in rates]
    found = {}
    for lr, after, share, next_share in zip(rates, rates[1:], shares, shares[1:], strict=False):
        if (share - 0.6) * (next_share - 0.6) < 0:
            place = (0.6 - share) / (next_share - share)
            found["above" if share > 0.6 else "below"] = float(np.exp(np.log(lr) + place * np.log(after / lr)))
    return found
