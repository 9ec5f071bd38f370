"""Exact directional dynamics: where descent in softmax attention goes, with gradients that survive saturation."""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
