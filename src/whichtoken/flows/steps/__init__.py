"""The optimizers of `attention_descent`: one small compiled step each, and one table that lists them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from whichtoken.checks import check_choice
from whichtoken.flows.steps.adam import Adam, Lion
from whichtoken.flows.steps.gradient import CoordinateDescent, GradientDescent, NormalizedDescent, SignDescent
from whichtoken.flows.steps.muon import Muon
from whichtoken.flows.steps.settings import Settings
from whichtoken.flows.steps.shampoo import Shampoo, Soap

OPTIMIZERS: dict[str, type[Settings]] = {
    "gd": GradientDescent,
    "normalized-gd": NormalizedDescent,
    "sign": SignDescent,
    "coordinate": CoordinateDescent,
    "adam": Adam,
    "lion": Lion,
    "muon": Muon,
    "shampoo": Shampoo,
    "soap": Soap,
}


def optimizer_settings(optimizer: str, options: dict[str, Any]) -> Settings:
    """The settings of an optimizer by its name."""
    check_choice("optimizer", optimizer, ["mirror", *OPTIMIZERS])
    kind = OPTIMIZERS[optimizer]
    known = [field.name for field in fields(kind)]
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"{optimizer} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return kind(**options)
