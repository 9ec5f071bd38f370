"""Is a ranking of tokens true to the model? Take the tokens away in its order and watch the decision; and the usual rankings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from whichtoken.inspection.attribution import input_embedding
from whichtoken.inspection.decision import decision


@dataclass(frozen=True, eq=False)
class Curves:
    """Probability of the decided class as tokens go (deletion) or come (insertion), in the order of a ranking.

    Both start with no token touched, end with all of them, and are means over the steps: a true ranking has a small
    deletion area and a large insertion area.
    """

    deletion: NDArray[np.float64]  # (tokens + 1,)
    insertion: NDArray[np.float64]

    @property
    def deletion_area(self) -> float:
        return float(np.mean(self.deletion))

    @property
    def insertion_area(self) -> float:
        return float(np.mean(self.insertion))


@torch.no_grad()
def curves(model: nn.Module, inputs: Mapping[str, Tensor], ranking: ArrayLike, special: NDArray[np.bool_]) -> Curves:
    """Both curves of one text (1, tokens) under a ranking (tokens,), largest first; special tokens always stay.

    A token that is taken away is masked in every layer.
    """
    order = [int(i) for i in np.argsort(-np.asarray(ranking), kind="stable") if not special[i]]
    tokens = len(special)
    gone = torch.ones(len(order) + 1, tokens, dtype=torch.long)
    for step, token in enumerate(order, 1):
        gone[step:, token] = 0
    kept = torch.ones_like(gone)
    for step in range(len(order) + 1):
        kept[step, order[step:]] = 0
    _, score = decision(model(**inputs))
    strength = score(_masked(model, inputs, torch.cat([gone, kept])))
    probability = torch.sigmoid(strength).double().numpy()
    return Curves(probability[: len(gone)], probability[len(gone) :])


@torch.no_grad()
def occlusion(model: nn.Module, inputs: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """How much weaker the decision is without each token, masked in every layer: one forward pass per token."""
    output = model(**inputs)
    _, score = decision(output)
    tokens = inputs["input_ids"].shape[1]
    masks = torch.ones(tokens, tokens, dtype=torch.long) - torch.eye(tokens, dtype=torch.long)
    return (score(output) - score(_masked(model, inputs, masks))).double().numpy()


def integrated_gradients(
    model: Any,
    inputs: Mapping[str, Tensor],
    special: NDArray[np.bool_],
    *,
    baseline: int = 0,
    steps: int = 50,
    batch: int = 10,
) -> NDArray[np.float64]:
    """Integrated gradients (Sundararajan et al. 2017), from a text of `baseline` tokens in which special ones are kept."""
    ids = inputs["input_ids"]
    with torch.no_grad():
        _, score = decision(model(**inputs))
        table = input_embedding(model)
        start = table(torch.where(torch.as_tensor(special), ids, baseline))
        way = table(ids) - start  # (1, tokens, width)
    total = torch.zeros_like(way)
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    for part in torch.split((torch.arange(steps, dtype=way.dtype) + 0.5) / steps, batch):
        points = (start + part[:, None, None] * way).requires_grad_()
        given = {name: value.expand(len(part), -1) for name, value in rest.items()}
        with torch.enable_grad():
            strength = score(model(inputs_embeds=points, **given)).sum()
        total += torch.autograd.grad(strength, points)[0].sum(0)
    shares: NDArray[np.float64] = (total / steps * way).sum(-1)[0].double().numpy()
    return shares


def _masked(model: Any, inputs: Mapping[str, Tensor], masks: Tensor) -> Any:
    given = {name: value.expand(len(masks), -1) for name, value in inputs.items()}
    return model(**(given | {"attention_mask": masks}))
