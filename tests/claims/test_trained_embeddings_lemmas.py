"""Identities and elementary inequalities of the paper on trained embeddings, which need no statistics."""

import numpy as np
import pytest

from whichtoken.claims.trained_embeddings._starts import draw_start, selection_limit, take_first_step
from whichtoken.claims.trained_embeddings.proof_steps import Point as ProofPoint
from whichtoken.claims.trained_embeddings.proof_steps import ProofSteps
from whichtoken.claims.trained_embeddings.selection_conditions import Point
from whichtoken.datasets import RelevantTokens
from whichtoken.flows.cls import cls_flow
from whichtoken.lab import Rows
from whichtoken.lab.experiment import Row
from whichtoken.lab.verdicts import settle
from whichtoken.theory.trained_embeddings import attend, selection_sets
from whichtoken.theory.trained_embeddings.attention import selection_margin
from whichtoken.theory.trained_embeddings.lemmas import relevant_selection, smallest_rival


@pytest.fixture(params=[(True, 64), (False, 64), (True, 256)], ids=str)
def start(request):
    equal, dim = request.param
    return draw_start(Point(equal=equal, dim=dim), np.random.default_rng(3))


def derivative(start, direction):
    """-direction . gradient of p."""
    E, data = start.embeddings, start.data
    _, along_cls = attend(E @ start.cls, E @ start.value, data.counts, data.labels).gradients()
    return -float(direction @ (along_cls @ E))


def places(counts, x):
    """The tokens of a sequence, written out place by place."""
    part = slice(counts.indptr[x], counts.indptr[x + 1])
    return np.repeat(counts.indices[part], counts.data[part].astype(np.int64))


def sum_over_pairs(start, direction):
    """The right-hand side of Lemma 8, summed pair by pair."""
    E, counts, labels = start.embeddings, start.data.counts, start.data.labels
    total = 0.0
    for x, y in enumerate(labels):
        tokens = E[places(counts, x)]
        a = tokens @ start.cls
        q = np.exp(a - a.max()) / np.exp(a - a.max()).sum()
        gamma, a_hat = y * (tokens @ start.value), tokens @ direction
        slope = 1 / (1 + np.exp(q @ gamma))
        for i in range(len(tokens)):
            for j in range(i + 1, len(tokens)):
                total += slope * (a_hat[i] - a_hat[j]) * q[i] * q[j] * (gamma[i] - gamma[j]) / len(labels)
    return total


@pytest.mark.parametrize("seed", range(3))
def test_derivative_along_any_direction_is_the_sum_over_pairs(start, seed):
    direction = np.random.default_rng(seed).standard_normal(len(start.cls))
    assert derivative(start, direction) == pytest.approx(sum_over_pairs(start, direction), rel=1e-9)


def test_nothing_descends_along_a_direction_that_gives_all_tokens_one_score(start):
    E = start.embeddings
    direction = np.linalg.lstsq(E, np.ones(len(E)), rcond=None)[0]
    other = np.random.default_rng(0).standard_normal(len(direction)) * np.linalg.norm(direction) / len(direction) ** 0.5
    assert abs(derivative(start, direction)) < 1e-9 * abs(derivative(start, other))


def test_weights_keep_the_bounds_that_gaps_in_the_scores_give(start):
    scores = start.embeddings @ start.cls
    for x in range(len(start.data)):
        a = scores[places(start.data.counts, x)]
        q, gap = np.exp(a - a.max()) / np.exp(a - a.max()).sum(), a.max() - a
        below = gap > 0
        assert (q[~below] >= (1 - 1e-12) / len(a)).all()
        assert (q[below] <= (1 + 1e-12) / (1 + np.exp(gap[below]))).all()
        assert (q[below] >= (1 - 1e-12) * np.exp(-gap[below]) / len(a)).all()


def test_shortest_rival_is_found_by_an_exhaustive_search_and_some_constraint_is_tight(start):
    counts, labels = start.data.counts, start.data.labels
    relevant = relevant_selection(counts, labels)
    direction, limit = selection_limit(start.embeddings, counts, relevant)
    assert smallest_rival(start.embeddings, counts, labels).exact
    assert selection_margin(start.embeddings @ direction / limit.margin, counts, relevant) == pytest.approx(1, abs=1e-6)
    assert limit.gap < 1e-8


@pytest.mark.parametrize("equal", [True, False])
def test_flow_in_the_limit_only_descends_and_its_solution_selects_what_it_selects(equal):
    law = RelevantTokens(2, 2, 3, equal)
    data = law.sample(4, np.random.default_rng(1))
    start = take_first_step(data, 0, 4.0 * 8**2 * 2**2, "limit", np.random.default_rng(1))
    path = cls_flow(*start.arguments, arc_length=300.0)
    direction, limit = selection_limit(path.embeddings, path.counts, path.selected)
    assert np.diff(path.log_losses).max() <= 1e-9
    solution = start.embeddings @ direction / limit.margin
    assert (selection_sets(solution, data.counts, tie=1e-6) != path.selected).nnz == 0


@pytest.mark.parametrize(
    "broken", ["weights", "cls_gradient", "off_span", "solutions_apart", "over_bound", "slope_ratio"]
)
def test_one_run_that_breaks_a_step_of_a_proof_refutes_it(broken):
    found = ProofSteps().run(ProofPoint(dim=512), np.random.default_rng(0))

    def states(*measured):
        rows = Rows(Row(ProofPoint(dim=512), seed, "ok", "", each, 0.0, "0") for seed, each in enumerate(measured))
        return {verdict.code: verdict.state for verdict in settle(list(ProofSteps().judge(rows)))}

    assert set(states(found, found, found).values()) == {"agrees"}
    assert "disagrees" in states(found, found, found | {broken: 2.0}).values()
