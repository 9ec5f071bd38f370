"""Attention on sparse tokens in high dimension: what it learns and how well, predicted without a simulation.

The theory of Barnfield, Cui, Lu, "High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification"
(arXiv 2509.25153), as functions: `two_steps` for the query, `erm` for the readout, `capacity` for separability, oracles
for what no amount of data can beat, and `plan` for the question a study begins with.
"""

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
