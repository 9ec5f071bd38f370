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

from whichtoken.extras import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
