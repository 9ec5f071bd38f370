r"""Predictions for group-sparse classification by a one-layer transformer.

Only one of D groups of variables decides the label, y = sign(<v*, x_{j*}>), and gradient descent from zero on the
merged key-query matrix W and the value vector v finds it (Zhang, Meng, Cao, "Transformer Learns Optimal Variable
Selection in Group-Sparse Classification", arXiv 2504.08638).

===============  =========================  =====================================================================
symbol           name in the code           meaning
===============  =========================  =====================================================================
D, d             groups, group_dim          number of groups; variables in a group
sigma            sigma                      standard deviation of every variable
c                encoding_norm2             squared norm of the orthogonal positional encodings, p_i.p_j = c delta_ij
eta              lr                         the one learning rate of W and v
alpha            alpha                      v = (alpha v*, 0)
s                attention                  weight that every query gives to group j*
gap              gap                        score of group j* minus score of any other group, s = 1/(1+(D-1)e^-gap)
1 - s            leakage                    weight lost to the irrelevant groups
===============  =========================  =====================================================================

The model sums over the D columns of the softmax: its output scales with D.
"""

from whichtoken.theory.group_sparse.encodings import encoding_norm2, positional_block
from whichtoken.theory.group_sparse.late_phase import LatePhase, late_phase, steps_to_loss
from whichtoken.theory.group_sparse.population import (
    FirstUpdate,
    PopulationTrajectory,
    first_update,
    population_map,
    steps_to_select,
)
from whichtoken.theory.group_sparse.stability import (
    StabilityBounds,
    default_learning_rate,
    stability_bounds,
)
from whichtoken.theory.group_sparse.symmetric import SymmetricTrajectory, symmetric_map
from whichtoken.theory.group_sparse.transfer import logistic_error_order, transfer_error_order

__all__ = [
    "FirstUpdate",
    "LatePhase",
    "PopulationTrajectory",
    "StabilityBounds",
    "SymmetricTrajectory",
    "default_learning_rate",
    "encoding_norm2",
    "first_update",
    "late_phase",
    "logistic_error_order",
    "population_map",
    "positional_block",
    "stability_bounds",
    "steps_to_loss",
    "steps_to_select",
    "symmetric_map",
    "transfer_error_order",
]
