"""How far one machine goes with short documents, what Dask's workers add, and what the usual stream of hashes does.

Documents of 12 words with Zipf's law (of `text-memory`) are read from files of JSON lines, never all in memory as texts.
Each fit runs in a process of its own; counted are its processor time, workers included, and its largest resident size.
On Dask the counts stay with the workers, and coefficients are compared with those of one machine, which solves less exactly.
The peer is scikit-learn's recipe for large data: `HashingVectorizer` and `SGDClassifier.partial_fit`, one pass; where dask-ml is
installed, also its recipe, the same two on the workers and passed from one to the next. What travels
between processes of Dask is counted by its workers. The row for 100 workers is a model, not a measurement: what the workers
compute is done in parallel, the bytes that two workers sent travel at 1 Gbit/s one after the other, and the rest stays on one
machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from whichtoken.lab.benchmark import CPU, Beside, Cases, Measure

PART = "Texts"
QUESTION = "How many documents can one machine learn from, and what do more machines add?"
WHY = {
    "HashingVectorizer + SGDClassifier": {
        "win": "Compiled code splits the words and solves exactly for their values.",
        "loss": (
            "The alternative hashes words in a single pass over the texts, keeps nothing and tunes nothing; whichtoken keeps "
            "all counts, validates C and the null token, and solves to a certified gap."
        ),
        "even": "With this many documents, both learn the same linear separation.",
    },
    "dask-ml": {
        "win": "A fit of dask-ml moves from one partition to the next, and its scheduler handles more and smaller tasks.",
        "even": "Both spend most of their time starting processes.",
        "loss": "The alternative hashes words in a single pass over the texts, keeps nothing and tunes nothing.",
    },
}

LENGTH, FILES, TESTED = 12, 8, 20_000
SIZES = (100_000, 1_000_000, 10_000_000)
DISTRIBUTED = 1_000_000  # documents up to which Dask's workers are tried
LEAST, MOST = 5_000, 4.0  # documents per second of CPU time, GB
TRAFFIC = 200.0  # bytes per document: about twice those of its numbers as they are, sent to be merged and to the client
GIGABIT = 1.25e8  # bytes per second


def measure(wanted: Cases, sizes: tuple[int, ...] = SIZES, workers: tuple[int, ...] = (1, 2)) -> Iterator[Measure]:
    """Yield speed, memory and accuracy of ours and of the peer, then with Dask's workers."""
    for size in sizes:
        if wanted(case := f"{size:,} documents of {LENGTH} words"):
            with TemporaryDirectory() as folder:
                write_files(Path(folder), size)
                yield from _of_one_size(case, size, folder, workers if size <= DISTRIBUTED else ())


def _of_one_size(case: str, size: int, folder: str, workers: tuple[int, ...]) -> Iterator[Measure]:
    ours, theirs = (run(kind, folder) for kind in ("ours", "hashes"))
    detail = f"{ours['cpu']:.1f} s of CPU time, of which {ours['tokens']:.1f} for tokens"
    yield Measure(case, "documents per second of CPU time", size / ours["cpu"], LEAST, detail=detail)
    yield Measure(case, "GB at the peak", ours["memory"], MOST, at_least=False)
    peer = "HashingVectorizer + SGDClassifier"
    for what, unit, more in (("cpu", CPU, False), ("memory", "GB", False), ("accuracy", "accuracy", True)):
        beside = Beside(peer, ours[what], theirs[what], unit, more)
        ratio = ours[what] / theirs[what] if more else theirs[what] / ours[what]
        detail = f"{ours[what]:.4g} against {theirs[what]:.4g}"
        yield Measure(case, f"{unit}: times better than {peer}", ratio, 1.0, detail=detail, beside=beside)
    sent = 0.0
    for count in workers:
        found = run(f"dask-{count}", folder)
        one, there = (np.load(Path(folder) / f"{kind}.npy") for kind in ("ours", f"dask-{count}"))
        apart = np.abs(one - there).max() / np.abs(one).max() if one.shape == there.shape else np.inf
        detail = f"{found['cpu']:.1f} s of CPU time in all processes; coefficients differ by {apart:.1e} of the largest"
        name = f"{case}, Dask, workers: {count}"
        yield Measure(name, "GB at the peak of the client", found["memory"], MOST, False, detail)
        sent = found["sent"]
        yield Measure(name, "bytes sent by workers, per document", sent / size, TRAFFIC, False)
        if find_spec("dask_ml"):
            other = run(f"ml-{count}", folder)
            shares = f"accuracy {found['accuracy']:.4f} against {other['accuracy']:.4f}"
            detail = f"{found['cpu']:.1f} against {other['cpu']:.1f}, {shares}"
            beside, ratio = Beside("dask-ml", found["cpu"], other["cpu"], CPU), other["cpu"] / found["cpu"]
            yield Measure(name, "times better than dask-ml", ratio, 1.0, detail=detail, beside=beside)
    if workers:
        seconds = (found["cpu"] - found["client"]) / 100 + sent / GIGABIT + found["client"]
        yield Measure(f"{case}, a model of 100 workers", "documents per second (a model)", size / seconds, LEAST)


def write_files(folder: Path, size: int) -> None:
    """Some files of texts and labels to learn from, and one to test on."""
    from .text_memory import generate

    (folder / "part").mkdir()
    for name, rows, count in [
        *((f"part/{place}", generate(size // FILES, place, LENGTH), size // FILES) for place in range(FILES)),
        ("fresh", generate(TESTED, FILES, LENGTH), TESTED),
    ]:
        with (folder / f"{name}.jsonl").open("w") as file:
            file.writelines(json.dumps({"text": text, "label": label}) + "\n" for text, label in islice(rows, count))


def run(kind: str, folder: str) -> dict[str, Any]:
    """One fit in a process of its own: processor time, gigabytes at the peak, accuracy."""
    command = [sys.executable, "-P", __file__, kind, folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    said = process.stdout.read()
    if process.wait():
        raise RuntimeError(f"{kind} ended with exit code {process.returncode}")
    return dict(json.loads(said))


def texts_and_labels(folder: Path, labels: list[int]) -> Iterator[str]:
    """Texts one after the other; their labels are noted on the way."""
    from whichtoken.tables import stream_table

    for piece in stream_table(folder, ["text", "label"]):
        labels += piece["label"].tolist()
        yield from piece["text"].tolist()


def fit(kind: str, folder: Path) -> dict[str, Any]:
    """Fit one way; processor time of this process and its children, accuracy on fresh documents."""
    labels: list[int] = []
    truth: list[int] = []
    fresh, folder = list(texts_and_labels(folder / "fresh.jsonl", truth)), folder / "part"
    extra: dict[str, Any] = {}
    if kind == "hashes":
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.linear_model import SGDClassifier

        start = time.process_time()
        split, model = HashingVectorizer(), SGDClassifier(loss="log_loss", random_state=0)
        source, before = texts_and_labels(folder, labels), 0
        while chunk := [text for _, text in zip(range(10_000), source, strict=False)]:
            model.partial_fit(split.transform(chunk), labels[before : before + len(chunk)], classes=[0, 1])
            before += len(chunk)
        spent = time.process_time() - start
        return {"cpu": spent, "accuracy": float(model.score(split.transform(fresh), truth))}
    from whichtoken import TextClassifier
    from whichtoken.datasets.text_pipeline import TextPipeline

    TextClassifier(random_state=0).fit(["good a", "bad a"] * 20, [1, 0] * 20)  # loads compiled kernels
    model = TextClassifier(random_state=0)
    if kind == "ours":
        tokens = TextPipeline.tokens

        def timed(self: Any, texts: Any) -> Any:
            begun = time.process_time()
            found = tokens(self, texts)
            extra["tokens"] = extra.get("tokens", 0.0) + time.process_time() - begun
            return found

        TextPipeline.tokens = timed  # type: ignore[method-assign]
        start = time.process_time()
        model.fit(texts_and_labels(folder, labels), labels)
        spent = time.process_time() - start
    else:
        import dask.dataframe as dd
        from distributed import Client, LocalCluster

        start = time.process_time()
        way, _, count = kind.partition("-")
        with (
            LocalCluster(n_workers=int(count), threads_per_worker=1, dashboard_address=":0") as cluster,  # type: ignore[no-untyped-call]
            Client(cluster) as client,  # type: ignore[no-untyped-call]
        ):
            frame = dd.read_json(str(folder / "*.jsonl"), lines=True)
            model = _dask_ml(frame) if way == "ml" else model.fit(frame["text"], frame["label"])
            extra["sent"] = float(sum(client.run(_bytes_sent).values()))
        times, extra["client"] = os.times(), time.process_time() - start
        spent = time.process_time() - start + times.children_user + times.children_system
    if hasattr(model, "values_"):
        np.save(folder.parent / f"{kind}.npy", model.values_)
    return {"cpu": spent, "accuracy": float(np.mean(np.asarray(model.predict(fresh)) == truth)), **extra}


def _dask_ml(frame: Any) -> Any:
    """The recipe of dask-ml: texts are hashed where they are, and a model goes from one partition to the next."""
    from sklearn.feature_extraction.text import HashingVectorizer as HashedHere
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline

    # a peer that nobody has to install
    wrappers, hashing = (import_module(f"dask_ml.{name}") for name in ("wrappers", "feature_extraction.text"))
    model = wrappers.Incremental(SGDClassifier(loss="log_loss", random_state=0), assume_equal_chunks=True)
    texts, labels = (
        hashing.HashingVectorizer().transform(frame["text"].to_bag()),
        frame["label"].to_dask_array(lengths=True),
    )
    return make_pipeline(HashedHere(), model.fit(texts, labels, classes=[0, 1]).estimator_)


def _bytes_sent(dask_worker: Any) -> int:
    return int(dask_worker.transfer_outgoing_bytes_total)


if __name__ == "__main__":
    found = fit(sys.argv[1], Path(sys.argv[2]))
    # not ru_maxrss, which starts from the size of the process that started this one
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps({**found, "memory": int(peak.split()[1]) * 1024 / 1e9}))
