"""The planner's answers as a person reads them."""

from dataclasses import replace

import pytest

from whichtoken.app.pages.planning import (
    answer,
    forecast_headings,
    forecast_rows,
    predicted_error,
    protocol,
    write_figure,
)
from whichtoken.theory import sparse_tokens
from whichtoken.theory.sparse_tokens.planner import recommend

TASK = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5, "dim": 200}


@pytest.fixture(scope="module")
def planned():
    return sparse_tokens.plan(**TASK, samples=800, target_error=0.1)


def test_table_and_protocol_show_the_numbers_of_the_plan(planned):
    rows = {row[0]: row for row in forecast_rows(planned)}
    assert list(rows) == [
        "attention, all samples for both",
        "BagClassifier",
        "attention, samples split",
        "mean pooling",
        "linear on all tokens",
    ]
    assert rows["attention, samples split"][1] == f"{planned.attention.error:.3g}"
    assert rows["attention, all samples for both"][1:4:2] == [
        f"{planned.reuse.error:.3g}",
        str(planned.reuse.samples_needed),
    ]
    assert rows["BagClassifier"][3] == str(planned.bag_classifier.samples_needed)
    assert rows["mean pooling"][3] == "never"
    assert len(forecast_headings(planned)) == len(rows["mean pooling"]) == 5
    open_ended = replace(planned, target_error=None)
    assert len(forecast_headings(open_ended)) == len(forecast_rows(open_ended)[0]) == 4  # no column without a number
    text = protocol(planned)
    assert f"{planned.bayes_floor:.3g}" in text
    assert "1 token of a positive sequence carries" in text


@pytest.mark.parametrize(
    ("way", "field", "sentence"),
    [
        ("BagClassifier", "bag_classifier", "BagClassifier, trained on all 800 sequences"),
        ("reuse", "reuse", "gradient steps of size 0.5 on 800 sequences"),
        ("split", "attention", "readout of ridge 0.01 on the remaining"),
    ],
)
def test_protocol_says_how_to_train_as_recommended(planned, way, field, sentence):
    text = protocol(replace(planned, recommended=way))
    assert sentence in text
    assert f"needs {getattr(planned, field).samples_needed} sequences this way" in text


def test_the_answer_is_a_sentence_and_nothing_is_recommended_at_chance(planned):
    needed = planned.bag_classifier.samples_needed
    yes = replace(planned, recommended="BagClassifier", samples=needed)
    assert answer(yes).startswith(f"Yes: an error of 0.1 needs about {needed} samples")
    assert answer(replace(yes, samples=needed - 1)).startswith("Not yet: ")
    never = replace(yes, bag_classifier=replace(yes.bag_classifier, samples_needed=None))
    assert answer(never).startswith("No: an error of 0.1 is not reached with any amount of data")
    assert answer(replace(yes, target_error=None)).startswith(f"Yes: with {needed} samples the predicted error is")
    at_chance = {name: replace(getattr(yes, name), error=0.5) for name in ("attention", "reuse", "bag_classifier")}
    lost = replace(yes, **at_chance, target_error=None, recommended=recommend(0.5, 0.495, 0.5, 0.5))
    assert answer(lost).startswith("No: with")
    assert "Recommended" not in protocol(lost)
    assert "Nothing is recommended" in protocol(lost)


def test_small_shares_and_errors_are_not_rounded_to_nothing(planned):
    tiny = replace(
        planned,
        prevalence=0.003,
        signal_tokens=2,
        attention=replace(planned.attention, error=1.23e-5),
        bayes_floor=1e-7,
        bayes_floor_error=1e-10,
    )
    text = protocol(tiny)
    assert "0.3 % of the sequences are positive" in text
    assert "2 tokens of a positive sequence carry" in text
    assert "1.23e-05 with the samples split" in text
    assert "better than 1e-07," in text
    assert "any error below 2e-05, as far as is known" in protocol(replace(tiny, bayes_floor_error=1e-5))
    assert forecast_rows(tiny)[2][1] == "1.23e-05"


def test_curve_passes_through_the_forecasts(planned):
    for name in ("attention", "pooled", "vectorized"):
        assert predicted_error(planned, name, 800) == pytest.approx(getattr(planned, name).error, rel=0.03)


def test_figure_is_written_in_the_format_of_its_name(planned, tmp_path):
    write_figure(planned, tmp_path / "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    with pytest.raises(ValueError, match="cannot be written"):
        write_figure(planned, tmp_path / "curve.docx")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            [
                "--length",
                10,
                "--signal-tokens",
                1,
                "--strength",
                5,
                "--prevalence",
                0.5,
                "--dim",
                50,
                "--target-error",
                0.001,
            ],
            "the error of the best possible classifier",
        ),
        (["--pilot", "missing.csv"], "missing.csv does not exist"),
    ],
)
def test_impossible_plans_are_one_line(whichtoken, arguments, sentence):
    done = whichtoken("plan", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert sentence in done.stderr
