"""The pages of rows and bags in a real browser: what they say is tested in V8, that they work and stay safe here."""

import numpy as np
import pandas as pd
import pytest

from whichtoken import BagClassifier, GroupClassifier

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\u202e"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((200, 3)), columns=["width", "height", HOSTILE])
    for level in ("blue", "red"):
        table[f"color={level}"] = (rng.integers(0, 2, 200) == (level == "red")).astype(float)
    label = np.where(table["width"] + table["height"] + 2 * table["color=red"] > 0.5, HOSTILE, "small")
    groups = {"size": ["width", "height"], HOSTILE: [HOSTILE], "color": ["color=blue", "color=red"]}
    model = GroupClassifier(groups, group_map="splines", n_groups=3, random_state=0).fit(table, label)
    read = {"columns": ["width", "height", HOSTILE, "color"], "levels": {"color": ["blue", "red"]}}
    read["fills"] = dict.fromkeys(read["columns"][:3], 0.0)
    card = {"data": {"rows": 3, "file": HOSTILE}, "limits": [HOSTILE]}
    path = tmp_path_factory.mktemp("page") / "rows.html"
    model.save_explainer(path, title=HOSTILE, table=read, card=card)
    return model, path


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    rng, labels = np.random.default_rng(0), np.arange(80) % 2
    found = [rng.standard_normal((5, 2)) for _ in labels]
    for bag, label in zip(found, labels, strict=True):
        bag[3] += 4 * label
    names = np.array([HOSTILE, "absent"], dtype=object)[labels]
    model = BagClassifier(n_queries=1, instance_map="linear", refine_steps=5, random_state=0).fit(found, names)
    model.feature_names_in_ = np.array(["x", HOSTILE], dtype=object)
    path = tmp_path_factory.mktemp("page") / "bags.html"
    model.save_explainer(path, found[:2], title=HOSTILE)
    return model, path, found


@pytest.mark.parametrize("kind", ["rows", "bags"])
@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1400, "light")])
def test_page_fits_hinders_nobody_and_keeps_text_text(visit, request, kind, width, theme):
    made = visit(request.getfixturevalue(kind)[1], width=width, theme=theme)
    assert made.page.inner_text("h1").startswith("<img")
    assert made.page.locator("img").count() == 0
    assert made.page.locator("script").count() == 2
    assert made.overflow() == 0
    assert made.violations() == []
    made.screenshot(f"explainer-{kind}-{width}")


def test_fields_and_pasted_rows_move_the_decision(visit, rows):
    model, path = rows
    made = visit(path)
    frame = pd.DataFrame([[1.5, 0.5, 0.0, 0.0, 1.0]], columns=model.feature_names_in_)
    [why] = model.explain(frame)
    made.page.get_by_label("width", exact=True).fill("1.5")
    made.page.get_by_label("height", exact=True).fill("0.5")
    made.page.locator(".field:has-text('<img') input").nth(0).fill("0")
    made.page.select_option("select", "red")
    assert made.page.inner_text(".lead").endswith(f"with probability {why.probability:.3f}")
    made.page.get_by_label("width", exact=True).fill("wide")
    assert "Column width holds" in made.page.inner_text(".field:has-text('width') .wrong")
    assert made.page.inner_text(".lead").endswith(f"with probability {why.probability:.3f}")
    made.page.click("summary:text('Paste rows')")
    made.page.fill(".paste textarea", f'width,height,"{HOSTILE}",color\n-2,-1,0,blue\n1.5,.5,0,red\n')
    assert made.page.inner_text(".lead b") == "small"
    assert made.page.get_by_label("width", exact=True).input_value() == "-2"
    made.page.get_by_role("button", name="row 2").click()
    assert made.page.inner_text(".lead").endswith(f"with probability {why.probability:.3f}")
    made.page.fill(".paste textarea", "width,height\n1,2")
    assert "lacks" in made.page.inner_text(".paste .wrong")
    assert made.page.inner_text(".lead").endswith(f"with probability {why.probability:.3f}")


def test_setting_the_fewest_groups_to_their_averages_flips_the_label_by_keyboard(visit, rows):
    made = visit(rows[1])
    made.page.click("summary:text('Paste rows')")
    made.page.fill(".paste textarea", "-2,-1,0,blue")  # in the order of the columns
    assert "No smaller set of groups does" in made.page.inner_text(".change")
    made.page.focus("button:text-matches('Set (it|them) to the average')")
    made.page.keyboard.press("Enter")
    assert made.page.inner_text(".lead b") != "small"
    made.page.get_by_role("button", name="Put all values back").click()
    assert made.page.inner_text(".lead b") == "small"


def test_pasted_bags_are_explained_and_their_smallest_deletion_flips_the_label(visit, bags):
    model, path, found = bags
    made = visit(path)
    [why] = model.explain(found[1:2])
    made.page.get_by_role("button", name="example 2").click()
    assert made.page.inner_text(".lead") == f"absent with probability {why.probability:.3f}"
    assert made.page.inner_text(".change del") == ", ".join(map(str, why.counterfactual))
    assert made.page.locator(".word.decides").count() == len(why.counterfactual)
    made.page.focus("button:text-matches('Strike (it|them) out')")
    made.page.keyboard.press("Enter")
    assert made.page.inner_text(".lead b").startswith("<img")
    made.page.fill("textarea", "0.1,0.2\n4,4,4")
    assert "has 3 cells" in made.page.inner_text(".wrong")
    table = "\n".join(f"{name},{x},{y}" for name, bag in zip("ab", found[:2], strict=True) for x, y in bag.tolist())
    made.page.fill("textarea", f'bag,x,"{HOSTILE}"\n{table}')
    assert made.page.inner_text(".lead b").startswith("<img")
    made.page.get_by_role("button", name="b", exact=True).click()
    assert made.page.inner_text(".lead") == f"absent with probability {why.probability:.3f}"
