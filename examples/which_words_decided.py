"""Train a text classifier, ask it for its reasons, and for the smallest change that would flip its decision."""

import numpy as np

from whichtoken import TextClassifier
from whichtoken.data import synthetic_reviews

texts, labels = synthetic_reviews(1000, np.random.default_rng(0))  # replace them by your own
model = TextClassifier(random_state=0).fit(texts[:800], labels[:800])
print(f"right on {model.score(texts[800:], labels[800:]):.0%} of 200 new reviews\n")
print(model.token_importance().head(8).to_string(index=False, float_format="%.3f"))

[why] = model.explain(texts[800:801])
print(f"\n{texts[800]}\n-> {why.label}")
for reason in why.reasons[:5]:
    print(f"{reason.token:>12}: attention {reason.attention:.2f}, contribution {reason.contribution:+.2f}")
print("without these words it would say the opposite:", ", ".join(why.counterfactual))
