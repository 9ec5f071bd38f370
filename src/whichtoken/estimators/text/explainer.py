"""A text model as one HTML file that explains itself: the page holds the model and computes as the library does.

What the page cannot compute exactly is refused. What is left out of it, because it is rare, private or too much, is left out of
the model first; the report says how many decisions that changes, and the page decides as that smaller model does.
"""

from __future__ import annotations

import html
import html.entities
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.checks import check_count
from whichtoken.datasets import word_split
from whichtoken.datasets.text_pipeline import UNKNOWN, TextPipeline
from whichtoken.datasets.word_split import place_words, split_words, text_chunks
from whichtoken.display.html import asset
from whichtoken.display.text import pluralize
from whichtoken.errors import UsageError
from whichtoken.estimators import explainer_page as page
from whichtoken.estimators.common import refuse_several
from whichtoken.estimators.text.counting import Vocabulary
from whichtoken.estimators.text.learning import decide
from whichtoken.estimators.text.model import with_words_of

if TYPE_CHECKING:
    from whichtoken.estimators.text.model import TextModel

MIN_DF = 5  # documents: what stands in fewer may be about one person
SNOWBALL = "3.1"  # version of the stemmers in `assets/explainer/snowball`, which other versions may contradict
ARITHMETIC = ("numbers.js", "tokenize.js", "model.js", "decide.js")
SCRIPTS = (*ARITHMETIC, "elements.js", "page.js")
MASK = "___"  # in place of a private word
LIKE_LATIN = "ıİſ\u212a"  # that may be equal to i, s or k where case is ignored
HANGUL = range(0xAC00, 0xD7A4)
LONGEST_WORD = 100  # characters that WordPiece spells
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class SavedExplainer(page.SavedPage):
    """What `save_explainer` wrote and left out.

    Attributes
    ----------
    path : Path
        The page.
    size : int
        Its bytes.
    words : int
        Tokens that it holds.
    left_out : dict
        Tokens that it does not hold, by the reason.
    compared, changed : int
        Texts on which the page was compared with the whole model, and those that it decides otherwise.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from whichtoken import TextClassifier
    >>> texts = ["a good film", "a bad film"] * 10
    >>> model = TextClassifier(random_state=0).fit(texts, ["praise", "blame"] * 10)
    >>> with TemporaryDirectory() as folder:
    ...     saved = model.save_explainer(f"{folder}/page.html", examples=["a good film"], redact=["film"])
    >>> saved.words, saved.left_out, saved.changed
    (3, {'redacted': ('film',)}, 0)
    """

    words: int = 0
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    compared: int = 0
    changed: int = 0

    def sentences(self) -> list[str]:
        """What a person who publishes the page should know."""
        said = [
            f"{pluralize(len(names), 'token')} left out ({reason}): {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
            for reason, names in self.left_out.items()
        ]
        if self.left_out and self.compared:
            said.append(
                f"without them the page decides {self.changed} of {pluralize(self.compared, 'text')} differently"
            )
        return [*said, f"{super().sentences()[0]} and holds {pluralize(self.words, 'token')}"]


def save_explainer(
    model: TextModel,
    path: str | Path,
    examples: Sequence[str] = (),
    *,
    title: str | None = None,
    min_df: int = MIN_DF,
    redact: Iterable[str] = (),
    most_words: int | None = None,
    compare_on: Iterable[str] | None = None,
    card: Mapping[str, Any] | None = None,
) -> SavedExplainer:
    """Write the page; see `TextClassifier.save_explainer`."""
    examples = list(chain.from_iterable(text_chunks(examples)))
    check_exportable(model)
    tokenizer = model._vocabulary.tokenizer
    assert isinstance(tokenizer, TextPipeline)
    private = _private(tokenizer, [redact] if isinstance(redact, str) else list(redact))
    left_out = _left_out(model, min_df, private[1], most_words)
    masked = partial(_masked, tokenizer, *private)
    if shown := [name for name in map(str, model.classes_) if masked(name) != name]:
        raise UsageError(
            f"a word of the label {shown[0]} is to be redacted, but a page shows labels; rename it and fit again"
        )
    gone = set(chain.from_iterable(left_out.values()))
    kept = np.array([name not in gone for name in model.vocabulary_], dtype=bool)
    if not kept.any():
        raise UsageError(
            f"the page would hold no word: all {pluralize(len(kept), 'token')} are left out; lower {{min_df}}",
            min_df=min_df,
        )
    smaller = reduced(model, kept)
    compared, changed = _compare(model, smaller, kept, examples if compare_on is None else compare_on)
    notes = _notes(left_out, compared, changed)
    shown_card = _map_texts(masked, page.shown_card(card))
    offered = [masked(example) for example in examples]
    whole = explainer_page(smaller, offered, title=title and masked(title), card=shown_card, notes=notes)
    tokens, classes = len(smaller.vocabulary_), len(model.classes_)
    advice = f"for {tokens} tokens and {classes} classes; {{most_words}} would fit"
    size = page.write_page(path, whole, advice, most_words=tokens)
    return SavedExplainer(Path(path), size, int(kept.sum()), left_out, compared, changed)


def check_exportable(model: TextModel) -> None:
    """Refuse a model that a page could only approximate."""
    if not hasattr(model, "_vocabulary"):
        raise UsageError("the model was fitted on counts; a page reads texts, so fit it on texts")
    refuse_several(model, "an explainer page")
    model._refuse_columns("an explainer page")
    if model.selection_.shape[1] > 1:
        raise UsageError(
            "{n_queries}: the page shows models with one query, whose smallest deletions and certificates are exact",
            n_queries=model.n_queries,
        )
    if model._encoder is not None:
        raise UsageError("the model has an encoder, which does not run in a page; fit it without one")
    tokenizer = model._vocabulary.tokenizer
    if not isinstance(tokenizer, TextPipeline):
        raise UsageError(
            f"the model splits texts by a {'function' if callable(model.analyzer) else 'tokenizers file'}, which does not run "
            "in a page; fit it with analyzer=None"
        )
    if any("\n" in name for name in model.vocabulary_):
        raise UsageError("the model has a token with a line break, which no text has; it was changed, fit it again")
    check_stemmer(tokenizer.stemmer)


def check_stemmer(stemmer: str | None) -> None:
    """Refuse a stemmer that does not run in a page, or not as the installed one does."""
    if stemmer is None:
        return
    import Stemmer

    if stemmer not in (ported := ported_stemmers()):
        raise UsageError(f"{{stemmer}} does not run in a page; these do: {', '.join(ported)}", stemmer=stemmer)
    if not Stemmer.version().startswith(f"{SNOWBALL}."):
        raise UsageError(
            f"the page has the stemmers of Snowball {SNOWBALL}, and PyStemmer {Stemmer.version()} may stem otherwise; "
            f"install PyStemmer {SNOWBALL}"
        )


def ported_stemmers() -> list[str]:
    """Languages whose stemmer runs in a page."""
    return sorted(file.name.removesuffix("-stemmer.js") for file in _assets().joinpath("snowball").iterdir()
                  if file.name.endswith("-stemmer.js") and file.name != "base-stemmer.js")  # fmt: skip


def _assets() -> Any:
    return files("whichtoken.display") / "assets" / "explainer"


def _left_out(model: TextModel, min_df: int, private: set[str], most_words: int | None) -> dict[str, tuple[str, ...]]:
    """Names that the page must not hold, by the reason; each once."""
    check_count("min_df", min_df, 1)
    names, found = np.array(model.vocabulary_, dtype=object), {}
    left = np.ones(len(names), dtype=bool)

    def leave_out(reason: str, mask: NDArray[np.bool_]) -> None:
        if (mask & left).any():
            found[reason] = tuple(names[mask & left].tolist())
            left[mask] = False

    leave_out("redacted", np.array([not private.isdisjoint(name.split(" ")) for name in names]))
    if len(model._statistics) > 3:
        leave_out(f"in fewer than {pluralize(min_df, 'document')}", model._statistics[3] < min_df)
    elif min_df > model.min_df:
        raise UsageError(
            f"{{min_df}}: the model was saved before documents were counted, and only min_df={model.min_df} is known of its "
            "tokens; fit it again",
            min_df=min_df,
        )
    if most_words is not None:
        check_count("most_words", most_words, 1)
        # what a token says in all training documents together
        weight = np.exp(model.selection_[:, 0] - model.selection_.max()) * np.abs(model.values_).max(axis=(1, 2))
        weight *= model._statistics[0].sum(axis=1)
        mask = np.ones(len(names), dtype=bool)
        mask[np.argsort(np.where(left, -weight, np.inf), kind="stable")[:most_words]] = False
        leave_out(f"beyond the {most_words} that say most", mask)
    return found


def _private(tokenizer: TextPipeline, redact: Sequence[str]) -> tuple[set[str], set[str]]:
    """The words that a page must not hold, also with the s of a possessive, and the tokens that they become."""
    words = [form for word in split_words(redact, tokenizer.words).names for form in (word, f"{word}s")]
    return set(words), set(tokenizer.tokens([*redact, *words]).names)


def _masked(tokenizer: TextPipeline, words: set[str], tokens: set[str], text: str) -> str:
    """A text without its private words."""
    found, (starts, stops) = place_words([text], tokenizer.words)
    spelled = zip(found.names, tokenizer.pieces(found.names), strict=True)
    private = [name in words or not tokens.isdisjoint(pieces) for name, pieces in spelled]
    for place in np.flatnonzero(np.array(private, dtype=bool)[found.ids])[::-1]:
        text = text[: starts[place]] + MASK + text[stops[place] :]
    return text


def _map_texts(change: Callable[[str], str], card: Any) -> Any:
    """A card with another wording of its texts, at any depth."""
    if isinstance(card, dict):
        return {name: _map_texts(change, part) for name, part in card.items()}
    if isinstance(card, list):
        return [_map_texts(change, part) for part in card]
    return change(card) if isinstance(card, str) else card


def reduced(model: TextModel, kept: NDArray[np.bool_]) -> TextModel:
    """The model with some of its tokens only; that of many classes has values in single precision, as its page has."""
    smaller = copy(model)
    names = tuple(name for name, keep in zip(model.vocabulary_, kept.tolist(), strict=True) if keep)
    smaller._vocabulary, smaller.vocabulary_ = Vocabulary(model._vocabulary.tokenizer, names), names
    values = model.values_[kept]
    smaller.selection_, smaller.values_ = model.selection_[kept], values.astype(_precision(model)).astype(np.float64)
    return smaller


def _precision(model: TextModel) -> type[np.floating[Any]]:
    return np.float64 if len(model.classes_) == 2 else np.float32


def _compare(model: TextModel, smaller: TextModel, kept: NDArray[np.bool_], texts: Iterable[str]) -> tuple[int, int]:
    """How many texts there are, and how many the smaller model decides otherwise."""
    compared = changed = 0
    for chunk in text_chunks(texts):
        more = with_words_of(model, chunk)
        counts = more._vocabulary.table.count(more._vocabulary.tokenizer.tokens(chunk))
        compared += len(chunk)
        whole, reduced = more._outputs(counts), smaller._outputs(counts[:, np.flatnonzero(kept)])
        changed += int((decide(whole - model._offset) != decide(reduced - model._offset)).sum())
    return compared, changed


def _notes(left_out: Mapping[str, Sequence[str]], compared: int, changed: int) -> list[str]:
    """What the page says of what it does not hold, without naming any of it."""
    said = [f"{pluralize(len(names), 'token')} of the model left out ({reason})." for reason, names in left_out.items()]
    if left_out and compared:
        said.append(f"The page decides {changed} of {pluralize(compared, 'text')} differently from the whole model.")
    return said


def explainer_page(
    model: TextModel,
    examples: Sequence[str] = (),
    *,
    title: str | None = None,
    card: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The HTML of a page with a model that `check_exportable` accepts."""
    packed = pack_model(model, examples, title=title, card=card, notes=notes)
    return page.page_html(packed, page_script(model.stemmer))


def page_script(stemmer: str | None, names: Sequence[str] = SCRIPTS) -> str:
    """Modules of the page as one script: imports are left out, since everything stands in one scope."""
    stemming = page.NO_STEMMER
    if stemmer is not None:
        base, own = (asset(f"explainer/snowball/{name}-stemmer.js") for name in ("base", stemmer))
        own = own.replace("export default class extends", "return () => new class extends")
        # in a function, as its tables have short names
        stemming = f"const makeStemmer = (() => {{\n{base}\nconst B = BaseStemmer;\n{own}\n}})();"
    return page.script_of(names, stemming)


def pack_model(
    model: TextModel,
    examples: Sequence[str] = (),
    *,
    title: str | None = None,
    card: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """What a page has to know: names, numbers and the way to split texts, as JSON can hold it."""
    classes = [str(name) for name in model.classes_.tolist()]
    # a threshold moves decisions and weights of classes move outputs; probabilities undo both
    shifts = -model._shifts if len(classes) > 2 else np.array([model._shifts[0] - model._shifts[1]])
    shifts = shifts + model.choice_.temperature * model._offset
    tokenizer = model._vocabulary.tokenizer
    assert isinstance(tokenizer, TextPipeline)
    return {
        "title": title or f"Which words decide: {page.alternatives(classes)}",
        "classes": classes,
        "temperature": model.choice_.temperature,
        "bias": model._decision_bias.tolist(),
        "shifts": shifts.tolist(),
        "logNull": model.log_null_ if np.isfinite(model.log_null_) else None,
        "logCounts": model._log_counts,
        # characters of scripts without spaces count in pairs, whatever `ngram_range` says
        "ngrams": 1 + max(name.count(" ") for name in model.vocabulary_),
        "neighbors": len(model._vocabulary.without_pairs()) < len(model.vocabulary_),
        "names": _front_coded(model.vocabulary_),
        "selection": page.packed_numbers(model.selection_[:, 0]),
        "values": page.packed_numbers(model.values_[:, 0], _precision(model)),
        "tokenizer": {
            "stemmer": tokenizer.stemmer,
            "stopped": sorted(tokenizer._stop_forms),
            "words": word_rules(tokenizer.words),
            "pieces": _pieces(tokenizer) if tokenizer.word_pieces is not None else None,
        },
        "examples": list(chain.from_iterable(text_chunks(examples))),
        "card": page.shown_card(card),
        "notes": list(notes),
    }


def _front_coded(names: Sequence[str]) -> str:
    """One line per name: how many characters it shares with the one before, to base 36, then the rest."""
    lines, last = [], ""
    for name in names:
        # characters beyond U+FFFF are two units in JavaScript
        pairs = zip(last[: len(DIGITS) - 1], name, strict=False)
        size = next(
            (k for k, (a, b) in enumerate(pairs) if a != b or ord(a) > 0xFFFF),
            min(len(last), len(name), len(DIGITS) - 1),
        )
        lines.append(DIGITS[size] + name[size:])
        last = name
    return "\n".join(lines)


@cache
def word_rules(version: int) -> dict[str, Any]:
    """What `word_split` knows of characters and words, in this Python's version of Unicode."""
    signs = [chr(code) for code in range(sys.maxunicode + 1)]
    categories = [unicodedata.category(sign) for sign in signs]
    lower = [(code, sign.lower()) for code, sign in enumerate(signs) if sign.lower() != sign]
    rules = {
        "version": version,
        "letters": _ranges([sign.isalnum() or kind[0] == "M" for sign, kind in zip(signs, categories, strict=True)]),
        "marks": _ranges([kind[0] == "M" for kind in categories]),
        "formats": _ranges([kind == "Cf" for kind in categories]),
        "apostrophes": word_split.APOSTROPHES[: 4 if version == 1 else None],
        "lower": {
            "runs": _runs([(code, ord(text) - code) for code, text in lower if len(text) == 1]),
            "others": [[code, text] for code, text in lower if len(text) > 1],
        },
        "kept": word_split.KEPT.pattern,
        "markup": _in_javascript(word_split.HTML_BREAK if version == 1 else word_split.MARKUP),
        "word": "[^ ']+(?:'+[^ ']+)*" if version == 1 else word_split.WORD.pattern,
    }
    if version == 1:
        return rules
    variations = "".join(map(chr, [0x640, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
    return rules | {
        "dropped": variations,
        "reference": word_split.REFERENCE.pattern,
        "sequence": word_split.SEQUENCE.pattern,
        "elision": word_split.ELISION.pattern,
        "entities": {
            "named": html.entities.html5,
            "numbers": [
                [code, text] for code in range(256) if (text := html.unescape(f"&#{code};")) not in ("", chr(code))
            ],
            # beyond the first plane, the last two characters of each one
            "invalid": [
                code
                for code in range(sys.maxunicode + 1)
                if (code < 0x10000 or code & 0xFFFE == 0xFFFE) and not html.unescape(f"&#{code};")
            ],
        },
    }


def _ranges(members: Sequence[bool]) -> str:
    """Where runs of members begin and end, as differences to base 36."""
    edges = np.flatnonzero(np.diff(np.array(members), prepend=False, append=False))
    return " ".join(np.base_repr(step, 36).lower() for step in np.diff(edges, prepend=0).tolist())


def _in_javascript(pattern: re.Pattern[str]) -> str:
    """A pattern that ignores case, with Python's spaces and with the letters that Python holds for the same."""
    spaces = "".join(sign for sign in map(chr, range(0x3001)) if re.match(r"\s", sign))

    def written(found: re.Match[str]) -> str:
        if found[0] == r"\s":
            return f"[{spaces}]"
        same = [sign for sign in found[0] + found[0].upper() + LIKE_LATIN if re.match(found[0], sign, re.IGNORECASE)]
        return f"[{''.join(same)}]"

    return re.sub(r"\\s|[a-z]", written, pattern.pattern)


def _runs(shifts: Sequence[tuple[int, int]], widest: int = 2) -> list[list[int]]:
    """Runs [first, count, step, shift] of codes at equal distances, at most `widest`, with equal shifts."""
    runs: list[list[int]] = []
    for code, shift in shifts:
        if runs:
            first, count, step, same = runs[-1]
            gap = code - first - (count - 1) * step
            if shift == same and (gap == step or (count == 1 and gap <= widest)):
                runs[-1] = [first, count + 1, gap, same]
                continue
        runs.append([code, 1, 1, shift])
    return runs


def _pieces(tokenizer: TextPipeline) -> dict[str, Any]:
    """The vocabulary of word pieces, and what BERT's normalization makes of single characters."""
    normalize = tokenizer._tokenizer.normalizer.normalize_str
    signs = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    inside = [sign for sign in signs if word_split.is_letter(sign) or word_split.KEPT.match(sign)]
    changed = [(ord(sign), text) for sign in [*inside, word_split.JOINER] if (text := normalize(sign)) != sign]
    spaced = np.array([code for code, text in changed if text == f" {chr(code)} "])
    return {
        "pieces": list(tokenizer.spelling),
        "unknown": UNKNOWN,
        "longest": LONGEST_WORD,
        # runs [first, count]: each of these characters is a word of its own
        "spaced": [run[:2] for run in _runs([(code, 0) for code in spaced.tolist()], 1)],
        # Korean syllables are taken apart by a rule that every browser has
        "replaced": [
            [code, text] for code, text in changed
            if text != f" {chr(code)} " and not (code in HANGUL and text == unicodedata.normalize("NFD", chr(code)))
        ],
    }  # fmt: skip
