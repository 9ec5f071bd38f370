"""Tests of groups hold their level, find what matters given the rest, and say nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from whichtoken import GroupClassifier
from whichtoken.datasets import GroupSparse
from whichtoken.estimators import group_tests
from whichtoken.estimators.groups.significance import adjust, step_down


def table(seed, rho=0.0, strength=0.0, n=80, groups=6):
    """Groups of two columns, correlated with each other, of which the first matters."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((n, 1, 2))
    X = np.sqrt(rho) * common + np.sqrt(1 - rho) * rng.standard_normal((n, groups, 2))
    y = rng.random(n) < 1 / (1 + np.exp(-strength * X[:, 0].sum(axis=1)))
    return X.reshape(n, -1), y


IDS = np.repeat(np.arange(6), 2)


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "strength"), [(0.0, 0.0), (0.0, 2.0), (0.9, 2.0)], ids=["null", "one", "correlated"])
def test_the_family_wise_error_is_at_most_the_level(rho, strength):
    first = 1 if strength else 0
    wrong = sum(
        any(
            name >= first
            for name in group_tests(*table(seed, rho, strength), IDS, alpha=0.2, random_state=seed).selected
        )
        for seed in range(100)
    )
    assert binomtest(wrong, 100).proportion_ci().low <= 0.2
    # the tests must not be empty: Holm is nearly sharp where groups are independent
    assert rho or wrong >= 8


def test_a_group_that_resembles_the_one_that_matters_is_not_selected():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6))
    X[:, 2:4] = 0.8 * X[:, :2] + 0.6 * X[:, 2:4]
    y = X[:, 0] - X[:, 1] + 0.5 * rng.standard_normal(300) > 0
    found = group_tests(X, y, [0, 0, 1, 1, 2, 2], resamples=4, random_state=0)
    assert found.selected == [0]
    # by itself the second is far from chance
    assert group_tests(X[:, 2:4], y, [1, 1], random_state=0).p_values[0] < 0.001
    assert found.shares[0] == 1
    assert found.shares[1:].max() < 1


def copies(seed, strength=1.5, n=120):
    """Two near copies, of which the first matters, and four other groups of two columns."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 12))
    X[:, 2:4] = X[:, :2] + 0.1 * X[:, 2:4]
    return X, rng.random(n) < 1 / (1 + np.exp(-strength * (X[:, 0] - X[:, 1])))


def test_near_copies_are_tested_together(tmp_path):
    """Neither adds to the other, so neither passes alone; together they do, and both are used."""
    X, y = copies(0)
    X[:, 2:4] = X[:, :2]
    ids = ["a", "a", "b", "b", "c", "c", "d", "d", "e", "e", "f", "f"]
    model = GroupClassifier(ids, selection="controlled", random_state=0).fit(X, y)
    assert model.tests_.selected == []
    assert sorted(model.selected_groups_) == ["a", "b"]
    (union,) = model.tests_.undecided
    assert union.groups == ("a", "b")
    assert union.p_value < 0.001
    assert "no group alone at family-wise error 0.05" in str(model.tests_)
    assert "groups a, b carry the same signal, together with adjusted p-value" in str(model.tests_)
    model.save(tmp_path / "model")
    assert GroupClassifier.load(tmp_path / "model").tests_.unions == model.tests_.unions
    found = group_tests(X, y, ["a", "a", "a", "a", "c", "c", "d", "d", "e", "e", "f", "f"], random_state=0)
    assert found.selected == ["a"]
    assert found.unions == ()
    assert group_tests(X, np.random.default_rng(1).permutation(y), ids, random_state=0).undecided == []


@pytest.mark.slow
def test_unions_of_near_copies_hold_the_level_and_have_power():
    wrong = found = 0
    for seed in range(100):
        tests = group_tests(*copies(seed, 0.0), IDS, alpha=0.2, random_state=seed)
        wrong += bool(tests.selected or tests.undecided)
        tests = group_tests(*copies(seed), IDS, alpha=0.2, random_state=seed)
        found += bool(set(tests.selected) & {0, 1} or tests.undecided)
    assert binomtest(wrong, 100).proportion_ci().low <= 0.2
    assert found >= 95


def many_copies(noise, signals=10, n=300):
    """Columns that all matter, then a near copy of each."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2 * signals))
    X[:, signals:] = X[:, :signals] + noise * X[:, signals:]
    return X, rng.random(n) < 1 / (1 + np.exp(-2 * X[:, :signals].sum(axis=1)))


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_no_copy_passes_alone_where_more_groups_matter_than_are_screened(noise):
    """What a penalized regression leaves of a copy is mostly its twin, which must be among the predictors of the labels."""
    found = group_tests(*many_copies(noise), random_state=0)
    assert found.selected == []
    assert len(found.undecided) >= 8


def test_unions_that_pass_make_no_room_for_wrong_groups():
    """In one family with unions, ten right ones would let a group pass at ten times its share of the rate."""
    found = group_tests(*many_copies(0.1), control="fdr", random_state=0)
    assert len(found.undecided) >= 8
    np.testing.assert_allclose(found.adjusted, adjust(found.p_values, "fdr"))


@pytest.mark.parametrize("control", ["fwer", "fdr"])
def test_words_are_tested_by_their_counts(control):
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, (300, 40))
    y = rng.random(300) < 1 / (1 + np.exp(1.5 - 3 * (counts[:, 7] > 0)))
    words = pd.DataFrame(counts, columns=[f"word{k}" for k in range(40)])
    assert group_tests(words, y, control=control, random_state=0).selected == ["word7"]
    assert group_tests(words, rng.permutation(y), control=control, random_state=0).selected == []


def test_members_of_a_cluster_are_tested_after_it():
    single, whole = np.array([0.3, 0.01, 0.001, 0.5]), np.array([0.004])
    each, together = step_down(single, whole, [[0, 1]])
    # 0.001 * 4, then the cluster with the shares of two of the three that are left, then its members
    np.testing.assert_allclose(together, [0.006])
    np.testing.assert_allclose(each, [0.6, 0.03, 0.004, 0.6])
    np.testing.assert_allclose(step_down(single, np.ones(0), [])[0], adjust(single, "fwer"))


def test_adjusted_p_values():
    found = np.array([0.04, 0.001, 0.02, 0.5])
    np.testing.assert_allclose(adjust(found, "fwer"), [0.08, 0.004, 0.06, 0.5])
    np.testing.assert_allclose(adjust(found, "fdr"), [0.04 * 4 / 3, 0.004, 0.04, 0.5])


def test_constant_groups_have_p_value_one():
    X, y = table(0, strength=3.0)
    X[:, 4:6] = 1.0
    assert group_tests(X, y, IDS, random_state=0).p_values[2] == 1


def test_covariates_explain_away_what_they_explain():
    rng = np.random.default_rng(1)
    age = rng.standard_normal(300)
    X = np.stack([age + 0.3 * rng.standard_normal(300), rng.standard_normal(300), age], axis=1)
    y = age + 0.5 * rng.standard_normal(300) > 0
    assert group_tests(X[:, :2], y, random_state=0).selected == [0]
    assert group_tests(X, y, covariates=[2], random_state=0).selected == []


def test_a_transferred_selection_is_tested_on_new_data():
    old = GroupSparse(8, 4, relevant=5, direction=[1, -2, 0, 1])

    def sample(task, seed):
        X, y = task.sample(200, np.random.default_rng(seed))
        return X.reshape(200, -1), y

    model = GroupClassifier(np.repeat(range(8), 4), group_map="linear", random_state=0).fit(*sample(old, 0))
    same = model.transfer_test(*sample(GroupSparse(8, 4, relevant=5, direction=[0, 1, 1, 1]), 1))
    assert same.holds
    assert same.adding == []
    moved = model.transfer_test(*sample(GroupSparse(8, 4, relevant=2, direction=[0, 1, 1, 1]), 2))
    assert not moved.holds
    assert moved.signal > 0.05
    assert moved.adding == [2]
    assert "2 adds to it" in str(moved)
    more = GroupSparse(8, 4, relevant=[5, 1], direction=[[1, -2, 0, 1], [1, 1, 1, 1]])
    wider = model.transfer_test(*sample(more, 3))
    assert wider.signal < 0.05
    assert wider.adding == [1]


@pytest.mark.parametrize("group_map", ["splines", "fourier"])
def test_a_selection_that_acts_nonlinearly_is_tested_as_it_acts(group_map):
    def sample(n, seed):
        X = np.random.default_rng(seed).standard_normal((n, 12))
        return X, X[:, 4] ** 2 + X[:, 5] ** 2 > 1.4

    model = GroupClassifier(IDS, group_map=group_map, random_state=0).fit(*sample(250, 0))
    assert model.selected_groups_ == [2]
    new, y = sample(60, 1)  # the group bends into up to 66 features
    assert model.transfer_test(new, y).holds
    assert model.transfer_test(new, np.roll(y, 1)).signal > 0.05


def test_a_group_as_wide_as_the_table_is_long_can_pass():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 180))
    X[:, :90] += rng.standard_normal((80, 1))  # what all its columns share decides
    found = group_tests(X, X[:, :90].mean(axis=1) > 0, np.repeat([0, 1], 90), random_state=0)
    assert found.selected == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0}, r"alpha=0 must lie in \(0, 1\)"),
        ({"control": "none"}, "control='none' must be one of fwer, fdr"),
        ({"resamples": -1}, "resamples=-1 must be a whole number of at least 0"),
        ({"groups": [1, 2]}, "groups must name a group for each of the 12 columns"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        group_tests(*table(0), **options)
