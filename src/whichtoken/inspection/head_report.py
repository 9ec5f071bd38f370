"""One head over a corpus: what it picks, what predicts its picks (place, word, labels), and the shape of its matrix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import binomtest, false_discovery_control, rankdata
from torch import nn

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection.corpus import CorpusPicks, encode, longest_text, pad
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.inspection.sites import anatomy, find_sites, linear_weight
from whichtoken.inspection.survival import PickSurvival, confidence_word
from whichtoken.inspection.words import token_name, whole_words
from whichtoken.margin import key_query_svm

LEAST_TEXTS = 4  # before place and word are compared on unseen ones
LEAST_RULE_TEXTS, MOST_RULE_TEXTS = 40, 500  # half of them to solve the rule of a head, half to test it
LEAST_OCCURRENCES = 5  # texts in which a token must occur before its pick rate is compared with anything
LEAST_TOKENS = 10
PERMUTATIONS = 1999
MOST_NAMES = 8

Picked = Sequence[int]  # position of the pick in each text
Ids = Sequence[NDArray[np.int32]]  # token ids of each text
Rows = NDArray[np.int64]  # numbers of texts


@dataclass(frozen=True)
class Agreement(Shown):
    """Share of picks on unseen texts that something predicts, with a 95 % interval (Wilson)."""

    share: float
    low: float
    high: float


NO_AGREEMENT = Agreement(math.nan, math.nan, math.nan)


def _agreement(hits: int, count: int) -> Agreement:
    interval = binomtest(int(hits), count).proportion_ci(method="wilson")
    return Agreement(hits / count, float(interval.low), float(interval.high))


def _simple_predictions(picked: Picked, ids: Ids, train: Rows, test: Rows) -> tuple[Agreement, Agreement, float]:
    """Share of the test picks that place alone and word alone predict, learned from the other texts, and chance."""
    return (
        _agreement(_hits_by_position(picked, [len(text) for text in ids], train, test), len(test)),
        _agreement(_hits_by_token(picked, ids, train, test), len(test)),
        float(np.mean([1 / len(ids[i]) for i in test])),
    )


def _hits_by_position(picked: Picked, lengths: Sequence[int], train: Rows, test: Rows) -> int:
    """Test picks at the most frequent place of the other texts, counted from the front or from the back."""
    front = np.array([picked[i] for i in train])
    back = np.array([lengths[i] - 1 - picked[i] for i in train])
    best_front, best_back = (int(np.bincount(places).argmax()) for places in (front, back))
    if np.mean(front == best_front) >= np.mean(back == best_back):
        return sum(picked[i] == best_front for i in test)
    return sum(lengths[i] - 1 - picked[i] == best_back for i in test)


def _hits_by_token(picked: Picked, ids: Ids, train: Rows, test: Rows) -> int:
    """Test picks of the token that is picked most often, where it occurs, in the other texts."""
    rates = _pick_rates(picked, ids, train)
    overall = 1 / float(np.mean([len(ids[i]) for i in train]))
    return sum(int(np.argmax([rates.get(int(t), overall) for t in ids[i]])) == picked[i] for i in test)


def _pick_rates(picked: Picked, ids: Ids, rows: Rows) -> dict[int, float]:
    """How often each token is picked where it occurs, shrunk toward the mean by one text of average length."""
    present = Counter(int(token) for i in rows for token in ids[i])
    chosen = Counter(int(ids[i][picked[i]]) for i in rows)
    prior = 1 / float(np.mean([len(ids[i]) for i in rows]))
    return {token: (chosen[token] + prior) / (count + 1) for token, count in present.items()}


@dataclass(frozen=True)
class Relations:
    """Rank correlations of a head's pick rates over tokens; not a number where there are too few."""

    frequency: float = math.nan
    # with the posterior difference of the token, in standard errors; frequency held fixed
    label_correlation: float = math.nan
    # with |signed frequency|, the size of its first gradient step; frequency not held fixed
    p_value: float = math.nan  # of label_correlation


class TokenRelations:
    """What the tokens of a corpus say about labels, computed once and compared with the picks of many heads."""

    def __init__(self, ids: Ids, classes: NDArray[np.int64] | None, seed: int = 0) -> None:
        rows = np.concatenate([np.full(len(np.unique(text)), i) for i, text in enumerate(ids)])
        found = np.concatenate([np.unique(text) for text in ids])
        names, places, counts = np.unique(found, return_inverse=True, return_counts=True)
        keep = counts >= LEAST_OCCURRENCES
        self.tokens, self.counts = names[keep], counts[keep]
        incidence = sparse.csr_matrix((np.ones(len(rows)), (places, rows)), shape=(len(names), len(ids)))
        self._incidence = incidence[np.flatnonzero(keep)]
        self._frequency = _standard(self.counts.astype(float))
        self._labeled = classes is not None and len(self.tokens) >= LEAST_TOKENS
        if classes is not None and self._labeled:
            onehot = np.eye(int(classes.max()) + 1)[classes]  # (texts, classes)
            self._posterior = self._without_frequency(self._label_difference(onehot))
            rng = np.random.default_rng(seed)
            orders = (rng.permutation(len(ids)) for _ in range(PERMUTATIONS))
            self._null = np.stack([self._without_frequency(self._label_difference(onehot[order])) for order in orders])

    def of(self, rates: dict[int, float]) -> Relations:
        """Rank correlations of the pick rates of a head with frequency and labels."""
        rate = np.array([rates.get(int(token), 0.0) for token in self.tokens])
        if len(rate) < LEAST_TOKENS or np.ptp(rate) == 0:
            return Relations()
        ranks = _standard(rate)
        frequency = float(np.dot(ranks, self._frequency))
        if not self._labeled:
            return Relations(frequency)
        held = self._without_frequency(rate)
        observed = float(np.dot(held, self._posterior))
        p_value = (1 + int((np.dot(self._null, held) >= observed - 1e-12).sum())) / (1 + PERMUTATIONS)
        return Relations(frequency, observed, p_value)

    def _label_difference(self, onehot: NDArray[np.float64]) -> NDArray[np.float64]:
        """Largest difference, over classes, between their share among the texts with a token and among all: (tokens,).

        In standard errors, up to a constant: a token of four texts differs twice as much by chance as one of sixteen.
        """
        inside = np.asarray(self._incidence @ onehot) / self.counts[:, None]
        return np.asarray(np.abs(inside - onehot.mean(0)).max(1) * np.sqrt(self.counts))

    def _without_frequency(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ranks without what frequency explains of them, with norm 1."""
        ranks = _standard(values)
        rest = ranks - np.dot(ranks, self._frequency) * self._frequency
        norm = np.linalg.norm(rest)
        return np.asarray(rest / norm if norm > 1e-9 else rest)


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks with mean 0 and norm 1, so that products are rank correlations."""
    ranks = rankdata(values) - (len(values) + 1) / 2
    norm = np.linalg.norm(ranks)
    return np.asarray(ranks / norm if norm > 0 else ranks)


def _factors(model: nn.Module, layer: int, head: int, heads: int) -> tuple[NDArray[np.float64], ...] | None:
    """Key and query factors of a head with their biases, (dim, width + 1) each; None where they are not modules."""
    try:
        projections = anatomy(model, next(site for site in find_sites(model) if layer in site.layers)).query_key()
    except UsageError:
        return None
    if projections is None:
        return None
    dim = linear_weight(projections[0]).shape[0] // heads
    factors = []
    for projection in reversed(projections):
        weight = linear_weight(projection).detach().double().numpy()
        bias: Any = getattr(projection, "bias", None)
        whole = np.c_[weight, np.zeros(len(weight)) if bias is None else bias.detach().double().numpy()]
        # heads may share keys
        own = head if len(whole) == heads * dim else head * (len(whole) // dim) // heads
        factors.append(whole[own * dim : (own + 1) * dim])
    return tuple(factors)


@dataclass(frozen=True)
class BilinearRule(Shown):
    """The max-margin rule of a head and what it explains.

    Few texts in many unknowns separate by chance, so that a margin alone proves nothing. What counts is the agreement on
    texts that the rule has not seen, beside that of simpler explanations.
    """

    texts: int  # in the half that the rule was solved on
    agreement: Agreement  # of the rule's picks with the head's
    own: Agreement  # of the head's own matrix: 1 where the head is a function of these vectors and nothing else
    position: Agreement  # of the place alone
    token: Agreement  # of the word alone
    chance: float  # of a random pick
    best_margin: float  # the largest that any matrix of norm 1 reaches on the first half
    realised_margin: float  # of the head's own matrix, scaled to norm 1
    gap: float  # certified distance of best_margin from the optimum
    status: str


def _bilinear_rule(
    hidden: Sequence[NDArray[np.float64]], queries: NDArray[np.float64], picked: Picked, ids: Ids, own: NDArray[np.float64]
) -> BilinearRule:  # fmt: skip
    """Solve the key-query problem of a head on half of the texts and count its hits on the other half.

    Parameters
    ----------
    hidden : list of (tokens, width) arrays
        Input of the layer, for the tokens that can be picked.
    queries : (texts, width)
        Input of the layer at the query.
    picked : (texts,) positions among `hidden`
    ids : list of (tokens,) arrays
        Token ids.
    own : (width + 1, width + 1)
        The head's own matrix, for vectors with a 1 at the end (biases of keys and queries).
    """
    order = np.random.default_rng(0).permutation(len(hidden))
    train, test = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    tokens = [np.c_[text, np.ones(len(text))] for text in hidden]
    asked = np.c_[queries, np.ones(len(queries))]
    solved = key_query_svm([tokens[i] for i in train], asked[train], [picked[i] for i in train])
    direction = np.zeros((asked.shape[1],) * 2) if solved.direction is None else solved.direction
    position, token, chance = _simple_predictions(picked, ids, train, test)

    def hits(matrix: NDArray[np.float64]) -> Agreement:
        return _agreement(sum(int(np.argmax(tokens[i] @ matrix @ asked[i])) == picked[i] for i in test), len(test))

    margins, unit = [], own / np.linalg.norm(own)
    for i in train:
        scores = tokens[i] @ unit @ asked[i]
        rivals = np.delete(scores, picked[i])
        if len(rivals):
            margins.append(scores[picked[i]] - rivals.max())
    return BilinearRule(
        len(train), hits(direction), hits(own), position, token, chance, best_margin=float(solved.margin),
        realised_margin=float(min(margins, default=math.nan)), gap=float(solved.gap), status=solved.status,
    )  # fmt: skip


@dataclass(frozen=True)
class HeadReport(Shown):
    """What a head does over a corpus: one line of `Inspection.reports`.

    Reach for `kind` and `state` first: whether the head looks at sinks, picks by place, or picks by content, and whether its
    picks are decided. Every share is measured on texts that were not used to find the rule, with an interval.

    Attributes
    ----------
    layer, head, texts : int
        Which head, and over how many texts.
    top_picks : tuple of tuple[str, float]
        Whole word and share of the texts.
    sinks : tuple of tuple[str, float]
        Token and share of the texts in which it is an attention sink.
    special_mass : float
        Mean attention on special tokens.
    sink_share : float
        Mean attention on the head's attention sinks.
    gap : float
        Median distance of the pick from the runner-up, in score.
    weight : float
        Median attention on the pick.
    effective_tokens : float
        Mean number of tokens that are looked at.
    largest_logit : float
        Largest score.
    contribution : float
        Mean share of what all heads of the layer add to the residual stream.
    position : Agreement
        Share of the picks on unseen texts that the place alone predicts.
    token : Agreement
        Share of the picks on unseen texts that the word alone predicts.
    chance : float
        Share of the picks that would be predicted by chance.
    label_correlation : float
        Rank correlation of pick rate with what a token says about the label, frequency held fixed.
    label_q : float
        Its false discovery rate over all heads, against labels in random order.
    frequency : float
        Rank correlation of pick rate with how often a token occurs.
    survival : float
        Median chance that its pick survives a change of one other word.
    rule : BilinearRule
        Whether the head is one bilinear max-margin rule.

    Examples
    --------
    >>> from whichtoken.inspection import inspect, load_tokenizer, load_transformer
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> report = inspect(load_transformer("my-model"), texts, load_tokenizer("my-model")).reports[0]
    >>> report.texts, report.kind in {"sink", "position", "content", "mixed"}
    (4, True)
    """

    layer: int
    head: int
    texts: int
    top_picks: tuple[tuple[str, float], ...]
    sinks: tuple[tuple[str, float], ...]
    special_mass: float
    sink_share: float
    gap: float
    weight: float
    effective_tokens: float
    largest_logit: float
    contribution: float
    position: Agreement
    token: Agreement
    chance: float
    label_correlation: float = math.nan
    label_q: float = math.nan
    frequency: float = math.nan
    survival: float = math.nan
    rule: BilinearRule | None = None

    @property
    def state(self) -> str:
        """Decided, torn or tie: how its typical pick stands a change of one other word."""
        return confidence_word(self.survival)

    @property
    def kind(self) -> str:
        """Sink, position, content or mixed; unknown where there are too few texts."""
        if self.sink_share > 0.5:
            return "sink"
        if self.texts < LEAST_TEXTS:
            return "unknown"
        if self.position.low > self.token.high:
            return "position"
        return "content" if self.token.low > max(self.position.high, self.chance) else "mixed"

    def as_json(self) -> dict[str, Any]:
        """Every number, for `json.dumps`."""
        return asdict(self) | {"kind": self.kind, "state": self.state}


def head_reports(
    picks: CorpusPicks,
    tokenizer: Any,
    labels: Sequence[Any] | None = None,
    survival: PickSurvival | None = None,
    seed: int = 0,
) -> list[HeadReport]:
    """Summarize the picks of all heads over a corpus, in the order of layers and heads.

    Reach for it to summarize picks again, with other labels, without running the model. The false discovery rate of the
    label correlations is controlled over all heads.

    Parameters
    ----------
    picks : CorpusPicks
        Every pick over a corpus, as in `Inspection.picks`.
    tokenizer : tokenizer
        That of the model.
    labels : sequence, optional
        One per text: then picks are compared with what tokens say about labels.
    survival : PickSurvival, optional
        How likely a pick survives, by its gap.
    seed : int, default=0
        Seed for the shuffled labels.

    Returns
    -------
    list of HeadReport
        One per head.

    Examples
    --------
    >>> from whichtoken.inspection import head_reports, inspect, load_tokenizer, load_transformer
    >>> tokenizer = load_tokenizer("my-model")
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> found = inspect(load_transformer("my-model"), texts, tokenizer)
    >>> len(head_reports(found.picks, tokenizer)) == len(found.reports)
    True
    """
    texts, layers, heads = picks.token.shape
    classes = None if labels is None else label_classes(labels, texts)
    relations = TokenRelations(picks.ids, classes, seed)
    spelled = [whole_words(tokenizer, text.tolist())[0] for text in picks.ids]
    reports, p_values = [], []
    for layer in range(layers):
        for head in range(heads):
            report, p_value = _report(picks, tokenizer, spelled, relations, layer, head, seed)
            if survival is not None:
                chances = survival.probability(picks.gap[:, layer, head], layer)
                report = replace(report, survival=float(np.median(chances)))
            reports.append(report)
            p_values.append(p_value)
    if classes is None:
        return reports
    known = np.isfinite(p_values)
    rates = np.full(len(p_values), np.nan)
    if known.any():
        rates[known] = false_discovery_control(np.asarray(p_values)[known])
    return [replace(report, label_q=float(q)) for report, q in zip(reports, rates, strict=True)]


def label_classes(labels: Sequence[Any], texts: int) -> NDArray[np.int64]:
    """The number of each text's label, if there are labels enough."""
    if len(labels) != texts:
        raise UsageError(f"{len(labels)} labels for {texts} texts; give one label per text")
    names, classes = np.unique(np.asarray(labels).astype(str), return_inverse=True)
    if len(names) < 2:
        raise UsageError(f"every text has the label {names[0]}; two different labels are needed")
    return classes


def _report(
    picks: CorpusPicks, tokenizer: Any, spelled: list[list[str]], relations: TokenRelations, layer: int, head: int, seed: int
) -> tuple[HeadReport, float]:  # fmt: skip
    """The report of one head, and the p-value of its label correlation."""
    here = slice(None), layer, head
    token = picks.token[here]
    rows = np.flatnonzero(token >= 0)
    texts = len(rows)
    chosen, ids = [int(token[i]) for i in rows], [picks.ids[i] for i in rows]
    position, word, chance = NO_AGREEMENT, NO_AGREEMENT, math.nan
    if texts >= LEAST_TEXTS:
        order = np.random.default_rng(seed).permutation(texts)
        position, word, chance = _simple_predictions(chosen, ids, order[: texts // 2], order[texts // 2 :])
    related = relations.of(_pick_rates(chosen, ids, np.arange(texts)) if texts else {})
    added = picks.contribution[:, layer]
    gap = picks.gap[here]
    finite = gap[np.isfinite(gap)]

    words = Counter(spelled[i][token[i]] for i in rows).most_common(MOST_NAMES)
    sinks = picks.sink_names[layer][head].most_common(MOST_NAMES)
    report = HeadReport(
        layer, head, texts,
        top_picks=tuple((name, count / texts) for name, count in words),
        sinks=tuple((token_name(tokenizer, sink), count / len(token)) for sink, count in sinks),
        special_mass=float(picks.special_mass[here].mean()), sink_share=float(picks.sink_share[here].mean()),
        gap=float(np.median(finite)) if len(finite) else math.inf, weight=float(np.median(picks.weight[here])),
        effective_tokens=float(np.exp(picks.entropy[here]).mean()), largest_logit=float(picks.largest_logit[here].max()),
        contribution=float((added[:, head] / np.maximum(added.sum(1), 1e-30)).mean()),
        position=position, token=word, chance=chance, label_correlation=related.label_correlation,
        frequency=related.frequency,
    )  # fmt: skip
    return report, related.p_value


def with_rule(
    report: HeadReport, model: nn.Module, tokenizer: Any, texts: Sequence[str], queries: str, picks: CorpusPicks
) -> HeadReport:
    """The report of a head with its bilinear rule, where there are texts enough and its projections are found."""
    layer, head = report.layer, report.head
    factors = _factors(model, layer, head, picks.token.shape[2])
    rows = np.flatnonzero(picks.token[:, layer, head] >= 0)[:MOST_RULE_TEXTS]
    if factors is None or len(rows) < LEAST_RULE_TEXTS:
        return report
    key, query = factors
    # what the layer is given, for the tokens that are not special
    hidden, asked, chosen, ids = [], [], [], []
    encoded, _ = encode(tokenizer, [texts[i] for i in rows], longest_text(model, tokenizer))
    with AttentionProbe(model, layers=[layer], heads=[head], queries="last", hidden=True) as probe, torch.no_grad():
        for row, text in zip(rows, encoded, strict=True):
            model(**pad(tokenizer, [text]))
            given = probe.reading(layer).hidden
            assert given is not None
            vectors = given[0].double().numpy()
            keep = np.flatnonzero(~np.isin(text, tokenizer.all_special_ids))
            hidden.append(vectors[keep])
            asked.append(vectors[0 if queries == "cls" else -1])
            chosen.append(int(np.flatnonzero(keep == picks.token[row, layer, head])[0]))
            ids.append(np.asarray(text, dtype=np.int32)[keep])
    return replace(report, rule=_bilinear_rule(hidden, np.stack(asked), chosen, ids, len(key) ** -0.5 * key.T @ query))
