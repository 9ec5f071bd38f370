"""Conditions of joint convergence, on problems whose answers are plain to see."""

import numpy as np
import pytest

from whichtoken.datasets import AttentionTokens
from whichtoken.theory.mirror_descent import joint_conditions

# two sequences, opposite labels, the first token of each far along its label
TOKENS = np.array([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
QUERIES = TOKENS[:, 0]
LABELS = [1, -1]


def conditions(tokens=TOKENS, labels=LABELS, selected=(0, 0), p=2.0):
    return joint_conditions(tokens, QUERIES[: len(tokens)], labels, selected, p)


@pytest.mark.parametrize("p", [1.1, 2.0, 3.0])
def test_symmetric_problem_satisfies_all_conditions(p):
    found = conditions(p=p)
    assert found.hold
    np.testing.assert_allclose(found.label_margins, [1.0, 1.0], rtol=1e-6)


def test_token_that_is_classified_with_more_than_the_margin_does_not_support_the_decoder():
    tokens = TOKENS.copy()
    tokens[1, 0] = [-2.0, 0.0]
    found = conditions(tokens)
    assert (found.separable, found.classifiable, found.every_sequence_supports, found.hold) == (
        True,
        True,
        False,
        False,
    )
    np.testing.assert_allclose(found.label_margins, [1.0, 2.0], rtol=1e-6)


def test_token_that_would_score_higher_is_noticed():
    tokens = TOKENS.copy()
    tokens[0, 1] = [1.5, 1.0]
    found = conditions(tokens)
    assert found.every_sequence_supports
    assert not found.best_tokens
    assert not found.hold
    assert "missing: best_tokens" in repr(found)


def test_tokens_that_no_decoder_classifies_or_no_matrix_separates():
    found = conditions(labels=[1, 1])  # x and -x with one label
    assert (found.classifiable, found.label_margins, found.hold) == (False, None, False)
    middle = np.array([[[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]], [[-1.0, 0.0], [0.0, -1.0], [0.0, -2.0]]])
    assert not conditions(middle).separable  # a token between two others on a line


def test_conditions_do_not_depend_on_the_length_of_the_tokens():
    problem = AttentionTokens(3, 5, 8).sample(np.random.default_rng(0))
    best = problem.token_scores.argmax(axis=1)
    held = [
        joint_conditions(scale * problem.tokens, problem.queries, problem.labels, best).hold for scale in (1e-3, 1, 1e3)
    ]
    assert len(set(held)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [1, 0]}, r"^labels must be -1 or \+1, they hold \[0\]$"),
        ({"selected": [0]}, r"selected \(1,\) must have shapes \(n, T, d\), \(n,\) and \(n,\)"),
    ],
)
def test_wrong_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        conditions(**change)
