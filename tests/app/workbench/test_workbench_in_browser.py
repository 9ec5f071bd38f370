"""The main path of each room in a real browser, with the keyboard, on a phone, and through reloads and restarts."""

import json
import re
import shutil
import signal
import socket
import time
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from urllib.request import urlopen
from xml.etree import ElementTree

import pytest
from serving_process import Served

from whichtoken.app.workbench.jobs import JobEnd, JobFolder, JobRequest
from whichtoken.app.workbench.pages import NAVIGATION

pytestmark = pytest.mark.browser
PLAN = "/planner?samples=1500"  # one address for all: an exact plan takes seconds, and is kept
PAGES = (*(PLAN if path == "/planner" else path for path in NAVIGATION), "/claims/toy/mean", "/data/models/demo?row=1")
SLOW = "/claims/toy/faults?preset=full&set.pause=0.4"
WAIT = 60_000
TOYS = Path(__file__).parents[2] / "toys"


@pytest.fixture(scope="module")
def bench(tmp_path_factory, demo_model):
    """One workbench for all tests of this file."""
    folder = tmp_path_factory.mktemp("bench")
    shutil.copytree(demo_model, folder / "out" / "workbench" / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHICHTOKEN_EXPERIMENTS", str(TOYS))
        patch.setenv("TOY_LOG", str(folder / "toy.log"))
        made = Served(folder / "out").start()
    limit = time.monotonic() + WAIT / 1000
    while 'data-open="yes"' in urlopen(made.address + "/jobs").read().decode():  # a page renews itself as a job ends
        assert time.monotonic() < limit, "the trainings of the start have ended"
        time.sleep(0.2)
    yield made
    made.stop()


def settled(made):
    """Wait for what a page fetches after its first paint."""
    made.page.wait_for_load_state("networkidle")
    return made


@pytest.mark.parametrize(("path", "theme"), list(zip(PAGES, cycle(("light", "dark")), strict=False)))
def test_pages_fit_a_phone_and_a_desk_and_hinder_nobody(visit, bench, path, theme):
    made = settled(visit(bench.address + path, width=360, theme=theme))
    assert made.overflow() == 0
    assert made.violations() == []
    made.page.set_viewport_size({"width": 1400, "height": 900})
    assert made.overflow() == 0


def test_a_run_is_started_followed_in_two_tabs_and_finished(visit, bench):
    made = visit(bench.address + "/claims/toy/mean")
    made.page.fill("[name='set.shift']", "2.0")
    made.page.get_by_role("button", name="Run it").click()
    made.page.wait_for_url("**/jobs/*")
    other = visit(made.page.url)
    for tab in (made, other):
        tab.page.wait_for_selector("text=See the result", timeout=WAIT)
        assert "the mean is the shift" in tab.page.inner_text("main").lower()
    made.page.click("text=See the result")
    made.page.wait_for_selector(".panels svg", timeout=WAIT)
    assert "shift=2.0" in made.page.inner_text("main")


def test_a_run_survives_a_reload_is_cancelled_and_goes_on(visit, bench):
    made = visit(bench.address + SLOW)
    made.page.get_by_role("button", name="Run it").click()
    made.page.wait_for_selector(".job-said:has-text('of 24 done')", timeout=WAIT)
    made.page.reload()
    made.page.wait_for_selector(".job-said:has-text('of 24 done')", timeout=WAIT)
    made.page.get_by_role("button", name="Cancel").click()
    made.page.wait_for_selector(".job-state.cancelled", timeout=WAIT)
    made.page.get_by_role("button", name="Resume").click()
    made.page.wait_for_selector(".job-state:text-is('running')", timeout=WAIT)
    made.page.get_by_role("button", name="Cancel").click()  # that it finishes is shown below, after a restart
    made.page.wait_for_selector(".job-state.cancelled", timeout=WAIT)


def test_a_server_stopped_in_mid_job_offers_to_go_on(visit, served):
    made = visit(served.address + SLOW)
    made.page.get_by_role("button", name="Run it").click()
    made.page.wait_for_selector(".job-said:has-text('of 24 done')", timeout=WAIT)
    id = made.page.url.rsplit("/", 1)[1]
    assert served.stop(signal.SIGINT) == 0
    made.complaints.clear()  # the page has noticed that nobody answers
    served.start()
    again = visit(f"{served.address}/jobs/{id}")
    assert again.page.inner_text(".job-state") == "interrupted"
    again.page.get_by_role("button", name="Resume").click()
    again.page.wait_for_selector(".job-state.finished", timeout=WAIT)
    made.page.goto("about:blank")
    made.complaints.clear()


def test_the_planner_redraws_as_a_slider_moves_and_keeps_its_numbers(visit, bench):
    made = visit(bench.address + PLAN)
    made.page.wait_for_selector("#mark:text-is('exact')", timeout=WAIT)
    before = made.page.inner_text("#error-attention")
    made.page.focus("[aria-label='strength slider']")
    made.page.keyboard.press("PageDown")
    made.page.wait_for_selector("#mark:text-is('exact')", timeout=WAIT)
    made.page.wait_for_function(
        "before => document.getElementById('error-attention').textContent !== before", arg=before
    )
    assert made.page.inner_text("#answer").startswith("Yes: with 1500 samples the predicted error is 0.")
    assert "samples=1500" in made.page.url
    assert "1500 sequences" in made.page.inner_text("#protocol")
    strength = re.search(r"strength=([\d.]+)", made.page.url)[1]
    assert float(strength) < 5
    with made.page.expect_download() as saved:
        made.page.get_by_role("button", name="SVG").click()
    drawing = ElementTree.parse(saved.value.path()).getroot()
    lines = drawing.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 7  # five models, the best that is possible, a constant answer
    assert all(len(line.get("points").split()) == 5 for line in lines)
    again = visit(made.page.url)
    assert again.page.input_value("#field-strength") == strength


def test_forms_keep_what_was_typed_and_say_what_is_wrong_beside_its_field(visit, bench):
    typed = "praise, good\nno label here"
    for path, field, kept in [
        ("/data", "pasted", {"pasted": typed}),
        ("/inspect", "folder", {"folder": "/no/such/model", "pasted": "a text"}),
        ("/claims/toy/mean", "seeds", {"seeds": "007x"}),
    ]:
        made = visit(bench.address + path)
        for name, text in kept.items():
            made.page.fill(f"form [name={name}]", text)
        # the pattern of a field is a hint of the browser; what the server says must be as good
        made.page.evaluate("document.querySelectorAll('form').forEach((form) => { form.noValidate = true; })")
        made.page.locator(f"form:has([name={field}]) button.main").click()
        beside = made.page.wait_for_selector(f"label:has([name={field}]) .wrong", timeout=WAIT)
        assert beside.inner_text()
        assert {name: made.page.input_value(f"[name={name}]") for name in kept} == kept
        assert made.page.get_attribute(f"[name={field}]", "aria-invalid") == "true"
        assert made.page.evaluate("document.activeElement.name") == field
        assert made.page.url == bench.address + path
        made.complaints.clear()  # the browser reports the answer 400


def test_rows_are_found_by_word_mistake_and_cell_and_a_threshold_is_written(visit, bench):
    made = visit(bench.address + "/data/models/demo")
    rows = made.page.locator("#documents li")
    total = rows.count()
    made.page.click("summary:text('Importance')")
    made.page.click("[data-word]:text-is('superb')")
    assert 0 < rows.count() < total
    made.page.fill("#answer input[type=search]", "fun")
    made.page.click(".strengths .word:text-is('fun')")
    assert rows.count() == 1  # not the one that is funny
    made.page.fill("#choice input", "fun")
    assert rows.count() == 2
    made.page.click("#choice button")
    made.page.select_option("#choice select", "least confident first")
    shares = [float(share) for share in rows.evaluate_all("all => all.map((one) => one.dataset.share)")]
    assert shares == sorted(shares)
    counts = made.page.locator("#confusion td button")
    assert sum(map(int, counts.all_inner_texts())) == rows.count() == total
    counts.nth(0).click()
    assert rows.count() == int(counts.nth(0).inner_text())
    made.page.fill("[name=miss]", "3")
    made.page.click("[data-best]")
    assert made.page.input_value("[name=threshold]") == "0.25"
    assert "praise above 0.25: " in made.page.inner_text("[data-said]:not(li)")
    made.page.fill("[name=threshold]", "2")
    made.page.get_by_role("button", name="Write it").click()
    made.page.wait_for_selector("label:has([name=threshold]) .wrong")
    made.complaints.clear()


def test_text_of_a_user_is_text(visit, bench):
    """A tag in a document is neither obeyed nor lost, from the paste to the explanation."""
    lines = [
        f"{'praise' if k % 2 else 'blame'}, {'good' if k % 2 else 'bad'} film <script>alert({k})</script>"
        for k in range(40)
    ]
    made = visit(bench.address + "/data")
    made.page.fill("[name=pasted]", "\n".join(lines))
    made.page.get_by_role("button", name="Use these").click()
    made.page.wait_for_selector("text=Which column is what?")
    made.page.fill("[name=title]", "<img src=x onerror=alert(1)>")
    made.page.get_by_role("button", name="Train").click()
    made.page.wait_for_url("**/data/models/*", timeout=WAIT)  # it opens by itself
    assert made.page.inner_text("h1") == "<img src=x onerror=alert(1)>"
    made.page.wait_for_load_state("networkidle")  # the rows answer once the script is there
    made.page.click("[data-row='1']")
    made.page.wait_for_selector(".word")
    assert "<script>" in made.page.inner_text(".text")
    assert made.page.locator("main img, main script").count() == 0


@pytest.mark.parametrize(("path", "width", "theme"), [("/", 360, "dark"), ("/data/models/demo", 1400, "light")])
def test_a_word_is_struck_with_the_keyboard_and_the_decision_moves(visit, bench, path, width, theme):
    made = visit(bench.address + path, width=width, theme=theme)
    made.page.fill("textarea", "A wonderful \u202e film with a superb cast")
    # nothing turns the reading round
    assert made.page.inner_text(".text") == "A wonderful \\u202e film with a superb cast"
    before = made.page.inner_text(".answer .lead")
    made.page.focus(".text .word:text-is('wonderful')")
    made.page.keyboard.press("Space")
    assert made.page.inner_text(".answer .lead") != before
    assert made.page.evaluate("document.activeElement.textContent") == "wonderful"  # the focus stays where it was
    made.page.get_by_role("button", name="Put all words back").click()
    assert made.page.inner_text(".answer .lead") == before


def test_the_first_page_leads_everywhere(visit, bench):
    made = settled(visit(bench.address + "/"))
    links = made.page.eval_on_selector_all(
        "main .claims a", "links => links.map((link) => new URL(link.href).pathname)"
    )
    assert set(links) == {"/data", "/claims", "/planner", "/dynamics", "/inspect"}


def test_an_old_browser_gets_a_sentence(visit, bench):
    made = visit(bench.address + "/planner")
    assert made.page.locator("#old").count() == 0
    made = visit(bench.address + "/planner", java_script_enabled=False)
    assert not made.page.is_visible("#old")  # at once; a page whose scripts are slow does not flicker
    made.page.wait_for_selector("#old:has-text('the browser is too old or runs no scripts')", state="visible")


def test_two_models_explain_one_text(visit, bench):
    made = visit(bench.address + "/data/compare?a=demo&b=demo")
    made.page.wait_for_selector("section + section .word")
    made.page.fill("#text", "an awful mess")
    assert made.page.eval_on_selector_all(".lead b", "all => all.map((one) => one.textContent)") == ["blame", "blame"]


def test_a_training_is_watched_to_its_end_and_played_again(visit, bench):
    made = visit(bench.address + "/dynamics/factors?steps=8&dim=3")
    made.page.get_by_role("button", name="Train").click()
    made.page.wait_for_selector("text=Finished", timeout=WAIT)
    assert made.page.inner_text("#step") == "8"
    made.page.focus("#time")
    made.page.keyboard.press("Home")
    assert made.page.inner_text("#step") == "0"
    made.page.get_by_role("button", name="Play").click()
    made.page.wait_for_selector("#step:text-is('8')")
    assert made.violations() == []
    assert made.overflow() == 0


def test_heads_of_a_transformer_are_chosen_on_a_map(visit, bench):
    heads = [
        {"layer": layer, "head": head, "gap": 1.0 + head, "survival": 0.9696, "sink_share": 0.1, "contribution": 0.5,
         "kind": "mixed", "top_picks": [["<b>film", 0.5]]}
        for layer in range(2) for head in range(3)
    ]  # fmt: skip
    view = {
        "text": 0, "tokens": ["a", "<b>film", "good", "##ish"], "words": ["a", "<b>film", "goodish", "goodish"],
        "decision": "praise", "picked": [[0, 1, 2], [2, 1, 0]],
        "runner_up": [[1, 2, 0], [1, 0, 2]], "gap": [[0.5, 1.5, 2.5], [1, 2, 3]], "shares": [0.1, -0.2, 0.3, 0.0],
        "deletion_areas": {"shares": 0.4}, "effects": None, "direct": None,
    }  # fmt: skip
    job = JobFolder.new(bench.out / "workbench" / "jobs", JobRequest("inspect", "inspect tiny", {}))
    numbers = {
        "model": "tiny",
        "queries": "cls",
        "texts": 1,
        "truncated": 0,
        "layer": 0,
        "head": 1,
        "heads": heads,
        "shown": [view],
    }
    (job.path / "inspection.json").write_text(json.dumps(numbers))
    job.finish(JobEnd("finished", "8 heads", page=f"/inspect/{job.id}"))
    made = visit(f"{bench.address}/inspect/{job.id}", width=360, theme="dark")
    made.page.wait_for_selector(".words .pick:text-is('<b>film')")
    made.page.focus("[aria-label^='layer 1, head 0']")
    made.page.keyboard.press("Enter")
    made.page.wait_for_selector(".words .pick:text-is('good')")
    assert made.page.inner_text(".words") == "a <b>film goodish"
    assert "Picks “goodish” ahead of “<b>film”" in made.page.inner_text("article")
    assert "layer=1&head=0" in made.page.url
    assert made.violations() == []
    assert made.overflow() == 0


def test_the_keyboard_reaches_every_room(visit, bench):
    stops = visit(bench.address + PLAN).tab_stops(most=12)
    assert stops[0] == "a Skip to the content"
    assert [f"a {name}" for name in NAVIGATION.values()] == stops[2 : 2 + len(NAVIGATION)]


def test_slow_clients_do_not_hold_the_others(bench):
    """Half a request on thirty connections, half an upload on another, and pages are answered all the same."""
    host, port = bench.address.removeprefix("http://").split(":")
    head = f"POST /data/upload HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {bench.address}\r\nContent-Length: 5000\r\n"
    with ExitStack() as stack:
        for half in [b"GET / HTTP/1.1\r\nHost: 127"] * 30 + [head.encode() + b"Content-Type: text/plain\r\n\r\nhalf"]:
            stack.enter_context(socket.create_connection((host, int(port)))).sendall(half)
        assert urlopen(f"{bench.address}/jobs", timeout=10).status == 200


def test_a_link_with_a_token_opens_the_workbench(visit, out):
    made = Served(out).start("--host", "0.0.0.0")
    try:
        link = made.link.replace("0.0.0.0", "127.0.0.1")
        page = visit(link).page
        assert "token" not in page.url
        assert "Strike out a word" in page.inner_text("h1")
    finally:
        made.stop()
