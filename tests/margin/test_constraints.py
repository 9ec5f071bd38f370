import numpy as np
import pytest

from whichtoken.margin import joint_limit, key_query_svm, prompt_svm
from whichtoken.margin.constraints import DENSE, Constraints, selection_constraints

RNG = np.random.default_rng(0)
TOKENS, QUERIES, SELECTED = RNG.standard_normal((3, 4, 2)), RNG.standard_normal((3, 2)), [0, 1, 2]


@pytest.fixture(scope="module")
def large() -> Constraints:
    """Too large to be written out, with two equalities."""
    rng = np.random.default_rng(1)
    tokens = [rng.standard_normal((int(length), 30)) for length in rng.integers(5, 12, 25)]
    selected = [{0, 2}, {1, 3}, *([1] * 23)]
    constraints = selection_constraints(tokens, rng.standard_normal((25, 30)), selected, 1.0)
    assert len(constraints) * constraints.columns > DENSE
    return constraints


def test_structured_products_equal_dense_ones(large):
    rng = np.random.default_rng(2)
    rows = large.dense
    weights, multipliers, scale = (rng.standard_normal(k) for k in (large.columns, len(large), large.columns))
    np.testing.assert_allclose(large.apply(weights), rows @ weights, atol=1e-10)
    np.testing.assert_allclose(large.adjoint(multipliers), multipliers @ rows, atol=1e-10)
    np.testing.assert_allclose(large.gram(), rows @ rows.T, atol=1e-10)
    np.testing.assert_allclose(large.gram(scale), (rows * scale) @ rows.T, atol=1e-10)
    for p in (1, 1.3, 2, np.inf):
        np.testing.assert_allclose(large.norms(p), np.linalg.norm(rows, p, axis=1), rtol=1e-12)


def test_rows_come_in_the_order_sequence_then_token_and_equalities_last(large):
    inequalities = large.pairs[~large.free].tolist()
    assert inequalities == sorted(inequalities)
    assert large.pairs[large.free].tolist() == [[0, 2], [1, 3]]
    assert large.free[-2:].all()
    assert not large.free[:-2].any()


def test_projection_meets_the_equalities_and_moves_as_little_as_possible(large):
    weights = np.random.default_rng(3).standard_normal(large.columns)
    projected = large.project(weights)
    equalities = large.dense[large.free]
    np.testing.assert_allclose(equalities @ projected, 0, atol=1e-12)
    coefficients, *_ = np.linalg.lstsq(equalities.T, weights - projected, rcond=None)
    np.testing.assert_allclose(coefficients @ equalities, weights - projected, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.full((3, 4, 2), np.nan)}, "tokens"),
        ({"tokens": np.ones((3, 4))}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [np.ones((4, 2)), np.ones((4, 3)), np.ones((4, 2))]}, "tokens"),
        ({"selected": [0, 1]}, "selected"),
        ({"selected": [0, 1, 4]}, "selected"),
        ({"selected": [0, -1, 2]}, "selected"),
        ({"selected": [0.5, 1, 2]}, "selected"),
        ({"selected": [{0}, set(), {1}]}, "selected"),
        ({"selected": [range(4)] * 3}, "selected"),
        ({"tokens": np.ones((3, 4, 2))}, "selected"),
        ({"p": 0.5}, "p=0.5"),
        ({"p": np.nan}, "p=nan"),
        ({"rhs": -1.0}, "rhs"),
        ({"rhs": 0.0}, "rhs"),
        ({"rhs": [1.0, np.inf, 1.0]}, "rhs"),
        ({"rhs": [1.0, 1.0]}, "rhs"),
        ({"queries": np.ones((3, 3))}, "queries"),
        ({"queries": np.full((3, 2), np.inf)}, "queries"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_that_names_the_field(change, message):
    arguments = {"tokens": TOKENS, "queries": QUERIES, "selected": SELECTED} | change
    with pytest.raises(ValueError, match=message) as caught:
        key_query_svm(**arguments)
    assert "\n" not in str(caught.value)
    if "queries" not in change:
        del arguments["queries"]
        with pytest.raises(ValueError, match=message):
            prompt_svm(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": -1.0}, "ratio=-1.0"),
        ({"ratio": np.nan}, "ratio=nan"),
        ({"label_margins": [1.0, 2.0]}, "label_margins"),
        ({"label_margins": [1.0, 2.0, np.nan]}, "label_margins"),
        ({"p": 0.0}, "p=0.0"),
    ],
    ids=str,
)
def test_bad_input_of_the_joint_problem(change, message):
    arguments = {"label_margins": [1.0, 2.0, 3.0], "ratio": 1.0} | change
    with pytest.raises(ValueError, match=message):
        joint_limit(TOKENS, QUERIES, SELECTED, **arguments)


@pytest.mark.parametrize("written_out", [True, False])
def test_products_of_rows_with_scaled_and_turned_ones(monkeypatch, written_out):
    monkeypatch.setattr("whichtoken.margin.constraints.DENSE", 2**17 if written_out else 0)
    rng = np.random.default_rng(4)
    tokens, queries = rng.standard_normal((5, 4, 3)), rng.standard_normal((5, 3))
    rows = selection_constraints(tokens, queries, [0, 1, 2, 3, {0, 1}], 1.0)
    scale, mixed = rng.standard_normal((2, 3, 3))
    swapped, *definite = rng.standard_normal((3, 3, 3))
    swapped, (own, other) = swapped + swapped.T, (x @ x.T for x in definite)
    matrices = np.einsum("ki,kj->kij", rows.left, rows.right)
    turned = matrices.swapaxes(1, 2)
    gram = np.einsum("kij,lij->kl", matrices, scale * matrices + swapped * turned)
    np.testing.assert_allclose(rows.gram(scale.ravel(), swapped.ravel()), gram, atol=1e-12)
    product = np.einsum("kij,lij->kl", matrices, own @ matrices @ other + mixed @ turned @ mixed)
    np.testing.assert_allclose(rows.product_gram(own, mixed, other), product, atol=1e-12)
