"""The command line, built from its commands."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from inspect import Parameter, cleandoc, signature, unwrap
from textwrap import wrap
from typing import Annotated, Any, NoReturn

import typer

from whichtoken.app.cli.options import help_if_no_command, in_flags
from whichtoken.display import terminal
from whichtoken.display.terminal import warnings_as_notes
from whichtoken.display.text import visible
from whichtoken.errors import UsageError, system_fault
from whichtoken.extras import needed_by

INTERRUPTED = 130  # typer's status after Ctrl-C
HELP = ("-h", "--help")
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors, no progress and no notes.")]


# the help is written here as well, so that the list of commands needs no module; each module is loaded when it is used
COMMANDS = {
    "demo": "Take the tour: check six claims, train and explain a text classifier, look into a head, write an HTML report.",
    "list": "List the claims and their verdicts, from your own runs and from the long runs on record.",
    "reproduce": "Check claims: simulate, predict and compare. Only missing rows are computed.",
    "stress": "Search a claim's parameters for the values at which it stops holding, and draw them.",
    "new": "Write a starter file for a claim of your own, which runs as it is.",
    "report": "Write an HTML report from the stored results, without computing anything again.",
    "export": "Write the stored rows as a table, with a column for every field and every measured or predicted value.",
    "bench": "Compare whichtoken with the usual alternatives, all measured in the same run.",
    "plan": "Plan a study: is the signal detectable, with how much data, and does attention beat a linear model?",
    "fit": "Train on your own file, save the model to a folder, and compare it with a baseline on held-out rows.",
    "predict": "Predict labels and probabilities, or numbers, as columns added to your table; a bag gets one row.",
    "evaluate": "Score a saved model on labeled data: metrics with intervals, each class or label, and the effect of abstaining.",
    "explain": "Show which tokens, instances or groups of columns decided, and what would change the label or the number.",
    "inspect": "Show which token each head of a transformer picks, how confidently, why, and whether it matters.",
    "serve": "Start the workbench: claims, planner, your data, training and transformers, live in your browser.",
}


def __getattr__(name: str) -> Any:
    if name == "app":
        return program(COMMANDS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def program(loaded: Collection[str]) -> typer.Typer:
    """The command line with these commands ready to run, and only the help of the others."""
    app = typer.Typer(
        help="Which token does softmax attention pick, why, and how confidently?",
        epilog="Start with: whichtoken demo",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP)},
    )
    app.callback(invoke_without_command=True)(options)
    for name, text in COMMANDS.items():
        if name not in loaded:
            app.command(name, help=text)(_not_loaded)
            continue
        command = getattr(import_module(f"whichtoken.app.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            for part in command.registered_commands:
                # the program may be built twice
                part.callback = _with_quiet(unwrap(part.callback))  # type: ignore[arg-type]
            app.add_typer(command, name=name)
        else:
            app.command(name)(_with_quiet(command))
    return app


def _hide_types(command: Any, parent: typer.Context | None = None) -> None:
    """Leave <bool> and <list[str]> out of the help, which names what to give."""
    context = typer.Context(command, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument" or parameter.is_flag:
            parameter.display_type_rich = lambda ctx: None
    for part in getattr(command, "commands", {}).values():
        _hide_types(part, context)


def _with_quiet(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option --quiet to a command, and name its options in errors about arguments of the library."""
    own = signature(function, eval_str=True)

    @wraps(function)
    def run(*, quiet: bool, **options: Any) -> None:
        terminal.quiet = quiet
        try:
            function(**options)
        except UsageError as error:
            sentence = in_flags(error, own.parameters, options)
            if sentence == str(error):
                raise
            raise UsageError(sentence) from error

    option = Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    run.__doc__ = _with_examples(function.__doc__ or "")
    run.__annotations__ = {name: part.annotation for name, part in run.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return run


def _with_examples(text: str) -> str:
    """The help of a command, with one example a line; the others are continued as a shell continues them."""
    about, found, examples = cleandoc(text).partition("Example")
    if not found:
        return about
    commands = [line.strip() for line in examples.partition(":")[2].splitlines() if line.strip()]
    joined = [re.sub(r"(--\S+) (?!-)", r"\1\0", line) for line in commands]  # an option stays with its value
    shown = [" \\\n".join(wrap(line, 76, initial_indent="  ", subsequent_indent="      ")) for line in joined]
    heading = "Examples:" if shown[1:] else "Example:"
    return "\n".join([about.rstrip(), "", "\b", heading, *shown]).replace("\0", " ")


def _not_loaded() -> None:
    raise AssertionError("a command runs only after it is loaded")


def _commands_to_load(arguments: list[str]) -> Collection[str]:
    """The commands that a command line may use: the one that it names, none for the list of commands, otherwise all."""
    # a shell completes names and options
    if "_WHICHTOKEN_COMPLETE" in os.environ:
        return COMMANDS
    if not arguments or arguments[0] in HELP:
        return ()
    return [arguments[0]] if arguments[0] in COMMANDS else COMMANDS


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    # users need not know where it stores its fonts
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    if {"inspect", "serve"} & {*sys.argv[1:2]}:
        # beside other work, threads that spin while they wait take a small encoder seven times its processor time
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with warnings_as_notes(), needed_by("this command"), _few_collections():
            command = typer.main.get_command(program(_commands_to_load(sys.argv[1:])))
            _hide_types(command)
            status = command(standalone_mode=False, prog_name="whichtoken")
            # at its end, Python could not handle an error any more
            sys.stdout.flush()
    except UsageError as error:
        _fail(str(error))
    except RuntimeError as error:
        # numba's error if it cannot write its cache
        if "no locator available" not in str(error):
            raise
        _fail("no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to a folder that can be written")
    except typer.TyperException as error:
        about = getattr(error, "param", None) if type(error).__name__ == "MissingParameter" else None
        _fail(f"{error.format_message()} {getattr(about, 'help', None) or ''}".strip())
    except Exception as error:
        if not (sentence := system_fault(error)):
            raise
        _fail(f"{sentence}, then run again")
    if status == INTERRUPTED:
        stores = {"demo", "reproduce", "stress"} & {*sys.argv}
        kept = "; finished rows are saved, and the same command continues from there" if stores else ""
        print(f"whichtoken: stopped{kept}", file=sys.stderr)
    sys.exit(status)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Collect garbage seldom, and not at the end: that would take a quarter of the time of a short command."""
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
    """Which token does softmax attention pick, why, and how confidently?"""
    help_if_no_command(context)
