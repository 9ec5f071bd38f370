"""What a release carries says the same everywhere, and names files that are there."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def test_the_site_lists_this_version_as_the_preferred_one():
    [preferred] = [one for one in json.loads((ROOT / "docs/_static/versions.json").read_text()) if one.get("preferred")]
    assert preferred["version"] == whichtoken.__version__


def test_the_changelog_begins_with_this_version():
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first[1] == whichtoken.__version__


def test_the_citation_is_dated_when_the_changelog_is():
    heading = re.search(r"^## \S+ \((.*)\)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    date = re.search(r"^date-released: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert (date[1] if date else "unreleased") == heading


def test_every_license_that_is_shipped_is_listed():
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


def pins(name):
    """Versions by name, in the spelling of the registry."""
    lines = [line.split()[0] for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def test_packages_with_checksums_are_those_of_the_constraints():
    lines = [line for line in (ROOT / "requirements-hashed.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line)] == []
    hashed, tested = pins("requirements-hashed.txt"), pins("constraints.txt")
    assert {name: hashed[name] for name in hashed.keys() & tested.keys()} == {
        name: tested[name] for name in hashed.keys() & tested.keys()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    asked = project["project"]["dependencies"] + [
        text for name in extras.keys() - {"all", "bench", "dev", "docs"} for text in extras[name]
    ]
    names = {canonicalize_name(Requirement(text).name) for text in [*asked, *project["build-system"]["requires"]]}
    names.remove("whichtoken")  # an extra that includes another
    assert names <= hashed.keys() & tested.keys(), "renew it with tests/release/hashes.py"


def test_actions_are_pinned_by_commit():
    for path in (ROOT / ".github").rglob("*.yml"):  # not in an sdist
        used = re.findall(r"uses: (.*)", path.read_text())
        assert used
        assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", line)] == []


AUDITS = {
    "none in 1 packages": ('echo \'{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}\'', None),
    "a 1: PYSEC-1": (
        'echo \'{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1"}]}]}\'; exit 1',
        SystemExit,
    ),
    "does not answer (ERROR: no network)": ("echo 'ERROR: no network' >&2; exit 1", None),
    "pip-audit is not installed": (None, None),
}


@pytest.mark.parametrize("expected", AUDITS)
def test_audit_says_what_it_found_and_whether_it_looked(expected, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("check", ROOT / "tests" / "release" / "check.py")
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    program, end = AUDITS[expected]
    if program:
        (tmp_path / "pip-audit").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "pip-audit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if program else str(tmp_path))
    if end is None:
        assert expected in check.audit(tmp_path / "list.txt")
    else:
        with pytest.raises(end, match=expected):
            check.audit(tmp_path / "list.txt")
