"""Effects of picks, shares of tokens and direct contributions: against the definition, by brute force."""

import copy
from contextlib import contextmanager

import families
import numpy as np
import pytest
import torch
from torch import nn

from whichtoken.errors import UsageError
from whichtoken.inspection import AttentionProbe, faithfulness
from whichtoken.inspection.effects import (
    _gate,
    curves,
    decision,
    direct_contributions,
    pick_effects,
    rounding_error,
    selections_held,
    token_shares,
)
from whichtoken.inspection.sites import anatomy, find_sites

CLASSIFIERS = {
    "bert": ("BertForSequenceClassification", "Bert", families.SMALL | {"num_labels": 3}),
    "albert": ("AlbertForSequenceClassification", "Albert", families.SMALL | {"num_labels": 3, "embedding_size": 16}),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBert",
                   {"dim": 32, "n_layers": 3, "n_heads": 4, "vocab_size": 60, "hidden_dim": 48, "num_labels": 3}),
    "gpt2": ("GPT2LMHeadModel", "GPT2",
             {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 60} | families.ENDS),
    "llama": ("LlamaForCausalLM", "Llama", families.DECODER),
}  # fmt: skip
TEXT = {"input_ids": torch.tensor([[3, 17, 25, 9, 41, 8, 4]]), "attention_mask": torch.ones(1, 7, dtype=torch.long)}


def build(name, attention="sdpa"):
    if name == "gpt-oss":
        return families.FAMILIES[name]("eager", torch.float32)
    model, config, options = CLASSIFIERS[name]
    return families._hugging_face(model, config, **options)(attention)


@pytest.mark.parametrize("name", [*CLASSIFIERS, "gpt-oss"])
def test_effect_of_a_pick_equals_that_of_editing_the_attention_itself(name):
    """Zero the weight (and renormalize) inside eager attention, which is how the effect is defined."""
    layer, tolerance = 1, 1e-4 if name == "gpt-oss" else 1e-6  # in single precision
    query = "cls" if name in ("bert", "albert", "distilbert") else "last"
    effects = pick_effects(build(name), TEXT, layer, queries=query)
    model = build(name, "eager")
    score = decision(model(**TEXT)).score
    at, depth = (0 if query == "cls" else -1), 3
    softmax = nn.functional.softmax
    for head in range(4):
        token = int(effects.picks.token[0, head, 0])
        for kind in ("removed", "masked"):
            calls = 0

            def edited(x, dim=-1, dtype=None, kind=kind, head=head, token=token, **_):
                nonlocal calls
                weights = softmax(x, dim=dim)
                if x.dim() == 4:
                    if calls % depth == layer:
                        weights = weights.clone()
                        weights[0, head, at, token] = 0
                        if kind == "masked":
                            weights[0, head, at] /= weights[0, head, at].sum()
                    calls += 1
                return weights

            nn.functional.softmax = edited
            try:
                with torch.no_grad():
                    changed = float(score(model(**TEXT))[0])
            finally:
                nn.functional.softmax = softmax
            assert calls == depth
            assert getattr(effects, kind)[head] == pytest.approx(effects.score - changed, abs=tolerance)
    with torch.no_grad():
        token = int(effects.picks.token[0, 0, 0])
        shorter = {key: torch.cat([value[:, :token], value[:, token + 1 :]], 1) for key, value in TEXT.items()}
        assert effects.deleted[0] == pytest.approx(effects.score - float(score(model(**shorter))[0]), abs=tolerance)


def test_where_there_is_nothing_to_pick_there_is_no_effect():
    effects = pick_effects(build("bert"), TEXT, 1, special_tokens=TEXT["input_ids"][0].tolist(), special=False)
    assert (effects.picks.token == -1).all()
    assert np.isnan([effects.removed, effects.masked, effects.deleted]).all()


@torch.no_grad()
def test_torch_attention_is_patched_too():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = families.TorchEncoder(), nn.Linear(32, 2, dtype=torch.float64)

        def forward(self, **inputs):
            return type("Output", (), {"logits": self.head(self.body(**inputs)[:, 0])})()

    torch.manual_seed(0)
    model = Classifier().eval()
    effects = pick_effects(model, TEXT, 2)
    attention = model.body.encoder.layers[2].self_attn
    with AttentionProbe(model) as probe:
        output = model(**TEXT)
    score = decision(output).score
    reading = probe.reading(2)
    token = int(effects.picks.token[0, 1, 0])
    lost = reading.weights()[0, 1, 0, token] * reading.value[0, 1, token]
    matrix = attention.out_proj.weight[:, 8:16]

    def less(module, args, kwargs, output):
        x = output[0].clone()
        x[0, 0] -= matrix @ lost
        return x, output[1]

    handle = attention.register_forward_hook(less, with_kwargs=True)
    changed = score(model(**TEXT))
    handle.remove()
    assert effects.removed[1] == pytest.approx(effects.score - float(changed[0]), abs=1e-12)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_holding_selections_changes_no_output(name):
    model = build(name)
    with torch.no_grad():
        plain = model(**TEXT).logits
    with selections_held(model):
        held = model(**TEXT).logits
    assert (plain - held).abs().max() < 1e-10
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_shares_and_biases_add_up_to_the_decision(name):
    """Without biases and positions the shares of the tokens are the whole decision (log odds of two classes are linear)."""
    model = build(name)
    for key, parameter in model.named_parameters():
        if key.endswith("bias") or "wpe" in key:
            nn.init.zeros_(parameter)
    logits = model(**TEXT).logits[0, -1]
    with selections_held(model) as embedded:
        logit = model(**TEXT).logits[0, -1, 5]
        [gradient] = torch.autograd.grad(logit, embedded)
    # norms in single precision
    assert (gradient * embedded[0]).sum().item() == pytest.approx(logits[5].item(), rel=1e-6)


OTHERS = {
    # an activation that is called as a function, logits that are capped by one, a layer norm without mean
    "roberta": ("RobertaForSequenceClassification", "Roberta", families.SMALL | {"pad_token_id": 0, "num_labels": 2}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2", families.DECODER | {"head_dim": 8, "final_logit_softcapping": 2.0}),
    "t5": (
        "T5EncoderModel",
        "T5",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_shares_add_up_whatever_holds_the_activations_and_norms(name):
    model, config, options = OTHERS[name]
    model = families._hugging_face(model, config, **options)("eager")
    for key, parameter in model.named_parameters():
        if key.endswith("bias") or "position_embeddings" in key or "token_type" in key:
            nn.init.zeros_(parameter)
    token_shares(model, TEXT)
    with selections_held(model) as embedded:
        output = model(**TEXT)
        number = output.last_hidden_state[0, 2, 3] if name == "t5" else output.logits.flatten()[-1]
        [gradient] = torch.autograd.grad(number, embedded)
    assert (gradient * embedded[0]).sum().item() == pytest.approx(number.item(), rel=1e-5)


REFUSED = {
    "a gate that is not a module": ("GlmForCausalLM", "Glm", families.DECODER | {"head_dim": 8}),
    "a convolution beside attention": ("ConvBertModel", "ConvBert", families.SMALL | {"embedding_size": 32}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shares_of_a_model_that_is_not_linear_are_refused(name):
    model, config, options = REFUSED[name]
    with pytest.raises(UsageError, match="is not linear when its attention, norms and activations are held"):
        token_shares(families._hugging_face(model, config, **options)("eager"), TEXT)


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "llama"])
@torch.no_grad()
def test_direct_contributions_are_off_by_no_more_than_their_error(name):
    """Take one head out of the residual stream, every other writer repeating itself, and see what the decision loses."""
    model = build(name)
    direct = direct_contributions(model, TEXT)
    parts = [anatomy(model, site) for site in find_sites(model)]
    read, wrote = {}, {}

    def keep(module, args, output):
        read[module], wrote[module] = args[0], output

    with hooked({module: keep for part in parts for module in (part.output, part.feed_forward)}):
        output = model(**TEXT)
    score = decision(output).score
    off = []
    for layer, part in enumerate(parts):
        for head in range(4):
            others = read[part.output].clone()
            others[..., 8 * head : 8 * head + 8] = 0
            replay = wrote | {part.output: part.output(others)}
            with hooked({module: lambda module, args, output, replay=replay: replay[module] for module in replay}):
                drop = score(output) - score(model(**TEXT))
            off.append(abs(float(drop[0]) - direct.heads[layer, head]))
    assert max(off) == pytest.approx(direct.error, rel=1e-6)


@contextmanager
def hooked(hooks):
    handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
    yield
    for handle in handles:
        handle.remove()


def test_direct_contributions_without_norms_and_later_layers_are_exact():
    """With its norms made constant and two classes, the linear model is the model: no error is left."""
    model, config, options = CLASSIFIERS["distilbert"]
    model = families._hugging_face(model, config, **(options | {"num_labels": 2}))("sdpa")
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], nn.Identity())
    model.pre_classifier.bias.data += 1e4  # its ReLU never closes
    assert direct_contributions(model, TEXT).error < 1e-8


SPECIAL = np.array([True] + [False] * 5 + [True])


def test_the_gate_of_an_activation_is_continuous_at_zero():
    x = torch.tensor([-2e-6, -5e-7, 1e-9, 5e-7, 2e-6], requires_grad=True)
    _gate(None, (x,), torch.nn.functional.gelu(x)).sum().backward()
    assert x.grad.numpy() == pytest.approx(0.5, abs=1e-5)


def test_curves_mask_the_token_that_ranks_first():
    model = build("bert")
    ranking = np.array([9.0, 1, 5, 2, 3, 4, 9])
    result = curves(model, TEXT, ranking, SPECIAL)
    assert result.deletion.shape == (6,)
    assert result.deletion[0] == pytest.approx(result.insertion[-1])
    with torch.no_grad():
        mask = torch.ones(1, 7, dtype=torch.long)
        mask[0, 2] = 0
        decided = decision(model(**TEXT))
        masked = decided.strength(model(TEXT["input_ids"], attention_mask=mask))
    assert result.deletion[1] == pytest.approx(float(masked[0]))
    grouped = curves(model, TEXT, ranking, SPECIAL, steps=2)
    assert grouped.deletion[[0, -1]] == pytest.approx(result.deletion[[0, -1]])
    assert grouped.deletion.shape == (3,)


@pytest.mark.parametrize("reference", [None, torch.arange(32.0)], ids=["own", "another"])
def test_an_encoder_without_a_head_has_a_decision_with_a_gradient(reference):
    """The cosine of an embedding with itself has none: its shares were rounding, and differed between precisions."""
    single = families.FAMILIES["bert"](dtype=torch.float32)
    double = copy.deepcopy(single).double()
    shares = [
        token_shares(model, TEXT, reference=None if reference is None else reference.to(model.dtype))
        for model in (single, double)
    ]  # fmt: skip
    assert rounding_error(*shares) < 1e-4
    assert np.abs(shares[1]).max() > 1e-3
    direct = [
        direct_contributions(
            model, TEXT, reference=None if reference is None else reference.to(model.dtype), check=False
        ).heads
        for model in (single, double)
    ]
    assert rounding_error(*direct) < 1e-3


def test_faithfulness_orders_what_is_faithful_before_what_is_not():
    """A model that reads one word alone: its true shares delete better than their negative; arrays and functions alike."""
    model, tokenizer = families.tiny_classifier(), families.tiny_tokenizer()
    texts = ["a good film very plot", "the good plot a", "very film the good"]
    own = [token_shares(model, tokenizer(text, return_tensors="pt", return_token_type_ids=False)) for text in texts]
    found = faithfulness(
        model, texts, {"function": token_shares, "arrays": own, "negative": [-shares for shares in own]}, tokenizer
    )
    table = found.to_frame()
    assert found.methods == ("function", "arrays", "negative", "random order")
    assert table.loc["function", "deletion"] == pytest.approx(table.loc["arrays", "deletion"])
    assert table.loc["function", "deletion"] < table.loc["negative", "deletion"]
    assert table.loc["function", "insertion"] > table.loc["negative", "insertion"]
    assert table.loc["random order", "deletion_against_random"] == 0
    assert (table["deletion_low"] <= table["deletion_high"]).all()
    assert -1 <= table.loc["function", "randomized_weights"] <= 1
    assert np.isnan(table.loc["arrays", "randomized_weights"])


def test_an_attribution_that_ignores_the_weights_is_found_out():
    model, tokenizer = families.tiny_classifier(), families.tiny_tokenizer()
    texts = ["a good film very plot", "the good plot a film"]
    found = faithfulness(model, texts, lambda model, inputs: inputs["input_ids"][0].numpy(), tokenizer)
    assert found.randomized[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("texts", "given", "sentence"),
    [
        (["a good film"], [[1, 2, 3]], "attribution: text 1 has 5 tokens and 3 finite numbers; give one per token"),
        (["a good film"], [[1, 2, np.nan, 3, 4]], "text 1 has 5 tokens and 4 finite numbers"),
        (["a good film", "plot"], [[1, 2, 3, 4, 5]], "attribution: 1 arrays for 2 texts; give one array per text"),
        ("a good film", [[1, 2, 3, 4, 5]], "texts is one string"),
        (iter(["a good film"]), [["a"] * 5], "attribution: text 1 has .*; give one number per token"),
        (["a good film"], [np.ones(5) + 1j], "attribution: text 1 has .*; give one number per token"),
        (["a good film"], lambda model, inputs: None, "attribution: text 1 has None; give one number per token"),
        (["a good film"], 3, "no arrays for 1 texts; give one array per text, or a function"),
    ],
)
def test_an_attribution_that_does_not_fit_is_one_sentence(texts, given, sentence):
    with pytest.raises(UsageError, match=sentence):
        faithfulness(families.tiny_classifier(), texts, given, families.tiny_tokenizer())


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_steps_of_a_curve_are_counted(steps):
    with pytest.raises(UsageError, match="must be a whole number of at least 1"):
        faithfulness(families.tiny_classifier(), ["a good film"], [np.ones(5)], families.tiny_tokenizer(), steps=steps)


def test_an_attribution_may_be_a_tensor_with_a_gradient_and_say_nothing():
    """Equal numbers have no rank correlation: nothing is said of it, and nothing is warned about."""
    found = faithfulness(
        families.tiny_classifier(), ["a good film very plot"],
        lambda model, inputs: torch.ones(7, requires_grad=True, dtype=torch.bfloat16), families.tiny_tokenizer(),
    )  # fmt: skip
    assert np.isnan(found.randomized).all()
    assert np.isfinite(found.deletion).all()


def test_shares_need_a_table_of_embeddings():
    with pytest.raises(UsageError, match="no table of token embeddings"):
        token_shares(nn.Sequential(nn.MultiheadAttention(4, 2)), {})
