"""Where sequences come from: one generator or reader per file, loaded when asked for."""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
