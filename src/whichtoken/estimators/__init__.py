"""Using it on your own data: the scikit-learn API on the same models, optimizers and predictions."""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
