"""The report as its readers meet it: in a browser, at three widths, in the light and in the dark, by keyboard alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from browser import THEMES, WIDTHS
from whichtoken.app import write_report
from whichtoken.app.movie_reviews import FOLDER
from whichtoken.app.pages.papers import overview_page, paper_page
from whichtoken.display.panels import panels
from whichtoken.estimators.metrics import evaluation_page
from whichtoken.estimators.model_folder import read_card
from whichtoken.lab import reproduce
from whichtoken.lab.record import recorded_runs
from whichtoken.lab.statements import judge_papers, sources
from whichtoken.lab.worker import work

pytestmark = pytest.mark.browser

NASTY = """</script><script>document.title='run'</script><img src=x onerror="document.title='run'">\u202e`<b>`"""


def recorded_studies():
    return list(recorded_runs().values())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Pages of toys, of which one has a hostile title, and an overview of what is on record."""
    out, toys = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("toys")
    for path in (Path(__file__).parents[2] / "toys").glob("[mf]*.py"):
        (toys / path.name).write_text(path.read_text())
    text = (toys / "mean.py").read_text().replace("toy/mean", "toy/nasty").replace('"quick": {"mean', '"quick": {"no')
    text = text.replace("The mean of shifted normals", NASTY).replace("the mean is the shift", NASTY.replace('"', "'"))
    (toys / "nasty.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: ((t, work(t)) for t in tasks))
        patch.setenv("WHICHTOKEN_EXPERIMENTS", str(toys))
        [mean, *_] = reproduce(["toy/mean", "toy/faults", "toy/nasty"], out=out)
        reproduce(["toy/mean"], overrides={"factor": [1.2]}, seeds=4, out=out)
        write_report(out)
        [panel] = panels(lambda figure: mean.experiment.draw(mean.rows, figure), "toy").svgs
        figures = {source.figure: panel for source in sources()}
        (out / "report" / "overview.html").write_text(overview_page(recorded_studies(), figures))
        for paper in judge_papers(recorded_studies()):
            (out / "report" / f"{paper.source.id}.html").write_text(paper_page(paper))
        yield out / "report"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["overview", "toy-mean", "trained-embeddings"])
def test_page_fits_and_hinders_nobody(report, visit, name, width, theme):
    made = visit(report / f"{name}.html", width, theme)
    made.page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
    assert made.overflow() == 0
    if width != 800:  # at which nothing stands that does not stand elsewhere, and to look takes seconds
        assert made.violations() == []


@pytest.mark.parametrize("name", ["failures", "reading", "toy-faults", "toy-nasty", "group-sparse"])
def test_texts_fit_and_hinder_nobody(report, visit, name):
    made = visit(report / f"{name}.html", 360, "dark")
    assert made.overflow() == 0
    assert made.violations() == []


@pytest.mark.parametrize(
    ("width", "theme", "paper"), [(360, "dark", "rgb(20, 22, 26)"), (1400, "light", "rgb(253, 253, 251)")]
)
def test_the_card_of_a_model_has_the_style_of_all_pages(visit, tmp_path, width, theme, paper):
    card = read_card(FOLDER)
    (tmp_path / "evaluation.html").write_text(evaluation_page(NASTY, card["evaluation"]))
    for page in (FOLDER / "model-card.html", tmp_path / "evaluation.html"):
        made = visit(page, width, theme)
        assert made.page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert made.overflow() == 0
        assert made.violations() == []


ROWS = "table[data-filter] tbody tr"


def shown(page):
    return page.locator(f"{ROWS}:visible").count()


def test_table_filters_sorts_and_remembers(report, visit):
    page = visit(report / "overview.html").page
    every = page.locator(ROWS).count()
    assert every > 50
    assert shown(page) == 40, "no wall: a long table begins with its first rows"
    assert page.locator("output").text_content() == f"the first 40 of {every}"
    page.get_by_label("search").fill("max-margin  direction")
    assert 0 < shown(page) < every
    assert page.url.endswith("#text=max-margin++direction")
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function(f"document.querySelector('output').textContent === '{every} in all'")
    assert shown(page) == every
    page.get_by_label("theory").select_option("Mirror descent")
    assert page.locator("output").text_content() == f"{shown(page)} of {every}"
    assert set(page.locator(f"{ROWS}:visible td:nth-child(4)").all_text_contents()) == {"Mirror descent"}
    page.get_by_label("answer").select_option(label="supported")
    assert "answer=supported" in page.url
    assert 0 < shown(page) < every
    page.get_by_label("answer").select_option("")
    kept = page.url
    assert shown(visit(kept).page) == shown(page), "the address keeps the choice"

    page.get_by_label("theory").select_option("")
    page.get_by_role("button", name="statement", exact=True).click()
    statements = page.locator(f"{ROWS} td:nth-child(2)").all_text_contents()
    page.get_by_role("button", name="statement", exact=True).click()
    assert page.locator(f"{ROWS} td:nth-child(2)").all_text_contents() == statements[::-1]
    assert page.locator("th[aria-sort=descending]").text_content() == "statement"


@pytest.mark.parametrize("words", ["Barnfield", "2504.08638", "Theorem 3.2", "capacity", "Tarzanagh"])
def test_search_finds_authors_numbers_of_papers_theorems_and_words(report, visit, words):
    page = visit(report / "overview.html").page
    page.get_by_label("search").fill(words)
    assert shown(page) > 0


def test_keyboard_alone_filters_and_opens_what_is_folded(report, visit):
    made = visit(report / "index.html")
    page, stops = made.page, made.tab_stops()
    assert stops[0] == "a To the content"
    for name in ("a Overview", "a What failed", "a How to read the answers", "button Show all", "button statement"):
        assert name in stops
    page.get_by_label("answer").focus()
    page.keyboard.type("not")
    assert page.get_by_label("answer").input_value() == "not checked"
    assert set(page.locator(f"{ROWS}:visible td:first-child").all_text_contents()) == {"not checked"}
    page.goto((report / "toy-mean.html").as_uri())
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None


def test_link_to_a_folded_verdict_unfolds_it(report, visit):
    page = visit(report / "index.html").page
    page.get_by_role("link", name="the mean is the shift").first.click()
    page.locator("tr:target").wait_for(state="visible")


def test_figure_is_saved_as_a_picture(report, visit, tmp_path):
    page = visit(report / "toy-mean.html", width=800).page
    with page.expect_download() as saved:
        page.get_by_role("button", name="Figure (PNG)").first.click()
    saved.value.save_as(tmp_path / "figure.png")
    assert saved.value.suggested_filename.endswith(".png")
    picture = (tmp_path / "figure.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000, "it is not empty"


def test_hostile_titles_are_shown_and_not_run(report, visit):
    for name in ("index.html", "toy-nasty.html"):
        page = visit(report / name).page
        page.wait_for_timeout(100)
        assert "whichtoken" in page.title()
        assert "onerror=" in page.content()
        assert page.locator("img").count() == 0
        assert "\u202e" not in page.content()
    assert "</script><script>document.title='run'" in visit(report / "toy-nasty.html").page.locator("h1").inner_text()


def test_page_is_readable_without_its_script(report, visit):
    page = visit(report / "index.html", java_script_enabled=False).page
    assert shown(page) == page.locator(ROWS).count() > 40
    assert page.locator("form").count() == 0


def layouts(session):
    """How often the browser has laid out the page."""
    [count] = [
        item["value"] for item in session.send("Performance.getMetrics")["metrics"] if item["name"] == "LayoutCount"
    ]
    return count


def test_all_statements_filter_at_once_and_twice_as_many_runs_keep_the_page_light(visit, tmp_path):
    studies = recorded_studies()
    assert len(overview_page([*studies, *(replace(study, preset="other") for study in studies)]).encode()) < 400_000
    (tmp_path / "record.html").write_text(overview_page(studies))
    page = visit(tmp_path / "record.html").page
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before = layouts(session)
    page.evaluate(
        "(() => { const field = document.querySelector('input[type=search]');"
        "field.value = 'limit'; field.dispatchEvent(new Event('input', {bubbles: true})); document.body.offsetHeight })()"
    )
    assert layouts(session) - before < 10, "once or twice for all rows, not for each of them"
