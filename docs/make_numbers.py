"""Numbers of the pages come from the record: `python docs/make_numbers.py` writes them in, `--check` says which are stale.

In a page, a number stands between two comments that do not show:

    <!--= mirror-descent/direction full direction.p2 measured .3f -->0.998<!--/-->
    <!--= bench prompt-svm "n=100 T=20 d=1000" "times faster than cvxpy" .0f -->31<!--/-->

The first names a claim, a preset, the code of a verdict or of one point of a pooled verdict, a field of `Verdict` and a format
(the code `run` stands for the whole run: `points`, `seconds`); the second a benchmark, its case, what is measured, a field
unless it is the value (`ours`, `theirs`, `interval` of the difference) and a format. Two fields are made of others: `interval` is
`low` to `high`, and `off` is how far the measurement is from theory, as a share of it.

What the record lacks is listed, all of it, and the page keeps the number that it has.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whichtoken.lab.record import RunSummary, record_folder, recorded_runs
from whichtoken.lab.verdicts import Verdict

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(?P<mark><!--=(?P<what>.*?)-->)(?P<shown>.*?)<!--/-->", re.DOTALL)


def pages() -> list[Path]:
    """README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def renewed(text: str) -> str:
    """The page with its numbers as they are on record."""
    return MARKED.sub(lambda found: f"{found['mark']}{_number_or(found['what'], found['shown'])}<!--/-->", text)


def absent(text: str) -> list[str]:
    """What a page asks for and the record lacks, a sentence each."""
    missing = []
    for found in MARKED.finditer(text):
        try:
            number(found["what"])
        except LookupError as error:
            missing.append(str(error.args[0]))
    return list(dict.fromkeys(missing))


def number(what: str) -> str:
    """The number that a comment asks for."""
    words = shlex.split(what)
    try:
        return _of_benchmark(*words[1:]) if words[0] == "bench" else _of_verdict(*words)
    except (KeyError, StopIteration, TypeError, AttributeError, ValueError, IndexError, FileNotFoundError) as error:
        raise LookupError(f"not on record: {what.strip()}{_hint(words)}") from error


def _number_or(what: str, shown: str) -> str:
    try:
        return number(what)
    except LookupError:
        return shown


def _of_verdict(experiment: str, preset: str, code: str, field: str, form: str = "") -> str:
    run = recorded_runs()[experiment, preset]
    if code == "run":
        return _printed(getattr(run, field), form)
    verdict = next(verdict for verdict in _verdicts(run) if verdict.code == code)
    if field == "interval":
        return f"{_printed(verdict.low, form)} to {_printed(verdict.high, form)}"
    if field == "off" and verdict.measured is not None and verdict.theory:
        return _printed((verdict.measured - verdict.theory) / abs(verdict.theory), form)
    return _printed(getattr(verdict, field), form)


def _verdicts(run: RunSummary) -> Iterator[Verdict]:
    """The verdicts of a run, then those of the single points of pooled ones."""
    yield from run.verdicts
    for verdict in run.verdicts:
        yield from verdict.evidence


def _of_benchmark(name: str, case: str, what: str, *field_and_form: str) -> str:
    *fields, form = field_and_form
    recorded = json.loads((record_folder() / "benchmarks" / f"{name}.json").read_text())
    measures = next(table["measures"] for table in recorded["benchmarks"] if table["name"] == name)
    found = next(row for row in measures if (row["case"], row["what"]) == (case, what))
    value = found["beside"][fields[0]] if fields else found["value"]
    return " to ".join(_printed(end, form) for end in value) if isinstance(value, list) else _printed(value, form)


def _printed(value: Any, form: str) -> str:
    """A value as people write it: 3e-5 and 97 %."""
    text = re.sub(r"e([+-])0*(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", format(value, form))
    return text.replace("%", " %") if form.endswith("%") else text


def _hint(words: list[str]) -> str:
    """What the record has instead."""
    if len(words) < 3 or words[0] == "bench":
        return ""
    run = recorded_runs().get((words[0], words[1]))
    if run is None:
        return f" (no run of {words[0]} at {words[1]})"
    codes = [verdict.code for verdict in _verdicts(run)]
    if words[2] == "run" or words[2] in codes:
        return " (no such field, or it is empty)"
    near = difflib.get_close_matches(words[2], codes, n=3, cutoff=0.5)
    return f" (no such code; near it: {', '.join(near)})" if near else " (no such code)"


def main(check: bool) -> int:
    stale, missing = [], 0
    for page in pages():
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT)
        if renewed(text) != text:
            stale.append(page)
            print(f"{name}: {'stale' if check else 'renewed'}")
            if not check:
                page.write_text(renewed(text), encoding="utf-8")
        for sentence in absent(text):
            missing += 1
            print(f"{name}: {sentence}")
    if missing:
        print(f"{missing} numbers are not on record; their pages keep what they show")
    return int(bool(missing) or (check and bool(stale)))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
