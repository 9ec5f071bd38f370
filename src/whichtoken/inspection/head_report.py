"""One head over a corpus: what it picks, by place or by content, and what its picks have to do with labels."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection.corpus import CorpusPicks
from whichtoken.inspection.rule import (
    NOTHING,
    Agreement,
    BilinearRule,
    hits_by_position,
    hits_by_token,
    pick_rates,
    share,
)
from whichtoken.inspection.token_relations import TokenRelations
from whichtoken.inspection.weight_shape import WeightShape

MOST_NAMES = 8


@dataclass(frozen=True)
class HeadReport(Shown):
    """What a head does over a corpus; `control` is the same head of the same model with shuffled weights.

    Attributes
    ----------
    layer, head, texts : int
        Which head, and over how many texts.
    top_picks : tuple of tuple[str, float]
        Token and share of the texts.
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
    signed_frequency : float
        Rank correlation of pick rate with |signed frequency|.
    frequency : float
        Rank correlation of pick rate with how often a token occurs.
    control : HeadReport
        The same head with shuffled weights.
    shape : WeightShape
        The key-query matrix of the head by itself: rank, spread, balance.
    rule : BilinearRule
        Whether the head is one bilinear max-margin rule.

    Examples
    --------
    >>> from whichtoken.inspection import inspect, load_tokenizer, load_transformer
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> report = inspect(load_transformer("my-model"), texts, load_tokenizer("my-model"), shown=1, control=False).reports[0]
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
    label_correlation: float = float("nan")
    label_q: float = float("nan")
    signed_frequency: float = float("nan")
    frequency: float = float("nan")
    control: HeadReport | None = None
    shape: WeightShape | None = None
    rule: BilinearRule | None = None

    @property
    def kind(self) -> str:
        """In a word: sink, position, content or mixed."""
        if self.sink_share > 0.5:
            return "sink"
        if self.position.low > self.token.high:
            return "position"
        return "content" if self.token.low > max(self.position.high, self.chance) else "mixed"

    def as_json(self) -> dict[str, Any]:
        """Every number, for `json.dumps`."""
        return asdict(self) | {"kind": self.kind, "control": None if self.control is None else self.control.as_json()}


def head_reports(
    picks: CorpusPicks,
    tokenizer: Any,
    labels: Sequence[Any] | None = None,
    control: CorpusPicks | None = None,
    seed: int = 0,
) -> list[HeadReport]:
    """Reports of all heads, in the order of layers and heads; false discoveries are controlled over them.

    Parameters
    ----------
    picks : CorpusPicks
        Every pick over a corpus, as in `Inspection.picks`.
    tokenizer : tokenizer
        That of the model.
    labels : sequence, optional
        One per text: then picks are compared with what tokens say about labels.
    control : CorpusPicks, optional
        The picks of the same model with shuffled weights.
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
    >>> found = inspect(load_transformer("my-model"), texts, tokenizer, shown=1, control=False)
    >>> len(head_reports(found.picks, tokenizer)) == len(found.reports)
    True
    """
    from scipy.stats import false_discovery_control

    texts, layers, heads = picks.token.shape
    if labels is not None and len(labels) != texts:
        raise UsageError(f"{len(labels)} labels for {texts} texts; give one label per text")
    classes = None if labels is None else _classes(labels)
    relations = TokenRelations(picks.ids, classes, seed)
    reports, values = [], []
    for layer in range(layers):
        for head in range(heads):
            report, p_value = _report(picks, tokenizer, relations, layer, head, seed)
            other = None if control is None else _report(control, tokenizer, relations, layer, head, seed)[0]
            reports.append(replace(report, control=other))
            values.append(p_value)
    if classes is None:
        return reports
    known = np.isfinite(values)
    rates = np.full(len(values), np.nan)
    if known.any():
        rates[known] = false_discovery_control(np.asarray(values)[known])
    return [replace(report, label_q=float(q)) for report, q in zip(reports, rates, strict=True)]


def _report(
    picks: CorpusPicks, tokenizer: Any, relations: TokenRelations, layer: int, head: int, seed: int
) -> tuple[HeadReport, float]:
    token = picks.token[:, layer, head]
    rows = np.flatnonzero(token >= 0)
    texts = len(rows)
    chosen, ids = [int(token[i]) for i in rows], [picks.ids[i] for i in rows]
    names = Counter(int(text[place]) for text, place in zip(ids, chosen, strict=True))
    position, word, chance = _predictability(chosen, ids, seed)
    related = relations.of(pick_rates(chosen, ids, np.arange(texts)) if texts else {})
    added = picks.contribution[:, layer]
    gap = picks.gap[:, layer, head]
    finite = gap[np.isfinite(gap)]
    report = HeadReport(
        layer=layer,
        head=head,
        texts=texts,
        top_picks=_named(names, tokenizer, max(texts, 1)),
        sinks=_named(picks.sink_names[layer][head], tokenizer, len(token)),
        special_mass=float(picks.special_mass[:, layer, head].mean()),
        sink_share=float(picks.sink_share[:, layer, head].mean()),
        gap=float(np.median(finite)) if len(finite) else float("inf"),
        weight=float(np.median(picks.weight[:, layer, head])),
        effective_tokens=float(np.exp(picks.entropy[:, layer, head]).mean()),
        largest_logit=float(picks.largest_logit[:, layer, head].max()),
        contribution=float((added[:, head] / np.maximum(added.sum(1), 1e-30)).mean()),
        position=position,
        token=word,
        chance=chance,
        label_correlation=related.label_correlation,
        signed_frequency=related.signed_frequency,
        frequency=related.frequency,
    )
    return report, related.p_value


def _predictability(chosen: list[int], ids: list[NDArray[np.int32]], seed: int) -> tuple[Agreement, Agreement, float]:
    """Picks on half of the texts that place and word predict from the other half, and chance."""
    if len(chosen) < 4:
        return NOTHING, NOTHING, float("nan")
    order = np.random.default_rng(seed).permutation(len(chosen))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    position = hits_by_position(chosen, [len(text) for text in ids], train, test)
    word = hits_by_token(chosen, ids, train, test)
    return share(position, len(test)), share(word, len(test)), float(np.mean([1 / len(ids[i]) for i in test]))


def _named(counts: Counter[int], tokenizer: Any, texts: int) -> tuple[tuple[str, float], ...]:
    return tuple((token_name(tokenizer, token), count / texts) for token, count in counts.most_common(MOST_NAMES))


def token_name(tokenizer: Any, token: int) -> str:
    """A token as a reader knows it."""
    from whichtoken.display.text import visible

    name = str(tokenizer.convert_ids_to_tokens(int(token)))
    return visible(name.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\\n"), keep="")


def _classes(labels: Sequence[Any]) -> NDArray[np.int64]:
    names, numbers = np.unique(np.asarray(labels).astype(str), return_inverse=True)
    if len(names) < 2:
        raise UsageError(f"every text has the label {names[0]}; two different labels are needed")
    return np.asarray(numbers, dtype=np.int64)


def shuffled(model: nn.Module, seed: int = 0) -> nn.Module:
    """The same model with the entries of every weight matrix in random order: what a head does by chance."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.dim() > 1:
                order = torch.randperm(parameter.numel(), generator=generator)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return other
