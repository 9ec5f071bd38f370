"""`inspect(model, texts, tokenizer)`: what every head picks, after one pass; everything else when it is asked for."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.files import finite, write_text
from whichtoken.inspection.corpus import CorpusPicks, check_texts, corpus_picks, pad, shuffle_weights, text_model
from whichtoken.inspection.effects import (
    PickEffects,
    curves,
    decision,
    direct_contributions,
    embedding,
    pick_effects,
    rounding_error,
    token_shares,
)
from whichtoken.inspection.head_report import BilinearRule, HeadReport, head_reports, label_classes, with_rule
from whichtoken.inspection.page import HeadFigure, inspection_body, inspection_page
from whichtoken.inspection.sites import find_sites
from whichtoken.inspection.survival import PickSurvival, pick_survival
from whichtoken.inspection.why import RecomputedPass, Why
from whichtoken.inspection.words import distinct_words, token_name, whole_words, word_offsets
from whichtoken.progress import progress_lines

SHOWN = 3
NOISE = 0.05  # relative difference between single and double precision above which a number is not shown as one
REASONED = 12  # heads that are asked for a readable reason
STEPS = 20  # of a deletion curve


@dataclass(frozen=True, eq=False)
class TextView(Shown):
    """One text closely: its words, what each head picked, and what the tokens did to the decision.

    Attributes
    ----------
    number : int
        Which text, from 0.
    tokens, words : tuple of str
        Its tokens, and the whole word of each.
    is_special : tuple of bool
        Whether a token is special.
    picked, runner_up : array of shape (layers, heads)
        Places of the picks.
    gap, weight, survival : array of shape (layers, heads)
        How confident each pick is; `survival` is the chance that it survives a change of one other word.
    decision, unit : str
        What was decided, and in what it is measured.
    shares : array of shape (tokens,) or None
        Share of each token in the decision, see `token_shares`; None where single and double precision disagree.
    direct : array of shape (layers, heads) or None
        Direct contribution of each head; None where it is not known or where single and double precision disagree.
    areas : dict
        Deletion area of the shares and of a random order: the smaller the truer.
    """

    number: int
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    is_special: tuple[bool, ...]
    picked: NDArray[np.int64]
    runner_up: NDArray[np.int64]
    gap: NDArray[np.float64]
    weight: NDArray[np.float64]
    survival: NDArray[np.float64]
    decision: str
    unit: str
    shares: NDArray[np.float64] | None
    direct: NDArray[np.float64] | None
    areas: dict[str, float]

    def to_frame(self) -> Any:
        """A row per token: its word, how many heads picked it, and its share in the decision."""
        import pandas as pd

        heads = np.bincount(self.picked[self.picked >= 0].ravel(), minlength=len(self.tokens))
        columns = {"token": self.tokens, "word": self.words, "is_special": self.is_special, "heads": heads}
        return pd.DataFrame(columns | ({} if self.shares is None else {"share": self.shares}))


@dataclass(frozen=True, eq=False)
class _Source:
    """What an inspection was made of, for everything that is computed on demand."""

    model: Any
    tokenizer: Any
    texts: list[str]
    batch: int
    reference: Tensor | None
    asked: tuple[int | None, int | None]  # layer and head
    views: dict[int, TextView] = field(default_factory=dict)
    direct: dict[int, NDArray[np.float64] | None] = field(default_factory=dict)
    passes: dict[int, RecomputedPass] = field(default_factory=dict)
    reasons: dict[tuple[int, int, int], Why | None] = field(default_factory=dict)
    effects: dict[tuple[int, int], PickEffects] = field(default_factory=dict)

    @cached_property
    def double(self) -> Any:
        """The model in double precision."""
        return copy.deepcopy(self.model).double()


@dataclass(frozen=True, eq=False)
class Inspection(Shown):
    """What `inspect` returns: what each head picks and how confidently; the rest is computed when it is asked for.

    Reach for `summary()` for the findings in a few lines, `grid("survival")` for one number of all heads, `why(layer, head)` for
    the reason of a pick, `view(text)` for one text closely, `effects(text)` for what its picks do to the decision, `to_html` for
    a page that needs no network, `figure(...).save("head.svg")` for a picture, `to_frame()` for a table of the heads. It shows
    itself in a notebook.

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
    reports : list[HeadReport]
        What each head does.
    survival : PickSurvival
        How likely picks survive a change of one other word.
    picks : CorpusPicks
        Every pick.
    labels : bool
        Whether texts had labels.

    Examples
    --------
    >>> from whichtoken.inspection import inspect, load_tokenizer, load_transformer
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> found = inspect(load_transformer("my-model"), texts, load_tokenizer("my-model"))
    >>> len(found.reports), found.report(layer=0, head=1).head
    (8, 1)
    """

    model: str
    queries: str
    texts: int
    truncated: int
    reports: list[HeadReport]
    survival: PickSurvival
    picks: CorpusPicks
    labels: bool
    _source: _Source = field(repr=False)

    @cached_property
    def focus(self) -> tuple[int, int]:
        """The head that is shown closely: the one asked for, or the one that contributes most to the first decisions."""
        layer, head = self._source.asked
        found = [np.abs(direct) for text in self._first(SHOWN) if (direct := self.direct(text)) is not None]
        weight = np.mean(found, 0) if found else (self.picks.contribution * (1 - self.picks.sink_share)).mean(0)
        if layer is not None:
            layer %= len(weight)
            return layer, int(weight[layer].argmax()) if head is None else head % weight.shape[1]
        if head is not None:
            return int(weight[:, head].argmax()), head % weight.shape[1]
        best = np.unravel_index(weight.argmax(), weight.shape)
        return int(best[0]), int(best[1])

    def report(self, layer: int, head: int) -> HeadReport:
        """The report of one head."""
        return self.reports[int(layer * self.picks.token.shape[2] + head)]

    def grid(self, name: str) -> NDArray[np.float64]:
        """One number of all heads: (layers, heads)."""
        return np.array([getattr(report, name) for report in self.reports]).reshape(self.picks.token.shape[1:])

    def view(self, text: int) -> TextView:
        """One text closely: the shares of its tokens and heads in the decision, computed now."""
        if text not in self._source.views:
            self._source.views[text] = self._view(text)
        return self._source.views[text]

    def direct(self, text: int) -> NDArray[np.float64] | None:
        """Direct contribution of each head to the decision on a text, (layers, heads); None where it is not known."""
        kept, inputs = self._source.direct, self._inputs(text)
        if text not in kept:
            kept[text] = self._reliable(
                lambda model, towards: direct_contributions(model, inputs, reference=towards, check=False).heads
            )
        return kept[text]

    def why(self, layer: int, head: int, text: int = 0) -> Why | None:
        """Why a head picked its word in a text; None where it had no choice, or where the parts do not sum to the gap."""
        key = (text, layer, head)
        kept = self._source.reasons
        if key not in kept:
            kept[key] = None
            picked, rival = (int(part[text, layer, head]) for part in (self.picks.token, self.picks.runner_up))
            if rival >= 0:
                words = self._words(text, picked, rival)
                with suppress(UsageError):
                    kept[key] = self._pass(text).why(layer, head, self._query(text), picked, rival, words)
        return kept[key]

    def reason(self, text: int) -> Why | None:
        """The reason of the head that contributes most to the decision on a text, among those that have one.

        Twelve heads are tried; None where none of them has a readable reason.
        """
        direct = self.direct(text)
        weight = self.picks.contribution[text] * (1 - self.picks.sink_share[text]) if direct is None else np.abs(direct)
        places = np.argsort(-weight, axis=None, kind="stable")[:REASONED].tolist()
        found = (self.why(place // weight.shape[1], place % weight.shape[1], text) for place in places)
        return next((why for why in found if why is not None and why.state == "readable"), None)

    def effects(self, text: int, layer: int | None = None) -> PickEffects:
        """What the picks of a layer do to the decision on a text: the model runs again without each of them."""
        layer = self.focus[0] if layer is None else layer
        key = (text, layer)
        if key not in self._source.effects:
            source = self._source
            self._source.effects[key] = pick_effects(
                source.model, self._inputs(text), layer, queries=self.queries, special_tokens=source.tokenizer,
                special=False, reference=source.reference,
            )  # fmt: skip
        return self._source.effects[key]

    def rule(self, layer: int, head: int) -> BilinearRule | None:
        """The max-margin rule of a head, solved on half of the texts and tried on the others; None below 40 texts."""
        source = self._source
        before = self.report(layer, head)
        report = with_rule(before, source.model, source.tokenizer, source.texts, self.queries, self.picks)
        self.reports[layer * self.picks.token.shape[2] + head] = report
        return report.rule

    @cached_property
    def control(self) -> list[HeadReport]:
        """The reports of the same model with shuffled weights: what a head does by chance."""
        source = self._source
        model = shuffle_weights(source.model)
        picks = corpus_picks(model, source.tokenizer, source.texts, queries=self.queries, batch=source.batch)
        return head_reports(picks, source.tokenizer)

    def figure(self, layer: int | None = None, head: int | None = None, text: int = 0) -> HeadFigure:
        """A text with a line from the query to the pick of a head, and a dashed one to the runner-up."""
        layer, head = (self.focus[0] if layer is None else layer), (self.focus[1] if head is None else head)
        names, numbers = whole_words(self._source.tokenizer, self.picks.ids[text].tolist())
        pick, rival = (int(part[text, layer, head]) for part in (self.picks.token, self.picks.runner_up))
        title, weight = f"layer {layer}, head {head}", float(self.picks.weight[text, layer, head])
        return HeadFigure.of(names, numbers, self._query(text), pick, rival, weight, title)

    def examples(self, layer: int, head: int, most: int = 2) -> list[tuple[str, str, str]]:
        """The clearest picks of a head: what stands before the word, the word, and what stands after it."""
        gap = np.where(np.isfinite(self.picks.gap[:, layer, head]), self.picks.gap[:, layer, head], -1.0)
        found: list[tuple[str, str, str]] = []
        for text in np.argsort(-gap, kind="stable"):
            place = int(self.picks.token[text, layer, head])
            if place < 0 or len(found) == most:
                break
            names, numbers = whole_words(self._source.tokenizer, self.picks.ids[text].tolist())
            words = dict(zip(numbers, names, strict=True))
            number = numbers[place]
            special = np.isin(self.picks.ids[text], self._source.tokenizer.all_special_ids)
            hidden = {n for n, flag in zip(numbers, special, strict=True) if flag}
            near = [words[n] for n in range(number - 3, number) if n in words and n not in hidden]
            after = [words[n] for n in range(number + 1, number + 4) if n in words and n not in hidden]
            if words[number] not in [word for _, word, _ in found]:
                found.append((" ".join(near), words[number], " ".join(after)))
        return found

    def to_frame(self) -> Any:
        """A row per head."""
        import pandas as pd

        rows = []
        for report in self.reports:
            row = {name: value for name, value in report.as_json().items() if isinstance(value, int | float | str)}
            rows.append(row | {"top_picks": ", ".join(name for name, _ in report.top_picks[:5])})
        return pd.DataFrame(rows).dropna(axis=1, how="all")

    def words(self) -> Any:
        """A row per text and head: the whole words that were picked and came second, where they stand, and how confidently."""
        import pandas as pd

        picks, tokenizer = self.picks, self._source.tokenizer
        frames = []
        layers, heads = np.indices(picks.token.shape[1:])
        for text, ids in enumerate(picks.ids):
            names, numbers = whole_words(tokenizer, ids.tolist())
            spans = np.array(word_offsets(tokenizer, self._source.texts[text], numbers))
            token, rival = picks.token[text].ravel(), picks.runner_up[text].ravel()
            labels = np.array([*names, ""], dtype=object)
            frames.append(pd.DataFrame({
                "text": text, "layer": layers.ravel(), "head": heads.ravel(), "word": labels[token], "start": spans[token, 0],
                "end": spans[token, 1], "runner_up": labels[rival], "gap": picks.gap[text].ravel(),
                "weight": picks.weight[text].ravel(), "survival": self._chances(text).ravel(),
            }))  # fmt: skip
        return pd.concat(frames, ignore_index=True)

    def summary(self) -> list[str]:
        """The findings in a few lines."""
        layer, head = self.focus
        report = self.report(layer, head)
        kinds, states = [item.kind for item in self.reports], [item.state for item in self.reports]
        words = {
            "content": "by content", "position": "by position", "sink": "mostly at sinks", "mixed": "neither",
            "unknown": "not known from so few texts",
        }  # fmt: skip
        counts = ", ".join(f"{kinds.count(kind)} {word}" for kind, word in words.items() if kind in kinds)
        confident = ", ".join(f"{states.count(state)} {state}" for state in ("decided", "torn", "tie"))
        names = ", ".join(f"{name} ({100 * part:.0f} %)" for name, part in report.top_picks[:5])
        lines = [
            f"{self.model}: {len(self.reports)} heads over {self.texts} texts; picks: {counts}; {confident}",
            f"layer {layer}, head {head} picks {names or 'nothing: the texts have no words but special tokens'}",
        ]
        if np.isfinite(report.survival):
            lines[-1] += f"; a typical pick survives {100 * report.survival:.0f} % of one-word changes"
        if (why := self.why(layer, head)) is not None:
            lines.append(f"text 1: {why.sentence}")
        if self.truncated:
            lines.append(f"note: {self.truncated} of {self.texts} texts were longer than the model allows and were cut")
        return lines

    def as_json(self, shown: int = SHOWN) -> dict[str, Any]:
        """Every number, for `json.dumps`; numbers that are not finite become null. `shown`: texts that are looked at closely."""
        layer, head = self.focus
        views = []
        for text in self._first(shown):
            view, effects, why = self.view(text), self._effects(text), self.why(layer, head, text)
            views.append({
                "text": text, "deletion_areas": view.areas, "direct": None if view.direct is None else {"heads": view.direct},
                **_fields(view, "tokens words decision unit picked runner_up gap survival shares"),
                "effects": None if effects is None else _fields(effects, "layer score removed masked deleted"),
                "why": None if why is None else _fields(
                    why, "sentence state gap parts any_query this_query cancellation flips"
                ),
            })  # fmt: skip
        reliability = self.survival.reliability()
        whole = {
            "model": self.model, "queries": self.queries, "texts": self.texts, "truncated": self.truncated, "layer": layer,
            "head": head, "heads": [report.as_json() for report in self.reports], "shown": views,
            "survival": {
                "cases": len(self.survival.gap), "auroc": self.survival.auroc, "reliability": reliability.to_dict("list"),
            },
        }  # fmt: skip
        found: dict[str, Any] = finite(whole)
        return found

    def to_html(self, path: str | Path, shown: int = SHOWN) -> None:
        """Write the page; an old file is replaced when the new one is complete. `shown`: texts that are looked at closely."""
        source, most = self._source, min(shown, self.texts)
        # shares and effects of each text
        with progress_lines(lambda: f"{(len(source.views) + len(source.effects)) // 2} of {most} texts closely"):
            write_text(path, inspection_page(self, shown))

    def _repr_html_(self) -> str:
        return inspection_body(self, SHOWN)

    def _effects(self, text: int) -> PickEffects | None:
        """The effects in the focus, for a page; None where the output projection was not found."""
        with suppress(UsageError):
            return self.effects(text)
        return None

    def _headline(self) -> str:
        return "; ".join(self.summary()[:2])

    def _first(self, count: int) -> range:
        return range(min(count, self.texts))

    def _query(self, text: int) -> int:
        return 0 if self.queries == "cls" else len(self.picks.ids[text]) - 1

    def _inputs(self, text: int) -> dict[str, Tensor]:
        return pad(self._source.tokenizer, [self.picks.ids[text].tolist()])

    def _words(self, text: int, *places: int) -> tuple[str, str]:
        return distinct_words(whole_words(self._source.tokenizer, self.picks.ids[text].tolist())[0], *places)

    def _chances(self, text: int) -> NDArray[np.float64]:
        """The chance that each pick of a text survives: (layers, heads)."""
        return np.stack([self.survival.probability(gap, layer) for layer, gap in enumerate(self.picks.gap[text])])

    def _pass(self, text: int) -> RecomputedPass:
        if text not in self._source.passes:
            self._source.passes.clear()  # one at a time: it holds what every layer wrote
            self._source.passes[text] = RecomputedPass(self._source.model, self._inputs(text))
        return self._source.passes[text]

    def _view(self, text: int) -> TextView:
        source, inputs = self._source, self._inputs(text)
        ids = self.picks.ids[text].tolist()
        special = np.isin(ids, source.tokenizer.all_special_ids)
        shares = self._reliable(lambda model, towards: token_shares(model, inputs, reference=towards))
        areas = {}
        if shares is not None and not special.all() and not _generates(source.model):
            orders = {"shares": shares, "random": np.random.default_rng(0).permutation(len(ids)).astype(float)}
            for name, order in orders.items():
                areas[name] = curves(
                    source.model, inputs, order, special, steps=STEPS, reference=source.reference, insertion=False
                ).deletion_area
        name, unit = self._decision(inputs)
        gap = self.picks.gap[text].astype(float)
        return TextView(
            text, tuple(token_name(source.tokenizer, t) for t in ids), tuple(whole_words(source.tokenizer, ids)[0]),
            tuple(special.tolist()), self.picks.token[text].astype(int), self.picks.runner_up[text].astype(int), gap,
            self.picks.weight[text].astype(float), self._chances(text), name, unit, shares, self.direct(text), areas,
        )  # fmt: skip

    def _decision(self, inputs: Mapping[str, Tensor]) -> tuple[str, str]:
        with torch.no_grad():
            decided = decision(self._source.model(**inputs), reference=self._source.reference)
        labels = getattr(getattr(self._source.model, "config", None), "id2label", None) or {}
        name = decided.name
        if name.startswith("class "):
            name = str(labels.get(int(name.split()[1]), name))
        elif name.startswith("next token "):
            name = f"next token “{token_name(self._source.tokenizer, int(name.split()[-1])).strip()}”"
        return name, decided.unit

    def _reliable(self, compute: Any) -> NDArray[np.float64] | None:
        """Numbers that single and double precision agree on; None where they do not, or where they are not known."""
        source = self._source
        towards = source.reference
        try:
            single = compute(source.model, towards)
            double = compute(source.double, None if towards is None else towards.double())
        except (UsageError, RuntimeError):  # no output projection, or no gradient to the decision
            return None
        return np.asarray(double) if rounding_error(single, double) <= NOISE else None


def inspect(
    model: nn.Module,
    texts: Iterable[str],
    tokenizer: Any = None,
    *,
    labels: Sequence[Any] | None = None,
    layer: int | None = None,
    head: int | None = None,
    queries: str | None = None,
    reference: str | tuple[str, str] | None = None,
    batch: int = 16,
) -> Inspection:
    """Look into a transformer: which token each head picks on your texts, how confidently, why, and does it matter?

    Reach for it first, when you have a model of transformers, its tokenizer and some texts. One pass over the texts, and one over
    some changed copies of them, give what every head picks and how likely each pick survives a change of one other word. Reasons,
    effects on the decision and shares of the tokens are computed for the head or text that you ask for. It refuses a model whose
    attention output it cannot reproduce from the recorded queries and keys. For one layer or your own loop, use `AttentionProbe`.

    >>> from whichtoken.inspection import inspect, load_tokenizer, load_transformer
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> found = inspect(load_transformer("my-model"), texts, load_tokenizer("my-model"))
    >>> len(found.reports), found.report(layer=0, head=1).head
    (8, 1)

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model, in evaluation mode; of one with an encoder and a decoder, the encoder is inspected.
    texts : iterable of str
        The texts that the model reads.
    tokenizer : tokenizer
        The tokenizer of the model.
    labels : list, optional
        One per text: then picks are compared with what tokens say about labels.
    layer, head : int, optional
        The head to look at closely; by default the one that contributes most to the decisions of the first texts, or, without
        decisions, the one that adds most outside attention sinks.
    queries : str, optional
        "cls" or "last": whose picks, the first token's, or the last one's (language models).
    reference : str or pair of str, optional
        For an encoder without a head: a text, to which similarity is then the decision, or two texts, between which the
        embedding then decides. By default the decision is the length of the embedding in its own direction.
    batch : int, default=16
        Texts at a time; fewer where they are long.

    Returns
    -------
    Inspection
        A report per head; the rest on demand.

    Examples
    --------
    >>> found.texts, found.grid("weight").shape  # the weight of the pick: layers, heads
    (4, (2, 4))
    """
    if tokenizer is None:
        raise UsageError("inspect needs the model's tokenizer: inspect(model, texts, tokenizer=tokenizer)")
    texts = check_texts(texts)
    if labels is not None:
        label_classes(labels, len(texts))
    model = text_model(model)
    _check_number("layer", layer, max(max(site.layers) for site in find_sites(model)) + 1)
    model.eval()
    queries = queries or ("last" if _generates(model) else "cls")
    if queries not in ("cls", "last"):
        raise UsageError(f"queries='{queries}' is not known here; choose 'cls' or 'last'")
    picks = corpus_picks(model, tokenizer, texts, queries=queries, batch=batch)
    _check_number("head", head, picks.token.shape[2])
    survival = pick_survival(model, texts, tokenizer, queries=queries, batch=batch, picks=picks)
    reports = head_reports(picks, tokenizer, labels, survival)
    source = _Source(model, tokenizer, texts, batch, _reference(model, tokenizer, reference), (layer, head))
    return Inspection(
        type(model).__name__, queries, len(texts), picks.truncated, reports, survival, picks, labels is not None, source
    )  # fmt: skip


@torch.no_grad()
def _reference(model: Any, tokenizer: Any, reference: str | tuple[str, str] | None) -> Tensor | None:
    """The direction of an embedding that counts as the decision of an encoder."""
    if reference is None:
        return None
    texts = [reference] if isinstance(reference, str) else list(reference)
    if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) and text.strip() for text in texts):
        raise UsageError(f"reference={reference!r} must be a text or a pair of texts")
    outputs = [model(**pad(tokenizer, [tokenizer(text)["input_ids"]])) for text in texts]
    if getattr(outputs[0], "logits", None) is not None:
        raise UsageError(f"{type(model).__name__} has decisions of its own; reference= is for encoders without a head")
    first, *rest = (nn.functional.normalize(embedding(output)[0], dim=0) for output in outputs)
    if rest and torch.allclose(first, rest[0]):
        raise UsageError(f"reference={reference!r} must be two texts that the model tells apart")
    return first - rest[0] if rest else first


def _generates(model: Any) -> bool:
    return "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__


def _check_number(name: str, value: int | None, count: int) -> None:
    if value is not None and not -count <= value < count:
        raise UsageError(f"{{{name}}} does not exist; this model has {name}s 0 to {count - 1}", **{name: value})


def _fields(found: Any, names: str) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names.split()}
