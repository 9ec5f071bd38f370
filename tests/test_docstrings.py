"""Every exported object says what it takes and what it gives back, with an example that runs."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

from exported_names import exports

TITLES = "Parameters|Attributes|Returns|Raises|Notes|References|Examples"
# examples that need a network, a package of data, a cluster or minutes: shown, not run
NOT_RUN = {
    "DaskEngine",
    "Result",
    "explainer_widget",
    "packaged_model",
    "read_bag_set",
    "read_imdb",
    "read_movie_reviews",
    "reproduce",
    "stress",
    "write_report",
}


CONSTANTS = {("whichtoken.lab", "Measured"), ("whichtoken.lab.engines", "ENGINES")}
OBJECTS = sorted(set(exports()) - CONSTANTS)


def sections(docstring):
    """The text before the first section and that of every section, by title."""
    parts = re.split(rf"^({TITLES})\n-+\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def entries(section):
    """Names, type and description of each entry of a section of parameters."""
    found = re.findall(r"^([*\w][\w*, ]*) : (.+)\n((?: +.+\n?|\n)*)", section + "\n", flags=re.MULTILINE)
    return [([name.strip(" *") for name in names.split(",")], kind, text.strip()) for names, kind, text in found]


def parameters(thing):
    """Names that a caller may give."""
    if inspect.isclass(thing) and getattr(thing, "_is_protocol", False):
        return []
    return [name for name in inspect.signature(thing).parameters if not name.startswith("_")]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny transformer as `save_pretrained` writes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "inspection"))
        families = importlib.import_module("families")
    folder = tmp_path_factory.mktemp("models") / "my-model"
    families.tiny_classifier().save_pretrained(folder)
    families.tiny_tokenizer().save_pretrained(folder)
    return folder


def test_what_the_package_exports_the_rooms_export_too():
    import whichtoken

    names = {name for _, name in OBJECTS}
    assert {name for name in whichtoken.__all__ if not name.islower()} <= names


@pytest.mark.parametrize(("module", "name"), OBJECTS)
def test_docstring_is_complete(module, name):
    thing = getattr(importlib.import_module(module), name)
    found = sections(thing.__doc__)
    assert found[""].strip()
    described = entries(found.get("Parameters", "") + "\n" + found.get("Attributes", ""))
    named = [name for names, _, _ in described for name in names]
    assert [name for name in named if name in parameters(thing)] == parameters(thing)
    assert not [names for names, kind, text in described if set(names) & set(parameters(thing)) and not (kind and text)]
    returns = not inspect.isclass(thing) and inspect.signature(thing).return_annotation not in {"None", None}
    assert not returns or found.get("Returns", "").strip()
    assert ">>> " in found.get("Examples", "")


@pytest.mark.docs
@pytest.mark.parametrize(("module", "name"), OBJECTS)
def test_example_runs(module, name, tmp_path, request):
    thing = getattr(importlib.import_module(module), name)
    if "my-model" in thing.__doc__:
        (tmp_path / "my-model").symlink_to(request.getfixturevalue("model_folder"))
    example = doctest.DocTestParser().get_doctest(inspect.cleandoc(thing.__doc__), {}, name, None, None)
    skipped = [part for part in example.examples if part.options.get(doctest.SKIP)]
    assert bool(skipped) == (name in NOT_RUN)
    report = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)
