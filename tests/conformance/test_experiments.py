"""What every experiment must satisfy; an experiment is tested by existing."""

import json
import re
from dataclasses import asdict

import pytest
from smoke_claims import SMOKE, by_claim

from whichtoken.display.panels import panels
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Predicted, Row, Rows
from whichtoken.lab.plan import make_plan, read_point
from whichtoken.lab.record import recorded_runs
from whichtoken.lab.results import judge
from whichtoken.lab.worker import work

OWN = [experiment for experiment in experiments().values() if not experiment.id.startswith("toy/")]
each_experiment = pytest.mark.parametrize("experiment", OWN, ids=lambda experiment: experiment.id)
some_at_once = pytest.mark.parametrize("experiment", [by_claim(experiment.id, experiment) for experiment in OWN])


def test_every_theory_has_a_smoke_test():
    assert {experiment.id for experiment in OWN} >= SMOKE
    assert {id.split("/")[0] for id in SMOKE} == {experiment.id.split("/")[0] for experiment in OWN}


def test_the_record_is_about_experiments_that_exist():
    assert {experiment for experiment, _ in recorded_runs()} == {experiment.id for experiment in OWN}


@each_experiment
def test_declares_its_claim(experiment):
    folder, claim = experiment.id.split("/")
    module = type(experiment).__module__.split(".")
    assert module[-2:] == [folder.replace("-", "_"), claim.replace("-", "_")]
    assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", experiment.id)
    assert len(experiment.title) > 10
    assert len(experiment.claim) > 30
    assert len(experiment.source) > 10
    assert {"quick", "full"} <= set(experiment.presets) <= {"quick", "full", "paper", "map"}
    assert set(experiment.expected) <= set(experiment.presets)
    assert experiment.method_fields <= set(vars(experiment.point_type()))


@each_experiment
def test_points_survive_json(experiment):
    for preset in experiment.presets:
        for text, point in make_plan(experiment, preset).points.items():
            assert canonical_json(asdict(point)) == text
            assert read_point(experiment, text) == point


@pytest.mark.slow
@some_at_once
def test_smallest_point_is_deterministic_and_can_be_judged_and_drawn(experiment):
    plan = make_plan(experiment, "quick", seeds=1)
    task = plan.tasks[0]
    first, second = work(task), work(task)
    assert first.status == "ok", first.message
    assert canonical_json(first.values) == canonical_json(second.values)
    assert json.loads(json.dumps(first.values)) == first.values

    stored = json.loads(canonical_json(first.values))
    row = Row(
        plan.points[task.point], 0, "ok", "", stored, first.seconds, "0", experiment.predict(plan.points[task.point])
    )
    assert all(isinstance(item, Predicted) for item in row.predicted.values())
    result = judge(plan, {task: row})
    codes = [verdict.code for verdict in result.verdicts]
    assert not result.fault
    # its smallest point has few tokens and one size of context: slopes and constants need more
    assert codes or experiment.id == "attention-regression/limit"
    assert len(set(codes)) == len(codes)
    once = panels(lambda figure: experiment.draw(Rows([row]), figure), "a")
    assert once == panels(lambda figure: experiment.draw(Rows([row]), figure), "a")


@each_experiment
def test_can_be_judged_without_a_single_row(experiment):
    for verdict in judge(make_plan(experiment, "quick"), {}).verdicts:
        assert verdict.state in ("undecided", "not-run")
