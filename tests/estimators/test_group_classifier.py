"""Groups are found, named, kept and transferred; their layouts are checked."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import StandardScaler

from whichtoken import GroupClassifier
from whichtoken.datasets import GroupSparse
from whichtoken.estimators.groups import selection
from whichtoken.estimators.groups.selection import parse_groups, separate_attention
from whichtoken.estimators.model_folder import load_model, save_model

IDS = np.repeat(np.arange(8), 4)


def flat(task, n, seed=0):
    X, y = task.sample(n, np.random.default_rng(seed))
    return X.reshape(n, -1), y


@pytest.fixture(scope="module")
def one_group():
    return GroupSparse(8, 4, relevant=5, direction=[1, -2, 0, 1])


@pytest.fixture(scope="module")
def model(one_group):
    return GroupClassifier(IDS, random_state=0).fit(*flat(one_group, 300))


def angle(model, task):
    truth = np.zeros((8, 4))
    truth[task.relevant] = task.directions
    w = model.coef_[0]
    return math.acos(w @ truth.ravel() / np.linalg.norm(w) / np.linalg.norm(truth)) / math.pi


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_map": "linear"},
        {"selection": "controlled", "group_map": "linear"},
        {"attention": "full", "n_groups": 1, "C": 1.0, "group_map": "linear"},
    ],
    ids=["auto", "linear", "controlled", "full"],
)
def test_finds_the_relevant_group(one_group, options):
    model = GroupClassifier(IDS, **options, random_state=0).fit(*flat(one_group, 300))
    assert model.selected_groups_ == [5]
    assert model.attention_.argmax() == 5
    assert model.attention_.sum() == pytest.approx(1)
    assert angle(model, one_group) < 0.03


def test_support_is_the_columns_of_the_group(model):
    np.testing.assert_array_equal(model.get_support(indices=True), np.arange(20, 24))
    X = np.random.default_rng(0).standard_normal((3, 32))
    np.testing.assert_array_equal(model.transform(X), X[:, 20:24])
    np.testing.assert_array_equal(np.flatnonzero(model.coef_[0]), np.arange(20, 24))


def test_several_groups_with_directions_of_their_own():
    task = GroupSparse(8, 4, relevant=[1, 6], direction=[[1, 0, 0, 0], [0, 1, 1, 0]])
    model = GroupClassifier(IDS, random_state=0).fit(*flat(task, 500))
    assert sorted(model.selected_groups_) == [1, 6]
    assert angle(model, task) < 0.05


def logistic_labels(X, readout, seed):
    chance = 1 / (1 + np.exp(-X @ readout))
    return np.random.default_rng(seed).random(len(X)) < chance


@pytest.mark.parametrize("seed", range(3))
def test_weak_groups_that_all_matter_are_nearly_all_kept(seed):
    X = np.random.default_rng(seed).standard_normal((400, 32))
    # each group has length 1, a few per cent of accuracy
    truth = np.random.default_rng(seed + 10).choice([-0.5, 0.5], 32)
    y = logistic_labels(X, truth, seed + 20)
    model = GroupClassifier(IDS, group_map="linear", random_state=0).fit(X, y)
    assert len(model.selected_groups_) >= 5
    whole = GroupClassifier(IDS, n_groups=8, group_map="linear", random_state=0).fit(X, y)
    # the readout is then ridge logistic regression on all columns
    plain = LogisticRegression(C=whole.choice_.C, tol=1e-10, max_iter=10_000)
    plain.fit(StandardScaler().fit_transform(X), y)
    np.testing.assert_allclose(whole.coef_[0] * X.std(axis=0), plain.coef_[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_few_noisy_groups_are_selected(seed):
    X = np.random.default_rng(seed).standard_normal((400, 32))
    truth = np.zeros(32)
    truth[4:12] = np.random.default_rng(seed + 10).choice([-1.0, 1.0], 8)
    model = GroupClassifier(IDS, random_state=0).fit(X, logistic_labels(X, truth, seed + 20))
    assert sorted(model.selected_groups_) == [1, 2]
    path = model.path_
    assert path.chosen == 2
    # the rule: the fewest groups within one standard error of the least loss
    within = [
        c
        for c, loss, error in zip(path.counts, path.losses, path.errors, strict=True)
        if loss - min(path.losses) <= error
    ]
    assert min(within) == 2
    assert path.counts[-1] == 8


def test_noise_is_not_overfitted():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2, 300, 32)), rng.integers(0, 2, (2, 300))
    model = GroupClassifier(IDS, random_state=0).fit(X[0], y[0])
    # chance has 0.693; all groups at the least ridge have 0.759
    assert log_loss(y[1], model.predict_proba(X[1])) < math.log(2) + 0.02


def losses_of_cuts(X, y, cv):
    ids = np.arange(X.shape[1]) // 2
    return np.array(GroupClassifier(ids, cv=cv, group_map="linear", C=1.0, random_state=0).fit(X, y).path_.losses)


@pytest.mark.parametrize(("strength", "columns", "cut"), [(0.3, 6, 4), (5.0, 60, 1)], ids=["in doubt", "clear"])
def test_the_mean_over_all_cuts_decides_where_one_leaves_doubt(strength, columns, cut):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, columns))
    y = strength * (X[:, 0] + 0.3 * X[:, 3]) + rng.standard_normal(120) > 0
    cuts = [list(StratifiedKFold(3, shuffle=True, random_state=k).split(X, y)) for k in range(cut)]
    every = losses_of_cuts(X, y, [split for one in cuts for split in one])
    np.testing.assert_allclose(every, np.mean([losses_of_cuts(X, y, one) for one in cuts], axis=0), rtol=1e-12)
    np.testing.assert_allclose(losses_of_cuts(X, y, 3), every, rtol=1e-12)


def test_nothing_is_compared_where_all_is_given(one_group):
    X, y = flat(one_group, 100)
    assert GroupClassifier(IDS, n_groups=2, C=1.0, group_map="linear", random_state=0).fit(X, y).path_ is None
    maps = GroupClassifier(IDS, n_groups=2, C=1.0, random_state=0).fit(X, y).path_
    assert maps.counts == (2,)
    assert set(maps.maps) <= {"linear", "splines", "fourier"}


def test_a_map_that_is_clearly_worse_is_given_up_after_few_folds(one_group, monkeypatch):
    X, y = flat(one_group, 300)
    kinds, fold = [], selection._Fold

    def counted(samples, among, kind, *rows):
        kinds.append(kind)
        return fold(samples, among, kind, *rows)

    monkeypatch.setattr(selection, "_Fold", counted)
    found = {}
    for limit in (selection.HOPELESS, math.inf):
        monkeypatch.setattr(selection, "HOPELESS", limit)
        kinds.clear()
        model = GroupClassifier(IDS, random_state=0).fit(X, y)
        found[limit] = model.choice_, model.selected_groups_
        assert kinds.count("linear") == 5
        assert (kinds.count("splines") + kinds.count("fourier") == 10) == (limit == math.inf)
        assert set(model.path_.maps) == {kind for kind in kinds if kinds.count(kind) == 5}
    assert found[selection.HOPELESS] == found[math.inf]


@pytest.mark.slow
def test_groups_of_unequal_size():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 12))
    y = X[:, 0] - X[:, 1] > 0
    names = ["small"] * 2 + ["large"] * 7 + ["medium"] * 3
    model = GroupClassifier(names, random_state=0).fit(X, y)
    assert model.selected_groups_ == ["small"]
    assert GroupClassifier(names, attention="full", n_groups=1, C=1.0, random_state=0).fit(X, y).selected_groups_ == [
        "small"
    ]


def test_overlapping_groups():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((400, 5)), columns=list("abcde"))
    y = frame["b"] + frame["c"] > 0
    model = GroupClassifier({"first": ["a", "b"], "second": ["b", "c"], "third": ["c", "d", "e"]}, random_state=0).fit(
        frame, y
    )
    assert model.selected_groups_ == ["second"]
    assert list(model.get_feature_names_out()) == ["b", "c"]


@pytest.mark.parametrize("kind", ["validated", "controlled"])
def test_covariates_are_always_kept(kind):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 9))
    y = X[:, 2] + X[:, 3] + 2 * X[:, 8] > 0
    model = GroupClassifier([0, 0, 1, 1, 2, 2, 3, 3, -1], covariates=[8], selection=kind, random_state=0).fit(X, y)
    assert model.selected_groups_ == [1]
    np.testing.assert_array_equal(model.get_support(indices=True), [2, 3, 8])
    assert model.score(X, y) > 0.97


@pytest.mark.slow
def test_forms_of_groups_agree(one_group, model):
    X, y = flat(one_group, 300)
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(32)])
    mapping = {f"g{j}": [f"x{4 * j + k}" for k in range(4)] for j in range(8)}
    named = GroupClassifier([f"g{j}" for j in IDS], random_state=0).fit(X, y)
    for other in (
        GroupClassifier(list(IDS), random_state=0).fit(X, y),
        named,
        GroupClassifier(mapping, random_state=0).fit(frame, y),
    ):
        np.testing.assert_array_equal(other.coef_, model.coef_)
    assert named.selected_groups_ == ["g5"]


def test_transfer_learns_from_few_samples(one_group, model):
    target = GroupSparse(8, 4, relevant=5, direction=[0, 1, 1, 1])
    X, y = flat(target, 40, seed=1)
    source = (
        clone(model).set_params(group_map="linear").fit(*flat(one_group, 300))
    )  # an angle is that of a linear model
    moved = source.fit_downstream(X, y)
    assert moved.selected_groups_ == [5]
    assert source.selected_groups_ == [5]
    assert (
        angle(moved, target)
        < angle(GroupClassifier(C=1.0, n_groups=32, group_map="linear", random_state=0).fit(X, y), target) / 2
    )
    np.testing.assert_array_equal(source.transfer().fit(X, y).coef_, moved.coef_)


def test_a_rare_category_is_held_back_and_a_large_value_does_not_run_away():
    """Two ways in which a ridge on standardized columns trusts few rows too much."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal(200), np.arange(200) < 4, np.exp(3 * rng.standard_normal(200))])
    y = X[:, 0] + 0.5 * rng.standard_normal(200) > 0
    y[:4] = True
    options = {"C": 1.0, "n_groups": 3, "random_state": 0}
    rare = GroupClassifier(group_map="linear", **options).fit(X, y)
    standardized = LogisticRegression(C=1.0).fit((X - X.mean(axis=0)) / X.std(axis=0), y)
    assert 0 < rare.coef_[0, 1] < 0.5 * standardized.coef_[0, 1] / X[:, 1].std()
    bent = GroupClassifier(group_map="splines", **options).fit(X, y)
    far = np.repeat(X[:1], 2, axis=0)
    far[:, 2] = X[:, 2].max(), 3 * X[:, 2].max()
    straight = bent.coef_[0, 2] * 2 * X[:, 2].max()
    np.testing.assert_allclose(np.diff(bent.decision_function(far)), straight, rtol=1e-9)


def test_three_classes():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8))
    y = np.where(X[:, 4] > 0.5, "a", np.where(X[:, 5] > 0.3, "b", "c"))
    model = GroupClassifier(np.repeat(np.arange(4), 2), random_state=0).fit(X, y)
    assert model.selected_groups_ == [2]
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    assert model.score(X, y) > 0.85


def test_contributions_sum_to_the_decision(one_group):
    X, y = flat(one_group, 300)
    model = GroupClassifier(
        {j: [*range(4 * j, 4 * j + 4), (4 * j + 4) % 32] for j in range(8)}, n_groups=3, random_state=0
    ).fit(X, y)
    average = model.decision_function(model.column_means_[None])
    np.testing.assert_allclose(model.contributions(X).sum(axis=1) + average, model.decision_function(X))


def test_contributions_do_not_depend_on_the_origin_or_the_unit_of_features(one_group):
    X, y = flat(one_group, 300)
    groups = {j: list(range(4 * j, 4 * j + 4)) for j in range(8)}
    plain, moved = (GroupClassifier(groups, random_state=0).fit(Z, y).contributions(Z) for Z in (X, 3 * X + 100))
    np.testing.assert_allclose(moved, plain, atol=1e-6)


@pytest.mark.parametrize(
    "groups",
    [IDS, [f"g{j}" for j in IDS], {j: list(range(4 * j, 4 * j + 4)) for j in range(8)}],
    ids=["ids", "names", "mapping"],
)
def test_model_folder(one_group, groups, tmp_path):
    X, y = flat(one_group, 100)
    model = GroupClassifier(groups, n_groups=2, C=1.0, random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    copy = GroupClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(copy.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(copy.transform(X), model.transform(X))
    assert copy.selected_groups_ == model.selected_groups_
    np.testing.assert_array_equal(copy.fit_downstream(X, -y).coef_, model.fit_downstream(X, -y).coef_)


@pytest.mark.parametrize(
    "options",
    [{"class_weight": {-1: 1.0, 1: 2.0}}, {"keep": np.array([2, 1, 2])}, {"keep": 2}, {"covariates": 3}],
    ids=str,
)
def test_settings_of_every_form_are_stored(one_group, options, tmp_path):
    X, y = flat(one_group, 100)
    model = GroupClassifier(IDS, C=1.0, random_state=0, **options).fit(X, y)
    model.save(tmp_path / "model")
    copy = GroupClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(copy.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(copy.fit(X, y).coef_, model.coef_)


@pytest.mark.parametrize("missing", ["settings", "fitted"])
def test_a_damaged_model_folder(model, tmp_path, missing):
    model.save(tmp_path / "model")
    kind, stored, tensors = load_model(tmp_path / "model")
    del stored[missing]
    save_model(tmp_path / "model", kind, stored, tensors)
    with pytest.raises(ValueError, match="model is damaged"):
        GroupClassifier.load(tmp_path / "model")


def test_a_constant_column_is_harmless(one_group, model):
    X, y = flat(one_group, 300)
    wide = GroupClassifier([*IDS, 8, 8, 8, 8], random_state=0).fit(np.hstack([X, np.full((300, 4), 7.0)]), y)
    assert wide.selected_groups_ == [5]
    np.testing.assert_allclose(wide.coef_[0, :32], model.coef_[0], rtol=1e-6)


def test_attention_of_the_least_ridge_is_a_two_thirds_power():
    # min sum |beta_j|^2 / s_j^2 over the simplex is (sum |beta_j|^(2/3))^3, at s_j ~ |beta_j|^(2/3)
    rng = np.random.default_rng(0)
    beta = rng.uniform(0.1, 2, 5)
    best = beta ** (2 / 3) / (beta ** (2 / 3)).sum()
    least = (beta**2 / best**2).sum()
    assert least == pytest.approx((beta ** (2 / 3)).sum() ** 3)
    for other in rng.dirichlet(np.ones(5), 100):
        assert (beta**2 / other**2).sum() >= least


def test_products_of_rows_rank_as_the_columns_do(monkeypatch):
    rng = np.random.default_rng(0)
    groups, fixed = [rng.standard_normal((40, 12)) for _ in range(6)], rng.standard_normal((40, 2))
    signs = np.where(groups[4] @ rng.standard_normal(12) + fixed[:, 0] > 0, 1.0, -1.0)
    given = groups, fixed, signs, np.full(40, 1 / 40), 1e-2
    attention = separate_attention(*given)
    monkeypatch.setattr(selection, "PRODUCTS", 0)
    np.testing.assert_allclose(attention, separate_attention(*given), atol=2e-3)
    assert attention.argmax() == 4


def test_no_group_matters():
    signs = np.tile([1.0, -1.0], 10)
    attention = separate_attention(
        [np.zeros((20, 2)), np.zeros((20, 2))], np.empty((20, 0)), signs, np.full(20, 0.05), 0.1
    )
    np.testing.assert_array_equal(attention, [0.5, 0.5])


@pytest.mark.parametrize(
    ("groups", "covariates", "message"),
    [
        ([0, 1], None, r"groups must name a group for each of the 4 columns of X; got \(2,\) ids"),
        ({"a": [0, 1]}, None, "groups do not cover 2 of the 4 columns, such as 2;"),
        ({"a": [0, 1], "b": [2, 7]}, None, "group 'b': X has no column 7; columns are names of X or 0 to 3"),
        ({"a": [0, 1], "b": ["x"]}, None, "group 'b': X has no column 'x'"),
        ({"a": [0, 1, 2, 3], "b": []}, None, "group 'b' has no columns"),
        ({"a": [0, 1, 2, 3]}, [3], "group 'a' contains covariates"),
        ({}, None, "is empty; at least one group"),
        ([0, 0, 1, 1], [0, 1, 2, 3], "every column is a covariate"),
        ([0, 0, 1, 1], ["z"], "covariates: X has no column 'z'"),
    ],
)
def test_bad_layouts(groups, covariates, message):
    with pytest.raises(ValueError, match=message):
        parse_groups(groups, covariates, 4, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "none"}, "attention='none' must be one of separate, full"),
        ({"selection": "all"}, "selection='all' must be one of validated, controlled"),
        ({"alpha": 1.0}, r"alpha=1\.0 must lie in \(0, 1\)"),
        ({"control": "pfer"}, "control='pfer' must be one of fwer, fdr"),
        ({"group_map": "cubic"}, "group_map='cubic' must be one of auto, linear, splines, fourier"),
        ({"selection": "controlled", "n_groups": 2}, "n_groups=2 cannot be set with selection='controlled'"),
        ({"groups": {0: range(20), 1: range(10, 32)}, "group_map": "fourier"}, "needs groups that do not overlap"),
        ({"n_groups": 9}, "n_groups=9 must be at most 8, the number of groups"),
        ({"n_groups": 2.5}, r"n_groups=2\.5 must be a whole number of at least 1"),
        ({"keep": []}, "keep is empty; name at least one group"),
        ({"keep": [11]}, "keep: there is no group 11; groups: 0, 1, 2"),
        ({"C": -1}, r"C=-1 must lie in \(0, inf\)"),
    ],
)
def test_bad_options(one_group, options, message):
    with pytest.raises(ValueError, match=message):
        GroupClassifier(**{"groups": IDS, **options}, random_state=0).fit(*flat(one_group, 40))


def test_bad_samples(one_group):
    X, y = flat(one_group, 40)
    with pytest.raises(ValueError, match="y has one class only"):
        GroupClassifier(IDS, random_state=0).fit(X, np.ones(40))
    with pytest.raises(ValueError, match="y mixes text"):
        GroupClassifier(IDS, random_state=0).fit(X, ["a", *range(39)])
    X[3, 4] = np.inf
    with pytest.raises(ValueError, match="contains infinity"):
        GroupClassifier(IDS, random_state=0).fit(X, y)
    X[:, 4] = np.nan
    with pytest.raises(ValueError, match="column 4 is NaN in every row; leave it out"):
        GroupClassifier(IDS, random_state=0).fit(X, y)


def test_a_table_needs_only_the_columns_of_the_selected_groups(one_group):
    X, y = flat(one_group, 200)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    model = GroupClassifier(IDS, n_groups=1, C=1.0, random_state=0).fit(frame, y)
    needed = frame[model.get_feature_names_out()]
    np.testing.assert_array_equal(model.predict_proba(needed), model.predict_proba(frame))
    assert model.explain(needed[:5]) == model.explain(frame[:5])
    with pytest.raises(ValueError, match="missing"):
        model.predict(needed.iloc[:, 1:])


def test_counterfactuals_are_the_fewest_groups_that_change_the_label(one_group):
    X, y = flat(one_group, 200)
    model = GroupClassifier(IDS, n_groups=3, C=1.0, random_state=0).fit(X, y)
    found, sizes = model.counterfactuals(X[:40]), model.certificates(X[:40])["groups"]
    layout = model._layout()
    for row, names, size in zip(X[:40], found, sizes, strict=True):
        assert size == (len(names) or -1)
        changed = row.copy()
        for name in names:
            columns = layout.members[layout.names.index(name)]
            changed[columns] = model.column_means_[columns]
        assert (model.predict([changed])[0] != model.predict([row])[0]) == bool(names)


def test_balanced_weights_find_the_rare_class(one_group):
    X, y = flat(one_group, 600)
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.flatnonzero(y == y.min()), rng.permutation(np.flatnonzero(y == y.max()))[:25]])
    X = X + 1.5 * rng.standard_normal(X.shape)
    plain, balanced = (
        GroupClassifier(IDS, n_groups=1, C=1.0, class_weight=weight, random_state=0).fit(X[rows], y[rows])
        for weight in (None, "balanced")
    )
    rare = y == y.max()
    assert (balanced.predict(X[rare]) == y.max()).mean() > (plain.predict(X[rare]) == y.max()).mean() + 0.1
    with pytest.raises(ValueError, match="attention='full' takes no class_weight"):
        GroupClassifier(IDS, attention="full", class_weight="balanced", random_state=0).fit(X, y)


def test_what_belongs_together_is_validated_together(one_group):
    """Copies of a sample on both sides of a validation make noise look like signal; whole clusters do not."""
    rng = np.random.default_rng(0)
    X, y = np.repeat(rng.standard_normal((30, 40)), 8, axis=0), np.repeat(np.arange(30) % 2, 8)
    together = np.repeat(np.arange(30), 8)
    losses = [
        GroupClassifier(cv=3, group_map="linear", random_state=0).fit(X, y, groups=clusters).path_.losses[-1]
        for clusters in (None, together)
    ]
    assert losses[0] < 0.3 < 0.6 < losses[1]
    with pytest.raises(ValueError, match=r"groups of shape \(3,\) must have one entry for each of the 240 samples"):
        GroupClassifier(random_state=0).fit(X, y, groups=[1, 2, 3])


def test_what_is_tried_is_said_where_that_is_wanted(one_group, capsys):
    GroupClassifier(IDS, cv=2, verbose=1, n_jobs=2, random_state=0).fit(*flat(one_group, 100))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("linear, 8 groups: held-out log loss ")
    assert lines[-1].startswith("fourier, ")


def curved(seed, n=400):
    """Groups of two columns, of which the first acts by a bump and the second by a product."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 8))
    return X, logistic_labels(np.stack([X[:, 0] ** 2 - 1, X[:, 2] * X[:, 3]], axis=1), np.array([2.0, 3.0]), seed + 1)


@pytest.fixture(scope="module")
def bent():
    X, y = curved(0)
    return GroupClassifier([0, 0, 1, 1, 2, 2, 3, 3], random_state=0).fit(X, y)


def test_groups_that_act_together_are_bent_and_found(bent):
    assert bent.choice_.group_map == "fourier"
    assert sorted(bent.selected_groups_) == [0, 1]
    assert bent.path_.maps["fourier"] < bent.path_.maps["splines"] < bent.path_.maps["linear"]
    X, y = curved(5, 2000)
    # lines are at chance here
    assert bent.score(X, y) > 0.75


def test_no_group_is_not_bent():
    X = np.random.default_rng(6).standard_normal((60, 12))
    model = GroupClassifier(np.repeat(range(4), 3), group_map="splines", random_state=0).fit(X, np.arange(60) < 3)
    assert (model.selected_groups_, model.choice_.group_map) == ([], "linear")


@pytest.mark.parametrize("group_map", ["splines", "fourier"])
def test_reasons_of_bent_groups_are_exact_sums(group_map, tmp_path):
    X, y = curved(0)
    model = GroupClassifier([0, 0, 1, 1, 2, 2, 3, 3], n_groups=3, C=1.0, group_map=group_map, random_state=0).fit(X, y)
    average = model.decision_function(model.column_means_[None])
    np.testing.assert_allclose(model.contributions(X).sum(axis=1) + average, model.decision_function(X))
    for row, item in zip(X[:30], model.explain(X[:30]), strict=True):
        for reason in item.reasons:
            # a group adds what the score loses where the group is set to its averages
            changed, columns = row.copy(), [int(column.column) for column in reason.columns]
            changed[columns] = model.column_means_[columns]
            lost = model.decision_function([row]) - model.decision_function([changed])
            assert reason.contribution == pytest.approx(lost[0] * (1 if item.label else -1), abs=1e-9)
            assert sum(column.contribution for column in reason.columns) == pytest.approx(reason.contribution, abs=1e-9)
    model.save(tmp_path / "model")
    copy = GroupClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(copy.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(copy.contributions(X), model.contributions(X))


def test_no_group_passes_and_the_base_rate_is_predicted(tmp_path):
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((150, 12)), np.arange(150) % 3 == 0
    model = GroupClassifier(np.repeat(range(4), 3), selection="controlled", random_state=0).fit(X, y)
    assert model.selected_groups_ == []
    assert model.choice_.count == 0
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / 3, rtol=1e-6)
    assert model.contributions(X).tolist() == [[0.0]] * 150
    assert model.transform(X).shape == (150, 0)
    assert model.explain(X[:1])[0].reasons == []
    assert model.explain(X[:1])[0].counterfactual is None
    assert "no group at family-wise error 0.05" in str(model.tests_)
    model.save(tmp_path / "model")
    copy = GroupClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert str(copy.tests_) == str(model.tests_)
    for ask in (model.transfer, lambda: model.transfer_test(X, y)):
        with pytest.raises(ValueError, match="no group was selected"):
            ask()


def test_splits_may_be_given_and_stay_out_of_the_folder(one_group, tmp_path):
    X, y = flat(one_group, 100)
    splits = list(KFold(3).split(X))
    models = [GroupClassifier(IDS, cv=cv, group_map="linear", random_state=0).fit(X, y) for cv in (splits, KFold(3))]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    models[0].save(tmp_path / "model")
    loaded = GroupClassifier.load(tmp_path / "model")
    assert loaded.cv == GroupClassifier().cv
    np.testing.assert_array_equal(loaded.predict(X), models[0].predict(X))


@pytest.mark.parametrize("group_map", ["splines", "fourier"])
def test_columns_that_differ_by_almost_nothing_are_constant(group_map):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = np.column_stack(
        [rng.standard_normal(60) + y, 1e-320 * rng.integers(0, 3, 60), 1e-300 * y, 1e99 * (1 + 1e-15 * y)]
    )
    model = GroupClassifier(group_map=group_map, n_groups=4, C=1.0, random_state=0).fit(X, y)
    assert np.isfinite(model.contributions(X)).all()


def test_gaps_are_filled_with_training_medians(one_group):
    X, y = flat(one_group, 200)
    X[::7, 20], X[5, 3] = np.nan, np.nan
    filled = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)
    options = {"n_groups": 1, "C": 1.0, "random_state": 0}
    model, plain = (GroupClassifier(IDS, **options).fit(Z, y) for Z in (X, filled))
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(filled))


@pytest.mark.parametrize("group_map", ["linear", "splines", "fourier"])
def test_sample_weights_count_rows(one_group, group_map):
    X, y = flat(one_group, 120)
    weights = np.arange(120) % 3
    options = {"n_groups": 2, "C": 1.0, "group_map": group_map, "random_state": 0}
    weighted = GroupClassifier(IDS, **options).fit(X, y, sample_weight=weights)
    repeated = GroupClassifier(IDS, **options).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), rtol=1e-6)
    with pytest.raises(ValueError, match="sample_weight is 0 for all rows of class -1"):
        GroupClassifier(IDS).fit(X, y, sample_weight=y == 1)


def test_controlled_selection_refuses_rows_that_belong_together(one_group):
    X, y = flat(one_group, 60)
    with pytest.raises(ValueError, match="permutes rows, which must be independent"):
        GroupClassifier(IDS, selection="controlled").fit(X, y, groups=np.repeat(range(20), 3))


@pytest.mark.parametrize("kind", ["validated", "controlled"])
@pytest.mark.parametrize("table", ["constant", "wide", "three", "separable"])
def test_odd_tables_give_no_warning(kind, table):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 12)), np.arange(30) % 2
    groups = np.repeat(range(4), 3)
    if table == "constant":
        X[:, 3:9] = 7.0
    elif table == "wide":
        X, groups = rng.standard_normal((30, 60)), None
    elif table == "three":
        y = (np.arange(30) < 3).astype(int)
    else:
        X[:, 0] += 20 * y
    model = GroupClassifier(groups, selection=kind, random_state=0).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    if table == "separable":
        assert model.selected_groups_ == [0]
        assert model.score(X, y) == 1
