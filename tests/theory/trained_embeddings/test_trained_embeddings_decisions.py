"""Minimal deletions and certificates against brute force and random attacks."""

from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.theory.trained_embeddings.decisions import OUT_OF_REACH, certify, minimal_deletions


def decide(row, scores, values, bias, amount=lambda c: c, log_null=-np.inf):
    """The decision of the softmax model itself, as it is written."""
    kept = np.flatnonzero(row)
    if not kept.size:
        return 1 if bias > 0 else -1
    weights = amount(row[kept]) * np.exp(scores[kept])
    return 1 if weights @ values[kept] / (weights.sum() + np.exp(log_null)) + bias > 0 else -1


def problem(seed, tokens, documents=1, most=3):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most + 1, (documents, tokens))
    shift = rng.choice([-1.0, 0.0, 1.0])
    return counts, rng.standard_normal(tokens), rng.standard_normal(tokens) + shift, float(rng.choice([-0.3, 0.0, 0.3]))


@pytest.mark.parametrize("log_null", [-np.inf, -1.0, 1.5])
@pytest.mark.parametrize("sublinear", [False, True])
def test_deletions_equal_brute_force_on_500_documents(sublinear, log_null):
    amount = (lambda c: 1 + np.log(c)) if sublinear else (lambda c: c)
    for seed in range(500):
        counts, scores, values, bias = problem(seed, tokens=1 + seed % 7)
        row = counts[0]
        given_amounts = amount(row[row > 0].astype(float))
        flips = minimal_deletions(counts, scores, values, bias, given_amounts if sublinear else None, log_null)
        decision = decide(row, scores, values, bias, amount, log_null)
        assert flips.decisions[0] == decision
        present = np.flatnonzero(row)
        fewest = OUT_OF_REACH
        for size in range(1, len(present) + 1):
            sets = (np.where(np.isin(np.arange(len(row)), gone), 0, row) for gone in combinations(present, size))
            if any(decide(rest, scores, values, bias, amount, log_null) != decision for rest in sets):
                fewest = size
                break
        assert flips.sizes[0] == fewest
        if fewest != OUT_OF_REACH:
            rest = row.copy()
            rest[flips.of(0)] = 0
            assert len(flips.of(0)) == fewest
            assert decide(rest, scores, values, bias, amount, log_null) != decision


@given(seed=st.integers(0, 10_000), tokens=st.integers(1, 4), log_null=st.sampled_from([-np.inf, -1.0, 1.5]))
def test_certificates_equal_brute_force(seed, tokens, log_null):
    counts, scores, values, bias = problem(seed, tokens, most=2)
    row = counts[0]
    certificate = certify(counts, scores, values, bias, log_null=log_null)
    decision = decide(row, scores, values, bias, log_null=log_null)
    bag = [s for s in range(tokens) for _ in range(row[s])]

    def flips(removed, added):
        changed = row.copy()
        np.subtract.at(changed, list(removed), 1)
        np.add.at(changed, list(added), 1)
        return decide(changed, scores, values, bias, log_null=log_null) != decision

    def fewest(kinds, limit):
        for size in range(1, limit + 1):
            for out, into in kinds(size):
                for removed in combinations(bag, out):
                    for added in combinations_with_replacement(range(tokens), into):
                        if flips(removed, added):
                            return size
        return None

    def check(found, kinds, limit):
        brute = fewest(kinds, limit)
        assert found == brute or (brute is None and (found == OUT_OF_REACH or found > limit))

    check(certificate.deletions[0], lambda k: [(k, 0)], len(bag))
    check(certificate.insertions[0], lambda k: [(0, k)], 4)
    check(certificate.substitutions[0], lambda k: [(k, k)] if k <= len(bag) else [], len(bag))
    mixtures = lambda k: [(o, i) for o in range(min(k, len(bag)) + 1) for i in range(k + 1) if max(o, i) == k]  # noqa: E731
    check(certificate.edits[0], mixtures, 4)


def test_no_random_attack_beats_a_certificate_with_concave_amounts():
    rng = np.random.default_rng(0)
    for seed in range(20):
        counts, scores, values, bias = problem(seed, tokens=12, most=4)
        amount = lambda c: 1 + np.log(c)  # noqa: E731
        row = counts[0]
        certificate = certify(counts, scores, values, bias, amount(row[row > 0].astype(float)))
        decision = decide(row, scores, values, bias, amount)
        fewer = int(certificate.edits[0]) - 1 if certificate.edits[0] > 0 else 30
        for _ in range(300):
            changed = row.copy()
            for _ in range(rng.integers(0, fewer + 1)):
                present = np.flatnonzero(changed)
                if present.size and rng.random() < 0.7:
                    changed[rng.choice(present)] -= 1
                if rng.random() < 0.7:
                    changed[rng.integers(12)] += 1
            assert decide(changed, scores, values, bias, amount) == decision


def test_many_documents_are_the_same_as_one_by_one():
    counts, scores, values, bias = problem(3, tokens=40, documents=60)
    together, certificate = minimal_deletions(counts, scores, values, bias), certify(counts, scores, values, bias)
    for i, row in enumerate(counts):
        alone = minimal_deletions(row[None], scores, values, bias)
        np.testing.assert_array_equal(together.of(i), alone.of(0))
        assert together.sizes[i] == alone.sizes[0]
        assert certificate.edits[i] == certify(row[None], scores, values, bias).edits[0]


def test_scores_that_underflow_beside_the_rest_of_the_vocabulary_still_decide():
    counts, values = np.array([[3, 1, 0], [1, 3, 0]]), np.array([1.0, -2.0, 1.0])
    scores, raised = np.array([-800.0, -801.0, 0.0]), np.array([0.0, -1.0, 0.0])  # the same softmax in both documents
    flips, certificate = minimal_deletions(counts, scores, values), certify(counts, scores, values)
    expected = minimal_deletions(counts, raised, values)
    np.testing.assert_array_equal(flips.decisions, [1, -1])
    np.testing.assert_array_equal(flips.tokens, expected.tokens)
    np.testing.assert_array_equal(flips.sizes, expected.sizes)
    np.testing.assert_array_equal(certificate.decisions, [1, -1])
    np.testing.assert_array_equal(certificate.deletions, certify(counts, raised, values).deletions)
    # 3 - 2/e against -2/e a token: four; the one of score 0 outweighs any document at once
    np.testing.assert_array_equal(certificate.insertions, [4, 1])


@pytest.mark.parametrize("gap", [20.0, 30.0, 500.0])
def test_what_a_dominant_token_leaves_behind_is_no_rounding(gap):
    flips = minimal_deletions([[1, 1]], [0.0, -gap], [-1.0, 1.0])
    assert flips.decisions[0] == -1
    np.testing.assert_array_equal(flips.of(0), [0])
    assert certify([[1, 1]], [0.0, -gap], [-1.0, 1.0]).deletions[0] == 1


def test_a_vote_of_no_weight_needs_more_insertions_than_can_be_counted():
    certificate = certify([[0, 1], [0, 0]], [-70.0, 0.0], [-1.0, 1.0])
    np.testing.assert_array_equal(certificate.insertions, [2**62, 1])


def test_an_empty_document_has_the_default_decision():
    for bias, decision in ((0.5, 1), (0.0, -1), (-0.5, -1)):
        flips = minimal_deletions(np.zeros((1, 2), int), np.zeros(2), np.array([1.0, -1.0]), bias)
        assert flips.decisions[0] == decision
        assert flips.sizes[0] == OUT_OF_REACH
    assert certify(np.zeros((1, 2), int), np.zeros(2), np.array([1.0, -1.0]), 0.0).insertions[0] == 1


def test_wrong_sizes_are_one_sentence():
    with pytest.raises(ValueError, match="must name all 3 tokens"):
        minimal_deletions(np.eye(3), np.zeros(2), np.zeros(2))


@pytest.mark.parametrize("log_null", [-np.inf, 0.3])
def test_a_count_is_as_many_tokens_of_their_own(log_null):
    rng = np.random.default_rng(5)
    for _ in range(200):
        counts = rng.integers(0, 6, size=rng.integers(1, 6))
        scores, values, bias = rng.normal(size=len(counts)), rng.normal(size=len(counts)), float(rng.normal())
        single = np.repeat(np.arange(len(counts)), counts)
        present = np.concatenate(
            [single, np.arange(len(counts))]
        )  # every token can be inserted, also one that is absent
        alone = (np.arange(len(present)) < len(single)).astype(int)
        ours = certify([counts], scores, values, bias, log_null=log_null)
        theirs = certify([alone], scores[present], values[present], bias, log_null=log_null)
        for kind in ("decisions", "deletions", "insertions", "substitutions", "edits"):
            assert getattr(ours, kind) == getattr(theirs, kind), (kind, counts, scores, values, bias)


def test_enormous_counts_cost_nothing_and_are_exact():
    proof = certify(counts=[[3 * 10**10, 10**10]], scores=[0.0, 0.0], values=[1.0, -1.0])
    assert proof.deletions.tolist() == [2 * 10**10]
    assert proof.substitutions.tolist() == [10**10]
    with pytest.raises(ValueError, match=r"counts from 1e\+300 to 1e\+300 must be at least 0, and together at most"):
        certify(counts=[[1e300, 0.0]], scores=[0.0, 0.0], values=[1.0, -1.0])
