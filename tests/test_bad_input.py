"""Wrong arguments of every command: one sentence, exit code 2, and nothing written."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from whichtoken import AttentionRegressor, BagClassifier, GroupClassifier, TextClassifier
from whichtoken.app.cli import main as cli
from whichtoken.app.readers import read_bags
from whichtoken.datasets.review_sentences import synthetic_reviews
from whichtoken.estimators.model_folder import describe_table, save_model

PLAN = "plan --length 10 --signal-tokens 1 --strength 5 --prevalence 0.5 --dim 500 --samples 100"
TEXT = "fit text texts.csv --model new"
BAGS = "fit bags bags.csv --model new"
GROUPS = "fit groups groups.csv --model new --prefix _"
NAMED = "fit groups groups.csv --model new --groups"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of good and bad files, with a model of each kind."""
    home = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    words, signs = synthetic_reviews(40, rng)
    texts = pd.DataFrame({"text": words, "label": np.where(signs > 0, "pos", "neg"), "film": np.arange(40) // 4})
    texts["score"] = rng.random(40)
    bags = pd.DataFrame(rng.standard_normal((80, 2)), columns=["x0", "x1"])
    bags.insert(0, "bag", np.arange(80) // 2)
    bags["label"] = bags["bag"] % 2
    groups = pd.DataFrame(rng.standard_normal((40, 5)), columns=["a_1", "a_2", "b_1", "b_2", "age"])
    groups["label"] = (groups["b_1"] > 0).astype(int)
    tables = {
        "texts": texts,
        "bags": bags,
        "groups": groups,
        "one_class": texts.assign(label="pos"),
        "header": texts[:0],
        "unlabeled": texts.assign(label=["", *texts["label"][1:]]),
        "empty_labels": texts.assign(label=""),
        "rare": texts.assign(label=["odd", *texts["label"][1:]]),
        "few": texts.assign(label=["odd"] * 3 + ["pos", "neg"] * 18 + ["pos"]),
        "wordless": texts.assign(text="!"),
        "no_film": texts.assign(film=["", *texts["film"][1:].astype(str)]),
        "one_film": texts.assign(film=1),
        "control": texts.rename(columns={"text": "te\x1b[31mxt"}),
        "no_bag": bags.assign(bag=["", *bags["bag"][1:].astype(str)]),
        "bag_unlabeled": bags.assign(label=["", *bags["label"][1:].astype(str)]),
        "mixed": bags.assign(label=[1, *bags["label"][1:]]),
        "nan": bags.assign(x0=["nan", *bags["x0"][1:].astype(str)]),
        "infinite": bags.assign(x0=["inf", *bags["x0"][1:].astype(str)]),
        "huge": bags.assign(x0=["1e300", *bags["x0"][1:].astype(str)]),
        "names": bags.assign(x0=[f"a{i}" for i in range(len(bags))]),
        "slip": bags.assign(x0=["l.5", *bags["x0"][1:].astype(str)]),
        "film_bags": bags.assign(film=np.arange(80) % 2),
        "missing": bags.assign(x0=""),
        "featureless": bags[["bag", "label"]],
        "group_unlabeled": groups.assign(label=["", *groups["label"][1:].astype(str)]),
        "group_empty": groups.assign(age=""),
        "group_huge": groups.assign(age=["-1e300", *groups["age"][1:].astype(str)]),
        "group_header": groups[:0],
    }
    for name, table in tables.items():
        table.to_csv(home / f"{name}.csv", index=False)
    groups.to_parquet(home / "groups.parquet", index=False)
    mappings = {
        "good": {"a": ["a_1", "a_2"], "b": ["b_1", "b_2"]},
        "list": [1],
        "text": {"a": "a_1", "b": ["b_1"]},
        "hollow": {"a": ["a_1"], "b": []},
        "label": {"a": ["a_1", "label"], "b": ["b_1"]},
        "twice": {"a": ["a_1", "a_1"], "b": ["b_1"]},
        "unknown": {"a": ["a_1"], "b": ["b_7"]},
    }
    for name, mapping in mappings.items():
        (home / f"{name}.json").write_text(json.dumps(mapping))
    (home / "double.json").write_text('{"a": ["a_1"], "a": ["a_2"]}')
    (home / "broken.json").write_text('{"a": ["a_1"],\n  "b" ["b_1"]}')
    (home / "nothing.csv").write_text("")
    (home / "note.txt").write_text("a superb film")
    (home / "latin.csv").write_bytes("text,label\ncafé,pos\n".encode("latin-1"))
    (home / "latin.txt").write_bytes("café".encode("latin-1"))
    (home / "latin.json").write_bytes('{"é": ["a_1"]}'.encode("latin-1"))
    (home / "folder").mkdir()
    (home / "folder" / "diary.txt").write_text("mine")
    text_model = TextClassifier(C=1.0, max_epochs=1, min_df=1).fit(words, texts["label"])
    text_model.save(home / "text-model")
    text_model.save(home / "named-model")
    describe_table(home / "named-model", {"roles": {"text": "review", "label": "mood"}})
    found = read_bags(home / "bags.csv")
    bag_model = BagClassifier(random_state=0).fit(found.bags, found.labels)
    bag_model.feature_names_in_ = np.array(["x0", "x1"], dtype=object)
    bag_model.save(home / "bag-model")
    X = groups.drop(columns="label")
    GroupClassifier(mappings["good"], covariates=["age"], random_state=0).fit(X, groups["label"]).save(
        home / "group-model"
    )
    (home / "gappy.csv").write_text(groups.assign(age=["", *groups["age"][1:].astype(str)]).to_csv(index=False))
    (home / "wordy.csv").write_text(groups.assign(b_1="red").to_csv(index=False))
    AttentionRegressor().fit(X, groups["b_1"]).save(home / "regressor")
    save_model(home / "strange-model", "oracle", {}, {"future": np.zeros(1)})
    return home


COMMANDS = [
    # what the parser of arguments says is its own; that it names the culprit in one line, and writes nothing, is ours
    ("--nothing", "--nothing"),
    ("nothing", "'nothing'"),
    ("list nosuch", "unknown claim 'nosuch'; whichtoken list shows all "),
    ("list toy/maen", "did you mean 'toy/mean'"),
    ("report --out folder", "run 'whichtoken reproduce' first"),
    ("report --out nosuch", "whichtoken-results.sqlite is missing"),
    ("export --to rows.xls", ".parquet"),
    ("export --to rows.csv", "run 'whichtoken reproduce' first"),
    ("bench nosuch", "unknown benchmark 'nosuch'"),
    ("bench prompt-svm --json nosuch/x.json", "there is no folder nosuch"),
]
REPRODUCE = [
    ("reproduce nosuch", "unknown claim 'nosuch'"),
    ("reproduce toy/mean --preset ful", "did you mean 'full'?"),
    ("reproduce toy/mean --seeds 0", "--seeds 0 must be a whole number of at least 1"),
    ("reproduce toy/mean --seeds 1.5", "'1.5' is not a whole number"),
    ("reproduce toy/mean --workers 0", "--workers 0 must be a whole number from 1 to 1000"),
    ("reproduce toy/mean --set draws", "write it as field=value"),
    ("reproduce toy/mean --set draws=", "write it as field=value"),
    ("reproduce toy/mean --set draws=1 --set draws=2", "--set draws is given twice; write --set draws=1,2"),
    ("reproduce toy/mean --set drafs=1", "did you mean 'draws'?"),
    ("reproduce toy/mean --set draws=x", "draws='x' is not accepted (int)"),
    ("reproduce toy/mean --set shift=nan", "shift='nan' is not accepted (float)"),
    ("reproduce toy/mean --engine dusk", "did you mean 'dask'?"),
    ("reproduce toy/mean --out texts.csv", "cannot be written"),
    ("reproduce toy/mean --json nosuch/x.json", "there is no folder nosuch"),
]
STRESS = [
    ("stress nosuch", "unknown claim 'nosuch'"),
    ("stress toy/mean", "toy/mean declares no ranges to search"),
    (
        "stress toy/border --budget soon",
        "--budget 'soon' is not a time or a number of rows; write 60s, 10m, 2h or 500rows",
    ),
    ("stress toy/border --field tilted", "unknown range 'tilted' for toy/border; did you mean 'tilt'?"),
    ("stress toy/border --map tilt,rate,size", "--map 'tilt,rate,size': a map has one or two different fields"),
    ("stress toy/border --map tilt,tilt", "--map 'tilt,tilt': a map has one or two different fields"),
    ("stress toy/border --map ,", "unknown range '' for toy/border"),
    ("stress toy/border --set tilt=1,2", "toy/border: give tilt one value; a search starts from one point"),
    ("stress toy/border --set tilt=x", "tilt='x' is not accepted (float)"),
    ("stress toy/border --set noise=2", "noise=2.0 must be at most 0.9"),
    ("stress toy/border --workers 0", "--workers 0 must be a whole number from 1 to 1000"),
    ("stress toy/border --json nosuch/x.json", "there is no folder nosuch"),
]
NEW = [
    ("new claim margins", "'margins' must be written as theory/claim, in lowercase letters, digits and hyphens"),
    ("new claim mine/class", "'mine/class' must be written as theory/claim"),
    ("new claim mine/x --to texts.csv", "texts.csv is a file; --to names a folder"),
    ("new claim mine/x --to texts.csv/deep", "texts.csv/deep cannot be created: texts.csv is a file"),
]
PLANS = [
    ("plan", "plan needs --length, --signal-tokens, --strength, --prevalence, --dim, or a --pilot FILE"),
    (PLAN.replace(" --samples 100", ""), "plan needs --samples N (what you can get) or --target-error E"),
    (f"{PLAN} --length 1", "--length 1 is out of range; give a number from 2 to 1,000,000"),
    (f"{PLAN} --signal-tokens 10", "--signal-tokens 10 must be smaller than --length 10"),
    (f"{PLAN} --signal-tokens 0", "--signal-tokens 0 must be a whole number of at least 1"),
    (f"{PLAN} --strength nan", "'nan' is not a finite number"),
    (f"{PLAN} --strength 1e300", "--strength 1e+300 is out of range; give a number from 0 to 100"),
    (f"{PLAN} --prevalence 0", "--prevalence 0.0 is out of range"),
    (f"{PLAN} --dim 1", "--dim 1 is out of range"),
    (f"{PLAN} --samples 0", "--samples 0 must be a whole number of at least 4"),
    (f"{PLAN} --figure curve.doc", "curve.doc: a figure is written as .svg, .png, .pdf"),
    (f"{PLAN} --json a.svg --figure a.svg", "--figure and --json name the same file, a.svg"),
    ("plan --pilot texts.csv", "has no column 'bag'; columns: text, label, film, score; --bag chooses the column"),
    ("plan --pilot bags.csv --json bags.csv", "--pilot and --json name the same file"),
    ("plan --pilot bags.csv --length 7", "--length 7 must be that of the pilot, 2"),
    (f"{PLAN} --bag molecule", "--bag says how a pilot is read; give a --pilot FILE or leave it out"),
    ("plan --pilot bags.csv --encoding nosuch", "nosuch"),
]
FIT_TEXT = [
    ("fit text texts.csv", "'--model'"),
    (
        f"{TEXT} --text label",
        "is named as text and label; each needs a column of its own; --text and --label choose the column",
    ),
    (f"{TEXT} --text ''", "the text column '' has no name; name a column of the table; --text chooses the column"),
    (f"{TEXT} --label ' '", "the label column ' ' has no name"),
    (f"{TEXT} --text nosuch", "has no column 'nosuch'; columns: text, label, film, score; --text chooses the column"),
    (f"{TEXT} --label score", "the labels have 40 distinct values in 40 rows"),
    (f"{TEXT} --label score", "classification needs a few classes"),
    (f"{TEXT} --ngrams 0", "--ngrams '0' must be 1, 2, 3 or auto"),
    (f"{TEXT} --ngrams 7", "--ngrams '7' must be 1, 2, 3 or auto"),
    (f"{TEXT} --ngrams two", "--ngrams 'two' must be 1, 2, 3 or auto"),
    (
        f"{TEXT} --threshold 1.5",
        "--threshold 1.5 must be a probability between 0 and 1, 'f1', or two costs of errors",
    ),
    (f"{TEXT} --stemmer klingon", "whichtoken: --stemmer 'klingon' must be one of arabic, "),
    (f"{TEXT} --seed -1", "--seed -1 must be a whole number from 0 to 4294967295"),
    (f"{TEXT} --test-share 0", "--test-share 0.0 must lie between 0 and 1"),
    (f"{TEXT} --test-share .999", "a test share of 0.999 puts 40 of 40 rows into the test and leaves 0 for training"),
    (f"{TEXT} --test-share .001", "a test share of 0.001 puts 1 of 40 rows into the test"),
    (f"{TEXT} --test-share .97", "puts 39 of 40 rows into the test and leaves 1 for training"),
    (f"{TEXT} --test-share .999 --split-by film", "puts 10 of 10 groups into the test and leaves 0 for training"),
    (f"{TEXT} --separator ''", "'' cannot separate columns; give one character"),
    (f"{TEXT} --separator '\"'", "cannot separate columns"),
    (f"{TEXT} --separator ';'", "is ',' the separator?"),
    ("fit text groups.parquet --model new --separator ';'", "--separator is for .csv and .tsv files"),
    ("fit text . --model new", "nothing.csv is empty"),
    ("fit text nosuch.csv --model new", "nosuch.csv does not exist"),
    ("fit text note.txt --model new", "a table must be .csv"),
    ("fit text nothing.csv --model new", "nothing.csv is empty"),
    ("fit text header.csv --model new", "header.csv has no rows"),
    ("fit text one_class.csv --model new", "has one class only, 'pos'; a classifier needs at least two"),
    ("fit text unlabeled.csv --model new", "row 1 has no label in column 'label'"),
    ("fit text rare.csv --model new --min-class 10000", "fewer than two classes have 10000 rows"),
    ("fit text rare.csv --model new --min-class 0", "--min-class 0 must be a whole number of at least 1"),
    ("fit text wordless.csv --model new", "none of 30 documents contains a token"),
    (
        "fit text no_film.csv --model new --split-by film",
        "every row needs one; --split-by chooses the column",
    ),
    ("fit text one_film.csv --model new --split-by film", "puts 1 of 1 group into the test"),
    ("fit text texts.csv --model new --folds 0", "--folds 0 must be a whole number from 2 to 100"),
    ("fit text texts.csv --model new --repeats 3", "--repeats 3 needs a cross-validation; give the number of folds"),
    ("fit text texts.csv --model new --folds 3 --repeats 0", "--repeats 0 must be a whole number from 1 to 100"),
    ("fit text texts.csv --model new --baseline svm", "unknown baseline 'svm'; baselines: logistic, naive-bayes"),
    ("fit text texts.csv --model new --class-weight ''", "'' is not a class weight; the only one is balanced"),
    ("fit text texts.csv --model new --encoding klingon", "'--encoding': encoding 'klingon' is not known"),
    (
        "fit text latin.csv --model new",
        "latin.csv is not UTF-8 (byte 0xe9 does not fit); name its encoding, such as latin-1",
    ),
    (f"{TEXT} --baseline logistic --no-baseline", "--baseline logistic and --no-baseline contradict each other"),
    ("fit text texts.csv --model new --encoding utf-16", "texts.csv cannot be read as csv"),
    ("fit text groups.parquet --model new --encoding latin-1", "--encoding is for text files"),
    ("fit text texts.csv --model new --rows 0", "'0' is not a whole number of at least 1"),
    ("fit text control.csv --model new", "te\\x1b[31mxt"),
    ("fit text groups.parquet --model new --text a_1", "texts are expected"),
    ("fit text texts.csv --model texts.csv", "texts.csv is a file; a model needs a folder of its own"),
    ("fit text texts.csv --model folder", "folder is not a model folder (it holds 'diary.txt')"),
    ("fit text texts.csv --model note.txt/new", "note.txt/new cannot be created: note.txt is a file"),
    (f"{TEXT} --json nosuch/x.json", "there is no folder nosuch"),
    (f"{TEXT} --json texts.csv", "DATA and --json name the same file, texts.csv; give --json another name"),
]
FIT_BAGS = [
    (
        f"{BAGS} --feature x0 --feature x0",
        "is named as feature twice; each needs a column of its own; --feature chooses the column",
    ),
    (f"{BAGS} --feature label", "column 'label' is named as label and feature"),
    (f"{BAGS} --bag label", "column 'label' is named as bag and label"),
    (f"{BAGS} --label x1", "has several labels; a bag must have one"),
    (f"{BAGS} --bag x1 --label x0", "the labels have 80 distinct values in 80 rows"),
    (f"{BAGS} --queries 0", "whichtoken: --queries 0 must be a whole number of at least 1"),
    (f"{BAGS} --test-share .999", "puts 40 of 40 rows into the test"),
    ("fit bags no_bag.csv --model new", "row 1 has no bag in column 'bag'; every row needs one"),
    ("fit bags bag_unlabeled.csv --model new", "row 1 has no label in column 'label'"),
    ("fit bags mixed.csv --model new", "bag 0 has several labels; a bag must have one"),
    ("fit bags infinite.csv --model new", "column 'x0' holds 'inf' in row 1; features must be finite numbers"),
    ("fit bags huge.csv --model new", "holds '1e300' in row 1; features must be below 1e+100 in size"),
    ("fit bags names.csv --model new", "column 'x0' holds 80 or more different texts, such as 'a0', 'a1', 'a2'"),
    ("fit bags slip.csv --model new", "column 'x0' holds 'l.5' in row 1; features must be finite numbers"),
    ("fit bags missing.csv --model new", "column 'x0' is empty in every row; leave it out"),
    ("fit bags missing.csv --model new --drop-missing", "has no rows without gaps"),
    ("fit bags film_bags.csv --model new --split-by film", "bag 0 has several values of 'film'; a bag must have one"),
    ("fit bags bags.csv --model new --baseline naive-bayes", "unknown baseline 'naive-bayes'"),
    ("fit bags bags.csv --model new --folds 21", "21 folds need as many rows of the rarest class; there are 20"),
    ("fit bags featureless.csv --model new", "has no feature columns besides bag, label"),
]
FIT_GROUPS = [
    ("fit groups groups.csv --model new", "give either --groups FILE.json or --prefix CHARACTER"),
    (f"{GROUPS} --groups good.json", "give either --groups FILE.json or --prefix CHARACTER"),
    ("fit groups groups.csv --model new --prefix ''", "no column name contains the prefix character ''"),
    (
        "fit groups groups.csv --model new --prefix '#'",
        "no column name contains the prefix character '#'; columns: a_1, a_2",
    ),
    (f"{GROUPS} --covariate label", "column 'label' is named as label and covariate"),
    (f"{GROUPS} --covariate age --covariate age", "column 'age' is named as covariate twice"),
    (f"{GROUPS} --label age", "the labels have 40 distinct values"),
    (f"{NAMED} broken.json", "broken.json is not valid JSON: line 2, column 7"),
    (f"{NAMED} latin.json", "latin.json is not UTF-8"),
    (f"{NAMED} list.json", "list.json names no groups; groups are written as"),
    (f"{NAMED} text.json", "group 'a' is not a list of names of columns"),
    (f"{NAMED} hollow.json", "group 'b' is not a list of names of columns"),
    (f"{NAMED} double.json", "'a' appears twice in one object"),
    (f"{NAMED} label.json", "column 'label' is named as label and member of group 'a'"),
    (f"{NAMED} twice.json", "column 'a_1' is named as member of group 'a' twice"),
    (f"{NAMED} unknown.json", "has no column 'b_7'"),
    (f"{NAMED} good.json --covariate a_1", "group 'a' contains covariates; a column is one or the other"),
    (f"{NAMED} good.json --json good.json", "--groups and --json name the same file"),
    ("fit groups group_unlabeled.csv --model new --prefix _", "row 1 has no label in column 'label'"),
    ("fit groups group_empty.csv --model new --prefix _", "column 'age' is empty in every row"),
    ("fit groups group_huge.csv --model new --prefix _", "features must be below 1e+100 in size"),
    ("fit groups group_header.csv --model new --prefix _", "has no rows"),
]
PREDICT = [
    ("predict text-model texts.csv --abstain-below 2", "'2' is not a probability; give a number from 0 to 1"),
    ("predict text-model texts.csv --rows -3", "'-3' is not a whole number of at least 1"),
    ("predict regressor texts.csv", "holds a model of kind 'attention-regressor', which is used from Python only"),
    ("predict group-model gappy.csv", "column 'age' has a gap in row 1, and the model knows no number for it"),
    ("predict group-model wordy.csv", "column 'b_1' holds texts, such as 'red'; the model was trained on numbers"),
    ("evaluate text-model texts.csv --label nosuch", "has no column 'nosuch'"),
    ("evaluate text-model unlabeled.csv", "row 1 has no label in column 'label'"),
    ("evaluate text-model rare.csv", "has the label 'odd', which the model does not know; it knows 'neg', 'pos'"),
    ("evaluate bag-model mixed.csv", "mixed.csv: bag 0 has several labels; a bag must have one"),
    ("evaluate text-model empty_labels.csv --drop-missing", "no row has a label in column 'label'"),
    ("evaluate text-model texts.csv --json texts.csv", "DATA and --json name the same file"),
    ("evaluate regressor texts.csv", "which is used from Python only"),
    ("explain regressor superb", "which is used from Python only"),
    ("explain text-model superb --rows 3", "say how to read a table; give it as --file FILE"),
    ("explain text-model --file note.txt --encoding latin-1", "is read as one text, in UTF-8"),
    ("predict folder texts.csv", "folder is not a model folder"),
    ("predict texts.csv texts.csv", "texts.csv is not a model folder"),
    ("predict strange-model texts.csv", "holds a model of kind 'oracle', which this version cannot use"),
    ("predict text-model bags.csv", "columns: bag, x0, x1, label; --text or --bag chooses the column"),
    (
        "predict named-model texts.csv",
        "columns: text, label, film, score; --text or --bag chooses the column",
    ),
    (
        "explain named-model --file texts.csv",
        "no column 'review'; columns: text, label, film, score; --text or --bag",
    ),
    (
        "evaluate named-model texts.csv --text text",
        "columns: text, label, film, score; --label chooses the column",
    ),
    ("predict text-model texts.csv --text ''", "--text or --bag '' has no name"),
    ("predict text-model groups.parquet --text a_1", "texts are expected"),
    ("predict text-model texts.csv --to out.xlsx", "out.xlsx: a table is written as .csv, .tsv, .parquet, .jsonl"),
    ("predict text-model texts.csv --to texts.csv", "DATA and --to name the same file, texts.csv"),
    ("predict text-model texts.csv --to ./folder/../texts.csv", "DATA and --to name the same file"),
    ("predict bag-model groups.csv --bag a_1", "has no column 'x0'"),
    ("predict bag-model bags.csv --bag x0", "column 'x0' is named as bag and feature"),
    ("predict bag-model nan.csv", "column 'x0' has a gap in row 1, and the model knows no number for it"),
    ("predict group-model bags.csv", "bags.csv has no column"),
    ("predict group-model groups.csv --text age", "finds its columns by name; leave out --text and --bag"),
]
EXPLAIN = [
    ("explain text-model", "give either a TEXT or --file FILE"),
    ("explain text-model ''", "the text is empty; give one with words in it"),
    ("explain text-model superb --file texts.csv", "give either a TEXT or --file FILE"),
    ("explain text-model note.txt", "note.txt is a file; to explain its content, write --file note.txt"),
    ("explain text-model --file latin.txt", "latin.txt is not UTF-8"),
    ("explain text-model --file note.txt --text text", "is read as one text and has no columns"),
    ("explain text-model --file note.txt --separator ';'", "--separator is for .csv and .tsv files"),
    ("explain text-model --file bags.csv", "has no column 'text'"),
    ("explain text-model superb --json x --html x", "--html and --json name the same file, x"),
    ("explain text-model --file texts.csv --json texts.csv", "--file and --json name the same file"),
    ("explain strange-model superb", "holds a model of kind 'oracle', which this version cannot use"),
    ("explain group-model superb", "explains the rows of a table; give --file FILE and no TEXT"),
    ("explain group-model --file bags.csv", "bags.csv has no column"),
    ("explain group-model --file note.txt", "a table must be .csv"),
    ("explain bag-model --file huge.csv", "features must be below 1e+100 in size"),
]
INSPECT = [
    ("inspect folder --file texts.csv --rows 0", "'0' is not a whole number of at least 1"),
    ("inspect folder --file texts.csv --json texts.csv", "--file and --json name the same file"),
    ("inspect nosuch --file texts.csv", "nosuch is not a folder"),
    ("inspect folder --file texts.csv", "folder has no tokenizer"),
]
ROWS = [*COMMANDS, *REPRODUCE, *STRESS, *NEW, *PLANS, *FIT_TEXT, *FIT_BAGS, *FIT_GROUPS, *PREDICT, *EXPLAIN, *INSPECT]


def contents(home: Path) -> dict[Path, int | None]:
    return {path: path.stat().st_mtime_ns if path.is_file() else None for path in home.rglob("*")}


def check(status: object, printed: str, sentence: str) -> None:
    assert status == 2, printed
    assert printed.startswith("whichtoken: ")
    assert printed.count("\n") == 1, printed
    assert sentence in printed
    assert printed[:-1].isprintable(), "nothing in it moves the cursor"


@pytest.mark.parametrize(("line", "sentence"), ROWS, ids=[line for line, _ in ROWS])
def test_a_mistake_is_one_sentence_and_writes_nothing(line, sentence, world, monkeypatch, capsys):
    monkeypatch.chdir(world)
    monkeypatch.setattr(sys, "argv", ["whichtoken", *shlex.split(line)])
    before = contents(world)
    with pytest.raises(SystemExit) as end:
        cli.main()
    check(end.value.code, capsys.readouterr().err, sentence)
    assert contents(world) == before


@pytest.mark.parametrize("rows", [COMMANDS, FIT_TEXT, PREDICT], ids=["parser", "fit", "predict"])
def test_a_real_process_says_the_same(rows, world):
    line, sentence = rows[0]
    command = [sys.executable, "-W", "error", "-m", "whichtoken", *shlex.split(line)]
    before = contents(world)
    done = subprocess.run(command, cwd=world, capture_output=True, text=True, check=False)
    check(done.returncode, done.stderr, sentence)
    assert done.stdout == ""
    assert contents(world) == before
