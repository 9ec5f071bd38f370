"""Pictures of the report and of an explained review: `python docs/images/make_pages.py REPORT_FOLDER`.

The folder is that of `whichtoken report`, or the folder `record` of `whichtoken report --record`. Needs the developers'
tools and a chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from whichtoken import TextClassifier
from whichtoken.app.pages.explanations import as_html
from whichtoken.datasets import synthetic_reviews

HERE = Path(__file__).parent
SIZE = {"width": 900, "height": 1100}


def explained_reviews(folder: Path) -> Path:
    """The page of four invented reviews that the model has not seen."""
    texts, labels = synthetic_reviews(604, np.random.default_rng(0))
    words = np.where(np.asarray(labels) > 0, "good", "bad")
    model = TextClassifier(random_state=0).fit(texts[:600], words[:600])
    page = folder / "reviews.html"
    page.write_text(as_html(model.explain(texts[600:])), encoding="utf-8")
    return page


def main(report: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, page in {
            "report_overview": report / "index.html",
            "explained_review": explained_reviews(Path(folder)),
        }.items():
            shown = browser.new_page(viewport=SIZE)
            shown.goto(page.resolve().as_uri())
            shown.screenshot(path=HERE / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
