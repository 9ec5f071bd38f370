"""Nothing in a user's data can move the cursor, change colors or reverse the reading of an explanation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from whichtoken import BagClassifier, GroupClassifier, TextClassifier
from whichtoken.app.pages.explanations import as_html, color_words, reason_lines

HIDDEN = "\x1b[31m\u202e"
SEEN = r"\x1b[31m\u202e"


def text() -> Any:
    texts = [f"good {HIDDEN} film", "bad film"] * 6
    model = TextClassifier(analyzer=str.split, C=1.0, max_epochs=2, min_df=1, random_state=0)
    return model.fit(texts, [f"<b>{HIDDEN}", "no"] * 6).explain(texts[:1])


def bags() -> Any:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((24, 3, 2)), np.arange(24) % 2
    model = BagClassifier(C=1.0, inverse_temperature=1.0, refine_steps=0, cv=2).fit(X, y)
    return model.explain(X[:1], [HIDDEN])


def groups() -> Any:
    X = pd.DataFrame(np.random.default_rng(0).standard_normal((40, 2)), columns=[HIDDEN, "other"])
    return GroupClassifier(C=1.0, cv=2, random_state=0).fit(X, X[HIDDEN] > 0).explain(X[:1])


@pytest.mark.parametrize("make", [text, bags, groups])
def test_hidden_signs_are_written_as_escapes(make: Any) -> None:
    explanations = make()
    view = explanations[0].view()
    lines = [cell for line in reason_lines(view) for cell in line]
    shown = [
        as_html(explanations),
        explanations[0]._repr_html_(),
        repr(explanations[0]),
        color_words(view).plain,
        *lines,
    ]
    assert not any(sign in part for part in shown for sign in HIDDEN if sign in "\x1b\u202e")
    assert all(SEEN in part for part in shown[:2])
    assert SEEN in "".join(shown[2:])


def test_colors_of_a_text_stay_with_their_words() -> None:
    painted = color_words(text()[0].view())
    assert painted.plain == f"good {SEEN} film"
    words = {painted.plain[span.start : span.end] for span in painted.spans}
    assert words <= {"good", SEEN, "film"}
    assert "good" in words


def test_the_reasons_of_a_text_show_themselves() -> None:
    reasons = text()[0].reasons
    assert repr(reasons) == "<Reasons: 3 tokens, the largest contribution first>"
    assert repr(reasons[0]).startswith("TokenReason(token='")
    assert SEEN in reasons._repr_html_()


def test_no_markup_in_a_label_is_obeyed_by_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from whichtoken.app.cli.explain import _print_explanations

    model = TextClassifier(C=1.0, random_state=0).fit(["good film", "bad film"] * 10, ["[red]a[/red]", "[/b]"] * 10)
    for texts in (["good film"], ["good film", "bad film"]):
        _print_explanations(model.explain(texts))
        assert "[red]a[/red]" in capsys.readouterr().out
