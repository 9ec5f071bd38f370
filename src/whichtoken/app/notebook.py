"""The explainer of a model as a widget in a notebook: what its page shows, live in a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from whichtoken.display.html import asset
from whichtoken.errors import UsageError
from whichtoken.estimators.explainer_page import script_of
from whichtoken.extras import needed_by

if TYPE_CHECKING:
    from anywidget import AnyWidget

# what a front end calls; the cell takes the place of the page
RENDER = "export default { render({ model, el }) { el.classList.add('explainer', 'decision'); \
showModel(el, model.get('packed'), makeStemmer()); } };"


def explainer_widget(model: Any, examples: Any = (), *, title: str | None = None) -> AnyWidget:
    """The explainer of a fitted classifier, to type, paste and strike out in a notebook.

    Reach for it where `save_explainer` would write a file: it computes in the browser, with the arithmetic of the library, and
    refuses the same models. Nothing is left out of it, since the notebook has the model anyway. Needs `whichtoken[notebook]`.

    Parameters
    ----------
    model : TextClassifier, GroupClassifier or BagClassifier
        Fitted.
    examples : sequence, optional
        Texts, rows or bags that it offers.
    title : str, optional
        Its name, for whoever saves the widget.

    Returns
    -------
    anywidget.AnyWidget
        Shown by being the last line of a cell; `packed` is what the browser knows.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> from whichtoken.app import explainer_widget
    >>> model = TextClassifier(random_state=0).fit(["a good film", "a bad film"] * 10, ["praise", "blame"] * 10)
    >>> explainer_widget(model, ["a good film"]).packed["classes"]  # doctest: +SKIP
    ['blame', 'praise']
    """
    from whichtoken.estimators import BagClassifier, GroupClassifier, TextClassifier

    with needed_by("a widget"):
        import anywidget
        import traitlets

    if not isinstance(model, TextClassifier | GroupClassifier | BagClassifier):
        raise UsageError(f"a widget explains a classifier of texts, bags or groups, not {type(model).__name__}")
    check_is_fitted(model)
    if isinstance(model, TextClassifier):
        from whichtoken.estimators.text.explainer import check_exportable, pack_model, page_script

        check_exportable(model)
        packed, script = pack_model(model, examples, title=title), page_script(model.stemmer)
    elif isinstance(model, GroupClassifier):
        from whichtoken.estimators.groups.explainer import SCRIPTS, pack_groups

        packed, script = pack_groups(model, examples, title=title), script_of(SCRIPTS)
    else:
        from whichtoken.estimators.bags import explainer as bags

        packed, script = bags.pack_bags(model, examples, title=title), script_of(bags.SCRIPTS)
    # the colors of the pages, for this cell alone
    colors = asset("style.css").partition("\n* {")[0].replace(":root", ".explainer")
    style = "\n".join([colors, asset("decision.css"), asset("explainer/explainer.css")])
    known = {"_esm": f"{script}\n{RENDER}", "_css": style, "packed": traitlets.Dict().tag(sync=True)}
    widget: AnyWidget = type("ExplainerWidget", (anywidget.AnyWidget,), known)(packed=packed)
    return widget
