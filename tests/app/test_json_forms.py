"""The published JSON schemas are those of the files that the commands write."""

import json

import pytest
from pydantic import TypeAdapter, ValidationError
from tools.json_schemas import FORMS, json_schema, stored_schema


@pytest.mark.parametrize("name", FORMS)
def test_the_stored_schema_is_current(name):
    """After a change: `python tools/json_schemas.py`."""
    assert json.loads(stored_schema(name).read_text()) == json_schema(name)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("name", "command"),
    [("reproduce", ("reproduce", "toy/mean")), ("stress", ("stress", "toy/border", "--budget", "300rows"))],
)
def test_files_of_the_commands_are_valid(name, command, whichtoken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert whichtoken(*command, "--json", "x.json", "--quiet").returncode == 0
    written = json.loads((tmp_path / "x.json").read_text())
    TypeAdapter(FORMS[name]).validate_python(written)
    assert written["schema"] == 1
    assert set(written) == set(json_schema(name)["required"])
    with pytest.raises(ValidationError):
        TypeAdapter(FORMS[name]).validate_python({**written, "schema": 2})
