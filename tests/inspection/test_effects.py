"""Effects of picks, shares of tokens and direct contributions: against the definition, by brute force."""

import families
import numpy as np
import pytest
import torch
from torch import nn

from whichtoken.errors import UsageError
from whichtoken.inspection import AttentionProbe
from whichtoken.inspection.attribution import selections_held, token_shares
from whichtoken.inspection.decision import decision
from whichtoken.inspection.direct import direct_contributions
from whichtoken.inspection.effects import pick_effects
from whichtoken.inspection.faithfulness import curves, integrated_gradients, occlusion

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


def build(name, dtype=torch.float64):
    model, config, options = CLASSIFIERS[name]
    return families._hugging_face(model, config, **options)("sdpa", dtype)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_effect_of_a_pick_equals_that_of_editing_the_attention_itself(name):
    """Zero the weight (and renormalise) inside eager attention, which is how the effect is defined."""
    model, layer = build(name), 1
    query = "cls" if name in ("bert", "albert", "distilbert") else "last"
    effects = pick_effects(model, TEXT, layer, queries=query)
    model.set_attn_implementation("eager") if hasattr(model, "set_attn_implementation") else None
    _, score = decision(model(**TEXT))
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
            if calls:
                assert getattr(effects, kind)[head] == pytest.approx(effects.score - changed, abs=1e-6)
    with torch.no_grad():
        token = int(effects.picks.token[0, 0, 0])
        shorter = {key: torch.cat([value[:, :token], value[:, token + 1 :]], 1) for key, value in TEXT.items()}
        assert effects.deleted[0] == pytest.approx(effects.score - float(score(model(**shorter))[0]), abs=1e-6)


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
    _, score = decision(output)
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


@pytest.mark.parametrize("name", ["bert", "albert", "distilbert", "gpt2", "llama"])
def test_direct_contributions_are_the_direct_effect_of_small_changes(name):
    """Scaled down, the contributions are exact: the linearisation error falls with the square of what is removed."""
    model = build(name)
    direct = direct_contributions(model, TEXT)
    assert direct.heads.shape == (3, 4)
    assert all(layer.shape == (4, 7) for layer in direct.values)
    assert np.isfinite(direct.error)
    if (
        name == "gpt2"
    ):  # the last layer's direct path is its only one: the true effect of removing a whole head, linearised
        last = pick_effects(model, TEXT, 2, queries="last")
        picks = last.picks.token[0, :, 0].tolist()
        linear = np.array([direct.values[2][head, token] for head, token in enumerate(picks)])
        assert (
            np.sign(linear[np.abs(last.removed) > 0.3]).tolist()
            == np.sign(last.removed[np.abs(last.removed) > 0.3]).tolist()
        )


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


def test_rankings_agree_on_a_planted_token():
    """One token decides: every ranking finds it, and its curves are the best possible."""
    model = build("bert")
    special = np.array([True] + [False] * 5 + [True])
    for ranking in (token_shares(model, TEXT), occlusion(model, TEXT), integrated_gradients(model, TEXT, special)):
        assert ranking.shape == (7,)
    drops = occlusion(model, TEXT)
    result = curves(model, TEXT, drops, special)
    assert result.deletion.shape == (6,)
    assert result.deletion[0] == pytest.approx(result.insertion[-1])
    first = int(np.argmax(np.where(special, -np.inf, drops)))
    with torch.no_grad():
        mask = torch.ones(1, 7, dtype=torch.long)
        mask[0, first] = 0
        output = model(**TEXT)
        _, score = decision(output)
        expected = torch.sigmoid(score(model(TEXT["input_ids"], attention_mask=mask)))
    assert result.deletion[1] == pytest.approx(float(expected[0]))


def test_integrated_gradients_are_complete():
    """They add up to the decision minus that of the baseline."""
    model = build("bert")
    special = np.array([True] + [False] * 5 + [True])
    total = integrated_gradients(model, TEXT, special, steps=400, batch=200).sum()
    with torch.no_grad():
        _, score = decision(model(**TEXT))
        blank = {**TEXT, "input_ids": torch.where(torch.tensor(special), TEXT["input_ids"], 0)}
        expected = score(model(**TEXT)) - score(model(**blank))
    assert total == pytest.approx(float(expected[0]), abs=0.02)


def test_shares_need_a_table_of_embeddings():
    with pytest.raises(UsageError, match="no table of token embeddings"):
        token_shares(nn.Sequential(nn.MultiheadAttention(4, 2)), {})
