"""Two nodes for many AdamW steps without gradient, and the schedule that says how many there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.theory.trained_embeddings.cls_training import (
    DECAY,
    NODE_1,
    NODE_2,
    WEIGHT_1,
    WEIGHT_2,
    adamw_rule,
    batch_schedule,
    fill_table,
)

BETAS, EPS = (0.9, 0.999), 1e-8


def one_by_one(rule, step, missed, own, root):
    """The decay and the multiple of m after the steps, from the recursion itself."""
    decay, moved = 1.0, np.zeros_like(root)
    for k in range(0 if own else 1, missed + 1):
        size = rule.sizes[step + k] * rule.beta1**k
        moved = rule.decay * moved + size / (rule.spreads[step + k] * rule.beta2 ** (k / 2) * root + rule.eps)
        decay *= rule.decay
    return decay, moved


@given(
    done=st.integers(600, 10_000),
    missed=st.integers(1, 400),
    own=st.booleans(),
    weight_decay=st.sampled_from([0.0, 0.01]),
    betas=st.sampled_from([BETAS, (0.5, 0.999), (0.9, 0.9999)]),
)
def test_two_nodes_reach_float32_rounding(done, missed, own, weight_decay, betas):
    rule = adamw_rule(done - 1, missed + 1, 1e-2, weight_decay, betas, EPS, np.float32)
    assert rule.quadrature_from <= 1
    table = np.empty((missed + 1, 7))
    fill_table(table, rule, 0, missed, own)
    root = 10.0 ** np.linspace(-11, -1, 41)  # of the running mean of squares
    decay, moved = one_by_one(rule, 0, missed, own, root)
    row = table[missed]
    ours = row[WEIGHT_1] / (row[NODE_1] * root + EPS) + row[WEIGHT_2] / (row[NODE_2] * root + EPS)
    assert row[DECAY] == pytest.approx(decay, rel=1e-12)
    np.testing.assert_allclose(ours, moved, rtol=6e-8)  # half a unit in the last place of float32


def test_the_start_of_an_epoch_has_no_step_of_its_own():
    rule = adamw_rule(5000, 9, 1e-2, 1e-4, BETAS, EPS, np.float32)
    table = np.empty((10, 7))
    fill_table(table, rule, -1, 9, False)
    assert table[0, WEIGHT_1] == table[0, WEIGHT_2] == 0
    root = np.array([1e-8, 1e-5])
    decay, moved = one_by_one(rule, -1, 9, False, root)
    ours = table[9, WEIGHT_1] / (table[9, NODE_1] * root + EPS) + table[9, WEIGHT_2] / (table[9, NODE_2] * root + EPS)
    np.testing.assert_allclose(ours, moved, rtol=6e-8)
    assert table[9, DECAY] == pytest.approx(decay, rel=1e-14)


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.999), (0.99, 0.999), (0.8, 0.99)])
def test_betas_for_which_two_nodes_are_too_few_are_replayed(betas):
    missed, root = 100, 10.0 ** np.linspace(-11, -1, 41)
    rule = adamw_rule(999, missed + 1, 1e-2, 0.01, betas, EPS, np.float32)
    table = np.empty((missed + 1, 7))
    fill_table(table, rule, 0, missed, True)
    ours = sum(table[missed, w] / (table[missed, s] * root + EPS) for w, s in ((WEIGHT_1, NODE_1), (WEIGHT_2, NODE_2)))
    assert np.abs(ours / one_by_one(rule, 0, missed, True, root)[1] - 1).max() > 6e-8
    assert rule.quadrature_from == missed + 1


def test_early_steps_and_double_precision_are_replayed():
    assert adamw_rule(0, 1000, 1e-2, 0, BETAS, EPS, np.float32).quadrature_from == 600
    assert adamw_rule(700, 1000, 1e-2, 0, BETAS, EPS, np.float32).quadrature_from == 0
    assert adamw_rule(700, 1000, 1e-2, 0, BETAS, EPS, np.float64).quadrature_from == 1000


@given(seed=st.integers(0, 2**32 - 1), batch_size=st.integers(1, 9))
def test_schedule_counts_the_steps_between_touches(seed, batch_size):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.3, size=(17, 12)) > 0
    indptr = np.append(0, counts.sum(axis=1).cumsum()).astype(np.int32)
    indices = np.nonzero(counts)[1].astype(np.int32)
    order = rng.permutation(17)
    schedule = batch_schedule(indptr, indices, 12, order, batch_size)
    steps = len(schedule.starts) - 1
    touched = np.array([counts[order[t * batch_size : (t + 1) * batch_size]].any(axis=0) for t in range(steps)])
    for token in range(12):
        times = np.flatnonzero(touched[:, token])
        assert schedule.before[token] == (times[0] if len(times) else steps)
        places = [
            t for t in range(steps) for s in schedule.tokens[schedule.bounds[t] : schedule.bounds[t + 1]] if s == token
        ]
        assert places == times.tolist()
        chosen = schedule.tokens == token
        assert schedule.missed[chosen].tolist() == (np.diff(np.append(times, steps)) - 1).tolist()
        assert schedule.unseen[chosen].tolist() == [t == 0 or not touched[t - 1, token] for t in times]
