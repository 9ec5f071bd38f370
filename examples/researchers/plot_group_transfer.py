"""
Find the group, and carry it to a new task
==========================================

One of D groups of variables decides the label. A one-layer transformer finds it by gradient descent, and the path of the
whole population can be computed exactly. The result can be reused: a new task on the same group needs far
fewer samples than learning from scratch.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from whichtoken import GroupClassifier
from whichtoken.datasets import GroupSparse
from whichtoken.theory import group_sparse

path = group_sparse.population_map(groups=10, lr=0.02, steps=2000)
print(
    f"after 2000 steps the relevant group has {path.attention[-1]:.1%} of the attention, the loss is {path.loss[-1]:.4f}"
)

# %%
# The upstream task: 400 samples of ten groups of five variables, of which group 3 decides.
rng = np.random.default_rng(0)
upstream = GroupSparse(groups=10, group_dim=5, relevant=3, direction=rng.standard_normal(5))
X, y = upstream.sample(400, rng)
model = GroupClassifier(np.repeat(np.arange(10), 5), random_state=0).fit(X.reshape(400, -1), y)
print("selected groups:", model.selected_groups_)

# %%
# New tasks: the same group, other directions, few samples.
sizes, errors = [10, 20, 40, 80, 160], {"transferred selection": [], "logistic regression on all": []}
for size in sizes:
    runs = {name: [] for name in errors}
    for _ in range(8):
        downstream = GroupSparse(groups=10, group_dim=5, relevant=3, direction=rng.standard_normal(5))
        (few, signs), (test, truth) = (downstream.sample(n, rng) for n in (size, 2000))
        few, test = few.reshape(size, -1), test.reshape(2000, -1)
        for name, fresh in (
            ("transferred selection", model.transfer()),
            ("logistic regression on all", LogisticRegression(max_iter=1000)),
        ):
            runs[name].append(1 - fresh.fit(few, signs).score(test, truth))
    for name in errors:
        errors[name].append(np.mean(runs[name]))
print({name: np.round(values, 3).tolist() for name, values in errors.items()})

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(path.attention)
left.set(xlabel="gradient steps", ylabel="attention on the group", title="The group is found ...", ylim=(0, 1.02))
for name, values in errors.items():
    right.loglog(sizes, values, "o-", label=name)
right.set(xlabel="samples of the new task", ylabel="error", title="... and used again")
right.set_xticks(sizes, map(str, sizes))
right.set_yticks([0.05, 0.1, 0.2, 0.4], ["5 %", "10 %", "20 %", "40 %"])
right.minorticks_off()
right.legend(frameon=False)
plt.show()
