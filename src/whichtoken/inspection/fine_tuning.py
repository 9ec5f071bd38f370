"""A classifier from an encoder, in minutes on a CPU: the worked example whose decisions can then be inspected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from whichtoken.inspection.loading import load_tokenizer, load_transformer

LONGEST = 64


def fine_tune(
    folder: str | Path,
    texts: Sequence[str],
    labels: Sequence[int],
    *,
    frozen_layers: int = 3,
    epochs: int = 1,
    lr: float = 1e-4,
    batch: int = 32,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> tuple[Any, Any]:
    """Train a text classifier from an encoder on this machine, to have a model whose decisions can be inspected.

    Reach for it when you have labeled texts and a pretrained encoder, but no classifier yet. Embeddings and the lower layers
    stay as they are; the rest is trained with AdamW, with a learning rate that rises for a tenth of the steps and falls
    linearly to 0.

    Parameters
    ----------
    folder : str or Path
        A folder as `save_pretrained` writes it.
    texts : sequence of str
        The texts to learn from.
    labels : sequence of int
        Class of each text, 0, 1, ...
    frozen_layers : int, default=3
        Lower layers that stay as they are, with the embeddings.
    epochs : int, default=1
        Passes over the texts.
    lr : float, default=0.0001
        Highest learning rate.
    batch : int, default=32
        Texts at a time.
    seed : int, default=0
        Seed for the order of the texts and the new head.
    names : sequence of str, optional
        Names of the classes.

    Returns
    -------
    tuple
        The model, in evaluation mode, and its tokenizer.

    Examples
    --------
    >>> from whichtoken.inspection import fine_tune
    >>> model, tokenizer = fine_tune("my-model", ["a good film", "a bad film"], [1, 0], frozen_layers=1, names=["bad", "good"])
    >>> model.config.id2label[1]
    'good'
    """
    torch.manual_seed(seed)
    tokenizer = load_tokenizer(folder)
    model = load_transformer(folder, classifier=True, num_labels=len(set(labels)))
    if names is not None:
        model.config.id2label = dict(enumerate(names))
    for part in (model.base_model.embeddings, *model.base_model.encoder.layer[:frozen_layers]):
        part.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.01)
    steps = epochs * -(-len(texts) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(10 * (step + 1) / steps, (steps - step) / steps / 0.9, 1.0)
    )
    model.train()
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(texts)), batch):
            inputs = tokenizer(
                [texts[i] for i in rows], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
            )
            loss = model(**inputs, labels=torch.tensor([int(labels[i]) for i in rows])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model.eval(), tokenizer
