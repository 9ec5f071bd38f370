"""Synthetic reviews in plain English, in which words matter to known and different degrees; needs no file."""

from __future__ import annotations

import random
import tomllib
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.checks import check_count

NOISE = (0.03, 0.12, 0.25, 0.4)  # chance that a word of each strength stands in a review of the other label
_TEXTS: dict[str, Any] = tomllib.loads(files(__package__).joinpath("review_sentences.toml").read_text(encoding="utf-8"))
PRAISE, BLAME, SLOTS = _TEXTS["praise"], _TEXTS["blame"], _TEXTS["slots"]


def word_strengths() -> dict[str, float]:
    """P(positive | word) - P(negative | word) of every word that carries a sentiment; the others have 0.

    Returns
    -------
    dict
        From word to strength, between -1 and 1.

    Examples
    --------
    >>> from whichtoken.datasets.review_sentences import word_strengths
    >>> round(word_strengths()["superb"], 4), round(word_strengths()["terrible"], 4)
    (0.94, -0.76)
    """
    strengths: dict[str, float] = {}
    for words, sign in ((PRAISE, 1), (BLAME, -1)):
        for level, noise in zip(words, NOISE, strict=True):
            strengths.update(dict.fromkeys(level, sign * (1 - 2 * noise)))
    return strengths


def synthetic_reviews(n: int, rng: np.random.Generator) -> tuple[list[str], NDArray[np.int8]]:
    """`n` texts of 4 to 10 sentences and their labels, -1 or +1, balanced at random.

    A sentence carries one or two words of sentiment from one of four strengths, weaker ones more often. A word of strength k
    takes the side of the label with probability 1 - NOISE[k], so that `word_strengths` is the exact posterior difference.

    Parameters
    ----------
    n : int
        Number of texts.
    rng : numpy.random.Generator
        Source of the texts and labels.

    Returns
    -------
    tuple
        Texts and labels.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets.review_sentences import synthetic_reviews
    >>> texts, labels = synthetic_reviews(100, np.random.default_rng(0))
    >>> len(texts), sorted(set(labels.tolist()))
    (100, [-1, 1])
    """
    check_count("n", n, 1)
    labels = np.where(rng.random(n) < 0.5, 1, -1).astype(np.int8)
    dice = random.Random(int(rng.integers(2**63)))  # one word at a time is ten times faster than with numpy
    return [_review(int(label), dice) for label in labels], labels


def _review(label: int, dice: random.Random) -> str:
    body = [_TEXTS["sentences"]] * dice.randint(2, 5) + [_TEXTS["fillers"]] * dice.randint(1, 4)
    dice.shuffle(body)
    return " ".join(dice.choice(kind).format(**_words(label, dice)) for kind in [_TEXTS["openings"], *body])


def _words(label: int, dice: random.Random) -> dict[str, str]:
    """A word for every slot of a sentence."""
    slots = {name: dice.choice(words) for name, words in SLOTS.items()}
    slots["second_place"], slots["second_job"] = dice.choice(SLOTS["place"]), dice.choice(SLOTS["job"])
    slots["thing"], slots["other"] = dice.sample(_TEXTS["things"], 2)
    slots["word"], slots["second"] = _sentiment(label, dice), _sentiment(label, dice)
    return slots


def _sentiment(label: int, dice: random.Random) -> str:
    strength = dice.choices(range(len(NOISE)), weights=(1, 2, 3, 4))[0]
    side = label if dice.random() > NOISE[strength] else -label
    word: str = dice.choice((PRAISE if side > 0 else BLAME)[strength])
    return word
