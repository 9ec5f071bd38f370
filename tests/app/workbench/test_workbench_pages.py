"""What each room answers, without a browser."""

import concurrent.futures
import contextlib
import io
import json
import re
import shutil
import time
import zipfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from whichtoken.app.workbench.jobs import JobFolder, JobRequest, fit_model, inspect_folder
from whichtoken.app.workbench.pages import NAVIGATION
from whichtoken.app.workbench.planner import StudyNumbers
from whichtoken.app.workbench.planning import quick_forecast
from whichtoken.app.workbench.scenes import LIMITS, SCENES
from whichtoken.app.workbench.serving import create_app
from whichtoken.app.workbench.settings import MOST_UPLOADS, ServerSettings
from whichtoken.files import LEDGER_NAME
from whichtoken.lab import reproduce
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Row
from whichtoken.lab.ledger import Ledger
from whichtoken.lab.plan import make_plan
from whichtoken.lab.record import RunSummary, recorded_runs
from whichtoken.lab.statements import sources

HOME = "http://127.0.0.1:8765"
PAGES = (*NAVIGATION, "/reading", "/claims/toy/mean", "/dynamics/factors")
HTML = {"accept": "text/html"}


@pytest.fixture
def trained(out, open_client):
    """A workbench with a trained model."""
    return open_client(ServerSettings(out))


@pytest.mark.parametrize("path", PAGES)
def test_every_room_opens_in_an_empty_folder(client, path):
    answer = client.get(path, headers=HTML)
    assert answer.status_code == 200
    assert "<h1" in answer.text


def test_what_does_not_exist_says_what_to_do(client):
    answer = client.get("/claims/no/such", headers=HTML)
    assert answer.status_code == 404
    assert "Back to the start" in answer.text
    assert client.get("/claims/no/such").json() == {"error": answer.text.split('role="alert">')[1].split("<")[0]}


class TestClaims:
    def test_a_form_has_the_fields_of_the_point(self, client):
        text = client.get("/claims/toy/mean").text
        assert 'name="set.draws"' in text
        assert "1.2 plants a wrong theory" in text  # the comment of the field
        assert "400 by default" in text

    @pytest.mark.parametrize(
        ("form", "word"),
        [
            ({"set.draws": "many"}, "draws"),
            ({"seeds": "-3"}, "seeds"),
            ({"preset": "huge"}, "preset"),
            ({"seeds": "999999999"}, "rows"),
            ({"seeds": "9" * 5000}, "rows"),
        ],
    )
    def test_what_does_not_fit_is_said_before_anything_runs(self, client, form, word):
        answer = client.post("/claims/toy/mean/run", data=form)
        assert answer.status_code == 400
        assert word in answer.json()["error"]
        assert client.app.state.jobs.views() == []

    def test_results_of_the_command_line_are_shown_with_figure_and_numbers(self, client, settings, no_workers):
        reproduce(["toy/mean"], out=settings.out, workers=1)
        text = client.get("/claims/toy/mean").text
        assert "the mean is the shift" in text
        address = text.split('data-fragment="')[1].split('"')[0]
        part = client.get(address)
        assert "<svg" in part.text
        assert "<b>measured" not in part.text
        assert client.get(f"{address}.svg").text.startswith("<svg")
        assert client.get(address.replace("/figure", "/panel/0")).text.startswith("<svg")
        assert "rows that are not there" in client.get(address.replace("/figure", "/panel/99")).text
        rows = client.get(address.replace("/figure", "/rows.csv")).text.splitlines()
        assert len(rows) == 1 + 10
        assert "10 rows" in part.text
        assert "agrees" in client.get("/claims").text

    def test_states_are_said_as_in_the_report(self, client):
        """A page on how to read verdicts speaks of undecided ones; no other page may call them something else."""
        for path in ("/claims", "/claims/mirror-descent/rates", "/papers/mirror-descent"):
            words = re.sub(r"<[^>]*>", " ", client.get(path).text)
            assert "undecided" in words
            assert "inconclusive" not in words

    @pytest.mark.parametrize("source", sources(), ids=lambda source: source.id)
    def test_a_paper_has_a_page_with_all_its_statements(self, client, source):
        text = client.get(f"/papers/{source.id}").text
        assert all(f'id="{each.id}"' in text for each in (*source.statements, *source.ours))
        for link in set(re.findall('href="(/claims/[^"]+)"', text)):
            assert client.get(link).status_code == 200

    def test_a_paper_that_is_not_there_is_not_found(self, client):
        assert client.get("/papers/nothing").status_code == 404

    def test_the_record_stands_beside_what_was_not_judged_here(self, client, settings):
        """A claim that was never run, and one whose run was broken off, both say what is on record."""
        with Ledger.writing(settings.out / LEDGER_NAME) as ledger:
            ledger.put_run(RunSummary("sparse-tokens/errors", "quick", started="2026-01-01T00:00:00"))
        overview = client.get("/claims").text
        line = overview.split('<span class="quiet">sparse-tokens/errors</span>')[1].split("</li>")[0]
        assert "not finished" in line
        for experiment, preset in recorded_runs():
            assert experiment != "sparse-tokens/errors" or f"on record, {preset}" in line
        assert "statements</a>" in overview
        for claim in ("errors", "alignment"):
            verdict = recorded_runs()[f"sparse-tokens/{claim}", "quick"].verdicts[0]
            assert f"<code>{verdict.code}</code>" in client.get(f"/claims/sparse-tokens/{claim}").text

    def test_an_empty_folder_shows_the_figures_on_record(self, client):
        panels = re.findall('data-fragment="([^"]+)"', client.get("/claims").text)
        assert len(panels) == len(sources())
        assert all(client.get(panel).text.startswith("<svg") for panel in panels)
        for preset in ("full", "quick"):  # the rows of quick runs are not kept
            part = client.get(f"/claims/sparse-tokens/errors/{preset}/figure").text
            assert ("<svg" in part) == (preset == "full")
            assert "rows.csv" not in part
        assert client.get("/claims/sparse-tokens/errors/full/figure.svg").text.startswith("<svg")

    def test_the_figure_of_a_theory_is_drawn_from_rows_and_its_answers_from_verdicts(self, client, settings):
        id, panel = sources()[0].figure
        wrong = [replace(verdict, state="disagrees") for verdict in recorded_runs()[id, "quick"].verdicts]
        run = replace(recorded_runs()[id, "quick"], verdicts=tuple(wrong))
        before = client.get("/claims").text
        with Ledger.writing(settings.out / LEDGER_NAME) as ledger:
            ledger.put_run(run)
            ledger.put_verdicts(run)
        text = client.get("/claims").text
        counted = re.compile(r"\d+ supported")
        supported, now = (sum(int(found.split()[0]) for found in counted.findall(page)) for page in (before, text))
        assert now < supported  # as judged here, not as on record
        address = text.split('data-fragment="')[1].split('"')[0]
        assert address.endswith(f"/panel/{panel}")
        for number in ("0", "x", "9" * 5000):
            answer = client.get(address.replace("/panel/0", f"/panel/{number}"))
            assert "no finished rows" in answer.text  # this run has none; the page says so in the place of the figure

    def test_first_paint_is_quick_with_a_hundred_thousand_rows(self, client, settings, no_workers):
        reproduce(["toy/mean"], out=settings.out, workers=1)
        plan = make_plan(experiments()["toy/mean"], "full", {"draws": list(range(1, 41))})
        with Ledger.writing(settings.out / LEDGER_NAME) as ledger:
            ledger._connection.execute("PRAGMA synchronous=OFF")
            ledger._connection.execute("BEGIN")
            for task in plan.tasks[:20]:
                point = plan.points[task.point]
                ledger.put(1, task, Row(point, task.seed, "ok", "", {"mean": 1.0, "first": 1.0}, 0.1, "0"))
            [one] = ledger._connection.execute("SELECT * FROM rows LIMIT 1").fetchall()
            columns = [name for _, name, *_ in ledger._connection.execute("PRAGMA table_info(rows)")]
            seed = columns.index("seed")
            many = ((*one[:seed], 10_000 + k, *one[seed + 1 :]) for k in range(100_000))
            ledger._connection.executemany(f"INSERT INTO rows VALUES ({','.join('?' * len(one))})", many)
            ledger._connection.commit()
        client.get("/jobs")  # what is imported once is not measured
        for path in ("/", "/claims", "/claims/toy/mean"):
            began = time.process_time()
            assert client.get(path).status_code == 200
            assert time.process_time() - began < 1.0


class TestPlanner:
    def test_the_numbers_of_the_address_are_on_the_page(self, client):
        assert 'value="3.5"' in client.get("/planner?strength=3.5").text

    @pytest.mark.slow
    def test_quick_forecasts_are_marked_and_near_the_exact_ones(self, client):
        asked = "length=10&signal_tokens=1&strength=5&prevalence=0.5&dim=500&samples=2000"
        exact = client.get(f"/planner/exact?{asked}").json()
        quick = client.get(f"/planner/quick?{asked}").json()
        assert (quick["approximate"], exact["approximate"]) == (True, False)
        for name, error in exact["errors"].items():
            assert quick["errors"][name] == pytest.approx(error, rel=0.1)
        assert all(exact["capacities"].values())
        assert quick["capacities"] == dict.fromkeys(exact["capacities"])  # when the slider rests
        assert "2000 sequences" in exact["protocol"]

    def test_a_moving_slider_is_answered_in_time(self):
        quick_forecast(StudyNumbers(10, 1, 5.0, 0.5, 500, 2000))  # compiles
        spent = []
        for step in range(5):
            began = time.process_time()
            quick_forecast(StudyNumbers(10, 1, 4.0 + step / 10, 0.5, 500, 2000))
            spent.append(time.process_time() - began)
        assert sorted(spent)[2] < 0.15

    @pytest.mark.parametrize(
        "asked",
        [
            "strength=nan",
            "length=2.5",
            "dim=1e9",
            "signal_tokens=20&length=10",
            "prevalence=<script>",
            "samples=-1",
            f"length={'9' * 400}",
            f"samples={'9' * 5000}",
        ],
    )
    def test_numbers_out_of_range_are_a_sentence(self, client, asked):
        for kind in ("quick", "exact"):
            answer = client.get(f"/planner/{kind}?{asked}")
            assert answer.status_code == 400
            assert answer.json()["error"]


class TestData:
    def test_an_upload_leads_to_its_columns(self, client):
        table = b"review,sentiment\n<script>alert(1)</script> fine,good\nawful,bad\n"
        answer = client.post("/data/upload", files={"file": ("my data.csv", table)})
        assert answer.status_code == 200  # after the redirect
        assert "&lt;script&gt;" in answer.text
        assert "<script>alert" not in answer.text
        assert "<option selected>review</option>" in answer.text

    @pytest.mark.parametrize(
        ("table", "word"),
        [
            (b"a,a\n1,2\n", "columns named 'a'"),
            (b"a,b\n", "no rows"),
            (b",".join(b"a%d" % k for k in range(2001)) + b"\n" + b"1," * 2000 + b"1\n", "2001"),
        ],
    )
    def test_a_table_that_cannot_be_used_is_a_sentence_without_our_name_for_it(self, client, table, word):
        answer = client.post("/data/upload", files={"file": ("mine.csv", table)})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("the file has")
        assert word in answer.json()["error"]

    @pytest.mark.parametrize(
        ("name", "content"), [("a.exe", b"x"), ("a.csv", b""), ("../../a.csv.sh", b"x"), ("model.pkl", b"x")]
    )
    def test_other_files_are_refused(self, client, name, content):
        answer = client.post("/data/upload", files={"file": (name, content)})
        assert answer.status_code == 400
        assert not list(client.app.state.uploads.folder().iterdir())

    def test_uploads_are_private_and_few(self, client):
        for number in range(MOST_UPLOADS + 3):
            client.post("/data/upload", files={"file": ("a.csv", b"a,b\n1,%d\n" % number)}, follow_redirects=False)
        folder = client.app.state.uploads.folder()
        assert len(list(folder.iterdir())) == MOST_UPLOADS
        assert folder.stat().st_mode & 0o077 == 0

    def test_uploads_go_with_the_server(self, settings):
        with TestClient(create_app(settings), HOME, headers={"origin": HOME}) as client:
            client.post("/data/upload", files={"file": ("a.csv", b"a,b\n1,2\n")}, follow_redirects=False)
            folder = client.app.state.uploads.folder()
            assert folder.exists()
        assert not folder.exists()

    @pytest.mark.parametrize("name", ["../../etc/passwd", "..%2fa.csv", "a.csv", "/etc/passwd", ""])
    def test_a_file_of_another_place_is_not_found(self, client, name):
        assert client.get("/data/new", params={"file": name}).status_code == 400

    def test_pasted_lines_need_a_label(self, client):
        answer = client.post("/data/upload", files={"pasted": (None, "praise, good\nno label here")})
        assert answer.status_code == 400
        assert "line 2" in answer.json()["error"]
        assert answer.json()["field"] == "pasted"

    def test_pasted_lines_of_one_label_are_refused_beside_them(self, client):
        answer = client.post("/data/upload", files={"pasted": (None, "praise, good\npraise, fine")})
        assert (answer.status_code, answer.json()["field"]) == (400, "pasted")

    def test_too_few_texts_for_a_test_are_learned_and_the_page_says_so(self, client, monkeypatch):
        asked = []
        monkeypatch.setattr(client.app.state.jobs, "start", lambda request: asked.append(request) or "none")
        lines = "praise, a good film\nblame, a bad film\npraise, good fun\nblame, bad taste"
        page = client.post("/data/upload", files={"pasted": (None, lines)})
        file = re.search(r'name="file" value="([^"]+)"', page.text)[1]
        client.post("/data/fit", data={"file": file, "kind": "text", "column": "text", "label": "label"})
        [job] = asked
        end = fit_model(JobFolder.new(client.app.state.jobs.home, job), job.arguments)
        assert (end.state, "too few to test it" in end.message) == ("finished", True)
        text = client.get(job.page).text
        assert "too few distinct texts for a test" in text
        assert "held-out rows" not in text
        assert client.post(f"{job.page}/explain", json={"row": 1}).json()["label"] in ("praise", "blame")
        both = f"/data/compare?a={job.page[-10:]}&b={job.page[-10:]}"
        for address in ("/data", f"{job.page}/predictions.csv", f"{job.page}/page.html", both):
            assert client.get(address).status_code == 200, address

    def test_a_threshold_is_written_into_the_model(self, trained, out):
        from whichtoken.estimators import load_estimator

        page, folder = "/data/models/demo", out / "workbench" / "models" / "demo"
        before = trained.get(f"{page}/explainer.json").json()["bias"]
        for wrong in ("0", "1", "much"):
            answer = trained.post(f"{page}/threshold", data={"threshold": wrong})
            assert (answer.status_code, answer.json()["field"]) == (400, "threshold")
        card = json.loads((folder / "model" / "model-card.json").read_text())
        assert trained.post(f"{page}/threshold", data={"threshold": "0.9"}).status_code == 200
        model = load_estimator(folder / "model")
        assert model.choice_.threshold == model.threshold == 0.9
        assert json.loads((folder / "model" / "model-card.json").read_text()) == card
        assert "threshold set to 0.9 for praise" in trained.get(page).text
        assert trained.get(f"{page}/explainer.json").json()["bias"] < before
        assert trained.post("/data/models/none/threshold", data={"threshold": "0.9"}).status_code == 404

    def test_a_row_with_a_gap_is_shown(self, client):
        lines = b'{"text": "good", "kind": "a"}\n{"text": "bad"}\n{"kind": 3}\n'
        page = client.post("/data/upload", files={"file": ("t.jsonl", lines)})
        assert page.status_code == 200
        assert "good" in page.text

    def test_the_first_page_has_the_model_at_hand(self, trained, out, monkeypatch):
        """It is sent as it was written at the start: no worker loads anything."""
        assert 'data-model="demo"' in trained.get("/").text
        monkeypatch.setattr(trained.app.state.worker, "answer", None)
        packed = trained.get("/data/models/demo/explainer.json").json()
        assert packed["classes"] == ["blame", "praise"]
        assert "wonderful" in packed["examples"][0]

    def test_a_model_that_was_trained_again_is_packed_again(self, trained, out):
        stored = out / "workbench" / "models" / "demo" / "explainer.json"
        stored.write_text("yesterday\n{}")
        assert trained.get("/data/models/demo/explainer.json").json()["classes"] == ["blame", "praise"]
        assert trained.get("/data/models/none/explainer.json").status_code == 404

    def test_the_page_of_a_text_model_is_one_file(self, trained):
        page = trained.get("/data/models/demo/explainer.html")
        assert page.headers["content-disposition"].startswith("attachment")
        assert "default-src 'none'" in page.text
        assert '"classes":["blame","praise"]' in page.text

    def test_the_page_of_a_model_needs_not_the_model(self, trained, out):
        """Reading a model and predicting with it takes seconds at first; a page has to stand within one."""
        shutil.rmtree(out / "workbench" / "models" / "demo" / "model")
        text = trained.get("/data/models/demo").text
        assert 'data-row="15"' in text
        assert "Importance of each token" in text

    def test_a_model_is_shown_with_its_score_beside_the_baseline(self, trained):
        text = trained.get("/data/models/demo").text
        assert "TF-IDF" in text
        assert "most frequent class" in text
        assert trained.post("/data/models/demo/explain", json={"row": 0}).status_code == 200

    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"[]",
            b'{"row": 9999}',
            b'{"row": -1}',
            b'{"text": "good"}',
            b"{}",
            b"[" * 100_000,
        ],
    )
    def test_a_wrong_question_is_a_sentence(self, trained, body):
        answer = trained.post("/data/models/demo/explain", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]

    def test_downloads(self, trained):
        names = zipfile.ZipFile(io.BytesIO(trained.get("/data/models/demo/model.zip").content)).namelist()
        assert all(name.startswith("demo/") for name in names)
        assert any(name.endswith(".safetensors") for name in names)
        assert "text,label" in trained.get("/data/models/demo/predictions.csv").text.splitlines()[0]
        page = trained.get("/data/models/demo/page.html")
        assert page.headers["content-disposition"].startswith("attachment")

    @pytest.mark.parametrize(
        ("kind", "columns", "reason"),
        [
            ("groups", "size_width,size_height,color_red,color_blue", "group"),
            ("bags", "bag,width,height,red", "instance"),
        ],
    )  # fmt: skip
    def test_a_table_becomes_a_model_that_explains_its_rows(self, client, monkeypatch, kind, columns, reason):
        """From the upload over the columns and the training to the page, an explanation and the downloads."""
        rng = np.random.default_rng(0)
        lines = [f"{columns},label"]
        for row in range(48):
            label = row // 2 % 2  # two rows make a bag
            first, *others = rng.normal(size=4) + np.array([0, 3, 0, 0]) * label
            first = first if kind == "groups" else row // 2
            lines.append(",".join(map(str, [first, *others, ("no", "yes")[label]])))
        asked = []
        monkeypatch.setattr(client.app.state.jobs, "start", lambda request: asked.append(request) or "none")
        page = client.post("/data/upload", files={"file": ("t.csv", "\n".join(lines).encode())})
        file = re.search(r'name="file" value="([^"]+)"', page.text)[1]
        client.post("/data/fit", data={"file": file, "kind": kind, "column": "bag", "label": "label", "prefix": "_"})
        [job] = asked
        with contextlib.redirect_stdout(io.StringIO()):
            assert fit_model(JobFolder.new(client.app.state.jobs.home, job), job.arguments).state == "finished"
        assert f"held-out {'bags' if kind == 'bags' else 'rows'}" in client.get(job.page).text
        found = client.post(f"{job.page}/explain", json={"row": 1}).json()
        assert found["label"] in ("no", "yes")
        assert reason in found["reasons"][0]
        assert f"<b>{found['label']}</b> with probability" in found["shown"]
        assert "<mark" in found["shown"]  # colored as on every other page
        header = client.get(f"{job.page}/predictions.csv").text.splitlines()[0]
        assert "predicted" in header
        assert client.get(f"{job.page}/page.html").status_code == 200
        assert "Content-Security-Policy" in client.get(f"{job.page}/explainer.html").text
        assert "does not read texts" in client.get(f"{job.page}/explainer.json").json()["error"]

    @pytest.mark.parametrize("report", [None, {}, {"training": 3, "ours": {}}])
    def test_a_damaged_model_does_not_hide_the_others(self, trained, out, report):
        card = json.loads((out / "workbench" / "models" / "demo" / "card.json").read_text())
        (out / "workbench" / "models" / "broken").mkdir()
        (out / "workbench" / "models" / "broken" / "card.json").write_text(json.dumps({**card, "report": report}))
        assert "movie reviews" in trained.get("/data").text
        assert trained.get("/data/models/broken").status_code == 404

    def test_a_model_that_is_not_there(self, trained):
        for path in (
            "/data/models/none",
            "/data/models/..%2f..",
            "/data/compare?a=demo&b=none",
            "/data/models/none/model.zip",
        ):
            assert trained.get(path).status_code == 404


class TestDynamics:
    @pytest.mark.process
    def test_a_scene_streams_its_frames_to_the_end(self, client):
        text = client.get("/dynamics/factors/play?steps=5&dim=3").text
        kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
        assert kinds == ["state", "start", *["frame"] * 6, "end"]
        frames = [json.loads(line[6:]) for line in text.splitlines() if line.startswith('data: {"step"')]
        losses = [frame["lines"][0] for frame in frames]
        assert losses == sorted(losses, reverse=True)  # structure-aware descent goes down at every step

    @pytest.mark.parametrize("asked", ["steps=1e9", "steps=x", "dim=0", "step=nan"])
    def test_a_knob_out_of_range_is_a_sentence(self, client, asked):
        answer = client.get(f"/dynamics/factors/play?{asked}")
        assert answer.status_code == 400
        assert answer.json()["error"]

    @pytest.mark.parametrize("id", SCENES)
    def test_a_page_says_what_theory_is_and_where_it_differs(self, client, id):
        page = client.get(f"/dynamics/{id}").text
        assert page.count("Dashed: ") == 1
        assert "<code>" not in page.split("Dashed: ")[1].split("</p>")[0]

    def test_levels_follow_the_posterior_difference_until_attention_selects(self):
        """As the page says: early steps follow the dashed line, and noisy levels stay below it in the end."""
        heard, scene = [], SCENES["levels"]
        scene.play(scene.read({"steps": "60"}), lambda kind, data: heard.append(data))
        wanted = np.array(heard[0]["bars"]["theory"])
        early, late = (np.array(heard[1 + step]["bars"]) for step in (20, 60))
        assert np.abs(early - wanted).max() < 0.2
        assert (late[2:] < wanted[2:] - 0.05).all()
        assert heard[61]["lines"][1] > heard[21]["lines"][1] > heard[1]["lines"][1]

    def test_the_direction_reaches_its_certified_limit(self):
        frames = []
        scene = SCENES["direction"]
        assert tuple(scene.parameters[0].choices) == tuple(LIMITS)
        scene.play(scene.read({"steps": "3000", "p": "1.75"}), lambda kind, data: frames.append((kind, data)))
        assert frames[-1][1]["lines"][0] > 0.99
        for row in frames[-1][1]["map"]:
            assert sum(row) == pytest.approx(1.0, abs=1e-3)


def test_a_folder_that_is_no_model_is_a_sentence(client, tmp_path):
    for folder in ("", str(tmp_path / "none"), "/etc/passwd", "~nobody-of-this-name/model", "x" * 5000, "a\0b"):
        answer = client.post("/inspect/start", files={"folder": (None, folder), "pasted": (None, "a text")})
        assert answer.status_code == 400
        assert "folder" in answer.json()["error"]


@pytest.mark.transformers
def test_a_transformer_is_inspected_and_its_numbers_are_kept(client, settings, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "inspection"))
    families = pytest.importorskip("families")
    families.tiny_classifier().save_pretrained(tmp_path / "model")
    families.tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.csv").write_text("text\n" + "the very good film\na bad plot\n" * 10)
    arguments = {
        "folder": str(tmp_path / "model"),
        "path": str(tmp_path / "texts.csv"),
        "column": "text",
        "label": "",
        "most": 500,
    }
    job = JobFolder.new(settings.home / "jobs", JobRequest("inspect", "inspect model", arguments))
    job.finish(inspect_folder(job, arguments))
    found = client.get(f"/inspect/{job.id}/numbers.json").json()
    assert (found["texts"], len(found["heads"])) == (20, 8)
    assert client.get(f"/inspect/{job.id}").status_code == 200
    assert "attachment" in client.get(f"/inspect/{job.id}/page.html").headers["content-disposition"]


def test_fifty_at_once_are_all_answered(trained):
    paths = [PAGES[k % len(PAGES)] for k in range(50)]
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        assert {answer.status_code for answer in pool.map(trained.get, paths)} == {200}


def test_the_recorded_optimizers_end_at_their_certified_limits():
    """`tools/record_limits.py` makes the recording."""
    recorded = json.loads((files("whichtoken") / "app/workbench/static/limits.json").read_text(encoding="utf-8"))
    assert [run["geometry"] for run in recorded["runs"]] == ["l_1.1", "l_2", "l_inf", "spectral"]
    for run in recorded["runs"]:
        assert run["gap"] < 1e-9
        assert run["frames"][0]["cosine"] < 0.9 < 0.99 < run["frames"][-1]["cosine"]
        assert {len(frame["matrix"]) for frame in run["frames"]} == {recorded["dim"] ** 2} == {len(run["limit"])}
