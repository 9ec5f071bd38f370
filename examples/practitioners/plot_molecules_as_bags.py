"""
Molecules as bags of shapes
===========================

A molecule smells of musk if *one* of its shapes does; the labels do not say which one. ``BagClassifier`` pools the shapes by
attention and says which of them decided. Ninety-two molecules, 166 features of each shape.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import StratifiedKFold

from whichtoken import BagClassifier
from whichtoken.datasets import read_bag_set

try:
    molecules, musk = read_bag_set("musk1")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

# %%
# Is the signal linear in a shape, or does it need a map of features? Five folds, the same for all.
accuracies = {}
for kind in ("linear", "fourier"):
    accuracies[kind] = [
        BagClassifier(instance_map=kind, random_state=0)
        .fit([molecules[i] for i in inside], musk[inside])
        .score([molecules[i] for i in outside], musk[outside])
        for inside, outside in StratifiedKFold(5, shuffle=True, random_state=0).split(musk, musk)
    ]
    print(f"{kind}: {np.mean(accuracies[kind]):.1%} right")
best = max(accuracies, key=lambda kind: np.mean(accuracies[kind]))

# %%
# Train on all but the last fifteen molecules, and look at those: how much does each shape add to the decision?
order = np.random.default_rng(0).permutation(len(musk))
inside, outside = order[:-15], order[-15:]
model = BagClassifier(instance_map=best, random_state=0).fit([molecules[i] for i in inside], musk[inside])
shown = sorted(outside, key=lambda i: -musk[i])
contributions = model.contributions([molecules[i] for i in shown])

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained", width_ratios=(1, 2))
left.boxplot(list(accuracies.values()), tick_labels=list(accuracies))
left.axhline(max(np.mean(musk > 0), np.mean(musk < 0)), color="gray", linestyle=":", label="the larger class")
left.set(xlabel="map of the shapes", ylabel="accuracy, five folds", ylim=(0.45, 1.02))
left.legend(frameon=False, loc="lower left")
for place, (number, added) in enumerate(zip(shown, contributions, strict=True)):
    color = "tab:red" if musk[number] > 0 else "tab:blue"
    right.scatter(np.full(len(added), place), added, s=14, color=color, alpha=0.5)
    right.plot(place, added.sum(), "_", color="black", markersize=14)
right.axhline(0, color="gray", linewidth=0.8)
right.set(xlabel="new molecules (red: musk)", ylabel="contribution of each shape; bar: their sum", xticks=[])
right.set_title("What each shape adds; their sum decides")
plt.show()
