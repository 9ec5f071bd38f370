"""Record the animation of the dynamics page: `python tools/record_limits.py`.

Four optimizers train the key-query matrix of one attention problem from the same start. A frame holds each matrix, scaled to its
largest entry and in hundredths, and its cosine with the certified limit of the tokens that it selects.
"""

import json
from pathlib import Path

import numpy as np

from whichtoken.app.workbench.scenes import LIMITS
from whichtoken.datasets import AttentionTokens
from whichtoken.flows import attention_descent
from whichtoken.margin import key_query_svm

FILE = Path(__file__).parent.parent / "src/whichtoken/app/workbench/static/limits.json"
DIM, LENGTH, FRAMES = 10, 8, 48
RUNS = {  # name on the page, then optimizer, p of its limit, norm, options of the run
    "mirror descent, p = 1.1": ("mirror", 1.1, "entrywise", {"p": 1.1, "lr": 0.1, "steps": 3000}),
    "gradient descent": ("normalized-gd", *LIMITS["normalized-gd"], {"lr": 0.1, "steps": 3000}),
    "sign descent": ("sign", *LIMITS["sign"], {"lr": 0.01, "steps": 3000}),
    "Muon": ("muon", *LIMITS["muon"], {"lr": 0.03, "steps": 3000}),
}
GEOMETRY = {
    (1.1, "entrywise"): "l_1.1",
    (2.0, "entrywise"): "l_2",
    (np.inf, "entrywise"): "l_inf",
    (np.inf, "schatten"): "spectral",
}


def hundredths(matrix):
    return np.rint(100 * matrix / np.abs(matrix).max()).astype(int).ravel().tolist()


def main():
    rng = np.random.default_rng(0)
    problem = AttentionTokens(6, LENGTH, DIM).sample(rng)
    start = 1e-3 * rng.standard_normal((DIM, DIM))
    recorded = {"dim": DIM, "runs": []}
    for name, (optimizer, p, norm, options) in RUNS.items():
        shown = np.unique(np.geomspace(1, options["steps"], FRAMES).astype(int))
        run = attention_descent(problem, start, optimizer, record=shown.tolist(), **options)
        limit = key_query_svm(problem.tokens, problem.queries, run.selected, p=p, norm=norm)
        frames = [
            {
                "step": int(state.step),
                "matrix": hundredths(state.direction),
                "cosine": round(
                    float(
                        np.vdot(state.direction, limit.direction)
                        / np.linalg.norm(state.direction)
                        / np.linalg.norm(limit.direction)
                    ),
                    4,
                ),
            }
            for state in run.snapshots
        ]
        print(name, frames[-1]["cosine"], limit.gap, [int(token) for token in run.selected])
        recorded["runs"].append({
            "name": name, "optimizer": optimizer, "geometry": GEOMETRY[p, norm], "limit": hundredths(limit.direction),
            "gap": float(f"{limit.gap:.1e}"), "frames": frames,
        })  # fmt: skip
    FILE.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
