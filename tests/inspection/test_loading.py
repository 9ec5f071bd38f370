"""A model folder is someone else's: its numbers are complete or refused by name, and it decides nothing but its numbers."""

import json
import os
import socket
import struct
import warnings
from contextlib import suppress

import families
import pytest
import torch
from safetensors.torch import load_file, save_file

from whichtoken.datasets.sentence_encoder import SentenceEncoder
from whichtoken.errors import UsageError
from whichtoken.inspection import inspect, load_tokenizer, load_transformer
from whichtoken.inspection.corpus import corpus_picks
from whichtoken.inspection.loading import HEADS

transformers = families.transformers


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    families.tiny_classifier().save_pretrained(folder)
    families.tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    copy = tmp_path / "model"
    copy.mkdir()
    for file in saved.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def change_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights) or weights, folder / "model.safetensors")


@pytest.mark.parametrize("family", families.FAMILIES)
def test_what_was_saved_is_what_is_loaded(family, tmp_path):
    model = families.FAMILIES[family](dtype=torch.float32, attention="eager")
    model.save_pretrained(tmp_path)
    loaded = load_transformer(tmp_path, attn_implementation="eager")
    assert type(loaded) is type(model)
    ours, theirs = loaded.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with torch.no_grad():
        before, after = (item(**families.batch())[0] for item in (model, loaded))
    assert torch.allclose(before, after, atol=1e-4)


def without_half(weights):
    return {name: array for i, (name, array) in enumerate(weights.items()) if i % 2}


def renamed(weights):
    return {name.replace("query", "enquiry"): array for name, array in weights.items()}


def narrower(weights):
    name = "bert.encoder.layer.1.output.dense.weight"
    return weights | {name: weights[name][:, :-1].contiguous()}


def with_nan(weights):
    weights["bert.encoder.layer.1.output.dense.bias"][3] = torch.nan


def one_more_layer(weights):
    layer = {name: array.clone() for name, array in weights.items() if ".layer.1." in name}
    return weights | {name.replace(".layer.1.", ".layer.2."): array for name, array in layer.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_half, r"weights are missing: bert\.[a-zA-Z0-9_., ]+ and \d+ more; its config.json"),
        (renamed, r"weights are missing: bert.encoder.layer.0.attention.self.query.bias"),
        (narrower, r"weights are of another shape: bert.encoder.layer.1.output.dense.weight \(32, 47\) instead of \(32, 48\)"),
        (one_more_layer, r"weights are too many: encoder.layer.2.attention.output.LayerNorm.bias, .* and 13 more"),
        (lambda weights: weights | {"stranger": torch.ones(3)}, "weights are too many: stranger"),
        (lambda weights: {k: v for k, v in weights.items() if "classifier" not in k}, "weights are missing: classifier.bias"),
        (lambda weights: {"nothing": torch.ones(1)}, "weights are missing"),
        (with_nan, "array 'bert.encoder.layer.1.output.dense.bias' holds numbers that are not finite"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused_by_name(folder, change, message):
    change_weights(folder, change)
    with pytest.raises(UsageError, match=message) as caught:
        load_transformer(folder)
    assert str(folder) in str(caught.value)
    assert str(caught.value).isprintable()


def test_heads_that_the_task_does_not_use_are_named_and_allowed(folder):
    with pytest.warns(UserWarning, match=r"weights that are not used here: classifier.bias, classifier.weight"):
        bare = load_transformer(folder, classifier=False)
    # before the file changes: old versions of transformers leave the weights in it, mapped
    with torch.no_grad():
        expected = bare(**families.batch())
    change_weights(
        folder, lambda weights: {k: v for k, v in weights.items() if "pooler" not in k and "classifier" not in k}
    )
    with pytest.warns(
        UserWarning, match=r"no weights for a part that is not used: pooler.dense.bias, pooler.dense.weight"
    ):
        again = load_transformer(folder, classifier=False)
    with torch.no_grad():
        found = again(**families.batch())
    assert torch.equal(expected.last_hidden_state, found.last_hidden_state)
    assert not found.pooler_output.any()  # not random numbers
    fresh = load_transformer(folder, classifier=True, num_labels=3)  # a new head was asked for
    assert fresh.classifier.weight.shape == (3, 32)


def test_names_of_usual_heads_are_known():
    usual = ("cls.predictions.bias", "lm_head.weight", "qa_outputs.bias", "score.weight", "vocab_transform.bias")
    assert all(HEADS.search(name.split(".")[0]) for name in usual)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
@pytest.mark.parametrize("value", ["stranger/kernel", "eager", 5, {"": "stranger/kernel"}])
def test_the_folder_does_not_choose_how_attention_is_computed(folder, name, value, monkeypatch):
    asked = []
    monkeypatch.setattr(
        transformers.PreTrainedModel,
        "_check_and_adjust_attn_implementation",
        _listening(asked, transformers.PreTrainedModel._check_and_adjust_attn_implementation),
    )
    change_config(folder, **{name: value})
    assert load_transformer(folder).config._attn_implementation == "sdpa"
    assert asked
    assert set(asked) <= {None, "sdpa"}
    assert load_transformer(folder, attn_implementation="eager").config._attn_implementation == "eager"


def _listening(asked, original):
    def check(self, attn_implementation, *rest, **options):
        asked.append(attn_implementation)
        return original(self, attn_implementation, *rest, **options)

    return check


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "describes a quantized model"),
        ({"torch_dtype": "evil"}, r"'torch_dtype' is 'evil'; known are float64, float32"),
        ({"dtype": 7}, "'dtype' is 7; known are"),
        ({"dtype": ["float32"]}, "'dtype' is .*; known are"),
        ({"architectures": "Bert"}, "'architectures' must be a list of names, not 'Bert'"),
        ({"architectures": [None, 3]}, "'architectures' must be a list of names"),
        ({"architectures": {"a": 1}}, "'architectures' must be a list of names"),
        ({"model_type": 5}, "names no model_type"),
        ({"model_type": "evil"}, "model_type 'evil' is not known to transformers"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "cannot be loaded"),
        ({"model_type": "vit"}, "cannot be loaded"),
        ({"num_hidden_layers": 100_000}, r"config.json has 100000 for 'num_hidden_layers', more than its weights"),
        ({"num_hidden_layers": 1e300}, "for 'num_hidden_layers', more than its weights"),
        ({"num_hidden_layers": 7}, "weights are missing: bert.encoder.layer.2"),
        ({"num_hidden_layers": 1}, "weights are too many: encoder.layer.1"),
        ({"num_hidden_layers": -1}, "cannot be loaded"),
        ({"num_hidden_layers": "2"}, "cannot be loaded"),
        ({"id2label": {str(i): "x" for i in range(60_000)}}, "has 60000 for 'id2label'"),
        ({"num_labels": 10**9}, "has 1000000000 for 'num_labels'"),
        ({"num_labels": 10**18}, "has 1000000000000000000 for 'num_labels'"),
        ({"num_labels": 10**400}, r"has 1000\d+ for 'num_labels'"),
        ({"id2label": 5}, "cannot be loaded"),
        ({"vocab_size": 10**11}, r"describes a model of 3.2e\+12 numbers, its weights have"),
        ({"max_position_embeddings": 10**9}, "describes a model of"),
        ({"hidden_size": 0}, "cannot be loaded"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
        ({"num_attention_heads": 5}, "cannot be loaded"),
        ({"hidden_act": "evil"}, "cannot be loaded: 'evil' is not known"),
        ({"nested": [[[]]] * 50_000}, "has more than 100000 values, too many for a model's settings"),
        ({"text": "x" * (1 << 22)}, "is larger than 4 MB, too large for a model's settings"),
    ],
)  # fmt: skip
def test_a_strange_configuration_is_one_sentence(folder, fields, message):
    change_config(folder, **fields)
    with pytest.raises(UsageError, match=message) as caught:
        load_transformer(folder)
    assert str(folder) in str(caught.value)
    assert len(str(caught.value)) < 500
    with suppress(UsageError):
        load_tokenizer(folder)  # reads it too


@pytest.mark.parametrize(
    "fields",
    [
        {"auto_map": {"AutoModel": "evil.Evil"}},
        {"transformers_weights": "../outside.safetensors"},
        {"fusion_config": {"evil": True}},
        {"return_dict": False, "output_hidden_states": True, "output_attentions": True},
        {"_name_or_path": "somewhere/else"},
        {"experts_implementation": "stranger/kernel"},
    ],
)
def test_what_is_not_for_the_folder_to_say_changes_nothing(folder, fields):
    before = load_transformer(folder)(**families.batch()).logits
    change_config(folder, **fields)
    assert torch.equal(load_transformer(folder)(**families.batch()).logits, before)


def sharded(folder, weight_map):
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_read(folder):
    before = load_transformer(folder).state_dict()
    weights = load_file(folder / "model.safetensors")
    names = list(weights)
    for part, chosen in {"a.safetensors": names[::2], "b.safetensors": names[1::2]}.items():
        save_file({name: weights[name] for name in chosen}, folder / part)
    sharded(folder, {name: "a.safetensors" if name in names[::2] else "b.safetensors" for name in names})
    after = load_transformer(folder).state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"x": "../part.safetensors"}, r"its index names '../part.safetensors'; weights lie in the folder itself"),
        ({"x": "/etc/passwd"}, "its index names '/etc/passwd'"),
        ({"x": ".."}, r"its index names '\.\.'"),
        ({"x": ""}, "its index names ''"),
        ({"x": "missing.safetensors"}, "missing.safetensors does not exist"),
        ({"x": "config.json"}, "cannot be read as weights"),
        ({"x": "a\0b"}, "cannot be read"),
        ({"x": 5}, "has no 'weight_map'"),
        ({}, "has no 'weight_map'"),
        ([], "has no 'weight_map'"),
    ],
)
def test_an_index_that_leads_elsewhere_is_one_sentence(folder, weight_map, message):
    sharded(folder, weight_map)
    with pytest.raises(UsageError, match=message):
        load_transformer(folder)


def header(text, size=None):
    data = text.encode()
    return struct.pack("<Q", len(data) if size is None else size) + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "model.safetensors is empty"),
        (header("{}"), "has no weights: model.safetensors holds no arrays"),
        (header("{", 1), "cannot be read as weights"),
        (header("{}", 1 << 62), "cannot be read as weights"),
        (header('{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}') + b"1234", "cannot be read as weights"),
        (header('{"x":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}') + b"1234", "cannot be read as weights"),
    ],
)  # fmt: skip
def test_damaged_weights_are_one_sentence(folder, content, message):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_transformer(folder)


@pytest.mark.parametrize("name", ["config", "tokenizer", "tokenizer_config", "generation_config", "model"])
@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_pipes_and_devices_are_refused_at_once(folder, name, kind):
    name += ".safetensors" if name == "model" else ".json"
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero" if kind == "device" else folder / name)
    with pytest.raises(UsageError, match=r"is not a regular file|cannot be read"):
        load_tokenizer(folder)
    if name in ("config.json", "model.safetensors"):
        with pytest.raises(UsageError, match=r"is not a regular file|cannot be read|has no config.json"):
            load_transformer(folder)


def test_links_to_regular_files_are_followed(folder, tmp_path):
    """The download cache of Hugging Face is made of them."""
    for file in list(folder.iterdir()):
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    assert load_transformer(folder).config.model_type == "bert"
    assert load_tokenizer(folder)("good film")["input_ids"] == [2, 4, 6, 3]


def test_an_adapter_does_not_lead_to_another_model(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/etc"}))
    with pytest.raises(UsageError, match="holds an adapter; merge it"):
        load_transformer(folder)


def change_tokenizer(folder, change):
    described = json.loads((folder / "tokenizer.json").read_text())
    change(described)
    (folder / "tokenizer.json").write_text(json.dumps(described))


def test_a_tokenizer_that_explodes_is_one_sentence(folder):
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaaaaaa"}
    change_tokenizer(folder, lambda file: file.update(normalizer={"type": "Sequence", "normalizers": [double] * 20}))
    with pytest.raises(
        UsageError, match=r"the tokenizer in .* cannot be loaded: the tokenizer fails: it needs more than"
    ):
        load_tokenizer(folder, ["a"])


def test_ids_outside_the_model_are_one_sentence(folder):
    change_tokenizer(folder, lambda file: file["model"]["vocab"].update({"good": 5_000}))
    model, tokenizer = load_transformer(folder), load_tokenizer(folder, ["good film"])
    with pytest.raises(UsageError, match=r"text 2 has the token 'good' \(id 5000\), the model knows ids 0 to 59"):
        inspect(model, ["film", "good film"], tokenizer)


def test_a_model_of_pictures_is_one_sentence(tmp_path):
    families.vit(dtype=torch.float32).save_pretrained(tmp_path)
    model = load_transformer(tmp_path)
    with pytest.raises(UsageError, match="ViTModel reads pixel_values, not texts"):
        inspect(model, ["good film"], families.tiny_tokenizer())


def test_a_model_that_needs_more_than_texts_is_one_sentence():
    config = transformers.LukeConfig(**families.SMALL, entity_vocab_size=8, entity_emb_size=8)
    with pytest.raises(UsageError, match=r"LukeForEntityClassification cannot read texts alone: "):
        inspect(transformers.LukeForEntityClassification(config), ["good film"], families.tiny_tokenizer())


def test_a_model_of_texts_and_pictures_is_one_sentence():
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    texts = small | {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2}
    pictures = small | {"image_size": 8, "patch_size": 4}
    config = transformers.CLIPConfig(text_config=texts, vision_config=pictures, projection_dim=8)
    with pytest.raises(UsageError, match=r"CLIPModel cannot read texts alone: "):
        inspect(transformers.CLIPModel(config), ["good film"], families.tiny_tokenizer())


def test_numbers_that_are_not_finite_are_never_shown(saved):
    model = load_transformer(saved)
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.weight.fill_(torch.inf)
    with pytest.raises(UsageError, match="has no finite result to compare with"):
        corpus_picks(model, load_tokenizer(saved), ["good film"])


def test_a_good_folder_loads_without_a_word(saved):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not load_transformer(saved).training


@pytest.mark.parametrize("named", [{}, {"backbone": "somebody/model"}, {"use_timm_backbone": False, "backbone": "a/b"}])
@pytest.mark.parametrize("kind", ["detr", "upernet", "dpt", "mask2former", "rt_detr"])
def test_no_folder_makes_a_library_ask_the_network(kind, named, tmp_path, monkeypatch):
    """Some configurations name other models, which transformers would look up where they are published."""
    asked = []

    def refuse(*arguments, **_):
        asked.append(arguments)
        raise OSError("no network")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **named}))
    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError):
        load_transformer(tmp_path)
    assert asked == []


def test_an_encoder_with_weights_missing_embeds_nothing(folder):
    arrays = load_file(folder / "model.safetensors")
    save_file(dict(sorted(arrays.items())[::2]), folder / "model.safetensors")
    with pytest.raises(UsageError, match="weights are missing"):
        SentenceEncoder(folder)(["good film"])
