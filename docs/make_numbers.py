"""Numbers of the pages come from the record: `python docs/make_numbers.py` writes them in, `--check` says which are stale.

A page is plain Markdown. Where its numbers come from stands beside it: `docs/numbers/mirror_descent.toml` for that
page, `docs/numbers/README.toml` for the README. An entry quotes the text around some numbers, with `{}` for each, and
names the sources:

    "limit, p = 2 | `direction` | below {} | {} |" = [
        "mirror-descent/direction full direction.limit.p2 theory .3f",
        "mirror-descent/direction full direction.limit.p2 measured .4f",
    ]
    "cvxpy needs {} times" = ['bench prompt-svm "n=100 T=20 d=1000" "times faster than cvxpy" .0f']

The quoted text must occur exactly once; line breaks do not matter. The first kind of source names a claim, a preset,
the code of a verdict or of one point of a pooled verdict, a field of `Verdict` and a format (the code `run` stands for
the whole run: `points`, `seconds`); the second a benchmark, its case, what is measured, a field unless it is the value
(`ours`, `theirs`, `interval` of the difference, `result`: won, even or lost, or `detail NAME`: the number after that
name in what the benchmark noted) and a format. Two fields are made of
others: `interval` is `low` to `high`, and `off` is how far the measurement is from theory, as a share of it.

The program lists everything that the record or a page lacks; the page keeps the number that it has.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whichtoken.lab.record import RunSummary, record_folder, recorded_runs
from whichtoken.lab.verdicts import Verdict

ROOT = Path(__file__).parent.parent
NUMBER = r"([^|\n]{1,40}?)"  # or an interval, or a verdict


def pages() -> list[Path]:
    """README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sources(page: Path) -> dict[str, list[str]]:
    """The text around the numbers of a page, and where each is on record."""
    file = ROOT / "docs" / "numbers" / f"{page.stem}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def pattern(around: str) -> re.Pattern[str]:
    """Finds the quoted text in a page, each number as a group."""
    words = r"\s+".join(map(re.escape, around.split()))
    return re.compile(words.replace(re.escape("{}"), NUMBER))


def renew(text: str, wanted: dict[str, list[str]]) -> tuple[str, list[str]]:
    """The page with its numbers as they are on record, and a sentence for each that is missing there or in the page."""
    problems = []
    for around, asked in wanted.items():
        found = list(pattern(around).finditer(text))
        if len(found) != 1 or len(found[0].groups()) != len(asked):
            problems.append(
                f"{around!r} occurs {len(found)} times, with {len(asked)} sources; it must occur once, with one for each {{}}"
            )
            continue
        for group, what in reversed(
            list(enumerate(asked, start=1))
        ):  # from the end: what stands before keeps its place
            start, end = found[0].span(group)
            try:
                text = text[:start] + number(what) + text[end:]
            except LookupError as error:
                problems.append(str(error.args[0]))
    return text, list(dict.fromkeys(problems))


def number(what: str) -> str:
    """The number that a source names."""
    words = shlex.split(what)
    try:
        return _of_benchmark(*words[1:]) if words[0] == "bench" else _of_verdict(*words)
    except (KeyError, StopIteration, TypeError, AttributeError, ValueError, IndexError, FileNotFoundError) as error:
        raise LookupError(f"not on record: {what.strip()}{_hint(words)}") from error


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
    if fields and fields[0].startswith("detail "):
        named = rf"(?:^|[;,] ){re.escape(fields[0].removeprefix('detail '))} ([-+.\d]+)"
        return _printed(float(re.findall(named, found["detail"])[0]), form)
    value = found["beside"][fields[0]] if fields else found["value"]
    if fields == ["result"]:
        return {"win": "won", "loss": "lost"}.get(value, value)
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
    stale, missing = False, 0
    for page in pages():
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT)
        renewed, problems = renew(text, sources(page))
        if renewed != text:
            stale = True
            print(f"{name}: {'stale' if check else 'renewed'}")
            if not check:
                page.write_text(renewed, encoding="utf-8")
        for sentence in problems:
            missing += 1
            print(f"{name}: {sentence}")
    if missing:
        print(f"{missing} numbers could not be renewed; their pages keep what they show")
    return int(bool(missing) or (check and stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
