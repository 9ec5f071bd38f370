"""Requests that another site, another machine or a careless client might send."""

import asyncio

import pytest
from starlette.testclient import TestClient

from whichtoken.workbench.app import create_app
from whichtoken.workbench.gate import Gate
from whichtoken.workbench.job_files import JobEnd, JobFolder, JobRequest
from whichtoken.workbench.pages import ROOMS
from whichtoken.workbench.settings import LARGEST_UPLOAD, ServerSettings

HOME = "http://127.0.0.1:8765"


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:9000", "[::1]:8765", "LOCALHOST"])
def test_names_of_this_machine_are_served(client, host):
    assert client.get("/static/frame.js", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:8765",
        "localhost.evil.example",
        "",
        "10.0.0.7",
        "a:b:c",
        "[::1",
        "evil.example@127.0.0.1",
        "127.0.0.1/evil.example",
    ],
)
def test_other_names_are_refused(client, host):
    """A site can point a name of its own at 127.0.0.1, and would then read our answers as its own."""
    answer = client.get("/", headers={"host": host, "origin": f"http://{host}"})
    assert answer.status_code == 421
    assert "theory" not in answer.text


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8765", ""]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_requests_of_other_sites_are_refused(client, origin, method):
    assert client.request(method, "/claims/toy/mean/run", headers={"origin": origin}).status_code == 403


def test_a_change_needs_an_origin(settings):
    with TestClient(create_app(settings), HOME) as client:
        assert client.post("/claims/toy/mean/run").status_code == 403
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(("mode", "status"), [("navigate", 200), ("no-cors", 403), ("cors", 403)])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_only_links_lead_here_from_other_sites(settings, site, mode, status):
    """An <img> elsewhere must not make this machine compute; `same-site` is another port of this machine."""
    with TestClient(create_app(settings), HOME) as client:
        assert client.get("/", headers={"sec-fetch-site": site, "sec-fetch-mode": mode}).status_code == status


def test_answers_carry_no_leave_for_others(client):
    for path in ("/", "/static/frame.js", "/nothing", "/jobs"):
        headers = client.get(path).headers
        assert not [name for name in headers if name.startswith("access-control")]
        assert "script-src 'self';" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_pages_hold_no_script_of_their_own(client):
    for path in (*ROOMS, "/claims/toy/mean", "/nothing"):
        text = client.get(path, headers={"accept": "text/html"}).text
        assert "<script>" not in text
        assert "onclick" not in text
        assert text.count("<script") == text.count('<script type="module" src="/static/')


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2f..%2fcli.py", "/static//etc/passwd",
     "/jobs/%2e%2e", "/jobs/%2e%2e%2f%2e%2e",
     "/jobs/..%2f..%2f..%2fetc%2fpasswd/log",
     "/claims/toy/mean/..%2f..%2f/rows.csv", "/jobs/20260101-000000-abcdef/log", "/static/%00"],
)  # fmt: skip
def test_paths_stay_inside(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(client, method):
    assert client.request(method, "/claims/toy/mean").status_code == 405
    assert client.request(method, "/jobs").status_code == 405


def test_a_place_in_a_stream_that_no_file_has_is_no_fault(client, settings):
    job = JobFolder.new(settings.home / "jobs", JobRequest("fit", "a job", {}))
    job.finish(JobEnd("finished"))
    for place in ("9" * 5000, "-1", "x", "9" * 15):
        answer = client.get(f"/jobs/{job.id}/events", headers={"last-event-id": place})
        assert answer.text.startswith("event: end")


def test_cancelling_is_no_link(client):
    assert client.get("/jobs/20260101-000000-abcdef/cancel").status_code == 405


def test_a_body_that_says_it_is_too_large_is_refused_unread(client):
    answer = client.post("/claims/toy/mean/run", headers={"content-length": str(LARGEST_UPLOAD + 1)}, content=b"")
    assert answer.status_code == 413


def test_a_body_that_grows_too_large_is_cut(client):
    def chunks():
        for _ in range(LARGEST_UPLOAD // 1_000_000 + 2):
            yield b"x" * 1_000_000

    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/claims/toy/mean/run", content=chunks(), headers=kind).status_code == 413


def test_a_client_that_stops_sending_is_let_go(settings):
    """Half of a request must not hold the server; what was begun is dropped with a sentence."""
    sent = []

    async def receive():
        if not sent:
            sent.append("half")
            return {"type": "http.request", "body": b"preset=qu", "more_body": True}
        return await asyncio.sleep(60)

    async def send(message):
        sent.append(message.get("status"))

    app = create_app(settings)
    headers = [
        (b"host", b"127.0.0.1:8765"),
        (b"origin", HOME.encode()),
        (b"content-type", b"application/x-www-form-urlencoded"),
    ]
    scope = {
        "type": "http", "method": "POST", "path": "/claims/toy/mean/run", "query_string": b"", "headers": headers, "app": app,
        "http_version": "1.1", "server": ("127.0.0.1", 8765), "client": ("127.0.0.1", 1), "scheme": "http", "root_path": "",
    }  # fmt: skip
    asyncio.run(Gate(app, settings, patience=0.05)(scope, receive, send))
    assert 408 in sent


class TestToken:
    """Where other machines can reach the server."""

    @pytest.fixture
    def settings(self, tmp_path):
        return ServerSettings.at(tmp_path, "0.0.0.0", 8765)

    def test_loopback_needs_none_and_others_get_a_long_one(self, tmp_path, settings):
        assert ServerSettings.at(tmp_path, "127.0.0.1", 1).token == ""
        assert ServerSettings.at(tmp_path, "::1", 1).token == ""
        assert len(settings.token) > 40
        assert settings.token != ServerSettings.at(tmp_path, "0.0.0.0", 8765).token
        assert settings.token not in repr(settings)

    def test_without_it_there_is_nothing(self, client, settings):
        for path in ("/", "/static/frame.js", "/jobs", f"/?token={settings.token[:-1]}", "/?token="):
            assert client.get(path).status_code == 401
        assert client.post(f"/claims/toy/mean/run?token={settings.token}").status_code == 401

    def test_the_link_becomes_a_cookie(self, client, settings):
        answer = client.get(f"/jobs?a=1&token={settings.token}", follow_redirects=False)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/jobs?a=1"  # the token does not stay in the address
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert "SameSite=strict" in answer.headers["set-cookie"]
        assert client.get("/jobs").status_code == 200

    def test_the_link_leads_nowhere_else(self, client, settings):
        answer = client.get(f"//evil.example/?token={settings.token}", follow_redirects=False)
        assert not answer.headers.get("location", "").startswith("//")

    def test_names_from_elsewhere_stay_refused(self, client, settings):
        host = {"host": "evil.example", "origin": "http://evil.example"}
        assert client.get(f"/?token={settings.token}", headers=host).status_code == 421
