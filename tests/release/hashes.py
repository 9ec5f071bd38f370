"""Write `requirements-hashed.txt`: every package behind `constraints.txt`, with the checksum of its file.

    python3.11 tests/release/hashes.py

pip works out what the program with its extras, and the tool that builds it, need under the constraints; nothing is installed.
Checksums are those of the files that pip would take here: for another Python or system the list is to be made there.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "requirements-hashed.txt"
EXTRAS = "all"
HEAD = """\
# What constraints.txt comes to for the program with the extra {extras}, with the checksum of every file, for
# Python {python} on {system}; made by tests/release/hashes.py. torch is the CPU build of this release.
#   pip install --require-hashes -r requirements-hashed.txt
#   pip install --no-deps --no-build-isolation .
"""


def resolved() -> list[tuple[str, str, str]]:
    """Name, version and checksum of every package, in the order of their names."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*command, f"{ROOT}[{EXTRAS}]", "hatchling"], check=True)
        found = json.loads(report.read_text())["install"]
    return sorted(
        (item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"].partition("+")[0],
         item["download_info"]["archive_info"]["hashes"]["sha256"])
        for item in found if item["metadata"]["name"] != "whichtoken"
    )  # fmt: skip


def main() -> None:
    python = ".".join(platform.python_version_tuple()[:2])
    system = f"{platform.system()} {platform.machine()}"
    lines = [f"{name}=={version} --hash=sha256:{checksum}" for name, version, checksum in resolved()]
    head = HEAD.format(extras=EXTRAS, python=python, system=system)
    TARGET.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
