"""
An atlas of optimizers
======================

Every optimizer that fits the data perfectly chooses among the solutions, each in its own way. Train the same attention head
with several of them, and ask of each result what share of the best possible margin it has, in five norms. The darkest cell
of a row shows the geometry of that optimizer.
"""

import matplotlib.pyplot as plt
import numpy as np

from whichtoken.datasets import AttentionTokens
from whichtoken.flows import attention_descent, margin_scale

rng = np.random.default_rng(0)
problem = AttentionTokens(sequences=4, length=5, dim=8).sample(rng)
start = 1e-3 * rng.standard_normal((8, 8))
optimizers = {
    "normalized GD": ("normalized-gd", {"lr": 0.1}),
    "sign descent": ("sign", {"lr": 0.02}),
    "greedy coordinate": ("coordinate", {"lr": 1.0}),
    "Adam (.9, .9), eps 0": ("adam", {"lr": 0.02, "betas": (0.9, 0.9), "eps": 0.0}),
    "Adam (.9, .999), eps 1e-8": ("adam", {"lr": 0.02}),
    "Muon, no momentum": ("muon", {"lr": 0.1, "momentum": 0.0}),
    "Shampoo": ("shampoo", {"lr": 0.1}),
}

# %%
# The certified best margins belong to a selection of tokens, so each optimizer is measured against its own.
shares = []
for name, (optimizer, options) in optimizers.items():
    trained = attention_descent(problem, start, optimizer, steps=3000, **options)
    found = margin_scale(problem.tokens, problem.queries, trained.selected).shares(trained.final.direction)
    best = max(found, key=found.get)
    print(f"{name:>26}: tokens {trained.selected}, {found[best]:.1%} of the best {best} margin")
    shares.append(list(found.values()))

figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
picture = axes.imshow(shares, cmap="Blues", vmin=0.3, vmax=1, aspect="auto")
axes.set_xticks(range(len(found)), found)
axes.set_yticks(range(len(optimizers)), optimizers)
for (row, column), share in np.ndenumerate(shares):
    axes.text(column, row, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.75 else "black")
axes.set_title("Share of the best margin, by norm")
figure.colorbar(picture, ax=axes, label="share of the best margin")
plt.show()
