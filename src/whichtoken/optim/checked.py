"""What the optimizers share: options are checked before they are used, gradients before anything moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT


def check_dtype(optimizer: str, name: str, param: Tensor) -> None:
    """Refuse what is neither float32 nor float64."""
    if param.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{optimizer} supports float32 and float64 parameters, but parameter {name} is {param.dtype}; "
            "keep float32 weights and use torch.autocast for lower precision"
        )


def check_dense(optimizer: str, name: str, gradient: Tensor) -> None:
    """Refuse a sparse gradient."""
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"{optimizer} does not support sparse gradients, please make that of parameter {name} dense "
            "(an embedding takes sparse=False)"
        )


class CheckedOptimizer(Optimizer):
    """An optimizer that refuses what it cannot do with a one-sentence reason, and is then as it was before.

    A subclass says what it refuses in `_check_options`, `_check_group` and `_check_gradients`, and moves in `_move_all`.
    """

    # options that state dicts of earlier versions do not hold, with their defaults
    later_options: ClassVar[dict[str, Any]] = {}

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._check_options(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own options."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_options(group)
            for index, param in enumerate(group["params"]):
                check_dtype(type(self).__name__, self._name(-1, index), param)
            self._check_group(len(self.param_groups) - 1)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for option, default in self.later_options.items():
                group.setdefault(option, default)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient; `closure`, if given, evaluates the loss once before that."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number in range(len(self.param_groups)):  # all checks come before the first move
            self._check_gradients(number)
        self._move_all()
        return loss

    def _check_options(self, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def _check_group(self, number: int) -> None:
        raise NotImplementedError

    def _check_gradients(self, number: int) -> None:
        raise NotImplementedError

    def _move_all(self) -> None:
        raise NotImplementedError

    def _name(self, group: int, index: int) -> str:
        names = self.param_groups[group].get("param_names")
        return names[index] if names else f"{index} of group {group % len(self.param_groups)}"

    def _add_momentum(self, params: Sequence[Tensor], directions: list[Tensor], momentum: float) -> list[Tensor]:
        """momentum * (previous direction) + direction, kept as state; the directions themselves without momentum."""
        if momentum == 0 or not params:
            return directions
        for param in params:
            if "momentum_buffer" not in self.state[param]:
                self.state[param]["momentum_buffer"] = torch.zeros_like(param)
        buffers: list[Tensor] = [self.state[param]["momentum_buffer"] for param in params]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, directions)
        return buffers


def check_rates(options: dict[str, Any], *rates: str) -> None:
    """Refuse a learning rate, or other rates by name, that is negative or not finite."""
    lr = options["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0.0 <= float(lr) < math.inf:
        raise ValueError(f"Invalid learning rate: {lr}, must be finite and not negative")
    for option in rates:
        if not 0.0 <= options[option] < math.inf:
            raise ValueError(f"Invalid {option} value: {options[option]}, must be finite and not negative")


def check_heads(options: dict[str, Any]) -> None:
    """Refuse a number of heads that is none."""
    if not isinstance(options["heads"], int) or options["heads"] < 1:
        raise ValueError(f"Invalid heads value: {options['heads']}, must be an integer and at least 1")


def nonfinite(tensor: Tensor) -> bool:
    """Whether a tensor holds NaN or infinity."""
    return not bool(torch.linalg.vector_norm(tensor, math.inf).isfinite())
