"""What a certificate says is true of the tokens as they are: judged in rational arithmetic, at scales far apart."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichtoken.margin import joint_limit, key_query_svm, prompt_svm, selection_svm

EXPONENTS = (1, 1.0005, 1.1, 1.5, 2, 3, 20, 1000, np.inf)
SCALES = (-60, -40, -27, -13, 0, 10, 50)


# the reference: nothing but fractions


def exact(values):
    return [Fraction(float(value)) for value in np.ravel(values)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def solved(matrix, right):
    """Solution of a square system in fractions, None if it is singular."""
    table = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(len(table)):
        pivot = next((row for row in range(column, len(table)) if table[row][column] != 0), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        table[column] = [value / table[column][column] for value in table[column]]
        for row in range(len(table)):
            if row != column:
                factor = table[row][column]
                table[row] = [x - factor * y for x, y in zip(table[row], table[column], strict=True)]
    return [row[-1] for row in table]


def nearest_to_zero(rows):
    """The point of the convex hull nearest to zero: the direction of the Euclidean solution, zero if there is none."""
    best = None
    for size in range(1, min(len(rows), len(rows[0]) + 1) + 1):
        for chosen in itertools.combinations(rows, size):
            gram = [[dot(a, b) for b in chosen] + [Fraction(1)] for a in chosen]
            found = solved([*gram, [Fraction(1)] * size + [Fraction(0)]], [Fraction(0)] * size + [Fraction(1)])
            if found is None or min(found[:size]) < 0:
                continue
            point = [dot(found[:size], column) for column in zip(*chosen, strict=True)]
            if best is None or dot(point, point) < dot(best, best):
                best = point
    return best


def norm(vector, p):
    """l_p norm of fractions, to 15 digits even if their squares leave the range of floats."""
    largest = max(abs(value) for value in vector)
    return largest * Fraction(float(np.linalg.norm([float(value / largest) for value in vector], p)))


def check(certificate, rows, p):
    """Rows of fractions with right-hand side 1."""
    best = nearest_to_zero(rows)
    digits = 1 + Fraction(1, 10**13)
    if certificate.status == "infeasible":
        assert not any(best), "a direction separates the tokens"
        return
    direction = exact(certificate.direction)
    reached = min(dot(row, direction) for row in rows) / norm(direction, p)
    assert Fraction(certificate.margin) <= max(reached, 0) * digits
    assert certificate.status == "unconverged" or certificate.margin > 0
    if any(best):
        assert Fraction(certificate.dual_bound) * digits >= dot(best, best) / norm(best, p)
        if p == 2 and certificate.status == "optimal":
            assert Fraction(certificate.margin) ** 2 >= dot(best, best) * (1 - 3 * Fraction(1, 10**8))
    else:
        assert certificate.status == "unconverged"


# problems


@st.composite
def numbers(draw, *shape):
    """Small whole numbers times powers of two."""
    count = int(np.prod(shape))
    wholes = draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    scales = draw(st.lists(st.sampled_from((0, 0, *SCALES)), min_size=count, max_size=count))
    return np.ldexp(np.array(wholes, float), scales).reshape(shape)


@st.composite
def sequences(draw):
    """Tokens (n, T, d) and selected (n,), each sequence on its own scale."""
    n, length, dim = draw(st.integers(1, 3)), draw(st.integers(2, 3)), draw(st.integers(1, 3))
    tokens = draw(numbers(n, length, dim))
    scales = draw(st.lists(st.sampled_from((0, 0, 0, 50, -45)), min_size=n, max_size=n))
    selected = draw(st.lists(st.integers(0, length - 1), min_size=n, max_size=n))
    return np.ldexp(tokens, np.array(scales)[:, None, None]), np.array(selected)


def rows_of(tokens, selected, queries=None):
    """Selected minus unselected token times the query, exactly."""
    rows = []
    for number, (x, chosen) in enumerate(zip(tokens, selected, strict=True)):
        query = [Fraction(1)] if queries is None else exact(queries[number])
        for token in x:
            if not np.array_equal(token, x[chosen]):
                difference = [a - b for a, b in zip(exact(x[chosen]), exact(token), strict=True)]
                rows.append([a * z for a in difference for z in query])
    return rows


@settings(max_examples=50)
@given(problem=sequences(), p=st.sampled_from(EXPONENTS))
def test_prompt_certificate_is_true(problem, p):
    tokens, selected = problem
    rows = rows_of(tokens, selected)
    if rows:
        check(prompt_svm(tokens, selected, p), rows, p)


@settings(max_examples=30)
@given(problem=sequences(), p=st.sampled_from(EXPONENTS), data=st.data())
def test_key_query_certificate_is_true(problem, p, data):
    tokens, selected = problem[0][:, :, :2], problem[1]
    queries = data.draw(numbers(len(tokens), tokens.shape[2]))
    rows = rows_of(tokens, selected, queries)
    if rows:
        check(key_query_svm(tokens, queries, selected, p), rows, p)


@settings(max_examples=30)
@given(problem=sequences(), p=st.sampled_from(EXPONENTS), ratio=st.sampled_from([0.0, 0.3, 5.0]), data=st.data())
def test_joint_limit_is_true(problem, p, ratio, data):
    tokens, selected = problem[0][:, :, :2], problem[1]
    queries = data.draw(numbers(len(tokens), tokens.shape[2]))
    margins = np.array([data.draw(st.sampled_from([1.0, 1.5, 3.0])) for _ in tokens])
    rows = rows_of(tokens, selected, queries)
    if not rows:
        return
    certificate, best = joint_limit(tokens, queries, selected, margins, ratio, p), nearest_to_zero(rows)
    if certificate.status == "infeasible":
        assert not any(best)
        return
    excess = margins[certificate.pairs[:, 0]] - margins[certificate.pairs[:, 0]].min()
    digits, relief = 1 + Fraction(1, 10**13), exact(ratio * excess)

    def reached(direction):
        size = norm(direction, p)
        return min(dot(row, direction) / size + more for row, more in zip(rows, relief, strict=True))

    assert Fraction(certificate.margin) <= max(reached(exact(certificate.direction)), 0) * digits
    if any(best):
        assert Fraction(certificate.dual_bound) * digits >= reached(best)


@settings(max_examples=30)
@given(data=st.data())
def test_selection_certificate_is_true(data):
    size, dim = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    embeddings = data.draw(numbers(size, dim))
    counts = np.array([[1, 1] + [data.draw(st.integers(0, 1)) for _ in range(size - 2)] for _ in range(2)])
    selected = [data.draw(st.sampled_from(list(np.flatnonzero(row)))) for row in counts]
    rows = [
        row
        for present, chosen in zip(counts, selected, strict=True)
        for row in rows_of([embeddings[[chosen, *np.flatnonzero(present)]]], [0])
    ]
    if rows:
        check(selection_svm(embeddings, counts, selected), rows, 2)


# one by one


@pytest.mark.parametrize("p", [1, 1.1, 2, 3, 1000, np.inf])
@pytest.mark.parametrize("opening", [1e-8, 1e-10, 2**-40, 2**-200])
def test_demands_that_almost_contradict_each_other_are_met(opening, p):
    """(1, 0) and (-1, opening): the best direction is (opening / 2, 1) up to the square of the opening."""
    tokens = [[[1, 0], [0, 0]], [[-1, opening], [0, 0]]]
    certificate = prompt_svm(tokens, [0, 0], p)
    check(certificate, rows_of(np.array(tokens), [0, 0]), p)
    assert certificate.margin == pytest.approx(opening / 2, rel=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_demands_of_two_queries_that_almost_contradict_each_other_are_met(p):
    tokens, queries = np.array([[[1, 0], [0, 0]], [[-1, 2**-40], [0, 0]]]), np.ones((2, 2))
    certificate = key_query_svm(tokens, queries, [0, 0], p)
    check(certificate, rows_of(tokens, [0, 0], queries), p)
    assert certificate.margin > 0
    assert joint_limit(tokens, queries, [0, 0], [1.0, 2.0], 1.0, p).status != "infeasible"


@pytest.mark.parametrize("p", [1, 1.0005, 1.5, 2, 20, np.inf])
@pytest.mark.parametrize("size", [1e-15, 1e15, 2**100])
def test_one_sequence_may_be_far_larger_than_another(size, p):
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((4, 3, 3))
    selected = (tokens @ rng.standard_normal(3)).argmax(axis=1)
    tokens[1] *= size
    certificate = prompt_svm(tokens, selected, p)
    assert certificate.gap <= (1e-8 if 1.1 <= p <= 20 or p in (1, np.inf) else 1e-3)
    check(certificate, rows_of(tokens, selected), p)


def test_scales_too_far_apart_for_the_powers_of_p_are_no_error():
    tokens = np.array(
        [
            [(2.0, 3072.0), (2048.0, -(2.0**-39))],
            [(2.0**-104, -(2.0**-45)), (2.0**-71, 2.0**-44)],
            [(0.0, 2.0**-45), (2.0**-44, -(2.0**-44))],
        ]
    )
    check(prompt_svm(tokens, [1, 0, 0], 20.0), rows_of(tokens, [1, 0, 0]), 20.0)


def test_a_difference_that_rounding_closes_is_still_one():
    """1 - 2^-60 is 1 in floats, and (1, 1) would contradict (-1, -1)."""
    tokens = np.array([[(1.0, 0.0), (2.0**-60, -1.0)], [(-1.0, -1.0), (0.0, 0.0)]])
    certificate = prompt_svm(tokens, [0, 0])
    assert certificate.status != "infeasible"
    check(certificate, rows_of(tokens, [0, 0]), 2)


@pytest.mark.parametrize("p", EXPONENTS)
def test_an_equality_that_almost_contradicts_is_no_contradiction(p):
    """Tokens 0 and 1 tie, which leaves w = (a, a): 2^-40 a has to be at least 1."""
    tokens = [np.array([(1.0, 0.0), (0.0, 1.0), (0.5, -0.5 - 2.0**-40)]), np.array([(1.0, -1.0), (0.0, 0.0)])]
    assert prompt_svm(tokens[:1], [{0, 1}], p).status == "optimal"
    tokens[1][0] += 2.0**-40, 0.0
    assert prompt_svm([tokens[0][:2], tokens[1], np.ones((1, 2))], [{0, 1}, {0}, {0}], p).status != "infeasible"


def test_products_too_small_for_a_float_are_still_there():
    """(1, 0) and (-1, 1e-200) times a query (1, 1e-200): the last entry of the second row is 1e-400."""
    tokens, queries = np.array([[(1.0, 0.0), (0.0, 0.0)], [(-1.0, 1e-200), (0.0, 0.0)]]), np.array([(1.0, 1e-200)] * 2)
    for factor in (1.0, -1.0):
        queries[1] *= factor, 1.0  # two equal queries, then two different ones
        certificate = key_query_svm(tokens, queries, [0, 0])
        check(certificate, rows_of(tokens, [0, 0], queries), 2)


# contradictions of ordinary scale are proven


@pytest.mark.parametrize("size", [1.0, 1e-9, 3e12])
def test_opposite_demands_are_infeasible_whatever_their_lengths(size):
    x = np.random.default_rng(0).standard_normal(50)
    tokens = np.array([[x, np.zeros(50)], [-x * 2.0**40, np.zeros(50)]]) * size
    assert prompt_svm(tokens, [0, 0]).status == "infeasible"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("sequences", "length", "dim"), [(4, 3, 2), (12, 6, 5), (60, 8, 20), (150, 8, 100)])
def test_arbitrary_selections_of_generic_tokens_are_infeasible(sequences, length, dim, seed):
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((sequences, length, dim))
    tokens[:, 0] = tokens[:, 1:].mean(axis=1) + 0.01 * tokens[:, 0]  # chosen from the middle of the others
    assert prompt_svm(tokens, np.zeros(sequences, int)).status == "infeasible"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("sequences", "length", "dim"), [(1, 8, 4), (3, 8, 4), (30, 6, 4), (60, 9, 8)])
def test_arbitrary_selections_by_query_are_infeasible(sequences, length, dim, seed):
    """Few queries contradict in a space of their own, many in all of it."""
    rng = np.random.default_rng(seed)
    tokens, queries = rng.standard_normal((sequences, length, dim)), rng.standard_normal((sequences, dim))
    tokens[:, 0] = tokens[:, 1:].mean(axis=1)
    assert key_query_svm(tokens, queries, np.zeros(sequences, int)).status == "infeasible"


@pytest.mark.parametrize("dim", [3, 40, 300])
def test_circular_demands_on_a_vocabulary_are_infeasible_in_any_dimension(dim):
    words = np.random.default_rng(0).standard_normal((6, dim))
    tokens = np.stack([words[[i, (i + 1) % 6]] for i in range(6)])
    assert prompt_svm(tokens, np.zeros(6, int)).status == "infeasible"
    queries = np.random.default_rng(1).standard_normal((1, dim)).repeat(6, axis=0)
    assert key_query_svm(tokens, queries, np.zeros(6, int)).status == "infeasible"
