import numpy as np
import pytest
from scipy.optimize import NonlinearConstraint, minimize
from scipy.special import softmax

from whichtoken.datasets import AttentionTokens
from whichtoken.flows.regularization_path import joint_regularization_path
from whichtoken.margin import joint_limit, prompt_svm
from whichtoken.norms import power_norm


def problem(seed, sequences=3, length=3, dim=3):
    return AttentionTokens(sequences, length, dim).sample(np.random.default_rng(seed))


def path(case, radii, **options):
    return joint_regularization_path(case, radii, rng=np.random.default_rng(0), **{"p": 2.0, "starts": 2} | options)


def mean_loss(case, weights, decoder, loss):
    attention = softmax(np.einsum("ntd,de,ne->nt", case.tokens, weights, case.queries), axis=1)
    margins = case.labels * np.einsum("nt,ntd,d->n", attention, case.tokens, decoder)
    return np.mean(np.logaddexp(0.0, -margins) if loss == "logistic" else np.exp(-margins))


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_minimizers_have_unit_norm_and_the_loss_they_say(p, loss):
    case = problem(1)
    found = path(case, [2.0, 20.0], p=p, ratio=0.5, loss=loss)
    for size, weights, decoder, log_loss in zip(
        found.radii, found.directions, found.decoders, found.log_loss, strict=True
    ):
        assert power_norm(weights, p) == pytest.approx(1.0, rel=1e-12)
        assert power_norm(decoder, p) == pytest.approx(1.0, rel=1e-12)
        assert log_loss == pytest.approx(np.log(mean_loss(case, size * weights, 0.5 * size * decoder, loss)), rel=1e-9)
    assert found.stationarity.max() < 1e-10


def test_no_constrained_minimizer_is_better():
    """SLSQP in W and v at once, from twenty random starts."""
    case, radius, ratio = problem(2), 3.0, 2.0
    rng = np.random.default_rng(1)
    inside = NonlinearConstraint(
        lambda x: [np.sum(x[:9] ** 2), np.sum(x[9:] ** 2)], 0.0, [radius**2, (ratio * radius) ** 2]
    )
    reached = [
        minimize(
            lambda x: np.log(mean_loss(case, x[:9].reshape(3, 3), x[9:], "logistic")),
            rng.standard_normal(12),
            method="SLSQP",
            constraints=inside,
            options={"maxiter": 500, "ftol": 1e-12},
        ).fun
        for _ in range(20)
    ]
    found = path(case, [radius], ratio=ratio, starts=6)
    assert found.log_loss[0] == pytest.approx(min(reached), abs=1e-6)


def test_far_out_no_start_is_left_behind_on_other_tokens():
    """W that settled on a token which v does not prefer sees no slope, and would stay at half of this |log L|."""
    found = path(problem(4, 3, 4, 3), [10.0, 100.0, 1000.0], p=3.0, ratio=0.5, starts=1)
    assert found.stationarity.max() < 1e-8
    assert found.log_loss[-1] == pytest.approx(-476.81, abs=0.01)


def cosine(one, other):
    return np.vdot(one, other) / np.linalg.norm(one) / np.linalg.norm(other)


@pytest.mark.parametrize("ratio", [0.2, 0.5])
def test_path_leads_to_the_member_of_the_family_at_its_ratio(ratio):
    case = problem(1, 6, 5, 8)
    found = path(case, [10.0, 100.0, 1000.0], ratio=ratio, starts=1)
    selected = found.selected[-1]
    chosen = case.labels[:, None] * case.tokens[np.arange(6), selected]
    classifier = prompt_svm(np.stack([chosen, np.zeros_like(chosen)], axis=1), [0] * 6)
    family, strict, relaxed = (
        joint_limit(case.tokens, case.queries, selected, chosen @ classifier.direction, r, 2.0).direction
        for r in (ratio, 0.0, np.inf)
    )
    for limit, followed in ((family, found.directions), (classifier.direction, found.decoders)):
        far, farther = (1.0 - cosine(limit, each) for each in followed[1:])
        assert farther < 5e-5
        assert farther < far / 30  # the distance falls as R**-2
    ends = [1.0 - cosine(end, found.directions[-1]) for end in (strict, relaxed)]
    assert 1.0 - cosine(family, found.directions[-1]) < 0.1 * min(ends)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": 0.0}, r"^ratio=0.0 must be a finite positive number$"),
        ({"ratio": np.inf}, r"^ratio=inf must be a finite positive number$"),
        ({"loss": "linear"}, r"^loss='linear' must be logistic or exponential$"),
        ({"radii": [-1.0]}, r"^radii=\[-1.0\] must be finite positive numbers"),
        ({"starts": 0}, r"^starts=0 must be at least 1$"),
        ({"p": 1.0}, r"^p=1.0 must be a finite number above 1$"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        path(**{"case": problem(1), "radii": [1.0], **change})
