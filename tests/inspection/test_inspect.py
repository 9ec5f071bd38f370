"""`inspect`, the page and the command, on a tiny model; and everything that can be wrong with what a user gives."""

import html
import json
import re

import families
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.app.cli.inspect import _mark_text
from whichtoken.app.cli.inspect import inspect as inspect_model
from whichtoken.errors import UsageError
from whichtoken.files import finite
from whichtoken.inspection import Inspection, direct_contributions, inspect, load_tokenizer, load_transformer
from whichtoken.inspection.corpus import TOKENS, _batches, check_memory, corpus_picks, encode, shuffle_weights
from whichtoken.inspection.head_report import TokenRelations, head_reports
from whichtoken.inspection.page import HeadFigure

transformers = families.transformers
WORDS = families.WORDS


@pytest.fixture(scope="module")
def tokenizer():
    return families.tiny_tokenizer()


@pytest.fixture(scope="module")
def model():
    return families.tiny_classifier()


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS[4:11], size=rng.integers(4, 10))) for _ in range(50)]


@pytest.fixture(scope="module")
def result(model, tokenizer, texts):
    labels = ["good" in text for text in texts]
    return inspect(model, [*texts[:-1], texts[-1] + " <b> very"], tokenizer, labels=labels, layer=1, head=2)


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_picks_over_a_corpus_do_not_depend_on_the_batch(model, tokenizer, texts):
    one, many = (corpus_picks(model, tokenizer, texts, batch=batch) for batch in (1, 16))
    for name in ("token", "runner_up"):
        assert np.array_equal(getattr(one, name), getattr(many, name))
    assert np.allclose(one.gap, many.gap, atol=1e-4)
    assert np.allclose(one.sink_share, many.sink_share, atol=1e-5)


def test_special_tokens_are_never_the_reported_pick(result):
    tokens = [result.picks.ids[i][result.picks.token[i]] for i in range(50)]
    assert not np.isin(tokens, [0, 1, 2, 3]).any()


def test_a_head_made_to_look_for_one_word_is_called_so(tokenizer, texts, model):
    """Planted: one head picks "film" wherever it stands, one the first place; the report must tell which."""
    picks = corpus_picks(model, tokenizer, [text + " film" for text in texts])
    by_word = [ids.tolist().index(6) for ids in picks.ids]
    picks.token[:, 0, 0] = by_word
    picks.token[:, 0, 1] = 1
    picks.sink_share[:] = 0
    word, place = head_reports(picks, tokenizer)[:2]
    assert (word.kind, place.kind) == ("content", "position")
    assert word.top_picks[0][0] == "film"
    assert place.position.share == 1.0


def test_labels_that_say_nothing_make_no_discoveries(model, tokenizer, texts):
    picks = corpus_picks(model, tokenizer, texts)
    labels = np.random.default_rng(1).integers(2, size=50)
    reports = head_reports(picks, tokenizer, labels)
    assert all(not report.label_q < 0.05 for report in reports)


def test_picks_that_tell_the_label_are_discovered_and_others_not():
    """Planted: labels follow the words good and bad, and one head picks them; another picks a common word."""
    rng = np.random.default_rng(3)
    ids = [np.array([2, *rng.choice(np.arange(20, 60), 8, replace=False), 3], dtype=np.int32) for _ in range(300)]
    labels = rng.integers(2, size=300)
    for text, label in zip(ids, labels, strict=True):  # tokens 20 to 29 tell the label
        text[4] = rng.integers(20, 25) if label else rng.integers(25, 30)
    relations = TokenRelations(ids, labels)
    likes = {token: 1.0 if token < 30 else 0.1 for token in range(20, 60)}
    frequent = dict(zip(relations.tokens.tolist(), relations.counts.tolist(), strict=True))
    noise = {token: rng.random() for token in range(20, 60)}
    assert relations.of(likes).p_value < 0.01
    assert relations.of(noise).p_value > 0.01
    assert relations.of(frequent).frequency == pytest.approx(1.0)


def test_shuffled_weights_are_the_same_numbers_elsewhere(model):
    other = shuffle_weights(model)
    for before, after in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)
    assert not torch.equal(next(model.parameters()), next(other.parameters()))


def test_the_closer_look_has_a_certified_rule(result):
    assert result.report(1, 2).rule is None  # until it is asked for
    rule = result.rule(1, 2)
    assert rule.status == "optimal"
    assert rule.gap < 1e-6
    assert rule.own.share == 1.0  # a BERT head is a function of these vectors
    assert rule.realised_margin <= rule.best_margin * (1 + 1e-6)
    assert rule.agreement.low <= rule.agreement.share <= rule.agreement.high
    assert result.report(1, 2).rule is rule


def test_the_page_is_static_escaped_and_usable_by_keyboard(result, tmp_path):
    result.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    links = set(re.findall(r'(?:src|href)="([^"]*)"', page)) - {"data:,"}
    assert links == {f"#layer-{layer}-head-{head}" for layer in range(2) for head in range(4)}
    assert all(f'id="{link[1:]}"' in page for link in links)
    assert page.count('tabindex="0"') > 15
    assert "<b> very" not in page
    assert result._repr_html_() in page


@pytest.mark.browser
@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1400, "light")])
def test_the_page_fits_and_hinders_nobody(visit, result, tmp_path, width, theme):
    result.to_html(tmp_path / "page.html")
    made = visit(tmp_path / "page.html", width, theme)
    assert made.overflow() == 0
    assert made.violations() == []


def test_json_is_complete_and_valid(result):
    text = json.dumps(result.as_json(), allow_nan=False)
    read = json.loads(text)
    assert len(read["heads"]) == 8
    assert read["heads"][6]["state"] in {"decided", "torn", "tie"}
    assert abs(sum(read["shown"][0]["why"]["parts"].values()) - read["shown"][0]["why"]["gap"]) < 1e-4
    assert read["shown"][0]["effects"]["removed"]
    assert finite({"a": [float("inf"), np.float32(1)]}) == {"a": [None, 1.0]}


def test_one_pass_gives_picks_and_nothing_else_is_computed_before_it_is_asked_for(model, tokenizer, texts, monkeypatch):
    passes = []
    handle = model.register_forward_hook(lambda module, args, output: passes.append(len(output.logits)))
    found = inspect(model, texts, tokenizer)
    handle.remove()
    assert sum(passes) == 50 + 128  # the texts, and the changed copies
    assert not found._source.views
    assert not found._source.effects
    found.summary(), found.reason(0)
    assert not found._source.views  # a head that matters is found without shares and deletion curves
    monkeypatch.setattr("whichtoken.inspection.inspecting.pick_effects", lambda *_, **__: "asked")
    assert found.effects(3) == "asked"
    assert found.effects(3) is found.effects(3)


def test_numbers_that_two_precisions_disagree_on_are_not_shown(model, tokenizer, monkeypatch, tmp_path):
    found = inspect(model, ["good film the plot", "a very bad plot"], tokenizer)
    rng = np.random.default_rng(0)
    monkeypatch.setattr("whichtoken.inspection.inspecting.token_shares", lambda *_, **__: rng.standard_normal(6))
    assert found.view(0).shares is None
    found.to_html(tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert "single and double precision disagree" in page
    assert "share in the decision" not in page


def test_an_encoder_is_asked_about_a_text_or_between_two(tokenizer):
    encoder = families.FAMILIES["bert"](dtype=torch.float32)
    texts = ["good film the plot", "a very bad plot", "good good"]
    own, towards, between = (
        inspect(encoder, texts, tokenizer, reference=reference).view(0) for reference in (None, "good", ("good", "bad"))
    )
    assert (own.decision, towards.decision, between.decision) == ("embedding", "similarity", "similarity")
    assert not np.allclose(towards.shares, between.shares)
    with pytest.raises(UsageError, match="must be a text or a pair of texts"):
        inspect(encoder, texts, tokenizer, reference=("a", "b", "c"))
    with pytest.raises(UsageError, match="must be two texts that the model tells apart"):
        inspect(encoder, texts, tokenizer, reference=("good", "good"))


def test_a_classifier_needs_no_reference(model, tokenizer):
    with pytest.raises(UsageError, match="has decisions of its own"):
        inspect(model, ["good film"], tokenizer, reference="bad")


def test_tables_have_a_row_per_head_and_per_pick(result, texts):
    heads, words = result.to_frame(), result.words()
    assert len(heads) == 8
    assert {"layer", "head", "survival", "state", "top_picks"} <= set(heads)
    assert len(words) == 50 * 8
    row = words.iloc[13]
    assert texts[row["text"]][row["start"] : row["end"]] == row["word"]


def test_the_clearest_examples_of_a_head_show_its_pick_among_its_neighbors(result):
    for before, word, after in result.examples(0, 1):
        assert word in WORDS
        assert len(before.split()) <= 3
        assert "[CLS]" not in before + after


def test_the_reason_that_is_shown_is_that_of_the_head_that_contributes_most(model, tokenizer, tmp_path, monkeypatch):
    """Among the heads that have one; beside the head in focus, which may have none."""
    for name, value in (("CLOSE", 0.02), ("CANCELLATION", 9.0), ("SINK", 0.9)):  # random weights rarely have a reason
        monkeypatch.setattr(f"whichtoken.inspection.why.{name}", value)
    texts = ["a very good film", "the bad plot a good film", "a good plot", "the very bad film the plot"]
    result, found = inspect(model, texts, tokenizer), []
    for text in range(4):
        order = np.argsort(-np.abs(result.view(text).direct), axis=None, kind="stable").tolist()
        whys = [result.why(*divmod(place, result.picks.token.shape[2]), text) for place in order]
        readable = [why for why in whys if why is not None and why.state == "readable"]
        assert result.reason(text) is (readable[0] if readable else None)
        if (own := result.why(*result.focus, text)) not in readable:
            found += [why.sentence for why in readable[:1]]
        elif own is not None:
            found.append(own.reason)
    assert found
    result.to_html(tmp_path / "page.html", shown=4)
    page = html.unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert all(sentence in page for sentence in found)


def test_the_picture_of_a_head_is_valid_and_stays_readable_when_long(model, tokenizer, tmp_path):
    from xml.etree import ElementTree

    from whichtoken.inspection.page import HeadFigure

    found = inspect(model, ["good <b> film the plot"], tokenizer)
    found.figure(1, 2).save(tmp_path / "head.svg")
    drawn = ElementTree.parse(tmp_path / "head.svg").getroot()
    assert sum(item.tag.endswith("path") for item in drawn) == 2
    long = HeadFigure(tuple("word" for _ in range(512)), 0, 500, 3, 0.5, "long")
    _, _, width, height = ElementTree.fromstring(long.svg()).get("viewBox").split()
    assert (float(width) < 1000, float(height) < 1800) == (True, True)
    # a line to a later row leaves its word below, a line to an earlier one above
    ends = [
        [int(float(y)) for y in re.findall(r"(?<=,)[0-9.]+", path)] for path in re.findall(r'd="([^"]+)"', long.svg())
    ]
    assert ends[0][0] == 62 + 5
    assert ends[0] == sorted(ends[0])
    back = HeadFigure(tuple("word" for _ in range(512)), 500, 0, 3, 0.5, "back").svg()
    assert re.search(r"(?<=,)[0-9.]+(?=\")", back).group() == "67.0"


def test_the_control_is_the_same_model_with_shuffled_weights(result):
    assert len(result.control) == 8
    assert [item.top_picks for item in result.control] != [item.top_picks for item in result.reports]


def test_the_command_writes_a_page_and_numbers(folder, tmp_path, texts, capsys):
    (tmp_path / "t.csv").write_text("text,label\n" + "\n".join(f"{text},{'good' in text}" for text in texts))
    inspect_model(folder, tmp_path / "t.csv", label="label", html=tmp_path / "p.html", json_file=tmp_path / "n.json")
    shown = capsys.readouterr().out
    # the map first: it is known before anything about one head
    assert shown.startswith("layer   0  1  2  3 ")
    assert "\n\nBertForSequenceClassification: 8 heads over 50 texts" in shown
    assert json.loads((tmp_path / "n.json").read_text())["texts"] == 50
    assert "Which token does each head pick?" in (tmp_path / "p.html").read_text()


def test_of_a_long_text_the_command_prints_what_is_near_the_query_and_the_picks():
    words = tuple(f"w{place}" for place in range(100))
    assert _mark_text(HeadFigure(words[:60], 0, 40, 50, 0.5, "")).split()[39:41] == ["w39", "[w40]"]
    near = [f"w{place}" for place in range(9)], [f"w{place}" for place in range(32, 59)]
    shown = " ".join([*near[0], "...", *near[1], "..."]).replace("w40", "[w40]").replace("w50", "(w50)")
    assert _mark_text(HeadFigure(words, 0, 40, 50, 0.5, "")) == shown


def test_a_mistake_on_the_command_line_is_one_line_and_exit_2(whichtoken, tmp_path):
    (tmp_path / "t.csv").write_text("text\ngood film\n")
    result = whichtoken("inspect", tmp_path / "nowhere", "--file", "t.csv", "--html", "p.html")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "is not a folder" in result.stderr
    assert not (tmp_path / "p.html").exists()


def test_loading_executes_nothing(folder):
    """Code in a model folder stays where it is; pickled weights are read as weights only."""
    (folder / "modeling_evil.py").write_text("raise SystemExit('executed')")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoModelForSequenceClassification": "modeling_evil.Evil",
        "AutoConfig": "modeling_evil.Evil",
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert type(load_transformer(folder)).__name__ == "BertForSequenceClassification"
    (folder / "model.safetensors").unlink()

    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("executed",))

    torch.save({"x": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"pytorch_model.bin cannot be read as weights: it holds more than arrays"):
        load_transformer(folder)


def break_config(folder):
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (break_config, "is not valid JSON"),
        (lambda f: (f / "config.json").write_text("{}"), "names no model_type"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (lambda f: (f / "model.safetensors").write_bytes(b"short"), r"model.safetensors cannot be read as weights"),
    ],
)
def test_a_broken_folder_is_one_sentence(folder, spoil, message):
    spoil(folder)
    with pytest.raises(UsageError, match=message):
        load_transformer(folder)


def test_a_missing_tokenizer_is_one_sentence(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"has no tokenizer; copy tokenizer.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((["good film"],), {}, "needs the model's tokenizer"),
        (("good film", "tokenizer"), {}, "texts is one string"),
        (([], "tokenizer"), {}, "no texts were given"),
        ((["good", "  "], "tokenizer"), {}, "text 2 is empty"),
        ((["good film"], "tokenizer"), {"labels": [1, 2]}, "2 labels for 1 texts"),
        ((["good film", "bad"], "tokenizer"), {"labels": [1, 1]}, "every text has the label 1"),
        ((["good film"], "tokenizer"), {"layer": 2}, "layer=2 does not exist; this model has layers 0 to 1"),
        ((["good film"], "tokenizer"), {"head": 4}, "head=4 does not exist; this model has heads 0 to 3"),
        ((["good film"], "tokenizer"), {"queries": "all"}, "queries='all' is not known here"),
    ],
)
def test_wrong_arguments_are_one_sentence(model, tokenizer, arguments, options, message, monkeypatch):
    given = [tokenizer if item == "tokenizer" else item for item in arguments]
    if "labels" in options:  # before the texts are read
        monkeypatch.setattr("whichtoken.inspection.inspecting.corpus_picks", None)
    with pytest.raises(UsageError, match=message):
        inspect(model, *given, **options)


def test_one_text_and_long_texts_are_fine(model, tokenizer):
    result = inspect(model, ["good film " * 30], tokenizer)
    assert isinstance(result, Inspection)
    assert result.truncated == 1
    assert "1 of 1 texts were longer" in result.summary()[-1]
    assert len(encode(tokenizer, ["good " * 50], 24)[0][0]) == 24


def test_texts_are_any_iterable_of_strings(model, tokenizer):
    assert inspect(model, (text for text in ("good film", "bad plot")), tokenizer).texts == 2
    with pytest.raises(UsageError, match="text 2 is None, not a string"):
        inspect(model, ["good film", None], tokenizer)


@pytest.mark.parametrize(
    ("kind", "longest"), [("XLMRoberta", 29), ("MPNet", 28), ("Bert", 30), ("XLNet", None), ("Bloom", None)]
)
def test_a_text_is_cut_where_the_positions_end_and_only_there(kind, longest):
    """Some count positions from the padding id on; a tokenizer without a limit says 1e30."""
    small = families.SMALL | {"pad_token_id": 0} | ({} if longest is None else {"max_position_embeddings": 30})
    if kind == "XLNet":
        small = {"d_model": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "d_inner": 48}
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**small)).eval()
    tokenizer = families.tiny_tokenizer()
    tokenizer.model_max_length = int(1e30)
    picks = corpus_picks(model, tokenizer, ["good film " * 40, "a film"])
    assert len(picks.ids[0]) == (longest or 82)
    assert picks.truncated == (longest is not None)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 20))
def test_long_texts_are_read_a_few_at_a_time(lengths, most):
    found = _batches(lengths, most)
    assert sorted(text for rows in found for text in rows) == list(range(len(lengths)))
    for rows in found:
        assert len(rows) <= most
        assert len(rows) == 1 or len(rows) * max(lengths[text] for text in rows) <= TOKENS


def test_the_same_word_twice_is_told_by_its_place(tokenizer, model):
    found = inspect(model, ["film film film"], tokenizer)
    whys = [why for layer in range(2) for head in range(4) if (why := found.why(layer, head))]
    assert whys
    for why in whys:
        assert why.words == (f"film at {why.picked}", f"film at {why.runner_up}")
    shown = html.unescape(found._repr_html_())
    assert "ahead of “film at " in shown
    assert "ahead of film at " in shown  # in the note of a word
    assert "ahead of film by" not in shown


def test_too_few_texts_say_nothing_about_place_and_word(tokenizer, model, tmp_path):
    found = inspect(model, ["a very good film"], tokenizer)
    assert {report.kind for report in found.reports} <= {"unknown", "sink"}
    found.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "too few texts to say" in page
    assert "–" not in page.partition("<h1>")[2]


def test_memory_is_estimated_before_the_run(model):
    with pytest.raises(UsageError, match=r"needs about [0-9.]+ GiB; choose a smaller batch"):
        check_memory(model, 100_000, 64)


def test_words_of_a_page_are_whole(model):
    """Pieces of one word stand together and without the marks of the tokenizer; the most frequent picks are words too."""
    tokenizers = pytest.importorskip("tokenizers")
    pieces = [*WORDS[:6], "fi", "##lm", "##y", "very", "plot", "the"]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=24, **names)
    found = inspect(model, ["very filmy plot", "the film very good"], tokenizer)
    assert found.view(0).tokens == ("very", "fi", "##lm", "##y", "plot")
    body = found._repr_html_()
    assert "##" not in body
    assert "very filmy plot" in re.sub(r"<[^>]*>", "", body)
    picked = {name for report in found.reports for name, _ in report.top_picks}
    assert picked <= {"very", "filmy", "plot", "the", "film", "good"}
    assert picked & {"filmy", "film"}


def test_everything_that_has_numbers_is_a_table(tokenizer, model, tmp_path):
    found = inspect(model, ["a very good film", "the bad plot"], tokenizer)
    view = found.view(0)
    assert view.to_frame()["word"].tolist() == list(view.words)
    effects = found.effects(0, layer=1)
    # of the picks that are shown, never of a special token
    assert effects.picks.token[0, :, 0].tolist() == found.picks.token[0, 1].tolist() == view.picked[1].tolist()
    assert not np.isnan(effects.deleted).any()
    assert effects.to_frame()["removed"].tolist() == effects.removed.tolist()
    direct = direct_contributions(model, tokenizer("a very good film", return_tensors="pt"))
    sums = direct.to_frame().groupby(["layer", "head"])["contribution"].sum().to_numpy()
    assert sums == pytest.approx(direct.heads.ravel())
    with pytest.raises(UsageError, match=r"head.png must end in .svg"):
        found.figure().save(tmp_path / "head.png")
