"""Reasons of picks: they sum to the gap, a planted cause is found and confirmed, and what cannot be said is not said."""

import families
import numpy as np
import pytest
import torch

from whichtoken.errors import UsageError
from whichtoken.inspection import (
    Adapter,
    AttentionProbe,
    Heads,
    Why,
    direct_contributions,
    faithfulness,
    pick_effects,
    pick_survival,
    sites,
    token_shares,
)  # fmt: skip
from whichtoken.inspection.why import RecomputedPass, Stream

pytestmark = pytest.mark.transformers
TEXT = {"input_ids": torch.tensor([[3, 17, 25, 9, 41, 8, 4]]), "attention_mask": torch.ones(1, 7, dtype=torch.long)}


def probed(model, inputs=TEXT):
    with torch.no_grad(), AttentionProbe(model, special_tokens=[0]) as probe:
        model(**inputs)
    return probe


@pytest.mark.smoke
@pytest.mark.parametrize("family", ["bert", "albert", "roberta", "gpt2", "llama", "qwen3", "mistral", "distilbert"])
def test_parts_sum_to_the_gap(family):
    """Post-norm and pre-norm, shared layers, learned and rotary positions, grouped queries, norms of the keys."""
    probe = probed(families.FAMILIES[family]())
    for layer in range(3):
        picks = probe.picks(layer)
        for head in range(4):
            why = probe.why(layer, head, 6)
            assert (why.picked, why.runner_up) == (int(picks.token[0, head, 6]), int(picks.runner_up[0, head, 6]))
            assert why.gap == pytest.approx(float(picks.gap[0, head, 6]), abs=1e-6)
            # norms of some families compute in single precision
            assert sum(why.parts.values()) == pytest.approx(why.gap, abs=1e-4)
            assert why.any_query + why.this_query == pytest.approx(why.gap)
            assert sum(nats for _, nats in why.detail) == pytest.approx(why.gap, abs=1e-4)


@pytest.mark.parametrize(("family", "is_sum"), [("llama", True), ("qwen3", True), ("gpt2", True), ("bert", False)])
def test_a_stream_that_is_a_plain_sum_needs_gradients_in_one_layer_only(family, is_sum):
    """The same parts as with gradients through the whole stream, of a model whose weights are trained or frozen."""
    model = families.FAMILIES[family]()
    stream = Stream.of(model)
    for layer in range(3):
        short = RecomputedPass(model, TEXT, layer, stream).why(layer, 1, 6, 2, 4)
        assert stream.is_sum is is_sum
        model.requires_grad_(False)
        whole = RecomputedPass(model, TEXT).why(layer, 1, 6, 2, 4)
        assert short.parts == pytest.approx(whole.parts, abs=1e-5)
        assert short.any_query == pytest.approx(whole.any_query)
        assert short.flips == whole.flips
        assert {"attention", "MLP"} <= set(short.flips) or layer == 0


DECODED = {"decoder_input_ids": TEXT["input_ids"]}
SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 60, "decoder_start_token_id": 2, **families.ENDS,
}  # fmt: skip
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 60,
    "decoder_start_token_id": 0,
}
OTHERS = {
    # a table that encoder and decoder share; a layer norm without mean
    "bart": ("BartForConditionalGeneration", "Bart", SEQ2SEQ, DECODED),
    "t5": ("T5ForConditionalGeneration", "T5", T5, DECODED),
    # feed-forward layers that flatten the batch; sums that are made in place
    "opt": ("OPTForCausalLM", "OPT", families.SMALL | families.ENDS | {"ffn_dim": 48, "word_embed_proj_dim": 32}, {}),
    "falcon": ("FalconForCausalLM", "Falcon", families.SMALL | {"multi_query": True, "alibi": False}, {}),
}  # fmt: skip


@pytest.mark.parametrize("family", OTHERS)
def test_other_ways_to_write_to_the_residual_stream_have_reasons_too(family):
    name, config, options, more = OTHERS[family]
    probe = probed(families._hugging_face(name, config, **options)(), TEXT | more)
    for layer in range(len(probe.names)):
        why = probe.why(layer, 1, 6)
        assert sum(why.parts.values()) == pytest.approx(why.gap, abs=1e-4)
        assert "word" in why.flips
    assert {"word", "attention"} <= set(why.flips)


def test_the_form_of_a_norm_is_found_once(monkeypatch):
    """T5's layer norm does not subtract the mean; finding that out takes several tries, which one pass has to pay alone."""
    tried = []
    find = sites._norm_form
    monkeypatch.setattr(sites, "_norm_form", lambda module, *given: tried.append(module) or find(module, *given))
    model = families._hugging_face("T5ForConditionalGeneration", "T5", **T5)()
    probe = probed(model, TEXT | DECODED)
    first = probe.why(1, 0, 6)
    assert len(tried) == len(set(tried)) > 2
    assert not any(sites._forms[module][0] for module in tried)
    for parameter in model.parameters():
        parameter.data *= 1.5
    again = probed(model, TEXT | DECODED).why(1, 0, 6)
    assert len(tried) == len(set(tried))
    assert again.gap != pytest.approx(first.gap)
    assert sum(again.parts.values()) == pytest.approx(again.gap, abs=1e-4)


class BertByHand(Adapter):
    """Reads BERT's attention, and counts how often."""

    reads = 0

    def matches(self, module):
        return type(module).__name__ == "BertSelfAttention"

    def read(self, module, args, kwargs, output):
        self.reads += 1
        parts = (getattr(module, name)(args[0]) for name in ("query", "key", "value"))
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
        return Heads(query, key, value, context=output[0].unflatten(-1, (4, -1)))


def test_reasons_are_read_by_the_adapters_of_the_probe():
    model, adapter = families.FAMILIES["bert"](), BertByHand()
    with torch.no_grad(), AttentionProbe(model, special_tokens=[0], adapters=[adapter]) as probe:
        model(**TEXT)
    before = adapter.reads
    why, own = probe.why(1, 2, 6), probed(model).why(1, 2, 6)
    assert adapter.reads > before
    assert why.parts == pytest.approx(own.parts)


def test_the_average_query_is_the_mean_gap_of_the_queries_that_see_both():
    probe = probed(families.FAMILIES["gpt2"]())
    why = probe.why(1, 2, 6)
    scores = probe.reading(1).logits()[0, 2]
    gaps = (scores[:, why.picked] - scores[:, why.runner_up])[max(why.picked, why.runner_up) :]
    assert why.any_query == pytest.approx(float(gaps.mean()), abs=1e-9)


def test_texts_of_a_batch_have_reasons_of_their_own():
    model, inputs = families.FAMILIES["bert"](), families.batch()
    probe = probed(model, inputs)
    alone = probed(model, {name: value[1:2, :6] for name, value in inputs.items()})
    one, two = probe.why(1, 0, 2, text=1), alone.why(1, 0, 2)
    assert (one.picked, one.runner_up) == (two.picked, two.runner_up)
    assert one.gap == pytest.approx(two.gap, abs=1e-6)
    assert one.parts == pytest.approx(two.parts, abs=1e-6)


def test_a_planted_word_is_the_reason_and_an_exchange_confirms_it():
    """Without positions and earlier layers, only the word can tell two keys of the first layer apart."""
    model = families.FAMILIES["bert"]()
    torch.nn.init.zeros_(model.embeddings.position_embeddings.weight)
    why = probed(model).why(0, 1, 3)
    assert why.main == "word"
    assert why.flips["word"]
    assert not why.flips["position"]
    assert abs(why.parts["position"]) < 1e-9


def test_without_words_the_place_is_the_reason():
    model = families.FAMILIES["bert"]()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[:] = model.embeddings.word_embeddings.weight[5]
    why = probed(model).why(0, 1, 3)
    assert why.main == "position"
    assert why.flips == {"word": False, "position": True}


def made(gap, parts, sink=False, **flips):
    found = Why(0, 0, 0, 1, 2, gap, dict.fromkeys(("word", "position", "attention", "MLP", "bias"), 0.0) | parts, (), gap, 0.0,
                sink, 0.0, ("moved", "be"))  # fmt: skip
    found.__dict__["flips"] = flips
    return found


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (made(0.3, {"word": 0.3}), "picked moved over be: too close for a reason (gap 0.30)"),
        (made(0.98 - 0.3, {"word": 0.98, "position": -0.3}, word=True),
         "picked moved over be: the word itself +0.98, although be is better placed (-0.30); if the two exchange it, be wins"),
        (made(1.0, {"MLP": 1.0}, MLP=False),
         "picked moved over be: what the MLPs made of it +1.00; if the two exchange it, moved wins all the same"),
        (made(1.0, {"word": 5.0, "MLP": -4.0}), "picked moved over be: no simple reason (parts 9.0 times as large as their sum)"),
        (made(1.0, {"bias": 0.8, "word": 0.2}), "picked moved over be: no simple reason (biases are the largest part)"),
        (made(1.0, {"word": 0.3, "position": 0.3, "MLP": 0.3, "attention": 0.1}, MLP=True),
         "picked moved over be: the word itself +0.30; if the two exchange it, moved wins all the same"),
        (made(1.0, dict.fromkeys(("word", "position", "MLP", "attention"), 0.25)),
         "picked moved over be: no simple reason (4 parts make 80 % of the gap)"),
        (made(2.0, {"word": 2.0}, sink=True), "picked moved over be: no simple reason (one of them is an attention sink)"),
    ],
)  # fmt: skip
def test_the_sentence_says_no_more_than_is_known(why, expected):
    assert why.sentence == expected


def test_nothing_is_left_in_the_model():
    model = families.FAMILIES["bert"]()
    model.requires_grad_(False)
    probed(model).why(2, 0, 1)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_what_has_no_reason_is_one_sentence():
    probe = probed(families.FAMILIES["gpt2"]())
    with pytest.raises(UsageError, match="query at 0 has fewer than two tokens to pick"):
        probe.why(0, 0, 0)
    with pytest.raises(UsageError, match="head 9 was not recorded"):
        probe.why(0, 9, 3)
    with pytest.raises(UsageError, match="text 4 is not in the latest batch, which has 1 texts"):
        probe.why(0, 0, 3, text=4)
    with pytest.raises(UsageError, match="torch's attention does not"):
        RecomputedPass(families.TorchEncoder(), TEXT)


def test_a_second_pass_that_is_another_one_is_refused():
    """Weights that changed after the probe read them: the parts would be those of another pick."""
    model = families.FAMILIES["bert"]()
    probe = probed(model)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight *= 3
    with pytest.raises(UsageError, match="its weights have changed"):
        [probe.why(2, head, 6) for head in range(4)]


@pytest.mark.parametrize("run", [
    lambda model: token_shares(model, TEXT), lambda model: pick_effects(model, TEXT, 0),
    lambda model: direct_contributions(model, TEXT), lambda model: faithfulness(model, ["a"], [[1]], None),
    lambda model: pick_survival(model, ["a"], None), lambda model: probed(model).why(2, 0, 6),
])  # fmt: skip
def test_dropout_is_refused_by_whatever_runs_a_model_twice(run):
    with pytest.raises(UsageError, match="BertModel is in training mode with dropout on"):
        run(families.FAMILIES["bert"]().train())


def test_dropout_that_is_a_number_of_an_attention_is_refused_too():
    model = families.FAMILIES["llama"]().train()
    assert probed(model).why(1, 0, 6).error < 1e-6  # in training mode, but with nothing at random
    model.model.layers[0].self_attn.attention_dropout = 0.1
    with pytest.raises(UsageError, match="LlamaForCausalLM is in training mode with dropout on"):
        probed(model).why(1, 0, 6)


def test_padding_that_is_not_a_number_does_not_hide_the_form_of_a_norm():
    """BLOOM's padding on the left sees nothing, and its layers make NaN of it."""
    options = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60}
    probe = probed(families._hugging_face("BloomForCausalLM", "Bloom", **options)("eager"), families.batch(left=True))
    why = probe.why(1, 0, 11, text=1)
    assert sum(why.parts.values()) == pytest.approx(why.gap, abs=1e-6)


def test_a_writer_that_was_not_found_is_refused():
    """Something that writes to the residual stream beside the known modules leaves a sum that is not the gap."""
    model = families.FAMILIES["bert"]()
    extra = torch.randn(7, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model.embeddings.register_forward_hook(lambda module, args, output: output + extra)
    with pytest.raises(UsageError, match=r"parts of layer 1 sum to .* writes to its residual stream by other modules"):
        probed(model).why(1, 0, 3)


def test_half_precision_is_refused_for_what_it_is():
    with pytest.raises(
        UsageError, match=r"computes in bfloat16, which is too coarse for its parts; try model.float\(\)"
    ):
        probed(families.FAMILIES["bert"](dtype=torch.bfloat16)).why(1, 1, 6)


def test_parts_are_told_by_layer():
    detail = dict(probed(families.FAMILIES["bert"]()).why(2, 0, 1).detail)
    assert {"word", "position", "attention 0", "MLP 1"} <= set(detail)
    assert np.isfinite(list(detail.values())).all()
