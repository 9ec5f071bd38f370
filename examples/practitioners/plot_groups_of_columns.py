"""
Which group of columns matters?
===============================

The breast-cancer table of scikit-learn has ten measurements of cell nuclei, and of each the mean, the standard error and the
worst value: ten groups of three columns. ``GroupClassifier`` says which groups it needs, and for each row which of them
decided, compared with the average patient.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from whichtoken import GroupClassifier

data = load_breast_cancer(as_frame=True)
names = [column.removeprefix("mean ").removeprefix("worst ").removesuffix(" error") for column in data.data.columns]
X, X_test, y, y_test = train_test_split(
    data.data, data.target_names[data.target], test_size=0.3, random_state=0, stratify=data.target
)
model = GroupClassifier(names, random_state=0).fit(X, y)
print(
    f"keeps {len(model.selected_groups_)} of {len(set(names))} groups, {model.score(X_test, y_test):.1%} of the test rows right"
)
print(model.path_)

# %%
# The test row about which it is least sure, and what would change its decision.
row = int(np.abs(model.predict_proba(X_test)[:, 1] - 0.5).argmin())
[why] = model.explain(X_test.iloc[[row]])
print(
    f"row {X_test.index[row]}: {why.label} ({why.probability:.2f}); at their averages, {why.counterfactual} would flip it"
)

groups = [reason.group for reason in model.explain(X_test.iloc[:1])[0].reasons]
reasons = {reason.group: reason.contribution for reason in why.reasons}
strength = {group: [] for group in groups}
for explained in model.explain(X_test):
    for reason in explained.reasons:
        strength[reason.group].append(abs(reason.contribution))
ranked = sorted(groups, key=lambda group: np.mean(strength[group]))
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained", sharey=True)
left.barh(ranked, [np.mean(strength[group]) for group in ranked], color="gray")
left.set(xlabel="mean size of the contribution", title="All test rows")
right.barh(
    ranked, [reasons[group] for group in ranked], color=["tab:red" if reasons[g] < 0 else "tab:blue" for g in ranked]
)
right.axvline(0, color="black", linewidth=0.8)
right.set(
    xlabel=f"contribution; red: {model.classes_[0]}, blue: {model.classes_[1]}", title="The row it is least sure of"
)
plt.show()
