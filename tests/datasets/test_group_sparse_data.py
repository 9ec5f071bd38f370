import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from whichtoken.datasets import GroupSparse
from whichtoken.datasets.pictures import CIFAR_FILE, ImagePatch, cifar_images, digit_images
from whichtoken.theory.group_sparse.encodings import FAMILIES, positional_encodings


@given(
    groups=st.integers(2, 6),
    group_dim=st.integers(1, 5),
    margin=st.sampled_from([0.0, 0.3]),
    correlation=st.sampled_from([0.0, 0.7]),
    count=st.integers(1, 2),
    seed=st.integers(0, 1000),
)
def test_label_is_the_sign_of_the_relevant_projections(groups, group_dim, margin, correlation, count, seed):
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((count, group_dim))
    relevant = list(rng.permutation(groups)[:count])
    data = GroupSparse(groups, group_dim, relevant, directions, margin=margin, correlation=correlation)
    X, y = data.sample(50, rng)
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    decision = sum(X[:, j] @ v for j, v in zip(relevant, unit, strict=True))
    assert set(np.unique(y)) <= {-1, 1}
    assert (y * decision >= margin - 1e-12).all()


def test_one_direction_serves_all_relevant_groups():
    data = GroupSparse(4, 2, relevant=(1, 3), direction=[0, 2.0])
    np.testing.assert_array_equal(data.directions, [[0, 1], [0, 1]])


def test_moments_are_those_asked_for():
    X, y = GroupSparse(3, 2, relevant=1, sigma=0.5, correlation=0.4).sample(200_000, np.random.default_rng(0))
    covariance = np.cov(X.reshape(-1, 6).T)
    same_variable = np.kron(np.full((3, 3), 0.4) + 0.6 * np.eye(3), np.eye(2))
    np.testing.assert_allclose(covariance, 0.25 * same_variable, atol=0.004)  # five standard errors
    assert abs(y.mean()) < 0.012


def test_neighbors_share_the_variables_asked_for():
    X, y = GroupSparse(4, 3, relevant=2, direction=[1.0, 2, 2], shared=1).sample(2000, np.random.default_rng(0))
    for group in range(4):
        np.testing.assert_array_equal(X[:, group, -1], X[:, (group + 1) % 4, 0])
    assert len(np.unique(X[0])) == 4 * 2  # each group has two variables of its own
    np.testing.assert_array_equal(y, np.sign(X[:, 2] @ [1.0, 2, 2]))
    with pytest.raises(ValueError, match="shared=3 must be a whole number from 0 to 2"):
        GroupSparse(4, 3, shared=3)
    with pytest.raises(ValueError, match="shared=1 must be 0"):
        GroupSparse(4, 3, shared=1, margin=0.1)


def test_irrelevant_groups_carry_no_label():
    X, y = GroupSparse(3, 2, relevant=2).sample(100_000, np.random.default_rng(0))
    with_label = np.einsum("n,njd->jd", y, X) / len(y)
    expected = np.zeros((3, 2))
    expected[2, 0] = np.sqrt(2 / np.pi)
    np.testing.assert_allclose(with_label, expected, atol=0.015)


def test_same_generator_state_gives_the_same_sample():
    data = GroupSparse(3, 2)
    first, second = (data.sample(5, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 1}, "groups=1 must be a whole number of at least 2"),
        ({"groups": 4.5}, "groups=4.5 must be a whole number of at least 2"),
        ({"relevant": 1.7}, "relevant=1.7 must be one or several distinct group indices"),
        ({"group_dim": 0}, "group_dim=0 must be a whole number of at least 1"),
        ({"relevant": 4}, r"relevant=4 must be .* in 0..3"),
        ({"relevant": -1}, "relevant=-1"),
        ({"relevant": (1, 1)}, "distinct"),
        ({"direction": [1.0, 0.0]}, r"direction of shape \(1, 2\) must be \(3,\)"),
        ({"direction": [0.0, 0.0, 0.0]}, "not zero"),
        ({"direction": [np.nan, 0.0, 0.0]}, "finite"),
        ({"sigma": 0.0}, "sigma=0.0"),
        ({"correlation": 1.0}, "correlation=1.0"),
        ({"margin": -0.1}, "margin=-0.1"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        GroupSparse(**{"groups": 4, "group_dim": 3, **arguments})


@pytest.mark.parametrize("kind", ["sine", "one-hot"])
@given(groups=st.integers(2, 40))
def test_orthogonal_families_are_orthogonal(kind, groups):
    norm2 = {"sine": (groups + 1) / 2, "one-hot": 1.0}[kind]
    P = positional_encodings(kind, groups)
    np.testing.assert_allclose(P @ P.T, norm2 * np.eye(groups), atol=1e-12 * groups)


@pytest.mark.parametrize("kind", sorted(FAMILIES.keys() - {"none"}))
def test_families_scale_to_the_norm_asked_for(kind):
    P = positional_encodings(kind, 7, norm2=3.0, rng=np.random.default_rng(0))
    assert np.mean(np.sum(P**2, axis=1)) == pytest.approx(3.0)


def test_families_differ_from_orthogonal_as_documented():
    rng = np.random.default_rng(0)
    unit = positional_encodings("random-unit", 9, rng=rng)
    np.testing.assert_allclose(np.sum(unit**2, axis=1), 5.0)
    table = positional_encodings("sin-cos", 9)
    gram = table @ table.T
    assert (np.diag(gram, 1) > np.abs(np.diag(gram, 4)).max()).all()  # neighbors are alike
    free = positional_encodings("random", 400, rng=rng)
    assert np.mean(np.sum(free**2, axis=1)) == pytest.approx(200.5, rel=0.02)
    assert not positional_encodings("none", 9).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: positional_encodings("sines", 8), "unknown encoding 'sines'; did you mean 'sine'"),
        (lambda: positional_encodings("sine", 1), "groups=1 must be a whole number of at least 2"),
        (lambda: positional_encodings("random", 8), "needs rng"),
        (lambda: positional_encodings("sine", 8, norm2=0.0), "norm2=0.0 must lie in"),
    ],
)
def test_bad_encodings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_picture_lies_at_its_place_in_fresh_noise():
    images, labels = digit_images()
    data = ImagePatch(images, labels, groups=5, relevant=2)
    X, y = data.each(np.random.default_rng(0))
    np.testing.assert_array_equal(X[:, 2], images)
    np.testing.assert_array_equal(y, labels)
    assert np.delete(X, 2, axis=1).std() == pytest.approx(1.0, rel=0.01)


def test_digits_are_standardized_and_labeled():
    images, labels = digit_images()
    assert images.shape == (357, 64)
    np.testing.assert_allclose(images.mean(axis=0), 0, atol=1e-12)
    deviations = images.std(axis=0)
    np.testing.assert_allclose(deviations[deviations > 0], 1)
    raw, digits = load_digits(return_X_y=True)
    np.testing.assert_array_equal(deviations == 0, np.ptp(raw[np.isin(digits, (3, 8))], axis=0) == 0)
    assert ((labels == 1).sum(), (labels == -1).sum()) == (183, 174)


def test_too_few_patches_are_named():
    with pytest.raises(ValueError, match="groups=1"):
        ImagePatch([[0.5], [1.0]], [1, -1], groups=1)


def test_absent_cifar_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WHICHTOKEN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=f"{CIFAR_FILE} not found: set WHICHTOKEN_DATA to a folder that holds it"):
        cifar_images()


def test_cifar_pictures_are_standardized_and_labeled(real_data):
    if not (real_data / CIFAR_FILE).exists():
        pytest.skip(f"WHICHTOKEN_DATA names no folder with {CIFAR_FILE}")
    images, labels = cifar_images(per_class=20)
    assert images.shape == (40, 3072)
    np.testing.assert_allclose(images.std(axis=0), 1)
    assert labels.sum() == 0
    sky = images[labels == -1].mean() - images[labels == 1].mean()
    assert sky > 0.3  # aeroplanes stand before a bright sky
