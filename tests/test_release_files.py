"""What a release carries says the same everywhere, and names files that are there."""

import re
import tomllib
from pathlib import Path

import whichtoken

ROOT = Path(__file__).parents[1]


def test_the_citation_has_the_version_and_the_five_papers():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", text, re.MULTILINE)[1] == whichtoken.__version__
    cited = set(re.findall(r'value: "arXiv:([\d.]+)"', text))
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src" / "whichtoken" / "theory").rglob("*.py")
    )
    assert {"2509.25153", "2603.01514", "2504.08638", "2410.14581"} <= cited & set(
        re.findall(r"arXiv (\d{4}\.\d{5})", sources)
    )
    assert len(cited) == 5


def test_the_changelog_begins_with_this_version():
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first[1] == whichtoken.__version__


def test_every_licence_that_is_shipped_is_listed():
    listed = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
    shipped = [path.parent for room in ("src", "tests") for path in (ROOT / room).rglob("LICENSE*")]
    assert [folder for folder in shipped if f"`{folder.relative_to(ROOT)}/`" not in listed] == []


def test_every_extra_of_the_documentation_is_pinned():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    asked = {re.split(r"[<>=]", need)[0].lower() for need in extras["docs"] + extras["data"] if "[" not in need}
    assert asked <= pinned


def test_what_the_sdist_includes_is_there():
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"][
        "include"
    ]
    assert [name for name in included if not (ROOT / name).exists()] == []
