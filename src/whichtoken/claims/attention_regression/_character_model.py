"""A small causal transformer over characters, the text that it learns, and the covariance of what its layers see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class CharacterTransformer(nn.Module):
    """Logits of the next character at every place.

    Learned positions, layers with normalization before attention and before the two dense layers, no dropout: what
    anybody would write down first, so that optimizers are compared on nothing special.

    Parameters
    ----------
    characters
        Size of the alphabet.
    context
        Longest sequence.
    width, heads, layers
        Sizes of the `nn.TransformerEncoderLayer`s.
    """

    mask: Tensor

    def __init__(self, characters: int, context: int = 32, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Logits (batch, length, characters) of codes (batch, length)."""
        length = codes.shape[1]
        if length > len(self.positions):
            raise ValueError(f"codes of length {length} must not exceed context={len(self.positions)}")
        hidden = self.embedding(codes) + self.positions[:length]  # (batch, length, width)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask[:length, :length], is_causal=True)
        logits: Tensor = self.readout(self.norm(hidden))
        return logits

    def attentions(self) -> list[nn.MultiheadAttention]:
        """The attention of every layer."""
        return [module for module in self.modules() if isinstance(module, nn.MultiheadAttention)]


ALPHABET = " .,?" + "0123456789" + "abcdefghijklmnopqrstuvwxyz"

NAMES = ("anna", "bruno", "clara", "david", "elena", "felix", "greta", "hugo", "irene", "jonas", "karla", "leo")
THINGS = ("apple", "book", "candle", "drum", "egg", "flower", "goat", "hat", "key", "lamp", "map", "nut")
QUALITIES = ("big", "blue", "calm", "dusty", "early", "fine", "grey", "heavy", "little", "old", "quiet", "small")
DEEDS = ("draws", "finds", "hides", "keeps", "likes", "loses", "paints", "sells", "takes", "wants")


class CharacterText:
    """Sentences of four kinds in random order; three of them can only be finished by looking back.

    A gift is counted again by its receiver, a question is answered with its own words, a sum follows from its two
    terms; the fourth kind is a plain statement.
    """

    alphabet = ALPHABET

    def sample(self, characters: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Codes (characters,) into `alphabet`."""
        if characters < 1:
            raise ValueError(f"characters={characters} must be at least 1")
        kinds = (_gift, _question, _sum, _statement)
        sentences: list[str] = []
        length = 0
        while length < characters:
            sentences.append(kinds[rng.integers(len(kinds))](rng))
            length += len(sentences[-1])
        return self.encode("".join(sentences)[:characters])

    def encode(self, text: str) -> NDArray[np.int64]:
        """Codes of a text."""
        if strange := sorted(set(text) - set(ALPHABET)):
            raise ValueError(f"text holds {strange[0]!r}, known characters are {ALPHABET!r}")
        return np.array([ALPHABET.index(character) for character in text], dtype=np.int64)

    def decode(self, codes: Sequence[int] | NDArray[np.int64]) -> str:
        """The text of codes."""
        return "".join(ALPHABET[code] for code in codes)


def _gift(rng: np.random.Generator) -> str:
    giver, receiver = rng.choice(NAMES, 2, replace=False)
    things = f"{rng.integers(2, 100)} {_one(THINGS, rng)}s"
    return f"{giver} gives {receiver} {things}, so {receiver} has {things}. "


def _question(rng: np.random.Generator) -> str:
    thing = f"the {_one(QUALITIES, rng)} {_one(THINGS, rng)}"
    name, deed = _one(NAMES, rng), _one(DEEDS, rng)
    return f"who {deed} {thing}? {name} {deed} {thing}. "


def _sum(rng: np.random.Generator) -> str:
    first, second = rng.integers(1, 10, 2)
    return f"{first} and {second} is {first + second}. "


def _statement(rng: np.random.Generator) -> str:
    return f"{_one(NAMES, rng)} {_one(DEEDS, rng)} a {_one(QUALITIES, rng)} {_one(THINGS, rng)}. "


def _one(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


class InputCovariance:
    """Running mean of x x^T over the first input of a layer, in the training mode of the layer.

    The mean starts at the identity. `matrix` is one tensor for good: given as `covariance` to an optimizer it is up to date
    in every step.

    Parameters
    ----------
    layer
        An `nn.MultiheadAttention` or `nn.Linear`.
    decay
        Weight of the past in every forward pass.
    ridge
        Added to the diagonal, relative to its mean: tokens behind a layer normalization fill one dimension less than
        they have.
    """

    def __init__(self, layer: nn.MultiheadAttention | nn.Linear, decay: float = 0.95, ridge: float = 1e-3) -> None:
        for name, value in (("decay", decay), ("ridge", ridge)):
            if not 0.0 < value < 1.0:
                raise ValueError(f"{name}={value} must lie strictly between 0 and 1")
        width = layer.in_features if isinstance(layer, nn.Linear) else layer.embed_dim
        self._name = "input" if isinstance(layer, nn.Linear) else "query"  # of the first input
        weight = next(layer.parameters())
        self.decay, self.ridge = decay, ridge
        self.matrix = torch.eye(width, dtype=weight.dtype, device=weight.device)  # (d, d)
        self._handle = layer.register_forward_pre_hook(self._observe, with_kwargs=True)

    def remove(self) -> None:
        """Stop observing."""
        self._handle.remove()

    @torch.no_grad()
    def _observe(self, layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        first: Tensor = inputs[0] if inputs else named[self._name]
        if layer.training and first.numel():
            tokens = first.reshape(-1, len(self.matrix)).to(self.matrix)  # (n, d)
            with torch.autocast(tokens.device.type, enabled=False):  # half precision is too coarse here
                moment = tokens.T @ tokens / len(tokens)  # (d, d)
            moment.diagonal().add_(self.ridge * moment.diagonal().mean())
            self.matrix.lerp_(moment, 1.0 - self.decay)
