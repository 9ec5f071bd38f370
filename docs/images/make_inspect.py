"""Draws inspect_risk.svg of docs/inspect.md: error against coverage for the picks of a reaction mapper."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from whichtoken.inspection import PickConfidence
from whichtoken.lab.benchmark import benchmark_files

NAMES = {
    "gap": "gap to the runner-up",
    "weight": "attention weight",
    "weight_alike": "weight of all symmetric atoms",
    "plain_gap": "gap, symmetric atoms as rivals",
}


def main() -> None:
    """Read the picks as the benchmark does and draw the curves."""
    spec = importlib.util.spec_from_file_location("picks", benchmark_files()["pick-confidence"])
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    picks = benchmark.read_picks()
    plt.rcParams["svg.hashsalt"] = "whichtoken"
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for key, name in NAMES.items():
        confidence = PickConfidence(picks[key], picks["right"], picks["reaction"])
        kept = np.flatnonzero(confidence.curve.coverage > 0.05)[::50]
        axes.plot(
            confidence.curve.coverage[kept],
            100 * confidence.curve.risk[kept],
            label=f"{name} (AUROC {confidence.auroc:.3f})",
        )
    axes.set(
        xlabel="share of the picks that are kept, surest first", ylabel="wrong picks, %", xlim=(0, 1), ylim=(0, None)
    )
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).parent / "inspect_risk.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
