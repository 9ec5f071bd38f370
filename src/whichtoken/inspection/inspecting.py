"""`inspect(model, texts, tokenizer=...)`: every head over the texts, one head closely, and whether its picks mattered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection.anatomy import anatomy
from whichtoken.inspection.attribution import token_shares
from whichtoken.inspection.corpus import CorpusPicks, corpus_picks, encode, longest_text, pad
from whichtoken.inspection.decision import decision
from whichtoken.inspection.direct import DirectContributions, direct_contributions
from whichtoken.inspection.effects import PickEffects, pick_effects
from whichtoken.inspection.faithfulness import curves, occlusion
from whichtoken.inspection.head_report import HeadReport, head_reports, shuffled, token_name
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.inspection.rule import LEAST_TEXTS, bilinear_rule
from whichtoken.inspection.sites import find_sites
from whichtoken.inspection.weight_shape import factors, weight_shape

SHOWN = 6
RULE_TEXTS = 500


@dataclass(frozen=True, eq=False)
class TextView(Shown):
    """One text as the page shows it: what each head's query picked, and what the tokens did to the decision."""

    number: int  # of the text, from 0
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    picked: NDArray[np.int64]  # (layers, heads): position of the pick
    runner_up: NDArray[np.int64]
    gap: NDArray[np.float64]
    weight: NDArray[np.float64]
    decision: str
    shares: NDArray[np.float64] | None  # of the tokens in the decision, with the selections held
    areas: dict[str, float]  # deletion area of rankings: ours, occlusion, random (smaller is truer)
    effects: PickEffects | None  # of the chosen layer
    direct: DirectContributions | None


@dataclass(frozen=True, eq=False)
class Inspection(Shown):
    """What `inspect` found; shows itself in a notebook, and as a page with `to_html`.

    Attributes
    ----------
    model : str
        Name of the model.
    queries : str
        Whose picks.
    texts : int
        Number of texts.
    truncated : int
        How many of them were too long and cut.
    layer, head : int
        The head that was looked at closely.
    reports : list[HeadReport]
        What each head does.
    views : list[TextView]
        The texts that are shown.
    labels : bool
        Whether texts had labels.
    picks : CorpusPicks
        Every pick.

    Examples
    --------
    >>> from whichtoken.inspection import inspect, load_tokenizer, load_transformer
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> found = inspect(load_transformer("my-model"), texts, load_tokenizer("my-model"), shown=1, control=False)
    >>> len(found.reports), found.report(layer=0, head=1).head
    (8, 1)
    """

    model: str
    queries: str
    texts: int
    truncated: int
    layer: int
    head: int
    reports: list[HeadReport]
    views: list[TextView]
    labels: bool
    picks: CorpusPicks

    def report(self, layer: int, head: int) -> HeadReport:
        """The report of one head."""
        heads = self.picks.token.shape[2]
        return self.reports[int(layer * heads + head)]

    def grid(self, name: str) -> NDArray[np.float64]:
        """One number of all heads: (layers, heads)."""
        return np.array([getattr(report, name) for report in self.reports]).reshape(self.picks.token.shape[1:])

    def summary(self) -> list[str]:
        """The findings in a few lines."""
        report = self.report(self.layer, self.head)
        kinds = [item.kind for item in self.reports]
        words = {"content": "by content", "position": "by position", "sink": "mostly at sinks", "mixed": "neither"}
        counts = ", ".join(f"{kinds.count(kind)} {word}" for kind, word in words.items())
        names = ", ".join(f"{name} ({100 * part:.0f} %)" for name, part in report.top_picks[:5])
        lines = [
            f"{self.model}: {len(self.reports)} heads over {self.texts} texts; picks: {counts}",
            f"layer {self.layer}, head {self.head} picks {names}; median gap {report.gap:.2f}",
        ]
        for view in self.views[:1]:
            if view.effects is not None:
                token = view.tokens[int(view.effects.picks.token[0, self.head, 0])]
                removed, deleted = view.effects.removed[self.head], view.effects.deleted[self.head]
                cost = f"{removed:.3f} without its value" + (
                    f", {deleted:.3f} without the token" if deleted == deleted else ""
                )
                lines.append(f"text 1: it looks at {token}; the decision loses {cost}")
        if self.truncated:
            lines.append(f"note: {self.truncated} of {self.texts} texts were longer than the model allows and were cut")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Every number, for `json.dumps`; what is not a finite number is null."""
        views = [
            {
                "text": view.number, "tokens": list(view.tokens), "decision": view.decision,
                "picked": view.picked.tolist(), "runner_up": view.runner_up.tolist(), "gap": view.gap.tolist(),
                "shares": None if view.shares is None else view.shares.tolist(), "deletion_areas": view.areas,
                "effects": None if view.effects is None else {
                    "layer": view.effects.layer, "score": view.effects.score, "removed": view.effects.removed.tolist(),
                    "masked": view.effects.masked.tolist(), "deleted": view.effects.deleted.tolist(),
                },
                "direct": None if view.direct is None else {
                    "heads": view.direct.heads.tolist(), "linearisation_error": view.direct.error,
                },
            }
            for view in self.views
        ]  # fmt: skip
        whole = {
            "model": self.model, "queries": self.queries, "texts": self.texts, "truncated": self.truncated,
            "layer": self.layer, "head": self.head, "heads": [report.as_json() for report in self.reports], "shown": views,
        }  # fmt: skip
        return finite(whole)  # type: ignore[no-any-return]

    def to_html(self, path: str | Path) -> None:
        """Write the page, whole or not at all."""
        from whichtoken.files import write_text
        from whichtoken.inspection.html import inspection_page

        write_text(path, inspection_page(self))

    def _repr_html_(self) -> str:
        from whichtoken.inspection.html import fragment

        return fragment(self)

    def _headline(self) -> str:
        return "; ".join(self.summary()[:2])


def inspect(
    model: nn.Module,
    texts: Sequence[str],
    tokenizer: Any = None,
    *,
    labels: Sequence[Any] | None = None,
    layer: int | None = None,
    head: int | None = None,
    queries: str | None = None,
    shown: int = SHOWN,
    control: bool = True,
    batch: int = 16,
) -> Inspection:
    """Which token does each head pick, how surely, and does it matter?

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model, in evaluation mode.
    texts : sequence of str
        What the model is to read.
    tokenizer : tokenizer
        That of the model.
    labels : list, optional
        One per text: then picks are compared with what tokens say about labels.
    layer, head : int, optional
        The head to look at closely; by default the one that contributes most to the decisions (of the shown texts), or,
        without decisions, the one that writes most outside attention sinks.
    queries : str, optional
        "cls" or "last": whose picks, the first token's, or the last one's (language models).
    shown : int, default=6
        Texts that are shown and for which effects are measured.
    control : bool, default=True
        Run also the same model with shuffled weights, as a control for every statistic.
    batch : int, default=16
        Texts at a time.

    Returns
    -------
    Inspection
        A report per head, and a closer look at one of them.

    Examples
    --------
    >>> from whichtoken.inspection import inspect, load_tokenizer, load_transformer
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> found = inspect(load_transformer("my-model"), texts, load_tokenizer("my-model"), shown=1, control=False)
    >>> found.texts, found.grid("weight").shape  # the weight of the pick: layers, heads
    (4, (2, 4))
    """
    if tokenizer is None:
        raise UsageError("inspect needs the model's tokenizer: inspect(model, texts, tokenizer=tokenizer)")
    if isinstance(texts, str):
        raise UsageError("texts is one string; give a list of texts")
    sites = find_sites(model)
    depth = max(max(site.layers) for site in sites) + 1
    _check_number("layer", layer, depth)
    model.eval()
    queries = queries or ("last" if _generates(model) else "cls")
    if queries not in ("cls", "last"):
        raise UsageError(f"queries='{queries}' is not known here; choose 'cls' or 'last'")
    picks = corpus_picks(model, tokenizer, texts, queries=queries, special=False, batch=batch)
    _check_number("head", head, picks.token.shape[2])
    chance = (
        corpus_picks(shuffled(model), tokenizer, texts, queries=queries, special=False, batch=batch)
        if control
        else None
    )
    reports = head_reports(picks, tokenizer, labels, chance)
    encoded, _ = encode(tokenizer, list(texts)[:shown], longest_text(model, tokenizer))
    direct = [_direct(model, pad(tokenizer, [ids])) for ids in encoded]
    layer, head = _chosen(layer, head, picks, direct)
    reports = _closer(model, tokenizer, texts, queries, reports, picks, layer, head)
    views = [_view(model, tokenizer, ids, picks, i, queries, layer, direct[i]) for i, ids in enumerate(encoded)]
    return Inspection(
        type(model).__name__,
        queries,
        len(texts),
        picks.truncated,
        layer,
        head,
        reports,
        views,
        labels is not None,
        picks,
    )


def _view(
    model: Any, tokenizer: Any, ids: list[int], picks: CorpusPicks, i: int, queries: str, layer: int,
    direct: DirectContributions | None,
) -> TextView:  # fmt: skip
    inputs = pad(tokenizer, [ids])
    special = np.isin(ids, tokenizer.all_special_ids)
    with torch.no_grad():
        name, _ = decision(model(**inputs))
    effects = pick_effects(model, inputs, layer, queries=queries, special=tokenizer)
    shares, areas = _shares(model, inputs, special)
    labels = getattr(getattr(model, "config", None), "id2label", None) or {}
    if name.startswith("class "):
        name = str(labels.get(int(name.split()[1]), name))
    return TextView(
        number=i, tokens=tuple(token_name(tokenizer, t) for t in ids), special=tuple(bool(s) for s in special),
        picked=picks.token[i].astype(int), runner_up=picks.runner_up[i].astype(int), gap=picks.gap[i].astype(float),
        weight=picks.weight[i].astype(float), decision=name, shares=shares, areas=areas, effects=effects, direct=direct,
    )  # fmt: skip


def _shares(
    model: Any, inputs: Mapping[str, Tensor], special: NDArray[np.bool_]
) -> tuple[NDArray[np.float64] | None, dict[str, float]]:
    """Shares of the tokens, and how true rankings are to the model: deletion areas of ours, of occlusion, of chance."""
    try:
        shares = token_shares(model, inputs)
    except UsageError:
        return None, {}
    if _generates(model) or special.all():
        return shares, {}
    rankings = {
        "shares": shares,
        "occlusion": occlusion(model, inputs),
        "random": np.random.default_rng(0).permutation(len(special)).astype(float),
    }
    return shares, {name: curves(model, inputs, ranking, special).deletion_area for name, ranking in rankings.items()}


def _direct(model: Any, inputs: Mapping[str, Tensor]) -> DirectContributions | None:
    try:
        return direct_contributions(model, inputs)
    except (UsageError, RuntimeError):  # no output projection, or no gradient to the decision
        return None


def _chosen(
    layer: int | None, head: int | None, picks: CorpusPicks, direct: Sequence[DirectContributions | None]
) -> tuple[int, int]:
    """The head to look at: as asked, otherwise the one that contributes most."""
    found = [np.abs(item.heads) for item in direct if item is not None]
    weight = np.mean(found, 0) if found else (picks.contribution * (1 - picks.sink_share)).mean(0)
    if layer is not None:
        layer %= len(weight)
        return layer, int(weight[layer].argmax()) if head is None else head % weight.shape[1]
    if head is not None:
        return int(weight[:, head].argmax()), head % weight.shape[1]
    best = np.unravel_index(weight.argmax(), weight.shape)
    return int(best[0]), int(best[1])


def _closer(
    model: Any, tokenizer: Any, texts: Sequence[str], queries: str, reports: list[HeadReport], picks: CorpusPicks,
    layer: int, head: int,
) -> list[HeadReport]:  # fmt: skip
    """The reports with the shape of the chosen head's matrix and its bilinear rule."""
    site = next(site for site in find_sites(model) if layer in site.layers)
    heads = picks.token.shape[2]
    try:
        pair = factors(anatomy(model, site), head, heads)
    except UsageError:
        pair = None
    place = layer * heads + head
    if pair is None:
        return reports
    scale = pair[0].shape[0] ** -0.5
    closer = replace(reports[place], shape=weight_shape(*pair, scale))
    rows = np.flatnonzero(picks.token[:, layer, head] >= 0)[:RULE_TEXTS]
    if len(rows) >= 2 * LEAST_TEXTS:
        own = scale * pair[0].T @ pair[1]
        closer = replace(
            closer, rule=_rule(model, tokenizer, [texts[i] for i in rows], queries, picks, rows, (layer, head), own)
        )
    return [closer if i == place else report for i, report in enumerate(reports)]


def _rule(
    model: Any, tokenizer: Any, texts: list[str], queries: str, picks: CorpusPicks, rows: NDArray[np.int64],
    place: tuple[int, int], own: NDArray[np.float64],
) -> Any:  # fmt: skip
    """The bilinear rule of a head, on what its layer was given for the tokens that are not special."""
    layer, head = place
    hidden, asked, chosen, ids = [], [], [], []
    encoded, _ = encode(tokenizer, texts, longest_text(model, tokenizer))
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
    return bilinear_rule(hidden, np.stack(asked), chosen, ids, own)


def _generates(model: Any) -> bool:
    return "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__


def _check_number(name: str, value: int | None, count: int) -> None:
    if value is not None and not -count <= value < count:
        raise UsageError(f"{name} {value} does not exist; this model has {name}s 0 to {count - 1}")


def finite(value: Any) -> Any:
    """The same for JSON, which knows no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
