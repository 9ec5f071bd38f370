"""Count form of `<cls>` attention, one and two layers, against autograd on padded ids."""

import numpy as np
import pytest
import torch
from benchmarks._padded_ids import ClsAttentionModule, TwoLayerAttentionModule, padded_ids
from hypothesis import given, settings
from hypothesis import strategies as st

from whichtoken.theory.trained_embeddings.cls_model import ClsAttention
from whichtoken.theory.trained_embeddings.two_layer import TwoLayerAttention

COUNTS = np.array([[3, 0, 1, 0, 0, 2], [0, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0], [0, 0, 2, 5, 0, 1]])
LABELS = np.array([1, -1, -1, 1])


def autograd(module, counts, labels):
    loss = module.loss(padded_ids(counts), torch.tensor(labels))
    parameters = (module.embedding.weight, module.cls, module.value)
    return loss.item(), [gradient.numpy() for gradient in torch.autograd.grad(loss, parameters)]


def relative(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


def scaled(kind, seed=0, scale=2.0, dtype=np.float64, dim=9, logit_scale=1.0):
    start = kind.start(6, dim, np.random.default_rng(seed), dtype)
    return kind((scale * start.embeddings).astype(dtype), (scale * start.cls).astype(dtype), start.value, logit_scale)


def one_layer_gradients(model, counts, labels):
    gradient = model.gradient(counts, labels)
    return gradient.loss, model.parameter_gradients(gradient)


def two_layer_gradients(model, counts, labels):
    found = model.gradient(counts, labels)
    full = np.zeros_like(model.embeddings)
    full[found.tokens] = found.rows
    return found.loss, (full, found.cls, found.value)


PAIRS = {
    "one layer": (ClsAttention, ClsAttentionModule, one_layer_gradients),
    "two layers": (TwoLayerAttention, TwoLayerAttentionModule, two_layer_gradients),
}


@pytest.mark.parametrize("layers", PAIRS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 2e-6)])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.3, 4.0), logit_scale=st.sampled_from([1.0, 1 / 3]))
def test_gradients_are_autograds(layers, dtype, tolerance, seed, scale, logit_scale):
    kind, module, gradients = PAIRS[layers]
    model = scaled(kind, seed, scale, dtype, logit_scale=logit_scale)
    counts = np.random.default_rng(seed).poisson(0.8, size=(5, 6))
    counts[counts.sum(axis=1) == 0, 0] = 1
    labels = np.array([1, -1, 1, 1, -1])
    exact = ClsAttention(
        *(array.astype(np.float64) for array in (model.embeddings, model.cls, model.value)), logit_scale
    )
    loss, theirs = autograd(module(exact), counts, labels)
    ours = gradients(model, counts, labels)
    assert ours[0] == pytest.approx(loss, rel=tolerance)
    scale = np.linalg.norm(np.concatenate([part.ravel() for part in theirs]))
    for mine, other in zip(ours[1], theirs, strict=True):
        assert np.linalg.norm(mine - other) <= tolerance * scale


@pytest.mark.parametrize("layers", PAIRS)
def test_order_and_padding_do_not_matter(layers):
    kind, module, _ = PAIRS[layers]
    model = scaled(kind)
    ids = padded_ids(COUNTS)
    shuffled = torch.full((4, 15), -1)
    shuffled[:, : ids.shape[1]] = ids.flip(1)
    expected = module(model)(shuffled).detach().numpy()
    np.testing.assert_allclose(model.decision(COUNTS), expected, rtol=1e-12)


@pytest.mark.parametrize("layers", PAIRS)
def test_empty_document_has_output_zero_and_pulls_nothing(layers):
    kind, _, gradients = PAIRS[layers]
    model = scaled(kind)
    with_empty = np.vstack([COUNTS, np.zeros(6, int)])
    assert model.decision(with_empty)[-1] == 0
    (loss, full), (short_loss, part) = (
        gradients(model, counts, np.append(LABELS, 1)[: len(counts)]) for counts in (with_empty, COUNTS)
    )
    assert loss == pytest.approx((4 * short_loss + np.log(2)) / 5, rel=1e-14)
    np.testing.assert_allclose(full[0], 0.8 * part[0], rtol=1e-12)


@pytest.mark.parametrize("layers", PAIRS)
def test_modules_and_counts_agree_on_an_empty_document(layers):
    kind, module, _ = PAIRS[layers]
    model = scaled(kind)
    with_empty = np.vstack([COUNTS, np.zeros(6, int)])
    found = module(model)(padded_ids(with_empty)).detach().numpy()
    np.testing.assert_allclose(found, model.decision(with_empty), rtol=1e-12)
    _, full = autograd(module(model), with_empty, np.append(LABELS, 1))
    _, part = autograd(module(model), COUNTS, LABELS)
    np.testing.assert_allclose(full[0], 0.8 * part[0], rtol=1e-12)


@pytest.mark.parametrize("layers", PAIRS)
def test_loss_and_gradient_are_of_the_same_model(layers):
    model = scaled(PAIRS[layers][0])
    assert model.gradient(COUNTS, LABELS).loss == pytest.approx(model.loss(COUNTS, LABELS), rel=1e-14)


@pytest.mark.parametrize("seed", [1, 2])
def test_nearly_constant_rows_have_no_negative_variance(seed):
    start = TwoLayerAttention.start(5, 4, np.random.default_rng(seed))
    model = TwoLayerAttention(1e-3 * start.embeddings + np.float32(5), start.cls, start.value)
    assert np.isfinite(model.decision(np.ones((1, 5), int))).all()
    assert np.isfinite(model.gradient(np.ones((1, 5), int), [1]).rows).all()


def test_the_gradient_of_a_document_is_orthogonal_to_equal_scores():
    # Lemma 6: a direction that raises all scores of a document alike changes nothing
    model = scaled(ClsAttention)
    for row, label in zip(COUNTS, LABELS, strict=True):
        along = model.gradient(row[None], [label]).along_cls
        assert abs(along.sum()) <= 1e-15 * np.abs(along).sum() + 1e-18


def test_a_won_selection_keeps_its_small_gradient():
    # scores 60 apart: g - f in the textbook form is rounding; the exact value is q (g_top - g_other)
    E = np.array([[60.0, 1.0], [0.0, 2.0]])
    model = ClsAttention(E, np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    along = model.gradient([[1, 1]], [1]).along_cls
    pull = -1 / (1 + np.exp(1.0))
    np.testing.assert_allclose(along, pull * np.exp(-60) * np.array([-1.0, 1.0]), rtol=1e-12)


def test_scores_far_apart_between_documents_do_not_underflow():
    E = np.array([[2000.0, 1.0], [0.0, -1.0], [0.0, 3.0]])
    model = ClsAttention(E, np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    np.testing.assert_allclose(model.decision([[1, 1, 0], [0, 1, 3]]), [1.0, 2.0], rtol=1e-14)


def test_wrong_shapes_are_named():
    model = scaled(ClsAttention)
    with pytest.raises(ValueError, match="5 columns, the embeddings 6 rows"):
        model.decision(COUNTS[:, :5])
    with pytest.raises(ValueError, match=r"labels \(3,\) must be \(4,\)"):
        model.gradient(COUNTS, LABELS[:3])
    with pytest.raises(ValueError, match=r"labels \(3,\) must be \(4,\)"):
        model.loss(COUNTS, LABELS[:3])
    with pytest.raises(ValueError, match="labels hold 0; only -1 and \\+1"):
        model.loss(COUNTS, [1, 0, 0, 1])
    with pytest.raises(ValueError, match="cls"):
        ClsAttention(np.zeros((3, 2)), np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match="float32 or float64"):
        ClsAttention(np.zeros((3, 2), int), np.zeros(2, int), np.zeros(2, int))
