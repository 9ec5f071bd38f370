import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichtoken.theory import group_sparse
from whichtoken.theory.group_sparse.encodings import positional_encodings
from whichtoken.theory.group_sparse.population import NODES, half_normal_moments, quadrature_rule

# lr, step, then loss, alpha, gap, attention and accuracy as printed, eight groups, sigma 1
REGRESSION_TABLE = [
    (0.02, 1, ".69003", ".0079788", "0", ".125", ".61503"),
    (0.02, 50, ".64383", ".18946", ".12287", ".13907", ".62856"),
    (0.02, 200, ".42118", ".49661", "1.3443", ".35397", ".80779"),
    (0.02, 400, ".13698", ".97843", "2.8707", ".71602", ".95264"),
    (0.5, 10, ".31767", ".61070", "1.7747", ".45731", ".86579"),
    (0.5, 50, ".056024", "1.7241", "4.2036", ".90531", ".98742"),
    (0.5, 200, ".030280", "2.8704", "5.2987", ".96620", ".99579"),
    (0.5, 3000, ".01155", "7.1687", "7.171", ".99465", ".99935"),
]
# groups, sigma, then alpha, leakage and loss of the map at step 8000 of lr 0.8/groups as printed
LATE_TABLE = [
    (8, 1.0, "5.8079", ".00817", ".01432"),
    (16, 1.0, "3.6558", ".01188", ".01146"),
    (32, 1.0, "2.2979", ".01616", ".00919"),
    (16, 0.5, "4.6212", ".01201", ".01802"),
]
# groups, then lr * steps until the attention exceeds .5, .9 and .95 at lr 0.8/groups
SELECTION_TABLE = [
    (4, 4.4, 22.8, 55.2),
    (8, 5.2, 23.7, 58.4),
    (16, 5.0, 20.8, 50.8),
    (32, 4.6, 16.8, 40.3),
    (64, 4.2, 13.2, 30.7),
    (128, 3.8, 10.4, 23.1),
]
OVERSHOOT = [(128, 0.5), (8, 8.0), (32, 0.5), (8, 2.0)]


def agrees_as_printed(value: float, printed: str) -> bool:
    decimals = len(printed.partition(".")[2])
    return abs(value - float(printed)) <= 0.5000001 * 10.0**-decimals


def two_dimensional_moments(A: float, B: float) -> tuple[float, float, float]:
    """E softplus(-m), E[g H] and E[g n] of the margin m = A H + B n, straight from their definition."""
    panels = np.linspace(0, 1, 61)
    nodes, node_weights = np.polynomial.legendre.leggauss(12)
    unit = (panels[:-1, None] + np.diff(panels)[:, None] * (nodes + 1) / 2).ravel()
    unit_weights = np.tile(node_weights / 2 / 60, 60)
    H, n = 9.5 * unit[:, None], 19 * unit[None, :] - 9.5
    weight = 9.5 * 19 * np.outer(unit_weights, unit_weights) * np.exp(-(H**2 + n**2) / 2) / np.pi
    m = A * H + B * n
    g = 0.5 * (1 - np.tanh(m / 2))
    return float(np.sum(weight * np.logaddexp(0, -m))), float(np.sum(weight * g * H)), float(np.sum(weight * g * n))


@pytest.mark.parametrize("row", REGRESSION_TABLE, ids=str)
def test_population_map_matches_reference_digits(row):
    lr, step, *printed = row
    trajectory = group_sparse.population_map(groups=8, lr=lr, steps=step)
    fields = (trajectory.loss, trajectory.alpha, trajectory.gap, trajectory.attention, trajectory.accuracy)
    for values, digits in zip(fields, printed, strict=True):
        assert len(values) == step + 1
        assert agrees_as_printed(values[step], digits), (values[step], digits)


@settings(max_examples=20)
@given(A=st.floats(-20, 60), B=st.floats(0, 15))
def test_moments_reduce_to_one_dimension(A, B):
    R = math.hypot(A, B)
    loss, pull, slope = half_normal_moments(R, *quadrature_rule(NODES))
    expected = two_dimensional_moments(A, B)
    reduced = (loss + (R - A) / math.sqrt(2 * math.pi), pull + (R - A) * slope, -B * slope)
    np.testing.assert_allclose(reduced, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("groups", "lr", "step"), [(8, 0.02, 300), (8, 0.5, 20), (8, 8.0, 2), (128, 0.5, 3), (32, 0.5, 4)]
)
def test_one_step_is_the_update_of_its_definition(groups, lr, step):
    c, D = (groups + 1) / 2, groups
    trajectory = group_sparse.population_map(groups=D, lr=lr, steps=step + 1)
    alpha, gap, s = trajectory.alpha[step], trajectory.gap[step], trajectory.attention[step]
    lost = trajectory.leakage[step]
    _, M, scaled_Mo = two_dimensional_moments(alpha * D * s, alpha * D * lost / math.sqrt(D - 1))
    Mo = scaled_Mo / math.sqrt(D - 1)
    assert trajectory.alpha[step + 1] == pytest.approx(alpha + lr * D * (s * M + lost * Mo), rel=1e-9)
    expected_gap = gap + lr * c**2 * D / (D - 1) * alpha * s * lost * (M - Mo)
    assert trajectory.gap[step + 1] == pytest.approx(expected_gap, rel=1e-9)


@pytest.mark.parametrize(("groups", "lr"), [*OVERSHOOT, (8, 0.02), (8, 0.5), (2, 0.1), (64, 0.001)])
def test_two_quadrature_sizes_agree(groups, lr):
    trajectory = group_sparse.population_map(groups=groups, lr=lr, steps=3000)
    assert 0 < trajectory.error <= 1e-9


def test_overshoot_locks_attention_as_known():
    away = group_sparse.population_map(groups=128, lr=0.5, steps=100)
    assert away.gap[-1] == pytest.approx(-37.3, abs=0.05)
    onto = group_sparse.population_map(groups=8, lr=8.0, steps=5)
    assert onto.gap[-1] == pytest.approx(25.8, abs=0.05)
    # 1 - attention has lost six digits here
    assert onto.leakage[-1] == pytest.approx(7 * math.exp(-onto.gap[-1]), rel=1e-9)


def test_population_loss_is_the_loss_of_its_own_state():
    trajectory = group_sparse.population_map(groups=8, lr=0.5, steps=20, sigma=0.7)
    alpha, s, lost = trajectory.alpha[20], trajectory.attention[20], trajectory.leakage[20]
    loss, _, _ = two_dimensional_moments(0.7 * alpha * 8 * s, 0.7 * alpha * 8 * lost / math.sqrt(7))
    assert trajectory.loss[20] == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("row", LATE_TABLE, ids=str)
def test_late_phase_law_holds_within_three_percent(row):
    groups, sigma, *printed = row
    trajectory = group_sparse.population_map(groups=groups, lr=0.8 / groups, steps=8000, sigma=sigma)
    law = group_sparse.late_phase(groups=groups, lr=0.8 / groups, step=8000, sigma=sigma)
    measured = (trajectory.alpha[-1], trajectory.leakage[-1], trajectory.loss[-1])
    for value, digits, predicted in zip(measured, printed, (law.alpha, law.leakage, law.loss), strict=True):
        assert agrees_as_printed(value, digits), (value, digits)
        assert predicted == pytest.approx(value, rel=0.03)
    assert law.attention == 1 - law.leakage


def test_late_phase_law_becomes_exact():
    errors = []
    for step in (1000, 10_000, 100_000):
        trajectory = group_sparse.population_map(groups=8, lr=0.5, steps=step)
        law = group_sparse.late_phase(groups=8, lr=0.5, step=step)
        errors.append([abs(law.alpha / trajectory.alpha[-1] - 1), abs(law.leakage / trajectory.leakage[-1] - 1),
                       abs(law.loss / trajectory.loss[-1] - 1)])  # fmt: skip
    assert (np.diff(errors, axis=0) < 0).all(), errors
    assert max(errors[-1]) < 3e-3, errors


def test_loss_slope_approaches_one_third():
    for groups, slope in ((8, -0.352), (16, -0.350), (32, -0.339)):
        loss = group_sparse.population_map(groups=groups, lr=0.5, steps=3000).loss
        assert math.log10(loss[3000] / loss[300]) == pytest.approx(slope, abs=5e-4)


def test_steps_to_loss_inverts_the_late_law():
    steps = group_sparse.steps_to_loss(groups=8, lr=0.5, loss=0.01, sigma=0.8)
    law = group_sparse.late_phase(groups=8, lr=0.5, step=steps, sigma=0.8)
    assert law.loss * law.attention == pytest.approx(0.01, rel=1e-12)


def selection_time(lr, attention, steps, **changes):
    """lr times the first step at which the attention on the relevant group exceeds a value."""
    path = group_sparse.population_map(lr=lr, steps=steps, **changes)
    return lr * np.flatnonzero(path.attention > attention)[0]


@pytest.mark.parametrize("row", SELECTION_TABLE, ids=str)
def test_time_to_select_matches_reference(row):
    groups, *times = row
    for attention, time in zip((0.5, 0.9, 0.95), times, strict=True):
        found = selection_time(0.8 / groups, attention, 100 * groups, groups=groups)
        assert found == pytest.approx(time, abs=0.05 + 1e-9), (found, time)


@pytest.mark.parametrize(
    ("changes", "time"),
    [({"encoding_norm2": c}, t) for c, t in ((2, 76), (4, 19.9), (8.5, 5.0), (16, 1.8))]
    + [({"sigma": s}, t) for s, t in ((0.25, 9.3), (0.5, 6.3), (1.0, 5.0), (2.0, 4.4))],
    ids=str,
)
def test_time_to_select_depends_on_encodings_and_noise(changes, time):
    assert selection_time(0.05, 0.5, 2000, groups=16, **changes) == pytest.approx(time, rel=0.005, abs=0.05 + 1e-9)


def test_first_step_moves_the_value_alone():
    path = group_sparse.population_map(groups=8, lr=0.3, steps=1, sigma=0.6)
    assert path.alpha[1] == pytest.approx(0.3 * 0.6 / math.sqrt(2 * math.pi), rel=1e-12)
    assert path.gap[1] == 0
    assert path.accuracy[1] == pytest.approx(0.5 + math.atan(1 / math.sqrt(7)) / math.pi, rel=1e-12)
    assert path.loss[0] == pytest.approx(math.log(2), rel=1e-14)
    assert path.accuracy[0] == 0.5


def test_curvature_has_the_known_limits():
    trajectory = group_sparse.population_map(groups=8, lr=0.5, steps=20_000, encoding_norm2=3.0)
    assert trajectory.curvature[0] == pytest.approx(8 * 3 / 4, rel=1e-12)
    concentrated = 8 * 3 / (math.sqrt(2 * math.pi) * trajectory.alpha[-1])
    assert trajectory.curvature[-1] == pytest.approx(concentrated, rel=0.01)


def test_default_learning_rate_matches_known_values():
    assert group_sparse.default_learning_rate(groups=8) == pytest.approx(0.02)
    assert group_sparse.default_learning_rate(groups=64) == pytest.approx(9.6e-4, rel=0.01)


@pytest.mark.parametrize(
    ("groups", "sigma"), [(2, 0.3), (8, 0.3), (8, 1.0), (8, 2.0), (64, 0.3), (64, 2.0), (128, 1.0)]
)
def test_default_learning_rate_is_stable_along_its_own_path(groups, sigma):
    lr = group_sparse.default_learning_rate(groups=groups, sigma=sigma)
    bounds = group_sparse.stability_bounds(groups=groups, sigma=sigma)
    trajectory = group_sparse.population_map(groups=groups, lr=lr, steps=int(15 / lr), sigma=sigma)
    assert lr * trajectory.curvature.max() < 2
    assert lr < bounds.learning_rate <= bounds.uniform == pytest.approx(16 / (groups * (groups + 1)))


def test_curvature_peaks_on_the_way_for_many_groups():
    bounds = group_sparse.stability_bounds(groups=64)
    assert bounds.path < 0.4 * bounds.uniform
    assert bounds.value == 8 / 64


@pytest.mark.slow
def test_symmetric_map_matches_reference_values():
    # standard deviation over seeds: 0.15 % of alpha and attention, 1 % of the content block
    t = group_sparse.symmetric_map(groups=8, group_dim=4, lr=0.02, steps=400, rng=np.random.default_rng(1))
    assert t.alpha[-1] == pytest.approx(1.033, rel=0.01)
    assert t.attention[-1] == pytest.approx(0.692, rel=0.01)
    assert t.along[-1] == pytest.approx(-0.217, rel=0.04)
    assert t.across[-1] == pytest.approx(0.0170, rel=0.05)
    assert t.loss[0] == pytest.approx(math.log(2), rel=1e-12)


@pytest.mark.slow
def test_symmetric_map_is_the_population_map_when_content_is_weak():
    sizes = {"groups": 8, "lr": 0.05, "steps": 300, "sigma": 0.2}
    exact = group_sparse.population_map(**sizes)
    sampled = group_sparse.symmetric_map(group_dim=2, samples=4000, rng=np.random.default_rng(0), **sizes)
    assert abs(sampled.along[-1]) < 0.01
    # standard deviation over seeds: 0.35 % of alpha and of the attention
    assert sampled.alpha[-1] == pytest.approx(exact.alpha[-1], rel=0.014)
    assert sampled.attention[-1] == pytest.approx(exact.attention[-1], rel=0.014)
    tail = slice(-50, None)
    assert sampled.loss[tail].mean() == pytest.approx(exact.loss[tail].mean(), rel=0.02)
    gap = sampled.position[-1, 1] - sampled.position[-1, 4]
    assert gap == pytest.approx(exact.gap[-1], rel=0.014)


@given(groups=st.integers(2, 200), lr=st.floats(0.01, 20), sigma=st.floats(0.1, 3), norm2=st.floats(0.2, 50))
@settings(deadline=None)
def test_two_steps_are_those_of_the_population_map(groups, lr, sigma, norm2):
    sizes = {"groups": groups, "lr": lr, "sigma": sigma, "encoding_norm2": norm2}
    law, path = group_sparse.first_two_updates(**sizes), group_sparse.population_map(steps=3, **sizes)
    assert law.gap == pytest.approx(path.gap[2], rel=1e-9)
    assert law.alpha == pytest.approx(path.alpha[2], rel=1e-7, abs=1e-9 * lr * sigma * math.sqrt(groups))
    assert law.leakage == pytest.approx(path.leakage[2], rel=1e-6)
    assert path.gap[2] - path.gap[3] <= law.next_fall * (1 + 1e-9) + 1e-9 * law.gap


def test_two_steps_by_automatic_differentiation():
    """A model written out here, trained on mirrored samples: it shares no code with the law."""
    torch = pytest.importorskip("torch")
    groups, dim, sigma, lr, n = 4, 2, 0.8, 3.0, 200_000
    rng = torch.Generator().manual_seed(0)
    half = sigma * torch.randn(n, groups, dim, generator=rng, dtype=torch.float64)
    X = torch.cat([half, -half])
    y = torch.sign(X[:, 1, 0])  # group 1 decides, along the first coordinate
    scale = math.sqrt(2.0)
    Z = torch.cat([X, scale * torch.eye(groups, dtype=torch.float64).expand(len(X), -1, -1)], dim=2)
    W = torch.zeros(dim + groups, dim + groups, dtype=torch.float64, requires_grad=True)
    v = torch.zeros(dim + groups, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        weights = torch.softmax(Z @ W @ Z.mT, dim=1)  # over keys
        output = torch.einsum("i,bki,bkq->b", v, Z, weights)
        loss = torch.nn.functional.softplus(-y * output).mean()
        step_W, step_v = torch.autograd.grad(loss, (W, v))
        with torch.no_grad():
            W -= lr * step_W
            v -= lr * step_v
    law = group_sparse.first_two_updates(groups=groups, lr=lr, sigma=sigma, encoding_norm2=scale**2)
    scores = scale**2 * W.detach()[dim:, dim:]
    gaps = scores[1] - scores[[0, 2, 3]]
    # standard deviation over six seeds: 0.3 % of the gap, 0.2 % of lr sigma, 0.6 % of the content
    assert float(gaps.mean()) == pytest.approx(law.gap, rel=0.02)
    assert float(v.detach()[0]) == pytest.approx(law.alpha, abs=0.01 * lr * sigma)
    assert float(W.detach()[0, 0]) == pytest.approx(law.content, rel=0.03)
    assert float(v.detach()[dim:].abs().max()) < 1e-12


@pytest.mark.parametrize("sigma", [0.25, 1.0, 2.0])
def test_a_gap_that_cannot_fall_stays(sigma):
    kept = 0
    for groups in (8, 16, 32, 64, 128):
        for rate in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0):
            sizes = {"groups": groups, "lr": rate / sigma, "sigma": sigma}
            law = group_sparse.first_two_updates(**sizes)
            if law.alpha < 0 and law.gap > math.log(groups) and law.next_fall < 0.1 * law.gap:
                kept += 1
                assert group_sparse.population_map(steps=500, **sizes).gap[2:].min() > 0.85 * law.gap
    assert kept >= 10


def test_the_gap_of_two_steps_makes_the_leakage_exponentially_small_in_the_groups():
    for rate in (4.0, 8.0):
        few, many = (math.log(group_sparse.first_two_updates(groups=D, lr=rate).leakage) for D in (64, 128))
        assert (few - many) / 64 == pytest.approx(rate**2 / (8 * math.pi), rel=0.03)


def test_symmetric_map_has_the_leakage_where_one_minus_the_attention_has_lost_its_digits():
    t = group_sparse.symmetric_map(
        groups=16, group_dim=2, lr=32.0, sigma=0.25, steps=3, samples=500, rng=np.random.default_rng(0)
    )
    np.testing.assert_allclose(t.leakage, 1 - t.attention, rtol=1e-9, atol=1e-14)
    assert 0 < t.leakage[-1] < 1e-8


def test_symmetric_map_reports_its_sampling_error():
    t = group_sparse.symmetric_map(groups=4, group_dim=1, lr=0.1, steps=300, samples=200, rng=np.random.default_rng(3))
    late = slice(200, None)
    spread = np.std(np.diff(t.loss[late])) / math.sqrt(2)  # differences take the trend out
    assert spread == pytest.approx(t.loss_error[late].mean(), rel=0.2)


@pytest.mark.parametrize("kind", ["sine", "one-hot"])
def test_positional_block_separates_the_relevant_group_by_the_gap(kind):
    P = positional_encodings(kind, 6, norm2=2.5)
    scores = P @ group_sparse.positional_block(P, relevant=4, gap=1.7) @ P.T
    np.testing.assert_allclose(scores[4] - np.delete(scores, 4, axis=0), 1.7, atol=1e-12)
    assert group_sparse.encoding_norm2(P) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_sparse.population_map(groups=1, lr=0.1, steps=1), "groups=1 must be a whole number of at least 2"),
        (lambda: group_sparse.population_map(groups=2.5, lr=0.1, steps=1), "groups=2.5 must be a whole number"),
        (lambda: group_sparse.steps_to_loss(groups=8, lr=0.1, loss=5.0), "training starts at log 2"),
        (lambda: group_sparse.population_map(groups=8, lr=0.0, steps=1), "lr=0.0 must be positive"),
        (lambda: group_sparse.population_map(groups=8, lr=0.1, steps=-1), "steps=-1 must be a whole number of at least 0"),
        (lambda: group_sparse.population_map(groups=8, lr=0.1, steps=1, sigma=math.nan), "sigma=nan must be positive"),
        (lambda: group_sparse.population_map(groups=8, lr=0.1, steps=1, encoding_norm2=-1), "encoding_norm2=-1 must be"),
        (lambda: group_sparse.late_phase(groups=8, lr=0.1, step=0), "step=0.0 must be positive"),
        (lambda: group_sparse.first_two_updates(groups=8, lr=-1.0), "lr=-1.0 must be positive"),
        (lambda: group_sparse.symmetric_map(groups=8, group_dim=0, lr=1, steps=1, rng=None), "group_dim=0 must be"),
        (lambda: group_sparse.positional_block(np.eye(4), 4, 1.0), "relevant=4 must be a group index in 0..3"),
        (lambda: group_sparse.encoding_norm2(np.ones((3, 3))), "Theorem 3.2"),
        (lambda: group_sparse.encoding_norm2(np.full((3, 3), math.nan)), "orthogonal"),
        (lambda: group_sparse.encoding_norm2(np.ones(3)), r"shape \(3,\)"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_late_phase_is_the_start_before_it_sets_in():
    law = group_sparse.late_phase(groups=8, lr=0.1, step=[1e-6, 1.0, 1e6])
    assert law.attention[0] == pytest.approx(1 / 8)
    assert law.loss[0] == math.log(2)
    assert (np.diff(law.loss) <= 0).all()
    assert law.loss[-1] < 0.01
