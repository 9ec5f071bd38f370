"""How likely a pick survives a change of one other word, calibrated for a model on the user's own texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from whichtoken.display.shown import Shown
from whichtoken.inspection.confidence import PickConfidence
from whichtoken.inspection.corpus import BATCH, CorpusPicks, corpus_picks, run_texts, text_model
from whichtoken.inspection.sites import check_evaluation

CHANGES = 128  # changed texts that a calibration reads
MOST_TOKENS, FEWEST = 16_000, 16  # tokens of all of them, and how few long texts are changed at least
DECIDED, TORN = 0.95, 0.8  # least chances of survival
WIDEST = 1e3  # gap of a pick without rival
ALL_LAYERS = -1
BINS = 20  # of a calibration
LEAST_CASES = 300  # of a layer that is calibrated by itself
OTHER_WORDS = 200  # of the vocabulary that may replace a word, beside those of the texts


@dataclass(frozen=True, eq=False)
class PickSurvival(Shown):
    """The chance that a pick survives a change of one other word, by its gap: what `pick_survival` returns.

    Reach for `probability(gap, layer)` to say how confident any pick of the same model is; `auroc` and `reliability()` say how
    far to trust it. The heads of a layer are calibrated together, by isotonic regression on the gap; layers with few cases, all
    together.

    Attributes
    ----------
    gap : array of shape (cases,)
        Gap of a pick before the change.
    survived : array of shape (cases,)
        Whether the same token was picked after it.
    layer : array of shape (cases,)
        Layer of the pick.
    text : array of shape (cases,)
        Which text a case comes from.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer, load_transformer, pick_survival
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> survival = pick_survival(load_transformer("my-model"), texts, load_tokenizer("my-model"))
    >>> bool(survival.probability(0.01) <= survival.probability(3.0))
    True
    """

    gap: NDArray[np.float64]
    survived: NDArray[np.bool_]
    layer: NDArray[np.int64]
    text: NDArray[np.int64]

    @cached_property
    def _calibrations(self) -> dict[int, Any]:
        return _calibrate(self.gap, self.survived, self.layer)

    def probability(self, gap: ArrayLike, layer: int | None = None) -> NDArray[np.float64]:
        """The chance that picks of a layer with these gaps survive; of any layer, if it is not given."""
        gaps = np.asarray(gap, dtype=float)
        if not len(self.gap):
            return np.full(gaps.shape, np.nan)
        fitted = self._calibrations.get(ALL_LAYERS if layer is None else layer, self._calibrations[ALL_LAYERS])
        return np.asarray(fitted.predict(np.minimum(gaps, WIDEST).ravel())).reshape(gaps.shape)

    @cached_property
    def _predicted(self) -> NDArray[np.float64] | None:
        """The chance of each case, from other texts; None where there is nothing to predict."""
        from sklearn.model_selection import GroupKFold

        texts = len(np.unique(self.text))
        if texts < 2 or self.survived.all() or not self.survived.any():
            return None
        chance = np.empty(len(self.gap))
        for train, test in GroupKFold(min(5, texts)).split(self.gap, groups=self.text):
            fitted = _calibrate(self.gap[train], self.survived[train], self.layer[train])
            for layer in np.unique(self.layer[test]).tolist():
                rows = test[self.layer[test] == layer]
                chance[rows] = fitted.get(layer, fitted[ALL_LAYERS]).predict(np.minimum(self.gap[rows], WIDEST))
        return chance

    @cached_property
    def auroc(self) -> float:
        """How often a pick that survived had a larger predicted chance than one that did not, predicted from other texts."""
        if self._predicted is None:
            return float("nan")
        return PickConfidence(self._predicted, self.survived, self.text).auroc

    def reliability(self, bins: int = 8) -> Any:
        """Predicted against measured survival in bins of equal size, each predicted from other texts: a table."""
        import pandas as pd

        if self._predicted is None:
            return pd.DataFrame({"predicted": [], "measured": [], "cases": []})
        parts = np.array_split(np.argsort(self._predicted, kind="stable"), bins)
        rows = [(self._predicted[part].mean(), self.survived[part].mean(), len(part)) for part in parts if len(part)]
        return pd.DataFrame(rows, columns=["predicted", "measured", "cases"])

    def to_frame(self) -> Any:
        """A row per case."""
        import pandas as pd

        return pd.DataFrame({"text": self.text, "layer": self.layer, "gap": self.gap, "survived": self.survived})


def _calibrate(gap: NDArray[np.float64], survived: NDArray[np.bool_], layer: NDArray[np.int64]) -> dict[int, Any]:
    """Chance by gap, for every layer with cases enough and for all layers together; from bins, so that no case stands alone."""
    from sklearn.isotonic import IsotonicRegression

    found = {}
    for name in (ALL_LAYERS, *np.unique(layer).tolist()):
        rows = np.flatnonzero((layer == name) | (name == ALL_LAYERS))
        if name == ALL_LAYERS or len(rows) >= LEAST_CASES:
            order = rows[np.argsort(gap[rows], kind="stable")]
            bins = [part for part in np.array_split(order, BINS) if len(part)]
            x = [float(np.minimum(gap[part], WIDEST).mean()) for part in bins]
            y = [float(survived[part].mean()) for part in bins]
            fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
            found[name] = fitted.fit(x, y, sample_weight=[len(part) for part in bins])
    return found


def confidence_word(chance: float) -> str:
    """A chance of survival in a word: decided, torn or tie are said of nothing else."""
    if np.isnan(chance):
        return "unknown"
    return "decided" if chance >= DECIDED else "torn" if chance >= TORN else "tie"


def pick_survival(
    model: nn.Module,
    texts: Sequence[str],
    tokenizer: Any,
    *,
    queries: str = "cls",
    changes: int = CHANGES,
    batch: int = BATCH,
    seed: int = 0,
    picks: CorpusPicks | None = None,
) -> PickSurvival:
    """Calibrate how confident a pick is: read changed copies of the texts and see which picks stay.

    Reach for it when the right picks are not known (otherwise use `PickConfidence`). In every copy one token, neither special nor
    the pick in question, is replaced by another one of the texts or of the vocabulary.

    Parameters
    ----------
    model : nn.Module
        A transformers model, in evaluation mode.
    texts : sequence of str
        The texts to change.
    tokenizer : tokenizer
        That of the model.
    queries : str, default="cls"
        Whose picks, "cls" or "last".
    changes : int, default=128
        Changed copies to read; fewer where texts are long.
    batch : int, default=16
        Texts at a time.
    seed : int, default=0
        Seed for the changes.
    picks : CorpusPicks, optional
        The picks of the texts, where they are known, as in `Inspection.picks`.

    Returns
    -------
    PickSurvival
        Every case, and the chance of survival by the gap.

    Examples
    --------
    >>> from whichtoken.inspection import load_tokenizer, load_transformer, pick_survival
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> len(pick_survival(load_transformer("my-model"), texts, load_tokenizer("my-model")).gap) > 20
    True
    """
    check_evaluation(model)
    model = text_model(model)
    if picks is None:
        picks = corpus_picks(model, tokenizer, texts, queries=queries, batch=batch)
    rng = np.random.default_rng(seed)
    special = np.asarray(tokenizer.all_special_ids)
    words = _replacements(tokenizer, picks, rng)
    free = [np.flatnonzero(~np.isin(ids, special)) for ids in picks.ids]
    places = [(text, int(place)) for text, tokens in enumerate(free) if len(tokens) > 2 for place in tokens]
    if not places:
        return PickSurvival(np.empty(0), np.empty(0, dtype=bool), np.empty(0, dtype=int), np.empty(0, dtype=int))
    length = float(np.mean([len(ids) for ids in picks.ids]))
    fewer = min(changes, max(FEWEST, int(MOST_TOKENS / length)))
    chosen = [places[i] for i in rng.permutation(len(places))[:fewer]]
    changed = []
    for text, place in chosen:
        ids = picks.ids[text].copy()
        ids[place] = rng.choice(words[words != ids[place]])
        changed.append(ids.tolist())
    after = np.empty((len(changed), *picks.token.shape[1:]), dtype=int)
    for some, probe in run_texts(model, tokenizer, changed, batch, "changed texts"):
        for layer in range(after.shape[1]):
            after[some, layer] = probe.picks(layer, queries, special=False).token[:, :, 0]
    rows = np.array([text for text, _ in chosen])
    before, gap = picks.token[rows], picks.gap[rows]
    place = np.array([place for _, place in chosen])[:, None, None]
    query = np.array([0 if queries == "cls" else len(picks.ids[text]) - 1 for text in rows])[:, None, None]
    # a pick without rival cannot change
    valid = (before >= 0) & (before != place) & (place != query) & np.isfinite(gap)
    groups = np.broadcast_to(rows[:, None, None], before.shape)
    layers = np.broadcast_to(np.arange(before.shape[1])[:, None], before.shape)
    return PickSurvival(gap[valid].astype(float), (after == before)[valid], layers[valid], groups[valid])


def _replacements(tokenizer: Any, picks: CorpusPicks, rng: np.random.Generator) -> NDArray[np.int64]:
    """Tokens that may replace a word: those of the texts, and some of the vocabulary that are words."""
    own = np.unique(np.concatenate(picks.ids))
    every = sorted(
        token for name, token in tokenizer.get_vocab().items() if name.strip("Ġ▁").isalpha() and len(name.strip("Ġ▁")) > 2
    )  # fmt: skip
    more = rng.permutation(every)[:OTHER_WORDS] if every else own
    found = np.union1d(own, more).astype(int)
    return found[~np.isin(found, tokenizer.all_special_ids)]
