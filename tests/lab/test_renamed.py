"""Names that have changed: today's in memory, those a claim was born with on disk and in its random streams."""

import json
import lzma
import sqlite3
import tomllib
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

import whichtoken
from whichtoken.errors import UsageError
from whichtoken.files import LEDGER_NAME
from whichtoken.lab import reproduce
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.discovery import experiments, find
from whichtoken.lab.ledger import TABLES, Ledger
from whichtoken.lab.plan import RunTask, make_plan
from whichtoken.lab.record import record_folder, recorded_ledger, recorded_runs
from whichtoken.lab.renamed import _all_names, born_names, current_names
from whichtoken.lab.results import stored_results
from whichtoken.lab.worker import work

RENAMED = sorted(_all_names()[0])
# an id, a field and a value of a point that have changed, each with words of codes
STORED = ["group-sparse/initialization", "attention-regression/limit", "attention-regression/ablation"]


@pytest.mark.parametrize("id", RENAMED)
def test_table_lists_names_that_exist_and_translates_back(id):
    claim, born, current = experiments()[id], born_names(id), current_names(born_names(id).id)
    assert current.id == id
    codes = {code for states in claim.expected.values() for code in states}
    assert {word for word in born.words if not any(word in code for code in codes)} == set()
    assert {current.code(born.code(code)) for code in codes} == codes
    assert set(born.fields) | set(born.values) <= set(vars(claim.point_type()))
    for name, values in born.values.items():
        make_plan(claim, overrides={name: list(values)})  # accepted as they are called today
    for preset in claim.presets:
        for point in make_plan(claim, preset).points.values():
            assert current.point(born.point(vars(point))) == vars(point)


@pytest.mark.parametrize("id", STORED)
def test_renamed_claim_finds_the_rows_of_an_old_ledger(id, tmp_path, monkeypatch):
    packed = record_folder() / "rows" / f"{born_names(id).id}.sqlite.xz"
    (tmp_path / LEDGER_NAME).write_bytes(lzma.decompress(packed.read_bytes()))
    monkeypatch.setattr("whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: pytest.fail("computes rows"))
    [result] = reproduce([id], "full", out=tmp_path, workers=1)
    assert not result.missing
    assert {verdict.code: verdict.state for verdict in result.verdicts} == recorded_runs()[id, "full"].states
    with Ledger.reading(tmp_path / LEDGER_NAME) as ledger:
        assert {stored.id for stored in stored_results(ledger)} == {id}


@pytest.mark.parametrize("id", STORED)
def test_file_has_the_names_that_the_claim_was_born_with(id, tmp_path, no_workers):
    claim, born = find(id), born_names(id)
    values = {name: next(iter(items)) for name, items in born.values.items()} | dict.fromkeys(born.fields, True)
    [grid, *_] = claim.presets["quick"]
    small = {name: axis[:1] for name, axis in grid.axes.items()} | values
    first = reproduce([id], overrides=small, seeds=1, out=tmp_path)
    with closing(sqlite3.connect(tmp_path / LEDGER_NAME)) as connection:
        texts = str([connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES])
    old = [born.id, *born.fields.values(), *(v[values[n]] for n, v in born.values.items())]
    assert [name for name in old if name not in texts] == []
    assert [name for name in {id, *born.fields} - set(old) if f"'{name}'" in texts or f'"{name}"' in texts] == []
    with Ledger.reading(tmp_path / LEDGER_NAME) as ledger:
        [found] = stored_results(ledger)
    assert found.plan.overrides == first[0].plan.overrides
    assert found.verdicts == first[0].verdicts
    assert [asdict(row) for row in found.rows] == [asdict(row) for row in first[0].rows]


def test_stream_is_that_of_the_names_the_claim_was_born_with():
    """A row that was computed before its claim and a field of its points were renamed comes out again."""
    with recorded_ledger("attention-regression/limit") as ledger:
        rows = [row for row in ledger.records(["attention-regression/limit"]) if row["point"]["centered"]]
    row = min(rows, key=lambda row: row["seconds"])
    outcome = work(RunTask("attention-regression/limit", canonical_json(row["point"]), row["seed"]))
    assert json.loads(canonical_json(outcome.values))["error"] == pytest.approx(row["measured"]["error"], rel=1e-6)


def test_a_field_that_came_later_is_left_out_where_it_has_the_old_value_and_only_there():
    born, current = (of("trained-embeddings/theorem") for of in (born_names, current_names))
    assert born.point({"pairs": 8, "equal": True}) == {"pairs": 8}
    assert born.point({"pairs": 8, "equal": False}) == {"pairs": 8, "equal": False}
    assert current.point({"pairs": 8}) == {"pairs": 8, "equal": True}
    assert current.point({"pairs": 8, "equal": False}) == {"pairs": 8, "equal": False}
    assert current.overrides({"pairs": [8]}) == {"pairs": [8]}  # these are some fields, not all


def test_old_id_is_refused_with_the_new_one():
    with pytest.raises(UsageError, match="renamed: use optimizers/adam"):
        find("optimisers/adam")


def test_no_text_of_the_package_uses_an_old_id():
    package = Path(whichtoken.__file__).parent
    old = tomllib.loads((package / "claims" / "renamed.toml").read_text())["ids"].values()
    texts = {path: path.read_text() for kind in ("py", "html", "toml", "js") for path in package.rglob(f"*.{kind}")}
    assert [path for path, text in texts.items() for id in old if id in text and path.name != "renamed.toml"] == []


def test_a_measured_quantity_is_read_under_its_name_of_today():
    id, (new, old) = "group-sparse/overlap", ("favored", born_names("group-sparse/overlap").measured["favored"])
    with recorded_ledger(id) as ledger:
        measured = [row["measured"] for row in ledger.records([id]) if row["status"] == "ok"]
    assert measured
    assert all(new in values and old not in values for values in measured)
    assert born_names(id).measurement({new: True, "loss": 0.1}) == {old: True, "loss": 0.1}
