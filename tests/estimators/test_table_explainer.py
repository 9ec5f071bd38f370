"""The pages of rows and bags say what Python says, in V8; what they hold and refuse."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from page_engine import TableEngine

from whichtoken import BagClassifier, GroupClassifier
from whichtoken.errors import UsageError
from whichtoken.estimators import explainer_page
from whichtoken.estimators.bags import explainer as bags
from whichtoken.estimators.groups import explainer as groups

TOLERANCE = 1e-6


def cells_of(table: Any) -> list[list[str]]:
    return [["" if np.isnan(value) else repr(float(value)) for value in row] for row in table]


@cache
def rows_of(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(classes)
    X = rng.standard_normal((240, 9)) * np.geomspace(0.1, 50, 9)
    scaled = X / X.std(axis=0)
    y = (scaled[:, 0] + scaled[:, 1] ** 2 + scaled[:, 4] > 1).astype(int)
    return X, y + (scaled[:, 5] > 0.5) * (classes == 3)


@cache
def bags_of(classes: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng, labels = np.random.default_rng(classes), np.arange(90) % classes
    found = [rng.standard_normal((rng.integers(1, 12), 4)) + 5 for _ in labels]
    for bag, label in zip(found, labels, strict=True):
        bag[0] += 2 * label * np.array([1, -1, 0, 0])
    return found, labels


def row_engine(model: GroupClassifier, **about: Any) -> TableEngine:
    return TableEngine(groups.ARITHMETIC, groups.pack_groups(model, **about), "readRowModel", "explainRow")


def bag_engine(model: BagClassifier, **about: Any) -> TableEngine:
    return TableEngine(bags.ARITHMETIC, bags.pack_bags(model, **about), "readBagModel", "explainBag")


@pytest.mark.parametrize("group_map", ["linear", "splines", "fourier"])
@pytest.mark.parametrize("classes", [2, 3])
def test_page_of_rows_says_what_python_says(group_map, classes):
    X, y = rows_of(classes)
    layout = dict(zip("abcd", [[0, 1], [2, 3], [4, 5], [6, 7]], strict=True))
    model = GroupClassifier(layout, covariates=[8], group_map=group_map, n_groups=3, random_state=0, cv=2).fit(X, y)
    model.fills_ = np.arange(9.0)
    tried = X[:120].copy()
    tried[::7, 4] = np.nan
    used = [int(column["name"]) for column in groups.pack_groups(model)["inputs"]]
    found = row_engine(model).explain_rows(cells_of(tried[:, used]))
    for page, ours in zip(found, model.explain(tried), strict=True):
        assert page["label"] == str(ours.label)
        assert page["decision"] == pytest.approx(ours.decision, abs=TOLERANCE)
        assert page["bias"] == pytest.approx(ours.bias, abs=TOLERANCE)
        assert page["bias"] + sum(r["contribution"] for r in page["reasons"]) == pytest.approx(
            page["decision"], abs=TOLERANCE
        )
        assert page["probabilities"][page["winner"]] == pytest.approx(ours.probability, abs=TOLERANCE)
        added = {reason["name"]: reason["contribution"] for reason in page["reasons"]}
        assert added == pytest.approx({str(r.group): r.contribution for r in ours.reasons}, abs=TOLERANCE)
        assert (page["change"] and page["change"]["names"]) == ours.counterfactual
        assert (page["change"] and page["change"]["to"]) == (None if ours.flips_to is None else str(ours.flips_to))
    assert any(page["change"] for page in found)


def test_curves_are_those_of_the_model_at_other_values():
    X, y = rows_of(2)
    model = GroupClassifier(list("aabbccddd"), group_map="fourier", n_groups=2, random_state=0, cv=2).fit(X, y)
    engine = row_engine(model)
    used = [int(column["name"]) for column in groups.pack_groups(model)["inputs"]]
    values = np.linspace(-2, 2, 7)
    row = f"const row = Float64Array.from({X[0, used].tolist()})"
    call = f"(() => {{ {row}; return leads(model, row, explainRow(model, row), 1, {values.tolist()}); }})()"
    moved = np.repeat(X[:1], 7, axis=0)
    moved[:, used[1]] = values
    side = 1 if model.predict(X[:1])[0] else -1
    assert engine._json(call) == pytest.approx(side * model.decision_function(moved), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "classes"),
    [
        ("linear", 2),
        ("linear", 3),
        ("fourier", 2),
        ("fourier", 3),
        pytest.param("network", 2, marks=pytest.mark.slow),
        ("gated network", 2),
    ],
)
def test_page_of_bags_says_what_python_says(kind, classes):
    X, y = bags_of(classes)
    if "network" in kind:
        X, y = X[:24], y[:24]  # they take longest to train
    gate, name = kind != kind.removeprefix("gated "), kind.removeprefix("gated ")
    # few steps: what is compared is arithmetic, not training
    model = BagClassifier(instance_map=name, gate=gate, n_queries=1, refine_steps=2, C=1.0, cv=2, random_state=0).fit(
        X, y
    )
    engine = bag_engine(model)
    for bag, ours in zip(X[:40], model.explain(X[:40]), strict=True):
        page = engine.explain_bag(cells_of(bag))
        assert page["label"] == str(ours.label)
        assert page["decision"] == pytest.approx(ours.decision, abs=TOLERANCE)
        assert page["probabilities"][page["winner"]] == pytest.approx(ours.probability, abs=TOLERANCE)
        for one, other in zip(page["reasons"], ours.reasons, strict=True):
            assert one["instance"] + 1 == other.instance
            assert one["attention"] == pytest.approx(other.attention, abs=TOLERANCE)
            assert one["contribution"] == pytest.approx(other.contribution, abs=TOLERANCE)
        assert (page["change"] and [k + 1 for k in page["change"]["instances"]]) == ours.counterfactual
        assert page["robustTo"] == ours.robust_to


def test_pasted_tables_are_read_as_files_are(tmp_path):
    from whichtoken.estimators.columns import ColumnEncoding, ColumnReader
    from whichtoken.tables import read_table

    columns = ("size", "color", "code")
    encoding = ColumnEncoding(columns, {"size": 7.0}, {"color": ("blue", "red"), "code": ("01", "1", "x")})
    frame = pd.DataFrame(np.random.default_rng(0).standard_normal((60, 6)), columns=encoding.names)
    model = GroupClassifier(None, group_map="linear", n_groups=6, random_state=0).fit(frame, frame["size"] > 0)
    engine = row_engine(model, table=encoding.as_json())
    for text in [
        "size,color,code\n1,red,1\n",
        "size,color,code\nNA,green,01\n2.5e1,blue,x\n-.5,,x\n",
        'other;code;color;size\n9;"x";red;3\n9;1.0;blue;\n9;x;none;4\n',
        "color\tcode\tsize\nblue\t01\t3\n",
    ]:
        (tmp_path / "rows.csv").write_text(text)
        separator = next(sign for sign in "\t;," if sign in text.splitlines()[0])
        reader = ColumnReader(tmp_path / "rows.csv", columns)
        reader.add(read_table(tmp_path / "rows.csv", None, separator=separator))
        by_name = dict(zip(encoding.names, encoding.encode(reader.finish()).T, strict=True))
        packed = groups.pack_groups(model, table=encoding.as_json())
        order = [n for column in packed["inputs"] for n in encoding.names_of(column["name"])]
        assert np.array(engine.read(text)).tolist() == np.stack([by_name[name] for name in order], axis=1).tolist()
    assert engine.read("3,red,1") == [[3, 0, 1, 0, 1, 0]]
    for text, said in {
        "": "Paste rows", "size,color\n1,red": "lacks code", "size,color,code": "no row below",
        "size,color,code\nbig,red,1": "Column size holds “big”", "1,2": "has 2 cells",
    }.items():  # fmt: skip
        assert said in engine.read(text)


def test_pages_open_without_examples_and_hold_nothing_but_their_model(tmp_path):
    X, y = rows_of(2)
    frame = pd.DataFrame(X, columns=[f"column {k}" for k in range(9)])
    model = GroupClassifier(None, group_map="linear", n_groups=2, random_state=0).fit(frame, y)
    card = {
        "data": {"rows": 3, "file": "a.csv", "columns": ["a secret"]},
        "evaluation": None,
        "limits": [],
        "more": "secret",
    }
    saved = model.save_explainer(tmp_path / "page.html", card=card)
    text = saved.path.read_text()
    assert saved.size == len(text.encode()) < 100_000
    assert "secret" not in text
    kept = [column["name"] for column in groups.pack_groups(model)["inputs"]]
    assert all((name in text) == (name in kept) for name in frame.columns)
    text = model.save_explainer(tmp_path / "page.html", examples=frame.head(2)).path.read_text()
    assert str(frame.loc[1, kept[0]]) in text


def test_refusals_say_what_would_help(tmp_path, monkeypatch):
    X, y = bags_of(2)
    two = BagClassifier(n_queries=2, instance_map="linear", refine_steps=1, C=1.0, random_state=0).fit(X, y)
    with pytest.raises(UsageError, match=r"2 queries per class.*n_queries=1"):
        two.save_explainer(tmp_path / "page.html")
    one = BagClassifier(n_queries=1, instance_map="linear", refine_steps=1, C=1.0, random_state=0).fit(X, y)
    monkeypatch.setattr(explainer_page, "LARGEST", 1000)
    with pytest.raises(UsageError, match=r"MB, for 4 features.*fewer features"):
        one.save_explainer(tmp_path / "page.html")
    X, y = rows_of(2)
    model = GroupClassifier(None, n_groups=4, random_state=0, group_map="linear").fit(X, y)
    with pytest.raises(UsageError, match="for 4 groups; n_groups=1 would fit"):
        model.save_explainer(tmp_path / "page.html")
    none = GroupClassifier(None, selection="controlled", random_state=0).fit(X, np.arange(len(X)) % 2)
    with pytest.raises(UsageError, match="selected no group"):
        none.save_explainer(tmp_path / "page.html")
    with pytest.raises(UsageError, match="does not describe the columns"):
        model.save_explainer(tmp_path / "page.html", table={"columns": ["a"], "fills": {"a": 0.0}, "levels": {}})
    assert not (tmp_path / "page.html").exists()


def test_ranges_hold_nine_tenths_of_the_training_rows():
    X, y = rows_of(2)
    model = GroupClassifier(None, random_state=0, group_map="linear", n_groups=1).fit(X, y)
    inside = ((model.column_ranges_[0] <= X) & (model.column_ranges_[1] >= X)).mean(axis=0)
    assert all(0.88 < share < 0.92 for share in inside)
    assert all(low < high for low, high in model.column_ranges_.T)
