"""Draw where the headline statements stop holding, and write the page about it.

    python docs/images/make_borders.py [FOLDER [NAME ...]]
    python docs/images/make_borders.py page

Rows are stored in FOLDER, so a second call only draws. The budgets are numbers of rows, so every machine finds the same; together
they take more than half an hour of processor time. With names of pictures only these are searched, with `page` nothing is; the
rest of the page comes from the record.
"""

import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from whichtoken.app.pages.borders import draw_borders, searched_ranges, where_it_holds
from whichtoken.display.panels import panels
from whichtoken.display.text import pluralize
from whichtoken.lab import stress
from whichtoken.lab.discovery import find

IMAGES = Path(__file__).parent
ABLATION = "attention-regression/ablation", "600rows", ("condition", "tokens"), ("condition", "tokens")
PAGE = IMAGES.parent / "borders.md"
# name of the picture, claim, budget, fields, fields of the map, fields of the default point that are changed
MAPS = (
    ("mirror_descent", "mirror-descent/direction", "3000rows", ("p", "lr", "steps", "start", "dim"), (), {}),
    ("mirror_descent_joint", "mirror-descent/joint-conditions", "2000rows", ("sequences", "dim"), ("sequences", "dim"), {}),
    ("group_sparse", "group-sparse/learning-rate", "600rows", (), ("rate", "groups"), {}),
    ("trained_embeddings", "trained-embeddings/selection-window", "1000rows", ("lr", "dim"), (), {}),
    ("attention_regression", "attention-regression/convergence", "500rows", ("target", "covariance", "noise"), (), {}),
    ("sparse_tokens", "sparse-tokens/capacity", "400rows", ("dim", "strength"), (), {}),
    ("group_sparse_start", "group-sparse/initialization", "320rows", (), ("scale", "groups"), {}),
    ("group_sparse_correlation", "group-sparse/overlap", "320rows", (), ("correlation", "groups"), {}),
    ("group_sparse_encodings", "group-sparse/encodings", "320rows", (), ("steps", "groups"), {"encoding": "random"}),
    ("group_sparse_learned", "group-sparse/encodings", "320rows", (), ("steps", "groups"), {"encoding": "learned-random"}),
    ("group_sparse_samples", "group-sparse/finite-sample", "320rows", (), ("samples_per_variable", "scale"), {}),
    ("ablation_plain", *ABLATION, {"start": "random", "variant": "no-preconditioner"}),
    ("ablation_covariance", *ABLATION, {"start": "random"}),
    ("ablation_saddle_plain", *ABLATION, {"start": "saddle", "variant": "no-preconditioner"}),
    ("ablation_saddle_covariance", *ABLATION, {"start": "saddle", "condition": 1.0}),
    ("ablation_saddle_gram", *ABLATION, {"start": "saddle", "variant": "full"}),
    ("ablation_unpenalized", *ABLATION, {"start": "unbalanced", "variant": "no-gram-no-penalty"}),
    ("ablation_penalized", *ABLATION, {"start": "unbalanced"}),
    ("tuples", "trained-embeddings/tuples", "240rows", (), ("certainty", "steps"), {}),
    ("atlas", "optimizers/margins", "400rows", ("steps", "dim"), (), {}),
)  # fmt: skip
BORDER = ("code", "field", "fails", "value", "low", "high")
PAGES = {"optimizers": "atlas"}  # of a theory, where its page has another name
TOP = """# Where a theorem stops

![The part of two fields in which attention is exponentially small, and the border](images/borders_group_sparse.svg)

*Does it hold at my size, and what if an assumption fails? `whichtoken stress CLAIM` searches for the answer. The picture shows
the [group-sparse](group_sparse.md) task: circles mark learning rates and numbers of groups at which attention on the other groups
is exponentially small; crosses mark those at which it is not.*

| claim | what a search found, one field at a time |
|---|---|
{rows}

`python docs/images/make_borders.py` writes this page from searches with the budgets shown. A larger budget finds more borders,
and narrower ones. Each reported failure was seen again on fresh repeats, at a significance level that covers the whole
search: if a claim were true wherever it was tried, the chance of any report about it would be at most 5 %. A search that finds
nothing says where it has looked; it proves nothing about the rest. We found these borders ourselves. No paper makes a statement
about these sizes, and a border outside a paper's hypotheses is no evidence against the paper.

[Researchers](researcher.md) says how the search works, and [adding things](extending.md) how to search for the borders of your
own claim.
"""
TABLE = """| field | the check | holds | between |
|---|---|---|---|
"""


def main(folder: Path, wanted: list[str]) -> None:
    """Search what is wanted, or everything, put it on record, and write the page from the record."""
    record_file = IMAGES.parents[1] / "record" / "borders.json"
    record = json.loads(record_file.read_text())
    for name, claim, budget, fields, map_fields, overrides in MAPS if wanted != ["page"] else ():
        if wanted and name not in wanted:
            continue
        found = stress(
            claim, budget, fields=fields or None, map_fields=map_fields, overrides=overrides, out=folder / name
        )
        drawn = panels(lambda figure, found=found: draw_borders(found, figure), claim, f"Where {claim} stops")
        (IMAGES / f"borders_{name}.svg").write_text(drawn.standalone())
        options = [part for field in fields for part in ("--field", field)]
        options += ["--map", ",".join(map_fields)] if map_fields else []
        options += [part for field, value in overrides.items() for part in ("--set", f"{field}={value}")]
        record[name] = {
            "claim": claim,
            "with": ", ".join(f"{field} = {value}" for field, value in overrides.items()),
            "sentences": [f"{item.claim}: {item}." for item in (*found.borders, *found.counterexamples)],
            "ranges": found.searched,
            "default": found.default,
            "command": shlex.join(["whichtoken", "stress", claim, *options, "--budget", budget]),
            "held": found.held,
            "borders": [
                {"check": border.claim} | {part: getattr(border, part) for part in BORDER} for border in found.borders
            ],
            "points": [f"{item.claim}: **{item}**." for item in found.counterexamples],
            "trials": len(found.trials),
            "rows": found.rows,
        }
        print(
            f"{claim}: {len(found.borders)} borders, {len(found.counterexamples)} counterexamples, {found.seconds:.0f} s"
        )
    for search in record.values():
        search |= _in_words(search)
    record_file.write_text(json.dumps(record, indent=1) + "\n")
    searches = [(name, record[name]) for name, *_ in MAPS if name in record]
    rows = [f"| [{_title(search)}](#{_anchor(search)}) | {_headline(search)} |" for _, search in searches]
    PAGE.write_text("\n".join([TOP.format(rows="\n".join(rows)), *(_section(*item) for item in searches)]))


def _in_words(search: dict[str, Any]) -> dict[str, str]:
    """The sentences that the page of the claim shows too."""
    borders = [SimpleNamespace(**border) for border in search["borders"]]
    failing = sum(point.endswith("**fails at the default**.") for point in search["points"])
    return {
        "holds": where_it_holds(borders, search["default"], failing),
        "searched": searched_ranges(search["ranges"], search["default"]),
    }


def _title(search: dict[str, Any]) -> str:
    return find(search["claim"]).title + (f" (with {search['with'].replace(' = ', ' ')})" if search["with"] else "")


def _anchor(search: dict[str, Any]) -> str:
    """As the site makes it from the heading."""
    return re.sub(r"[\s_]+", "-", re.sub(r"[^\w\s-]", "", _title(search).lower())).strip("-")


def _headline(search: dict[str, Any]) -> str:
    if not search["held"]:
        return "No check holds at the default." if search["points"] else "The check at the default is undecided."
    return search["holds"] or f"No border was found for {search['searched']}."


def _section(name: str, search: dict[str, Any]) -> str:
    theory = find(search["claim"]).theory
    page = PAGES.get(theory, theory.replace("-", "_"))
    rows = [_row(**border) for border in search["borders"]]
    points = [f"- {point}" for point in search["points"]]
    held = ", ".join(f"`{code}`" for code in search["held"])
    tried = (
        f"The search tried to break {held}. Searched: {search['searched']}; "
        if held
        else "There was nothing to break. The search ended after "
    )
    return "\n".join(
        [
            f"## {_title(search)}\n\n**{_headline(search)}**\n",
            f"![Margins of `{search['claim']}` against its fields](images/borders_{name}.svg)\n",
            *([TABLE + "\n".join(rows) + "\n"] if rows else []),
            *(["At the default, or with several fields changed:\n\n" + "\n".join(points) + "\n"] if points else []),
            f"{tried}{pluralize(search['trials'], 'trial')}, {pluralize(search['rows'], 'row')}. [Its page]({page}.md).\n\n"
            f"```\n{search['command']}\n```\n",
        ]
    )


def _row(check: str, code: str, field: str, fails: str, value: float, low: float, high: float) -> str:
    side = "up to" if fails == "above" else "from"
    return f"| `{field}` | {check} (`{code}`) | {side} {float(f'{value:.3g}'):g} | {low:.4g} and {high:.4g} |"


if __name__ == "__main__":
    folder, *names = sys.argv[1:] or ["whichtoken-output-borders"]
    main(Path(folder), names or ["page"] * (folder == "page"))
