"""Draw how time and memory grow with the data, from the last run of `whichtoken bench scaling`.

python docs/images/make_scaling.py
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from whichtoken.display.figures import as_svg, finish, page_settings
from whichtoken.files import write_text
from whichtoken.lab.record import record_folder

PICTURE = Path(__file__).parent / "scaling.svg"


def main() -> None:
    record = json.loads((record_folder() / "benchmarks" / "scaling.json").read_text(encoding="utf-8"))
    measures = record["benchmarks"][0]["measures"]
    with page_settings("scaling"):
        figure = Figure(figsize=(10, 5.5), layout="constrained")
        for axes, what in zip(figure.subplots(1, 2), ("time", "memory"), strict=True):
            _draw(axes, [each for each in measures if each["what"] == f"exponent of {what}"], what)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        finish(figure)
        write_text(PICTURE, as_svg(figure))


def _draw(axes: Axes, measures: list[dict[str, str]], what: str) -> None:
    """One line per case, relative to its smallest size, between the lines of exponents 1 and 2."""
    for style, power in (("-", 1), (":", 2)):
        axes.loglog([1, 16], [1, 16**power], style, color="gray", linewidth=3, alpha=0.4)
    for number, each in enumerate(measures):
        values = [float(value) for value in each["detail"].partition(" for ")[0].rpartition(" ")[0].split(", ")]
        axes.loglog([1, 4, 16], [value / values[0] for value in values], "os^"[number % 3] + "-", label=each["case"])
    axes.set_xticks([1, 4, 16], ["n", "4 n", "16 n"])
    axes.minorticks_off()
    axes.set(title=f"{what.capitalize()} (gray: in proportion, and its square)", ylabel="relative to the smallest")


if __name__ == "__main__":
    main()
