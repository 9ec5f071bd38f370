"""Figures are drawn once, never shown for rows that they were not drawn from, and travel with the package."""

import json
import lzma
import shutil
from pathlib import Path

import pytest
from tools.draw_record import MOST_BYTES, out_of_date

from whichtoken.app.pages.drawn import FIGURES, recorded_views
from whichtoken.app.pages.experiment_page import view_of
from whichtoken.app.pages.html import write_pages
from whichtoken.app.pages.sentences import place_of
from whichtoken.display import panels as drawing
from whichtoken.files import LEDGER_NAME
from whichtoken.lab import record, reproduce
from whichtoken.lab.discovery import find
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.plan import make_plan
from whichtoken.lab.record import recorded_ledger, recorded_runs, rows_file
from whichtoken.lab.results import stored_results
from whichtoken.lab.worker import work

CLAIM = "attention-regression/limit"
WHOLE = record.record_folder()


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr("whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: ((t, work(t)) for t in tasks))
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(Path(__file__).parents[2] / "toys"))


@pytest.fixture
def drawn(monkeypatch):
    """Names of the figures that are drawn from here on."""
    names, draw = [], drawing.panels

    def counting(draw_it, name, label="figure"):
        names.append(name)
        return draw(draw_it, name, label)

    monkeypatch.setattr("whichtoken.app.pages.experiment_page.panels", counting)
    return names


def pages(folder):
    return {path.name: path.read_text() for path in folder.rglob("*") if path.suffix in (".html", ".svg")}


def test_recorded_figures_are_of_the_recorded_rows_and_of_the_code_that_draws_them():
    assert out_of_date() == [], "run: python tools/draw_record.py"


def test_recorded_figures_stay_small():
    assert sum(path.stat().st_size for path in (WHOLE / FIGURES).rglob("*.xz")) < MOST_BYTES


def test_page_from_recorded_figures_is_the_page_from_recorded_rows(drawn):
    claim = find(CLAIM)
    runs = {preset: run for (id, preset), run in recorded_runs().items() if id == CLAIM}
    kept = recorded_views(claim, runs)
    with recorded_ledger(CLAIM) as ledger:
        for result in stored_results(ledger):
            view, made = kept.views[result.preset], view_of(result, place_of(result.preset))
            assert view.numbers.lines == made.numbers.lines
            assert dict(view.fixed) == {name: str(value) for name, value in made.fixed.items()}
            assert (view.varied, view.failed, view.versions) == (made.varied, made.failed, made.versions)
            assert (view.heading, view.command, view.export, view.name) == (
                made.heading, made.command, made.export, made.name
            )  # fmt: skip
            assert len(view.figure.svgs) == len(made.figure.svgs)
    rows = {view.name: text for view, text in kept.rows(claim)}
    assert len(rows[f"{CLAIM.replace('/', '-')}-full"].splitlines()) == 1 + runs["full"].rows


@pytest.fixture
def small_record(tmp_path, monkeypatch):
    """The record of one claim, in a folder of its own."""
    folder = tmp_path / "small"
    for path in (rows_file(CLAIM), WHOLE / FIGURES / f"{CLAIM}.json.xz"):
        target = folder / path.relative_to(WHOLE)
        target.parent.mkdir(parents=True)
        shutil.copy(path, target)
    runs = json.loads((WHOLE / "verdicts.json").read_text())
    (folder / "verdicts.json").write_text(json.dumps([run for run in runs if run["experiment"] == CLAIM]))
    for module in ("lab.record", "app.pages.drawn"):
        monkeypatch.setattr(f"whichtoken.{module}.record_folder", lambda: folder)
    recorded_runs.cache_clear()
    yield folder
    recorded_runs.cache_clear()


def page_of(tmp_path):
    write_pages(tmp_path, record=True)
    return (tmp_path / "record" / f"{CLAIM.replace('/', '-')}.html").read_text()


def test_record_is_shown_without_drawing_or_judging(small_record, tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(type(find(CLAIM)), "judge", lambda self, rows: pytest.fail("judged"))
    page = page_of(tmp_path)
    assert not drawn
    assert 'role="img"' in page
    assert (tmp_path / "record" / "rows" / "attention-regression-limit-full.csv").is_file()


def test_record_without_rows_as_in_a_wheel_shows_figures_and_offers_no_rows(small_record, tmp_path, drawn):
    shutil.rmtree(small_record / "rows")
    page = page_of(tmp_path)
    assert 'role="img"' in page
    assert "Figure (SVG)" in page
    assert "Rows (CSV)" not in page
    assert not drawn


@pytest.mark.parametrize("harm", ["other rows", "no file", "not packed", "not a view"])
def test_figures_that_cannot_be_of_the_rows_are_drawn_again(small_record, tmp_path, drawn, harm):
    kept = small_record / FIGURES / f"{CLAIM}.json.xz"
    if harm == "other rows":
        rows_file(CLAIM).write_bytes(lzma.compress(lzma.decompress(rows_file(CLAIM).read_bytes()), preset=0))
    elif harm == "no file":
        kept.unlink()
    elif harm == "not packed":
        kept.write_bytes(b"no xz")
    else:
        content = json.loads(lzma.decompress(kept.read_bytes()))
        content["runs"] = {preset: {"figure": 3} for preset in content["runs"]}
        kept.write_bytes(lzma.compress(json.dumps(content).encode()))
    assert 'role="img"' in page_of(tmp_path)
    assert drawn


def test_report_draws_again_only_what_changed(tmp_path, drawn):
    reproduce(["toy/mean", "toy/faults"], out=tmp_path)
    write_pages(tmp_path)
    first, before = list(drawn), pages(tmp_path / "report")
    assert len(first) == 2
    write_pages(tmp_path)
    assert drawn == first
    assert pages(tmp_path / "report") == before

    with Ledger.writing(tmp_path / LEDGER_NAME) as ledger:
        plan = make_plan(find("toy/mean"))
        task, row = next(iter(ledger.rows(plan).items()))
        row.measured["mean"] += 1e-9
        ledger.put(1, task, row)
    write_pages(tmp_path)
    assert [name.split()[0] for name in drawn[2:]] == ["toy/mean"]


@pytest.mark.parametrize("harm", [b"", b"{", b"[]", b'{"key": 1}', b"\xff\xfe"])
def test_damaged_figure_beside_a_report_is_drawn_again(tmp_path, drawn, harm):
    reproduce(["toy/mean"], out=tmp_path)
    write_pages(tmp_path)
    before = pages(tmp_path / "report")
    (tmp_path / "report" / "figures" / "toy-mean-quick.json").write_bytes(harm)
    write_pages(tmp_path)
    assert len(drawn) == 2
    assert pages(tmp_path / "report") == before


def test_claims_run_on_this_machine_are_marked_on_the_pages_of_the_record(small_record, tmp_path):
    (tmp_path / LEDGER_NAME).write_bytes(lzma.decompress(rows_file(CLAIM).read_bytes()))
    assert "checked on this machine" not in page_of(tmp_path)
    written = write_pages(tmp_path, record=True, checked=True)
    page = written.index.with_name(f"{CLAIM.replace('/', '-')}.html").read_text()
    assert page.count("checked on this machine: ") == 1
    assert f"full, {recorded_runs()[CLAIM, 'full'].started[:10]}; below is the record" in page
    index = written.index.read_text()
    assert "1 claim checked on this machine, as marked below." in index
    assert f'<a href="{CLAIM.replace("/", "-")}.html">' in index
    assert index.count("checked on this machine: ") == 1


def test_nothing_is_marked_where_nothing_was_run(small_record, tmp_path):
    assert "checked on this machine" not in write_pages(tmp_path, record=True, checked=True).index.read_text()
