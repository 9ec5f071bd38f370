"""Moving pictures of the README: `python docs/images/make_moving.py [strike] [limits]`.

`strike_a_word.webp` is the offline page of the bundled model of movie reviews: a review is typed, then its words are struck
out until the label changes. `optimizers.webp` is the page of the workbench on which four optimizers go to their certified
limits. Needs the developers' tools and a chromium.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from whichtoken.app.movie_reviews import REVIEW, bundled_movie_model

HERE = Path(__file__).parent
CLIP = {"x": 0, "y": 160, "width": 1040, "height": 500}  # of the dynamics page
Frame = tuple[bytes, int]  # a PNG, and how many milliseconds it stays


def strike_a_word(page: Page, folder: Path) -> Iterator[Frame]:
    """Type the review, then strike out the words of the smallest deletion that changes its label."""
    file = folder / "page.html"
    bundled_movie_model().classifier.save_explainer(file, examples=[REVIEW])
    page.goto(file.as_uri())
    box = page.locator("textarea").first
    words = REVIEW.split()
    for count in range(3, len(words) + 1, 2):
        box.fill(" ".join(words[:count]))
        yield page.screenshot(), 180
    box.fill(REVIEW)
    yield page.screenshot(), 1600
    for word in page.locator(".change del").all_inner_texts():
        page.get_by_role("button", name=word, exact=True).first.click()
        page.mouse.move(0, 0)
        yield page.screenshot(), 1400
    yield page.screenshot(), 2200


def optimizers(page: Page, folder: Path) -> Iterator[Frame]:
    """The recording of the dynamics page, frame by frame."""
    with serving(folder) as address:
        page.goto(f"{address}dynamics")
        slider = page.locator("#time")
        last = int(slider.get_attribute("max") or 0)
        for number in range(0, last + 1, 2):
            slider.evaluate(
                "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", number
            )
            yield page.screenshot(clip=CLIP), 160
        yield page.screenshot(clip=CLIP), 2500


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A workbench on a free port; its first line names the address."""
    command = [str(Path(sys.executable).parent / "whichtoken"), "serve", "--port", "0", "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def save(frames: Iterator[Frame], file: Path, width: int = 720) -> None:
    pictures, times = [], []
    for picture, milliseconds in frames:
        image = Image.open(io.BytesIO(picture)).convert("RGB")
        pictures.append(image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS))
        times.append(milliseconds)
    pictures[0].save(file, save_all=True, append_images=pictures[1:], duration=times, loop=0, quality=70, method=6)
    print(f"{file.name}: {len(pictures)} frames, {file.stat().st_size / 1000:.0f} kB")


def main(wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 860, "height": 620})
        if "strike" in wanted:
            save(strike_a_word(page, Path(folder)), HERE / "strike_a_word.webp")
        if "limits" in wanted:
            page.set_viewport_size({"width": 1040, "height": 760})
            save(optimizers(page, Path(folder)), HERE / "optimizers.webp")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:] or ["strike", "limits"])
