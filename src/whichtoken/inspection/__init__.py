"""Looking into a transformer: which token each head picks, how confidently, and whether it matters. Loaded on demand."""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
