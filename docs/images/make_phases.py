"""Draws the phases of group-sparse selection from recorded rows: `python docs/images/make_phases.py`.

The picture is that of the claim itself, at the size of a page.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Rows
from whichtoken.lab.plan import make_plan
from whichtoken.lab.record import recorded_ledger

CLAIM = "group-sparse/learning-rate"

with recorded_ledger(CLAIM) as ledger:
    rows = ledger.rows(make_plan(experiments()[CLAIM], "full"))
figure = plt.figure(figsize=(9.6, 7.2), layout="constrained")
experiments()[CLAIM].draw(Rows.sorted(rows.values()), figure)
figure.savefig(Path(__file__).parent / "group_sparse_phases.png", dpi=110)
