"""A transformer that is trained in seconds and whose head is then inspected: the third step of the demo."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from whichtoken.datasets.review_sentences import synthetic_reviews, word_strengths
from whichtoken.inspection.probe import AttentionProbe
from whichtoken.theory.mirror_descent.transformers import SentimentTransformer
from whichtoken.threads import one_thread

TRAINING, HELD_OUT, LENGTH = 1000, 200, 96
EPOCHS, BATCH, LR = 4, 50, 5e-3
CLS = 1  # code of the first token; 0 is padding


@dataclass(frozen=True)
class SmallTransformer:
    """What a head of a small transformer picks on texts in which it is known which words matter."""

    training: int
    held_out: int
    accuracy: float
    share_picked: float  # texts in which the head picks a word that carries sentiment
    share_of_words: float  # that carry sentiment
    example: str  # the pick in one text
    over: str  # its runner-up
    gap: float  # in nats

    @property
    def sentence(self) -> str:
        """In words."""
        return (
            f"{self.share_of_words:.0%} of the words carry sentiment, and the head picks one of them in "
            f"{self.share_picked:.0%} of the texts"
        )


def train_small_transformer(seed: int = 0) -> SmallTransformer:
    """Train one layer of attention on synthetic reviews, and see what its `<cls>` query picks in unseen ones."""
    texts, labels = synthetic_reviews(TRAINING + HELD_OUT, np.random.default_rng(seed))
    words = [re.findall(r"[a-z]+", text.lower())[:LENGTH] for text in texts]
    vocabulary = {word: code for code, word in enumerate(sorted({word for text in words for word in text}), CLS + 1)}
    codes = torch.zeros(len(words), LENGTH + 1, dtype=torch.long)
    codes[:, 0] = CLS
    for row, text in zip(codes, words, strict=True):
        row[1 : len(text) + 1] = torch.tensor([vocabulary[word] for word in text])
    truth = torch.from_numpy((labels > 0).astype(np.float32))
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        size = len(vocabulary) + CLS + 1
        model = SentimentTransformer(size, LENGTH + 1, width=32, heads=2, hidden=32, dropout=0.1, block="post-cls")
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        for _ in range(EPOCHS):
            for rows in torch.split(torch.randperm(TRAINING), BATCH):
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(model(codes[rows]), truth[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        model.eval()
    with AttentionProbe(model) as probe, torch.no_grad():
        right = (model(codes[TRAINING:]) > 0) == (truth[TRAINING:] > 0)
    picks = probe.picks(layer=0, queries=[0])
    strengths, unseen = word_strengths(), words[TRAINING:]
    head = 0
    picked = [_word(text, int(place)) for text, place in zip(unseen, picks.token[:, head, 0], strict=True)]
    widest = int(picks.gap[:, head, 0].argmax())
    return SmallTransformer(
        TRAINING, HELD_OUT, float(right.float().mean()),
        share_picked=float(np.mean([word in strengths for word in picked])),
        share_of_words=float(np.mean([word in strengths for text in unseen for word in text])),
        example=picked[widest], over=_word(unseen[widest], int(picks.runner_up[widest, head, 0])),
        gap=float(picks.gap[widest, head, 0]),
    )  # fmt: skip


def _word(text: list[str], place: int) -> str:
    return text[place - 1] if 0 < place <= len(text) else "<cls>"
