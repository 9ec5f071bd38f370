"""The direct contribution of each head and token to a logit: through the residual stream, past all later layers.

The output of a model is read from the residual stream, to which every attention layer and every feed-forward layer adds.
What a head adds reaches the output directly, scaled by the normalisations on its way (held at their values), and
indirectly through later layers. The direct part splits exactly over the tokens that the head attends to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.inspection.anatomy import Anatomy, anatomy, frozen_norm, is_norm
from whichtoken.inspection.decision import decision
from whichtoken.inspection.probe import AttentionProbe


@dataclass(frozen=True, eq=False)
class DirectContributions(Shown):
    """Direct contributions to the decision (log odds for a classifier)."""

    decision: str
    score: float
    values: list[NDArray[np.float64]]  # by layer: (heads, tokens)
    error: float  # largest difference, over heads, to the true change of the decision when the head's direct part is removed

    @property
    def heads(self) -> NDArray[np.float64]:
        """Contribution of each head: (layers, heads)."""
        return np.stack([layer.sum(1) for layer in self.values])


def direct_contributions(model: nn.Module, inputs: Mapping[str, Tensor]) -> DirectContributions:
    """Direct contributions of all heads and tokens for one text (1, tokens) without padding.

    The scales of the normalisations are held and the model's head is linearised at this text. `error` says what that costs:
    the largest difference between a head's contribution and the change of the decision when it is taken out of the residual
    stream, all later layers answering as before.

    Parameters
    ----------
    model : nn.Module
        A transformers model, in evaluation mode.
    inputs : Mapping[str, Tensor]
        One text, as the tokenizer gives it.

    Returns
    -------
    DirectContributions
        By layer, head and token.

    Examples
    --------
    >>> from whichtoken.inspection import direct_contributions, load_transformer, load_tokenizer
    >>> inputs = load_tokenizer("my-model")("a good film", return_tensors="pt")
    >>> direct_contributions(load_transformer("my-model"), inputs).heads.shape
    (2, 4)
    """
    with AttentionProbe(model) as probe, torch.no_grad():
        output = model(**inputs)
    name, score = decision(output)
    sites = {layer: site for site in probe.sites for layer in site.layers}
    parts = [anatomy(probe.model, sites[layer]) for layer in sorted(sites)]
    if any(part.functional for part in parts):
        raise UsageError(
            "direct contributions need an output projection that is called as a module; torch's attention does not"
        )
    written, gradients = _gradients(model, inputs, parts, score)
    values, rows = [], []
    for layer, part in enumerate(parts):
        reading = probe.reading(layer)
        heads = len(reading.heads)
        matrix = part.output_weight(heads).detach()
        pulled = torch.einsum("tw,hdw->htd", gradients[layer][0], matrix)  # (heads, queries, dim)
        weights = reading.weights()[0]  # (heads, queries, keys)
        each = torch.einsum("hqk,hqd->hkd", weights, pulled)
        values.append((each * reading.value[0, reading.group]).sum(-1).double().numpy())
        context = reading.output()[0]  # (heads, queries, dim)
        rows.append(torch.einsum("htd,hdw->htw", context, matrix))
    base = float(score(output)[0])
    return DirectContributions(name, base, values, _error(model, inputs, parts, score, written, rows, values, base))


def _writers(parts: list[Anatomy]) -> list[nn.Module]:
    """Everything that adds to the residual stream, each once."""
    found = [module for part in parts for module in (part.output, part.feed_forward) if module is not None]
    return list(dict.fromkeys(found))


def _gradients(
    model: nn.Module, inputs: Mapping[str, Tensor], parts: list[Anatomy], score: Callable[[Any], Tensor]
) -> tuple[dict[tuple[int, int], Tensor], list[Tensor]]:
    """What every writer wrote, in the order of calls, and the gradient of the decision at each attention layer's output."""
    leaves: dict[tuple[int, int], Tensor] = {}
    calls: dict[int, int] = {}

    def leaf(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        call = calls.get(id(module), 0)
        calls[id(module)] = call + 1
        leaves[id(module), call] = output.detach().requires_grad_()
        return leaves[id(module), call]

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for module in _writers(parts):
            stack.callback(module.register_forward_hook(leaf).remove)
        for module in model.modules():
            if is_norm(module):
                hook = lambda module, args, output: frozen_norm(module, args[0], output)  # noqa: E731
                stack.callback(module.register_forward_hook(hook).remove)
        keys = [_call(parts, layer) for layer in range(len(parts))]
        strength = score(model(**inputs)).sum()
        gradients = torch.autograd.grad(strength, [leaves[key] for key in keys], allow_unused=True)
    filled = [torch.zeros_like(leaves[key]) if g is None else g for key, g in zip(keys, gradients, strict=True)]
    return {key: value.detach() for key, value in leaves.items()}, filled


def _call(parts: list[Anatomy], layer: int) -> tuple[int, int]:
    """The output projection of a layer and which of its calls it is (layers may share weights)."""
    output = parts[layer].output
    return id(output), sum(parts[i].output is output for i in range(layer))


@torch.no_grad()
def _error(
    model: nn.Module, inputs: Mapping[str, Tensor], parts: list[Anatomy], score: Callable[[Any], Tensor],
    written: dict[tuple[int, int], Tensor], rows: list[Tensor], values: list[NDArray[np.float64]], base: float,
) -> float:  # fmt: skip
    worst = 0.0
    for layer, removed in enumerate(rows):
        replay = dict(written)
        replay[_call(parts, layer)] = written[_call(parts, layer)] - removed
        with _replayed(parts, replay):
            given = {name: value.expand(len(removed), *value.shape[1:]) for name, value in inputs.items()}
            drops = base - score(model(**given)).double().numpy()
        worst = max(worst, float(np.abs(drops - values[layer].sum(1)).max()))
    return worst


@contextmanager
def _replayed(parts: list[Anatomy], written: dict[tuple[int, int], Tensor]) -> Iterator[None]:
    """Every writer says again what it said, whatever it is asked."""
    calls: dict[int, int] = {}

    def again(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        call = calls.get(id(module), 0)
        calls[id(module)] = call + 1
        return written[id(module), call].expand_as(output)

    with ExitStack() as stack:
        for module in _writers(parts):
            stack.callback(module.register_forward_hook(again).remove)
        yield
