"""Write claims.md: every statement of the papers with its answer, the number that matters, and its evidence.

    python docs/make_claims.py            # writes docs/claims.md

The statements stand in `claims/<theory>/statements.toml`; the answers follow from the record, so nothing is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whichtoken.app.pages.papers import answer_sentence
from whichtoken.app.pages.sentences import REGIME_WORDS
from whichtoken.files import write_text
from whichtoken.lab.record import POWER, record_folder, recorded_runs
from whichtoken.lab.statements import ANSWERS, Judged, Paper, judge_papers

PAGE = Path(__file__).parent / "claims.md"
SIGNS = "bounds at 0: signs"
INTRODUCTION = """# Every statement, and its answer

Each statement of the five papers in our own words, with the answer that the recorded runs give:

- *Supported*: it holds where the paper states it. If we have not read one of its hypotheses, it holds under conditions that the
  text allows.
- *Contradicted*: one of the paper's own sentences or figures fails under the paper's own hypotheses.
- *Undetermined by the text*: the answer depends on a choice that the text leaves open.
- *Beyond its hypotheses*: we could try it only where the paper does not claim it.
- *Undecided*: there were too few runs, or it failed wherever we tried it but we have not read one of its hypotheses.
- *Not checked*: no run tests it; the table says why.

A law or threshold that we derived or chose can fail, but that never counts against a paper; these have tables of their own.

The last column names a claim and the code of a verdict. `whichtoken reproduce CLAIM` computes it on your machine, and
`whichtoken list CLAIM` shows what is on record. [Questions to the authors](questions.md) lists what we would ask them.
"""


def render() -> str:
    """The page."""
    papers = judge_papers(recorded_runs().values())
    parts = [INTRODUCTION, _summary(papers)]
    for paper in papers:
        parts += [f"## {paper.source.title}\n\n{paper.source.reference}. {paper.source.read}\n"]
        parts += [_table(paper.statements, "where")]
        if paper.ours:
            parts += [f"### {paper.source.title}: what we derived\n", _table(paper.ours)]
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
        "We change each prediction, keep the recorded rows of `full`, and judge the claim again. The table says how many verdicts"
    ]
    lines += ["would notice, that is, no longer agree. A bound is tightened by the same share.\n"]
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
        "\nA bound at 0 says on which side a difference lies. A share of 0 is 0, so it cannot be tightened. Such a verdict"
    ]
    lines += [
        "agrees only if its whole interval lies on that side, so it notices a difference on the other side, or one that may"
    ]
    lines += ["be chance."]
    listed = [
        (f"{claim}: {code}", why) for claim, codes in sorted(excused.items()) for code, why in sorted(codes.items())
    ]
    if listed:
        lines += ["\nEqualities that do not notice a change of 10 %, and why:\n", "| verdict | why |", "|---|---|"]
        lines += [f"| `{name}` | {why} |" for name, why in listed]
    return "\n".join(lines) + "\n"


def _summary(papers: list[Paper]) -> str:
    shown = [answer for answer in ANSWERS if any(answer in paper.counts for paper in papers)]
    lines = [_row(["paper", "statements", *shown]), _row(["---"] * (2 + len(shown)))]
    for paper in papers:
        counts = paper.counts
        cells = [paper.source.title, str(len(paper.statements)), *(str(counts.get(answer, 0)) for answer in shown)]
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Judged], where: str = "") -> str:
    columns = [*([where] if where else []), "statement", "answer", "the number that matters", "evidence"]
    lines = [_row(columns), _row(["---"] * len(columns))]
    for judged in rows:
        it = judged.statement
        cells = [_says(judged), f"**{judged.answer}**", _number(judged), _evidence(judged)]
        lines.append(_row([it.place, *cells] if where else cells))
    return "\n".join(lines) + "\n"


def _says(judged: Judged) -> str:
    it = judged.statement
    asked = [f"*Asked:* {each.asks}; *tried:* {each.tried} ({each.status})." for each in it.hypotheses]
    left_open = [f"*The text leaves open:* {it.undetermined.rstrip('.')}."] if it.undetermined else []
    return "<br>".join([it.says, *asked, *left_open, *([f"*{it.note}*"] if it.note else [])])


def _number(judged: Judged) -> str:
    it = judged.statement
    if it.unchecked:
        return it.unchecked
    where = f" Measured {REGIME_WORDS[judged.regime]}." if judged.regime and it.place else ""
    cost = f" To decide it: {it.cost.rstrip('.')}." if it.cost and judged.answer == "undecided" else ""
    return answer_sentence(judged) + where + cost


def _evidence(judged: Judged) -> str:
    return "<br>".join(f"`{item.claim}: {item.verdict.code}` ({item.preset})" for item in judged.evidence)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    write_text(PAGE, render())
