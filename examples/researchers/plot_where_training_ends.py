"""
Where does training end?
========================

Train one attention head, and prove where its weights are going: the tokens on which each sequence ends define a max-margin
problem, and the direction of the weights tends to its solution. Mirror descent with exponent p solves the problem in the
p-norm. The solution comes with a certificate, so that "how near" is a number and not an impression.
"""

import matplotlib.pyplot as plt
import numpy as np

from whichtoken.datasets import AttentionTokens
from whichtoken.flows import attention_descent
from whichtoken.margin import key_query_svm

rng = np.random.default_rng(0)
problem = AttentionTokens(sequences=6, length=8, dim=10).sample(rng)
start = 1e-3 * rng.standard_normal((10, 10))
steps = np.unique(np.geomspace(1, 3000, 40).astype(int))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for p in (1.1, 1.5, 2.0, 3.0):
    rule = "geometric" if p > 2 else "normalized"  # constant steps grow W as a root only when p > 2
    lr = 0.01 if p > 2 else 1.0
    trained = attention_descent(problem, start, p=p, lr=lr, steps=3000, rule=rule, record=steps)
    limit = key_query_svm(problem.tokens, problem.queries, trained.selected, p=p)
    cosines = [
        np.vdot(state.direction, limit.direction) / np.linalg.norm(state.direction) / np.linalg.norm(limit.direction)
        for state in trained.snapshots
    ]
    print(
        f"p = {p}: selects tokens {trained.selected}, margin {limit.margin:.4f} (gap {limit.gap:.0e}), "
        f"cosine {cosines[-1]:.6f}"
    )
    left.loglog(steps, 1 - np.array(cosines), label=f"p = {p}")
    right.plot(np.sort(np.abs(limit.direction).ravel())[::-1] / np.abs(limit.direction).max(), label=f"p = {p}")
left.set(xlabel="steps", ylabel="1 - cosine to the certified limit", title="Training arrives")
right.set(xlabel="weights, the largest first", ylabel="size, relative to the largest", title="Smaller p: sparser limit")
right.legend(frameon=False)
plt.show()
