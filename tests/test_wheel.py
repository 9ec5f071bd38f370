"""The built wheel works outside the repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built from the sources and installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True)
    [wheel] = folder.glob("whichtoken-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def run(installed, tmp_path, *command):
    environment = {**os.environ, "PYTHONPATH": str(installed), "WHICHTOKEN_EXPERIMENTS": ""}
    return subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_reproduces_and_reports_outside_the_repository(installed, tmp_path):
    where = run(installed, tmp_path, "-c", "import whichtoken; print(whichtoken.__file__)")
    assert where.startswith(str(installed))
    run(
        installed,
        tmp_path,
        "-m",
        "whichtoken",
        "reproduce",
        "mirror-descent/direction",
        "--set",
        "steps=50",
        "--seeds",
        "1",
    )
    assert "index.html" in run(installed, tmp_path, "-m", "whichtoken", "report")


def test_carries_its_types_license_benchmarks_and_record(installed):
    assert (installed / "whichtoken" / "py.typed").exists()
    assert any(installed.glob("whichtoken-*.dist-info/licenses/LICENSE"))
    packaged = {path.name for path in (installed / "whichtoken" / "_benchmarks").glob("*.py")}
    assert packaged == {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    verdicts = (installed / "whichtoken" / "_record" / "verdicts.json").read_text()
    assert verdicts == (ROOT / "record" / "verdicts.json").read_text()


def test_shows_the_figures_of_the_record(installed, tmp_path):
    run(installed, tmp_path, "-m", "whichtoken", "report", "--record")
    page = tmp_path / "whichtoken-output" / "record" / "mirror-descent-direction.html"
    assert 'role="img"' in page.read_text()
    assert "Rows (CSV)" not in page.read_text()
    index = page.with_name("index.html").read_text()
    assert index.count("<figcaption>") == index.count('<section class="card')
