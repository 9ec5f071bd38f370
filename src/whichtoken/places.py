"""Where results are kept."""

from pathlib import Path

DEFAULT_FOLDER = Path("whichtoken-output")
LEDGER_NAME = "whichtoken-results.sqlite"
