"""Whatever the input, a certificate proves itself from the raw tokens alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from whichtoken.margin import key_query_svm, prompt_svm
from whichtoken.norms import dual_exponent

EXPONENTS = (1, 1.1, 1.5, 2, 3, 7, np.inf)


def whole_numbers(*shape: int) -> st.SearchStrategy[np.ndarray]:
    """Small integers: full of ties, repeated tokens and dependent constraints."""
    return arrays(float, shape, elements=st.integers(-3, 3).map(float))


@st.composite
def problems(draw):
    """Tokens (n, T, d), queries (n, d), selected (n,), right-hand sides (n,)."""
    sequences, length, dim = draw(st.integers(1, 4)), draw(st.integers(2, 4)), draw(st.integers(1, 4))
    tokens = draw(whole_numbers(sequences, length, dim))
    selected = np.array([draw(st.integers(0, length - 1)) for _ in range(sequences)])
    rhs = np.array([draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for _ in range(sequences)])
    return tokens, draw(whole_numbers(sequences, dim)), selected, rhs


def rows_of(tokens, queries, selected, rhs):
    """a_k and b_k in the order (sequence, unselected token ascending), written down as the definition says."""
    rows, demands = [], []
    for x, z, chosen, demand in zip(tokens, queries, selected, rhs, strict=True):
        for t in range(len(x)):
            if not np.array_equal(x[t], x[chosen]):
                rows.append(np.outer(x[chosen] - x[t], z).ravel())
                demands.append(demand)
    return np.array(rows), np.array(demands)


def solvable(rows, demands) -> bool:
    outcome = linprog(np.zeros(rows.shape[1]), -rows, -demands, bounds=(None, None), method="highs")
    return outcome.status == 0


def check(certificate, rows, demands, p):
    mu = certificate.multipliers
    assert mu.shape == demands.shape
    assert mu.min() >= 0
    assert mu.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_array_equal(certificate.support, np.flatnonzero(mu > 1e-8 * mu.max()))
    if certificate.status == "infeasible":
        assert certificate.direction is None
        assert certificate.margin == 0
        assert np.linalg.norm(mu @ rows) <= 1e-9 * np.linalg.norm(rows, axis=1).max()
        assert mu @ demands > 0
        return
    direction = certificate.direction.ravel()
    assert np.linalg.norm(direction, p) == pytest.approx(1, abs=1e-12)
    scores, positive = rows @ direction, demands > 0
    assert certificate.margin == pytest.approx(np.min(scores[positive] / demands[positive]), rel=1e-9)
    assert np.all(scores[~positive] >= -1e-9 * np.linalg.norm(rows, axis=1)[~positive])
    bound = np.linalg.norm(mu @ rows, dual_exponent(p)) / (mu @ demands)
    assert certificate.dual_bound == pytest.approx(bound, rel=1e-9)
    assert certificate.margin <= certificate.dual_bound
    assert certificate.gap == pytest.approx(1 - certificate.margin / certificate.dual_bound, abs=1e-12)
    # complementary slackness: a row with weight is tight
    excess = (scores / certificate.margin - demands) * mu
    assert excess.sum() == pytest.approx(0, abs=1e-6 * demands.max())


@settings(max_examples=60)
@given(problem=problems(), p=st.sampled_from(EXPONENTS), prompt=st.booleans())
def test_certificate_proves_itself(problem, p, prompt):
    tokens, queries, selected, rhs = problem
    rows, demands = rows_of(tokens, np.ones((len(tokens), 1)) if prompt else queries, selected, rhs)
    if not np.any(demands > 0):
        return
    certificate = prompt_svm(tokens, selected, p, rhs) if prompt else key_query_svm(tokens, queries, selected, p, rhs)
    assert certificate.status == ("optimal" if solvable(rows, demands) else "infeasible")
    check(certificate, rows, demands, p)


@settings(max_examples=25)
@given(problem=problems(), p=st.sampled_from(EXPONENTS), seed=st.integers(0, 99))
def test_order_of_sequences_and_tokens_does_not_matter(problem, p, seed):
    tokens, queries, selected, _ = problem
    if len(rows_of(tokens, queries, selected, np.ones(len(tokens)))[0]) == 0:
        return
    rng = np.random.default_rng(seed)
    sequences, order = rng.permutation(len(tokens)), rng.permutation(tokens.shape[1])
    shuffled = key_query_svm(tokens[sequences][:, order], queries[sequences], np.argsort(order)[selected[sequences]], p)
    original = key_query_svm(tokens, queries, selected, p)
    assert shuffled.status == original.status
    assert shuffled.margin == pytest.approx(original.margin, rel=1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_ill_conditioned_problems_are_solved_or_said_not_to_be(seed):
    """Columns and sequences on scales that differ by 1e6: never a wrong "optimal"."""
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((5, 4, 6)) * 10.0 ** rng.integers(-3, 4, 6) * 10.0 ** rng.integers(-3, 4, (5, 1, 1))
    selected = (tokens @ rng.standard_normal(6)).argmax(axis=1)
    rows, demands = rows_of(tokens, np.ones((5, 1)), selected, np.ones(5))
    for p in EXPONENTS:
        certificate = prompt_svm(tokens, selected, p)
        assert certificate.status in ("optimal", "unconverged")
        if certificate.status == "optimal":
            assert certificate.gap <= 1e-8
            check(certificate, rows, demands, p)


def test_a_margin_below_resolution_is_not_called_optimal():
    """Two constraints that leave an opening of 1e-9: true gap and certificate must agree on what was reached."""
    tokens = np.array([[[1.0, 1e-9], [0.0, 0.0]], [[-1.0, 1e-9], [0.0, 0.0]]])
    certificate = prompt_svm(tokens, [0, 0])
    if certificate.status == "optimal":
        assert certificate.margin == pytest.approx(1e-9, rel=1e-7)
    else:
        assert certificate.status == "unconverged"
