"""Explanations as people get them: one color for the predicted label, every number twice, nothing in them is obeyed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from browser import THEMES, WIDTHS
from whichtoken import BagClassifier, GroupClassifier, TextClassifier
from whichtoken.app.pages.explanations import as_html

HOSTILE = "<script>document.title='obeyed'</script><img src=x onerror=alert(1)>\u202egnorw"
LONG = "un" + "believ" * 60 + "able"
WORDS = {
    "good": ["superb", "wonderful", "moving"],
    "bad": ["dull", "awful", "tedious"],
    "so-so": ["plain", "average", "usual"],
}


def texts(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Reviews whose label is said by some of their words."""
    rng = np.random.default_rng(0)
    found = [labels[number % len(labels)] for number in range(20 * len(labels))]
    filler = ["the", "film", "has", "a", "story", "with", "some", "music", "that", "we", "saw", "last", "night"]
    made = [
        [*rng.choice(filler, 6), *rng.choice(WORDS[label], 2), rng.choice(WORDS[rng.choice(labels)])] for label in found
    ]
    return [" ".join(words) for words in made], found


@pytest.fixture(scope="module")
def three() -> Any:
    return TextClassifier(C=10.0, random_state=0).fit(*texts(list(WORDS)))


@pytest.fixture(scope="module")
def two() -> Any:
    return TextClassifier(C=10.0, random_state=0).fit(*texts(["good", "bad"]))


def bags() -> Any:
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    X = rng.standard_normal((24, 10, 2))
    X[y == 1, 3] += 5
    model = BagClassifier(C=1.0, inverse_temperature=2.0, refine_steps=0, cv=2, random_state=0).fit(X, y)
    return model.explain(X[:2], [HOSTILE, "b"])


def rows() -> Any:
    X = pd.DataFrame(np.random.default_rng(0).standard_normal((40, 3)), columns=[HOSTILE, LONG, "age"])
    model = GroupClassifier(C=1.0, n_groups=3, cv=2, random_state=0)
    return model.fit(X, np.where(X["age"] + X[LONG] > 0, HOSTILE, "no")).explain(X[:3])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, three: Any) -> dict[str, Path]:
    documents = three.explain([f"A superb film, awful {HOSTILE} end {LONG}.", "It was dull.", texts(list(WORDS))[0][0]])
    folder = tmp_path_factory.mktemp("pages")
    for name, explanations in {"texts": documents, "bags": bags(), "rows": rows()}.items():
        (folder / f"{name}.html").write_text(as_html(explanations), encoding="utf-8")
    return {path.stem: path for path in folder.iterdir()}


def marks(page: str) -> dict[str, bool]:
    """The marked words of a page, and whether each speaks against the predicted label."""
    found = re.findall(r'<mark( class="against")? style="[^"]*" data-note="[^"]*">(?:<del>)?(\w+)', page)
    return {word: bool(against) for against, word in found}


@pytest.mark.parametrize("label", ["good", "bad"])
def test_what_speaks_for_the_predicted_label_always_has_its_color(two: Any, label: str) -> None:
    other = "bad" if label == "good" else "good"
    for_it, against = WORDS[label][1:], WORDS[other][1]
    [item] = two.explain([" ".join([*for_it, against])])
    assert item.label == label
    found = marks(as_html([item]))
    assert [found[word] for word in (*for_it, against)] == [False, False, True]
    assert item.view().score == pytest.approx(abs(item.decision))
    supports = [reason.support for reason in item.view().reasons]
    assert item.view().start + sum(supports) == pytest.approx(item.view().score)


def test_the_change_is_struck_through_and_says_where_it_leads(three: Any) -> None:
    [item] = three.explain(["superb awful wonderful"])
    rest = " ".join(word for word in item.text.split() if word not in item.counterfactual)
    assert three.predict([rest])[0] == item.flips_to != item.label
    page = as_html([item])
    for word in item.counterfactual:
        assert re.search(rf'data-note="{word}: [^"]*"><del>{word}</del></mark>', page)
    assert f"changes the label to <b>{item.flips_to}</b>" in page
    assert f"{item.runner_up} <small>(runner-up)</small>" in page
    assert list(item.probabilities) == sorted(item.probabilities, key=item.probabilities.__getitem__, reverse=True)


def test_every_number_on_hovering_is_in_the_table_too(three: Any) -> None:
    [item] = three.explain([" ".join(texts(list(WORDS))[0][:4])])
    page = as_html([item])
    assert len(item.reasons) > 8
    for reason in item.reasons:
        assert f"{reason.token}: attention {reason.attention:.3f}, adds {reason.contribution:+.3f}" in page
        assert re.search(rf">{reason.token}(</del>)?</th><td class=number>{reason.count:g}</td>", page)


def test_counts_without_a_text_show_their_tokens() -> None:
    X = np.eye(4, dtype=int)[np.arange(40) % 4] + 1
    [item, *_] = TextClassifier(C=1.0, random_state=0).fit(X, np.arange(40) % 2).explain(X[:1])
    assert len(marks(as_html([item]))) == 4


def test_a_page_of_many_says_how_many_it_shows(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whichtoken.app.pages.explanations.MOST_ON_A_PAGE", 2)
    page = as_html(two.explain(["dull", "superb", "awful"]))
    assert "These are the first 2 of 3." in page
    assert page.count("<article") == 2


@pytest.mark.browser
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_documents_are_readable_everywhere(visit: Any, pages: dict[str, Path], width: int, theme: str) -> None:
    seen = visit(pages["texts"], width=width, theme=theme)
    assert seen.overflow() <= 0
    assert seen.violations() == []


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["bags", "rows"])
def test_bags_and_rows_are_too(visit: Any, pages: dict[str, Path], kind: str) -> None:
    for width, theme in ((360, "dark"), (1400, "light")):
        seen = visit(pages[kind], width=width, theme=theme)
        assert seen.overflow() <= 0
        assert seen.violations() == []


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["texts", "bags", "rows"])
def test_nothing_in_the_data_is_obeyed(visit: Any, pages: dict[str, Path], kind: str) -> None:
    page = visit(pages[kind]).page
    assert page.title().startswith("Which ")
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
    shown = page.inner_text("main")
    assert "<img src=x onerror=alert(1)>" in shown
    assert "\u202e" not in shown
    assert r"\u202e" in shown


@pytest.mark.browser
def test_the_filter_works_by_keyboard_alone(visit: Any, pages: dict[str, Path]) -> None:
    seen = visit(pages["texts"])
    page, articles = seen.page, seen.page.locator("article.decision:visible")
    assert articles.count() == 3
    assert seen.tab_stops()[0].startswith("input")
    page.locator("input[name=find]").focus()
    page.keyboard.type("dull")
    assert 1 <= articles.count() < 3
    assert all("dull" in text.lower() for text in articles.all_inner_texts())
    assert page.locator("output").inner_text() == f"{articles.count()} of 3 shown"
    assert page.locator(".overview tbody tr:visible").count() == articles.count()
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.press("Tab")
    page.keyboard.type("bad")
    assert {article.get_attribute("data-label") for article in articles.all()} == {"bad"}


@pytest.mark.smoke
@pytest.mark.browser
def test_pointing_at_a_word_shows_its_numbers(visit: Any, pages: dict[str, Path]) -> None:
    page = visit(pages["texts"], width=360).page
    word = page.locator("article .text mark", has_text="superb").first
    word.hover()
    note = word.evaluate("mark => getComputedStyle(mark, '::after').content")
    assert re.fullmatch(r'"superb: attention 0\.\d{3}, adds [+-]\d\.\d{3}"', note)


@pytest.mark.browser
def test_without_script_and_on_paper_all_is_there(visit: Any, pages: dict[str, Path]) -> None:
    plain = visit(pages["texts"], java_script_enabled=False).page
    assert plain.locator("article.decision:visible").count() == 3
    assert plain.locator("form.filters:visible").count() == 0
    printed = visit(pages["bags"]).page
    printed.emulate_media(media="print")
    printed.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert printed.locator("details:not([open])").count() == 0
    assert printed.locator("form.filters:visible").count() == 0
