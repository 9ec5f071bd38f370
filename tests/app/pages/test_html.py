"""The report: complete, self-contained, escaped, from the ledger alone."""

import base64
import csv
import hashlib
import re
import shutil
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from whichtoken.app import write_report
from whichtoken.errors import UsageError
from whichtoken.files import LEDGER_NAME
from whichtoken.lab import Exact, Predicted, Row, at_least, reproduce
from whichtoken.lab.discovery import find
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.plan import RunTask, make_plan
from whichtoken.lab.record import RunSummary
from whichtoken.lab.statements import sources
from whichtoken.lab.worker import work


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


@pytest.fixture(scope="module", autouse=True)
def _in_this_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: ((t, work(t)) for t in tasks))
        patch.setenv("WHICHTOKEN_EXPERIMENTS", str(Path(__file__).parents[2] / "toys"))
        yield


@pytest.fixture(scope="module")
def written(_in_this_process, tmp_path_factory):
    """Results and their report, made once."""
    out = tmp_path_factory.mktemp("written")
    reproduce(["toy/mean", "toy/faults"], out=out)
    reproduce(["toy/mean"], overrides={"factor": [1.2]}, seeds=4, out=out)
    write_report(out)
    return out


@pytest.fixture
def report(written, tmp_path):
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path / "report"


PAGES = [
    "failures.html",
    "index.html",
    *sorted(f"paper-{source.id}.html" for source in sources()),
    "reading.html",
    "toy-faults.html",
    "toy-mean.html",
]


def test_pages_load_nothing_from_elsewhere_and_every_link_leads_somewhere(report):
    assert sorted(path.name for path in report.glob("*.html")) == PAGES
    for path in report.glob("*.html"):
        page = Page(path.read_text())
        for target in page.loads:
            name, _, place = target.partition("#")
            if target.startswith("data:") or (not name and "=" in place):  # the icon, and filters of the table
                continue
            assert not re.match(r"\w+:|//", target), target
            linked = report / name if name else path
            assert linked.is_file(), target
            assert not place or f'id="{unquote(place)}"' in linked.read_text(), target


def test_policy_lets_nothing_in_and_only_the_script_of_the_page_run(report):
    for path in report.glob("*.html"):
        [content] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', path.read_text())
        rules = dict(rule.strip().split(" ", 1) for rule in content.split(";"))
        scripts = re.findall(r"<script>(.*?)</script>", path.read_text(), re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
        assert rules.pop("script-src", "") == "".join(f"'sha256-{digest}'" for digest in hashes)
        assert rules == {
            "default-src": "'none'",
            "style-src": "'unsafe-inline'",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
        }


def test_index_leads_to_every_experiment(report):
    index = (report / "index.html").read_text()
    assert 'href="toy-mean.html#quick.mean.shift"' in index
    assert "The mean is the shift" in index
    assert 'href="toy-faults.html#quick.faults.zero"' in index


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
    assert page.index('aria-label="quick"') < page.index("<h2>quick with factor=1.2 (4 seeds)</h2>")
    assert "--set factor=1.2 --seeds 4" in page
    assert 'class="state disagrees"' in page
    assert 'class="state disagrees"' not in (report / "index.html").read_text()
    assert "There is none" in (report / "failures.html").read_text()


def test_text_is_escaped(report):
    page = (report / "toy-mean.html").read_text()
    assert "<b>measured" not in page
    assert "ValueError: &#39;value&#39; is nan" in (report / "toy-faults.html").read_text()


def test_report_needs_no_recomputation(report, toys, tmp_path):
    write_report(tmp_path)
    once = contents(report)
    write_report(tmp_path)
    assert not toys.exists(), "no point ran"
    assert contents(report) == once


def contents(folder):
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_rows_and_figures_lie_beside_the_page(report):
    rows = list(csv.DictReader((report / "rows" / "toy-faults-quick.csv").read_text().splitlines()))
    assert len(rows) == 15
    messages = [row["message"] for row in rows if row["point.fault"] == "raise"]
    assert all("a planted fault in [/bold]" in message for message in messages)
    page = (report / "toy-mean.html").read_text()
    for name in ("rows/toy-mean-quick.csv", "figures/toy-mean-quick.svg", "rows/toy-mean-1.csv"):
        assert (report / name).is_file()
        assert f'href="{name}" download' in page
    ElementTree.fromstring((report / "figures" / "toy-mean-quick.svg").read_text())


def test_numbers_skip_what_was_not_measured(tmp_path, monkeypatch, no_workers):
    toy = type(find("toy/mean"))
    monkeypatch.setattr(
        toy, "run", lambda self, point, rng: {"mean": 1.0, "sometimes": None if rng.random() < 0.5 else 2.0}
    )
    reproduce(["toy/mean"], seeds=8, out=tmp_path)
    assert "2 ± 0" in write_report(tmp_path).with_name("toy-mean.html").read_text()


def test_verdicts_are_judged_from_the_rows_as_they_are_now(report, tmp_path):
    """Rows that were stored after the verdicts, as by an interrupted run, count."""
    with Ledger.writing(tmp_path / LEDGER_NAME) as ledger:
        plan = make_plan(find("toy/mean"))
        for task, row in ledger.rows(plan).items():
            ledger.put(1, task, replace(row, measured={"mean": 2.0 + 0.01 * task.seed}))
        [stored] = (run for run in ledger.runs() if run.key == ("toy/mean", "quick", "{}", 0))
    assert [verdict.state for verdict in stored.verdicts] == ["agrees"]
    write_report(tmp_path)
    assert 'class="state disagrees"' in (report / "index.html").read_text()


def fill(path, points, seeds, runs=1):
    """A ledger of this size, as runs of the toy would leave it."""
    toy = find("toy/mean")
    with Ledger.writing(path) as ledger:
        ledger._connection.execute("PRAGMA synchronous=OFF")
        for number in range(runs):
            draws = [10 + number * points + place for place in range(points)]
            plan = make_plan(toy, "quick", {"draws": draws}, seeds)
            ledger.put_run(RunSummary(toy.id, "quick", plan.overrides, seeds, f"2020-01-01T00:00:{number:02}"))
            for task in plan.tasks:
                row = Row(None, task.seed, "ok", "", {"mean": 1.0 + 0.01 * task.seed, "first": 0.5}, 0.1, "1")
                ledger.put(1, task, row)
            for text in plan.points:
                ledger.put_prediction(1, RunTask(toy.id, text, None), {"mean": Predicted(1.0, 1e-12)})


def test_work_grows_with_the_rows_and_pages_stay_small(tmp_path):
    seconds = {}
    for points in (300, 2400):
        fill(tmp_path / str(points) / LEDGER_NAME, points, seeds=2)
        start = time.process_time()
        write_report(tmp_path / str(points))
        seconds[points] = time.process_time() - start
    assert seconds[2400] < 16 * seconds[300], "grouped once: far from 64 times"
    page = tmp_path / "2400" / "report" / "toy-mean.html"
    assert page.stat().st_size < 400_000
    assert "Not shown: 2340 points; <code>whichtoken export toy/mean --to rows.csv" in page.read_text()
    assert "data:image/png;base64," in page.read_text(), "thousands of marks are one picture"


def test_page_of_many_runs_lists_those_it_has_no_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr("whichtoken.app.pages.experiment_page.LARGEST_PAGE", 100_000)
    fill(tmp_path / LEDGER_NAME, points=40, seeds=2, runs=8)
    page = write_report(tmp_path).with_name("toy-mean.html")
    text = page.read_text()
    assert page.stat().st_size < 100_000
    shown = text.count("<summary>Numbers</summary>")
    assert 0 < shown < 8
    assert f"{8 - shown} runs have no section here" in text
    assert text.count("whichtoken reproduce toy/mean --preset quick --set draws=") == 8


def test_texts_from_data_do_not_fill_a_page(tmp_path):
    fill(tmp_path / LEDGER_NAME, points=30, seeds=1)
    plan = make_plan(find("toy/mean"), "quick", {"draws": [10 + place for place in range(30)]}, 1)
    with Ledger.writing(tmp_path / LEDGER_NAME) as ledger:
        for task in plan.tasks[1:]:
            ledger.put(1, task, Row(None, task.seed, "failed", "\x1b[2J<b>" + "x" * 100_000, {}, 0.1, "1"))
    page = write_report(tmp_path).with_name("toy-mean.html")
    assert page.stat().st_size < 400_000
    text = page.read_text()
    assert "\\x1b[2J&lt;b&gt;xxx" in text
    assert "\x1b" not in text
    assert "Not shown: 9 more failed rows; <code>whichtoken export toy/mean" in text


def test_wide_tables_and_many_verdicts_are_limited_and_say_so(tmp_path, monkeypatch, no_workers):
    toy = type(find("toy/mean"))
    monkeypatch.setattr(toy, "run", lambda self, point, rng: {"mean": 1.0, **{f"n{k}": k for k in range(200)}})
    claims = [at_least(f"mean.{k}", "large " * 100, bound=0.0, measured=Exact(1.0)) for k in range(300)]
    monkeypatch.setattr(toy, "judge", lambda self, rows: iter(claims))
    reproduce(["toy/mean"], out=tmp_path)
    page = write_report(tmp_path).with_name("toy-mean.html")
    text = page.read_text()
    assert page.stat().st_size < 400_000
    assert "Not shown: 240 more verdicts; <code>whichtoken reproduce toy/mean --json FILE</code>" in text
    assert "Not shown: 180 columns; <code>whichtoken export toy/mean" in text


def test_place_that_cannot_be_written_is_found_before_the_work(written, tmp_path, monkeypatch):
    shutil.copy(written / LEDGER_NAME, tmp_path)
    (tmp_path / "report").write_text("a file in the way")
    monkeypatch.setattr("whichtoken.app.pages.html.experiment_page", lambda *arguments: pytest.fail("worked before"))
    with pytest.raises(UsageError, match="report cannot be written: file exists"):
        write_report(tmp_path)
