"""The process of `test_extras.py`: Python with packages that cannot be imported, and what whichtoken then does, as JSON."""

import contextlib
import importlib
import io
import json
import pkgutil
import sys
from importlib import metadata
from pathlib import Path

asked = json.loads(sys.argv[1])


class Refuse:
    """Finds nothing of the refused packages, as if they were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in asked["refused"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def from_name(name, installed=metadata.Distribution.from_name):
    """What is known of an installed package; nothing of a refused one."""
    if name in asked["refused"]:
        raise metadata.PackageNotFoundError(name)
    return installed(name)


sys.meta_path.insert(0, Refuse())
metadata.Distribution.from_name = from_name


def packages():
    """Every package of whichtoken, found by its folder and imported."""
    names = ["whichtoken"]
    for name in names:
        folders = importlib.import_module(name).__path__
        names += [f"{name}.{info.name}" for info in pkgutil.iter_modules(folders) if info.ispkg]
    return names


def missing_names(names):
    """The public names that cannot be had, each with the kind of its error and what it says."""
    missing = {}
    for name in names:
        module = sys.modules[name]
        for public in getattr(module, "__all__", ()):
            try:
                getattr(module, public)
            except ImportError as error:
                missing[f"{name}.{public}"] = [type(error).__name__, str(error)]
    return missing


def command(*arguments):
    """Exit code, output and errors of the command line."""
    from whichtoken.app.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["whichtoken", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            return [end.code or 0, out.getvalue(), err.getvalue()]


def pages(paths):
    """Status and text of pages of the workbench."""
    from starlette.testclient import TestClient

    from whichtoken.app.workbench.serving import create_app
    from whichtoken.app.workbench.settings import ServerSettings

    with TestClient(create_app(ServerSettings(Path("out"))), "http://127.0.0.1:8765") as client:
        answers = {path: client.get(path) for path in paths}
    return {path: [answer.status_code, answer.text] for path, answer in answers.items()}


def first_rows(ids):
    """Status and message of the first row of claims."""
    from whichtoken.lab.discovery import find
    from whichtoken.lab.plan import make_plan
    from whichtoken.lab.worker import work

    outcomes = {id: work(make_plan(find(id), "quick", seeds=1).tasks[0]) for id in ids}
    return {id: [outcome.status, outcome.message] for id, outcome in outcomes.items()}


found = {"packages": packages(), "loaded": sorted({name.partition(".")[0] for name in sys.modules})}
found["missing"] = missing_names(found["packages"])
found["commands"] = [command(*arguments) for arguments in asked["commands"]]
found["pages"] = pages(asked["pages"])
found["rows"] = first_rows(asked["claims"])
print(json.dumps(found))
