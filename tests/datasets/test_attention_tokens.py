import numpy as np
import pytest

from whichtoken.datasets import AttentionProblem, AttentionTokens


def test_draws_decoder_labels_tokens_queries_in_this_order():
    problem = AttentionTokens(sequences=3, length=4, dim=5).sample(np.random.default_rng(7))
    rng = np.random.default_rng(7)
    decoder, signs = rng.standard_normal(5), rng.standard_normal(3)
    tokens, queries = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5))
    np.testing.assert_allclose(problem.decoder * np.linalg.norm(decoder), decoder, rtol=1e-14)
    np.testing.assert_array_equal(problem.labels, np.sign(signs))
    np.testing.assert_allclose(problem.tokens * np.linalg.norm(tokens, axis=2)[..., None], tokens, rtol=1e-14)
    np.testing.assert_allclose(problem.queries * np.linalg.norm(queries, axis=1)[:, None], queries, rtol=1e-14)


def test_tokens_queries_and_decoder_are_unit_vectors():
    problem = AttentionTokens(sequences=5, length=6, dim=7).sample(np.random.default_rng(0))
    for vectors in (problem.tokens, problem.queries, problem.decoder):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0, rtol=1e-15)


def test_token_scores_are_label_times_decoder_output():
    problem = AttentionTokens().sample(np.random.default_rng(3))
    for i, t in [(0, 0), (2, 5), (5, 7)]:
        expected = problem.labels[i] * sum(problem.decoder[j] * problem.tokens[i, t, j] for j in range(10))
        assert problem.token_scores[i, t] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(("field", "value"), [("sequences", 0), ("length", 1), ("dim", 0)])
def test_refuses_sizes_without_a_choice(field, value):
    with pytest.raises(ValueError, match=rf"^{field}={value} must be a whole number of at least {value + 1}$"):
        AttentionTokens(**{field: value})


@pytest.mark.parametrize(
    "shapes", [((3, 4), (3, 5), (3,), (5,)), ((3, 4, 5), (4, 5), (3,), (5,)), ((3, 4, 5), (3, 5), (3,), (4,))], ids=str
)
def test_refuses_shapes_that_do_not_belong_together(shapes):
    with pytest.raises(
        ValueError, match=r"must be those of tokens \(n, T, d\), queries \(n, d\), labels \(n,\), decoder"
    ):
        AttentionProblem(*(np.ones(shape) for shape in shapes))


def test_refuses_labels_other_than_signs():
    with pytest.raises(ValueError, match=r"^labels=\[0, 1\] must be -1 or \+1$"):
        AttentionProblem(np.ones((2, 3, 4)), np.ones((2, 4)), np.array([0, 1]), np.ones(4))
