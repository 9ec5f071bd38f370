"""Formulas, claims and findings as a reader meets them: nothing in the notation of a program, no symbol turned into another."""

import pytest

from whichtoken.app.pages.frame import claim_text, end_sentence, maths
from whichtoken.display.figures import format_norms
from whichtoken.display.panels import panels


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("the l_inf margin", "the ℓ<sub>∞</sub> margin"),
        ("l_1.1, l_2 and l_p", "ℓ<sub>1.1</sub>, ℓ<sub>2</sub> and ℓ<sub>p</sub>"),
        ("|v|_p / |W|_p", "|v|<sub>p</sub> / |W|<sub>p</sub>"),
        ("W_11 falls as R^-2", "W<sub>11</sub> falls as R<sup>-2</sup>"),
        ("k**(-2/(p-1)) and dim**-0.5", "k<sup>(-2/(p-1))</sup> and dim<sup>-0.5</sup>"),
        ("a file_name, `l_2` and <b>", "a file_name, <code>l_2</code> and &lt;b&gt;"),
        ("one ` alone, 2 * 3, a ** b", "one ` alone, 2 * 3, a ** b"),
    ],
)
def test_formulas_are_printed_and_names_left_alone(typed, read):
    assert maths(typed) == read


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("share of runs", "Share of runs."),
        ("a task on another group", "A task on another group."),
        ("p = 2: cosine", "p = 2: cosine."),  # P would be another number
        ("lr = 100: share", "lr = 100: share."),
        ("v fixed, labels by a coin", "v fixed, labels by a coin."),
        ("beta2 = 0.9: share", "beta2 = 0.9: share."),
        ("When does it select?", "When does it select?"),
        ("<b>bold</b>", "&lt;b&gt;bold&lt;/b&gt;."),
    ],
)
def test_claim_begins_and_ends_as_a_sentence_without_changing_a_symbol(typed, read):
    assert end_sentence(claim_text(typed)) == read


def test_norms_in_a_figure_are_printed():
    def draw(figure):
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], label="l_1.1")
        axes.set(xlabel="share of the l_inf margin", title="l_2 against l_p", ylabel="of $1, l_2")
        axes.legend()

    (picture,) = panels(draw, "norms").svgs
    assert not any(name in picture for name in ("l_1.1", "l_inf", "l_p"))
    assert format_norms("l_inf") == r"$\ell_{\infty}$"
    assert format_norms("normal_2 and $l_2$") == "normal_2 and $l_2$"
