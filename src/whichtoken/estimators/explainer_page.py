"""Pages that hold their model: how scripts, numbers and columns get into one HTML file, for texts, rows and bags."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.html import asset, policy, template_engine
from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize
from whichtoken.errors import UsageError
from whichtoken.files import write_text

LARGEST = 8_000_000  # bytes of a page that still opens at once on a phone
STYLES = ("style.css", "decision.css", "explainer/explainer.css")
NO_STEMMER = "const makeStemmer = () => null;"
# what stood in the place was for browsers without scripts
START = """const placed = (id) => document.getElementById(id);
showModel(placed("explainer"), JSON.parse(placed("model").textContent), makeStemmer());"""
CARD = ("evaluation", "limits")  # what a page shows of the card of a model, beside the size and name of its data


@dataclass(frozen=True)
class SavedPage(Shown):
    """What `save_explainer` wrote.

    Attributes
    ----------
    path : Path
        The page.
    size : int
        Its bytes.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from whichtoken import GroupClassifier
    >>> X = np.random.default_rng(0).standard_normal((100, 4))
    >>> model = GroupClassifier(["a", "a", "b", "b"], random_state=0).fit(X, X[:, 0] > 0)
    >>> with TemporaryDirectory() as folder:
    ...     saved = model.save_explainer(f"{folder}/page.html", examples=X[:3])
    >>> saved.size < 100_000
    True
    """

    path: Path
    size: int

    def sentences(self) -> list[str]:
        """What a person who publishes the page should know."""
        return [f"the page has {self.size / 1e6:.2f} MB"]


def write_page(path: str | Path, text: str, advice: str, **whole: int) -> int:
    """Write a page and return its bytes; of a large one, `advice` names the parts of `whole` numbers that would fit."""
    size = len(text.encode())
    if size > LARGEST:
        fits = {name: max(1, int(count * LARGEST / size * 0.9)) for name, count in whole.items()}
        said = f"the page would have {size / 1e6:.1f} MB, more than {LARGEST / 1e6:g} MB, {advice}"
        raise UsageError(said, **fits)
    write_text(path, text)
    return size


def page_html(packed: Mapping[str, Any], script: str) -> str:
    """The HTML of a page: `packed` is all that it knows, and the script, with `showModel`, is all that it runs."""
    script = f'"use strict";\n{{\n{script}\n{START}\n}}\n'
    style = "\n".join(map(asset, STYLES))
    data = json.dumps(packed, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    template = template_engine("whichtoken.display", "assets").get_template("explainer/page.html")
    return template.render(
        title=packed["title"], style=style, script=script, policy=policy(script, style),
        # nothing in a text or a name can end the element
        data=re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", data),
    )  # fmt: skip


def script_of(names: Sequence[str], first: str = NO_STEMMER) -> str:
    """Modules of the page as one script: imports are left out, since everything stands in one scope."""
    parts = [first, *(asset(f"explainer/{name}") for name in names)]
    return re.sub(r"^import .*\n|^export (default )?", "", "\n".join(parts), flags=re.MULTILINE)


def packed_numbers(array: NDArray[np.float64], kind: type[np.floating[Any]] = np.float64) -> dict[str, Any]:
    """Numbers as a page reads them, without loss in their precision."""
    stored = np.ascontiguousarray(array, dtype=np.dtype(kind).newbyteorder("<"))
    return {"bits": 8 * stored.itemsize, "base64": base64.b64encode(stored.tobytes()).decode()}


def alternatives(classes: Sequence[str]) -> str:
    """Labels in the title of a page."""
    return " or ".join(classes) if len(classes) < 4 else f"{pluralize(len(classes), 'label')}"


def shown_card(card: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The part of a model's card that a page shows: names of columns and the like stay where they are."""
    if card is None:
        return None
    data = card.get("data") or {}
    about = {"data": {name: data.get(name) for name in ("rows", "file")}} if data else {}
    return {name: card[name] for name in CARD if name in card} | about


@dataclass(frozen=True)
class PageColumns:
    """Columns that a reader fills in, in the order of the features that they become."""

    inputs: list[dict[str, Any]]  # name, number for a gap, levels or None
    features: list[int]  # of the model

    @classmethod
    def of(cls, model: Any, used: Sequence[int], table: Mapping[str, Any] | None) -> PageColumns:
        """The columns behind some features: of the table that a fit has read, otherwise the features themselves."""
        names = [str(name) for name in getattr(model, "feature_names_in_", range(len(model.fills_)))]
        if table is None:
            return cls([{"name": names[k], "fill": float(model.fills_[k]), "levels": None} for k in used], list(used))
        places = {names[k]: k for k in used}
        inputs: list[dict[str, Any]] = []
        features: list[int] = []
        for column in table["columns"]:
            levels = table["levels"].get(column)
            own = [column] if levels is None else [f"{column}={level}" for level in levels]
            if all(name in places for name in own):
                inputs.append({"name": column, "fill": table["fills"].get(column), "levels": levels and list(levels)})
                features += [places[name] for name in own]
        if sorted(features) != sorted(used):
            raise UsageError("the table does not describe the columns of the model")
        return cls(inputs, features)

    def cells(self, rows: Any) -> list[list[str]]:
        """Example rows as texts: a DataFrame with these columns, or numbers (n, features)."""
        if hasattr(rows, "columns"):
            columns = [rows[column["name"]].tolist() for column in self.inputs]
        else:
            columns = np.asarray(rows, dtype=np.float64)[:, self.features].T.tolist()
        return [
            ["" if cell is None or cell != cell else str(cell) for cell in row] for row in zip(*columns, strict=True)
        ]
