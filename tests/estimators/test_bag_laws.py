"""What no explanation of a bag may depend on: origin and units of the features, order and number of copies of instances."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations

import numpy as np
import pytest

from whichtoken import BagClassifier

MAPS = ["linear", "fourier", "network"]
CASES = [("linear", 1, 2), ("linear", 2, 2), ("linear", 1, 3), ("fourier", 1, 2), ("network", 1, 2), ("network", 2, 2)]


def rings(n, seed, classes=2, height=1.0):
    """Bags in which the first instance of a positive one lies on a ring; at height 0, in no one direction from the others."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    X = [rng.standard_normal((rng.integers(3, 7), 3)) for _ in range(n)]
    for bag, label in zip(X, y, strict=True):
        angle = rng.uniform(0, 2 * np.pi)
        bag[0] += 4 * label * np.array([np.cos(angle), np.sin(angle), height])
    return X, y


def fitted(kind, queries, X, y):
    options = {"n_queries": queries, "instance_map": kind, "C": 1.0, "random_state": 0}
    if kind != "network":
        options |= {"inverse_temperature": 2.0, "training": "two-step"}
    return BagClassifier(**options).fit(X, y)


def explained(model, X):
    """Every number of every explanation, in the order of the instances."""
    found = []
    for item, weights, scores, added in zip(
        model.explain(X), model.attention(X), model.instance_scores(X), model.contributions(X), strict=True
    ):
        reasons = sorted(item.reasons, key=lambda reason: reason.instance)
        numbers = np.array([(r.attention, r.over_uniform, r.contribution) for r in reasons])
        columns = [numbers, *(part.reshape(len(reasons), -1) for part in (weights, scores, added))]
        found.append((item, np.hstack(columns)))
    return found


def same(first, second, orders=None, rtol=1e-5):
    for i, ((item, numbers), (other, others)) in enumerate(zip(first, second, strict=True)):
        order = np.arange(len(numbers)) if orders is None else orders[i]
        np.testing.assert_allclose(others, numbers[order], rtol=rtol, atol=rtol)
        assert other.decision == pytest.approx(item.decision, rel=rtol, abs=rtol)
        places = {int(old) + 1: new + 1 for new, old in enumerate(order)}
        wanted = None if item.counterfactual is None else {places[k] for k in item.counterfactual}
        assert (None if other.counterfactual is None else set(other.counterfactual)) == wanted
        assert other.robust_to == item.robust_to


@pytest.mark.parametrize(("kind", "queries", "classes"), CASES)
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 100.0), (np.array([1e-3, 1.0, 1e4]), 0.0)])
def test_neither_origin_nor_units_of_the_features_matter(kind, queries, classes, scale, shift):
    X, y = rings(60, 0, classes)
    moved = [bag * scale + shift for bag in X]
    one, other = explained(fitted(kind, queries, X, y), X[:20]), explained(fitted(kind, queries, moved, y), moved[:20])
    same(one, other, rtol=2e-2 if kind == "network" else 1e-5)  # networks are trained in single precision


@pytest.mark.parametrize(("kind", "queries", "classes"), CASES)
def test_order_and_copies_of_instances(kind, queries, classes):
    X, y = rings(60, 0, classes)
    model = fitted(kind, queries, X, y)
    rng = np.random.default_rng(1)
    orders = [rng.permutation(len(bag)) for bag in X[:20]]
    same(explained(model, X[:20]), explained(model, [bag[o] for bag, o in zip(X, orders, strict=False)]), orders)
    # every instance twice: the same decision, half the attention and half the contribution for each copy
    for (item, numbers), (twice, others) in zip(
        explained(model, X[:20]), explained(model, [np.vstack([bag, bag]) for bag in X[:20]]), strict=True
    ):
        assert twice.decision == pytest.approx(item.decision, rel=1e-9, abs=1e-9)
        weights = model.attention(X[:1])[0].reshape(len(X[0]), -1).shape[1]
        half = numbers / 2
        for stays in (slice(1, 2), slice(3 + weights, 3 + 2 * weights)):  # attention over uniform
            half[:, stays] = numbers[:, stays]
        np.testing.assert_allclose(others, np.vstack([half, half]), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("kind", "queries", "classes"), CASES)
def test_contributions_sum_to_the_decision(kind, queries, classes):
    X, y = rings(60, 0, classes)
    model = fitted(kind, queries, X, y)
    sums = np.array([part.sum(axis=0) for part in model.contributions(X)])
    np.testing.assert_allclose(sums, model.decision_function(X), rtol=1e-8, atol=1e-8)


def test_some_instance_speaks_for_the_label():
    """Far from the origin, products with the readout alone were all of one sign."""
    X, y = rings(60, 0)
    moved = [bag - 1000 for bag in X]
    model = fitted("linear", 1, moved, y)
    for item in model.explain(moved):
        assert max(reason.contribution for reason in item.reasons) > 0


@pytest.mark.parametrize("kind", MAPS)
def test_counterfactuals_are_exact_with_every_map(kind):
    """Every deletion of every size, decided by the model itself."""
    X, y = rings(60, 0)
    model = fitted(kind, 1, X, y)
    flipped = 0
    for bag, found in zip(X, model.counterfactuals(X), strict=True):
        kept = [
            [i for i in range(len(bag)) if i not in gone]
            for size in range(1, len(bag))
            for gone in combinations(range(len(bag)), size)
        ]
        changed = model.predict([bag[rows] for rows in kept]) != model.predict([bag])
        sizes = [len(bag) - len(rows) for rows, other in zip(kept, changed, strict=True) if other]
        assert len(found) == min(sizes, default=0)
        if found:
            flipped += 1
            assert model.predict([np.delete(bag, found, axis=0)]) != model.predict([bag])
    assert flipped > 15


def test_maps_find_what_a_linear_score_cannot():
    train, test = rings(150, 0, height=0.0), rings(300, 1, height=0.0)
    scores = {kind: BagClassifier(instance_map=kind, random_state=0).fit(*train).score(*test) for kind in MAPS}
    assert scores["linear"] < 0.65
    assert min(scores["fourier"], scores["network"]) > 0.85, scores


@pytest.mark.parametrize("kind", ["fourier", "network"])
def test_models_with_a_map_are_stored(kind, tmp_path):
    X, y = rings(60, 0, classes=3)
    model = BagClassifier(instance_map=kind, n_queries=2, refine_steps=2, cv=2, random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    again = BagClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    ours, theirs = (repr([asdict(choice) for choice in one.choice_.scores]) for one in (model, again))
    assert ours == theirs  # nan, where nothing was validated, is not itself
    assert again.get_params() == model.get_params()


def test_the_comparison_names_a_better_map():
    found = BagClassifier(random_state=0).compare_maps(*rings(120, 0, height=0.0))
    assert found.better in ("fourier", "network")
    assert f"instance_map='{found.better}' does better: error {found.errors[found.better]:.3f} instead of" in str(found)
    rng = np.random.default_rng(0)
    flat = rng.standard_normal((90, 4, 3))
    flat[::2] += 0.6
    two_step = BagClassifier(random_state=0, training="two-step", inverse_temperature=1.0)
    kept = two_step.compare_maps(flat, np.arange(90) % 2)
    assert kept.better is None


def test_large_bags_are_compared_in_part_with_every_class(monkeypatch):
    X, _ = rings(90, 0)
    monkeypatch.setattr("whichtoken.estimators.bags.validation.COMPARED_FLOATS", 300)
    rare = np.where(np.arange(90) < 4, 1, 0)
    assert BagClassifier(random_state=0, refine_steps=0).compare_maps(X, rare).bags < 40


def test_no_map_is_advised_that_makes_as_many_mistakes():
    X, y = np.random.default_rng(0).standard_normal((60, 4, 2)), np.arange(60) % 2
    X[y == 1] += 3
    found = BagClassifier(random_state=0, C=1e-3).compare_maps(X, y)
    assert found.errors["linear"] == min(found.errors.values()) == 0
    assert found.better is None
    assert "no other map" in str(found)
