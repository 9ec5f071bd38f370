"""Jobs outlive pages, tabs and servers, and a job that dies takes nothing with it."""

import json
import os
import shutil
import signal
import sys
import time
from urllib.request import urlopen

import pytest

from whichtoken.app.workbench.jobs import JobEnd, JobFolder, JobRequest, Jobs, known_jobs, work_on
from whichtoken.app.workbench.settings import MOST_WAITING
from whichtoken.errors import UsageError

# works on `steps` steps of `pause` seconds, and takes up where it was stopped, as a run does
STUB = """
import signal, sys, time
from pathlib import Path
from whichtoken.app.workbench.jobs import JobEnd, JobFolder
from whichtoken.app.workbench.jobs import _stop
signal.signal(signal.SIGTERM, _stop)
job = JobFolder(Path(sys.argv[1]))
steps, pause = job.request.arguments["steps"], job.request.arguments["pause"]
with job.alive():
    try:
        for step in range(len(list(job.progress())), steps):
            time.sleep(pause)
            job.report({"done": step + 1, "total": steps})
        job.finish(JobEnd("finished"))
    except KeyboardInterrupt:
        job.finish(JobEnd("cancelled"))
"""


def until(true, seconds=30.0):
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def stub(steps=3, pause=0.01):
    return JobRequest("claim", "stub", {"steps": steps, "pause": pause})


@pytest.fixture
def jobs(tmp_path):
    (tmp_path / "stub.py").write_text(STUB)
    made = Jobs(tmp_path / "jobs", [sys.executable, str(tmp_path / "stub.py")])
    yield made
    made.close()


def ended(jobs, id):
    return until(lambda: not (view := jobs.view(id)).is_open and view)


def test_a_cancelled_job_goes_on_from_where_it_was(jobs):
    id = jobs.start(stub(steps=40, pause=0.05))
    until(lambda: list(jobs.find(id).progress()))
    jobs.cancel(id)
    assert ended(jobs, id).state == "cancelled"
    assert len(list(jobs.find(id).progress())) < 40
    jobs.resume(id)
    assert ended(jobs, id).state == "finished"
    assert [line["done"] for _, line in jobs.find(id).progress()] == list(range(1, 41))


def test_a_killed_job_says_so_and_the_next_one_runs(jobs):
    first, second = jobs.start(stub(pause=60)), jobs.start(stub())
    assert jobs.view(second).state == "waiting"
    os.kill(until(lambda: jobs.find(first).pid), signal.SIGKILL)
    view = ended(jobs, first)
    assert (view.state, "SIGKILL" in view.message) == ("failed", True)
    assert ended(jobs, second).state == "finished"


def test_a_job_that_cannot_begin_says_why(tmp_path):
    jobs = Jobs(tmp_path / "jobs", [sys.executable, "-c", "raise SystemExit('no such thing')"])
    view = ended(jobs, jobs.start(stub()))
    assert (view.state, "no such thing" in view.message) == ("failed", True)


def test_a_waiting_job_whose_folder_is_gone_holds_up_nobody(jobs):
    first, *lost, last = [jobs.start(stub(pause=0.2)) for _ in range(5)]
    for id in lost:
        shutil.rmtree(jobs.home / id)
    assert ended(jobs, last).state == "finished"
    assert jobs.view(first).state == "finished"
    assert {view.id for view in jobs.views()} == {first, last}
    jobs.cancel(last)  # and nothing is left of them in the queue
    assert ended(jobs, jobs.start(stub())).state == "finished"


def test_a_running_job_whose_folder_is_gone_holds_up_nobody(jobs):
    first, second = jobs.start(stub(steps=3, pause=0.3)), jobs.start(stub())
    until(lambda: list(jobs.find(first).progress()))
    shutil.rmtree(jobs.home / first)
    assert ended(jobs, second).state == "finished"


def test_a_waiting_job_is_cancelled_even_without_its_folder(jobs):
    jobs.start(stub(pause=60))
    second = jobs.start(stub())
    shutil.rmtree(jobs.home / second)
    jobs.cancel(second)
    with pytest.raises(KeyError):
        jobs.find(second)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 1], ids=["named", "nameless"])
def test_whatever_signal_kills_a_job_the_next_one_runs(jobs, number):
    first, second = jobs.start(stub(pause=60)), jobs.start(stub())
    os.kill(until(lambda: jobs.find(first).pid), number)
    view = ended(jobs, first)
    assert (view.state, "killed" in view.message) == ("failed", True)
    assert ended(jobs, second).state == "finished"


def test_stopping_the_server_interrupts_what_runs(jobs):
    id = jobs.start(stub(pause=60))
    until(lambda: jobs.find(id).pid)
    jobs.close()
    assert jobs.view(id).state == "interrupted"
    with pytest.raises(UsageError, match="stopping"):
        jobs.start(stub())


def test_a_waiting_job_is_cancelled_at_once(jobs, tmp_path):
    first = jobs.start(stub(pause=60))
    second = jobs.start(stub())
    jobs.cancel(second)
    assert jobs.view(second).state == "cancelled"
    jobs.cancel(first)
    assert ended(jobs, first).state == "cancelled"


def test_the_queue_has_an_end(jobs, tmp_path):
    for _ in range(MOST_WAITING + 1):
        jobs.start(stub(pause=60))
    with pytest.raises(UsageError, match="waiting already"):
        jobs.start(stub())


def test_a_job_without_an_end_was_interrupted(tmp_path):
    """As a server finds it that is started after the machine went down."""
    JobFolder.new(tmp_path, stub())
    [view] = Jobs(tmp_path).views()
    assert (view.state, view.is_open) == ("interrupted", False)


def test_a_job_of_another_server_is_seen_to_live(tmp_path):
    job = JobFolder.new(tmp_path, stub())
    with job.alive():
        assert Jobs(tmp_path).view(job.id).state == "running"
        assert job.pid == os.getpid()
    assert Jobs(tmp_path).view(job.id).state == "interrupted"
    assert job.pid is None


def test_what_lies_beside_jobs_is_not_one(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "20260101-000000-abcdef").mkdir()
    assert known_jobs(tmp_path) == {}
    with pytest.raises(KeyError):
        Jobs(tmp_path).find("../../etc")


def test_a_damaged_job_does_not_hide_the_others(tmp_path):
    good, bad = JobFolder.new(tmp_path, stub()), JobFolder.new(tmp_path, stub())
    (bad.path / "request.json").write_text("{")
    assert [view.id for view in Jobs(tmp_path).views()] == [good.id]


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "fit"}'])
def test_the_address_of_a_damaged_job_leads_nowhere(client, settings, text):
    job = JobFolder.new(settings.home / "jobs", stub())
    (job.path / "request.json").write_text(text)
    for page in ("", "/state", "/log", "/events"):
        assert client.get(f"/jobs/{job.id}{page}").status_code == 404


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        Jobs(tmp_path / "file" / "jobs").start(stub())


def test_half_a_line_of_progress_waits_for_its_end(tmp_path):
    job = JobFolder.new(tmp_path, stub())
    job.report({"done": 1})
    with (job.path / "progress.jsonl").open("a") as file:
        file.write('{"done": ')
    [(offset, progress)] = job.progress()
    assert progress == {"done": 1}
    assert list(job.progress(offset)) == []


def test_a_full_disk_fails_the_job_and_not_the_server(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "whichtoken.app.workbench.jobs.Jobs._start_process", lambda *_: (_ for _ in ()).throw(OSError(28, "No space"))
    )
    view = jobs.view(jobs.start(stub()))
    assert view.state == "failed"
    assert "no space" in view.message.lower()


def test_an_end_that_is_damaged_counts_as_none(tmp_path):
    job = JobFolder.new(tmp_path, stub())
    job.finish(JobEnd("finished"))
    (job.path / "end.json").write_text("{")
    assert Jobs(tmp_path).view(job.id).state == "interrupted"


def test_events_go_on_from_where_a_reader_stopped(client, settings):
    job = JobFolder.new(settings.home / "jobs", stub())
    for done in range(3):
        job.report({"done": done})
    job.finish(JobEnd("finished", "all"))
    whole = client.get(f"/jobs/{job.id}/events").text
    assert whole.count("event: progress") == 3
    place = whole.split("id: ")[2].split("\n")[0]
    rest = client.get(f"/jobs/{job.id}/events", headers={"last-event-id": place}).text
    assert rest.count("event: progress") == 1
    assert json.loads(rest.split("event: end\ndata: ")[1].split("\n")[0])["state"] == "finished"


def test_what_a_job_notes_beside_its_result_is_on_its_page(client, settings):
    job = JobFolder.new(settings.home / "jobs", JobRequest("pilot", "pilot of mine", {}))
    job.finish(JobEnd("finished", "", {"lines": ["With 60 bags"], "notes": ["3 gaps <were> filled"], "curve": {}}))
    text = client.get(f"/jobs/{job.id}").text
    assert "With 60 bags" in text
    assert "3 gaps &lt;were&gt; filled" in text


@pytest.mark.parametrize("kind", ["fit", "pilot", "inspect"])
def test_a_job_calls_a_file_that_was_handed_over_the_file(client, monkeypatch, kind, tmp_path):
    """Its name on the server says nothing to the user, whatever room it was handed over in."""
    asked = []
    monkeypatch.setattr(client.app.state.jobs, "start", lambda request: asked.append(request) or "none")
    path = client.app.state.uploads.keep(b"a,b\n1,2\n", ".csv")
    monkeypatch.setattr(client.app.state.uploads, "keep", lambda *_: path)
    monkeypatch.setattr("whichtoken.inspection.loading.check_folder", lambda folder: None)
    upload = {"file": ("mine.csv", b"a,b\n1,2\n")}
    if kind == "fit":
        client.post("/data/fit", data={"file": path.name, "label": "b", "column": "c"})
    else:
        address = {"pilot": "/planner/pilot", "inspect": "/inspect/start"}[kind]
        client.post(address, files={**upload, "folder": (None, str(tmp_path))})
    [request] = asked
    job = JobFolder.new(tmp_path, request)
    work_on(job.path)
    assert job.end.state == "failed"
    assert job.end.message.startswith("the file has no column")


@pytest.mark.process
def test_a_server_that_is_killed_leaves_a_job_that_the_next_one_shows(served, jobs):
    """kill -9 in mid-job: the job goes on by itself, and the next server shows how it ended."""
    jobs.home = served.out / "workbench" / "jobs"
    id = jobs.start(stub(steps=20, pause=0.1))
    until(lambda: list(jobs.find(id).progress()))
    assert json.loads(urlopen(f"{served.address}/jobs/{id}/state").read())["state"] == "running"
    served.stop(signal.SIGKILL)
    served.start()
    assert json.loads(urlopen(f"{served.address}/jobs/{id}/state").read())["state"] in ("running", "finished")
    assert ended(jobs, id).state == "finished"
    assert "finished" in urlopen(f"{served.address}/jobs/{id}").read().decode()
