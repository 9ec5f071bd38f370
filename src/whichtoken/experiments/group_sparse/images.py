"""A picture among patches of noise.

Claim   Among patches of noise the transformer finds the one that holds the picture when the noise is drawn anew at each step;
        with the noise of each training picture fixed it memorises the noise and selects nothing.
Source  Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification (arXiv 2504.08638) show
        CIFAR-10 frogs and airplanes (here shrunk to 8 x 8 pixels); fixed against fresh noise, and the digits, are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING = 200  # pictures of digits to train on


@dataclass(frozen=True)
class Point:
    pictures: Literal["digits", "cifar"] = "digits"  # digits (3 against 8) or cifar (frogs against airplanes)
    groups: int = 9
    noise: Literal["fresh", "fixed"] = "fresh"  # fresh at every step, or fixed once for each training picture
    lr: float = 0.01
    steps: int = 250


class Images(Experiment[Point]):
    id = "group-sparse/images"
    version = 2
    needs = "torch"
    spot = Point(steps=2)
    presets = {
        "quick": (Grid(noise="fresh", seeds=4), Grid(noise="fixed", seeds=7)),
        "full": (
            Grid(noise=["fresh", "fixed"], lr=0.005, steps=800, seeds=(5, 10)),
            Grid(pictures="cifar", noise=["fresh", "fixed"], lr=0.002, steps=250, seeds=4),
        ),
    }
    method_fields = frozenset({"noise", "lr", "steps"})

    def absent(self, point: Point) -> str:
        from whichtoken.data.data_folder import find_data, missing_reader
        from whichtoken.data.image_patches import CIFAR_FILE

        if point.pictures != "cifar":
            return ""
        if find_data(CIFAR_FILE):
            return missing_reader(CIFAR_FILE)
        return f"CIFAR-10 pictures not found; set WHICHTOKEN_DATA to a folder with {CIFAR_FILE} (columns split, class, jpeg)"

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from itertools import repeat

        import torch

        from whichtoken.data.image_patches import ImagePatch
        from whichtoken.models.group_transformer import GroupTransformer
        from whichtoken.training.group_descent import descend_on_batches

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
                "all_patches": _regression(_flat(train.each(rng)[0]), train.labels, _flat(held_out[0]), held_out[1]),
            }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for pictures in rows.levels("pictures"):
            fresh, fixed = (rows.where(pictures=pictures, noise=noise) for noise in ("fresh", "fixed"))
            groups = (fresh or fixed)[0].point.groups
            yield at_least(
                f"images.selects.{pictures}",
                f"{pictures}, fresh noise: attention on the picture over the uniform 1/{groups}",
                bound=2.0,
                measured=Mean(groups * fresh.values("attention") if fresh else []),
            )
            yield at_least(
                f"images.accuracy.{pictures}",
                f"{pictures}, fresh noise: test accuracy minus that of logistic regression on all patches",
                bound=0.0,
                measured=Mean(fresh.values("accuracy") - fresh.values("all_patches") if fresh else []),
            )
            yield at_least(
                f"images.memorises.{pictures}",
                f"{pictures}, fixed noise: training accuracy minus test accuracy",
                bound=0.05,
                measured=Mean(fixed.values("train_accuracy") - fixed.values("accuracy") if fixed else []),
            )
            yield at_most(
                f"images.unselected.{pictures}",
                f"{pictures}: attention on the picture with fixed noise over that with fresh noise",
                bound=0.8,
                measured=Mean(rows.where(pictures=pictures).per_seed(_fixed_over_fresh)),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        from whichtoken.display.figures import grouped_bars

        cases = list(dict.fromkeys((row.point.pictures, row.point.noise) for row in rows))
        quantities = {
            "accuracy": "accuracy",
            "attention on the picture": "attention",
            "regression on all patches": "all_patches",
            "regression on the picture": "picture_only",
        }
        samples = {
            label: [rows.where(pictures=pictures, noise=noise).values(quantity) for pictures, noise in cases]
            for label, quantity in quantities.items()
        }
        grouped_bars(figure.subplots(), [f"{pictures},\n{noise} noise" for pictures, noise in cases], samples)


def _fixed_over_fresh(repeat: Rows[Point]) -> float | None:
    fixed, fresh = (repeat.where(noise=noise).values("attention") for noise in ("fixed", "fresh"))
    return float(fixed[0] / fresh[0]) if len(fixed) and len(fresh) else None


def _split(point: Point, rng: np.random.Generator) -> list[tuple[Any, Any]]:
    """Training and test pictures with their labels."""
    from whichtoken.data.image_patches import digit_images

    if point.pictures == "cifar":
        return [(_shrunk(images), labels) for images, labels in map(_cifar_split, ("train", "test"))]
    images, labels = digit_images()
    order = rng.permutation(len(labels))
    return [(images[part], labels[part]) for part in (order[:TRAINING], order[TRAINING:])]


def _cifar_split(split: str) -> tuple[Any, Any]:
    from whichtoken.data.image_patches import cifar_images

    return cifar_images(split=split, per_class=125)


def _shrunk(images: np.ndarray) -> np.ndarray:
    """Means of 4 x 4 pixels, of variance one: 192 numbers for a picture, so that a step takes milliseconds."""
    blocks = images.reshape(-1, 8, 4, 8, 4, 3).mean(axis=(2, 4)).reshape(len(images), -1)
    return np.asarray(blocks / blocks.std(axis=0))


def _flat(X: np.ndarray) -> np.ndarray:
    return X.reshape(len(X), -1)


def _regression(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> float:
    from sklearn.linear_model import LogisticRegression

    return float(LogisticRegression(C=1.0, max_iter=1000).fit(X, y).score(X_test, y_test))
