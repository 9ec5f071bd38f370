import cvxpy
import numpy as np
import pytest

from whichtoken.margin import joint_limit, key_query_svm, prompt_svm

PRECISE = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
PLANE = np.array([[(-2.7, 1.2), (1.4, 2.1), (1.3, -0.1)], [(0.4, -2.2), (-1.1, -0.4), (0.9, 0.1)]])
LABELS = np.array([1.0, -1.0])


@pytest.fixture(params=range(3))
def problem(request):
    rng = np.random.default_rng(request.param)
    tokens, queries = rng.standard_normal((5, 4, 4)), rng.standard_normal((5, 4))
    selected = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((4, 4)), queries).argmax(axis=1)
    return tokens, queries, selected, 1 + rng.random(5)


def reference_rho(tokens, queries, selected, margins, ratio, p) -> float:
    """The whole family as one cone program."""
    dim = tokens.shape[2]
    matrix, rho = cvxpy.Variable((dim, dim)), cvxpy.Variable()
    conditions = [cvxpy.pnorm(cvxpy.vec(matrix, order="C"), p) <= 1]
    for x, z, s, margin in zip(tokens, queries, selected, margins, strict=True):
        others = np.delete(np.arange(len(x)), s)
        gaps = (x[s] - x[others]) @ matrix @ z
        conditions += [gaps >= rho - ratio * (margin - margins.min()), gaps >= 0]
    problem = cvxpy.Problem(cvxpy.Maximize(rho), conditions)
    problem.solve(solver=cvxpy.CLARABEL, **PRECISE)
    return problem.value


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
def test_rho_equals_that_of_one_cone_program(problem, ratio, p):
    certificate = joint_limit(*problem, ratio, p)
    assert certificate.status == "optimal"
    assert certificate.margin <= certificate.dual_bound
    assert certificate.margin == pytest.approx(reference_rho(*problem, ratio, p), rel=1e-7)
    assert np.linalg.norm(certificate.direction.ravel(), p) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("p", [1.1, 2])
def test_ratio_zero_is_strict_and_ratio_infinity_relaxed(problem, p):
    tokens, queries, selected, margins = problem
    strict, relaxed = joint_limit(*problem, 0.0, p), joint_limit(*problem, np.inf, p)
    assert strict.margin == pytest.approx(key_query_svm(tokens, queries, selected, p).margin, rel=1e-12)
    demands = (margins == margins.min()).astype(float)
    assert relaxed.margin == key_query_svm(tokens, queries, selected, p, rhs=demands).margin
    rhos = [joint_limit(*problem, ratio, p).margin for ratio in (0.0, 0.03, 0.3, 3.0, 1e3)]
    assert rhos == sorted(rhos)
    assert rhos[-1] == pytest.approx(relaxed.margin, rel=1e-6)


def test_equal_label_margins_make_every_ratio_strict(problem):
    tokens, queries, selected, _ = problem
    strict = key_query_svm(tokens, queries, selected)
    for ratio in (0.0, 2.0, np.inf):
        certificate = joint_limit(tokens, queries, selected, 1 + 1e-10 * np.arange(5), ratio)
        assert certificate.margin == pytest.approx(strict.margin, rel=1e-12)


def test_a_family_whose_strict_member_is_infeasible_still_has_a_limit():
    """Sequence 1 asks for the opposite of sequence 2; sequence 2 has label margin to spare, up to rho = ratio * excess."""
    tokens = np.array([[(1.0, 0.0), (0.0, 0.0)], [(0.0, 0.0), (1.0, 0.0)], [(0.0, 1.0), (0.0, 0.0)]])
    queries, selected = np.array([(1.0, 0.0)] * 3), [0, 0, 0]
    assert key_query_svm(tokens, queries, selected).status == "infeasible"
    certificate = joint_limit(tokens, queries, selected, [1.5, 2.0, 1.0], ratio=0.4)
    # both opposite gaps are zero, so rho cannot exceed 0.4 * min(0.5, 1); the third sequence could do better
    assert certificate.status == "optimal"
    assert certificate.margin == pytest.approx(0.2, rel=1e-10)
    assert certificate.dual_bound == pytest.approx(0.2, rel=1e-10)
    assert joint_limit(tokens, queries, selected, [1.0, 1.0, 1.0], ratio=0.4).status == "infeasible"


@pytest.mark.parametrize(
    ("p", "selected", "decoder", "norm"),
    [
        (1.75, (1, 0), (0.0554, 0.9964), None),
        (2.0, (1, 0), (0.0555, 0.9985), 2.1744),
        (3.0, (0, 0), (-0.4235, 0.9740), None),
    ],
)
def test_decoder_limits_in_the_plane_have_every_sequence_as_support(p, selected, decoder, norm):
    chosen = LABELS[:, None] * PLANE[np.arange(2), selected]
    certificate = prompt_svm(np.stack([chosen, np.zeros_like(chosen)], axis=1), [0, 0], p)
    np.testing.assert_allclose(certificate.direction, decoder, atol=1e-4)
    margins = chosen @ certificate.direction
    assert norm is None or certificate.margin == pytest.approx(norm, abs=1e-4)
    strict = key_query_svm(PLANE, PLANE[:, 0], selected, p)
    for ratio in (0.0, 1.0, np.inf):
        limit = joint_limit(PLANE, PLANE[:, 0], selected, margins, ratio, p)
        np.testing.assert_allclose(limit.direction, strict.direction, atol=1e-7)


def test_in_the_plane_at_p_near_one_strict_and_relaxed_limits_differ():
    """Label margins 1 and 1.032: the second sequence does not support the decoder."""
    selected, p = (1, 0), 1.1
    chosen = LABELS[:, None] * PLANE[np.arange(2), selected]
    decoder = prompt_svm(np.stack([chosen, np.zeros_like(chosen)], axis=1), [0, 0], p)
    margins = chosen @ decoder.direction
    np.testing.assert_allclose(margins / margins.min(), [1, 1.032], atol=1e-3)
    strict, relaxed = (
        joint_limit(PLANE, PLANE[:, 0], selected, margins, r, p).direction.ravel() for r in (0.0, np.inf)
    )
    cosine = strict @ relaxed / np.linalg.norm(strict) / np.linalg.norm(relaxed)
    assert cosine == pytest.approx(0.261, abs=2e-3)
