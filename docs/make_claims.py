"""Write claims.md: every statement of the sources with its functions, its verdicts and their states on record.

    python docs/make_claims.py            # writes docs/claims.md
    python docs/make_claims.py --check    # says what is wrong and writes nothing

The statements stand in claims.toml; the states come from the record, so nothing is typed by hand. It ends with a list and exit
code 1 if a code is on no record, a function does not import, or a recorded verdict appears nowhere.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from whichtoken.files import write_text
from whichtoken.lab.discovery import experiments
from whichtoken.lab.record import POWER, record_folder, recorded_runs, recorded_states

HERE = Path(__file__).parent
DATA, PAGE = HERE / "claims.toml", HERE / "claims.md"
PRESETS = ("full", "paper", "quick")  # the state of a code is that of the first that has it
STATES = ("agrees", "disagrees", "undecided", "not-run")
SIGNS = "bounds at 0: signs"
INTRODUCTION = """# Every statement, and what became of it

Made by `python docs/make_claims.py` from `docs/claims.toml` and the record. For each statement of each source: where it stands
there, in words of ours what it says, the functions of `whichtoken` that compute it, the verdicts that judge it (experiment and
code; `*` stands for several) and their states on record, at preset `full` or, where a verdict has no such state, `paper` or
`quick`. Where several verdicts judge a statement, the number of each state is given. Run `whichtoken reproduce EXPERIMENT` to
see them on your machine, `whichtoken list EXPERIMENT` for the record.
"""


@dataclass(frozen=True)
class Pattern:
    """One entry of `codes`: verdicts of one experiment, `*` standing for anything."""

    experiment: str
    code: str

    @classmethod
    def read(cls, text: str) -> Pattern:
        experiment, _, code = text.partition(": ")
        return cls(experiment, code)

    def __str__(self) -> str:
        return f"{self.experiment}: {self.code}"

    def covers(self, other: Pattern) -> bool:
        """Whether it names every verdict that the other one does."""
        return self.experiment == other.experiment and fnmatchcase(other.code, self.code)

    @property
    def verdicts(self) -> set[tuple[str, str, str]]:
        """Full name, preset and state of every recorded verdict that it names."""
        return {
            (f"{self.experiment}: {code}", *found)
            for code, found in on_record(self.experiment).items()
            if fnmatchcase(code, self.code)
        }


@cache
def on_record(experiment: str) -> dict[str, tuple[str, str]]:
    """Preset and state of every code of an experiment."""
    recorded = recorded_states(experiment)
    codes = {code for preset in PRESETS for code in recorded.get(preset, {})}
    return {
        code: next((preset, recorded[preset][code]) for preset in PRESETS if code in recorded.get(preset, {}))
        for code in sorted(codes)
    }


def read_claims(path: Path = DATA) -> dict[str, Any]:
    """The statements as they are written down."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def statements(claims: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of all sources, then ours."""
    for source in claims["sources"]:
        yield from source["statements"]
    yield from claims["ours"]


def problems(claims: dict[str, Any]) -> list[str]:
    """What is wrong, a sentence each: empty if the page can be trusted."""
    return [*_malformed(claims), *_missing_functions(claims), *_missing_codes(claims), *_unlisted(claims)]


def _malformed(claims: dict[str, Any]) -> Iterator[str]:
    for statement in statements(claims):
        if bool(statement.get("codes")) == bool(statement.get("unchecked")):
            yield f"needs either codes or a reason why it is unchecked: {statement['says']}"


def _missing_functions(claims: dict[str, Any]) -> Iterator[str]:
    for name in sorted({name for statement in statements(claims) for name in statement.get("functions", [])}):
        module, _, attribute = name.rpartition(".")
        try:
            getattr(import_module(f"whichtoken.{module}"), attribute)
        except (ImportError, AttributeError):
            yield f"no such function: whichtoken.{name}"


def _missing_codes(claims: dict[str, Any]) -> Iterator[str]:
    known = experiments()
    awaited = [Pattern.read(text) for text in claims["awaited"]]
    named = {Pattern.read(text) for statement in statements(claims) for text in statement.get("codes", [])}
    for pattern in sorted(named, key=str):
        if not pattern.verdicts and not any(each.covers(pattern) for each in awaited):
            yield f"{'on no record' if pattern.experiment in known else 'no such experiment'}: {pattern}"
    for each in awaited:
        if each.verdicts:
            yield f"is on record now, take it from `awaited`: {each}"
        elif not any(each.covers(pattern) for pattern in named):
            yield f"is awaited but judges no statement: {each}"


def _unlisted(claims: dict[str, Any]) -> Iterator[str]:
    patterns = [Pattern.read(text) for statement in statements(claims) for text in statement.get("codes", [])]
    for experiment in sorted(experiments()):
        own = [pattern.code for pattern in patterns if pattern.experiment == experiment]
        for code in on_record(experiment):
            if not any(fnmatchcase(code, pattern) for pattern in own):
                yield f"recorded, but in no statement: {experiment}: {code}"


def render(claims: dict[str, Any]) -> str:
    """The page."""
    parts = [INTRODUCTION, _summary(claims)]
    for source in claims["sources"]:
        parts += [
            f"## {source['title']}\n\n{source['reference']}. {source['read']}\n",
            _table(source["statements"], "where"),
        ]
    parts += ["## Ours, beyond the sources\n", _table(claims["ours"])]
    if noticed := recorded_json(POWER):
        parts += [_power(noticed, recorded_json("insensitive.json"))]
    return "\n".join(parts)


def recorded_json(name: str) -> dict[str, Any]:
    """A file of the record; empty before it is first made."""
    path = record_folder() / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _power(noticed: dict[str, dict[str, list[Any]]], excused: dict[str, dict[str, str]]) -> str:
    """Of the verdicts that agree, how many would not if theory were wrong by a little, and which equalities still would."""
    lines = ["## What the verdicts would notice\n"]
    lines += [
        "Each prediction is changed, the recorded rows of `full` stay, and the claim is judged again: of the verdicts that"
    ]
    lines += ["agree, so many would not. A bound is made harder to keep by that much of it.\n"]
    lines += ["| verdicts that agree | number | notice 5 % | notice 10 % |", "|---|---|---|---|"]
    theories = {
        (name, verdict.code): verdict.theory
        for (name, preset), run in recorded_runs().items()
        if preset == "full"
        for verdict in run.verdicts
    }
    found: dict[str, list[list[Any]]] = {"equalities": [], "bounds": [], SIGNS: []}
    for claim, codes in noticed.items():
        for code, item in codes.items():
            sign = item[0] != "equal" and theories[claim, code] == 0
            found["equalities" if item[0] == "equal" else SIGNS if sign else "bounds"].append(item)
    for name in ("equalities", "bounds"):
        five, ten = (sum(item[place] for item in found[name]) for place in (1, 2))
        lines.append(f"| {name} | {len(found[name])} | {five} | {ten} |")
    lines.append(f"| {SIGNS} | {len(found[SIGNS])} | | |")
    lines += [
        "\nA bound at 0 says on which side a difference lies, and a share of 0 changes nothing. Such a verdict agrees only if its"
    ]
    lines += [
        "whole interval lies on that side: a difference on the other, or one that chance may have made, is noticed."
    ]
    listed = [
        (f"{claim}: {code}", why) for claim, codes in sorted(excused.items()) for code, why in sorted(codes.items())
    ]
    if listed:
        lines += ["\nEqualities that do not notice a tenth, and why:\n", "| verdict | why |", "|---|---|"]
        lines += [f"| `{name}` | {why} |" for name, why in listed]
    return "\n".join(lines) + "\n"


def _summary(claims: dict[str, Any]) -> str:
    rows = [
        f"| {source['title']} | {len(source['statements'])} | {sum('codes' in each for each in source['statements'])} |"
        for source in claims["sources"]
    ]
    return "\n".join(["| source | statements | judged by verdicts |", "|---|---|---|", *rows]) + "\n"


def _table(rows: list[dict[str, Any]], where: str = "") -> str:
    columns = [*([where] if where else []), "statement", "computed by", "verdicts", "state"]
    lines = [_row(columns), _row(["---"] * len(columns))]
    for row in rows:
        cells = [row["says"] + (f" *({row['note']})*" if "note" in row else ""), _code(row.get("functions", []))]
        cells += [_code(row.get("codes", [])), _state(row)]
        lines.append(_row([row["place"], *cells] if where else cells))
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(names: list[str]) -> str:
    return "<br>".join(f"`{name}`" for name in names)


def _state(row: dict[str, Any]) -> str:
    if "unchecked" in row:
        return f"not checked: {row['unchecked']}"
    patterns = [Pattern.read(text) for text in row["codes"]]
    found = set().union(*(pattern.verdicts for pattern in patterns))  # one that two patterns name counts once
    states = Counter((preset, state) for _, preset, state in found)
    words = [
        f"{state}{f' {number}' if len(found) > 1 else ''}" + (f" ({preset})" if preset != PRESETS[0] else "")
        for preset in PRESETS
        for state in STATES
        if (number := states[preset, state])
    ]
    if not all(pattern.verdicts for pattern in patterns):
        words.append("some not on record yet" if words else "not on record yet")
    return ", ".join(words)


def main(arguments: list[str]) -> int:
    claims = read_claims()
    wrong = problems(claims)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if not wrong and "--check" not in arguments:
        write_text(PAGE, render(claims))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
