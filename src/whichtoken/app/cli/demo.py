"""whichtoken demo: a tour of the results, in about a minute, with pages to look at."""

from __future__ import annotations

import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whichtoken.app.cli.options import OutFolder
from whichtoken.display import terminal
from whichtoken.display.terminal import say
from whichtoken.errors import UsageError
from whichtoken.extras import is_installed, lacks
from whichtoken.files import DEFAULT_FOLDER
from whichtoken.progress import progress_lines

if TYPE_CHECKING:
    from whichtoken.app.movie_reviews import MovieModel
    from whichtoken.lab.results import Result

MODEL, REVIEW_PAGE = "movie-model", "review.html"  # in the output folder
STEPS = 4


@dataclass(frozen=True)
class Headline:
    """A claim of the tour, and a sentence with the numbers of its verdicts."""

    claim: str
    theory: str
    sentence: str  # a format string: `measured` and `theory` map codes to numbers
    against: Mapping[str, str] = field(default_factory=dict)  # the meaning of a verdict that disagrees, by code


HEADLINES = tuple(
    Headline(**entry)
    for entry in tomllib.loads((files(__package__) / "headlines.toml").read_text(encoding="utf-8"))["headline"]
)


def demo(
    out: OutFolder = DEFAULT_FOLDER,
    open_page: Annotated[bool, typer.Option("--open", help="Open the report in the browser at the end.")] = False,
) -> None:
    """Take the tour: check six claims, train and explain a text classifier, look into a head, write an HTML report.

    It takes about a minute on two cores. After an interruption, the same command continues with the missing claims.
    """
    import webbrowser

    results, model, head, page = _claims(out), _text(out), _head(), _report(out)
    _summary(results, model, head, page, out)
    if open_page:
        webbrowser.open(page.absolute().as_uri())


@contextmanager
def _step(number: int, title: str) -> Iterator[Callable[[str], None]]:
    """Print the title of a step; the function that it yields prints the outcome and the time."""
    _say_progress(f"[{number}/{STEPS}] {title}")
    began = time.monotonic()
    with progress_lines():
        yield lambda outcome: _say_progress(f"      {outcome} ({time.monotonic() - began:.0f} s)")


def _claims(out: Path) -> list[Result]:
    from whichtoken.lab import reproduce

    _say_progress(f"[1/{STEPS}] six claims: one of each theory, one of the optimizers")
    results = reproduce([headline.claim for headline in HEADLINES], out=out)
    for headline, result in zip(HEADLINES, results, strict=True):
        _say_progress(f"      {headline.theory}: {_state_summary(result)} ({result.seconds:.0f} s of computing)")
    return results


def _text(out: Path) -> MovieModel:
    from whichtoken.app.movie_reviews import REVIEW, bundled_movie_model, train_movie_model
    from whichtoken.app.pages.explanations import as_html
    from whichtoken.files import write_text

    with _step(2, "a classifier of movie reviews, and one decision explained") as done:
        try:
            model = train_movie_model()
        except UsageError:
            # the package with the reviews is not installed
            model = bundled_movie_model()
        model.classifier.save(out / MODEL)
        [why] = model.classifier.explain([REVIEW])
        write_text(out / REVIEW_PAGE, as_html([why]))
        _say_progress(f"      {model.source}")
        done(f"{model.accuracy:.1%} of {model.held_out} unseen reviews are classified correctly")
    return model


def _head() -> Any:
    with _step(3, "one head of a small transformer") as done:
        if not is_installed("torch"):
            done(f"skipped: it {lacks('torch')}")
            return None
        from whichtoken.inspection.small_transformer import train_small_transformer

        found = train_small_transformer()
        done(f"trained on {found.training} texts; {found.accuracy:.0%} of {found.held_out} unseen ones are right")
    return found


def _report(out: Path) -> Path:
    from whichtoken.app.pages.html import write_pages

    with _step(4, "the report of the long runs, with the claims of this machine marked") as done:
        page = write_pages(out, record=True, checked=True).index
        done(str(page))
    return page


def _summary(results: Sequence[Result], model: MovieModel, head: Any, page: Path, out: Path) -> None:
    """The last screen: the results, the pages, and what to try next."""
    from whichtoken.app.movie_reviews import REVIEW

    say("\nWhat was found on this machine", "bold")
    for headline, result in zip(HEADLINES, results, strict=True):
        say(f"  {headline.theory}: {_fill_sentence(headline, result)}")
        for verdict in result.verdicts:
            if verdict.state == "disagrees":
                say(f"    disagrees: {headline.against.get(verdict.code, verdict.claim)}")
    [why] = model.classifier.explain([REVIEW])
    change = why.view().change
    flip = f"deleting {', '.join(change.parts)} makes it {change.to}" if change.parts else change.none
    say(f"  text: a mixed review is {why.label} ({why.probability:.0%}); {flip}")
    if head is not None:
        say(f"  head: {head.sentence}")
    say("Pages", "bold")
    say(f"  {page}: what the long runs found")
    say(f"  {out / REVIEW_PAGE}: the review, with the words that decided")
    say("Try next", "bold")
    place = "" if out == DEFAULT_FOLDER else f" --out {out}"
    last = "serve" if is_installed("starlette") else "list"
    # its path, if a shell would not find it by its name
    program = "whichtoken" if shutil.which("whichtoken") else sys.argv[0]
    own, claim = f'explain {out / MODEL} "your own review"', f"reproduce mirror-descent/direction{place}"
    for command in (own, claim, last + place):
        say(f"  {program} {command}", wrap=False)


def _fill_sentence(headline: Headline, result: Result) -> str:
    """The sentence of a headline with the numbers of a run."""
    every = [part for verdict in result.verdicts for part in (verdict, *verdict.evidence)]
    try:
        measured, theory = ({part.code: getattr(part, name) for part in every} for name in ("measured", "theory"))
        text = headline.sentence.format(measured=measured, theory=theory)
    except (KeyError, TypeError, ValueError):
        return next((verdict.note for verdict in result.verdicts if verdict.note), "not run here")
    return f"{text} [{_state_summary(result)}]"


def _state_summary(result: Result) -> str:
    from whichtoken.app.pages.sentences import counts, describe_states

    return describe_states(counts(result.verdicts)) if result.verdicts else "nothing was judged"


def _say_progress(line: str) -> None:
    if not terminal.quiet:
        say(line)
