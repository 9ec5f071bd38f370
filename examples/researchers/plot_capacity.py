"""
How many sequences can a readout tell apart?
============================================

Below a certain number of samples per dimension, *the capacity*, a linear readout can fit every label of a training set
perfectly; above it, none can. Theory gives the number for wide tokens; linear programs check how sharp it is at width 60.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import linprog

from whichtoken.datasets import SparseTokens
from whichtoken.theory import sparse_tokens

task = {"length": 5, "signal_tokens": 1, "strength": 4.0, "prevalence": 0.5}
dim, rng = 60, np.random.default_rng(0)
theory = sparse_tokens.capacity(model="pooled", **task)
print(f"theory: the mean of the tokens is separable up to {theory:.2f} samples per dimension")


# %%
# A training set is separable if some readout and bias have a positive margin on every sample: a linear program.
def separable(features: np.ndarray, labels: np.ndarray) -> bool:
    rows = -labels[:, None] * np.column_stack([features, np.ones(len(labels))])
    found = linprog(np.zeros(rows.shape[1]), rows, -np.ones(len(rows)), bounds=(None, None), method="highs")
    return found.status == 0


ratios = theory * np.linspace(0.75, 1.25, 9)
data = SparseTokens(**task, dim=dim)
shares = []
for ratio in ratios:
    draws = [data.sample(round(ratio * dim), rng) for _ in range(16)]
    shares.append(np.mean([separable(tokens.mean(axis=1), labels) for tokens, labels in draws]))

# %%
# Theory alone, for every strength of the signal. Attention that is well aligned separates more, because it finds the token.
strengths = np.linspace(0.5, 6, 12)
curves = {
    "mean pooling": [sparse_tokens.capacity(model="pooled", **{**task, "strength": s}) for s in strengths],
    "attention, alignment 0.9": [
        sparse_tokens.capacity(alignment=0.9, inverse_temperature=2.0, **{**task, "strength": s}) for s in strengths
    ],
}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(ratios, shares, "o-", label=f"linear programs, {dim} dimensions")
left.axvline(theory, color="black", linestyle=":", label="capacity, by theory")
left.set(xlabel="samples per dimension", ylabel="share of separable training sets", title="A sharp transition")
left.set_ylim(-0.25, 1.05)
left.legend(frameon=False, loc="lower left")
for name, capacities in curves.items():
    right.plot(strengths, capacities, label=name)
right.set(xlabel="strength of the signal", ylabel="capacity, samples per dimension", title="Attention separates more")
right.set_yscale("log")
right.legend(frameon=False)
plt.show()
