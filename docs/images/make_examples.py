"""Draws the pictures of some pages by their examples, so that the pages have them without a build of the gallery.

    python docs/images/make_examples.py                 # all of them; some minutes
    python docs/images/make_examples.py plan_a_study    # one of them

An example whose data or model is not installed says so, and its picture stays as it is.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
EXAMPLES = {
    "theorem_at_your_size": "researchers",
    "plan_a_study": "researchers",
    "which_words_decided": "practitioners",
    "molecules_as_bags": "practitioners",
    "groups_of_columns": "practitioners",
    "which_token_each_head_picks": "engineers",
}


def draw(name: str) -> None:
    """Run an example and keep its last figure, or say why it has none."""
    plt.close("all")
    try:
        runpy.run_path(str(HERE.parent.parent / "examples" / EXAMPLES[name] / f"plot_{name}.py"))
    except SystemExit:
        print(f"{name} needs what the sentence above names; its picture stays as it is")
        return
    plt.gcf().savefig(HERE / f"example_{name}.png", dpi=72, metadata={"Software": None})


if __name__ == "__main__":
    for each in sys.argv[1:] or EXAMPLES:
        draw(each)
