"""The lowest versions that are declared are those that `make test-lowest` installs."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
REQUIREMENTS = [asked for asked in map(Requirement, dict.fromkeys(ASKED)) if asked.name != PROJECT["name"]]


def pins(name: str) -> dict[str, Version]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return {name.lower(): Version(version) for name, _, version in (line.partition("==") for line in lines if line)}


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_lowest_pin_is_the_declared_bound(requirement):
    [bound] = [bound for bound in requirement.specifier if bound.operator == ">="]
    assert pins("constraints-lowest.txt")[requirement.name.lower()] == Version(bound.version)


def test_every_list_pins_the_same_torch():
    assert len({pins(f"constraints{kind}.txt")["torch"] for kind in ("", "-lowest", "-newest")}) == 1
