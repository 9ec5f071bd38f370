"""A table of fitted attributes, shown in notebooks below scikit-learn's diagram of the estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.display.shown import facts_html
from whichtoken.display.text import counted

# fitted attributes, in the order in which they are shown
SHOWN = {
    "classes_": "classes",
    "n_features_in_": "features",
    "pooling_": "pooling",
    "selected_groups_": "selected groups",
    "comparison_": "why these groups",
    "n_iter_": "steps",
    "choice_": "choice",
}


class FittedSummary:
    """Adds a table of what was fitted to the HTML of an estimator; before the fit nothing is added."""

    if TYPE_CHECKING:  # of scikit-learn's BaseEstimator

        def _repr_html_inner(self) -> str: ...

        def _repr_mimebundle_(self, **options: Any) -> dict[str, str]: ...

    else:

        def _repr_html_inner(self):
            return super()._repr_html_inner() + self._fitted_html()

        def _repr_mimebundle_(self, **options):
            bundle = super()._repr_mimebundle_(**options)
            return bundle | {kind: part + self._fitted_html() for kind, part in bundle.items() if kind == "text/html"}

    def _fitted_html(self) -> str:
        if not hasattr(self, "choice_"):
            return ""
        return facts_html(f"Fitted {type(self).__name__}", self._fitted_facts())

    def _fitted_facts(self) -> dict[str, object]:
        """Names and values of the table."""
        found = {words: getattr(self, name) for name, words in SHOWN.items() if getattr(self, name, None) is not None}
        if "classes" in found:
            names = [str(label) for label in np.asarray(found["classes"]).tolist()]
            found["classes"] = ", ".join(names) if len(names) <= 8 else counted(len(names), "class")
        return found
