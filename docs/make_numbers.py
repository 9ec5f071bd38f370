"""Numbers of the pages come from the record: `python docs/make_numbers.py` writes them in, `--check` says which are stale.

In a page, a number stands between two comments that do not show:

    <!--= mirror-descent/direction full direction.p2 measured .3f -->0.998<!--/-->
    <!--= bench prompt-svm "n=100 T=20 d=1000" "times faster than cvxpy" .0f -->31<!--/-->

The first names a claim, a preset, the code of a verdict, a field of `Verdict` and a format (the code `run` stands for the whole
run: `points`, `seconds`); the second a benchmark, its case, what is measured and a format.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from whichtoken.lab.record import record_folder, recorded_runs

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(?P<mark><!--=(?P<what>.*?)-->)(?P<shown>.*?)<!--/-->", re.DOTALL)


def pages() -> list[Path]:
    """README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def renewed(text: str) -> str:
    """The page with its numbers as they are on record."""
    return MARKED.sub(lambda found: f"{found['mark']}{number(found['what'])}<!--/-->", text)


def number(what: str) -> str:
    """The number that a comment asks for."""
    words = shlex.split(what)
    try:
        return _of_benchmark(*words[1:]) if words[0] == "bench" else _of_verdict(*words)
    except (KeyError, StopIteration, TypeError, FileNotFoundError) as error:
        raise LookupError(f"not on record: {what.strip()}") from error


def _of_verdict(experiment: str, preset: str, code: str, field: str, form: str = "") -> str:
    run = recorded_runs()[experiment, preset]
    if code == "run":
        return format(getattr(run, field), form)
    return format(getattr(next(verdict for verdict in run.verdicts if verdict.code == code), field), form)


def _of_benchmark(name: str, case: str, what: str, form: str) -> str:
    recorded = json.loads((record_folder() / "benchmarks" / f"{name}.json").read_text())
    measures = next(table["measures"] for table in recorded["benchmarks"] if table["name"] == name)
    found = next(row for row in measures if (row["case"], row["what"]) == (case, what))
    return format(found["value"], form)


def main(check: bool) -> int:
    stale = [page for page in pages() if renewed(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in stale:
        if not check:
            page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {'stale' if check else 'renewed'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
