"""One number for what a model decided, so that effects on it can be measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Score = Callable[[Any], Tensor]  # output of the model -> (batch,)


def decision(output: Any) -> tuple[str, Score]:
    """What a model decided for one text, in words, and how strongly an output still says so.

    A classifier: log odds of the class that it predicted. A language model: log odds of the next token. Any other encoder:
    the cosine between its mean embedding and that of the whole text.
    """
    logits = getattr(output, "logits", None)
    if logits is None:
        reference = _embedding(output)[:1].detach()
        return "embedding", lambda other: functional.cosine_similarity(_embedding(other), reference)
    chosen = int(_last(logits)[0].argmax())
    return f"class {chosen}" if logits.dim() == 2 else f"next token {chosen}", lambda other: log_odds(
        _last(other.logits), chosen
    )


def log_odds(logits: Tensor, chosen: int) -> Tensor:
    """Log of the probability of one class over that of all others: (batch,)."""
    others = torch.cat([logits[:, :chosen], logits[:, chosen + 1 :]], 1)
    if others.shape[1] == 0:
        return logits[:, 0]
    return logits[:, chosen] - others.logsumexp(1)


def _last(logits: Tensor) -> Tensor:
    return logits if logits.dim() == 2 else logits[:, -1]


def _embedding(output: Any) -> Tensor:
    hidden: Tensor = output.last_hidden_state if hasattr(output, "last_hidden_state") else output
    return hidden.mean(1)
