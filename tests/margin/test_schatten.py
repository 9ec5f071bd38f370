"""Margins in norms of singular values: nuclear (p = 1), Frobenius (p = 2), spectral (p = inf) and those in between."""

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from scipy.stats import ortho_group

from whichtoken.margin import joint_limit, key_query_svm
from whichtoken.margin.extreme import TO_THE_BOUNDARY, lowest_eigenvalue
from whichtoken.norms import dual_exponent, power_norm

EXPONENTS = (1, 1.1, 1.5, 3, 10, np.inf)


def planted(sequences, length, dim, seed=0):
    rng = np.random.default_rng(seed)
    tokens, queries = rng.standard_normal((sequences, length, dim)), rng.standard_normal((sequences, dim))
    scores = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((dim, dim)), queries)
    return tokens, queries, scores.argmax(axis=1)


def schatten(matrix, p):
    return power_norm(np.linalg.svd(matrix, compute_uv=False), p)


def limit(problem, p, **options):
    return key_query_svm(*problem, p=p, norm="schatten", **options)


def rows_of(tokens, queries, selected):
    """The matrices a_k in the order (sequence, unselected token ascending), written down as the definition says."""
    return np.array(
        [
            np.outer(x[chosen] - other, z)
            for x, z, chosen in zip(tokens, queries, selected, strict=True)
            for other in x
            if not np.array_equal(other, x[chosen])
        ]
    )


def least_norm(matrix, p):
    """The norm as a cone program can say it, and its power."""
    if p == 4:  # |W|_4^2 is the least |Y|_F with Y above W^T W
        above = cvxpy.Variable(matrix.shape, symmetric=True)
        lifted = cvxpy.bmat([[above, matrix.T], [matrix, np.eye(matrix.shape[0])]])
        return cvxpy.norm(above, "fro"), 2, [lifted >> 0]
    return (cvxpy.normNuc if p == 1 else cvxpy.sigma_max)(matrix), 1, []


@pytest.mark.parametrize("p", [1, np.inf])
def test_solver_stops_at_the_gap_that_is_asked_for(p):
    problem = planted(12, 6, 8)
    close, rough = limit(problem, p), limit(problem, p, gap=1e-3)
    assert (close.status, rough.status) == ("optimal", "optimal")
    assert close.gap <= 1e-9 < rough.gap <= 1e-3
    assert rough.margin <= close.dual_bound
    assert close.margin <= rough.dual_bound
    assert rough.face_dimension is None  # too rough to tell what is zero


@pytest.mark.parametrize("p", [1, np.inf])
@pytest.mark.parametrize("loose", [0.0, 1.0, 100.0], ids=["no row left out", "most", "almost all"])
def test_rows_left_out_by_mistake_come_back(p, loose, monkeypatch):
    monkeypatch.setattr("whichtoken.margin.extreme.LOOSE", loose)
    for norm in ("schatten", "entrywise"):
        certificate = key_query_svm(*planted(12, 6, 8), p=p, norm=norm)
        assert certificate.status == "optimal", norm
        assert certificate.gap <= 1e-9


@pytest.mark.parametrize("size", [1, 2, 7, 80])
def test_length_of_a_step_is_known_to_less_than_it_keeps_of_the_boundary(size):
    rng = np.random.default_rng(size)
    for _ in range(20):
        matrix, root = rng.standard_normal((size, size)), rng.uniform(0.1, 10, size)
        symmetric = matrix + matrix.T
        lowest = np.linalg.eigvalsh(symmetric * np.outer(root, root))[0]
        found = lowest_eigenvalue(symmetric, root)
        assert lowest - 1e-12 * abs(lowest) <= found <= lowest + (1 - TO_THE_BOUNDARY) / 2 * abs(lowest)


@pytest.mark.parametrize("p", [1, 4, np.inf])
@pytest.mark.parametrize("rhs", [1.0, [2.0, 0.0, 0.5, 1.0]], ids=["one", "several"])
def test_margin_equals_that_of_a_cone_solver(p, rhs):
    problem = planted(4, 4, 4)
    matrix = cvxpy.Variable((4, 4))
    objective, power, conditions = least_norm(matrix, p)
    scores = cvxpy.vec(matrix, order="C") @ rows_of(*problem).reshape(-1, 16).T
    program = cvxpy.Problem(cvxpy.Minimize(objective), [*conditions, scores >= np.repeat(rhs * np.ones(4), 3)])
    program.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    certificate = limit(problem, p, rhs=rhs)
    assert certificate.status == "optimal"
    assert 1 / certificate.margin == pytest.approx(program.value ** (1 / power), rel=1e-6)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("size", [(3, 4, 3), (12, 6, 8)], ids=str)
def test_certificate_proves_itself_from_the_tokens(monkeypatch, size, p):
    if size[2] > 3:  # as if the rows were too many to be written out
        monkeypatch.setattr("whichtoken.margin.constraints.DENSE", 0)
    problem = planted(*size, seed=1)
    certificate = limit(problem, p)
    assert certificate.status == "optimal"
    assert certificate.gap <= 1e-9
    assert schatten(certificate.direction, p) == pytest.approx(1, abs=1e-12)
    rows = rows_of(*problem)
    assert np.min(np.einsum("kij,ij->k", rows, certificate.direction)) == pytest.approx(certificate.margin, rel=1e-10)
    combined = np.einsum("k,kij->ij", certificate.multipliers, rows)
    assert schatten(combined, dual_exponent(p)) == pytest.approx(certificate.dual_bound, rel=1e-10)
    if 1.1 < p < np.inf:  # the gradient of the norm is the combination of the rows
        left, values, right = np.linalg.svd(certificate.direction)
        np.testing.assert_allclose((left * values ** (p - 1)) @ right, combined / certificate.dual_bound, atol=1e-4)


def test_the_schatten_norm_of_exponent_two_is_the_euclidean_one():
    problem = planted(6, 5, 7)
    ours, euclidean = limit(problem, 2), key_query_svm(*problem)
    assert ours.margin == euclidean.margin
    np.testing.assert_array_equal(ours.direction, euclidean.direction)


def test_margins_rise_with_the_exponent_and_both_ends_are_limits():
    exponents = (1, 1.0005, 1.05, 1.5, 2, 4, 40, 3000, np.inf)
    margins = [limit(planted(8, 5, 6), p).margin for p in exponents]
    assert margins == sorted(margins)
    assert margins[1] == pytest.approx(margins[0], rel=2e-3)
    assert margins[-2] == pytest.approx(margins[-1], rel=2e-3)


@pytest.mark.parametrize("p", EXPONENTS)
def test_turning_tokens_and_queries_turns_the_direction(p):
    tokens, queries, selected = planted(6, 5, 6)
    u, v = ortho_group.rvs(6, size=2, random_state=0)
    here, there = limit((tokens, queries, selected), p), limit((tokens @ u.T, queries @ v.T, selected), p)
    assert there.margin == pytest.approx(here.margin, rel=1e-9)
    assert there.face_dimension == here.face_dimension
    if here.unique:
        np.testing.assert_allclose(there.direction, u @ here.direction @ v.T, atol=1e-4)


@pytest.mark.parametrize("p", [1, 3, np.inf])
def test_scales_of_tokens_queries_and_demands(p):
    tokens, queries, selected = planted(5, 5, 5)
    margin = limit((tokens, queries, selected), p).margin
    assert limit((1e-6 * tokens, 1e9 * queries, selected), p).margin == pytest.approx(1e3 * margin, rel=1e-8)
    assert limit((tokens, queries, selected), p, rhs=5.0).margin == pytest.approx(margin / 5, rel=1e-8)


@pytest.mark.parametrize("p", EXPONENTS)
def test_one_demand_has_a_rank_one_answer(p):
    left, right = np.array([3.0, 0.0, 4.0]), np.array([0.0, 2.0, 0.0])
    certificate = limit((np.array([[left, np.zeros(3)]]), right[None], [0]), p)
    assert certificate.margin == pytest.approx(10, rel=1e-8)
    np.testing.assert_allclose(certificate.direction @ right / 2, left / 5, atol=1e-4)
    # for the spectral norm the other singular values are free: a ball of 2 x 2 matrices
    assert certificate.face_dimension == (4 if p == np.inf else 0)


@pytest.mark.parametrize("times", [1, 2])
def test_positive_definite_matrices_of_unit_diagonal_all_have_the_least_nuclear_norm(times):
    tokens = np.tile(np.eye(4)[:, None] * np.array([[1.0], [0.0]]), (times, 1, 1))
    certificate = limit((tokens, np.tile(np.eye(4), (times, 1)), [0] * 4 * times), 1)
    assert certificate.margin == pytest.approx(1 / 4, rel=1e-9)
    np.testing.assert_allclose(certificate.direction, np.eye(4) / 4, atol=1e-6)  # the middle of them
    assert (certificate.face_dimension, certificate.unique) == (6, False)


def test_nuclear_limits_have_low_rank_and_spectral_ones_many_equal_singular_values():
    problem = planted(16, 8, 8)
    nuclear, spectral = (np.linalg.svd(limit(problem, p).direction)[1] for p in (1, np.inf))
    assert np.sum(nuclear > 1e-6) < 8
    assert np.sum(spectral > 1 - 1e-6) > 4


@pytest.mark.parametrize("p", [1, 1.5, np.inf])
def test_contradictions_are_proven_whatever_the_norm(p):
    tokens, queries, selected = planted(6, 4, 4)
    both = np.concatenate([tokens, tokens]), np.concatenate([queries, -queries]), np.concatenate([selected, selected])
    certificate = limit(both, p)
    assert certificate.status == "infeasible"
    assert certificate.direction is None
    assert certificate.face_dimension is certificate.unique is None
    combined = np.einsum("k,kij->ij", certificate.multipliers, rows_of(*both))
    assert np.linalg.norm(combined) <= 1e-12


@pytest.mark.parametrize("p", [1, 1.5, 4, np.inf])
def test_equal_scores_inside_a_set(p):
    tokens, queries, selected = planted(3, 5, 6)
    sets = [{int(s), (int(s) + 1) % 5} for s in selected]
    certificate = limit((tokens, queries, sets), p)
    assert certificate.status == "optimal"
    for x, z, pair in zip(tokens, queries, sets, strict=True):
        first, second = (x[list(pair)] @ certificate.direction @ z).tolist()
        assert first == pytest.approx(second, abs=1e-9)


@pytest.mark.parametrize("p", [1, 3, np.inf])
def test_joint_limits_lie_between_strict_and_relaxed_ones(p):
    tokens, queries, selected = planted(4, 4, 4)
    margins = np.array([1.0, 1.2, 1.4, 1.1])
    rhos = [joint_limit(tokens, queries, selected, margins, r, p, norm="schatten").margin for r in (0.0, 0.5, np.inf)]
    assert rhos[0] == pytest.approx(limit((tokens, queries, selected), p).margin, rel=1e-8)
    assert rhos[2] == limit((tokens, queries, selected), p, rhs=(margins == 1.0).astype(float)).margin
    assert rhos == sorted(rhos)


@pytest.mark.parametrize("p", [1, 1.3, 5, np.inf])
def test_more_rows_than_are_handled_at_once(monkeypatch, p):
    from whichtoken.margin import solve as solve_module

    problem = planted(10, 8, 6, seed=3)
    everything = limit(problem, p)
    monkeypatch.setattr(solve_module, "INTERIOR_PORTION", 10)
    assert limit(problem, p).margin == pytest.approx(everything.margin, rel=1e-8)


@st.composite
def problems(draw):
    """Small whole numbers: full of ties, repeated tokens and dependent constraints."""
    sequences, length, dim = draw(st.integers(1, 4)), draw(st.integers(2, 4)), draw(st.integers(1, 4))
    numbers = st.integers(-3, 3).map(float)
    tokens, queries = (draw(arrays(float, s, elements=numbers)) for s in ((sequences, length, dim), (sequences, dim)))
    return tokens, queries, np.array([draw(st.integers(0, length - 1)) for _ in range(sequences)])


@settings(max_examples=25)
@given(problem=problems(), p=st.sampled_from(EXPONENTS))
def test_degenerate_problems_are_solved_or_proven_unsolvable(problem, p):
    rows = rows_of(*problem)
    if len(rows) == 0:
        return
    flat = rows.reshape(len(rows), -1)
    solvable = linprog(np.zeros(flat.shape[1]), -flat, -np.ones(len(flat)), bounds=(None, None)).status == 0
    certificate = limit(problem, p)
    assert certificate.status == ("optimal" if solvable else "infeasible")
    if solvable:
        assert schatten(certificate.direction, p) == pytest.approx(1, abs=1e-12)
        assert np.min(flat @ certificate.direction.ravel()) >= certificate.margin * (1 - 1e-12)
        combined = (certificate.multipliers @ flat).reshape(rows.shape[1:])
        assert schatten(combined, dual_exponent(p)) <= certificate.dual_bound * (1 + 1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": 0.5}, r"p=0.5 must lie in \[1, inf\]"),
        ({"p": np.nan}, r"p=nan must lie in \[1, inf\]"),
        ({"norm": "shatten"}, "unknown norm 'shatten'; did you mean 'schatten'"),
        ({"tokens": np.full((3, 4, 2), np.inf)}, r"tokens\[0\] must hold finite numbers"),
        ({"tokens": np.ones((3, 1, 2)), "selected": [0, 0, 0]}, "nothing to separate"),
        ({"tokens": np.ones((3, 4, 2))}, "nothing to separate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_bad_input_is_one_sentence(change, message):
    tokens, queries, selected = planted(3, 4, 2)
    arguments = {"tokens": tokens, "queries": queries, "selected": selected, "norm": "schatten"} | change
    with pytest.raises(ValueError, match=message) as caught:
        key_query_svm(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("p", EXPONENTS)
def test_on_a_line_all_norms_are_one(p):
    tokens = np.array([[[2.0], [0.5]], [[3.0], [1.0]]])
    certificate = limit((tokens, np.ones((2, 1)), [0, 0]), p)
    assert (certificate.status, certificate.direction.tolist()) == ("optimal", [[1.0]])
    assert certificate.margin == pytest.approx(1.5, rel=1e-12)
    assert certificate.unique
