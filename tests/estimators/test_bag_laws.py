"""What no explanation of a bag may depend on: origin and units of the features, order and number of copies of instances."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations

import numpy as np
import pytest

from whichtoken import BagClassifier
from whichtoken.attention import RaggedArray
from whichtoken.estimators.bags import training
from whichtoken.estimators.bags.data import InstanceMap, LabeledBags, as_bags, no_scaling

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
    if kind == "network":
        options |= {"cv": []}  # each feature has a scale of its own; one for all would make units matter
    else:
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
    train, test = rings(200, 0, height=0.0), rings(300, 1, height=0.0)
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


def test_the_default_takes_another_map_where_it_is_clearly_better_and_says_so():
    X, y = rings(150, 0, height=0.0)
    model = BagClassifier(random_state=0).fit(X, y)
    chosen = model.choice_.instance_map
    gain, error = model.choice_.gains[chosen]
    assert chosen in ("fourier", "network")
    assert gain > error
    assert gain == pytest.approx(model.choice_.log_losses["linear"] - model.choice_.log_losses[chosen])
    assert f"the map '{chosen}' of the instances lowers the validated loss clearly" in model.choice_.reason


def test_the_default_keeps_the_linear_map_where_no_other_is_clearly_better():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 4, 3)), np.arange(60) % 2
    X[y == 1, 0] += [2.0, 0.0, 0.0]
    choice = BagClassifier(random_state=0).fit(X, y).choice_
    assert choice.instance_map == "linear"
    assert set(choice.gains) == {"fourier", "network"}
    assert "no map lowers the validated loss clearly" in str(choice)


def test_slopes_of_networks_are_those_of_their_losses():
    """Against central differences of the losses of each network by itself, computed by the map that predicts."""
    rng, dim = np.random.default_rng(0), 3
    drawn = as_bags([rng.standard_normal((k, dim)) for k in (1, 3, 4)])
    bags = RaggedArray(drawn.starts, drawn.vectors.astype(np.float32))
    signs, shares = np.array([1.0, -1.0, 1.0]), np.array([0.2, 0.5, 0.3])
    for gate, queries in ((False, 1), (True, 2)):
        net = training._Networks(dim, training.NetworkRecipe("feature", queries, 0.0, gate), rng)
        net.packed += 0.05 * rng.standard_normal(net.packed.size).astype(np.float32)

        def loss(packed, net=net, gate=gate, queries=queries):
            *layers, both, bias = training._views(packed, net.shapes)
            total = 0.0
            for k in range(net.recipe.networks):
                own = tuple((w[k : k + 1], o[k : k + 1, 0]) for w, o in zip(layers[::2], layers[1::2], strict=True))
                pooling = training.Pooling.shared(both[k, :queries], both[k, queries:], float(bias[k, 0]))
                score = training.Score(InstanceMap("network", no_scaling(dim), own, gate), pooling)
                total += shares @ np.logaddexp(0, -signs * score(drawn))
            return total

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "DROPOUT", 0.0)
            slope = net.gradient(bags, signs, shares, rng)
        center = net.packed.astype(np.float64)
        for _ in range(3):
            step = 1e-6 * rng.standard_normal(center.size)
            wanted = (loss(center + step) - loss(center - step)) / 2
            assert slope @ step == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("queries", [1, 2])
def test_merged_networks_are_the_mean_of_theirs(queries, monkeypatch):
    """Of attention scores and values with one query, of whole scores with more."""
    rng = np.random.default_rng(0)
    net = training._Networks(3, training.NetworkRecipe("feature", queries, 0.0), rng)
    net.packed += 0.1 * rng.standard_normal(net.packed.size).astype(np.float32)
    data = LabeledBags(as_bags([rng.standard_normal((2, 3)) for _ in range(2)]), np.array([1.0, -1.0]), np.ones(2))
    monkeypatch.setattr(training, "ALIKE", np.inf)  # so that all are kept
    merged = net.merged(no_scaling(3), data)
    bags = as_bags([rng.standard_normal((5, 3)) for _ in range(4)])
    *layers, both, bias = (part.astype(np.float64) for part in net.parts)
    singles = []
    for k in range(net.recipe.networks):
        own = tuple((w[k : k + 1], o[k : k + 1, 0]) for w, o in zip(layers[::2], layers[1::2], strict=True))
        pooling = training.Pooling.shared(both[k, :queries], both[k, queries:], float(bias[k, 0]))
        singles.append(training.Score(InstanceMap("network", no_scaling(3), own), pooling))
    if queries == 1:
        for part, wanted in zip(
            merged.columns(bags), zip(*(one.columns(bags) for one in singles), strict=True), strict=True
        ):
            np.testing.assert_allclose(part, np.mean(wanted, axis=0), rtol=1e-10, atol=1e-12)
    else:
        np.testing.assert_allclose(merged(bags), np.mean([one(bags) for one in singles], axis=0), rtol=1e-10)


def test_long_tables_give_the_labels_of_bags_in_the_order_of_their_first_appearance():
    X, y = rings(40, 0)
    order = np.random.default_rng(0).permutation(sum(map(len, X)))
    ids = np.repeat([f"bag {i}" for i in range(40)], [len(bag) for bag in X])[order]
    table, first = np.concatenate(X)[order], {name: i for i, name in reversed(list(enumerate(ids)))}
    names = sorted(first, key=first.get)
    labels = np.array([y[int(name[4:])] for name in names])
    model = BagClassifier(instance_map="linear", random_state=0).fit(table, labels, bag=ids)
    assert model.bag_ids_.tolist() == names
    by_row = BagClassifier(instance_map="linear", random_state=0).fit(table, y[[int(n[4:]) for n in ids]], bag=ids)
    grouped = [table[ids == name] for name in names]
    np.testing.assert_allclose(model.predict_proba(table, bag=ids), model.predict_proba(grouped))
    np.testing.assert_array_equal(by_row.predict(table, bag=ids), model.predict(grouped))
    assert model.score(table, labels, bag=ids) == model.score(grouped, labels)
    assert [item.bag for item in model.explain(table, bag=ids)] == names
    with pytest.raises(ValueError, match="has several labels in y; a bag must have one"):
        model.fit(table, np.arange(len(ids)) % 2, bag=ids)


def test_object_arrays_weights_of_classes_and_dropped_instances():
    X, y = rings(40, 0)
    boxed = np.empty(40, dtype=object)
    boxed[:] = X
    plain = BagClassifier(instance_map="linear", random_state=0)
    np.testing.assert_array_equal(plain.fit(boxed, y).decision_function(boxed), plain.fit(X, y).decision_function(X))
    weights = np.where(y == 1, 3.0, 1.0)
    twice = BagClassifier(instance_map="linear", class_weight={1: 3.0}, random_state=0).fit(X, y)
    np.testing.assert_array_equal(
        twice.decision_function(X), plain.fit(X, y, sample_weight=weights).decision_function(X)
    )
    holes = [np.vstack([bag, [np.nan, 0, 0]]) for bag in X]
    dropping = BagClassifier(instance_map="linear", drop_missing=True, random_state=0).fit(holes, y)
    np.testing.assert_array_equal(dropping.decision_function(holes), plain.fit(X, y).decision_function(X))
    with pytest.raises(ValueError, match="bag 1 has a gap in every instance; with drop_missing=True nothing is left"):
        dropping.predict([X[0], np.full((2, 3), np.nan)])
