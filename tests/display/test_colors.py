"""Lines of a figure are distinct with every kind of color vision, on a light page and on a dark one."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import whichtoken
from whichtoken.display.html import COLORS

PAPERS = ("#fdfdfb", "#14161a")  # of style.css
# what people see who lack one kind of cone (Machado, Oliveira, Fernandes 2009, severity 1), on linear RGB
VISION = {
    "usual": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
WHITE = (0.95047, 1.0, 1.08883)
JUST_SEEN = 2.3  # difference in CIELAB


def linear(color):
    parts = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def contrast(one, other):
    low, high = sorted(np.dot([0.2126, 0.7152, 0.0722], linear(color)) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISION)
def test_colors_differ_for_every_eye(vision):
    seen = [lab(VISION[vision] @ linear(color)) for color in COLORS]
    for one, other in combinations(range(len(COLORS)), 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 6 * JUST_SEEN, (COLORS[one], COLORS[other])


@pytest.mark.parametrize("paper", PAPERS)
def test_colors_stand_out_from_the_page(paper):
    for color in COLORS:
        assert contrast(color, paper) >= 3.0, color


def test_a_meaning_has_one_color_on_every_page():
    """What speaks for a decision or against it, in every stylesheet; the lines of charts are those of figures."""
    home = Path(whichtoken.__file__).parent
    styles = [path.read_text() for kind in ("*.css", "inspection.html") for path in home.rglob(kind)]
    for name, color in {"for": "59 130 246", "against": "234 118 20"}.items():
        assert {found for style in styles for found in re.findall(rf"--{name}: ([^;]+);", style)} == {color}
        assert sum(style.count(f"rgb({color}") for style in styles) == 0, "by its name"
    lines = re.search(r"COLORS = (\[.*?\])", (home / "app/workbench/static/chart.js").read_text())[1]
    assert tuple(re.findall("#[0-9a-f]{6}", lines)) == COLORS


@pytest.mark.parametrize("paper", PAPERS)
def test_states_can_be_read_and_are_no_links(paper):
    style = (Path(whichtoken.__file__).parent / "display/assets/style.css").read_text()
    light, dark = style.split("@media", 2)[:2]
    for name in ("agrees", "disagrees", "undecided", "not-run", "beyond"):
        color = re.search(rf"--{name}: (#\w+)", (light, dark)[PAPERS.index(paper)])[1]
        assert contrast(color, paper) >= 4.5, name
        assert f".{name} {{ color: var(--{name}); }}" in style
