"""Presets, overrides and random streams."""

import os
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.errors import UsageError
from whichtoken.lab.canonical import canonical_json, random_stream
from whichtoken.lab.discovery import experiments, faults, find
from whichtoken.lab.plan import check_size, make_plan


def plan(**options):
    return make_plan(find("toy/mean"), **options)


def test_override_replaces_an_axis_and_a_list_makes_a_grid():
    points = plan(overrides={"draws": "7", "shift": "1,2.5"}).points.values()
    assert [(point.draws, point.shift) for point in points] == [(7, 1.0), (7, 2.5)]


def test_command_line_text_and_python_values_give_the_same_points():
    assert plan(overrides={"shift": "2,3"}).tasks == plan(overrides={"shift": [2, 3.0]}).tasks


def test_seeds_are_repeat_indices():
    assert [task.seed for task in plan(overrides={"draws": 7}, seeds=3).tasks] == [0, 1, 2]


def test_expected_states_apply_only_as_declared():
    assert plan().as_declared
    assert not plan(seeds=5).as_declared
    assert not plan(overrides={"draws": 400}).as_declared


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"overrides": {"drwas": 3}},
            "unknown field 'drwas' for toy/mean; did you mean 'draws'? fields: draws, factor, method, shift",
        ),
        ({"overrides": {"shift": "nan"}}, "shift='nan' is not accepted (float): Input should be a finite number"),
        ({"overrides": {"shift": float("inf")}}, "shift=inf is not accepted (float): Input should be a finite number"),
        ({"overrides": {"draws": "many"}}, "draws='many' is not accepted (int)"),
        ({"preset": "fulll"}, "unknown preset 'fulll' for toy/mean; did you mean 'full'? presets: full, quick"),
        ({"seeds": 0}, "seeds=0 must be a whole number of at least 1"),
        ({"seeds": 1.5}, "seeds=1.5 must be a whole number of at least 1"),
        ({"seeds": 2_000_000_000}, "toy/mean: 4,000,000,000 rows are more than the 1,000,000 of one run; choose fewer"),
        (
            {"overrides": {"draws": list(range(1000)), "shift": list(range(1001))}},
            "5,005,000 rows are more than the 1,000,000",
        ),
    ],
)
def test_wrong_requests_are_one_sentence(options, sentence):
    with pytest.raises(UsageError) as error:
        plan(**options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_runs_are_counted_without_making_their_points():
    for options in ({}, {"preset": "full"}, {"seeds": 7}, {"overrides": {"shift": "1,2,3", "draws": 9}}):
        assert plan(**options).size == len(plan(**options).tasks)


def test_many_large_runs_are_refused_together():
    with pytest.raises(UsageError, match=r"^2 experiments: 1,400,000 rows are more than the 1,000,000 of one run"):
        check_size([plan(seeds=350_000), plan(seeds=350_000)])


def test_unknown_experiment_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'toy/mean'"):
        find("mean")


def test_methods_see_the_same_data_and_problems_do_not():
    experiment = find("toy/mean")
    mean, peak = plan(overrides={"method": "mean,max", "draws": 9}).points.values()
    (other,) = plan(overrides={"draws": 10}).points.values()
    draw = [random_stream(experiment.id, 0, experiment.problem(point)).random() for point in (mean, peak, other)]
    assert draw[0] == draw[1] != draw[2]


def test_stream_is_pinned():
    """Stored results are only comparable while this number stays."""
    stream = random_stream("toy/mean", 3, {"draws": 9, "shift": 1.0})
    assert stream.integers(2**32, size=2).tolist() == [2748716727, 3449181518]


@given(
    st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text())
)
def test_canonical_json_ignores_order(fields):
    assert canonical_json(fields) == canonical_json(dict(reversed(fields.items())))


def test_canonical_json_knows_numpy_and_refuses_nan():
    assert canonical_json({"b": np.float64(0.1), "a": np.arange(2)}) == '{"a":[0,1],"b":0.1}'
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json({"a": np.nan})


def folder_of_claims(tmp_path, monkeypatch, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    folders = dict.fromkeys(str((tmp_path / name).parent) for name in files)
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", os.pathsep.join(folders))
    return experiments()


BASE = """'''{title}

Claim   {title} holds.
Source  None.
'''
from dataclasses import dataclass
from whichtoken.lab import Experiment, Grid

@dataclass(frozen=True)
class Point:
    size: int = 1

class Shared(Experiment[Point]):
    presets = {{"quick": (Grid(seeds=1),)}}

    def run(self, point, rng):
        return {{}}

    def judge(self, rows):
        return iter(())

    def draw(self, rows, figure):
        pass

class Claimed(Shared):
    id = "{id}"
"""


def test_files_of_equal_name_and_a_shared_base_are_told_apart(tmp_path, monkeypatch):
    texts = {f"{folder}/toy.py": BASE.format(id=f"own/{folder}", title=f"Toy {folder}") for folder in ("one", "two")}
    found = folder_of_claims(tmp_path, monkeypatch, texts)
    assert [found[f"own/{name}"].title for name in ("one", "two")] == ["Toy one", "Toy two"]


def test_second_experiment_of_an_id_is_a_fault_of_its_file(tmp_path, monkeypatch):
    found = folder_of_claims(
        tmp_path, monkeypatch, {"own/a.py": BASE.format(id="mirror-descent/direction", title="Mine")}
    )
    [fault] = faults()
    assert fault.name == "a.py"
    assert re.fullmatch(
        r"two experiments are called 'mirror-descent/direction'; rename the one in .*a\.py", fault.sentence
    )
    assert found["mirror-descent/direction"].title != "Mine"
