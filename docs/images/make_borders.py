"""Draw where the headline statements stop holding, and write the page about it.

    python docs/images/make_borders.py [FOLDER [NAME ...]]

Rows are stored in FOLDER, so a second call only draws. The budgets are numbers of rows, so every machine finds the same; together
they take about half an hour of processor time. With names of pictures, the other parts of the page stay as they are.
"""

import json
import shlex
import sys
from pathlib import Path

from whichtoken.app.pages.borders import draw_borders, searched_ranges
from whichtoken.display.panels import panels
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
    ("ablation_unpenalized", *ABLATION, {"start": "unbalanced", "variant": "no-gram-no-penalty"}),
    ("ablation_penalized", *ABLATION, {"start": "unbalanced"}),
    ("tuples", "trained-embeddings/tuples", "240rows", (), ("certainty", "steps"), {}),
    ("atlas", "optimizers/margins", "400rows", ("steps", "dim"), (), {}),
)  # fmt: skip
PAGES = {"optimizers": "atlas"}  # of a theory, where its page has another name
TOP = """# Where a theorem stops

![The part of two fields in which attention is exponentially small, and the border](images/borders_group_sparse.svg)

*Does it hold at my size, and what if an assumption fails? `whichtoken stress CLAIM` searches for the answer. The picture shows
the [group-sparse](group_sparse.md) task: circles mark learning rates and numbers of groups at which attention on the other groups
is exponentially small; crosses mark those at which it is not.*

`python docs/images/make_borders.py` writes this page from searches with the budgets shown. A larger budget finds more borders,
and narrower ones. Each reported failure was seen again on fresh repeats, at a level that all reports of a search share: if a
claim were true wherever it was tried, the chance of any report about it would be at most 5 %. A search that finds nothing says
where it has looked; it proves nothing about the rest. We found these borders ourselves. No paper makes a statement about these
sizes, and a border outside a paper's hypotheses is no evidence against the paper.

[Researchers](researcher.md) says how the search works, and [adding things](extending.md) how to search for the borders of your
own claim.
"""


def main(folder: Path, wanted: list[str]) -> None:
    record_file = IMAGES.parents[1] / "record" / "borders.json"
    record = json.loads(record_file.read_text()) if wanted else {}
    kept = (
        {part.split("\n")[0]: part.rstrip("\n") + "\n" for part in PAGE.read_text().split("\n## ")[1:]}
        if wanted
        else {}
    )
    parts = [TOP]
    for name, claim, budget, fields, map_fields, overrides in MAPS:
        changed = ", ".join(f"{field} = {value}" for field, value in overrides.items())
        title = find(claim).title + (f": {changed}" if changed else "")
        if wanted and name not in wanted:
            if title in kept:
                parts.append(f"## {kept[title]}")
            continue
        found = stress(
            claim, budget, fields=fields or None, map_fields=map_fields, overrides=overrides, out=folder / name
        )
        drawn = panels(lambda figure, found=found: draw_borders(found, figure), claim, f"Where {claim} stops")
        (IMAGES / f"borders_{name}.svg").write_text(drawn.standalone())
        options = [part for field in fields for part in ("--field", field)]
        options += ["--map", ",".join(map_fields)] if map_fields else []
        options += [part for field, value in overrides.items() for part in ("--set", f"{field}={value}")]
        lines = [f"- `{item.code}` ({item.claim}): **{item}**." for item in (*found.borders, *found.counterexamples)]
        held = ", ".join(f"`{code}`" for code in found.held)
        command = shlex.join(["whichtoken", "stress", claim, *options, "--budget", budget])
        sentences = [f"{item.claim}: {item}." for item in (*found.borders, *found.counterexamples)]
        searched = searched_ranges(found)
        record[name] = {
            "claim": claim,
            "with": changed,
            "sentences": sentences,
            "searched": searched,
            "command": command,
        }
        theory = find(claim).theory
        parts.append(
            f"## {title}\n\n![Margins of `{claim}` against its fields](images/borders_{name}.svg)\n\n"
            f"The search tried to break {held}.\n\n"
            + "\n".join(lines or ["- The search found nothing that breaks it."])
            + "\n\n"
            f"Searched: {searched}; {len(found.trials)} trials, {found.rows} rows. "
            f"[Its page]({PAGES.get(theory, theory.replace('-', '_'))}.md).\n\n"
            f"```\n{command}\n```\n"
        )
        print(
            f"{claim}: {len(found.borders)} borders, {len(found.counterexamples)} counterexamples, {found.seconds:.0f} s"
        )
    PAGE.write_text("\n".join(parts))
    record_file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "whichtoken-output-borders"), sys.argv[2:])
