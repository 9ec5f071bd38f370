import numpy as np
import pytest
import torch
from torch import nn

from whichtoken.theory.mirror_descent.transformers import SentimentTransformer, TokenEncoder, VisionTransformer

BLOCKS = ["pre-mean", "post-cls"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def by_hand(encoder, tokens):
    """Output and attention of a one-layer encoder with one head, from its weights, for one sequence (length, width)."""
    layer = encoder.layers[0]
    normed = layer.norm1(tokens) if encoder.mean else tokens
    query, key, value = (normed @ weight.T for weight in layer.self_attn.in_proj_weight.chunk(3))
    attention = torch.softmax(query @ key.T / tokens.shape[1] ** 0.5, dim=1)
    mixed = tokens + attention @ value @ layer.self_attn.out_proj.weight.T

    def dense(inputs):
        return nn.functional.gelu(inputs @ layer.linear1.weight.T) @ layer.linear2.weight.T

    if encoder.mean:
        final = encoder.norm(mixed + dense(layer.norm2(mixed)))
        return final.mean(dim=0), attention.mean(dim=0)
    mixed = layer.norm1(mixed)
    return layer.norm2(mixed + dense(mixed))[0], attention[0]


@pytest.mark.parametrize("block", BLOCKS)
def test_one_layer_is_what_its_formula_says(block):
    encoder = TokenEncoder(6, 1, 1, 10, 0.0, block).double()
    tokens = torch.randn(1, 5, 6, dtype=torch.float64)
    output, attention = by_hand(encoder, tokens[0])
    torch.testing.assert_close(encoder(tokens)[0], output)
    torch.testing.assert_close(encoder.token_attention(tokens)[0], attention)


@pytest.mark.parametrize("block", BLOCKS)
def test_padding_changes_nothing(block):
    model = SentimentTransformer(20, 9, 8, heads=2, layers=2, hidden=16, block=block).eval()
    codes = torch.randint(1, 20, (3, 5))
    padded = torch.cat([codes, torch.zeros(3, 4, dtype=torch.long)], dim=1)
    torch.testing.assert_close(model(padded), model(codes))
    attention = model.token_attention(padded)
    torch.testing.assert_close(attention[:, :5], model.token_attention(codes))
    assert not attention[:, 5:].any()


@pytest.mark.parametrize("block", BLOCKS)
def test_attention_is_a_distribution_over_tokens(block):
    pictures = VisionTransformer(8, 3, 4, 10, 8, heads=2, layers=2, hidden=16, block=block)
    for attention in (
        SentimentTransformer(20, 9, 8, block=block).eval().token_attention(torch.randint(1, 20, (3, 9))),
        pictures.token_attention(torch.randn(3, 3, 8, 8)),
    ):
        assert (attention > 0).all()
        torch.testing.assert_close(attention.sum(dim=1), torch.ones(3))


def test_projections_are_the_three_parts_of_every_layer():
    encoder = TokenEncoder(6, 2, 3, 10, 0.0, "pre-mean")
    parts = encoder.projections()
    assert list(parts) == ["queries", "keys", "values"]
    for number, layer in enumerate(encoder.layers):
        whole = torch.cat([part[number] for part in parts.values()])
        torch.testing.assert_close(whole, layer.self_attn.in_proj_weight.detach())


def test_picture_is_read_patch_by_patch():
    """Without positions a mean over patches does not see where a patch stands."""
    model = VisionTransformer(4, 1, 2, 3, 8, heads=2, hidden=16)
    picture = torch.randn(1, 1, 4, 4)
    swapped = torch.cat([picture[:, :, 2:], picture[:, :, :2]], dim=2)
    assert not torch.allclose(model(picture), model(swapped))
    nn.init.zeros_(model.positions)
    torch.testing.assert_close(model(picture), model(swapped))
    assert not torch.allclose(model(picture), model(picture.transpose(2, 3)))


def test_reading_a_review_is_learned():
    """One decisive word among noise, by l_1.1 mirror descent."""
    from whichtoken.optim import MirrorDescent

    rng = np.random.default_rng(0)
    codes = rng.integers(3, 20, size=(200, 6))
    codes[:, 2] = rng.integers(1, 3, size=200)
    labels = torch.tensor(codes[:, 2] == 1, dtype=torch.float32)
    model = SentimentTransformer(20, 6, 16, heads=2, hidden=32)
    optimizer = MirrorDescent(model.parameters(), 0.1, p=1.1)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(torch.from_numpy(codes)), labels).backward()
        optimizer.step()
    assert ((model(torch.from_numpy(codes)) > 0) == (labels > 0)).double().mean() > 0.95


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenEncoder(6, 2, 1, 8, 0.0, "pre"), r"^block='pre' must be pre-mean or post-cls$"),
        (lambda: TokenEncoder(6, 4, 1, 8, 0.0, "pre-mean"), r"^width=6 must be a multiple of heads=4$"),
        (lambda: VisionTransformer(9, 1, 2, 10), r"^patch=2 must divide side=9$"),
        (
            lambda: SentimentTransformer(9, 4, 8)(torch.ones(1, 5, dtype=torch.long)),
            r"^codes of length 5 must not exceed length=4$",
        ),
    ],
)
def test_bad_sizes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
