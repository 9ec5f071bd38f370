"""The page of statements says what the record says."""

import runpy
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"


def test_the_page_is_what_the_generator_gives():
    maker = runpy.run_path(str(PAGE.with_name("make_claims.py")))
    assert PAGE.read_text(encoding="utf-8") == maker["render"](), "run python docs/make_claims.py"
