"""What every engine must satisfy: the same numbers from any number of workers, and no row lost with a worker."""

from collections import Counter

import pytest

from whichtoken.lab import reproduce
from whichtoken.lab.engines import parse_engine
from whichtoken.lab.plan import Task
from whichtoken.lab.worker import work

ENGINES = [("local", 1), ("local", 2), ("dask", 1), ("dask", 2)]
each_engine = pytest.mark.parametrize(("engine", "workers"), ENGINES, ids=lambda value: str(value))


def measured(result):
    return [(row.point, row.seed, row.measured) for row in result.rows]


@each_engine
def test_same_numbers_as_in_this_process(engine, workers, tmp_path):
    [result] = reproduce(["toy/mean"], engine=engine, workers=workers, out=tmp_path)
    here = [work(task).values for task in result.plan.tasks]
    assert [row.measured for row in result.rows] == here
    assert len(here) == 10


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_killed_worker_costs_no_row(engine, tmp_path, toys):
    overrides = {"fault": ["none", "die once"], "number": [1, 2, 3, 4]}
    [result] = reproduce(["toy/faults"], set=overrides, seeds=1, engine=engine, workers=2, out=tmp_path)
    assert (result.failed, result.missing) == (0, 0)
    assert len(result.rows) == 8
    assert toys.with_suffix(".log.died").exists()


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_point_that_always_kills_its_worker_fails_alone(engine, tmp_path):
    overrides = {"fault": ["none", "die"], "number": [1, 2]}
    [result] = reproduce(["toy/faults"], set=overrides, seeds=1, engine=engine, workers=2, out=tmp_path)
    assert Counter(row.point.fault for row in result.rows) == {"none": 2}
    assert Counter(row.point.fault for row in result.rows.failed) == {"die": 2}
    assert "the worker died" in result.rows.failed[0].message


def test_local_engine_yields_each_task_once():
    tasks = [Task("toy/mean", '{"draws":10,"factor":1.0,"method":"mean","shift":1.0}', seed) for seed in range(40)]
    finished = [task for task, _ in parse_engine("local", 2).map(tasks)]
    assert Counter(finished) == Counter(tasks)
