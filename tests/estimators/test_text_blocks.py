"""A fit on Dask with counts that stay with the workers: the model of one machine, whatever the partitions and the workers."""

import os
import signal
from functools import partial

import dask
import dask.bag
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster
from scipy import sparse

from whichtoken import TextClassifier
from whichtoken.errors import UsageError
from whichtoken.estimators import TextRegressor
from whichtoken.estimators.text import learning
from whichtoken.estimators.text.blocks import BLOCK, DaskRows, sum_blocks

WORDS = np.array([f"w{k}" for k in range(300)])


def documents(count, seed=0):
    """Texts with a frequency law, a tenth of them copies, and numbers that follow the words."""
    rng = np.random.default_rng(seed)
    law = 1 / (np.arange(len(WORDS)) + 5.0)
    words = rng.choice(len(WORDS), (count, 12), p=law / law.sum())
    words[::10] = words[3]
    values = rng.standard_normal(len(WORDS))
    scores = values[words].mean(axis=1) + rng.logistic(size=count) / 4
    texts = pd.Series([" ".join(row) for row in WORDS[words]], name="text")
    return texts, scores


TEXTS, SCORES = documents(900)


@pytest.fixture(autouse=True)
def few_to_choose_from(monkeypatch):
    """More documents than settings are chosen by; one machine solves as exactly as Dask."""
    monkeypatch.setattr(learning, "ENOUGH_TO_CHOOSE", 500)
    monkeypatch.setattr(learning, "fit_values", partial(learning.fit_values, tolerance=1e-13))


def partitions(texts, ends):
    """Parts of a series; some may be empty."""
    parts = [dask.delayed(texts[a:b]) for a, b in zip([0, *ends], [*ends, len(texts)], strict=True)]
    return dask.dataframe.from_delayed(parts, meta=texts[:0], verify_meta=False)


def assert_same(there, here):
    assert there.vocabulary_ == here.vocabulary_
    assert there.choice_ == here.choice_
    largest = np.abs(here.values_).max()
    for name in ("selection_", "values_", "intercept_"):
        wanted = getattr(here, name)
        np.testing.assert_allclose(getattr(there, name), wanted, rtol=0, atol=1e-6 * largest, err_msg=name)
    for found, wanted in zip(there._statistics, here._statistics, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(there._memory.precision, here._memory.precision, rtol=1e-6)
    np.testing.assert_allclose(there._memory.mean, here._memory.mean, rtol=1e-6, atol=1e-12)


TWO, THREE = SCORES > 0, np.digitize(SCORES, [-0.3, 0.3])
CASES = {
    "two classes": (TextClassifier(random_state=0), TWO),
    "squared hinge, weights": (
        TextClassifier(random_state=0, loss="squared_hinge", class_weight="balanced"),
        SCORES > 0.5,
    ),
    "three classes": (TextClassifier(random_state=0, C=1.0, loss="logistic"), THREE),
    "a rare class is left out": (TextClassifier(random_state=0, C=1.0, min_class=30), np.where(SCORES > 1.3, 2, TWO)),
    "several labels": (TextClassifier(random_state=0, C=1.0), np.stack([TWO, THREE == 1], axis=1).astype(int)),
    "pairs": (TextClassifier(random_state=0, ngram_range="auto", C=1.0, null=0.3), TWO),
}


@pytest.mark.filterwarnings("ignore:min_class=30 leaves out")
@pytest.mark.parametrize(("model", "labels"), CASES.values(), ids=CASES)
def test_the_model_is_that_of_one_machine(model, labels):
    from sklearn.base import clone

    here, there = clone(model).fit(TEXTS, labels), clone(model)
    with dask.config.set(scheduler="sync"):
        there.fit(partitions(TEXTS, [200, 200, 500]), labels)
    assert_same(there, here)
    np.testing.assert_array_equal(there.predict(TEXTS), here.predict(TEXTS))


def test_numbers_and_columns_are_learned_as_on_one_machine(monkeypatch):
    # the ascent of one machine keeps the weights of columns in single precision; Newton's method follows it
    monkeypatch.setattr(learning, "MOST_PASSES", 1)
    monkeypatch.setattr(learning, "MOST_VISITS", 1)
    ends, table = [300, 610], pd.DataFrame({"text": TEXTS, "age": np.arange(len(TEXTS)) % 7})
    table["age"] = table["age"].mask(TEXTS.index % 11 == 0)
    with dask.config.set(scheduler="sync"):
        there = TextRegressor(random_state=0, C=3.0).fit(partitions(TEXTS, ends), SCORES).scorer_
        assert_same(there, TextRegressor(random_state=0, C=3.0).fit(TEXTS, SCORES).scorer_)
        there = TextClassifier(random_state=0, C=3.0, columns=["age"]).fit(partitions(table, ends), TWO)
    here = TextClassifier(random_state=0, C=3.0, columns=["age"]).fit(table, TWO)
    assert_same(there, here)
    np.testing.assert_allclose(there._columns.weights, here._columns.weights, rtol=1e-6)


def test_partitions_of_one_class_or_empty_or_of_another_number_change_no_more_than_rounding():
    order = np.argsort(TWO, kind="stable")
    texts, labels = TEXTS.iloc[order].reset_index(drop=True), TWO[order]
    first, last = int((~labels).sum()), len(labels)
    fits = []
    for ends in ([], [first], [0, first, first, last, last], [100, 300, first, 800]):
        with dask.config.set(scheduler="sync"):
            model = TextClassifier(random_state=0, C=1.0).fit(partitions(texts, ends), labels)
            again = TextClassifier(random_state=0, C=1.0).fit(partitions(texts, ends), labels)
        np.testing.assert_array_equal(model.values_, again.values_)
        fits.append(model)
    for model in fits[1:]:
        np.testing.assert_allclose(model.values_, fits[0].values_, rtol=0, atol=1e-9 * np.abs(fits[0].values_).max())


def test_no_process_gets_the_counts_of_all_documents(monkeypatch):
    """What is collected here is the sample that settings are chosen by; all else are sums."""
    collected, once = [], DaskRows.__getitem__
    monkeypatch.setattr(
        DaskRows, "__getitem__", lambda rows, chosen: collected.append(len(chosen)) or once(rows, chosen)
    )
    with dask.config.set(scheduler="sync"):
        TextClassifier(random_state=0, C=1.0).fit(partitions(TEXTS, [400]), TWO)
    assert collected == [500]


def test_a_sum_over_a_matrix_is_that_over_its_blocks():
    rng = np.random.default_rng(0)
    matrix = sparse.random_array((BLOCK + 5, 4), density=0.5, rng=rng, format="csr")
    weights = rng.random(BLOCK + 5)
    found = sum_blocks(matrix, lambda block, w, factor: (factor * (block.T @ w), len(w)), 2.0, by_row=[weights])
    np.testing.assert_allclose(found[0], 2 * (matrix.T @ weights), rtol=1e-12)
    assert found[1] == BLOCK + 5


def cluster_of(workers):
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False}, worker_dashboard_address="127.0.0.1:0", silence_logs=50,
    )  # fmt: skip


@pytest.mark.process
def test_a_worker_that_dies_between_two_steps_costs_time_and_a_scheduler_a_sentence(monkeypatch):
    from scipy import optimize

    solve, faults = optimize.minimize, []

    def solve_after_a_fault(objective, start, **options):
        if options["method"] == "trust-ncg" and faults:
            faults.pop()()
        return solve(objective, start, **options)

    monkeypatch.setattr(optimize, "minimize", solve_after_a_fault)
    model, texts = TextClassifier(random_state=0, C=1.0), partitions(TEXTS, [200, 500, 600])
    with dask.config.set(scheduler="sync"):
        wanted = model.fit(texts, TWO).values_
    with dask.config.set({"distributed.comm.timeouts.connect": "5s"}):
        cluster = cluster_of(2)
        with cluster.get_client() as client:
            processes = list(client.run(os.getpid).values())
            faults.append(lambda: os.kill(processes[0], signal.SIGKILL))
            np.testing.assert_array_equal(model.fit(texts, TWO).values_, wanted)
            assert not faults
            assert processes[0] not in client.run(os.getpid).values()
            faults.append(cluster.close)
            with pytest.raises(UsageError, match="the Dask scheduler or its workers are gone"):
                model.fit(texts, TWO)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:6 of 2605 documents have no known word")
def test_reviews_of_films_give_the_labels_and_the_coefficients_of_one_machine(monkeypatch, real_data):
    monkeypatch.setattr(learning, "ENOUGH_TO_CHOOSE", 3000)
    table = pd.read_parquet(real_data / "movie_snippets_vader.parquet")
    learned, fresh = table[:8000], table[8000:]
    here = TextClassifier(random_state=0).fit(learned["text"], learned["label"])
    with dask.config.set(scheduler="sync"):
        there = TextClassifier(random_state=0).fit(partitions(learned["text"], [3000, 5000]), learned["label"])
    assert_same(there, here)
    np.testing.assert_array_equal(there.predict(fresh["text"]), here.predict(fresh["text"]))
