"""Files of the folder that somebody else wrote, an older version left or a disk damaged: no page breaks of one of them."""

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from whichtoken.app.workbench.jobs import JobEnd, JobFolder, JobRequest
from whichtoken.app.workbench.pages import NAVIGATION
from whichtoken.app.workbench.settings import ServerSettings
from whichtoken.app.workbench.uploads import Uploads
from whichtoken.errors import UsageError
from whichtoken.files import LEDGER_NAME
from whichtoken.lab.discovery import experiments
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.record import RunSummary, recorded_runs

HTML = {"accept": "text/html"}
DEEP = "[" * 100_000
REQUEST = {
    "kind": "claim",
    "title": "odd",
    "arguments": {"id": "toy/mean", "preset": "quick"},
    "created": "",
    "page": "",
}
VALUES = (None, 3, -1, 1e400, "x", "\ud800", "\u202e", "", [], [[]], {}, {"a": [None]}, True)


def variants(good):
    """A record with each of its fields, and of the fields of those, replaced by odd values or left out."""
    for name in good:
        yield {key: value for key, value in good.items() if key != name}
        yield from ({**good, name: value} for value in VALUES)
        if isinstance(good[name], dict):
            yield from ({**good, name: inner} for inner in variants(good[name]))


def texts(good):
    """What a file may hold in place of a record."""
    yield from ("", "{", "null", "3", "[]", '"x"', DEEP, '{"a": NaN}', "\0", "\ufeff{}")
    yield from (json.dumps(record) for record in variants(good))


def no_fault(client, *paths):
    for path in paths:
        answer = client.get(path, headers=HTML)
        assert answer.status_code < 500, (path, answer.text)


def test_an_odd_request_of_a_job_breaks_no_page(client, settings):
    good = JobFolder.new(settings.home / "jobs", JobRequest("claim", "a good one", REQUEST["arguments"]))
    odd = JobFolder.new(settings.home / "jobs", JobRequest("claim", "odd", {}))
    for text in texts(REQUEST):
        (odd.path / "request.json").write_text(text)
        no_fault(client, f"/jobs/{odd.id}", f"/jobs/{odd.id}/state", f"/jobs/{odd.id}/log", "/claims/toy/mean")
        assert good.id in client.get("/jobs").text
    no_fault(client, *NAVIGATION)


def test_an_odd_end_of_a_job_breaks_no_page(client, settings):
    verdict = asdict(recorded_runs()["sparse-tokens/errors", "quick"].verdicts[0])
    end = {"state": "finished", "message": "", "page": "", "result": {"verdicts": [verdict], "lines": [], "notes": []}}
    for kind in ("claim", "pilot"):
        job = JobFolder.new(settings.home / "jobs", JobRequest(kind, "a job", REQUEST["arguments"]))
        for text in texts(end):
            (job.path / "end.json").write_text(text)
            no_fault(client, f"/jobs/{job.id}", f"/jobs/{job.id}/state")
        no_fault(client, f"/jobs/{job.id}/events", "/jobs")


def test_odd_verdicts_of_a_job_leave_the_others(client, settings):
    verdict = asdict(recorded_runs()["sparse-tokens/errors", "quick"].verdicts[0])
    job = JobFolder.new(settings.home / "jobs", JobRequest("claim", "a job", REQUEST["arguments"]))
    for odd in variants(verdict):
        job.finish(JobEnd("finished"))
        end = {"state": "finished", "result": {"verdicts": [odd, {**verdict, "code": "the.good.one"}]}}
        (job.path / "end.json").write_text(json.dumps(end).replace("Infinity", "0").replace("\\ud800", ""))
        answer = client.get(f"/jobs/{job.id}", headers=HTML)
        assert answer.status_code == 200
        assert "the.good.one" in answer.text


def test_odd_lines_of_progress_are_passed_over(client, settings):
    job = JobFolder.new(settings.home / "jobs", JobRequest("claim", "a job", {}))
    job.finish(JobEnd("finished"))
    lines = ["3", "[]", "null", "{", DEEP, '{"done": NaN}', '{"done": 1e999}', '{"done": 7}']
    (job.path / "progress.jsonl").write_text("\n".join(lines) + "\n")
    text = client.get(f"/jobs/{job.id}/events").text
    assert text.count("event: progress") == 1
    assert '{"done": 7}' in text
    assert "event: end" in text


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "folder", "device"]
)
def test_what_is_no_file_in_a_folder_of_a_job_or_model_is_passed_over(open_client, out, make):
    """A pipe that nobody writes to would hold a thread of the server for good."""
    client = open_client(ServerSettings(out))
    for name in ("request.json", "end.json", "progress.jsonl", "log.txt", "pid"):
        job = JobFolder.new(out / "workbench" / "jobs", JobRequest("claim", "a job", {}))
        (job.path / name).unlink(missing_ok=True)
        make(job.path / name)
        no_fault(client, f"/jobs/{job.id}", f"/jobs/{job.id}/state", f"/jobs/{job.id}/log", "/jobs", "/data")
    for name in ("documents.json", "importance.json", "explainer.json", "card.json"):
        (out / "workbench" / "models" / "demo" / name).unlink()
        make(out / "workbench" / "models" / "demo" / name)
        no_fault(client, "/data/models/demo", "/data/models/demo/explainer.json", "/data")


@pytest.mark.parametrize(
    "page",
    ["javascript:alert(1)", "JavaScript:alert(1)", "//evil.example/", "/\\evil.example", "https://evil.example/",
     "data:text/html,x", " /jobs", "/jobs\n", "jobs", "/a//evil"],
)  # fmt: skip
def test_a_job_links_to_pages_of_this_server_alone(client, settings, page):
    for job, end in (
        (JobRequest("claim", "a job", {}, page=page), JobEnd("finished")),
        (JobRequest("fit", "a job", {}), JobEnd("finished", page=page)),
    ):
        made = JobFolder.new(settings.home / "jobs", job)
        made.finish(end)
        assert "See the result" not in client.get(f"/jobs/{made.id}").text
        assert client.get(f"/jobs/{made.id}/state").json()["page"] == ""


def test_a_job_links_to_its_own_result(client, settings):
    for page in ("/claims/toy/mean", "/data/models/m-1f2e", "/inspect/20260101-000000-abcdef"):
        made = JobFolder.new(settings.home / "jobs", JobRequest("claim", "a job", {}, page=page))
        made.finish(JobEnd("finished"))
        assert f'href="{page}"' in client.get(f"/jobs/{made.id}").text


def test_a_number_that_stands_for_many_processes_is_no_job(tmp_path):
    job = JobFolder.new(tmp_path, JobRequest("claim", "a job", {}))
    with job.alive():
        for text in ("-1", "0", "1", "-5", "x", "", "9" * 5000):
            (job.path / "pid").write_text(text)
            assert job.pid is None or job.pid > 1


@pytest.mark.slow
def test_an_odd_model_card_breaks_no_page_and_hides_no_other(open_client, out):
    client = open_client(ServerSettings(out))
    models = out / "workbench" / "models"
    card = json.loads((models / "demo" / "card.json").read_text())
    shutil.copytree(models / "demo", models / "odd")
    for text in texts({**card, "id": "odd"}):
        (models / "odd" / "card.json").write_text(text)
        answer = client.get("/data", headers=HTML)
        assert answer.status_code == 200, (text[:3000], answer.text)
        assert "/data/models/demo" in answer.text
        if "/data/models/odd" in answer.text:
            answer = client.get("/data/models/odd", headers=HTML)
            assert answer.status_code < 500, (text[:3000], answer.text)


@pytest.mark.parametrize("data", ["../../../secret.csv", "/etc/passwd", "..", "model/../../demo/data.csv"])
def test_a_model_card_names_no_file_outside_its_folder(open_client, out, data):
    path = out / "workbench" / "models" / "demo" / "card.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": data}))
    assert open_client(ServerSettings(out)).get("/data/models/demo/predictions.csv").status_code == 404


@pytest.mark.parametrize("name", ["documents.json", "importance.json"])
def test_odd_results_beside_a_model_are_computed_again(open_client, out, name):
    client = open_client(ServerSettings(out))
    path = out / "workbench" / "models" / "demo" / name
    good = json.loads(path.read_text())
    for found in (None, 3, [], [3], {}, [{"text": 3}], {"columns": 3, "rows": [], "total": 0}, DEEP):
        if found == good["found"] or (name == "documents.json" and found == []):
            continue
        path.write_text(json.dumps({**good, "found": found}))
        folder = path.parent.rename(path.parent.with_name(f"demo-{abs(hash(str(found)[:9])) % 10**6}"))
        card = json.loads((folder / "card.json").read_text())
        (folder / "card.json").write_text(json.dumps({**card, "id": folder.name}))
        assert client.get(f"/data/models/{folder.name}", headers=HTML).status_code == 200
        assert json.loads((folder / name).read_text())["found"] == good["found"]
        folder.rename(path.parent)


@pytest.mark.parametrize("odd", ["", "3", "{", DEEP, '{"a": 1} x'], ids=["nothing", "number", "half", "deep", "more"])
def test_an_odd_explainer_beside_a_model_is_packed_again(open_client, out, odd):
    client = open_client(ServerSettings(out))
    path = out / "workbench" / "models" / "demo" / "explainer.json"
    created = path.read_text("utf-8").partition("\n")[0]
    path.write_text(f"{created}\n{odd}", "utf-8")
    assert client.get("/data/models/demo/explainer.json").json()["classes"] == ["blame", "praise"]


def put_odd_verdicts(ledger, run, verdicts):
    """Verdicts as another version might have stored them."""
    version = experiments()[run.id].version
    ledger._insert("verdicts", (*run.key, run.started, version, json.dumps(verdicts), "", run.package_version))


@pytest.mark.slow
def test_an_odd_verdict_of_the_results_is_said_and_breaks_no_page(client, settings):
    id = "sparse-tokens/errors"
    verdict = asdict(recorded_runs()[id, "quick"].verdicts[0])
    for number, odd in enumerate(variants(verdict)):
        if (
            not isinstance(odd.get("code"), str)
            or "state" not in odd
            or odd.get("theory") == 1e400
            or 1e400 in odd.values()
        ):
            continue  # which the results file itself refuses
        odd = {name: value.replace("\ud800", "?") if isinstance(value, str) else value for name, value in odd.items()}
        run = RunSummary(id, "quick", started=f"2026-01-01T00:00:{number:02d}")
        with Ledger.writing(settings.out / LEDGER_NAME) as ledger:
            ledger.put_run(run)
            put_odd_verdicts(ledger, run, [odd, {**verdict, "code": "the.good.one"}])
        answer = client.get(f"/claims/{id}", headers=HTML)
        assert answer.status_code == 200, (odd, answer.text)
        assert "the.good.one" in answer.text
        overview = client.get("/claims", headers=HTML)
        assert overview.status_code == 200, odd
    with Ledger.writing(settings.out / LEDGER_NAME) as ledger:
        put_odd_verdicts(ledger, run, [{**verdict, "state": "proven"}])
    for path in ("/claims", f"/claims/{id}"):
        assert "1 of its verdicts cannot be read; run it again" in client.get(path).text


@pytest.mark.parametrize(
    "name", ["x" * 5000, "x" * 5000 + ".csv", "\0.csv", "../" * 1000, "é.csv", "a.csv/..", ".", ""]
)
def test_a_name_of_a_file_that_cannot_be_is_a_sentence(client, name):
    assert client.get("/data/new", params={"file": name}).status_code == 400
    assert client.post("/data/fit", data={"file": name}).status_code == 400


ODD_TEXTS = ["x" * 5000, "\0", "é", "%", "../..", "9" * 5000, "nan", "", "\r\n"]


def test_odd_addresses_are_answered_with_a_sentence(open_client, out):
    """Every parameter of every address, and every part of its path."""
    client = open_client(ServerSettings(out))
    parameters = (
        "file",
        "a",
        "b",
        "row",
        "token",
        "preset",
        "seeds",
        "set.draws",
        "length",
        "samples",
        "strength",
        "steps",
        "seed",
    )
    for route in client.app.routes:
        if "GET" not in (getattr(route, "methods", None) or {"GET"}):
            continue
        for odd in ODD_TEXTS:
            path = route.path
            for part in ("{id}", "{theory}", "{claim}", "{run}", "{panel}", "{scene}"):
                path = path.replace(part, "".join(f"%{byte:02x}" for byte in odd.encode()) or "_")
            if "{" in route.path or not path.endswith(("/exact", "/quick", "/play")):
                no_fault(client, path)
            if "{" not in route.path:
                answer = client.get(path, params=dict.fromkeys(parameters, odd), headers=HTML)
                assert answer.status_code < 500, (path, odd, answer.text)


@pytest.mark.parametrize(
    "name",
    ["accept", "cookie", "last-event-id", "range", "if-none-match", "if-modified-since", "referer", "content-type"],
)
def test_odd_headers_are_answered(open_client, out, name):
    client = open_client(ServerSettings(out))
    job = JobFolder.new(out / "workbench" / "jobs", JobRequest("fit", "a job", {}))
    job.finish(JobEnd("finished"))
    for odd in (
        b"\xe9",
        b"x" * 9000,
        b"bytes=" + b"0-0," * 2000,
        b"-1",
        b"9" * 5000,
        b'"',
        b"multipart/form-data",
        b"",
        b"text/html;q=\xff",
    ):
        for path in ("/", "/static/frame.js", f"/jobs/{job.id}/events", "/data/models/demo"):
            assert client.get(path, headers={name: odd}).status_code < 500, (path, odd)
        for path in ("/data/upload", "/data/models/demo/explain", "/claims/toy/mean/run"):
            assert client.post(path, content=b"\xff{", headers={name: odd}).status_code < 500, (path, odd)


class TestTemporaryFolder:
    @pytest.fixture(autouse=True)
    def _own_place(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def test_uploads_go_on_after_it_was_cleaned(self, client):
        """Some machines clear it every night."""
        for remove in (shutil.rmtree, lambda folder: folder.chmod(0o777), self.replaced):
            first = client.post("/data/upload", files={"file": ("a.csv", b"a,b\n1,2\n")}, follow_redirects=False)
            assert first.status_code == 303
            remove(client.app.state.uploads.folder())
            assert client.get(first.headers["location"]).status_code == 400  # it is gone, and the page says so
            again = client.post("/data/upload", files={"file": ("a.csv", b"a,b\n1,2\n" * 500_000)})
            assert again.status_code == 200
            folder = client.app.state.uploads.folder()
            assert folder.stat().st_mode & 0o077 == 0

    @staticmethod
    def replaced(folder):
        """Another user put a link in its place."""
        folder.rename(folder.with_name(folder.name + "-old"))
        folder.symlink_to(folder.with_name(folder.name + "-old"))

    def test_uploads_go_on_after_the_whole_place_is_gone(self, client, tmp_path, monkeypatch):
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        shutil.rmtree(tmp_path / "temporary")
        answer = client.post("/data/upload", files={"file": ("a.csv", b"a,b\n1,2\n" * 500_000)})
        assert answer.status_code == 200

    def test_a_place_that_takes_nothing_is_a_sentence(self, client, monkeypatch):
        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", full)
        answer = client.post("/data/upload", files={"file": ("a.csv", b"a,b\n1,2\n")})
        assert (answer.status_code, "no space left" in answer.json()["error"]) == (400, True)
        monkeypatch.setattr(tempfile, "mkdtemp", full)
        with pytest.raises(UsageError, match="no space left"):
            Uploads().folder()
