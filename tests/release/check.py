"""Build the sdist and the wheel, and try each where nothing else is installed: `make release-check`.

For every list of constraints: two empty environments, one with the wheel and one with the sdist, in which `smoke.py` does what
a stranger would do first, in a folder outside the repository. The wheel is tried without any extra, where its size is measured
and torch must be absent, then with the extras `torch` and `data`, then with `all`. The sdist's environment gets the extra `dev`,
with which the tests of the unpacked sdist are collected, or run where `--tests` names some.

It lies in tests/ because it is a test, which travels with the sdist; it is a script because it takes minutes and gigabytes, and
because a Python without any package can run it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
LISTS = ("constraints.txt", "constraints-lowest.txt", "constraints-newest.txt")
LARGEST = 900e6  # bytes of an installation without extras, compiled modules included
NOT_SHIPPED = (".ci/", ".github/", ".pre-commit-config.yaml")  # of use in a checkout alone

# what the user of this machine has set must not help
HELPFUL = ("PYTHONPATH", "VIRTUAL_ENV", "WHICHTOKEN_DATA", "WHICHTOKEN_MODELS", "WHICHTOKEN_EXPERIMENTS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in HELPFUL}


def run(*command: object, folder: Path) -> None:
    subprocess.run([str(part) for part in command], cwd=folder, env=ENVIRONMENT, check=True)


def empty_environment(python: str, folder: Path) -> Path:
    """The Python of a new environment."""
    run(python, "-m", "venv", folder, folder=folder.parent)
    return folder / "bin" / "python"


def install(python: Path, what: str, constraints: Path, *options: str) -> None:
    """Install with pip."""
    run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--prefer-binary", *options,
        "-c", constraints, what, folder=python.parent,
    )  # fmt: skip


NOT_COMPILED = "--no-compile"  # modules are compiled when they are imported, as most of torch never is


def check_size(python: Path) -> None:
    """Refuse an installation that takes more room than promised."""
    answer = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    packages = Path(answer.stdout.strip())
    files = [path.lstat() for path in packages.rglob("*")]
    size = sum(512 * file.st_blocks for file in files)  # what du counts
    print(f"  installed without extras: {size / 1e9:.2f} GB", flush=True)
    if size > LARGEST:
        raise SystemExit(
            f"an installation without extras takes {size / 1e9:.2f} GB; at most {LARGEST / 1e9} are promised"
        )


def build(python: str, scratch: Path) -> tuple[Path, Path]:
    """The wheel and the sdist; the wheel is built from the sdist, so that this holds all that is needed."""
    tools = empty_environment(python, scratch / "tools")
    install(tools, "build", ROOT / "constraints.txt")
    run(tools, "-m", "build", "--outdir", scratch / "dist", ROOT, folder=scratch)
    [wheel], [sdist] = (scratch / "dist").glob("*.whl"), (scratch / "dist").glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Nothing that is in the repository is forgotten, and nothing else slips in."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        print("not a checkout: contents not compared")
        return
    tracked = {name for name in listed.stdout.split("\0") if name and not name.startswith(NOT_SHIPPED)}
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    complain("sdist", packed - {"PKG-INFO"}, tracked)

    package = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    for source, target in settings["wheel"]["force-include"].items():
        package |= {target + name.removeprefix(source) for name in tracked if f"{name}/".startswith(f"{source}/")}
    with zipfile.ZipFile(wheel) as archive:
        complain("wheel", {name for name in archive.namelist() if ".dist-info/" not in name}, package)


def complain(what: str, packed: set[str], expected: set[str]) -> None:
    if packed != expected:
        raise SystemExit(f"{what}: missing {sorted(expected - packed)}, not expected {sorted(packed - expected)}")
    print(f"{what}: {len(packed)} files, as in the repository")


def try_out(python: Path, scratch: Path, extras: str) -> None:
    """Run the smoke test in an empty folder; -I keeps the repository and the user's own packages out of the way."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        run(python, "-I", SMOKE, extras, folder=Path(folder))


def check_wheel(python: str, wheel: Path, constraints: Path, scratch: Path, extras: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        installed = empty_environment(python, Path(folder) / "wheel")
        install(installed, str(wheel), constraints)
        check_size(installed)
        try_out(installed, scratch, "base")
        for names in extras:
            install(installed, f"{wheel}[{names}]", constraints, NOT_COMPILED)
            try_out(installed, scratch, names)


def check_sdist(python: str, sdist: Path, constraints: Path, scratch: Path, tests: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        installed = empty_environment(python, Path(folder) / "sdist")
        install(installed, f"{sdist}[torch]", constraints, NOT_COMPILED)
        try_out(installed, scratch, "torch")
        install(installed, f"{sdist}[dev]", constraints, NOT_COMPILED)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        [sources] = Path(folder).glob("whichtoken-*")
        chosen = ["-q", *tests] if tests else ["-qq", "--collect-only"]
        run(installed, "-m", "pytest", "-p", "no:cacheprovider", *chosen, folder=sources)


def audit(requirements: Path) -> str:
    """Known vulnerabilities in the tested packages end the check; says so where no database could be asked."""
    program = shutil.which("pip-audit")
    if program is None:
        return "known vulnerabilities: not looked for, as pip-audit is not installed"
    asked = [program, "--format", "json", "--progress-spinner", "off", "--disable-pip", "--require-hashes", "-r"]
    done = subprocess.run([*asked, str(requirements)], env=ENVIRONMENT, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):  # its exit code is the same as for a finding
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        return f"known vulnerabilities: not looked for, as the database does not answer ({reason})"
    found = [f"{item['name']} {item['version']}: {fault['id']}" for item in packages for fault in item.get("vulns", ())]
    if found:
        raise SystemExit(f"known vulnerabilities: {'; '.join(found)}")
    skipped = [item["name"] for item in packages if "skip_reason" in item]
    return f"known vulnerabilities: none in {len(packages) - len(skipped)} packages; not looked at: {skipped or 'none'}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the sdist and the wheel, and try both in empty environments.")
    parser.add_argument("constraints", nargs="*", default=LISTS, help=f"lists of versions; default {', '.join(LISTS)}")
    parser.add_argument("--only", choices=("base", "wheel", "sdist"), help="try one; base: the wheel without extras")
    parser.add_argument("--tests", nargs="+", default=[], help="tests of the sdist to run, instead of collecting all")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environments; default this one")
    parser.add_argument("--keep", type=Path, help="folder for the two files, once they have passed")
    options = parser.parse_args()
    print(audit(ROOT / "requirements-hashed.txt"), flush=True)
    with tempfile.TemporaryDirectory(prefix="whichtoken-release-") as folder:
        scratch = Path(folder)
        wheel, sdist = build(options.python, scratch)
        check_contents(wheel, sdist)
        for name in options.constraints:
            for what in (options.only,) if options.only else ("wheel", "sdist"):
                started = time.perf_counter()
                print(f"{what}, {name}", flush=True)
                if what == "sdist":
                    check_sdist(options.python, sdist, ROOT / name, scratch, options.tests)
                else:
                    extras = ("torch,data", "all") if what == "wheel" else ()
                    check_wheel(options.python, wheel, ROOT / name, scratch, extras)
                print(f"{what}, {name}: passed in {(time.perf_counter() - started) / 60:.0f} min", flush=True)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for file in (wheel, sdist):
                shutil.copy2(file, options.keep)


if __name__ == "__main__":
    main()
