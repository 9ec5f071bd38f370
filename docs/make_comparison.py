"""Write comparison.md: every capability beside what a user would take instead, from the last run of each benchmark.

    make bench                                # runs the benchmarks into record/benchmarks
    python docs/make_comparison.py            # writes docs/comparison.md from there
    python docs/make_comparison.py --check    # says what is wrong and writes nothing

Numbers come from the record; the question and the sentences that explain a result stand in the file of the benchmark, beside
what they speak of. It ends with a list and exit code 1 if a result has no sentence, so that no new loss slips in unexplained.
"""

from __future__ import annotations

import ast
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whichtoken.files import write_text
from whichtoken.lab.benchmark import CPU, Beside, benchmark_files
from whichtoken.lab.record import record_folder

PAGE = Path(__file__).parent / "comparison.md"
PARTS = (
    "Texts", "Bags", "Tables", "Transformers", "Planning a study", "Max-margin problems", "Training", "The program itself",
)  # fmt: skip
# what "3 times" stands before if ours is the larger number, and if it is the smaller one
RATIOS = {
    "s": ("slower", "faster"),
    CPU: ("slower", "faster"),
    "GB": ("as much memory", "less memory"),
    "MB": ("as much memory", "less memory"),
    "share found": ("as many found", "fewer found"),
    "% of errors covered, 90 promised": (
        "as many errors covered (90 % promised)",
        "fewer errors covered (90 % promised)",
    ),
    "% wrong among the most confident 80 %": (
        "as many wrong among the most confident 80 %",
        "fewer wrong among the most confident 80 %",
    ),
    "median width": ("as wide", "narrower"),
    "reviews per s of CPU time": ("as many reviews per s of CPU time", "fewer reviews per s of CPU time"),
    "distance from float64": ("as far from float64", "closer to float64"),
    "1 - cosine to the limit": ("as far from the limit (1 - cosine)", "closer to the limit (1 - cosine)"),
}
WORDS = {"loss": "lost", "even": "even", "win": "won"}
TITLE = """# How whichtoken compares with the alternatives

Both sides get the same data and one thread. An alternative runs with its own defaults or with the recipe that its authors
publish. Compilation and other warm-up do not count. Times are processor time unless a row says wall time, and both
sides of a ratio come from the same run. A result is *even* if the 95 % interval of the difference contains zero or,
without an interval, if the two numbers are within 10 % of each other. `whichtoken bench NAME` measures a table again on
your machine; `python docs/make_comparison.py` writes this page from the last run of each. Below each table, *won*, *even* and
*lost* say why these results came out as they did.
"""


@dataclass(frozen=True)
class Row:
    """One comparison of one benchmark."""

    case: str
    beside: Beside
    missed: str  # the target of ours that it misses, or nothing


@dataclass(frozen=True)
class Table:
    """One benchmark: what its file says and what was measured last."""

    name: str
    part: str
    question: str
    why: dict[str, dict[str, str]]  # by peer and result
    record: dict[str, Any] | None  # None: never run
    measured: dict[str, Any] | None

    @property
    def rows(self) -> list[Row]:
        return [
            Row(each["case"], _beside(each["beside"]), "" if each["met"] else _target(each))
            for each in self.measures
            if each["beside"]
        ]

    @property
    def measures(self) -> list[dict[str, Any]]:
        return self.measured["measures"] if self.measured else []

    @property
    def peers(self) -> list[str]:
        return list(dict.fromkeys(row.beside.peer for row in self.rows))

    def reason(self, row: Row) -> str:
        return self.why.get(row.beside.peer, {}).get(row.beside.result, "")


def read_tables(folder: Path | None = None) -> list[Table]:
    """Every benchmark, in the order of the page."""
    tables = [_read(name, folder or record_folder() / "benchmarks") for name in benchmark_files()]
    return sorted(tables, key=lambda table: PARTS.index(table.part) if table.part in PARTS else len(PARTS))


def _read(name: str, folder: Path) -> Table:
    says, file = _constants(benchmark_files()[name]), folder / f"{name}.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    measured = next((each for each in record["benchmarks"] if each["name"] == name), None) if record else None
    return Table(name, says.get("PART", ""), says.get("QUESTION", ""), says.get("WHY", {}), record, measured)


def _constants(file: Path) -> dict[str, Any]:
    """PART, QUESTION and WHY of a benchmark, read and not imported: a page needs no peers and no torch."""
    found = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="PART" | "QUESTION" | "WHY" as name)], value=value):
                found[name] = ast.literal_eval(value)
            case ast.AnnAssign(target=ast.Name(id="WHY" as name), value=ast.expr() as value):
                found[name] = ast.literal_eval(value)
    return found


def _beside(found: dict[str, Any]) -> Beside:
    interval = tuple(found["interval"]) if found["interval"] else None
    return Beside(**{**{key: value for key, value in found.items() if key != "result"}, "interval": interval})


def problems(tables: list[Table]) -> list[str]:
    """What is wrong, a sentence each: empty if the page says why of every result."""
    return [sentence for table in tables for sentence in _problems(table)]


def _problems(table: Table) -> Iterator[str]:
    if table.part not in PARTS or not table.question:
        yield f"{table.name}: needs a QUESTION, and a PART that is one of {', '.join(PARTS)}"
    for row in table.rows:
        if not table.reason(row):
            yield f"{table.name}: WHY has no sentence for the {row.beside.result} beside {row.beside.peer} ({row.case})"


def render(tables: list[Table]) -> str:
    """The page."""
    run, missing = [table for table in tables if table.measures], [table for table in tables if not table.measures]
    coverage = f"{len(run)} of {len(tables)} benchmarks"
    parts = [TITLE, _losses(run, coverage), _summary(run), f"{_conditions(run)}Run so far: {coverage}.\n"]
    for part, tables in _parts(run):
        parts.append(f"## {part}\n")
        parts += [_section(table) for table in tables]
    if missing:
        parts.append(_missing(missing))
    return "\n".join(parts)


def _conditions(run: list[Table]) -> str:
    records = [table.record for table in run if table.record]
    versions: dict[str, set[str]] = {}
    for record in records:
        for name, version in record["versions"].items():
            versions.setdefault(name, set()).add(version)
    listed = ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in versions.items())
    loads = sorted(record["load"] for record in records)
    dates = sorted({record["date"] for record in records})
    machines = " and ".join(sorted({record["machine"] for record in records}))
    return (
        f"Machine: {machines}, busy with other work (load {loads[0]:g} to {loads[-1]:g}). Dates: {dates[0]}"
        f"{f' to {dates[-1]}' if len(dates) > 1 else ''}. Versions: {listed}.\n"
    )


def _summary(run: list[Table]) -> str:
    """A table for each part, with one line for each benchmark and alternative, those with losses first."""
    lines = ["## All results in short\n"]
    for part, tables in _parts(run):
        found = []
        for table in tables:
            for peer in table.peers:
                rows = [row for row in table.rows if row.beside.peer == peer]
                number = Counter(row.beside.result for row in rows)
                words = ", ".join(f"{WORDS[result]} {number[result]}" for result in WORDS if number[result])
                cells = [f"[{table.name}](#bench-{table.name})", peer, words, "; ".join(_ranges(rows))]
                found.append((not number["loss"], not number["even"], _line(cells)))
        if found:
            found.sort(key=lambda line: line[:2])
            lines += [_line([part, "alternative", "results", "whichtoken"]), _line(["---"] * 4)]
            lines += [*(line for *_, line in found), ""]
    return "\n".join(lines)


def _parts(run: list[Table]) -> Iterator[tuple[str, list[Table]]]:
    for part in dict.fromkeys(table.part for table in run):
        yield part, [table for table in run if table.part == part]


def _ranges(rows: list[Row]) -> Iterator[str]:
    """For each result and quantity what stands in the rows, losses first: the range of ratios, or of differences."""
    found: dict[tuple[str, str], list[Beside]] = {}
    for row in rows:
        found.setdefault((row.beside.result, _quantity(row.beside.unit).partition(",")[0]), []).append(row.beside)
    for (result, quantity), besides in sorted(
        found.items(), key=lambda item: (list(WORDS).index(item[0][0]), item[0][1])
    ):
        if result == "even":
            continue
        ratios = [_ratio(beside) for beside in besides]
        if besides[0].interval is None and math.isfinite(max(ratios)):
            least, most = _short(min(ratios)), _short(max(ratios))
            yield f"{least if least == most else f'{least} to {most}'} times {_direction(besides[0])}"
        else:
            apart = sorted(beside.ours - beside.theirs for beside in besides)
            words = f"{apart[0]:+.2g}" + (f" to {apart[-1]:+.2g}" if len(apart) > 1 else "")
            yield f"{'better' if result == 'win' else 'worse'} in {quantity} ({words})"
    if even := sorted(quantity for result, quantity in found if result == "even"):
        yield f"even in {' and '.join(filter(None, (', '.join(even[:-1]), even[-1])))}"


def _losses(run: list[Table], coverage: str) -> str:
    """What whichtoken lost, and why: for each benchmark and alternative a sentence."""
    lines = ["## When to take the alternative\n"]
    for part, tables in _parts(run):
        found = []
        for table in tables:
            for peer in table.peers:
                lost = [row for row in table.rows if row.beside.peer == peer and row.beside.result == "loss"]
                if lost:
                    number = f"{len(lost)} of {sum(row.beside.peer == peer for row in table.rows)} rows lost"
                    found.append(
                        f"- **{peer}** ([{table.name}](#bench-{table.name}), {number}; whichtoken: "
                        f"{', '.join(_ranges(lost))}). {table.reason(lost[0])}"
                    )
        if found:
            lines += [f"**{part}**\n", *found, ""]
    return "\n".join(lines if len(lines) > 1 else [*lines, f"whichtoken lost none of the {coverage} that were run.\n"])


def _section(table: Table) -> str:
    assert table.record is not None
    assert table.measured is not None
    minutes = f"{table.measured['seconds']:.0f} s" if table.measured["finished"] else "not all of its cases were run"
    days = sorted(table.measured.get("cases", {}).values()) or [table.record["date"]]
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    lines = [f"(bench-{table.name})=", f"### {table.question}\n"]
    if table.rows:
        head = ["case", "alternative", "measured", "whichtoken", "alternative's", "difference", "result"]
        lines += [_line(head), _line(["---"] * len(head)), *(_line(_cells(row)) for row in table.rows), ""]
    for peer, reasons in table.why.items():
        results = {row.beside.result for row in table.rows if row.beside.peer == peer}
        sentences = [f"*{WORDS[result].capitalize()}:* {reasons[result]}" for result in WORDS if result in results]
        if sentences:
            lines.append(f"Why, against {_text(peer)}. {' '.join(sentences)}\n")
    picture = PAGE.parent / "images" / f"{table.name}.svg"
    if picture.exists():
        lines.append(f"![{table.question}](images/{picture.name})\n")
    lines += [*_others(table), f"`whichtoken bench {table.name}`, {when}, {minutes}.\n"]
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    beside = row.beside
    result = WORDS[beside.result] if beside.result != "loss" else f"**{WORDS['loss']}**"
    target = f"; our target of {row.missed} missed" if row.missed else ""
    return [
        _text(row.case), _text(beside.peer), _quantity(beside.unit), _value(beside.ours, beside.unit),
        _value(beside.theirs, beside.unit), _phrase(beside), result + target,
    ]  # fmt: skip


def _others(table: Table) -> list[str]:
    """What was measured without a peer, folded away where there are comparisons."""
    rows = [each for each in table.measures if not each["beside"]]
    if not rows:
        return []
    head = ["case", "measured", "value", "target", ""]
    lines = [_line(head), _line(["---"] * len(head))]
    for each in rows:
        cells = [_text(each["case"]), _text(each["what"]), f"{each['value']:.6g}", _target(each)]
        missed = f"**missed**; {_text(each['detail'])}" if each["detail"] else "**missed**"
        lines.append(_line([*cells, "met" if each["met"] else missed]))
    if not table.rows:
        return [*lines, ""]
    return ["<details><summary>Also measured</summary>\n", *lines, "\n</details>\n"]


def _missing(tables: list[Table]) -> str:
    head = ["question", "command"]
    lines = [_line(head), _line(["---"] * len(head))]
    for table in tables:
        reason = (table.measured or {}).get("not_run", "")
        command = f"`whichtoken bench {table.name}`" + (f" ({_text(reason)})" if reason else "")
        lines.append(_line([table.question, command]))
    return "## Not run\n\nNot yet run on the machine named above.\n\n" + "\n".join(lines) + "\n"


def _phrase(beside: Beside) -> str:
    """The difference in words."""
    if beside.interval is not None:
        low, high = beside.interval
        return f"{beside.ours - beside.theirs:+.2g} ({low:+.2g} to {high:+.2g})"
    if beside.result == "even":
        return "about the same"
    if math.isinf(_ratio(beside)):
        return f"{beside.ours - beside.theirs:+.2g} in {_quantity(beside.unit)}"
    return f"{_short(_ratio(beside))} times {_direction(beside)}"


def _ratio(beside: Beside) -> float:
    small, large = sorted((abs(beside.ours), abs(beside.theirs)))
    return large / small if small else math.inf


def _direction(beside: Beside) -> str:
    quantity = _quantity(beside.unit)
    larger, smaller = RATIOS.get(beside.unit, (f"higher {quantity}", f"lower {quantity}"))
    return larger if beside.ours > beside.theirs else smaller


def _is_time(unit: str) -> bool:
    return unit in ("s", CPU)


def _value(number: float, unit: str) -> str:
    if _is_time(unit):
        return f"{_short(1e3 * number)} ms" if number < 1 else f"{_short(number)} s"
    return f"{number:.4f}" if "accuracy" in unit else _short(number)


def _short(number: float) -> str:
    return f"{number:.0f}" if abs(number) >= 10 else f"{number:.2g}"


def _quantity(unit: str) -> str:
    return {"s": "wall time", CPU: "CPU time", "GB": "GB of memory", "MB": "MB of memory"}.get(unit, unit)


def _target(measure: dict[str, Any]) -> str:
    points = " points" if "points of accuracy" in measure["what"] else ""
    return f"{'≥' if measure['at_least'] else '≤'} {measure['target']:.4g}{points}"


def _text(words: str) -> str:
    return words.replace("|", "\\|").replace("<cls>", "`<cls>`").replace("*", "\\*")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    tables = read_tables()
    wrong = problems(tables)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if not wrong and "--check" not in arguments:
        write_text(PAGE, render(tables))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
