"""Where l_p mirror descent takes softmax attention, how fast, and how to measure the distance.

The laws are in `predictions`; the models that they are about need torch and are loaded when asked for.
"""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
