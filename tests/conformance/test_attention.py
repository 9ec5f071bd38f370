"""What everything that computes softmax attention passes; a new head adds one row to `HEADS` in `attention_heads.py`.

A row is handed scores and values of ragged sequences and gives back outputs and slopes. The measure is the textbook form
with so many digits that it can afford to lose thousands. Errors are relative to what a token contributes: a slope of
1e-200 has to be right to 12 digits, too.
"""

from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from attention_heads import HEADS, Case

SPREADS = (40.0, 800.0, 1e4)
SMALLEST = 1e-290  # below it digits go one by one, whoever computes


def random_case(seed=0, lengths=(5, 3, 1, 7), spread=3.0, amounts=True, offsets=0.0):
    """Sequences whose scores differ by about `spread`; `offsets` shifts whole sequences against each other."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    size = int(starts[-1])
    scores = np.round(rng.uniform(-spread, 0.0, size) * 1024) / 1024  # so that a shift by a whole number is exact
    scores += np.repeat(offsets * np.arange(len(lengths)), lengths)
    labels = np.where(rng.random(len(lengths)) < 0.5, -1, 1)
    counts = rng.integers(1, 4, size) if amounts else None
    return Case(scores, rng.standard_normal(size), starts, counts, labels, rng.standard_normal(len(lengths)))


def suited(row, case):
    """The case within what the row can take: sequences of one length, without amounts or without empty sequences."""
    if not row.amounts:
        case = case._replace(amounts=None)
    if not row.ragged:
        length = max(3, int(np.diff(case.starts).min(initial=99, where=np.diff(case.starts) > 0)))
        kept = [i for i, size in enumerate(np.diff(case.starts)) if size >= length]
        places = np.concatenate([np.arange(case.starts[i], case.starts[i] + length) for i in kept])
        counts = None if case.amounts is None else case.amounts[places]
        starts = np.arange(len(kept) + 1) * length
        case = Case(case.scores[places], case.values[places], starts, counts, case.labels[kept], case.upstream[kept])
    return case


def reference(case, loss):
    """Outputs, slopes in scores and values, and the size of what each slope is made of."""
    counts = None if case.amounts is None else tuple(case.amounts.tolist())
    whole = (tuple(part.tolist()) for part in (case.scores, case.values, case.starts))
    found = textbook(*whole, counts, tuple(case.labels.tolist()), tuple(case.upstream.tolist()), loss)
    return tuple(np.array(part) for part in found)


@cache
def textbook(*arguments):
    """The same, in the textbook form; all rows share the few cases that there are."""
    case, loss = Case(*arguments[:-1]), arguments[-1]
    outputs, d_scores, d_values, sizes = [], [], [], []
    spread = max(case.scores, default=0.0) - min(case.scores, default=0.0)
    with mpmath.workdps(
        60 + int(0.45 * spread)
    ):  # what is left of a difference is e^-spread: it takes 0.43 digits per unit
        count = len(case.labels)
        for i, label in enumerate(case.labels):
            part = slice(case.starts[i], case.starts[i + 1])
            values = [mpmath.mpf(float(g)) for g in case.values[part]]
            amounts = [1] * len(values) if case.amounts is None else [mpmath.mpf(float(c)) for c in case.amounts[part]]
            scores = [mpmath.mpf(float(a)) for a in case.scores[part]]
            shares = [c * mpmath.exp(a) for a, c in zip(scores, amounts, strict=True)]
            total = mpmath.fsum(shares) or mpmath.mpf(1)
            weights = [share / total for share in shares]
            output = mpmath.fsum(q * g for q, g in zip(weights, values, strict=True))
            margin = int(label) * output
            slope = {
                "given": mpmath.mpf(float(case.upstream[i])),
                "linear": -mpmath.mpf(int(label)) / count,
                "logistic": -int(label) / (1 + mpmath.exp(margin)) / count,
            }[loss]
            best = values[weights.index(max(weights))] if values else 0
            spread = mpmath.fsum(q * abs(g - best) for q, g in zip(weights, values, strict=True))
            outputs.append(float(output))
            d_scores += [float(slope * q * (g - output)) for q, g in zip(weights, values, strict=True)]
            d_values += [float(slope * q) for q in weights]
            sizes += [float(abs(slope) * q * (abs(g - best) + spread)) for q, g in zip(weights, values, strict=True)]
    return outputs, d_scores, d_values, sizes


def check(row, case):
    """Compare with the reference."""
    found, (outputs, d_scores, d_values, sizes) = row.run(case), reference(case, row.loss)
    largest = max(1.0, np.abs(case.values).max(initial=0.0))
    close(found.outputs, outputs, 1e-14 * largest)
    if found.scores is not None:
        error = np.abs(found.scores - d_scores)
        assert (error <= 2e-12 * sizes + SMALLEST).all(), (found.scores, d_scores)
    if found.values is not None:
        np.testing.assert_allclose(found.values, d_values, rtol=2e-12, atol=SMALLEST)


def close(one, other, error):
    if one is not None:
        np.testing.assert_allclose(one, other, rtol=0, atol=error)


def every_row(test):
    rows = [pytest.param(row, id=row.name, marks=row.marks(test.__name__)) for row in HEADS]
    return pytest.mark.parametrize("row", rows)(test)


@every_row
def test_right_to_the_last_digits(row):
    check(row, suited(row, random_case()))


@every_row
def test_as_autograd_through_the_textbook_form(row):
    case = suited(row, random_case(1))
    found = row.run(case)
    scores, values = (torch.tensor(part, requires_grad=True) for part in (case.scores, case.values))
    amounts = torch.ones(len(scores)) if case.amounts is None else torch.tensor(case.amounts, dtype=torch.float64)
    parts = [slice(*ends) for ends in zip(case.starts[:-1], case.starts[1:], strict=True)]
    logits = scores + amounts.log()
    outputs = torch.stack([(torch.softmax(logits[part], 0) * values[part]).sum() for part in parts])
    labels = torch.tensor(case.labels)
    loss = {
        "given": (outputs * torch.tensor(case.upstream)).sum(),
        "linear": -(labels * outputs).mean(),
        "logistic": torch.nn.functional.softplus(-labels * outputs).mean(),
    }[row.loss]
    loss.backward()
    close(found.outputs, outputs.detach().numpy(), 1e-13)
    if found.scores is not None:
        np.testing.assert_allclose(found.scores, scores.grad.numpy(), rtol=1e-10, atol=1e-14)
    if found.values is not None:
        np.testing.assert_allclose(found.values, values.grad.numpy(), rtol=1e-10, atol=1e-14)


@every_row
@pytest.mark.parametrize("spread", SPREADS)
def test_saturated(row, spread):
    for seed in range(2):
        check(row, suited(row, random_case(seed, spread=spread)))


@every_row
@pytest.mark.parametrize("spread", SPREADS)
def test_far_from_other_sequences(row, spread):
    """A document whose tokens all have low scores does not know of the high scores of others."""
    check(row, suited(row, random_case(2, lengths=(4, 5, 4), offsets=spread)))


@every_row
def test_empty_sequences_and_single_tokens(row):
    if not row.empty:
        pytest.skip("refuses empty sequences")
    check(row, suited(row, random_case(3, lengths=(0, 1, 4, 0, 1, 5, 0))))


@every_row
def test_order_of_the_tokens_does_not_matter(row):
    case = suited(row, random_case(4, spread=40.0))
    rng = np.random.default_rng(0)
    parts = [np.arange(*ends) for ends in zip(case.starts[:-1], case.starts[1:], strict=True)]
    order = np.concatenate([rng.permutation(part) for part in parts])
    counts = None if case.amounts is None else case.amounts[order]
    one, other = (
        row.run(case),
        row.run(case._replace(scores=case.scores[order], values=case.values[order], amounts=counts)),
    )
    close(other.outputs, one.outputs, 1e-14)
    if one.scores is not None:
        np.testing.assert_allclose(other.scores, one.scores[order], rtol=1e-9, atol=1e-290)


@every_row
def test_an_amount_of_two_is_two_tokens(row):
    case = suited(row, random_case(5, spread=10.0, amounts=False))
    doubled = np.concatenate(
        [np.repeat(np.arange(*ends), 2) for ends in zip(case.starts[:-1], case.starts[1:], strict=True)]
    )
    doubled = doubled[np.isin(doubled % 3, (0, 1)) | (np.arange(len(doubled)) % 2 == 0)]  # every third token only once
    repeats = np.bincount(doubled, minlength=len(case.scores))
    if not row.ragged:  # all tokens twice: the output stays as it is
        doubled, repeats = np.repeat(np.arange(len(case.scores)), 2), np.full(len(case.scores), 2)
    starts = np.concatenate([[0], np.cumsum(repeats)])[case.starts]
    copies = row.run(case._replace(scores=case.scores[doubled], values=case.values[doubled], starts=starts))
    if row.amounts:
        once = row.run(case._replace(amounts=repeats))
    elif not row.ragged:
        once = row.run(case)
    else:
        pytest.skip("knows no amounts")
    close(copies.outputs, once.outputs, 1e-14)
    if once.scores is not None:
        np.testing.assert_allclose(np.bincount(doubled, copies.scores), once.scores, rtol=1e-11, atol=1e-290)


@every_row
def test_a_shift_of_all_scores_changes_nothing(row):
    case = suited(row, random_case(6))
    one, other = row.run(case), row.run(case._replace(scores=case.scores + 2.0**20))
    close(other.outputs, one.outputs, 1e-14)


@pytest.mark.slow
@every_row
@pytest.mark.parametrize("spread", [3.0, *SPREADS])
def test_single_precision(row, spread):
    """With numbers of single precision the result is right to single precision, in every slope."""
    if not row.single:
        pytest.skip("computes in double precision only")
    case = suited(row, random_case(7, spread=spread))
    single = case._replace(scores=case.scores.astype(np.float32), values=case.values.astype(np.float32))
    found, (outputs, d_scores, d_values, sizes) = row.run(single), reference(single, row.loss)
    np.testing.assert_allclose(found.outputs, outputs, rtol=0, atol=4e-7 * np.abs(single.values).max())
    if found.scores is not None:
        assert (np.abs(found.scores - d_scores) <= 1e-6 * sizes + 1e-37).all()
        np.testing.assert_allclose(found.values, d_values, rtol=1e-6, atol=1e-37)
