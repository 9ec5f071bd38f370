"""
Which call is the brown creeper's?
==================================

A recording is a bag of sounds; all that is known is whether a brown creeper sang somewhere in it. Attention learns from that
alone which sounds matter, and what each of them adds to the decision says which one to listen to.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from whichtoken import BagClassifier
from whichtoken.datasets import read_bag_set

try:
    recordings, present = read_bag_set("birds_brown_creeper")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

order = np.random.default_rng(0).permutation(len(present))
inside, outside = order[:350], order[350:]
training, test = ([recordings[i] for i in rows] for rows in (inside, outside))
model = BagClassifier(n_queries=1, random_state=0).fit(training, present[inside])
means = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
means.fit([bag.mean(axis=0) for bag in training], present[inside])
print(f"attention: {model.score(test, present[outside]):.1%} of {len(test)} new recordings right")
print(f"logistic regression on the mean sound: {means.score([bag.mean(axis=0) for bag in test], present[outside]):.1%}")

# %%
# One recording with the bird, sound by sound, and how many sounds would have to be deleted before it is denied.
surety = np.where(present[outside] > 0, model.predict_proba(test)[:, 1], 0)
number = int(surety.argmax())
[added] = model.contributions(test[number : number + 1])
[flip] = model.counterfactuals(test[number : number + 1])
print(f"recording {outside[number]}: deleting sounds {list(flip)} flips the decision, and no smaller set does")


def of(sign: int) -> list[np.ndarray]:
    return [bag for bag, label in zip(test, present[outside], strict=True) if label == sign]


figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained", width_ratios=(2, 1))
colors = ["tab:red" if sound in flip else "lightgray" for sound in range(len(added))]
left.bar(range(len(added)), added, color=colors)
left.set(xlabel="sounds of one recording", ylabel="contribution to the decision")
left.set_title("Red: without these, it would say that there is no bird")
left.xaxis.get_major_locator().set_params(integer=True)
largest = [[added.max() for added in model.contributions(bags)] for bags in (of(1), of(-1))]
right.hist(largest, bins=15, label=["with the bird", "without"], color=["tab:red", "tab:blue"])
right.set(xlabel="largest contribution of a sound", ylabel="recordings")
right.legend(frameon=False)
plt.show()
