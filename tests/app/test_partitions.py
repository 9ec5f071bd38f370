"""A table in several files, answered file by file: here or on Dask's workers, resumable, with a sentence for what is wrong."""

import json
import os
import signal
import threading

import dask
import dask.bag
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

from whichtoken import BagClassifier, GroupClassifier, TextClassifier, __version__
from whichtoken.app import partitions
from whichtoken.attention import RaggedArray
from whichtoken.errors import UsageError
from whichtoken.estimators import TextRegressor
from whichtoken.estimators.text import counting

THINGS = ["film", "story", "plot", "cast", "song", "actor", "scene", "music", "end", "start"]


def reviews(count, seed):
    rng = np.random.default_rng(seed)
    good = rng.integers(0, 2, count)
    words = rng.choice(THINGS, (count, 3))
    texts = [f"a {'good' if k else 'bad'} {' '.join(row)}" for k, row in zip(good, words, strict=True)]
    return pd.DataFrame({"text": texts, "label": np.where(good, "+", "-")})


def cluster_of(workers, **options):
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False}, worker_dashboard_address="127.0.0.1:0", silence_logs=50, **options,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path, whichtoken):
    """A model, four files, and the same rows in one."""
    model = TextClassifier(random_state=0, min_df=1)
    training = reviews(60, 99)
    model.fit(training["text"], training["label"]).save(tmp_path / "m")
    (tmp_path / "many").mkdir()
    parts = [reviews(20, seed) for seed in range(4)]
    for place, part in enumerate(parts):
        part.to_parquet(tmp_path / "many" / f"part-{place}.parquet", index=False)
    pd.concat(parts).to_parquet(tmp_path / "one.parquet", index=False)
    return tmp_path


@pytest.fixture(scope="module")
def scheduler():
    """Workers in this process."""
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "5s"}),
        cluster_of(2, processes=False, protocol="tcp") as cluster,
    ):
        yield cluster.scheduler_address.replace("tcp://", "dask://")


def test_answers_by_file_are_those_of_one_table(table, whichtoken, scheduler):
    assert whichtoken("predict", "m", "one.parquet", "--to", "one-out.parquet").returncode == 0
    expected = pd.read_parquet(table / "one-out.parquet")
    for place, engine in (("here", ()), ("there", ("--engine", scheduler))):
        done = whichtoken("predict", "m", "many", "--to", place, *engine)
        assert done.returncode == 0, done.stderr
        assert f"wrote 4 files to {place}" in done.stdout
        found = pd.concat([pd.read_parquet(file) for file in sorted((table / place).glob("*.parquet"))])
        pd.testing.assert_frame_equal(found.reset_index(drop=True), expected)
    one, many = (
        whichtoken("evaluate", "m", *data).stdout for data in (["one.parquet"], ["many", "--engine", scheduler])
    )
    assert many == one
    assert whichtoken("explain", "m", "--file", "many", "--json", "why", "--engine", scheduler).returncode == 0
    assert whichtoken("explain", "m", "--file", "one.parquet", "--json", "why.json").returncode == 0
    lines = [
        json.loads(line) for file in sorted((table / "why").glob("*.jsonl")) for line in file.read_text().splitlines()
    ]
    assert lines == json.loads((table / "why.json").read_text())


def test_a_run_goes_on_where_it_stopped(table, whichtoken):
    (table / "many" / "part-2.parquet").rename(table / "good")
    pd.DataFrame({"review": ["x"]}).to_parquet(table / "many" / "part-2.parquet")
    stopped = whichtoken("predict", "m", "many", "--to", "out")
    assert stopped.returncode == 2
    assert "part-2.parquet has no column 'text'; columns: review" in stopped.stderr
    assert sorted(file.name for file in (table / "out").iterdir()) == [
        "part-0.parquet",
        "part-1.parquet",
        "partitions.json",
    ]
    (table / "good").rename(table / "many" / "part-2.parquet")
    assert "wrote 2 files to out; 2 were there already" in whichtoken("predict", "m", "many", "--to", "out").stdout
    reviews(5, 7).to_parquet(table / "many" / "part-0.parquet", index=False)
    assert "wrote 1 file to out; 3 were there already" in whichtoken("predict", "m", "many", "--to", "out").stdout
    other = whichtoken("predict", "m", "many", "--to", "out", "--abstain-below", "0.9")
    assert "out has answers of another model or of other options" in other.stderr
    # a model of the same words and settings with other values
    training = reviews(60, 99)
    flipped = TextClassifier(random_state=0, min_df=1).fit(
        training["text"], training["label"].map({"+": "-", "-": "+"})
    )
    flipped.save(table / "m")
    other = whichtoken("predict", "m", "many", "--to", "out")
    assert "out has answers of another model or of other options" in other.stderr
    (table / "mine").mkdir()
    (table / "mine" / "notes.txt").touch()
    assert "mine holds 'notes.txt'" in whichtoken("predict", "m", "many", "--to", "mine").stderr


def test_what_is_wrong_on_a_worker_is_one_sentence(table, whichtoken, scheduler, monkeypatch):
    pd.DataFrame({"review": ["x"]}).to_parquet(table / "many" / "part-2.parquet")
    done = whichtoken("predict", "m", "many", "--to", "out", "--engine", scheduler)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "part-2.parquet has no column 'text'" in done.stderr
    (table / "many" / "part-2.parquet").write_bytes(b"PAR1 damaged PAR1")
    done = whichtoken("evaluate", "m", "many", "--engine", scheduler)
    assert "part-2.parquet cannot be read as parquet" in done.stderr
    assert "name a folder" in whichtoken("predict", "m", "many", "--engine", scheduler).stderr
    assert "no Dask scheduler answers" in whichtoken("evaluate", "m", "many", "--engine", "dask://127.0.0.1:9").stderr
    assert "must be dask://host:port" in whichtoken("evaluate", "m", "many", "--engine", "spark").stderr
    monkeypatch.setattr(partitions, "_version", lambda: "9.9")
    said = whichtoken("evaluate", "m", "many", "--engine", scheduler).stderr
    assert f"has whichtoken 9.9, this program is {__version__}; install the same on both" in said


def test_an_empty_partition_has_no_answers(table, whichtoken):
    reviews(0, 0).to_parquet(table / "many" / "part-1.parquet", index=False)
    done = whichtoken("predict", "m", "many", "--to", "out")
    assert (done.returncode, "part-1.parquet has no rows" in done.stderr) == (2, True)


def test_a_bag_in_two_files_is_refused(tmp_path, whichtoken):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.standard_normal((160, 2)), columns=["x", "y"]).assign(bag=np.arange(160) // 4)
    rows["x"] += 5 * (rows["bag"] % 2)
    bags = RaggedArray(np.arange(0, 161, 4), rows[["x", "y"]].to_numpy())
    model = BagClassifier(instance_map="linear", random_state=0).fit(bags, np.arange(40) % 2)
    model.feature_names_in_ = np.array(["x", "y"], dtype=object)
    model.save(tmp_path / "m")
    (tmp_path / "many").mkdir()
    for cut, code in ((80, 0), (82, 2)):
        rows[:cut].to_csv(tmp_path / "many" / "1.csv", index=False)
        rows[cut:].to_csv(tmp_path / "many" / "2.csv", index=False)
        done = whichtoken("predict", "m", "many", "--to", f"out-{cut}")
        assert done.returncode == code
    assert "bag '20' is in" in done.stderr
    assert "keep each bag in one file" in done.stderr
    assert not (tmp_path / "out-82").exists()
    rows.to_csv(tmp_path / "one.csv", index=False)
    assert whichtoken("predict", "m", "one.csv", "--to", "one-out.csv").returncode == 0
    found = pd.concat([pd.read_csv(tmp_path / "out-80" / f"{k}.csv") for k in (1, 2)], ignore_index=True)
    pd.testing.assert_frame_equal(found, pd.read_csv(tmp_path / "one-out.csv"))


def kill_own_process_once(marker, path):
    """Stands for a worker that runs out of memory."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


@pytest.mark.process
def test_a_killed_worker_costs_its_file_only(tmp_path):
    from functools import partial

    files = [tmp_path / name for name in "abc"]
    with cluster_of(1) as cluster:
        engine = cluster.scheduler_address.replace("tcp://", "dask://")
        found = dict(partitions.run_on(engine, partial(kill_own_process_once, tmp_path / "killed"), files))
    assert {file: file.name for file in files} == found


@pytest.mark.process
def test_a_scheduler_that_goes_away_is_said(tmp_path):
    cluster = cluster_of(1)
    engine = cluster.scheduler_address.replace("tcp://", "dask://")
    found = partitions.run_on(engine, wait_a_moment, [tmp_path / name for name in "abcdef"])
    assert next(found)[1] == "done"
    cluster.close()
    with pytest.raises(UsageError, match="is gone; finished files are kept"):
        list(found)


def wait_a_moment(path):
    import time

    time.sleep(0.5)
    return "done"


def split_once_killed(marker, text):
    """Stands for a worker that dies in the middle of a fit."""
    kill_own_process_once(marker, marker)
    return text.split()


@pytest.mark.process
def test_a_worker_that_dies_in_a_fit_costs_time_and_a_scheduler_a_sentence(tmp_path):
    from functools import partial

    marker, labels = tmp_path / "killed", TRAINING["label"]
    here = TextClassifier(random_state=0, analyzer=str.split).fit(TRAINING["text"].tolist(), labels)
    cluster = cluster_of(1)
    with cluster.get_client():
        texts = dask.bag.from_sequence(TRAINING["text"].tolist(), npartitions=4)
        there = TextClassifier(random_state=0, analyzer=partial(split_once_killed, marker)).fit(texts, labels)
        assert marker.exists()
        np.testing.assert_array_equal(there.values_, here.values_)
        threading.Timer(0.5, cluster.close).start()
        with pytest.raises(UsageError, match="the Dask scheduler or its workers are gone"):
            TextClassifier(analyzer=wait_a_moment).fit(texts, labels)  # a text takes half a second


TRAINING = reviews(300, 5)


@pytest.fixture(scope="module")
def fitted():
    return TextClassifier(random_state=0, ngram_range=(1, 2)).fit(TRAINING["text"], TRAINING["label"])


def collections():
    frame = dask.dataframe.from_pandas(TRAINING, npartitions=11)
    yield "series", frame["text"], frame["label"]
    yield "frame", frame[["text"]], TRAINING["label"]
    yield "bag", dask.bag.from_sequence(TRAINING["text"].tolist(), npartitions=20), TRAINING["label"]


@pytest.mark.parametrize(("X", "y"), [case[1:] for case in collections()], ids=["series", "frame", "bag"])
def test_a_dask_collection_gives_the_model_of_one_machine(X, y, fitted):
    texts = TRAINING["text"].tolist()
    with dask.config.set(scheduler="sync"):
        model = TextClassifier(random_state=0, ngram_range=(1, 2)).fit(X, y)
        labels, shares, why = (answer(X).compute() for answer in (model.predict, model.predict_proba, model.explain))
    assert model.vocabulary_ == fitted.vocabulary_
    np.testing.assert_array_equal(model.values_, fitted.values_)
    np.testing.assert_array_equal(model.selection_, fitted.selection_)
    np.testing.assert_array_equal(np.asarray(labels), fitted.predict(texts))
    np.testing.assert_allclose(np.asarray(shares), fitted.predict_proba(texts), rtol=1e-12)
    assert [item.as_json() for item in why] == [item.as_json() for item in fitted.explain(texts)]


def test_a_dask_table_with_a_renamed_column_or_a_worker_of_another_version_is_named(fitted, monkeypatch):
    frame = dask.dataframe.from_pandas(TRAINING, npartitions=3)
    with dask.config.set(scheduler="sync"):
        model = TextClassifier(random_state=0).fit(frame[["text"]], frame["label"])
        with pytest.raises(ValueError, match="X has the column 'review'; the model was fitted on 'text'"):
            model.predict(frame[["text"]].rename(columns={"text": "review"})).compute()
        labels = model.predict(frame["text"])
        monkeypatch.setattr(counting, "__version__", "9.9")
        said = f"a worker has whichtoken 9.9, this program {__version__}; install the same on both"
        with pytest.raises(UsageError, match=said):
            labels.compute()
        with pytest.raises(UsageError, match=said):
            counting._tokens_of_part(None, ["a"], 0, __version__)


def test_partitions_without_rows_or_without_texts(fitted):
    frame = dask.dataframe.from_pandas(TRAINING, npartitions=5)
    with dask.config.set(scheduler="sync"):
        assert len(fitted.predict(frame[frame["label"] == "?"]["text"]).compute()) == 0
        some = frame[frame["text"].str.contains("film")]["text"]
        assert len(fitted.predict_proba(some).compute()) == TRAINING["text"].str.contains("film").sum()
        texts = dask.bag.from_sequence([["a film"], ["a film"], [3], ["a film"]], npartitions=4).flatten()
        with pytest.raises(ValueError, match="partition 2: "):
            TextClassifier().fit(texts, list("abab"))
        for lazy in (fitted.predict(texts), fitted.explain(texts)):
            with pytest.raises(ValueError, match="partition 2: "):
                lazy.compute()
        lacking = TRAINING.assign(text=TRAINING["text"].where(TRAINING.index != 130, None))
        answers = fitted.predict(dask.dataframe.from_pandas(lacking, npartitions=5)["text"])
        with pytest.raises(ValueError, match="partition that begins with index 120: text 10 is of type"):
            answers.compute()
        parts = [TRAINING[:9], TRAINING[9:].rename(columns={"text": "review"})]
        mixed = dask.dataframe.from_delayed(list(map(dask.delayed, parts)), meta=parts[0][:0], verify_meta=False)
        with pytest.raises(UsageError, match="a partition has no column 'text'"):
            TextClassifier().fit(mixed["text"], TRAINING["label"])


@pytest.mark.parametrize("model", [BagClassifier(), GroupClassifier({"a": ["x"], "b": ["y"]})], ids=["bags", "groups"])
def test_a_fit_on_one_machine_says_so(model):
    frame = dask.dataframe.from_pandas(pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]}), npartitions=1)
    with pytest.raises(UsageError, match=r"Classifier learns from tables in memory; .* give X.compute\(\)"):
        model.fit(frame, [0, 1])


def test_columns_beside_the_texts_are_learned_and_answered_by_partition():
    visits = TRAINING[["text"]].assign(visit=np.where(np.arange(300) % 7, np.arange(300) % 3, np.nan), ward="a")
    visits.loc[visits["text"].str.contains("film"), "ward"] = "b"
    frame = dask.dataframe.from_pandas(visits, npartitions=4)
    here = TextClassifier(columns=["visit", "ward"], random_state=0).fit(visits, TRAINING["label"])
    with dask.config.set(scheduler="sync"):
        there = TextClassifier(columns=["visit", "ward"], random_state=0).fit(frame, TRAINING["label"])
        np.testing.assert_array_equal(there.predict_proba(frame).compute(), here.predict_proba(visits))


def test_a_number_is_learned_and_predicted_by_partition():
    numbers = TRAINING["text"].str.count("good") * 3.0 + np.arange(len(TRAINING)) % 2
    frame = dask.dataframe.from_pandas(TRAINING.assign(number=numbers), npartitions=4)
    here = TextRegressor(random_state=0).fit(TRAINING["text"], numbers)
    with dask.config.set(scheduler="sync"):
        there = TextRegressor(random_state=0).fit(frame["text"], frame["number"])
        answers, why = there.predict(frame["text"]), there.explain(frame["text"], change=-2.0)
        np.testing.assert_array_equal(there.scorer_.values_, here.scorer_.values_)
        np.testing.assert_array_equal(answers.compute(), here.predict(TRAINING["text"]))
        assert [found.counterfactual for found in why.take(20, npartitions=2)] == [
            found.counterfactual for found in here.explain(TRAINING["text"][:20], change=-2.0)
        ]
