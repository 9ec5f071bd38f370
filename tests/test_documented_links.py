"""Links between pages lead somewhere, every page is in a table of contents, every picture of the gallery has its example."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
GENERATED = ("gallery/", "api/")  # by `make docs`
LINK = re.compile(r"\]\(([^)\s#]+)|^:img-top: (\S+)|^```\{image\} (\S+)", re.MULTILINE)
PICTURE = re.compile(r"gallery/(\w+)/images/thumb/sphx_glr_(\w+)_thumb\.png")


def links(page):
    text = re.sub(r"^ *```\w*\n.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return ["".join(found) for found in LINK.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    near = [link for link in links(page) if "://" not in link and not link.startswith("mailto:")]
    for link in near:
        if picture := PICTURE.fullmatch(link):
            assert (ROOT / "examples" / picture[1] / f"{picture[2]}.py").exists(), link
        else:
            assert link.startswith(GENERATED) or (page.parent / link).exists(), link


def test_every_page_is_in_a_table_of_contents():
    tables = "".join(
        table
        for page in DOCS.glob("*.md")
        for table in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    )
    entries = [re.sub(r".*<(.*)>", r"\1", line) for line in tables.splitlines() if line and line[0] != ":"]
    missing = [page.stem for page in DOCS.glob("*.md") if not any(fnmatch(page.stem, entry) for entry in entries)]
    assert missing == ["index"]
