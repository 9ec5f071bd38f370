"""Record the animation of the dynamics page: `python tools/record_limits.py`.

Four optimizers train the key-query matrix of one attention problem from the same start. A frame holds each matrix, scaled to its
largest entry and in hundredths, and its cosine with the certified limit of the tokens that it selects.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.datasets import AttentionTokens
from whichtoken.flows import attention_descent
from whichtoken.margin import key_query_svm

FILE = Path(__file__).parent.parent / "src/whichtoken/app/workbench/static/limits.json"
DIM, LENGTH, FRAMES = 10, 8, 48
STEPS = 3000
RUNS: tuple[tuple[str, str, float, str, dict[str, float]], ...] = (  # name, optimizer, p and norm of its limit, options
    ("mirror descent, p = 1.1", "mirror", 1.1, "entrywise", {"p": 1.1, "lr": 0.1}),
    ("gradient descent", "normalized-gd", 2.0, "entrywise", {"lr": 0.1}),
    ("sign descent", "sign", np.inf, "entrywise", {"lr": 0.01}),
    ("Muon", "muon", np.inf, "schatten", {"lr": 0.03}),
)
GEOMETRY = {1.1: "l_1.1", 2.0: "l_2", np.inf: "l_inf"}


def hundredths(matrix: NDArray[np.float64]) -> list[int]:
    found: list[int] = np.rint(100 * matrix / np.abs(matrix).max()).astype(int).ravel().tolist()
    return found


def cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(one.ravel() @ other.ravel() / np.linalg.norm(one) / np.linalg.norm(other))


def main() -> None:
    rng = np.random.default_rng(0)
    problem = AttentionTokens(6, LENGTH, DIM).sample(rng)
    start = 1e-3 * rng.standard_normal((DIM, DIM))
    shown = np.unique(np.geomspace(1, STEPS, FRAMES).astype(int)).tolist()
    runs: list[dict[str, Any]] = []
    for name, optimizer, p, norm, options in RUNS:
        run = attention_descent(problem, start, optimizer, steps=STEPS, record=shown, **options)  # type: ignore[arg-type]
        limit = key_query_svm(problem.tokens, problem.queries, run.selected, p=p, norm=norm)
        assert limit.direction is not None
        frames = [
            {
                "step": int(state.step),
                "matrix": hundredths(state.direction),
                "cosine": round(cosine(state.direction, limit.direction), 4),
            }
            for state in run.snapshots
        ]
        print(name, frames[-1]["cosine"], limit.gap, [int(token) for token in run.selected])
        runs.append({
            "name": name, "optimizer": optimizer, "geometry": "spectral" if norm == "schatten" else GEOMETRY[p],
            "limit": hundredths(limit.direction), "gap": float(f"{limit.gap:.1e}"), "frames": frames,
        })  # fmt: skip
    FILE.write_text(json.dumps({"dim": DIM, "runs": runs}, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
