"""The four-stage protocol: gradients by automatic differentiation, chunks, and the theory of its query."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from whichtoken.datasets.sparse_tokens import SparseTokens
from whichtoken.theory import sparse_tokens
from whichtoken.theory.sparse_tokens.two_step import attention_features, fit_attention, two_step_query

SIZES = {"query": 6, "readout": 6, "bias": ()}
ONE = {"length": 10, "signal_tokens": 1, "strength": 5.0, "prevalence": 0.5}
WEAK = {"length": 10, "signal_tokens": 3, "strength": 2.0, "prevalence": 0.2}


def test_steps_are_gradient_steps_of_the_model():
    """The two steps, taken by automatic differentiation of the empirical risk."""
    source = SparseTokens(**ONE, dim=6)
    stream = source.stream(40, np.random.default_rng(0), chunk=7)
    rates = {"lr_readout": 0.7, "lr_bias": 0.4, "lr_query": 1.3}
    steps = two_step_query(stream, **rates, inverse_temperature=2.0, bias_correction=False)
    model = {name: torch.zeros(size, dtype=torch.float64, requires_grad=True) for name, size in SIZES.items()}
    tokens, labels = (torch.cat([torch.from_numpy(chunk[k]) for chunk in stream]) for k in (0, 1))
    rates = {"readout": 0.7, "bias": 0.4, "query": 1.3}
    for moving in (("readout", "bias", "query"), ("query",)):
        attention = torch.softmax(2.0 * tokens @ model["query"], dim=1)
        outputs = (attention * (tokens @ model["readout"])).sum(dim=1) + model["bias"]
        slopes = torch.autograd.grad(torch.nn.functional.softplus(-labels * outputs).mean(), list(model.values()))
        with torch.no_grad():
            for name, slope in zip(model, slopes, strict=True):
                if name in moving:
                    model[name].sub_(rates[name] * slope)
    query, readout, bias = (parameter.detach().numpy() for parameter in model.values())
    np.testing.assert_allclose(steps.query, query, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(steps.readout, readout, rtol=1e-9)
    assert steps.bias == pytest.approx(float(bias))


@pytest.mark.parametrize("loss", ["logistic", "square", "hinge"])
def test_chunks_do_not_change_the_result(loss):
    source, rng = SparseTokens(**ONE, dim=8), np.random.default_rng(1)
    tokens, labels = source.sample(90, rng)
    whole = fit_attention([(tokens, labels)], ridge=0.1, loss=loss, target_temperature=1.0)
    pieces = [(tokens[k : k + 25], labels[k : k + 25]) for k in range(0, 90, 25)]
    parts = fit_attention(pieces, ridge=0.1, loss=loss, target_temperature=1.0)
    np.testing.assert_allclose(parts.query, whole.query, rtol=1e-9)
    np.testing.assert_allclose(parts.readout, whole.readout, rtol=1e-4, atol=1e-6)


def test_target_temperature_is_reached_whatever_the_steps():
    stream = SparseTokens(**ONE, dim=8).stream(60, np.random.default_rng(2))
    for rate, beta in ((0.1, 1.0), (3.0, 2.5)):
        fit = fit_attention(
            stream, ridge=0.1, lr_query=rate, inverse_temperature=beta, target_temperature=1.5, head_loss="square"
        )
        assert beta * np.linalg.norm(fit.query) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("task", "options", "samples_per_dim"),
    [
        (ONE, {}, 2.0),
        (WEAK, {"bias_correction": False}, 4.0),
        (WEAK, {"bias_correction": True}, 4.0),
        (ONE, {"loss": "square"}, 1.0),
    ],
)
def test_query_agrees_with_the_theory(task, options, samples_per_dim):
    """Dimension 300, six seeds: alignment and norm within three standard errors and three percent."""
    dim, rng = 300, np.random.default_rng(3)
    source, rows = SparseTokens(**task, dim=dim), []
    for _ in range(6):
        steps = two_step_query(source.stream(int(samples_per_dim * dim), rng), **options)
        norm = np.linalg.norm(steps.query)
        rows.append((steps.query @ source.direction / norm, norm))
    mean, sem = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
    theory = sparse_tokens.two_steps(
        **task, samples_per_dim=samples_per_dim, lr_readout=0.5, lr_bias=0.5, lr_query=0.5, **options
    )
    assert np.all(np.abs(mean - [theory.alignment, theory.query_norm]) <= 0.03 * np.abs(mean) + 3 * sem)


def test_fresh_samples_remove_the_self_interaction():
    """Large readout steps: reusing the samples of step one costs alignment, as the theory says."""
    task, dim, rng = {**ONE, "length": 5, "strength": 4.0}, 400, np.random.default_rng(4)
    source, rates = SparseTokens(**task, dim=dim), {"lr_readout": 10.0, "lr_bias": 0.5, "lr_query": 0.5}
    for reuse in (True, False):
        found = []
        for _ in range(8):
            samples = source.stream(dim // 2, rng)
            steps = two_step_query(samples, **rates, fresh=None if reuse else source.stream(dim // 2, rng))
            found.append(steps.query @ source.direction / np.linalg.norm(steps.query))
        theory = sparse_tokens.two_steps(**task, samples_per_dim=0.5, **rates, reuse=reuse).alignment
        assert np.mean(found) == pytest.approx(theory, abs=3 * np.std(found, ddof=1) / np.sqrt(8) + 0.01)


def test_whole_protocol_agrees_with_the_theory():
    """Two steps and a head at dimension 200, eight seeds, split samples; theory knows the sample sizes alone."""
    dim, rng = 200, np.random.default_rng(5)
    source, rows = SparseTokens(**ONE, dim=dim), []
    for _ in range(8):
        fit = fit_attention(
            source.stream(2 * dim, rng), source.stream(2 * dim, rng), ridge=1e-2, target_temperature=1.0
        )
        error = sparse_tokens.exact_error(fit.readout, fit.bias, source.direction, query=fit.query, **ONE, points=4096)
        rows.append((fit.head.train_loss, error))
    mean, sem = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
    steps = sparse_tokens.two_steps(**ONE, samples_per_dim=2, lr_readout=0.5, lr_bias=0.5, lr_query=0.5)
    theory = sparse_tokens.erm(**ONE, alignment=steps.alignment, inverse_temperature=1.0, samples_per_dim=2, ridge=1e-2)
    assert (theory.train_loss, theory.test_error) == pytest.approx((0.03140, 0.03338), rel=2e-3)
    assert np.all(np.abs(mean - [theory.train_loss, theory.test_error]) <= 0.03 * mean + 3 * sem)


def test_features_without_query_are_mean_tokens():
    tokens, labels = SparseTokens(**ONE, dim=4).sample(5, np.random.default_rng(6))
    np.testing.assert_allclose(attention_features([(tokens, labels)])[0], tokens.mean(axis=1))
    np.testing.assert_allclose(attention_features([(tokens, labels)], np.zeros(4))[0], tokens.mean(axis=1))


@pytest.mark.parametrize("once", [iter, lambda pairs: zip(*pairs, strict=True), lambda pairs: (p for p in pairs)])
def test_samples_that_can_be_seen_only_once_are_refused(once):
    pair = SparseTokens(**ONE, dim=4).sample(5, np.random.default_rng(6))
    with pytest.raises(ValueError, match=r"samples must be iterable twice: .* not a (list_iterator|zip|generator)"):
        fit_attention(once([pair]), ridge=0.1)


def test_labels_other_than_signs_are_refused():
    tokens, labels = SparseTokens(**ONE, dim=4).sample(5, np.random.default_rng(6))
    with pytest.raises(ValueError, match=r"labels must be -1 or \+1; got \[0.0, 1.0\]"):
        two_step_query([(tokens, np.maximum(labels, 0.0))])


def test_one_class_is_refused():
    tokens = np.zeros((3, 4, 2))
    with pytest.raises(ValueError, match="labels must contain both classes; got 3 positive of 3"):
        two_step_query([(tokens, np.ones(3))])


def test_bias_correction_is_made_unless_the_loss_has_none():
    """It takes the luck of the labels out of the query: at dimension 40 its cosine scatters far less."""
    rng, source = np.random.default_rng(6), SparseTokens(**ONE, dim=40)
    cosines = {None: [], False: []}
    for _ in range(40):
        sample = [source.sample(80, rng)]
        for correction, found in cosines.items():
            query = two_step_query(sample, bias_correction=correction).query
            found.append(query @ source.direction / np.linalg.norm(query))
    assert np.std(cosines[None]) < 0.7 * np.std(cosines[False])
    two_step_query(sample, loss="hinge")
    with pytest.raises(ValueError, match="hinge"):
        two_step_query(sample, loss="hinge", bias_correction=True)
