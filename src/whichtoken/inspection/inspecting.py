"""`inspect(model, texts, tokenizer)`: every head over the texts, one head closely, and the page that shows both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.display.shown import Shown
from whichtoken.display.templates import template_engine
from whichtoken.errors import UsageError
from whichtoken.files import write_text
from whichtoken.inspection.attribution import curves, occlusion, token_shares
from whichtoken.inspection.corpus import CorpusPicks, corpus_picks, encode, longest_text, pad
from whichtoken.inspection.effects import DirectContributions, PickEffects, direct_contributions, pick_effects
from whichtoken.inspection.head_report import HeadReport, head_reports, shuffle_weights, token_name, with_shape_and_rule
from whichtoken.inspection.sites import find_sites

SHOWN = 6
BLUE, ORANGE, GREEN, RED = (37, 99, 176), (196, 98, 16), (20, 130, 80), (190, 50, 50)


@dataclass(frozen=True, eq=False)
class TextView(Shown):
    """One text as the page shows it: what each head picked, and what the tokens did to the decision."""

    number: int  # of the text, from 0
    tokens: tuple[str, ...]
    is_special: tuple[bool, ...]
    picked: NDArray[np.int64]  # (layers, heads): position of the pick
    runner_up: NDArray[np.int64]
    gap: NDArray[np.float64]
    weight: NDArray[np.float64]
    decision: str
    shares: NDArray[np.float64] | None  # share of each token in the decision, see `token_shares`
    areas: dict[str, float]  # deletion area of the shares, of occlusion and of a random order: the smaller the truer
    effects: PickEffects  # of the layer that is shown closely
    direct: DirectContributions | None


@dataclass(frozen=True, eq=False)
class Inspection(Shown):
    """What `inspect` returns: a report per head, and a closer look at one head and at some texts.

    Reach for `summary()` for the findings in a few lines, `grid("gap")` for one number of all heads, `to_html` for a page
    that needs no network, `as_json` for every number. It shows itself in a notebook.

    Attributes
    ----------
    model : str
        Name of the model.
    queries : str
        Whose picks, "cls" or "last".
    texts : int
        Number of texts.
    truncated : int
        How many of them were too long and cut.
    layer, head : int
        The head that is shown closely.
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
        return self.reports[int(layer * self.picks.token.shape[2] + head)]

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
            effects = view.effects
            token = view.tokens[int(effects.picks.token[0, self.head, 0])]
            removed, deleted = effects.removed[self.head], effects.deleted[self.head]
            rest = "" if math.isnan(deleted) else f", {deleted:.3f} without the token"
            lines.append(f"text 1: it looks at {token}; the decision loses {removed:.3f} without its value{rest}")
        if self.truncated:
            lines.append(f"note: {self.truncated} of {self.texts} texts were longer than the model allows and were cut")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Every number, for `json.dumps`; numbers that are not finite become null."""
        views = [
            {
                "text": view.number, "tokens": list(view.tokens), "decision": view.decision,
                "picked": view.picked.tolist(), "runner_up": view.runner_up.tolist(), "gap": view.gap.tolist(),
                "shares": None if view.shares is None else view.shares.tolist(), "deletion_areas": view.areas,
                "effects": {
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
        """Write the page; an old file is replaced when the new one is complete."""
        page = _environment().get_template("page.html")
        write_text(path, page.render(body=self._repr_html_(), model=self.model))

    def _repr_html_(self) -> str:
        return _environment().get_template("inspection.html").render(
            i=self, report=self.report(self.layer, self.head), maps=_maps(self), texts=[_text(self, v) for v in self.views],
            discoveries=[report for report in self.reports if report.label_q < 0.05],
        )  # fmt: skip

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
    """Look into a transformer: which token each head picks on your texts, how confidently, and does it matter?

    Reach for it first, when you have a model of transformers, its tokenizer and some texts. It reports every head over all
    texts, beside a control with shuffled weights, and looks closely at one head: the effect of its picks on the decisions of
    the first texts is measured by running the model again. It refuses a model whose attention output it cannot reproduce
    from the recorded queries and keys. For one layer or your own loop, use `AttentionProbe`.

    >>> from whichtoken.inspection import inspect, load_tokenizer, load_transformer
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> found = inspect(load_transformer("my-model"), texts, load_tokenizer("my-model"), shown=1, control=False)
    >>> len(found.reports), found.report(layer=0, head=1).head
    (8, 1)

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model, in evaluation mode.
    texts : sequence of str
        The texts that the model reads.
    tokenizer : tokenizer
        The tokenizer of the model.
    labels : list, optional
        One per text: then picks are compared with what tokens say about labels.
    layer, head : int, optional
        The head to look at closely; by default the one that contributes most to the decisions of the shown texts, or,
        without decisions, the one that adds most outside attention sinks.
    queries : str, optional
        "cls" or "last": whose picks, the first token's, or the last one's (language models).
    shown : int, default=6
        Texts that are shown and for which effects are measured.
    control : bool, default=True
        Also run the model with shuffled weights, as a control for every statistic.
    batch : int, default=16
        Texts at a time.

    Returns
    -------
    Inspection
        A report per head, and a closer look at one of them.

    Examples
    --------
    >>> found.texts, found.grid("weight").shape  # the weight of the pick: layers, heads
    (4, (2, 4))
    """
    if tokenizer is None:
        raise UsageError("inspect needs the model's tokenizer: inspect(model, texts, tokenizer=tokenizer)")
    if isinstance(texts, str):
        raise UsageError("texts is one string; give a list of texts")
    _check_number("layer", layer, max(max(site.layers) for site in find_sites(model)) + 1)
    model.eval()
    queries = queries or ("last" if _generates(model) else "cls")
    if queries not in ("cls", "last"):
        raise UsageError(f"queries='{queries}' is not known here; choose 'cls' or 'last'")

    def run(one: nn.Module) -> CorpusPicks:
        return corpus_picks(one, tokenizer, texts, queries=queries, special=False, batch=batch)

    picks = run(model)
    _check_number("head", head, picks.token.shape[2])
    reports = head_reports(picks, tokenizer, labels, run(shuffle_weights(model)) if control else None)
    encoded, _ = encode(tokenizer, list(texts)[:shown], longest_text(model, tokenizer))
    direct = [_direct(model, pad(tokenizer, [ids])) for ids in encoded]
    layer, head = _shown_head(layer, head, picks, direct)
    place = layer * picks.token.shape[2] + head
    reports[place] = with_shape_and_rule(reports[place], model, tokenizer, texts, queries, picks)
    views = [_view(model, tokenizer, ids, picks, i, queries, layer, direct[i]) for i, ids in enumerate(encoded)]
    return Inspection(
        type(model).__name__, queries, len(texts), picks.truncated, layer, head, reports, views, labels is not None, picks
    )  # fmt: skip


def _view(
    model: Any, tokenizer: Any, ids: list[int], picks: CorpusPicks, i: int, queries: str, layer: int,
    direct: DirectContributions | None,
) -> TextView:  # fmt: skip
    inputs = pad(tokenizer, [ids])
    is_special = np.isin(ids, tokenizer.all_special_ids)
    effects = pick_effects(model, inputs, layer, queries=queries, special_tokens=tokenizer)
    shares, areas = _shares(model, inputs, is_special)
    name = effects.decision
    if name.startswith("class "):
        labels = getattr(getattr(model, "config", None), "id2label", None) or {}
        name = str(labels.get(int(name.split()[1]), name))
    return TextView(
        number=i, tokens=tuple(token_name(tokenizer, t) for t in ids), is_special=tuple(is_special.tolist()),
        picked=picks.token[i].astype(int), runner_up=picks.runner_up[i].astype(int), gap=picks.gap[i].astype(float),
        weight=picks.weight[i].astype(float), decision=name, shares=shares, areas=areas, effects=effects, direct=direct,
    )  # fmt: skip


def _shares(
    model: Any, inputs: Mapping[str, Tensor], is_special: NDArray[np.bool_]
) -> tuple[NDArray[np.float64] | None, dict[str, float]]:
    """Shares of the tokens, and the deletion areas of the shares, of occlusion and of a random order."""
    try:
        shares = token_shares(model, inputs)
    except UsageError:
        return None, {}
    if _generates(model) or is_special.all():
        return shares, {}
    rankings = {
        "shares": shares,
        "occlusion": occlusion(model, inputs),
        "random": np.random.default_rng(0).permutation(len(is_special)).astype(float),
    }
    return shares, {
        name: curves(model, inputs, ranking, is_special).deletion_area for name, ranking in rankings.items()
    }


def _direct(model: Any, inputs: Mapping[str, Tensor]) -> DirectContributions | None:
    try:
        return direct_contributions(model, inputs)
    except (UsageError, RuntimeError):  # no output projection, or no gradient to the decision
        return None


def _shown_head(
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


def _generates(model: Any) -> bool:
    return "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__


def _check_number(name: str, value: int | None, count: int) -> None:
    if value is not None and not -count <= value < count:
        raise UsageError(f"{{{name}}} does not exist; this model has {name}s 0 to {count - 1}", **{name: value})


def finite(value: Any) -> Any:
    """The value with null for infinity and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _maps(inspection: Inspection) -> list[dict[str, Any]]:
    gap, sink, share = (inspection.grid(name) for name in ("gap", "sink_share", "contribution"))
    maps = [
        ("How confidently", "Median gap between the scores of the pick and the runner-up.", np.minimum(gap, 99), BLUE, "{:.1f}"),
        ("Sinks", "Share of the query's attention that goes to attention sinks.", sink, ORANGE, "{:.2f}"),
    ]  # fmt: skip
    direct = [np.abs(view.direct.heads) for view in inspection.views if view.direct is not None]
    what = "Share of the head in what its layer adds to the residual stream."
    if direct:
        what = "Mean size of the head's direct contribution to the decision, over the shown texts."
        share = np.mean(direct, 0)
    maps.append(("Does it matter", what, share, GREEN, "{:.2f}"))
    return [
        {"title": title, "what": what, "rows": [_row(inspection, layer, grid, color, form) for layer in range(len(grid))]}
        for title, what, grid, color, form in maps
    ]  # fmt: skip


def _row(
    inspection: Inspection, layer: int, grid: NDArray[np.float64], color: tuple[int, ...], form: str
) -> list[dict[str, str]]:
    top = float(np.nanmax(grid)) or 1.0
    cells = []
    for head, value in enumerate(grid[layer]):
        report = inspection.report(layer, head)
        names = ", ".join(f"{name} {100 * part:.0f} %" for name, part in report.top_picks[:3])
        chosen = (layer, head) == (inspection.layer, inspection.head)
        text = form.format(value)
        cells.append({
            "text": text.replace("0.", ".", 1) if value < 1 else text,
            "style": shade(color, value / top) + (";outline:3px solid #111;outline-offset:-3px" if chosen else ""),
            "hint": f"layer {layer}, head {head}: {report.kind}; picks {names}",
        })  # fmt: skip
    return cells


def shade(color: tuple[int, ...], strength: float) -> str:
    """A background between white and a color, and a text color that can be read on it."""
    strength = float(np.clip(np.nan_to_num(strength), 0, 1)) * 0.9
    mixed = [round(255 + (part - 255) * strength) for part in color]
    light = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2] > 140
    return f"background:rgb({mixed[0]},{mixed[1]},{mixed[2]});color:{'#111' if light else '#fff'}"


def _text(inspection: Inspection, view: TextView) -> dict[str, Any]:
    counts = np.bincount(view.picked[view.picked >= 0].ravel(), minlength=len(view.tokens))
    layer, head = inspection.layer, inspection.head
    pick, rival = int(view.picked[layer, head]), int(view.runner_up[layer, head])
    words = [_word(view, k, counts, pick, rival) for k in range(len(view.tokens))]
    effect = view.effects
    line = None
    if pick >= 0:
        line = {
            "pick": view.tokens[pick], "rival": view.tokens[rival] if rival >= 0 else "none", "gap": view.gap[layer, head],
            "weight": view.weight[layer, head], "radius": float(effect.picks.radius[0, head, 0]),
            "whole_pick": view.tokens[int(effect.picks.token[0, head, 0])], "removed": effect.removed[head],
            "masked": effect.masked[head], "deleted": effect.deleted[head],
            "direct": None if view.direct is None else float(view.direct.heads[layer, head]),
        }  # fmt: skip
    unit = "cosine" if view.decision == "embedding" else "log odds"
    return {"view": view, "words": words, "line": line, "unit": unit}


def _word(view: TextView, k: int, counts: NDArray[np.int64], pick: int, rival: int) -> dict[str, Any]:
    heads = int(counts[k])
    hints = [f"picked by {heads} of {view.picked.size} heads"]
    for layer, head in np.argwhere(view.picked == k)[:3]:
        other = int(view.runner_up[layer, head])
        name = view.tokens[other] if other >= 0 else "nothing"
        hints.append(f"layer {layer} head {head}: ahead of {name} by {view.gap[layer, head]:.1f}")
    if view.shares is not None:
        hints.append(f"share in the decision {view.shares[k]:+.2f}")
    style = shade(BLUE, heads / max(1, counts.max()))
    if view.shares is not None and not view.is_special[k]:
        size = abs(view.shares[k]) / max(1e-12, float(np.abs(view.shares).max()))
        if size > 0.1:
            color = GREEN if view.shares[k] > 0 else RED
            style += f";border-bottom:{1 + round(4 * size)}px solid rgb{color}"
    mark = "pick" if k == pick else "runner-up" if k == rival else ""
    return {
        "text": view.tokens[k], "is_special": view.is_special[k], "style": style, "hint": "; ".join(hints), "mark": mark
    }  # fmt: skip


@cache
def _environment() -> Environment:
    found = template_engine("whichtoken.inspection")
    found.filters["percent"] = lambda value: f"{100 * value:.0f} %" if np.isfinite(value) else "–"
    found.filters["number"] = lambda value, places=2: (
        f"{value:.{places}f}" if value is not None and np.isfinite(value) else "–"
    )
    return found
