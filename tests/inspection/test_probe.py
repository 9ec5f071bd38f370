"""The probe keeps what it was asked for, leaves nothing behind, and says what is wrong."""

import gc

import families
import pytest
import torch
from torch import nn

from whichtoken.errors import UsageError
from whichtoken.inspection import Adapter, AttentionProbe, Heads
from whichtoken.inspection.adapters import EAGER, TABLE
from whichtoken.inspection.reading import Mask, compress


def traces(model):
    """Everything that a probe could leave in a model or in the file that defines it."""
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    code = __import__("sys").modules[type(model).__module__].__dict__
    return sum(hooks), code.get(TABLE), code.get(EAGER)


def fail_under(probe, model, inputs, before):
    with probe:
        model(**inputs)
        assert traces(model) != before
        raise RuntimeError("stop")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_nothing_is_left_after_an_exception(name):
    model, inputs = families.FAMILIES[name](), families.batch()
    before = traces(model)
    probe = AttentionProbe(model, hidden=True)
    with pytest.raises(RuntimeError, match="stop"):
        fail_under(probe, model, inputs, before)
    assert traces(model) == before
    weights = probe.weights(0)
    model(input_ids=torch.full((1, 3), 7))
    assert probe.weights(0) is not weights
    assert torch.equal(probe.weights(0), weights)  # a closed probe keeps what it read


@torch.no_grad()
def test_probes_may_close_in_any_order():
    model, inputs = families.FAMILIES["bert"](), families.batch()
    before = traces(model)
    first, second = AttentionProbe(model, layers=[0]), AttentionProbe(model, layers=[1])
    first.__enter__()
    second.__enter__()
    model(**inputs)
    first.__exit__(None, None, None)
    model(**inputs)
    second.__exit__(None, None, None)
    assert traces(model) == before
    assert set(first.readings) == {0}
    assert set(second.readings) == {1}


@torch.no_grad()
def test_a_compiled_model_is_read():
    model, inputs = families.FAMILIES["bert"](), families.batch()
    with AttentionProbe(model) as probe:
        model(**inputs)
    expected = probe.weights(2)
    compiled = torch.compile(model, backend="eager")
    compiled(**inputs)  # compiled before the probe comes
    with AttentionProbe(compiled) as probe:
        compiled(**inputs)
    assert torch.equal(probe.weights(2), expected)


@torch.no_grad()
def test_only_what_was_asked_for_is_kept():
    model, inputs = families.FAMILIES["llama"](), families.batch(left=True)
    with AttentionProbe(model) as whole:
        model(**inputs)
    with AttentionProbe(model, layers=[-1], heads=[3, 1], queries="last") as probe:
        model(**inputs)
    assert set(probe.readings) == {2}
    reading = probe.reading(2)
    assert reading.heads.tolist() == [1, 3]
    assert reading.query.shape == (3, 2, 1, 8)
    assert torch.allclose(probe.weights(-1), whole.weights(2)[:, [1, 3]][:, :, -1:], atol=1e-15)
    with pytest.raises(UsageError, match="not among the probe"):
        probe.weights(0)
    with pytest.raises(UsageError, match="kept queries='last' only"):
        probe.picks(2, queries="all")


@pytest.mark.parametrize("left", [False, True])
@torch.no_grad()
def test_first_and_last_token_stand_beside_padding(left):
    model, inputs = families.FAMILIES["llama"](), families.batch(left)
    with AttentionProbe(model) as probe:
        model(**inputs)
    real = [row.nonzero().flatten() for row in inputs["attention_mask"]]
    assert probe.picks(0, "cls").positions.flatten().tolist() == [int(row[0]) for row in real]
    assert probe.picks(0, "last").positions.flatten().tolist() == [int(row[-1]) for row in real]
    assert torch.equal(probe.picks(0, "all").valid, inputs["attention_mask"].bool())


@pytest.mark.parametrize("name", ["bert", "llama", "mistral", "gpt2"])
@torch.no_grad()
def test_no_square_of_the_length_is_kept(name):
    model, inputs = families.FAMILIES[name](), families.batch()
    with AttentionProbe(model) as probe:
        model(**inputs)
    mask = probe.reading(1).mask
    assert mask.dense is None
    assert mask.bias is None


def test_a_bias_and_an_odd_mask_are_kept_whole():
    positions = torch.arange(4).expand(1, -1)
    bias = torch.randn(1, 2, 4, 4)
    assert torch.equal(compress(bias, positions).bias, bias)
    odd = torch.rand(1, 1, 5, 5) > 0.5
    assert torch.equal(compress(odd, torch.arange(5).expand(1, -1)).allowed(torch.arange(5).expand(1, -1), 5), odd)


def test_flash_attention_is_read_by_its_interface():
    """Flash attention gets flags of the padding, a causal flag and a window; no kernel for it runs on this machine."""
    flags = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    mask = compress(flags, torch.arange(4).expand(2, -1))
    mask = Mask(padding=mask.padding, causal=True, window=2)
    expected = torch.ones(4, 4).tril().triu(-1).bool() & flags[:, None].bool()
    assert torch.equal(mask.allowed(torch.arange(4).expand(2, -1), 4)[:, 0], expected)


@torch.no_grad()
def test_half_precision_is_read_in_single():
    model, inputs = families.FAMILIES["bert"](dtype=torch.bfloat16), families.batch()
    with AttentionProbe(model) as probe:
        model(**inputs)
    weights = probe.weights(0)
    assert weights.dtype == torch.float32
    assert (weights.sum(-1) - 1).abs().max() < 1e-6
    assert probe.error(0) < 0.02


class Odd(nn.Module):
    """An attention of one's own: one head, keys are the tokens themselves."""

    def __init__(self):
        super().__init__()
        self.ask = nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, tokens):
        return torch.softmax(self.ask(tokens) @ tokens.transpose(1, 2), -1) @ tokens


class OddAdapter(Adapter):
    def matches(self, module):
        return isinstance(module, Odd)

    def __init__(self, biases=None):
        self.biases = biases or {}

    def read(self, module, args, kwargs, output):
        tokens = args[0][:, None]
        bias = self.biases.get(module)
        return Heads(module.ask(tokens), tokens, tokens, scale=1.0, context=output[:, :, None], bias=bias)


@torch.no_grad()
def test_an_adapter_reads_any_attention():
    model = nn.Sequential(Odd(), Odd())
    with AttentionProbe(model, adapters=[OddAdapter()]) as probe:
        model(torch.randn(2, 5, 6, dtype=torch.float64))
    assert probe.names == ["0", "1"]
    assert max(probe.error(0), probe.error(1)) < 1e-14


@torch.no_grad()
def test_the_bias_of_one_layer_is_not_that_of_the_next():
    model = nn.Sequential(Odd(), Odd())
    adapter = OddAdapter({model[0]: torch.ones(1, 1, 5, 5, dtype=torch.float64)})
    with AttentionProbe(model, adapters=[adapter]) as probe:
        model(torch.randn(2, 5, 6, dtype=torch.float64))
    assert [probe.reading(layer).mask.bias is None for layer in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: AttentionProbe(nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2))), r"no attention .*seen: Linear, LSTM.*Adapter"),
        (lambda m: AttentionProbe(nn.Sequential(Odd())), r"no attention was recognized in Sequential \(seen: Odd"),
        (lambda m: AttentionProbe(m, layers=[3]), "layer 3 does not exist; this model has layers 0 to 2"),
        (lambda m: AttentionProbe(m, queries="first"), "queries='first' is not known; choose 'all', 'cls'"),
        (lambda m: AttentionProbe(m, queries=[]), r"queries=\[\] names no position"),
        (lambda m: AttentionProbe(m).weights(0), "layer 0 was not recorded: the model did not run"),
        (lambda m: run(AttentionProbe(m, heads=[4])), "head 4 does not exist; this layer has heads 0 to 3"),
        (lambda m: run(AttentionProbe(m, queries=[12])), r"queries=\[12\] reach beyond the 12 positions"),
        (lambda m: run(AttentionProbe(m)).picks(0, special=False), "special=False needs to know the special tokens"),
        (lambda m: with_bias_as_key(), "layer 0 .*cannot be read: attention with add_bias_kv=True"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(ask, message):
    with pytest.raises(UsageError, match=message):
        ask(families.FAMILIES["bert"]())


def with_bias_as_key():
    module = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    with AttentionProbe(module) as probe:
        module(*[torch.zeros(3, 1, 4)] * 3)
    probe.picks(0)


@torch.no_grad()
def run(probe):
    with probe:
        probe.model(**families.batch())
    return probe


@pytest.mark.slow
@torch.no_grad()
def test_a_stream_of_batches_needs_no_more_memory_than_one():
    model, inputs = families.FAMILIES["bert"](), families.batch()
    counts = []
    with AttentionProbe(model) as probe:
        for _ in range(4):
            model(**inputs)
            gc.collect()
            counts.append(sum(type(item) is torch.Tensor for item in gc.get_objects()))
    assert len(probe.readings) == 3
    assert counts[1] == counts[2] == counts[3]
