import pytest
import torch

from whichtoken.claims.attention_regression._character_model import CharacterTransformer
from whichtoken.theory.attention_regression.diagnostics import fuse, join_heads, split_heads, unfuse


def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return CharacterTransformer(11, context=8, width=12, heads=3, layers=2).double()


@pytest.mark.parametrize("place", [0, 3, 7])
def test_later_characters_do_not_change_earlier_logits(place):
    transformer, codes = model(), torch.arange(8).remainder(11)[None]
    other = codes.clone()
    other[0, place] = 10
    difference = (transformer(codes) - transformer(other)).abs().amax(dim=2)[0]
    assert (difference[:place] < 1e-12).all()
    assert difference[place] > 1e-3


def test_prefix_has_the_logits_of_the_whole():
    transformer, codes = model(), torch.arange(8)[None]
    torch.testing.assert_close(transformer(codes[:, :5]), transformer(codes)[:, :5], rtol=1e-10, atol=1e-12)


def test_too_long_a_text_is_refused():
    with pytest.raises(ValueError, match="codes of length 9 must not exceed context=8"):
        model()(torch.zeros(1, 9, dtype=torch.long))


def test_heads_of_a_layer_add_up_to_its_output():
    """out_proj(concatenated heads) = sum over heads of W_O W_V applied to what each head attends to."""
    layer = model().attentions()[0]
    factors = unfuse(layer.out_proj.weight, layer.in_proj_weight)
    W_O, W_V, W_K, W_Q = split_heads(factors, 3)
    tokens = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = (tokens @ W_Q.mT) @ (tokens @ W_K.mT).mT / 2.0  # (heads, 5, 5); head_dim is 4
    outputs = (torch.softmax(logits, dim=2) @ tokens @ (W_O @ W_V).mT).sum(dim=0)
    with torch.no_grad():
        layer.in_proj_bias.zero_()
        layer.out_proj.bias.zero_()
    torch.testing.assert_close(layer(tokens, tokens, tokens)[0], outputs, rtol=1e-10, atol=1e-12)
    back_together = fuse(join_heads([W_O, W_V, W_K, W_Q]))
    for tensor, back in zip((layer.out_proj.weight, layer.in_proj_weight), back_together, strict=True):
        torch.testing.assert_close(back, tensor, rtol=0, atol=0)
