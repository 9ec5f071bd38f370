"""Pages in a real browser: what they look like is for people, that they work and stay among themselves is for tests.

`visit` opens a file or an address in Debian's chromium (or another one on the path) and watches it: a console error, an
exception in a script or a request that leaves the page fails the test that opened it, whatever else it checks. Tests are
skipped, with the reason, where there is no browser. `SCREENSHOTS=folder pytest ...` keeps a picture of every visit.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

WIDTHS = (360, 800, 1400)  # a phone, a tablet, a desk
THEMES = ("light", "dark")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
AXE = Path(__file__).parent / "axe-core" / "axe.min.js"
LEAST_IMPACT = {"serious", "critical"}
SCREENSHOTS = os.environ.get("SCREENSHOTS", "")


class Visit:
    """A page that is open in the browser; `page` is Playwright's."""

    def __init__(self, page: Any, address: str) -> None:
        parts = urlsplit(address)
        self.home = f"{parts.scheme}://{parts.netloc}/" if parts.netloc else "file:"
        self.page, self.complaints, self.requests = page, [], []
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def violations(self) -> list[str]:
        """What axe-core holds to be a serious hindrance, one line for each rule with the first element that breaks it."""
        # what lies inside of a drawing is in the page's own ink; looking at each of its marks takes most of the time
        # (and so it is with the hundreds of rows of a long list, which are made alike)
        alike = "[['svg[role=img] *'], ['tbody tr:nth-child(n+40)'], ['li:nth-child(n+40)']]"
        if not self.page.evaluate("typeof window.axe === 'object'"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate(f"axe.run({{exclude: {alike}}})")["violations"]
        return [
            f"{item['id']}: {item['help']}: {item['nodes'][0]['html']} ({item['nodes'][0]['failureSummary']})"
            for item in found
            if item["impact"] in LEAST_IMPACT
        ]

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window: a reader would have to scroll sideways."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def tab_stops(self, most: int = 200) -> list[str]:
        """What the tab key reaches, in its order: tag, and name or text of each element."""
        self.page.evaluate("document.activeElement && document.activeElement.blur()")
        stops: list[str] = []
        for _ in range(most):
            self.page.keyboard.press("Tab")
            stop = self.page.evaluate(
                "(() => { const e = document.activeElement; if (!e || e === document.body) return ''; "
                "return e.tagName.toLowerCase() + ' ' + (e.getAttribute('aria-label') || e.innerText || e.name || e.id) })()"
            )
            if not stop or (stops and stop == stops[0]):
                break
            stops.append(" ".join(stop.split()))
        return stops

    def screenshot(self, name: str) -> None:
        """Keep a picture of the whole page, if the person who runs the tests wants pictures."""
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)

    def left(self) -> list[str]:
        """Requests to anywhere but the files or the server that the page itself came from."""
        return [url for url in self.requests if not url.startswith((self.home, "data:", "blob:", "about:"))]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, for the tests of one file: Playwright keeps an event loop running, which others should not meet."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser found ({', '.join(NAMES)}); install chromium, or name one in CHROMIUM")
    with api.sync_playwright() as playwright:
        # root, as in containers, has no sandbox; the pages are ours
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Visit]]:
    """Open pages: `visit(path_or_address, width=360, theme="dark")`."""
    visits: list[Visit] = []

    def opened(target: Path | str, width: int = 1400, theme: str = "light", height: int = 900, **options: Any) -> Visit:
        address = target.absolute().as_uri() if isinstance(target, Path) else target
        size = {"width": width, "height": height}
        context = chromium.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce", **options)
        visits.append(Visit(context.new_page(), address))
        visits[-1].page.goto(address)
        return visits[-1]

    yield opened
    for number, made in enumerate(visits):
        made.screenshot(re.sub(r"[^\w.-]+", "_", f"{request.node.name}-{number}"))
        made.page.context.close()
        assert made.complaints == [], "the console stays silent"
        assert made.left() == [], "no request leaves the page"
