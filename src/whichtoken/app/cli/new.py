"""whichtoken new: start a claim of your own."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from whichtoken.app.cli.options import help_if_no_command, new_model, value
from whichtoken.display.terminal import say
from whichtoken.errors import UsageError
from whichtoken.files import check_place, write_text

new = typer.Typer()


@new.callback(invoke_without_command=True)
def kinds(context: typer.Context) -> None:
    """Write a starter file for a claim of your own, which runs as it is."""
    help_if_no_command(context)


@new.command("claim")
def new_claim(
    id: Annotated[str, typer.Argument(metavar="THEORY/CLAIM", help="Id of the claim, such as mine/large-margins.")],
    to: Annotated[Path | None, value("FOLDER", "Folder of the file; default: claims.", "--to")] = None,
) -> None:
    """Write the file of a new claim, which runs as it is; then replace its example with your claim."""
    found = re.fullmatch(r"[a-z][a-z0-9-]*/([a-z][a-z0-9-]*)", id)
    if not found or keyword.iskeyword(found[1]):
        raise UsageError(
            f"'{id}' must be written as theory/claim, in lowercase letters, digits and hyphens, such as mine/large-margins"
        )
    folder, name = to or Path("claims"), found[1].replace("-", "_")
    path = folder / f"{name}.py"
    if path.exists():
        raise UsageError(f"{path} already exists; choose another name or folder")
    if new_model(folder).exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --to names a folder")
    folder.mkdir(parents=True, exist_ok=True)
    check_place(path)
    skeleton = Template((files("whichtoken.app.cli") / "claim.txt").read_text(encoding="utf-8"))
    # a name that nothing else in the file has, whatever the claim is called: mean, point and grid are taken
    class_name = name.title().replace("_", "") + "Claim"
    write_text(path, skeleton.substitute(id=id, folder=folder, code=found[1], class_name=class_name))
    say(f"wrote {path}\nnext: WHICHTOKEN_EXPERIMENTS={folder} whichtoken reproduce {id} --verbose")
