"""The command line, put together from its commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from whichtoken.commands.bench import bench
from whichtoken.commands.evaluate import evaluate
from whichtoken.commands.explain import explain
from whichtoken.commands.export import export
from whichtoken.commands.fit import fit
from whichtoken.commands.inspect import inspect_model
from whichtoken.commands.list import list_claims
from whichtoken.commands.options import help_unless_asked
from whichtoken.commands.plan import plan
from whichtoken.commands.predict import predict
from whichtoken.commands.report import report
from whichtoken.commands.reproduce import reproduce
from whichtoken.commands.serve import serve
from whichtoken.display.notes import warnings_as_notes
from whichtoken.display.text import visible
from whichtoken.errors import UsageError

INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    help="Which token does softmax attention pick, why, and how surely.",
    epilog="Start with: whichtoken list, then whichtoken reproduce, then whichtoken report.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("list")(list_claims)
app.command()(reproduce)
app.command()(report)
app.command()(export)
app.command()(bench)
app.command()(plan)
app.add_typer(fit, name="fit")
app.command()(predict)
app.command()(evaluate)
app.command()(explain)
app.command("inspect")(inspect_model)
app.command()(serve)


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    try:
        with warnings_as_notes():
            status = app(standalone_mode=False, prog_name="whichtoken")
            sys.stdout.flush()  # not left to the end of Python, which would complain if the reader has gone
    except UsageError as error:
        _fail(str(error))
    except typer.TyperException as error:
        _fail(error.format_message())
    except (BrokenPipeError, SystemExit) as end:
        # the reader (head, less) has seen enough, which typer and rich turn into an exit with code 1
        if BrokenPipeError not in (type(end), type(end.__context__)):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    if status == INTERRUPTED:
        stored = (
            "; finished rows are saved, and the same command continues from there" if "reproduce" in sys.argv else ""
        )
        print(f"whichtoken: stopped{stored}", file=sys.stderr)
    sys.exit(status)


def _fail(message: str) -> NoReturn:
    print(f"whichtoken: {visible(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        from whichtoken.machine import part_versions

        own, *parts = (f"{name} {number}" for name, number in part_versions().items())
        print(f"{own} ({', '.join(parts)})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
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
