"""Torch optimizers, one per file."""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
