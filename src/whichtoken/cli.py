"""The command line, put together from its commands."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature, unwrap
from typing import Annotated, Any, NoReturn

import typer

from whichtoken import progress
from whichtoken.commands.options import help_unless_asked
from whichtoken.display import notes
from whichtoken.display.notes import warnings_as_notes
from whichtoken.display.text import visible
from whichtoken.errors import UsageError, system_fault
from whichtoken.extras import needed_by

INTERRUPTED = 130  # what typer makes of Ctrl-C
HELP = ("-h", "--help")
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no notes, only results and errors.")]


@dataclass(frozen=True)
class Command:
    """Where a command is, and what the list of all commands says of it: its file is loaded when it is used."""

    place: str  # module and function, or a program of its own with commands inside
    help: str

    def load(self) -> Any:
        module, name = self.place.split(":")
        return getattr(import_module(f"whichtoken.commands.{module}"), name)


COMMANDS = {
    "demo": Command(
        "demo:demo",
        "Take the tour: check six claims, train and explain a text classifier, look into a head, write the report.",
    ),
    "list": Command(
        "list:list_claims", "List the claims and what became of them, here and in the long runs on record."
    ),
    "reproduce": Command(
        "reproduce:reproduce", "Check claims: simulate, predict and judge. Only what is missing is computed."
    ),
    "report": Command("report:report", "Write an HTML report from the stored results; nothing is computed again."),
    "export": Command(
        "export:export",
        "Write the stored rows as a table, with a column for every field and every measured or predicted value.",
    ),
    "bench": Command("bench:bench", "Compare whichtoken with what you would use instead: ratios, timed in one run."),
    "plan": Command(
        "plan:plan",
        "Plan a study: is the signal detectable, with how much data, and does attention beat a linear model?",
    ),
    "fit": Command(
        "fit:fit",
        "Train on your own file, save the model to a folder, and compare it with a baseline on held-out rows.",
    ),
    "predict": Command(
        "predict:predict",
        "Predict labels and probabilities for the rows of a file, beside its own columns; a bag gets one line.",
    ),
    "evaluate": Command(
        "evaluate:evaluate",
        "Score a saved model on labelled data: metrics with intervals, each class, and what abstaining would give.",
    ),
    "explain": Command(
        "explain:explain", "Show which tokens, instances or groups of columns decided, and what would change the label."
    ),
    "inspect": Command(
        "inspect:inspect_model",
        "Show which token each head of a transformer picks, how surely, and whether it matters.",
    ),
    "serve": Command(
        "serve:serve",
        "Start the workbench: claims, planner, your data, training and transformers, live in your browser.",
    ),
}


def __getattr__(name: str) -> Any:
    if name == "app":
        return program(COMMANDS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def program(loaded: Collection[str]) -> typer.Typer:
    """The command line, with these commands ready to run; of the others only their help is there."""
    app = typer.Typer(
        help="Which token does softmax attention pick, why, and how surely.",
        epilog="Start with: whichtoken demo",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP)},
    )
    app.callback(invoke_without_command=True)(options)
    for name, command in COMMANDS.items():
        if name not in loaded:
            app.command(name, help=command.help)(_not_loaded)
        elif isinstance(found := command.load(), typer.Typer):
            for part in found.registered_commands:
                part.callback = _with_quiet(unwrap(part.callback))  # type: ignore[arg-type]  # the same each time
            app.add_typer(found, name=name)
        else:
            app.command(name)(_with_quiet(found))
    return app


def _with_quiet(function: Callable[..., None]) -> Callable[..., None]:
    """The command with one more option, --quiet."""

    @wraps(function)
    def run(*, quiet: bool, **options: Any) -> None:
        progress.quiet = notes.quiet = quiet
        function(**options)

    own = signature(function, eval_str=True)
    option = Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {name: part.annotation for name, part in run.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return run


def _not_loaded() -> None:
    raise AssertionError("a command runs only after it is loaded")


def _needed(arguments: list[str]) -> Collection[str]:
    """The commands that a command line may use: the one that it names, none for help on all, otherwise any."""
    if "_WHICHTOKEN_COMPLETE" in os.environ:  # a shell asks for names and flags
        return COMMANDS
    if not arguments or arguments[0] in HELP:
        return ()
    return [arguments[0]] if arguments[0] in COMMANDS else COMMANDS


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it keeps its fonts is not for the reader
    try:
        with warnings_as_notes(), needed_by("this command"), _few_collections():
            status = program(_needed(sys.argv[1:]))(standalone_mode=False, prog_name="whichtoken")
            sys.stdout.flush()  # not left to the end of Python, which could only complain
    except UsageError as error:
        _fail(str(error))
    except RuntimeError as error:
        if "no locator available" not in str(error):  # what numba says where it can keep nothing
            raise
        _fail("no folder can be written for compiled kernels; set NUMBA_CACHE_DIR to one that can")
    except typer.TyperException as error:
        _fail(error.format_message())
    except Exception as error:
        if not (sentence := system_fault(error)):
            raise
        _fail(f"{sentence}, then run again")
    if status == INTERRUPTED:
        stored = (
            "; finished rows are saved, and the same command continues from there"
            if {"demo", "reproduce"} & {*sys.argv}
            else ""
        )
        print(f"whichtoken: stopped{stored}", file=sys.stderr)
    sys.exit(status)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Look for garbage seldom, and not at the end: looking through what a command loads takes a quarter of a short run."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _fail(message: str) -> NoReturn:
    print(f"whichtoken: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        from whichtoken.machine import part_versions

        own, *parts = (f"{name} {number}" for name, number in part_versions().items())
        print(f"{own} ({', '.join(parts)})")
        raise typer.Exit


def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the versions of whichtoken and its main packages."
        ),
    ] = False,
) -> None:
    """Which token does softmax attention pick, why, and how surely."""
    help_unless_asked(context)
