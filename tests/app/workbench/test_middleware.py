"""Requests that another site, another machine or a careless client might send."""

import asyncio

import pytest
from starlette.testclient import TestClient

from whichtoken.app.workbench.jobs import JobEnd, JobFolder, JobRequest
from whichtoken.app.workbench.middleware import LARGEST_FORM, LINKED, SecurityMiddleware
from whichtoken.app.workbench.pages import NAVIGATION
from whichtoken.app.workbench.serving import create_app
from whichtoken.app.workbench.settings import LARGEST_UPLOAD, ServerSettings
from whichtoken.app.workbench.workers import Worker

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


WAYS_IN = [("navigate", dest) for dest in ("iframe", "frame", "embed", "object", "fencedframe", "")]
WAYS_IN += [("no-cors", "image"), ("no-cors", "script"), ("cors", "empty"), ("websocket", "websocket"), ("", "")]
ADDRESSES = {  # of every route, by its path
    "/claims/{theory}/{claim}": "/claims/toy/mean", "/claims/{theory}/{claim}/{run}/figure": "/claims/toy/mean/x/figure",
    "/claims/{theory}/{claim}/{run}/panel/{panel}": "/claims/toy/mean/x/panel/0",
    "/claims/{theory}/{claim}/{run}/figure.svg": "/claims/toy/mean/x/figure.svg",
    "/claims/{theory}/{claim}/{run}/rows.csv": "/claims/toy/mean/x/rows.csv", "/static": "/static/frame.js",
}  # fmt: skip


def addresses(app):
    """One address of every route that can be read, with whether a link from elsewhere may lead there."""
    for route in app.routes:
        if "GET" in (getattr(route, "methods", None) or {"GET"}):
            path = ADDRESSES.get(route.path, route.path.replace("{id}", "none").replace("{scene}", "factors"))
            yield path, getattr(route, "name", "") == LINKED


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_other_sites_embed_or_fetch_is_refused_on_every_route(settings, site, monkeypatch):
    """A frame or an <img> elsewhere must not make this machine compute; `same-site` is another port of this machine."""
    monkeypatch.setattr(Worker, "answer", lambda *_: pytest.fail("something was computed for another site"))
    with TestClient(create_app(settings), HOME) as client:
        for path, _ in addresses(client.app):
            for mode, dest in WAYS_IN:
                sent = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
                assert client.get(path, headers=sent).status_code == 403, (path, sent)


def test_a_link_elsewhere_leads_to_pages_and_to_nothing_else(settings, monkeypatch):
    monkeypatch.setattr(Worker, "answer", lambda *_: pytest.fail("something was computed for another site"))
    sent = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    with TestClient(create_app(settings), HOME) as client:
        for path, linked in addresses(client.app):
            assert (client.get(path, headers=sent).status_code != 403) == linked, path
        assert client.get("/planner?samples=100", headers=sent).status_code == 200
        assert client.get("/planner/exact", headers=sent).status_code == 403
        assert client.get("/dynamics/factors/play", headers=sent).status_code == 403


def test_every_answer_forbids_frames_and_other_sites(client, monkeypatch):
    monkeypatch.setattr(client.app.state.jobs, "views", lambda: 1 / 0)
    paths = [path for path, _ in addresses(client.app) if not path.startswith(("/dynamics/factors/play", "/planner/"))]
    answers = [client.get(path) for path in (*paths, "/nothing", "/static/nothing")]
    answers.append(client.get("/", headers={"host": "evil.example"}))
    answers.append(client.post("/jobs"))
    assert {200, 400, 404, 405, 421, 500} <= {answer.status_code for answer in answers}
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "script-src 'self';" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_pages_hold_no_script_of_their_own(client):
    for path in (*NAVIGATION, "/claims/toy/mean", "/nothing"):
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


FILE = "multipart/form-data; boundary=x"


@pytest.mark.parametrize(
    ("kind", "most"), [("application/x-www-form-urlencoded", LARGEST_FORM), (FILE, LARGEST_UPLOAD)]
)
def test_a_body_that_grows_too_large_is_cut(client, kind, most):
    def chunks():
        for _ in range(22):
            yield b"x" * (most // 20)

    answer = client.post("/claims/toy/mean/run", content=chunks(), headers={"content-type": kind})
    assert answer.status_code == 413
    assert ("20 MB" if kind is FILE else "200 kB") in answer.json()["error"]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/json", "text/plain", ""])
def test_only_a_file_may_be_large(client, kind):
    """Fields of a form are taken apart byte by byte, for seconds if there are megabytes of them."""
    answer = client.post("/claims/toy/mean/run", content=b"a=1&" * 225_000, headers={"content-type": kind})
    assert answer.status_code == 413


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
    asyncio.run(SecurityMiddleware(app, settings, body_seconds=0.05)(scope, receive, send))
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

    @pytest.mark.parametrize(
        "beside",
        [
            "naïve=é",
            "a=b; =; ;;; x",
            'q="half',
            "whichtoken=of another",
            "whichtoken-9=of another",
            "a[b]={c}",
            "\x7f=1",
        ],
    )
    def test_cookies_of_other_servers_change_nothing(self, client, settings, beside):
        """A browser sends the cookies of every server of a machine to each of them."""
        shown = f"whichtoken-{settings.port}={settings.token}"
        for cookies in (
            f"{beside}; {shown}",
            f"{shown}; {beside}",
            f"whichtoken-{settings.port}=old; {beside}; {shown}",
        ):
            assert client.get("/jobs", headers={"cookie": cookies.encode("latin-1")}).status_code == 200, cookies
        assert client.get("/jobs", headers={"cookie": beside.encode("latin-1")}).status_code == 401

    def test_two_servers_of_one_machine_do_not_log_each_other_out(self, tmp_path, client, settings):
        client.get(f"/jobs?token={settings.token}")
        other = ServerSettings.at(tmp_path, "0.0.0.0", settings.port + 1)
        with TestClient(create_app(other), HOME, cookies=dict(client.cookies)) as second:
            assert second.get(f"/jobs?token={other.token}").status_code == 200
            client.cookies.update(second.cookies)  # as one browser has them
            assert client.get("/jobs").status_code == 200

    def test_the_link_leads_nowhere_else(self, client, settings):
        answer = client.get(f"//evil.example/?token={settings.token}", follow_redirects=False)
        assert not answer.headers.get("location", "").startswith("//")

    def test_names_from_elsewhere_stay_refused(self, client, settings):
        host = {"host": "evil.example", "origin": "http://evil.example"}
        assert client.get(f"/?token={settings.token}", headers=host).status_code == 421
