"""The table of statements says what the record says, and leaves nothing out."""

import copy
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
maker = runpy.run_path(str(PAGE.with_name("make_claims.py")))


@pytest.fixture
def claims():
    return copy.deepcopy(maker["read_claims"]())


def test_every_statement_leads_to_functions_and_recorded_verdicts(claims):
    assert maker["problems"](claims) == []


def test_the_page_is_what_the_generator_gives(claims):
    assert PAGE.read_text(encoding="utf-8") == maker["render"](claims), "run python docs/make_claims.py"


def first_judged(claims):
    return next(each for each in claims["sources"][0]["statements"] if "codes" in each)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        (
            "codes",
            ["sparse-tokens/capacity: capacity.invented"],
            "on no record: sparse-tokens/capacity: capacity.invented",
        ),
        ("codes", ["sparse-tokens/invented: capacity.*"], "no such experiment: sparse-tokens/invented: capacity.*"),
        ("functions", ["theory.sparse_tokens.invented"], "no such function: whichtoken.theory.sparse_tokens.invented"),
        ("unchecked", "no time", "needs either codes or a reason"),
    ],
)
def test_a_wrong_entry_is_named(claims, field, value, sentence):
    first_judged(claims)[field] = value
    assert any(found.startswith(sentence) for found in maker["problems"](claims))


def test_a_recorded_verdict_that_no_statement_names_is_named(claims):
    claims["ours"] = [
        each for each in claims["ours"] if "sparse-tokens/boundary: boundary.*" not in each.get("codes", [])
    ]
    assert "recorded, but in no statement: sparse-tokens/boundary: boundary.above.beta0.7" in maker["problems"](claims)


def test_an_awaited_code_leaves_the_list_once_it_is_recorded(claims):
    code = first_judged(claims)["codes"][0]
    claims["awaited"] = [*claims["awaited"], code]
    assert f"is on record now, take it from `awaited`: {code}" in maker["problems"](claims)
