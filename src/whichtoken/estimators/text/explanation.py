"""Reasons of a text decision: exact attention, contributions that add up, and the smallest change that would flip it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from whichtoken.attention import pool_weights
from whichtoken.datasets.text_pipeline import ENGLISH_STOP_WORDS, TextPipeline
from whichtoken.datasets.word_split import Places, text_chunks
from whichtoken.display.decision import Change, Decision, Piece, Reason
from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize
from whichtoken.estimators._explanation import Explanation, named_probabilities, outcome_json, ranked
from whichtoken.estimators.common import plain_label
from whichtoken.estimators.text.counting import (
    count_documents,
    document_frequency,
    encode_classes,
    listed_texts,
    texts_of,
)
from whichtoken.estimators.text.learning import decide
from whichtoken.estimators.text.model import count_with_spelled, flipping_sets, with_words_of

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators.text.columns import TextColumnReason
    from whichtoken.estimators.text.model import TextModel

FIRST = 10  # reasons that a notebook shows
WINDOW = 40  # characters on both sides of an example


@dataclass(slots=True)
class TokenReason(Shown):
    """What one token does in one document."""

    token: str
    count: float
    attention: float  # share of the attention, all occurrences together; the mean over queries
    contribution: float  # attention x (value + bias): what it adds to the decision
    places: list[tuple[int, int]]  # text[start:stop] of the words it came from
    encoded: float | None = (
        None  # what an encoder's part loses without the token: measured by encoding again, adds up to nothing
    )


@dataclass(frozen=True)
class TextPart(Shown):
    """What an encoder adds by one part of a text, exactly."""

    start: int  # text[start:stop]
    stop: int
    contribution: float


@dataclass(frozen=True, eq=False)
class TextExplanation(Explanation):
    """Why a document gets its label: `decision` is `bias` plus the sum of the contributions.

    A token contributes its attention times (value + bias), and `bias` is what the null token contributes, of value 0: so much
    that comes from no token. A deletion changes the label where it takes away more than the rest holds, so a contribution
    says what a token does there, too. It is positive where it speaks for `label`, whatever the number of classes.
    The arrays are sorted by the size of the contribution; `reasons` has the same with names and places in the text.
    """

    text: str | None
    label: Any
    probability: float
    decision: float
    bias: float
    columns: NDArray[Any]  # the distinct tokens of the document
    counts: NDArray[Any]
    attention: NDArray[Any]  # sums to 1 less what the null token takes
    contributions: NDArray[Any]
    places: Places = field(repr=False)  # in the text: counts[0] of the first token, then counts[1] of the second, ...
    model: TextModel = field(repr=False)
    flips: NDArray[np.int64] = field(repr=False)
    class_probabilities: NDArray[Any] = field(repr=False)  # (n_classes,), in the order of `model.classes_`
    flips_to: Any = None  # the label without the tokens of the counterfactual
    parts: tuple[TextPart, ...] = ()  # what an encoder adds by each part of the text: `decision` holds their sum too
    encoded: NDArray[Any] | None = field(default=None, repr=False)  # of each token, see `TokenReason`
    column_reasons: tuple[
        TextColumnReason, ...
    ] = ()  # what columns beside the text add: `decision` holds their sum too

    @property
    def probabilities(self) -> dict[Any, float]:
        """Of every label, the most probable first."""
        return ranked(self.model.classes_, self.class_probabilities)

    @property
    def counterfactual(self) -> list[str] | None:
        """Fewest tokens to delete until the label changes; None: no deletion does, or the model has several queries."""
        return [self.model.token_names_[column] for column in self.flips] or None

    @property
    def reasons(self) -> Reasons:
        """What each token does, the largest contribution first."""
        return Reasons(self)

    def view(self, number: int = 1) -> Decision:
        """As people read it, with its number among others."""
        struck = set(self.counterfactual or ())
        reasons = list(self.reasons)
        return Decision(
            kind="document",
            name=str(number),
            probabilities=named_probabilities(self),
            score=self.decision,
            start=self.bias,
            start_name="null token" if self.bias else "",
            change=_change(self),
            pieces=tuple(_pieces(self.text, reasons, struck)),
            headings=("token", "count", "attention", f"adds to {self.label}"),
            reasons=tuple(_part_reasons(self))
            + tuple(
                Reason((f"{one.column}={one.value}", "", "", f"{one.contribution:+.3f}"), one.contribution)
                for one in self.column_reasons
            )
            + tuple(
                Reason(
                    (reason.token, f"{reason.count:g}", f"{reason.attention:.3f}", f"{reason.contribution:+.3f}"),
                    reason.contribution,
                    reason.token in struck,
                )
                for reason in reasons
            ),
            separator="" if self.text is not None else "  ",
            note=_unknown(self),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        return {
            "text": self.text,
            **outcome_json(self),
            "probability": self.probability,
            "decision": self.decision,
            "bias": self.bias,
            "reasons": [asdict(reason) for reason in self.reasons],
            "counterfactual": self.counterfactual,
            "flips_to": plain_label(self.flips_to),
            **({"parts": [asdict(part) for part in self.parts]} if self.parts else {}),
            **({"columns": [asdict(one) for one in self.column_reasons]} if self.column_reasons else {}),
        }


@dataclass(frozen=True, eq=False)
class Reasons(Shown, Sequence[TokenReason]):
    """The arrays of an explanation, token by token.

    Reasons are made when they are asked for: as many small objects that stay, they would cost more time in Python's garbage
    collector than everything else together.
    """

    of: TextExplanation

    def _headline(self) -> str:
        return f"{pluralize(len(self), 'token')}, the largest contribution first"

    def _facts(self) -> dict[str, object]:
        return {"first": self[:FIRST]}

    def __len__(self) -> int:
        return len(self.of.columns)

    def __iter__(self) -> Iterator[TokenReason]:
        names = map(self.of.model.token_names_.__getitem__, self.of.columns.tolist())
        numbers = (self.of.counts, self.of.attention, self.of.contributions)
        counts, attention, contributions = (part.tolist() for part in numbers)
        spans = zip(*(part.tolist() for part in self.of.places), strict=True)
        places = [list(islice(spans, int(count))) for count in counts]
        encoded = [None] * len(counts) if self.of.encoded is None else self.of.encoded.tolist()
        return map(TokenReason, names, counts, attention, contributions, places, encoded)

    @overload
    def __getitem__(self, place: int) -> TokenReason: ...
    @overload
    def __getitem__(self, place: slice) -> list[TokenReason]: ...
    def __getitem__(self, place: int | slice) -> TokenReason | list[TokenReason]:
        return list(self)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def explain(model: TextModel, X: Any) -> list[TextExplanation]:
    """One explanation per document."""
    table = model._table(X)
    X, beside = model._split(table)
    found = texts_of(X)
    texts = None if found is None else list(chain.from_iterable(text_chunks(found)))
    if texts is None or not hasattr(model, "_vocabulary"):
        counts, places = count_documents(model, X if texts is None else texts), None
    else:
        model = with_words_of(model, texts)
        counts, places = model._vocabulary.place(texts)
    raw, encoder = model._outputs(counts) + beside, model._encoder
    if encoder is not None:
        texts = listed_texts(X) if texts is None else texts
        owners, added = encoder.of_parts(texts)
        np.add.at(raw, owners, added)
    outputs = raw - model._offset
    chosen = decide(outputs)
    column = chosen if outputs.shape[1] > 1 else np.zeros(len(chosen), dtype=np.int64)
    attention, contributions = _attention(model, counts, column)
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    # the one output of two classes speaks for the second; turned, it speaks for the label
    side = np.where(chosen > 0, 1.0, -1.0) if outputs.shape[1] == 1 else np.ones(len(chosen))
    decisions, contributions = side * outputs[np.arange(len(column)), column], side[rows] * contributions
    rest = decisions - np.bincount(rows, contributions, minlength=counts.shape[0])
    column_reasons: list[tuple[TextColumnReason, ...]] = [()] * len(chosen)
    if model._columns is not None:
        turned = side * model._columns.weights[:, column]
        column_reasons = [model._columns.reasons(table.columns, i, turned[:, i]) for i in range(len(chosen))]
        rest = rest - [sum(reason.contribution for reason in reasons) for reasons in column_reasons]
    order = np.lexsort((-np.abs(contributions), rows))
    columns, numbers, attention, contributions = (
        part[order] for part in (counts.indices, counts.data, attention, contributions)
    )
    starts, stops, ends = _reordered(counts, places, order)
    shares = model._probabilities(raw)
    probabilities = shares[np.arange(len(chosen)), chosen].tolist()
    linear = model.selection_.shape[1] == 1
    flips = (
        flipping_sets(model, counts, beside) if linear and encoder is None else [np.empty(0, np.int64)] * len(chosen)
    )
    others = _without(model, counts, flips, beside)
    explanations = []
    for i in range(counts.shape[0]):
        part = slice(counts.indptr[i], counts.indptr[i + 1])
        spans = slice(ends[part.start], ends[part.stop])
        explanations.append(
            TextExplanation(
                None if texts is None else texts[i],
                model.classes_[chosen[i]],
                probabilities[i],
                float(decisions[i]),
                float(rest[i]),
                columns[part],
                numbers[part],
                attention[part],
                contributions[part],
                Places(starts[spans], stops[spans]),
                model,
                flips[i],
                shares[i],
                model.classes_[others[i]] if len(flips[i]) else None,
                column_reasons=column_reasons[i],
            )
        )
    if encoder is None or texts is None:
        return explanations
    from whichtoken.estimators.text.encoder import text_parts

    places_of_parts = [span for text in texts for span in text_parts(text)]
    lists: list[list[TextPart]] = [[] for _ in texts]
    for (start, stop), owner, row in zip(places_of_parts, owners, added, strict=True):
        lists[owner].append(TextPart(start, stop, float(side[owner] * row[column[owner]])))
    return [_confirmed(why, tuple(parts)) for why, parts in zip(explanations, lists, strict=True)]


def _confirmed(why: TextExplanation, parts: tuple[TextPart, ...]) -> TextExplanation:
    """An explanation with what an encoder does: what it adds by each part, and all that is found by encoding again."""
    model, text, reasons = why.model, why.text or "", list(why.reasons)
    why = replace(why, parts=parts, bias=why.bias - sum(part.contribution for part in parts))

    def support(deleted: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
        """Class, score for the label, and the encoder's part of it, without some of the reasons."""
        shorter = [_delete(text, [span for k in some for span in reasons[k].places]) for some in deleted]
        assert model._encoder is not None
        own = model._encoder.outputs(shorter)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a text may lose all its words
            outputs = model._outputs(count_documents(model, shorter)) + own
        label = int(np.flatnonzero(model.classes_ == why.label)[0])
        place, sign = (label, 1.0) if own.shape[1] > 1 else (0, 1.0 if label else -1.0)
        return decide(outputs - model._offset), sign * outputs[:, place], sign * own[:, place]

    if not reasons:
        return why
    _, scores, own = support([[], *([k] for k in range(len(reasons)))])
    why = replace(why, encoded=own[0] - own[1:])
    order = np.argsort(scores[1:], kind="stable").tolist()  # what hurts the label most when it is gone comes first
    classes, _, _ = support([order[: k + 1] for k in range(len(order))])
    label = int(np.flatnonzero(model.classes_ == why.label)[0])
    changed = np.flatnonzero(classes != label)
    if not changed.size:
        return why
    found = order[: int(changed[0]) + 1]
    for k in list(found):  # what need not go stays
        rest = [other for other in found if other != k]
        if rest and support([rest])[0][0] != label:
            found = rest
    return replace(why, flips=why.columns[found], flips_to=model.classes_[support([found])[0][0]])


def _delete(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text without some places."""
    keep = np.ones(len(text), dtype=bool)
    for start, stop in spans:
        keep[start:stop] = False
    return "".join(letter for letter, stays in zip(text, keep, strict=True) if stays)


def _part_reasons(why: TextExplanation) -> Iterator[Reason]:
    for part in why.parts:
        said = (why.text or "")[part.start : part.stop].strip()
        name = f"encoder: {said if len(said) <= 60 else said[:57] + '...'}"
        yield Reason((name, "", "", f"{part.contribution:+.3f}"), part.contribution)


def top_words(model: TextModel, n: int, X: Any, language: str | None) -> pd.DataFrame:
    """See `TextModel.top_words`."""
    import pandas as pd

    names, totals = model.token_names_, model._statistics[0].sum(axis=1)
    stems = names
    if language is not None:
        stems = [" ".join(part) for part in TextPipeline(None, (), language, 1).pieces(names)]
    stopped = set(ENGLISH_STOP_WORDS) | {word.replace("'", "") for word in ENGLISH_STOP_WORDS}
    scale = np.exp(model.selection_ - model.selection_.max())  # (|S|, queries)
    effects = (scale[:, :, None] * model.values_).sum(axis=1)  # (|S|, outputs)
    effects /= np.abs(effects).max() or 1.0
    X = X if X is None else model._split(X)[0]
    texts = [] if X is None else list(texts_of(X) or ())
    held = None if X is None else count_documents(model, texts or X).tocsc()
    rows = []
    for k, name in enumerate(model.classes_):
        effect = effects[:, k] if effects.shape[1] > 1 else (effects[:, 0] if k else -effects[:, 0])
        grouped: dict[str, list[int]] = {}
        # of rare words the value is what chance gives: a word that occurs often speaks more often
        for s in np.argsort(-effect * np.sqrt(totals), kind="stable").tolist():
            if effect[s] > 0 and not (language == "english" and names[s] in stopped):
                grouped.setdefault(stems[s], []).append(s)
        size = {stem: sum(effect[s] * np.sqrt(totals[s]) for s in forms) for stem, forms in grouped.items()}
        for stem in sorted(grouped, key=lambda stem: -size[stem])[:n]:
            forms = grouped[stem]
            row = {"class": name, "word": names[forms[0]], "forms": ", ".join(names[s] for s in forms)}
            row |= {"count": float(totals[forms].sum()), "effect": float(effect[forms].sum())}
            rows.append(row if held is None else {**row, "example": _example(model, forms, held, texts)})
    return pd.DataFrame(rows)


def _example(model: TextModel, forms: list[int], held: sparse.csc_array, texts: list[str]) -> str:
    """A few words around one of these tokens in the shortest text that holds it; the number of the document without texts."""
    for s in forms:
        documents = held.indices[held.indptr[s] : held.indptr[s + 1]]
        if len(documents) and texts:
            text = min((texts[i] for i in documents), key=len)
            counts, places = model._vocabulary.place([text])
            first = int(counts.data[: int(np.flatnonzero(counts.indices == s)[0])].sum())
            place = int(places.starts[first]), int(places.stops[first])
            start, stop = max(0, place[0] - WINDOW), min(len(text), place[1] + WINDOW)
            return ("..." if start else "") + " ".join(text[start:stop].split()) + ("..." if stop < len(text) else "")
        if len(documents):
            return f"document {documents[0]}"
    return ""


def mistakes(model: TextModel, X: Any, y: Any, n: int) -> pd.DataFrame:
    """See `TextModel.mistakes`."""
    import pandas as pd

    if model._columns is None and (found := texts_of(X)) is not None:
        X = list(found)  # a stream is read once
    more, counts = count_with_spelled(model, model._split(X)[0])
    true, said = encode_classes(y, counts.shape[0], model.classes_), decide(model._decisions(X) - model._offset)

    rows = []
    pairs, sizes = np.unique(np.stack([true, said])[:, true != said], axis=1, return_counts=True)
    for (label, taken), size in sorted(zip(pairs.T.tolist(), sizes.tolist(), strict=True), key=lambda pair: -pair[1]):
        wrong, right = (counts[(true == label) & (said == one)] for one in (taken, label))
        holding, elsewhere = (document_frequency(some) / max(some.shape[0], 1) for some in (wrong, right))
        side, column = (1.0, taken) if len(model.classes_) > 2 else (1.0 if taken else -1.0, 0)
        adds = _attention(more, wrong, np.full(size, column))[1]
        adds = side * np.bincount(wrong.indices, adds, minlength=wrong.shape[1]) / size
        # a word that as many rightly labeled documents of the class hold does not explain the mistake
        excess = adds * np.maximum(1 - elsewhere / np.maximum(holding, 1e-300), 0)
        for s in np.argsort(-excess, kind="stable")[:n]:
            if excess[s] > 0:
                row = {"true": model.classes_[label], "predicted": model.classes_[taken], "documents": size}
                row |= {"token": more.token_names_[s], "holding": float(holding[s])}
                rows.append({**row, "holding_right": float(elsewhere[s]), "contribution": float(adds[s])})
    columns = ["true", "predicted", "documents", "token", "holding", "holding_right", "contribution"]
    return pd.DataFrame(rows, columns=columns)


def _reordered(
    counts: sparse.csr_array, places: Places | None, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Starts and stops of the occurrences when the stored counts are put into a new order, and where those of each end."""
    if places is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(len(order) + 1, np.int64)
    sizes = counts.data[order]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    before = (np.cumsum(counts.data) - counts.data)[order]
    source = np.arange(ends[-1]) + np.repeat(before - ends[:-1], sizes)
    return places.starts[source], places.stops[source], ends


def _without(
    model: TextModel, counts: sparse.csr_array, flips: Sequence[NDArray[np.int64]], beside: Any
) -> NDArray[np.int64]:
    """Number of the class of each document without some of its tokens; a third class may win instead of the rival."""
    rest, width = counts.copy(), counts.shape[1]
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    deleted = [row * width + tokens for row, tokens in enumerate(flips) if len(tokens)]
    if deleted:
        rest.data[np.isin(rows * width + counts.indices, np.concatenate(deleted))] = 0
        rest.eliminate_zeros()
    return decide(model._outputs(rest) + beside - model._offset)


def _attention(
    model: TextModel, counts: sparse.csr_array, column: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Attention and contribution of every stored count, in the order of `counts.data`."""
    amounts = model._amounts(counts)
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    attention, contributions = np.zeros(len(rows)), np.zeros(len(rows))
    queries = model.selection_.shape[1]
    for h in range(queries):
        selection = np.ascontiguousarray(model.selection_[:, h])
        share = pool_weights(selection, counts.indptr, amounts.data, model.log_null_, tokens=counts.indices)
        attention += share / queries
        contributions += share * (
            model.values_[counts.indices, h, column[rows]] + model._decision_bias[column[rows]] / queries
        )
    return attention, contributions


def _unknown(explanation: TextExplanation) -> str:
    """Which words of a text the model does not know; an encoder reads them all."""
    model: Any = explanation.model
    text, vocabulary = explanation.text, getattr(model, "_vocabulary", None)
    if text is None or vocabulary is None or model._encoder or not isinstance(vocabulary.tokenizer, TextPipeline):
        return ""
    words = vocabulary.tokenizer.tokens([text]).names
    strange = [word for word in words if word not in vocabulary.table.tokens]
    named = ", ".join(strange[:5]) + (", ..." if len(strange) > 5 else "")
    return f"the model does not know {len(strange)} of {pluralize(len(words), 'word')}: {named}" if strange else ""


def _change(explanation: TextExplanation) -> Change:
    if explanation.counterfactual and explanation.parts:
        return Change(tuple(explanation.counterfactual), str(explanation.flips_to), proven=False)
    if explanation.parts:
        return Change((), none="no deletion that was tried by encoding again changes the label")
    if explanation.counterfactual:
        return Change(tuple(explanation.counterfactual), str(explanation.flips_to))
    if explanation.model.selection_.shape[1] > 1:
        return Change((), none="with several queries, what would change the label is not known exactly")
    return Change((), none="no deletion of tokens changes the label")


def _pieces(text: str | None, reasons: list[TokenReason], struck: set[str]) -> Iterator[Piece]:
    """The text cut where its strongest reason changes; of counts, the tokens alone."""
    notes = (
        f"{r.token}: attention {r.attention:.3f}, adds {r.contribution:+.3f}"
        + ("" if r.encoded is None else f"; by encoding again {r.encoded:+.3f}")
        for r in reasons
    )
    numbers = [(r.contribution, note, r.token in struck) for r, note in zip(reasons, notes, strict=True)]
    if text is None:
        yield from (Piece(reason.token, *marked) for reason, marked in zip(reasons, numbers, strict=True))
        return
    owner: list[int | None] = [None] * len(text)  # the strongest reason at each character
    for place in range(len(reasons) - 1, -1, -1):
        for first, last in reasons[place].places:
            owner[first:last] = [place] * (last - first)
    start = 0
    for stop in range(1, len(text) + 1):
        if stop == len(text) or owner[stop] != owner[start]:
            number = owner[start]
            yield Piece(text[start:stop]) if number is None else Piece(text[start:stop], *numbers[number])
            start = stop
