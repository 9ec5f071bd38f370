"""One claim cannot break the others: whatever its file does, it alone is broken, and says so."""

import re
import shutil
from pathlib import Path

import pytest

from whichtoken.app import write_report
from whichtoken.app.pages.sentences import page_name
from whichtoken.app.pages.terminal import print_claim, print_claims, print_results
from whichtoken.errors import UsageError
from whichtoken.lab import reproduce
from whichtoken.lab.discovery import experiments, faults, find

MEAN = (Path(__file__).parents[1] / "toys" / "mean.py").read_text().replace("toy/mean", "toy/broken")
JUDGE = MEAN[MEAN.index("        theory = rows") : MEAN.index("    def draw")]

UNLOADED = {
    "syntax": ("def (", "SyntaxError: invalid syntax (broken.py:1)"),
    "exit": ("import sys; sys.exit('bye')", "SystemExit: bye (broken.py:1)"),
    "raises": ("raise RuntimeError('no\nway'.upper())".replace("\n", "\\n"), "RuntimeError: NO WAY (broken.py:1)"),
    "odd exception": ("class Odd(BaseException): pass\nraise Odd", "Odd (broken.py:2)"),
    "twice": (MEAN.replace("toy/broken", "toy/mean"), "two experiments are called 'toy/mean'; rename the one in"),
    "no slash": (MEAN.replace("toy/broken", "broken"), "id='broken' must be written as theory/claim"),
    "markup as id": (MEAN.replace("toy/broken", "[red]/<b>"), "must be written as theory/claim"),
    "no presets": (MEAN.replace("presets = ", "sizes = "), "presets must be a dictionary"),
    "no draw": (MEAN.replace("def draw", "def paint"), "the class does not define draw"),
    "title": (MEAN + "\n    title = property(lambda self: 1 / 0)", "ZeroDivisionError: division by zero"),
    "title as number": (MEAN + "\n    title = 3", "title, claim and source must be texts, not 3"),
    "expected": (MEAN + "\n    expected = {'quick': 'agrees'}", "expected must be a dictionary"),
    "types": (MEAN.replace("shift: float", "shift: 'flaot'"), "NameError: name 'flaot' is not defined"),
}
FAILING = {
    "judge raises": (MEAN.replace(JUDGE, "        raise RuntimeError('[/b] no <b>')\n\n"), "judge() failed: RuntimeError"),
    "judge exits": (MEAN.replace(JUDGE, "        raise SystemExit(3)\n\n"), "judge() failed: SystemExit: 3"),
    "judge returns nothing": (MEAN.replace(JUDGE, "        return None\n\n"), "judge() failed: TypeError"),
    "no claim": (MEAN.replace(JUDGE, "        yield 3\n\n"), "judge() failed: AttributeError"),
    "nan": (MEAN.replace("theory=theory.value if theory else None", "theory=float('nan')"), "mean.shift: theory is nan"),
    "infinite": (MEAN.replace("theory_error=theory.error if theory else 0.0", "theory_error=float('inf')"),
                 "mean.shift: theory_error is inf"),
    "absent": (MEAN + "\n    def absent(self, point):\n        raise KeyError('path')", "absent() failed: KeyError: 'path'"),
    "grid": (MEAN.replace("draws=[100, 400]", "drawz=[100, 400]"), "the points of quick cannot be created: KeyError: 'drawz'"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch, no_workers):
    """A folder of claims in which toy/mean is sound."""
    place = tmp_path / "claims"
    place.mkdir()
    shutil.copy(Path(__file__).parents[1] / "toys" / "mean.py", place)
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(place))
    return place


@pytest.mark.parametrize("case", UNLOADED)
def test_file_that_cannot_be_loaded_is_a_fault_of_its_own(folder, case):
    text, sentence = UNLOADED[case]
    (folder / "broken.py").write_text(text)
    assert experiments()["toy/mean"].title == "The mean of shifted normals is the shift"
    [fault] = faults()
    assert sentence in fault.sentence
    assert "\n" not in fault.sentence
    with pytest.raises(UsageError, match=re.escape(sentence)):
        find("toy/broken")


def test_claims_that_fail_are_told_and_the_others_are_judged(folder, tmp_path, capsys):
    ids = {f"toy/{case.replace(' ', '-')}": case for case in FAILING}
    for id, case in ids.items():
        (folder / f"{case}.py").write_text(FAILING[case][0].replace("toy/broken", id))
    *broken, mean = reproduce([*ids, "toy/mean"], seeds=12, out=tmp_path)
    assert (mean.fault, [verdict.state for verdict in mean.verdicts]) == ("", ["agrees"])
    for result in broken:
        assert FAILING[ids[result.id]][1] in result.fault
        assert all(verdict.state == "undecided" for verdict in result.verdicts)

    print_results([*broken, mean])
    printed = " ".join(capsys.readouterr().out.split())
    assert all(f"broken: {result.id}: {result.fault}" in printed for result in broken)
    print_claims(tmp_path)
    listed = capsys.readouterr().out
    assert listed.count("broken: ") == len(broken)
    assert "1 agrees" in listed
    print_claim(broken[0].experiment, tmp_path)
    assert f"broken: {broken[0].fault}" in capsys.readouterr().out

    write_report(tmp_path)
    index = (tmp_path / "report" / "index.html").read_text()
    assert index.count(">broken</td>") == len(broken)
    assert 'class="state agrees"' in index
    for id in ids:
        assert "Broken: <code>" in (tmp_path / "report" / page_name(id)).read_text()


def test_figure_that_fails_costs_no_page(folder, tmp_path):
    (folder / "broken.py").write_text(
        MEAN.replace("        figure.subplots()", "        raise SystemExit(4)\n        figure.subplots()")
    )
    reproduce(["toy/broken", "toy/mean"], seeds=3, out=tmp_path)
    write_report(tmp_path)
    assert "The figure could not be drawn (SystemExit: 4 (broken.py:" in (
        (tmp_path / "report" / "toy-broken.html").read_text()
    )


def test_point_that_breaks_its_page_costs_no_other(folder, tmp_path):
    broken = MEAN.replace('method: str = "mean"', 'method: str = "mean"\n    sizes: list = field(default_factory=list)')
    (folder / "broken.py").write_text(broken.replace("import dataclass", "import dataclass, field"))
    reproduce(["toy/broken", "toy/mean"], seeds=3, out=tmp_path)
    write_report(tmp_path)
    assert "its page cannot be created: TypeError" in (tmp_path / "report" / "index.html").read_text()
    assert (tmp_path / "report" / "toy-mean.html").exists()


def test_markup_and_hidden_signs_of_a_claim_are_shown_and_not_obeyed(folder, tmp_path, capsys):
    nasty = "[bold red]x[/] <script>y</script> \\x1b[31m \\u202e"
    (folder / "broken.py").write_text(MEAN.replace("The mean of", nasty, 1))
    reproduce(["toy/broken"], seeds=1, out=tmp_path)
    print_claim(find("toy/broken"), tmp_path)
    write_report(tmp_path)
    page = (tmp_path / "report" / "toy-broken.html").read_text()
    for shown in (capsys.readouterr().out, page):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "\\x1b" in shown
        assert "[bold red]x[/]" in " ".join(shown.split())
    assert "&lt;script&gt;y&lt;/script&gt;" in page


def test_command_line_ends_with_1_and_a_sentence(folder, whichtoken):
    (folder / "broken.py").write_text(FAILING["judge raises"][0])
    (folder / "unloaded.py").write_text("def (")
    done = whichtoken("reproduce", "toy/mean", "toy/broken", "--seeds", "3", "--workers", "1")
    assert done.returncode == 1, done.stderr
    assert "broken: toy/broken: judge() failed: RuntimeError: [/b] no <b> (broken.py:" in done.stdout
    assert done.stderr == ""
    listed = " ".join(whichtoken("list").stdout.split())
    assert "broken: judge() failed" in listed
    assert "the file cannot be imported" in listed
    missing = whichtoken("reproduce", "toy/unloaded")
    assert missing.returncode == 2
    assert "unloaded.py is broken: the file cannot be imported: SyntaxError" in missing.stderr
