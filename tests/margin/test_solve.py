"""Problems with more rows than are handled at once, and proofs that there is no solution."""

import numpy as np
import pytest

from whichtoken.margin import prompt_svm
from whichtoken.margin import solve as solve_module


def tokens_and_choice(sequences: int, length: int, dim: int, feasible: bool, seed: int = 0):
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((sequences, length, dim))
    planted = (tokens @ rng.standard_normal(dim)).argmax(axis=1)
    return tokens, planted if feasible else rng.integers(0, length, sequences)


@pytest.mark.parametrize("p", [1.2, 2, 4])
def test_working_set_gives_the_answer_of_all_rows(monkeypatch, p):
    tokens, selected = tokens_and_choice(40, 10, 15, feasible=True)
    everything = prompt_svm(tokens, selected, p)
    monkeypatch.setattr(solve_module, "EUCLIDEAN_PORTION", 12)
    monkeypatch.setattr(solve_module, "INTERIOR_PORTION", 12)
    in_portions = prompt_svm(tokens, selected, p)
    assert in_portions.status == everything.status == "optimal"
    assert in_portions.margin == pytest.approx(everything.margin, rel=1e-10)
    np.testing.assert_array_equal(in_portions.support, everything.support)


@pytest.mark.parametrize("p", [1, 1.5, 2, np.inf])
@pytest.mark.parametrize("size", [(20, 6, 8), (60, 12, 30)])
def test_random_selection_has_a_farkas_vector(size, p):
    tokens, selected = tokens_and_choice(*size, feasible=False)
    certificate = prompt_svm(tokens, selected, p)
    assert certificate.status == "infeasible"
    rows = np.array([tokens[i, selected[i]] - tokens[i, t] for i, t in certificate.pairs])
    assert np.linalg.norm(certificate.multipliers @ rows) <= 1e-12 * np.linalg.norm(rows, axis=1).max()
    assert certificate.multipliers.min() >= 0


def test_two_sequences_that_contradict_each_other_share_the_blame():
    tokens = np.array([[(2.0, 1.0), (0.0, 0.0), (2.0, 0.0)], [(0.0, 0.0), (1.0, 0.5), (0.0, -1.0)]])
    certificate = prompt_svm(tokens, [0, 0])
    assert certificate.status == "infeasible"
    assert certificate.pairs[certificate.support].tolist() == [[0, 1], [1, 1]]
    np.testing.assert_allclose(certificate.multipliers[certificate.support], [1 / 3, 2 / 3], rtol=1e-9)


def test_a_set_whose_equality_contradicts_an_inequality_is_infeasible():
    tokens = [np.array([(1.0, 0.0), (0.0, 1.0)]), np.array([(1.0, 0.0), (0.0, 1.0), (0.5, -3.0)])]
    certificate = prompt_svm(tokens, [{0}, {0, 1}])
    assert certificate.status == "infeasible"
    rows = np.array([(1.0, -1.0), (0.5, 3.0)])
    combined = certificate.multipliers @ rows + certificate.equality_multipliers @ np.array([(1.0, -1.0)])
    np.testing.assert_allclose(combined, 0, atol=1e-12)


def test_repeated_sequences_change_nothing():
    tokens, selected = tokens_and_choice(6, 5, 6, feasible=True)
    for p in (1, 1.1, 2, 3, np.inf):
        once, thrice = prompt_svm(tokens, selected, p), prompt_svm(np.tile(tokens, (3, 1, 1)), np.tile(selected, 3), p)
        assert thrice.status == "optimal"
        assert thrice.margin == pytest.approx(once.margin, rel=1e-8)


def test_the_solver_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, whichtoken.margin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
