"""The report: complete, self-contained, escaped, from the ledger alone."""

import re
from html.parser import HTMLParser

import pytest

from whichtoken.lab import reproduce
from whichtoken.report import write_report


class Page(HTMLParser):
    """Collects what a browser would load, and checks that every tag is closed."""

    VOID = {"meta", "link", "br", "img", "input", "hr"}

    def __init__(self, text):
        super().__init__()
        self.loads, self.tags, self.stack = [], [], []
        self.feed(text)
        assert not self.stack, f"left open: {self.stack}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


@pytest.fixture
def report(tmp_path):
    reproduce(["toy/mean", "toy/faults"], workers=1, out=tmp_path)
    reproduce(["toy/mean"], set={"factor": [1.2]}, seeds=4, workers=1, out=tmp_path)
    return write_report(tmp_path).parent


def test_pages_load_nothing_from_elsewhere_and_run_no_script(report):
    pages = sorted(path.name for path in report.iterdir())
    assert pages == ["index.html", "toy-faults.html", "toy-mean.html"]
    for path in report.iterdir():
        page = Page(path.read_text())
        assert "script" not in page.tags
        outside = [target for target in page.loads if not re.match(r"(#|data:|[a-z-]+\.html$)", target)]
        assert outside == []


def test_index_leads_to_every_experiment(report):
    index = (report / "index.html").read_text()
    assert 'href="toy-mean.html"' in index
    assert 'href="toy-faults.html"' in index
    assert "the mean is the shift" in index
    assert "12 of 15 rows failed" in index


def test_page_shows_claim_figure_numbers_failures_and_command(report):
    page = (report / "toy-faults.html").read_text()
    for text in (
        "The good points average to zero.",
        "None: it is a toy.",
        "<svg",
        "RuntimeError: a planted fault",
        "fault=raise",
        "whichtoken reproduce toy/faults --preset quick",
    ):
        assert text in page


def test_every_kind_of_run_has_its_section_and_the_declared_one_leads(report):
    page = (report / "toy-mean.html").read_text()
    assert page.index("<h2>quick</h2>") < page.index("with factor=1.2")
    assert "--set factor=1.2 --seeds 4" in page
    assert 'class="state disagrees"' in page
    assert 'class="state disagrees"' not in (report / "index.html").read_text()


def test_text_is_escaped(report):
    page = (report / "toy-mean.html").read_text()
    assert "<b>measured" not in page
    assert "ValueError: &#39;value&#39; is nan" in (report / "toy-faults.html").read_text()


def test_report_needs_no_recomputation(report, toys, tmp_path):
    executions = toys.read_text()
    once = {path.name: path.read_text() for path in report.iterdir()}
    write_report(tmp_path)
    assert toys.read_text() == executions
    assert {path.name: path.read_text() for path in report.iterdir()} == once


def test_numbers_skip_what_was_not_measured(tmp_path, monkeypatch):
    from whichtoken.lab.discovery import find

    toy = type(find("toy/mean"))
    monkeypatch.setattr(
        toy, "run", lambda self, point, rng: {"mean": 1.0, "sometimes": None if rng.random() < 0.5 else 2.0}
    )
    from whichtoken.lab import worker

    monkeypatch.setattr(
        "whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: ((t, worker.work(t)) for t in tasks)
    )
    reproduce(["toy/mean"], seeds=8, out=tmp_path)
    assert "2 ± 0" in write_report(tmp_path).with_name("toy-mean.html").read_text()
