"""The transformer finds a picture among patches of noise.

Claim   Among patches of noise the transformer finds the one that holds the picture when the noise is drawn anew at each step;
        with the noise of each training picture fixed it memorizes the noise and selects nothing.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) show
        CIFAR-10 frogs and airplanes (here shrunk to 8 x 8 pixels); fixed against fresh noise, and the digits, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, quantity_bars
from whichtoken.claims._runs import Array, group_by, pairs
from whichtoken.claims.group_sparse._training import first_point
from whichtoken.lab import Measured, Rows

TRAINING = 200  # pictures of digits to train on

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    pictures: Literal["digits", "cifar"] = "digits"  # digits (3 against 8) or cifar (frogs against airplanes)
    groups: int = 9
    noise: Literal["fresh", "fixed"] = "fresh"  # fresh at every step, or fixed once for each training picture
    lr: float = 0.01
    steps: int = 250


class Images(Claim[Point], table=TABLE):
    def absent(self, point: Point) -> str:
        from whichtoken.datasets.pictures import missing_cifar

        return missing_cifar("class") if point.pictures == "cifar" else ""

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from itertools import repeat

        import torch

        from whichtoken.datasets.pictures import ImagePatch
        from whichtoken.theory.group_sparse.descent import descend_on_batches
        from whichtoken.theory.group_sparse.transformer import GroupTransformer

        relevant = int(rng.integers(point.groups))
        train, test = (ImagePatch(images, labels, point.groups, relevant) for images, labels in _split(point, rng))
        model = GroupTransformer(train.group_dim, point.groups)
        seen = train.each(rng)
        batches = repeat(seen) if point.noise == "fixed" else (train.each(rng) for _ in range(point.steps))
        descend_on_batches(model, batches, torch.optim.SGD(model.parameters(), lr=point.lr), point.steps)
        held_out = test.each(rng)
        (pictures, labels), (X, y) = (map(torch.from_numpy, pair) for pair in (seen, held_out))
        with torch.no_grad():
            return {
                "accuracy": float((y * model(X) > 0).double().mean()),
                "attention": float(model.attention(X)[:, relevant].mean()),
                "train_accuracy": float((labels * model(pictures) > 0).double().mean()),
                "picture_only": _regression(train.images, train.labels, test.images, test.labels),
                "all_patches": _regression(train.each(rng)[0], train.labels, *held_out),
            }

    def judge(self, rows: Rows[Point]) -> Checks:
        for criterion, measure, fields in (
            (TABLE.selects, lambda runs: first_point(runs).groups * runs.values("attention"), {"noise": "fresh"}),
            (TABLE.accuracy, lambda runs: runs.values("accuracy") - runs.values("all_patches"), {"noise": "fresh"}),
            (TABLE.memorizes, lambda runs: runs.values("train_accuracy") - runs.values("accuracy"), {"noise": "fixed"}),
            (TABLE.unselected, _fixed_over_fresh, {}),
        ):
            yield from criterion.each(rows.where(**fields), "pictures", "{}", "{}", measure)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        quantity_bars(
            figure.subplots(),
            {f"{pictures},\n{noise} noise": runs for (pictures, noise), runs in group_by(rows, "pictures", "noise")},
            {
                "accuracy": "accuracy",
                "attention on the picture": "attention",
                "regression on all patches": "all_patches",
                "regression on the picture": "picture_only",
            },
        )


def _split(point: Point, rng: np.random.Generator) -> list[tuple[Array, Any]]:
    """Training and test pictures with their labels."""
    from whichtoken.datasets.pictures import cifar_images, digit_images

    if point.pictures == "cifar":
        splits = (cifar_images(split=split, per_class=125) for split in ("train", "test"))
        return [(_shrink(images), labels) for images, labels in splits]
    images, labels = digit_images()
    order = rng.permutation(len(labels))
    return [(images[part], labels[part]) for part in (order[:TRAINING], order[TRAINING:])]


def _shrink(images: Array) -> Array:
    """Means of 4 x 4 pixels, of variance one: 192 numbers for a picture, so that a step takes milliseconds."""
    blocks = images.reshape(-1, 8, 4, 8, 4, 3).mean(axis=(2, 4)).reshape(len(images), -1)
    return np.asarray(blocks / blocks.std(axis=0))


def _regression(X: Array, y: Any, X_test: Array, y_test: Any) -> float:
    """Accuracy of logistic regression."""
    from sklearn.linear_model import LogisticRegression

    X, X_test = (x.reshape(len(x), -1) for x in (X, X_test))
    return float(LogisticRegression(C=1.0, max_iter=1000).fit(X, y).score(X_test, y_test))


def _fixed_over_fresh(runs: Rows[Point]) -> Array:
    fixed, fresh = pairs(runs, "attention", {"noise": "fixed"}, {"noise": "fresh"})
    return fixed / fresh
