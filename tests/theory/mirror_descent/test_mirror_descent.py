import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichtoken.norms import power_norm
from whichtoken.theory import mirror_descent

EXPONENTS = [1.05, 1.1, 1.75, 2.0, 3.0, 10.0]


def exact_divergence(limit, iterate, p):
    """D_p from its definition with 80 digits."""
    with mpmath.workdps(80):
        unit = []
        for vector in (limit, iterate):
            entries = [mpmath.mpf(float(x)) for x in vector]
            size = mpmath.fsum(abs(x) ** p for x in entries) ** (1 / mpmath.mpf(p))
            unit.append([x / size for x in entries])
        return float(
            mpmath.fsum(
                abs(a) ** p / p - abs(b) ** p / p - mpmath.sign(b) * abs(b) ** (p - 1) * (a - b)
                for a, b in zip(*unit, strict=True)
            )
        )


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("distance", [1.0, 1e-1, 1e-2, 1e-4, 1e-8, 1e-12])
def test_divergence_keeps_its_digits_however_small_it_is(p, distance):
    rng = np.random.default_rng(0)
    iterate = rng.standard_normal(30)
    limit = iterate * (1.0 + distance * rng.standard_normal(30))
    exact = exact_divergence(limit, iterate, p)
    # dividing by the norms moves every entry by about 1e-16, which is all that may be lost
    assert mirror_descent.directional_divergence(limit, iterate, p) == pytest.approx(
        exact, rel=1e-12 + 2e-15 / distance
    )


@pytest.mark.parametrize("p", EXPONENTS)
def test_divergence_of_far_and_partly_zero_vectors(p):
    rng = np.random.default_rng(1)
    limit, iterate = rng.standard_normal((2, 30))
    limit[:10] = 0.0
    iterate[5:15] = 0.0
    exact = exact_divergence(limit, iterate, p)
    assert mirror_descent.directional_divergence(limit, iterate, p) == pytest.approx(exact, rel=1e-12)


def test_divergence_is_one_minus_cosine_for_p_2():
    a, b = np.random.default_rng(2).standard_normal((2, 4, 5))
    cosine = np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)
    assert mirror_descent.directional_divergence(a, b, 2.0) == pytest.approx(1.0 - cosine, rel=1e-13)


def test_divergence_takes_the_limit_first():
    # D_p(a, b) = 1 - <a, grad psi(b)> on unit vectors, by hand for p = 3
    assert mirror_descent.directional_divergence([1, 0], [1, 1], 3.0) == pytest.approx(1 - 2 ** (-2 / 3), rel=1e-14)
    assert mirror_descent.directional_divergence([1, 1], [1, 0], 3.0) == pytest.approx(1 - 2 ** (-1 / 3), rel=1e-14)


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6).filter(lambda x: max(map(abs, x)) > 1e-3),
    st.floats(1.05, 8.0),
    st.floats(1e-3, 1e3),
)
def test_divergence_sees_only_the_direction(vector, p, scale):
    other = np.roll(vector, 1) + 2e3  # far from zero
    divergence = mirror_descent.directional_divergence(vector, other, p)
    assert divergence >= 0.0
    assert mirror_descent.directional_divergence(np.multiply(vector, scale), other, p) == pytest.approx(
        divergence, rel=1e-9, abs=1e-15
    )
    assert mirror_descent.directional_divergence(vector, np.multiply(vector, scale), p) < 1e-30


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6), st.floats(1.1, 8.0))
def test_mirror_maps_undo_each_other(values, p):
    there_and_back = mirror_descent.inverse_mirror_map(mirror_descent.mirror_map(values, p), p)
    np.testing.assert_allclose(there_and_back, values, rtol=1e-12, atol=1e-25)


@pytest.mark.parametrize("p", EXPONENTS)
def test_mirror_map_raises_the_norm_to_the_power_p_minus_one(p):
    weights = np.random.default_rng(3).standard_normal((5, 5))
    dual = mirror_descent.mirror_map(weights, p)
    assert power_norm(dual, p / (p - 1)) == pytest.approx(power_norm(weights, p) ** (p - 1), rel=1e-13)


def test_mirror_map_is_the_gradient_of_the_potential():
    weights, p, h = np.array([-2.0, 0.3, 1.5]), 1.75, 1e-6
    numeric = [(abs(w + h) ** p - abs(w - h) ** p) / (2 * h * p) for w in weights]
    np.testing.assert_allclose(mirror_descent.mirror_map(weights, p), numeric, rtol=1e-9)


def test_local_optimality_asks_only_the_support_tokens():
    scores = np.array([[0.5, 0.1, 0.9], [0.2, 0.8, 0.3]])
    selected = [0, 1]  # constraints: (0, 1), (0, 2), (1, 0), (1, 2)
    assert mirror_descent.locally_optimal(scores, selected, [0, 2, 3])
    assert not mirror_descent.locally_optimal(scores, selected, [0, 1])  # token 2 of sequence 0 scores higher
    assert not mirror_descent.locally_optimal([[0.5, 0.5]], [1], [0])  # a tie is not enough


def test_global_optimality_asks_every_token():
    scores = np.array([[0.5, 0.1, 0.9], [0.2, 0.8, 0.3]])
    assert mirror_descent.globally_optimal(scores, [2, 1])
    assert not mirror_descent.globally_optimal(scores, [0, 1])


def test_effective_nonzeros_counts_equal_entries():
    assert mirror_descent.effective_nonzeros([[3.0, 0.0], [-3.0, 3.0]]) == pytest.approx(3.0, rel=1e-15)
    assert mirror_descent.effective_nonzeros([1e200, 1e-200]) == 1.0
    weights = np.random.default_rng(4).standard_normal(1000)
    assert mirror_descent.effective_nonzeros(weights) == pytest.approx(2 / np.pi * 1000, rel=0.03)  # E|w|^2 / E w^2


@pytest.mark.parametrize(("p", "rate"), [(1.1, 2.0), (2.0, 2.0), (3.0, 1.0), (5.0, 0.5)])
def test_rate_is_limited_by_the_norm_above_p_2_and_by_the_start_below(p, rate):
    assert mirror_descent.divergence_rate(p) == rate


@pytest.mark.parametrize(("p", "rate"), [(1.1, 0.2), (1.5, 1.0), (2.0, 2.0), (3.0, 2.0)])
def test_plain_steps_are_twice_as_fast_as_proven(p, rate):
    assert mirror_descent.plain_divergence_rate(p) == pytest.approx(rate)
    assert mirror_descent.proven_divergence_rate(p) == pytest.approx(rate / 2)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_joint_growth_solves_the_flow_of_the_norms(p):
    """d(|W|^(p-1)) / d log t = |v|^(p-1) exp(-rho |W|) with |v| = log t, integrated step by step."""
    rho, clock = 0.7, np.geomspace(1e1, 1e9, 400_000)  # log t
    norm, norms = 5.0, []
    for now, step in zip(clock, np.diff(clock, append=clock[-1]), strict=True):
        norms.append(norm)
        norm += step * now ** (p - 1) * np.exp(-rho * norm) / ((p - 1) * norm ** (p - 2))
    late = clock > 1e6
    growth = mirror_descent.joint_flow_growth(np.array(norms)[late], rho, p)
    assert np.polyfit(np.log(clock[late]), growth, 1)[0] == pytest.approx(p, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mirror_descent.mirror_map([1.0], 1.0), "p=1.0 must be a finite number above 1"),
        (lambda: mirror_descent.divergence_rate(np.inf), "p=inf must be a finite number above 1"),
        (lambda: mirror_descent.directional_divergence([1.0], [1.0, 2.0], 2.0), "must have the same shape"),
        (lambda: mirror_descent.directional_divergence([0.0], [1.0], 2.0), "must be finite and not zero"),
        (lambda: mirror_descent.effective_nonzeros([0.0]), "must not all be zero"),
        (lambda: mirror_descent.globally_optimal([0.0], [0]), r"must have shapes \(n, T\) and \(n,\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
