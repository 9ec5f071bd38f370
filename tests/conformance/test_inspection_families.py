"""Every family that the probe knows: its recomputed weights are those of the model's own eager attention."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "inspection"))
families = pytest.importorskip("families")
transformers = families.transformers

from whichtoken.errors import UsageError  # noqa: E402
from whichtoken.inspection import Adapter, AttentionProbe, Heads, direct_contributions, inspect  # noqa: E402

pytestmark = pytest.mark.transformers
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
DECODERS = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma2", "gpt-oss")


@pytest.fixture(autouse=True)
def softmax_in_full_precision(monkeypatch):
    """Some eager code rounds the softmax to single precision even in a double-precision model: compare without that."""
    original = nn.functional.softmax

    def softmax(x, dim=None, *_, **__):  # under its own name, by which a trace knows it
        return original(x, dim=dim)

    monkeypatch.setattr(nn.functional, "softmax", softmax)


def eager_weights(model, inputs):
    options = {"use_cache": False} if model.config.model_type in DECODERS else {}
    return model(**inputs, output_attentions=True, **options).attentions


def cases():
    for name in families.FAMILIES:
        marks = [pytest.mark.smoke]  # each family once
        for attention in ("eager",) if name in families.NO_SDPA else ("sdpa", "eager"):
            for left in (False, True) if name in DECODERS else (False,):
                for dtype in families.DTYPES.get(name, TOLERANCE):
                    id = f"{name}-{attention}-{dtype}-{'left' if left else 'right'}"
                    yield pytest.param(name, attention, dtype, left, id=id, marks=marks)
                    marks = []


def assert_equal(probe, attentions, mask, dtype):
    assert len(probe.names) == len(attentions)
    real = mask.bool()
    for layer, expected in enumerate(attentions):
        ours = probe.weights(layer)
        assert ours.shape == expected.shape
        difference = (ours - expected).abs().amax((1, 3))[real].max()
        assert difference <= TOLERANCE[dtype], (layer, float(difference))


@pytest.mark.parametrize(("name", "attention", "dtype", "left"), list(cases()))
@torch.no_grad()
def test_weights_are_those_of_eager_attention(name, attention, dtype, left):
    build, inputs = families.FAMILIES[name], families.batch(left)
    expected = eager_weights(build("eager", dtype), inputs)
    model = build(attention, dtype)
    plain = model(**inputs)[0]
    with AttentionProbe(model) as probe:
        probed = model(**inputs)[0]
    assert torch.equal(plain, probed)
    assert_equal(probe, expected, inputs["attention_mask"], dtype)
    for layer in range(len(probe.names)):
        error = probe.error(layer)
        assert error != error or error <= 100 * TOLERANCE[dtype]


SAMPLE = (
    "longformer", "big_bird", "bloom", "modernbert", "opt", "phi", "xlnet", "t5", "bart", "led", "falcon", "mpt", "gpt_neo",
    "gptj", "rembert", "canine", "mpnet", "luke", "funnel", "granite_swa", "deepseek_v3",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of the families' own code
@pytest.mark.parametrize("kind", SAMPLE)
def test_a_sample_of_all_architectures_is_read_exactly(kind):
    """Window, block, alibi, relative, cross and multi-query attention; `make sweep` tries every architecture."""
    sweep = pytest.importorskip("sweep")
    found = sweep.outcome(kind, sweep.text_architectures()[kind])
    assert (found.state, found.why) == ("exact", "")
    assert found.layers >= 2


@pytest.mark.filterwarnings("ignore")  # of the families' own code
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["bloom", "falcon", "funnel", "gptj", "mpnet", "mpt", "xlnet"])
@torch.no_grad()
def test_traced_attention_of_half_precision_has_the_weights_of_the_model(kind, dtype):
    """What a module adds to its scores is small beside their rounding, and counts all the same."""
    sweep = pytest.importorskip("sweep")
    model, inputs = sweep.build(kind, sweep.text_architectures()[kind]).to(dtype), sweep.batch()
    model.config.use_cache = False
    own = [weights for weights in model(**inputs, output_attentions=True).attentions if weights is not None]
    with AttentionProbe(model) as probe:
        model(**inputs)
    assert not probe.refused
    real = inputs["attention_mask"].bool()
    for reading in probe.readings.values():
        ours = reading.weights()
        if ours.shape[2] == real.shape[1]:  # Funnel pools the queries of a layer
            off = [(ours - other).abs().amax((1, 3))[real].max() for other in own if other.shape == ours.shape]
            assert min(off) <= torch.finfo(dtype).eps


@pytest.mark.filterwarnings("ignore")  # of the families' own code
@pytest.mark.parametrize("kind", ["nystromformer", "yoso", "mra", "rwkv", "fsmt"])
def test_what_is_no_softmax_attention_is_refused_by_name(kind):
    sweep = pytest.importorskip("sweep")
    found = sweep.outcome(kind, sweep.text_architectures()[kind])
    assert found.state == "refused"
    assert re.match(r"layer 0 \(.*, a [A-Za-z]*Attention\) (cannot be read|computes something other than)", found.why)


@pytest.mark.filterwarnings("ignore")  # of the families' own code
@pytest.mark.parametrize("kind", ["bart", "convbert", "ibert", "longformer", "t5", "xlnet"])
def test_a_whole_inspection_ends_in_numbers_or_in_a_sentence(kind, tmp_path):
    """Encoders of two-part models, windows that are filled up, and output projections that are not found."""
    sweep = pytest.importorskip("sweep")
    model = sweep.build(kind, sweep.text_architectures()[kind])
    found = inspect(model, ["a good film", "the very bad plot a good film"], families.tiny_tokenizer())
    found.to_html(tmp_path / "page.html")
    assert len(found.as_json()["shown"]) == 2
    view = found.view(1)
    assert view.shares is None or len(view.shares) == len(view.tokens) == 9
    if kind in ("convbert", "ibert", "xlnet"):
        assert "the output projection of the layer was not found" in (tmp_path / "page.html").read_text(
            encoding="utf-8"
        )
        with pytest.raises(UsageError, match="the output projection of"):
            found.effects(0)


DECODER_OF_ITS_OWN_LENGTH = {"decoder_input_ids": torch.tensor([[5, 9, 30]])}


@pytest.mark.filterwarnings("ignore")  # of the families' own code
@pytest.mark.parametrize(("kind", "more", "answer"), [
    ("pegasus", DECODER_OF_ITS_OWN_LENGTH, None),  # encoder and decoder write streams of different lengths
    ("mobilebert", {}, None),  # parts of a layer write fewer columns than the stream has
    ("phimoe", {}, "writes to its residual stream by other modules"),  # a router that is a linear layer and returns a pair
    ("hrm_text", {}, "computes layer 1 without gradients"),
])  # fmt: skip
def test_a_reason_is_exact_or_one_sentence(kind, more, answer):
    sweep = pytest.importorskip("sweep")
    model, ids = sweep.build(kind, sweep.text_architectures()[kind]), torch.tensor([[7, 12, 40, 9, 22, 31]])
    model.config.use_cache = False
    with AttentionProbe(model) as probe, torch.no_grad():
        model(input_ids=ids, **more)
    layer = 4 if more else 1  # of Pegasus one in the decoder
    if answer is None:
        why = probe.why(layer, 1, 2)
        assert sum(why.parts.values()) == pytest.approx(why.gap, abs=1e-5 * sum(map(abs, why.parts.values())))
        assert set(why.flips) == {"word", "position", "attention", "MLP"}
    else:
        with pytest.raises(UsageError, match=answer):
            probe.why(layer, 1, 2)


@pytest.mark.filterwarnings("ignore")  # of the families' own code
@pytest.mark.parametrize(("kind", "sentence"), [
    ("inkling_text", "have 64 and 4 heads: a map needs as many in each"),
    ("dpr", "DPRQuestionEncoderOutput has neither logits nor hidden states"),
])  # fmt: skip
def test_an_inspection_that_cannot_be_is_one_sentence(kind, sentence):
    sweep = pytest.importorskip("sweep")
    model = sweep.build(kind, sweep.text_architectures()[kind])
    with pytest.raises(UsageError, match=sentence):
        inspect(model, ["a good film"], families.tiny_tokenizer()).view(0)


@pytest.mark.filterwarnings("ignore")  # of the families' own code
def test_positions_without_a_table_do_not_limit_a_text():
    sweep = pytest.importorskip("sweep")
    model = sweep.build("m2m_100", "M2M100ForConditionalGeneration")
    assert len(inspect(model, ["a good film"], families.tiny_tokenizer()).reports) == 8


@pytest.mark.filterwarnings("ignore")  # of the families' own code
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "nanochat"])
def test_direct_contributions_are_refused_where_experts_or_norms_were_not_found(kind):
    """What flows through experts is not direct; the shares of the heads were off by more than the largest of them."""
    sweep = pytest.importorskip("sweep")
    model, ids = sweep.build(kind, sweep.text_architectures()[kind]), torch.tensor([[7, 12, 40, 9, 22, 31]])
    with pytest.raises(UsageError, match="is not linear when its norms and writers are held"):
        direct_contributions(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_a_static_cache_is_read_as_far_as_it_is_filled(name, attention):
    """Every pass of a generation into a cache of fixed length has the weights of a cache that grows."""
    model, ids = families.FAMILIES[name](attention), families.batch()["input_ids"][2:, :12]
    readings = []
    for cache in (None, transformers.StaticCache(config=model.config, max_cache_len=24)):
        for part in (ids[:, :7], ids[:, 7:10], ids[:, 10:11]):
            with AttentionProbe(model) as probe:
                cache = model(input_ids=part, past_key_values=cache, use_cache=True).past_key_values
            assert not probe.refused
            assert probe.picks(1).valid.all()
            readings.append(probe.weights(1))
    for grown, fixed in zip(readings[:3], readings[3:], strict=True):
        torch.testing.assert_close(grown, fixed, atol=1e-12, rtol=0)


@torch.no_grad()
def test_the_keys_of_a_decoder_are_its_own_tokens():
    sweep = pytest.importorskip("sweep")
    model = sweep.build("bart", "BartForConditionalGeneration")
    asked, answered = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 4, 10, 11]])
    with AttentionProbe(model, special_tokens=[4]) as probe:
        model(input_ids=asked, decoder_input_ids=answered)
    for layer, name in enumerate(probe.names):
        own = answered if "decoder" in name and "encoder_attn" not in name else asked
        assert torch.equal(probe.reading(layer).tokens, own), name
    last = probe.picks(len(probe.names) - 2, special=False)
    assert (last.token != 1).all()
    assert probe.names[-2].endswith("decoder.layers.1.self_attn")


@torch.no_grad()
def test_a_window_that_shows_only_in_a_longer_text_is_noticed():
    """The first text fits into the window; a reading that ignored it would be right there and wrong in the second."""
    torch.manual_seed(0)

    class WindowedAttention(nn.Module):
        def forward(self, x):
            scores = x @ x.mT
            places = torch.arange(x.shape[1])
            far = (places[:, None] - places).abs() > 4
            return torch.softmax(scores.masked_fill(far, -torch.inf), -1) @ x

    class Ignorant(Adapter):
        def matches(self, module):
            return isinstance(module, WindowedAttention)

        def read(self, module, args, kwargs, output):
            x = args[0][:, None]
            return Heads(x, x, x, scale=1.0, context=output[:, :, None])

    model = nn.Sequential(WindowedAttention())
    with AttentionProbe(model, adapters=[Ignorant()]) as probe:
        model(torch.randn(1, 4, 8))
        assert probe.weights(0).shape == (1, 1, 4, 4)
        model(torch.randn(1, 40, 8))
        with pytest.raises(UsageError, match=r"layer 0 \(0, a WindowedAttention\) computes something other than"):
            probe.weights(0)
    with AttentionProbe(model) as probe:  # without the adapter it is traced, window and all
        model(torch.randn(1, 40, 8))
    assert probe.weights(0)[0, 0, 0, 5:].sum() == 0


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # in transformers' own file
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@torch.no_grad()
def test_deberta(dtype):
    model, inputs = families.deberta(dtype), families.batch()
    expected = model(**inputs, output_attentions=True).attentions
    with AttentionProbe(model) as probe:
        model(**inputs)
    assert_equal(probe, expected, inputs["attention_mask"], dtype)


@pytest.mark.smoke
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_vit(attention):
    pixels = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = families.vit("eager")(pixels, output_attentions=True).attentions
    model = families.vit(attention)
    with AttentionProbe(model) as probe:
        model(pixels)
    assert_equal(probe, expected, torch.ones(2, 17), torch.float64)


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("gradients", [False, True], ids=["fast-path", "with-gradients"])
def test_torch_encoder(causal, gradients):
    model, inputs = families.TorchEncoder(causal=causal, nested=not causal), families.batch()
    expected = []

    def keep(module, args, kwargs, output):
        expected.append(output[1])

    def ask(module, args, kwargs):
        return args, kwargs | {"need_weights": True, "average_attn_weights": False}

    handles = []
    for layer in model.encoder.layers:
        handles.append(layer.self_attn.register_forward_pre_hook(ask, with_kwargs=True))
        handles.append(layer.self_attn.register_forward_hook(keep, with_kwargs=True))
    with torch.set_grad_enabled(gradients):
        model(**inputs)
        for handle in handles:
            handle.remove()
        plain = model(**inputs)
        with AttentionProbe(model) as probe:
            probed = model(**inputs)
    assert_equal(probe, expected, inputs["attention_mask"], torch.float64)
    real = inputs["attention_mask"].bool()
    assert (plain - probed)[real].abs().max() < 1e-12


@pytest.mark.smoke
@pytest.mark.parametrize(
    "options",
    [{}, {"kdim": 10, "vdim": 12}, {"bias": False}, {"add_zero_attn": True}],
    ids=["same", "other-widths", "no-bias", "zero"],
)
@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_multihead_attention(options, batch_first):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=batch_first, dtype=torch.float64, **options).eval()
    order = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    shapes = (5, 16), (7, options.get("kdim", 16)), (7, options.get("vdim", 16))
    query, key, value = (order(torch.randn(2, *shape, dtype=torch.float64)) for shape in shapes)
    padding = torch.zeros(2, 7, dtype=torch.float64)
    padding[1, 5:] = -torch.inf
    square = torch.rand(8, 5, 7, dtype=torch.float64)
    expected = module(query, key, value, key_padding_mask=padding, attn_mask=square, average_attn_weights=False)[1]
    with AttentionProbe(module) as probe:
        module(query, key, value, key_padding_mask=padding, attn_mask=square, need_weights=False)
    assert (probe.weights(0) - expected[..., :7]).abs().max() < 1e-12  # what goes to a key of zeros goes to no token


@pytest.mark.parametrize("name", families.CACHED)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_generation_with_a_cache(name, attention):
    model, inputs = families.FAMILIES[name](attention), families.batch(left=True)
    reference = families.FAMILIES[name]("eager")
    seen = []
    with AttentionProbe(model, on_forward=lambda probe: seen.append([probe.weights(i) for i in range(3)])):
        made = model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    whole = torch.cat([inputs["attention_mask"], torch.ones(3, 4, dtype=torch.long)], 1)[:, :-1]
    expected = reference(input_ids=made[:, :-1], attention_mask=whole, position_ids=(whole.cumsum(1) - 1).clamp_min(0),
                         output_attentions=True, use_cache=False).attentions  # fmt: skip
    assert len(seen) == 4
    for step, weights in enumerate(seen):
        length = inputs["input_ids"].shape[1] + step
        for ours, full in zip(weights, expected, strict=True):
            last = full[:, :, length - 1, :length]
            ours = ours[:, :, -1]
            shown = ours.shape[-1]  # a sliding cache forgets what no query can see
            assert (ours - last[..., -shown:]).abs().max() < 1e-12
            assert last[..., :-shown].abs().sum() == 0 or shown == length
