"""The laws of attention pooling, its gradient, its certificates, and what it reaches on sparse tokens."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import check_grad
from scipy.special import softmax
from sklearn.model_selection import LeaveOneGroupOut

from whichtoken import BagClassifier
from whichtoken.datasets import SparseTokens
from whichtoken.estimators.bags.data import LabeledBags, Scaling, as_bags, instance_scaling, no_scaling
from whichtoken.estimators.bags.explanation import confirmed_deletion, smallest_deletion
from whichtoken.estimators.bags.training import Queries, loss_and_gradient, pooled_features, split_weights
from whichtoken.estimators.bags.validation import validation_splits
from whichtoken.theory.sparse_tokens import bayes_floor, exact_error
from whichtoken.theory.sparse_tokens.two_step import fit_attention, two_step_query

classifier = partial(BagClassifier, instance_map="linear", random_state=0)
TASK = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}


@pytest.fixture(scope="module")
def sample():
    return SparseTokens(**TASK, dim=8).sample(200, np.random.default_rng(0))


@pytest.fixture(scope="module")
def model(sample):
    return classifier().fit(*sample)


@pytest.fixture(scope="module")
def ragged(sample):
    rng = np.random.default_rng(1)
    return [bag[: rng.integers(1, 11)] for bag in sample[0]]


def test_attention_is_chosen_where_the_signal_is_sparse(model):
    assert model.pooling_ == "attention"
    (selection,) = model.choice_.scores
    assert selection.attention_loss < selection.mean_loss


def test_mean_pooling_is_chosen_where_attention_does_not_help():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((120, 5, 3)), np.arange(120) % 2
    X[y == 1] += 0.4  # every instance says the same
    model = classifier(refine_steps=0).fit(X, y)
    assert model.pooling_ == "mean"
    np.testing.assert_array_equal(model.queries_, 0)
    np.testing.assert_allclose(model.decision_function(X), X.mean(axis=1) @ model.readouts_[0, 0] + model.intercept_[0])


def test_scores_are_those_of_softmax_attention(model, sample):
    attention = softmax(sample[0] @ model.queries_[0, 0], axis=1)
    wanted = np.sum(attention * (sample[0] @ model.readouts_[0, 0]), axis=1) + model.intercept_[0]
    np.testing.assert_allclose(model.decision_function(sample[0]), wanted, rtol=1e-10)


def test_order_of_instances_changes_nothing(model, ragged):
    shuffled = [bag[np.random.default_rng(2).permutation(len(bag))] for bag in ragged]
    np.testing.assert_allclose(model.decision_function(shuffled), model.decision_function(ragged), rtol=1e-10)


def test_masked_instances_change_nothing(model, sample):
    X = sample[0]
    extended = np.ma.masked_array(np.concatenate([X, 1e6 * X], axis=1))
    extended[:, 10:] = np.ma.masked
    np.testing.assert_array_equal(model.decision_function(extended), model.decision_function(X))


def test_bags_may_be_sparse_matrices(model, ragged):
    kept = [sparse.csr_array(bag) for bag in ragged]
    np.testing.assert_array_equal(model.decision_function(kept), model.decision_function(ragged))


def test_duplicating_an_instance_is_raising_its_count(model, ragged):
    doubled = [np.concatenate([bag, bag[:1]]) for bag in ragged]
    q, w, b = model.queries_[0, 0], model.readouts_[0, 0], model.intercept_[0]
    for bag, score in zip(ragged, model.decision_function(doubled), strict=True):
        counts = np.ones(len(bag))
        counts[0] = 2
        weights = softmax(bag @ q + np.log(counts))
        assert score == pytest.approx(weights @ bag @ w + b, rel=1e-10)


def test_a_bag_of_one_is_a_linear_model(model, sample):
    X = sample[0][:, :1]
    np.testing.assert_allclose(
        model.decision_function(X), X[:, 0] @ model.readouts_[0].sum(axis=0) + model.intercept_[0], rtol=1e-10
    )


@pytest.mark.parametrize("queries", [1, 3])
def test_contributions_sum_to_the_decision(sample, ragged, queries):
    model = classifier(n_queries=queries, refine_steps=5).fit(*sample)
    sums = [part.sum() for part in model.contributions(ragged)]
    np.testing.assert_allclose(sums, model.decision_function(ragged), rtol=1e-10)


def test_instance_scores_average_to_one(model, ragged):
    for scores, weights in zip(model.instance_scores(ragged), model.attention(ragged), strict=True):
        assert scores.mean() == pytest.approx(1)
        assert weights.sum() == pytest.approx(1)


def test_containers_agree(sample):
    X, y = sample
    wanted = classifier().fit(X, y).decision_function(X)
    np.testing.assert_array_equal(classifier().fit(list(X), y).decision_function(list(X)), wanted)
    flat = X.reshape(len(X), -1)
    np.testing.assert_array_equal(classifier(token_dim=8).fit(flat, y).decision_function(flat), wanted)


def test_units_of_the_features_change_nothing(sample):
    X, y = sample
    scale, shift = 10.0 ** np.arange(-3, 5), np.arange(8.0)
    moved = classifier(refine_steps=0).fit(X * scale + shift, y).decision_function(X * scale + shift)
    np.testing.assert_allclose(moved, classifier(refine_steps=0).fit(X, y).decision_function(X), rtol=1e-6)


def test_a_constant_feature_is_harmless(sample):
    X, y = sample
    constant = np.concatenate([X, np.full((*X.shape[:2], 1), 1e9)], axis=2)
    options = {"refine_steps": 0, "inverse_temperature": 2.0, "C": 0.5}
    found = classifier(**options).fit(constant, y)
    np.testing.assert_allclose(
        found.decision_function(constant), classifier(**options).fit(X, y).decision_function(X), rtol=1e-5
    )


def test_three_dimensional_input_is_not_copied(sample):
    assert np.shares_memory(as_bags(sample[0]).vectors, sample[0])
    single = sample[0].astype(np.float32)
    assert as_bags(single).vectors.dtype == np.float32


@pytest.mark.parametrize("queries", [1, 2])
def test_gradient(ragged, queries):
    rng = np.random.default_rng(0)
    data = LabeledBags(as_bags(ragged[:20]), rng.choice([-1.0, 1.0], 20), rng.uniform(size=20))
    scaling = Scaling(rng.standard_normal(8), rng.uniform(0.5, 2, 8))

    def value(packed):
        return loss_and_gradient(data, packed[:-1].reshape(2 * queries, 8), packed[-1], scaling)[0]

    def gradient(packed):
        _, slopes, bias = loss_and_gradient(data, packed[:-1].reshape(2 * queries, 8), packed[-1], scaling)
        return np.append(slopes.ravel(), bias)

    assert check_grad(value, gradient, rng.standard_normal(16 * queries + 1)) < 1e-6


def test_the_query_starts_from_two_steps(sample):
    X, y = sample
    query = two_step_query([(X, y)], bias_correction=True).query
    start = Queries(LabeledBags(as_bags(X), y, np.ones(len(y))), no_scaling(8), 1)
    np.testing.assert_allclose(start.first, query / np.linalg.norm(query), rtol=1e-10)


def test_pooled_features_of_standardized_instances(ragged):
    bags = as_bags(ragged)
    scaling, query = instance_scaling(bags), np.arange(8.0) / 4
    for bag, feature in zip(ragged, pooled_features(bags, query, scaling), strict=True):
        standard = (bag - scaling.mean) / scaling.scale
        np.testing.assert_allclose(feature, softmax(standard @ query) @ standard, rtol=1e-9, atol=1e-12)


def test_a_ragged_query_starts_along_the_gradient(ragged, sample):
    """Two steps of automatic differentiation on bags of different lengths, which count by their length in the second."""
    import torch

    bags, y = [torch.from_numpy(bag) for bag in ragged], torch.from_numpy(sample[1])

    def loss(query, readout, bias, weights):
        scores = torch.stack([torch.softmax(bag @ query, 0) @ bag @ readout for bag in bags])
        return weights @ torch.nn.functional.softplus(-y * (scores + bias))

    lengths = torch.tensor([float(len(bag)) for bag in bags], dtype=torch.float64)
    zero = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(zero.detach(), zero, 0.0, torch.full_like(y, 1 / len(y))), zero)
    share = float((y > 0).double().mean())
    (slope,) = torch.autograd.grad(loss(zero, -0.5 * slope, np.log(share / (1 - share)), lengths), zero)
    start = Queries(LabeledBags(as_bags(ragged), sample[1], np.ones(len(ragged))), no_scaling(8), 1)
    np.testing.assert_allclose(start.first, -(slope / slope.norm()).numpy(), rtol=1e-10)


def splits_by_group(groups):
    return list(LeaveOneGroupOut().split(groups, groups=groups))


@pytest.mark.parametrize("queries", [1, 2])
def test_a_weight_repeats_its_bag(ragged, sample, queries):
    """Weights of 0 to 3 against bags left out and repeated, with the same bags in each part of the validation."""
    rng = np.random.default_rng(3)
    y, repeats, groups = sample[1], rng.integers(0, 4, len(ragged)), rng.integers(3, size=len(ragged))
    rows = np.repeat(np.arange(len(ragged)), repeats)
    options = {"n_queries": queries, "refine_steps": 3}
    weighted = classifier(**options, cv=splits_by_group(groups)).fit(ragged, y, sample_weight=repeats)
    repeated = classifier(**options, cv=splits_by_group(groups[rows])).fit([ragged[i] for i in rows], y[rows])
    (one,), (other,) = weighted.choice_.scores, repeated.choice_.scores
    assert (one.temperature, one.anchor, one.C) == (other.temperature, other.anchor, pytest.approx(other.C))
    assert one.attention_loss == pytest.approx(other.attention_loss, rel=1e-9)
    np.testing.assert_allclose(weighted.decision_function(ragged), repeated.decision_function(ragged), rtol=1e-6)


def test_groups_are_never_on_both_sides():
    rng = np.random.default_rng(0)
    groups = rng.integers(12, size=90)
    data = LabeledBags(as_bags(rng.standard_normal((90, 2, 3))), rng.choice([-1.0, 1.0], 90), np.ones(90))
    splits = validation_splits(data, 3, groups, 0)
    assert len(splits) == 3
    for inside, outside in splits:
        assert not set(groups[inside]) & set(groups[outside])
    assert sorted(np.concatenate([outside for _, outside in splits])) == list(range(90))


def test_groups_keep_copies_from_flattering_attention():
    """Pure noise, every bag four times: without groups the copies on the other side look like a signal."""
    rng = np.random.default_rng(0)
    X, y, groups = (
        np.tile(rng.standard_normal((40, 4, 30)), (4, 1, 1)),
        np.tile(np.arange(40) % 2, 4),
        np.tile(np.arange(40), 4),
    )
    alone, grouped = (classifier(refine_steps=0).fit(X, y, groups=names).choice_.scores[0] for names in (None, groups))
    assert alone.attention_loss < 0.2
    assert grouped.attention_loss > np.log(2)


def test_bad_weights_and_groups(sample):
    X, y = sample
    with pytest.raises(ValueError, match=r"sample_weight is 0 for all bags of class 1\.0"):
        classifier().fit(X, y, sample_weight=y < 0)
    with pytest.raises(ValueError, match=r"groups of shape \(3,\) must have one entry for each of the 200 samples"):
        classifier().fit(X, y, groups=[1, 2, 3])


def test_a_model_trained_with_given_splits_is_stored(sample, tmp_path):
    X, y = sample
    model = classifier(cv=splits_by_group(np.arange(200) % 3), refine_steps=0).fit(X, y)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(BagClassifier.load(tmp_path / "model").predict(X), model.predict(X))


finite = st.floats(-3, 3).filter(lambda x: abs(x) > 1e-3)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=7))
def test_certificate_equals_brute_force(instances):
    scores, values = np.array(instances).T

    def positive(kept):
        return (np.exp(scores[kept]) * values[kept]).sum() > 0

    everything = list(range(len(scores)))
    smallest = None
    for size in range(1, len(scores)):
        for deleted in combinations(everything, size):
            if positive([i for i in everything if i not in deleted]) != positive(everything):
                smallest = size
                break
        if smallest:
            break
    found = smallest_deletion(scores, values)
    assert len(found) == (smallest or 0)
    if found:
        assert positive([i for i in everything if i not in found]) != positive(everything)


def test_counterfactuals_flip_predictions(model, ragged):
    flipped = 0
    for bag, found in zip(ragged, model.counterfactuals(ragged), strict=True):
        if found:
            flipped += 1
            rest = np.delete(bag, found, axis=0)
            assert model.predict([rest]) != model.predict([bag])
    assert flipped > 50


def test_deletions_of_two_queries_are_confirmed_and_marked_as_not_proven(sample):
    model = classifier(n_queries=2, refine_steps=0, inverse_temperature=2.0).fit(*sample)
    bags = [np.asarray(bag) for bag in sample[0][:40]]
    found = model.counterfactuals(bags)
    assert any(found)
    for bag, deleted in zip(bags, found, strict=True):
        label = model.predict([bag])
        if deleted:
            assert model.predict([np.delete(bag, deleted, axis=0)]) != label
        if len(deleted) != 1:  # then no single one does, and one or two are the fewest
            assert all(model.predict([np.delete(bag, k, axis=0)]) == label for k in range(len(bag)))
    explained = model.explain(bags)
    assert [item.counterfactual or [] for item in explained] == [[k + 1 for k in deleted] for deleted in found]
    assert not any(item.certified or item.robust_to for item in explained)
    changed = next(item for item in explained if item.counterfactual)
    assert "confirmed, not proven smallest" in changed.view().change.sentence(str, str)
    with pytest.raises(ValueError, match="certificates need one query; this model has 2: fit with n_queries=1"):
        model.certificates(bags)


def test_a_confirmed_deletion_of_one_query_is_the_smallest():
    rng = np.random.default_rng(0)
    for _ in range(200):
        scores, values = 3 * rng.standard_normal((2, 8, 1))
        assert len(confirmed_deletion(scores, values)) == len(smallest_deletion(scores[:, 0], values[:, 0]))


def test_a_confirmed_deletion_is_nearly_always_the_smallest():
    """All subsets of small bags under three queries."""
    rng, excess = np.random.default_rng(0), []
    for _ in range(100):
        scores, values = 2 * rng.standard_normal((2, 7, 3))
        kept = np.array([[bool(code >> k & 1) for k in range(7)] for code in range(1, 2**7)])  # (subsets, L)
        weights = kept[:, :, None] * np.exp(scores)
        decisions = ((weights * values).sum(axis=1) / weights.sum(axis=1)).sum(axis=1)
        flips = (decisions > 0) != (decisions[-1] > 0)
        fewest = (7 - kept.sum(axis=1))[flips].min(initial=8)
        excess.append((len(confirmed_deletion(scores, values)) or 8) - fewest)
    assert min(excess) == 0
    assert np.mean(np.array(excess) > 0) <= 0.1


def test_sparse_signal_is_found_near_the_bayes_floor():
    data = SparseTokens(length=100, signal_tokens=1, strength=5.0, prevalence=0.5, dim=20)
    X, y = data.sample(1000, np.random.default_rng(0))
    model = classifier(refine_steps=0).fit(X, y)
    task = {"length": 100, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
    error = exact_error(model.readouts_[0, 0], model.intercept_[0], data.direction, query=model.queries_[0, 0], **task)
    assert error <= 1.3 * bayes_floor(**task)


def both_signals(n, seed):
    """Positive bags hold two signals, each in an instance of its own; negative ones only one of them."""
    rng = np.random.default_rng(seed)
    X, y, first = rng.standard_normal((n, 10, 4)), rng.integers(2, size=n), rng.integers(2, size=n)
    X[(y == 1) | (first == 1), 0, 0] += 6
    X[(y == 1) | (first == 0), 1, 1] += 6
    return X, y


def test_two_queries_find_what_one_cannot():
    train, test = both_signals(300, 0), both_signals(1000, 1)
    one, two = (classifier(n_queries=count, refine_steps=0).fit(*train).score(*test) for count in (1, 2))
    assert two > 0.9
    assert two > one + 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_queries": 0}, "n_queries=0 must be a whole number of at least 1"),
        ({"cv": 1}, "cv=1 must be a whole number of at least 2"),
        ({"token_dim": 2.5}, r"token_dim=2\.5 must be a whole number of at least 1"),
        ({"C": 0.0}, r"C=0\.0 must be 'auto' or a number above 0"),
        ({"C": "best"}, "C='best' must be 'auto' or a number above 0"),
        ({"instance_map": "deep"}, "instance_map='deep' must be one of auto, linear, fourier, network"),
        ({"training": "fast"}, "training='fast' must be one of joint, two-step"),
        ({"query_share": 0.5}, "query_share=0.5 must be between 0 and 1, with training='two-step'"),
        ({"instance_map": "network", "inverse_temperature": 1.0}, "instance_map='network' trains its queries"),
        ({"inverse_temperature": -1.0}, r"inverse_temperature=-1\.0 must be 0 or more"),
        ({"token_dim": 3}, "token_dim=3 must be the width of the instances, 8"),
    ],
)
def test_bad_options(sample, options, message):
    with pytest.raises(ValueError, match=message):
        classifier(**options).fit(*sample)


def test_other_bad_input(model, sample):
    with pytest.raises(ValueError, match=r"bag 1 of shape \(10, 7\) must be \(instances, 8\)"):
        classifier().fit([sample[0][0], sample[0][1][:, :7]], [0, 1])
    with pytest.raises(ValueError, match="X has instances of width 7; the model was trained on width 8"):
        model.predict(sample[0][:, :, :7])
    with pytest.raises(ValueError, match="token_dim=3 must divide the 8 columns"):
        classifier(token_dim=3).fit(sample[0][:, 0], sample[1])


@pytest.mark.parametrize("share", [None, 0.4])
def test_two_step_training_is_that_of_the_claims(share):
    """The query along the two steps of its bags, the readout at the optimum of the ridge-penalised loss on the others."""
    X, y = SparseTokens(**TASK, dim=8, signal=np.ones(8)).sample(150, np.random.default_rng(3))
    X = (X - X.mean(axis=(0, 1))) / X.std(axis=(0, 1))  # what the estimator does by itself
    ridge, tau = 0.05, 1.5
    first = second = np.ones(150, dtype=bool)
    if share is not None:
        seed = int(np.random.RandomState(0).randint(2**31))
        second, first = (part > 0 for part in split_weights(np.ones(150), (y > 0).astype(int), share, seed))
        assert not (first & second).any()
        assert first.sum() == pytest.approx(share * 150, abs=1)
    options = {"training": "two-step", "query_share": share, "inverse_temperature": tau}
    model = classifier(**options, C=1 / (ridge * second.sum())).fit(X, y > 0)
    wanted = fit_attention(
        [(X[first], y[first])],
        [(X[second], y[second])],
        ridge=ridge,
        target_temperature=tau,
        bias_correction=True,
    )
    np.testing.assert_allclose(model.queries_[0, 0], wanted.query, rtol=1e-8)
    np.testing.assert_allclose(model.readouts_[0, 0], wanted.readout, rtol=1e-4, atol=1e-6)
    assert model.intercept_[0] == pytest.approx(wanted.bias, rel=1e-4, abs=1e-6)


def test_parallel_fits_are_the_same(sample):
    X, y = sample
    for labels in (y, np.arange(len(y)) % 3):
        one, two = (classifier(n_jobs=jobs, refine_steps=2).fit(X, labels).decision_function(X) for jobs in (None, 2))
        np.testing.assert_array_equal(one, two)


def test_verbose_says_what_was_chosen(sample, capsys):
    classifier(verbose=True, refine_steps=0).fit(*sample)
    assert capsys.readouterr().err.startswith("class 1.0: linear map, attention pooling, C=")
