"""Draws the model of every theory, one small picture for the first screen of its page: `python docs/images/make_models.py`.

All of them have one grammar, read from left to right: tokens, a query that scores them, softmax weights, what is pooled,
what is read out. The white ground stays, so that they can be read on a dark page, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

INK, GREY, PALE = "#222222", "#8a8f98", "#e6e8ec"
BLUE, ORANGE, GREEN = "#2563ab", "#c8590a", "#2d7d46"
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Token:
    """A box with what it says, its color and its attention weight."""

    text: str
    weight: float
    color: str = GREY


@dataclass(frozen=True)
class Model:
    """One attention layer in words."""

    tokens: Sequence[Token]
    query: str
    score: str
    pooled: str
    readout: str
    output: str
    note: str = ""


NOISE = Token("noise", 0.05)
MODELS = {
    "sparse_tokens": Model(
        [NOISE, NOISE, Token("signal", 0.75, ORANGE), NOISE, NOISE, NOISE],
        "query q\n(two gradient steps)",
        "score  x · q",
        "weighted mean\nof the tokens",
        "linear readout\nw · mean + b",
        "signal\nor not?",
        "R of L tokens carry a weak signal, at places that change from sequence to sequence",
    ),
    "attention_regression": Model(
        [Token("$x_1$", 0.1), Token("$x_2$", 0.32, BLUE), Token("$x_3$", 0.2), Token("…", 0.0, "white"),
         Token("$x_{n-1}$", 0.26, BLUE), Token("$x_n$", 0.12)],
        "the token x\nitself asks",
        "score  x · B $x_j$",
        "weighted mean\nh(x)",
        "matrix A",
        "A h(x) ≈ M x",
        "n tokens are the context; A and B are trained, M is the unknown linear map",
    ),
    "trained_embeddings": Model(
        [Token("a", 0.03), Token("wonderful", 0.5, GREEN), Token("film", 0.06), Token("terrible", 0.35, ORANGE),
         Token("end", 0.03)],
        "query p\n(the <cls> vector)",
        "score  $E_s$ · p",
        "weighted sum\nof the values $E_s$ · v",
        "sign",
        "good\nor bad?",
        "each word s has one embedding $E_s$, and all embeddings are trained",
    ),
    "group_sparse": Model(
        [Token("group 1", 0.05), Token("group 2", 0.05), Token("group 3", 0.8, BLUE), Token("group 4", 0.05),
         Token("group 5", 0.05)],
        "all groups ask\n(by their positions)",
        "score  z · W $z_j$",
        "weighted sum\nof the groups",
        "value vector v",
        "label = sign\n(v* · group 3)",
        "a table row of D groups with d variables each; one group decides the label",
    ),
    "mirror_descent": Model(
        [Token("$x_1$", 0.04), Token("$x_2$", 0.08), Token("$x_3$", 0.8, GREEN), Token("$x_4$", 0.05), Token("$x_5$", 0.03)],
        "query z",
        "score  x · W z",
        "weighted mean\n→ one token",
        "fixed decoder u",
        "label ±1",
        "only W is trained; it grows for ever, and its direction decides which token wins",
    ),
}  # fmt: skip


def main() -> None:
    plt.rcParams |= {"svg.hashsalt": "whichtoken", "svg.fonttype": "path", "font.size": 10.5, "text.color": INK}
    for name, model in MODELS.items():
        figure, axes = plt.subplots(figsize=(8.4, 2.9), layout="constrained")
        draw_model(axes, model)
        save(figure, f"model_{name}.svg")
    figure, places = plt.subplots(1, 4, figsize=(8.4, 2.7), layout="constrained")
    draw_geometries(places)
    save(figure, "model_atlas.svg")


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(FOLDER / name, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def draw_model(axes: Axes, model: Model) -> None:
    """Tokens above, their scores and weights below, and the way to the output on the right."""
    axes.set(xlim=(-2.35, 10.2), ylim=(-0.95, 3.1))
    axes.axis("off")
    width = 5.2 / len(model.tokens)
    for place, token in enumerate(model.tokens):
        middle = (place + 0.5) * width
        dots = token.text == "…"
        if not dots:
            box(axes, middle, 2.45, 0.9 * width, 0.62, token.color)
            axes.plot([middle, middle], [2.1, 1.42], color=PALE, lw=1.2, zorder=0)
            axes.bar(middle, 1.25 * token.weight, 0.62 * width, bottom=0.0, color=token.color)
        size = 10.5 if len(token.text) < 7 else 9.0
        axes.text(middle, 2.45, token.text, ha="center", va="center", fontsize=size, color=INK if dots else "white")
    axes.plot([0, 5.2], [0, 0], color=INK, lw=0.8)
    axes.text(-0.2, 2.45, "tokens", ha="right", va="center", weight="bold")
    axes.text(-0.2, 1.55, model.query, ha="right", va="center", color=BLUE, fontsize=9.5)
    axes.annotate("", (5.2, 1.55), (-0.1, 1.55), arrowprops={"arrowstyle": "-|>", "color": BLUE, "lw": 1.4})
    axes.text(
        2.6,
        1.67,
        model.score,
        ha="center",
        va="bottom",
        color=BLUE,
        fontsize=10,
        bbox={"fc": "white", "ec": "none", "pad": 1.2},
    )
    axes.text(-0.2, 0.42, "softmax\nweights", ha="right", va="center", weight="bold")
    for place, (what, weight) in enumerate(((model.pooled, ""), (model.readout, ""), (model.output, "bold"))):
        top = 2.35 - 1.05 * place
        box(axes, 8.3, top, 2.9, 0.74, PALE if place < 2 else "#fdf3e7", edge=GREY)
        axes.text(8.3, top, what, ha="center", va="center", fontsize=9.5, weight=weight or "normal")
        if place:
            axes.annotate("", (8.3, top + 0.4), (8.3, top + 0.67), arrowprops={"arrowstyle": "-|>", "color": INK})
    axes.annotate(
        "",
        (6.75, 2.35),
        (5.35, 0.6),
        arrowprops={"arrowstyle": "-|>", "color": INK, "connectionstyle": "arc3,rad=-0.2"},
    )
    axes.text(3.9, -0.72, model.note, ha="center", va="center", fontsize=9.5, style="italic", color="#555a63")


def box(axes: Axes, x: float, y: float, width: float, height: float, color: str, edge: str = "none") -> None:
    style = "round,pad=0,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, style, fc=color, ec=edge, lw=0.8))


def draw_geometries(places: Sequence[Axes]) -> None:
    """One problem in two dimensions, and for three norms the ball and the direction of the largest margin, found by search."""
    leads = np.array([[1.0, 0.35], [1.1, 0.95]])  # of the selected token over two others; the first decides
    axes = places[0]
    for lead, name in zip(leads, ("$x_k - x_1$", "$x_k - x_2$"), strict=True):
        arrow(axes, lead, INK)
        axes.text(*(lead * 1.08 + [-0.12, 0.08]), name, fontsize=9)
    axes.set_title("leads of the selected\ntoken $x_k$", fontsize=10)
    angles = np.linspace(0, 2 * np.pi, 14_401)  # with the corners of all balls
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    norms = (("gradient descent:\n$\\ell_2$ ball", 2.0, BLUE), ("sign descent, Adam:\n$\\ell_\\infty$ ball", np.inf, ORANGE),
             ("greedy coordinates:\n$\\ell_1$ ball", 1.0, GREEN))  # fmt: skip
    for axes, (title, p, color) in zip(places[1:], norms, strict=True):
        ball = circle / np.linalg.norm(circle, ord=p, axis=1, keepdims=True)
        best = ball[(ball @ leads.T).min(axis=1).argmax()]
        axes.fill(*ball[::100].T, color=color, alpha=0.12)
        axes.plot(*ball[::100].T, color=color, lw=1)
        for lead in leads:
            arrow(axes, lead, PALE)
        arrow(axes, best, color, 2.2)
        axes.set_title(title, fontsize=10, color=color)
    for axes in places:
        axes.set(xlim=(-1.2, 1.45), ylim=(-1.2, 1.45), aspect="equal")
        axes.axis("off")


def arrow(axes: Axes, end: np.ndarray, color: str, width: float = 1.3) -> None:
    axes.annotate(
        "", end, (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": width, "shrinkA": 0, "shrinkB": 0}
    )


if __name__ == "__main__":
    main()
