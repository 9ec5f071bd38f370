"""How optimizers are compared: what a run reports, and how its step size is chosen."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from whichtoken.claims._problems import share_of_repeats
from whichtoken.claims.mirror_descent import _comparison as comparison
from whichtoken.claims.mirror_descent.reviews import Point, ReviewGeometries
from whichtoken.claims.mirror_descent.vision import Point as Picture
from whichtoken.claims.mirror_descent.vision import Vision, _shift_and_mirror
from whichtoken.lab import Exact, Resampled, Row, Rows, Share, at_least, reproduce
from whichtoken.theory.mirror_descent.transformers import TokenEncoder


def part(seed, size=60):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 3, generator=generator)
    noise = torch.randn(size, generator=generator)
    return comparison.Examples(inputs, (inputs[:, 0] + noise > 0).float())


def task():
    return comparison.TrainingTask(
        part(1), part(2), part(3),
        loss=lambda outputs, labels: nn.functional.binary_cross_entropy_with_logits(outputs.squeeze(1), labels),
        right=lambda outputs, labels: (outputs.squeeze(1) > 0) == (labels > 0),
    )  # fmt: skip


def trained(method, lr, epochs=12):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    steps = comparison.optimizer(method, model.parameters(), lr)
    return model, comparison.train_classifier(
        model, steps, task(), epochs=epochs, batch=8, rng=np.random.default_rng(0)
    )


@pytest.mark.parametrize("method", list(comparison.METHODS))
def test_reported_model_is_that_of_the_best_validation_epoch(method):
    model, measured = trained(method, 0.03)
    assert measured["validation"] == max(measured["validation_curve"])
    assert measured["validation"] == comparison.accuracy(model, task().validation, task().right)
    assert measured["test"] == comparison.accuracy(model, task().test, task().right)


def test_test_examples_do_not_choose_the_epoch():
    """The same run with other test labels keeps the same weights."""
    weights = []
    for flip in (False, True):
        case = task()
        case.test.labels.copy_(1 - case.test.labels if flip else case.test.labels)
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        comparison.train_classifier(
            model,
            comparison.optimizer("l2", model.parameters(), 1.0),
            case,
            epochs=5,
            batch=8,
            rng=np.random.default_rng(0),
        )
        weights.append(model.weight.detach().clone())
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_diverged_run_is_a_number_and_says_so():
    _, measured = trained("l1.1", 1e6)
    assert measured["diverged"]
    assert measured["epochs"] < 12
    assert 0.0 <= measured["test"] <= 1.0


def test_methods_are_the_optimizers_of_their_names():
    weights = [nn.Parameter(torch.ones(2))]
    assert comparison.optimizer("l1.1", weights, 0.1).param_groups[0]["p"] == 1.1
    assert type(comparison.optimizer("adam", weights, 0.1)) is torch.optim.Adam
    assert type(comparison.optimizer("adamw", weights, 0.1)) is torch.optim.AdamW
    with pytest.raises(ValueError, match="unknown method 'l4'; did you mean 'l3'"):
        comparison.optimizer("l4", weights, 0.1)


def rows(accuracies):
    """Runs of one method: (step size, seed) -> (validation, test)."""
    return Rows(
        Row(SimpleNamespace(lr=lr), seed, "ok", "", {"validation": validation, "test": test}, 0.0, "0")
        for (lr, seed), (validation, test) in accuracies.items()
    )


def test_step_size_is_chosen_by_validation_alone():
    ours = rows({(0.1, 0): (0.6, 0.9), (0.1, 1): (0.6, 0.9), (0.3, 0): (0.9, 0.5), (0.3, 1): (0.5, 0.4)})
    theirs = rows({(1.0, 0): (0.7, 0.6), (1.0, 2): (0.7, 0.8)})
    assert comparison.best_rate(ours) == 0.3
    difference = comparison.pair_by_seed(ours, theirs, "test")
    assert difference == pytest.approx([-0.1])  # seed 0 is the only one that both have


@pytest.mark.parametrize(("best", "state"), [(0.1, "undecided"), (0.3, "agrees"), (1.0, "undecided")])
def test_step_size_at_the_end_of_its_grid_leaves_the_comparison_undecided(best, state):
    runs = Rows(
        Row(Point(method="l3", lr=lr), 0, "ok", "", {"validation": 0.9 if lr == best else 0.5}, 0.0, "0")
        for lr in (0.1, 0.3, 1.0)
    )
    verdict = comparison.unless_at_the_edge(at_least("lead", "", bound=0.0, measured=Exact(1.0)), [runs]).settle(0.95)
    assert verdict.state == state
    assert ("l_3 is best at" in verdict.note) == (state == "undecided")


def test_depths_are_compared_each_by_itself():
    """The rates of the source differ between depths: pairs must not."""
    measured = {
        "validation": 0.7,
        "pivot": 0.5,
        **{f"{name}_{what}": 0.5 for name in comparison.PROJECTIONS for what in ("share", "grown")},
    }
    found = Rows(
        Row(Point(method=method, lr=lr, layers=depth), seed, "ok", "", measured | {"test": test}, 0.0, "0")
        for depth, method, lr, test in (
            (3, "l1.1", 0.08, 0.8),
            (3, "l2", 0.04, 0.7),
            (6, "l1.1", 0.1, 0.6),
            (6, "l2", 0.1, 0.8),
        )
        for seed in range(3)
    )
    checks = [part for check in ReviewGeometries().judge(found) for part in check.parts]
    claims = {check.code: check.sample.interval(0.95).measured for check in checks}
    assert claims["reviews.3-layers.accuracy.l2"] == pytest.approx(0.1)
    assert claims["reviews.6-layers.accuracy.l2"] == pytest.approx(-0.2)


def test_sparsity_is_seen_in_all_three_projections():
    encoder = TokenEncoder(8, 2, 1, 16, 0.0, "pre-mean")
    initial = encoder.projections()
    with torch.no_grad():
        encoder.layers[0].self_attn.in_proj_weight[:8] = 0.0
        encoder.layers[0].self_attn.in_proj_weight[0, 0] = 2.0
    measured = comparison.sparsity(encoder, {name: torch.ones(1) for name in initial})
    assert measured["queries_share"] == pytest.approx(1 / 64)
    assert measured["queries_grown"] == pytest.approx(1 / 64)
    assert measured["queries_histogram"][0] == pytest.approx(63 / 64)
    assert measured["keys_share"] > 0.5
    assert sum(measured["keys_histogram"]) == pytest.approx(1.0)


def test_largest_entries_are_compared_in_all_three_projections():
    theirs = {f"{name}_largest": 0.5 for name in comparison.PROJECTIONS}
    ours = theirs | {"keys_largest": 4.0}
    assert comparison.largest_entries(ours, theirs) == pytest.approx(2.0)  # (1 * 8 * 1) ** (1 / 3)


@pytest.mark.parametrize("experiment", [ReviewGeometries(), Vision()], ids=lambda experiment: experiment.id)
def test_sizes_of_the_authors_wait_for_a_gpu_or_for_being_asked(experiment, monkeypatch):
    monkeypatch.delenv("WHICHTOKEN_LARGE", raising=False)
    monkeypatch.setattr(comparison, "device", lambda: torch.device("cpu"))
    assert "needs a GPU" in experiment.absent(experiment.point_type(width=384))
    assert experiment.absent(experiment.point_type()) == ""
    monkeypatch.setenv("WHICHTOKEN_LARGE", "1")
    assert experiment.absent(experiment.point_type(width=384)) == ""
    monkeypatch.delenv("WHICHTOKEN_LARGE")
    monkeypatch.setattr(comparison, "device", lambda: torch.device("cuda"))
    assert experiment.absent(experiment.point_type(width=384)) == ""


@pytest.mark.parametrize(
    ("shares", "kind"), [([1.0] * 12, Share), ([1.0, 0.0, 1.0], Share), ([1.0, 0.5] * 6, Resampled)]
)
def test_share_of_ones_is_not_certain(shares, kind):
    """A bootstrap of ones alone would have an interval without width."""
    sample = share_of_repeats(np.array(shares))
    assert type(sample) is kind
    found = sample.interval(0.95)
    assert found.measured == pytest.approx(np.mean(shares))
    assert found.low < found.high


def test_moved_pictures_are_shifted_or_mirrored_ones():
    pictures = torch.arange(1.0, 65.0).reshape(1, 1, 8, 8).expand(50, 2, 8, 8)
    torch.manual_seed(0)
    moved = _shift_and_mirror(pictures)
    padded = nn.functional.pad(pictures[:1, :1], [4] * 4)[0, 0]
    windows = [padded[i : i + 8, j : j + 8] for i in range(9) for j in range(9)]
    allowed = torch.stack([*windows, *(window.flip(1) for window in windows)])
    for picture in moved:
        assert (picture[0] == allowed).flatten(1).all(dim=1).any()
        assert (picture[0] == picture[1]).all()
    assert len(moved[:, 0].flatten(1).unique(dim=0)) > 30


@pytest.mark.parametrize(("experiment", "code"), [("reviews", "reviews"), ("vision", "vision.accuracy.cifar")])
def test_absent_data_is_a_reason_not_a_failure(experiment, code, monkeypatch, tmp_path):
    monkeypatch.delenv("WHICHTOKEN_DATA", raising=False)
    large = Point(source="imdb") if experiment == "reviews" else Picture(pictures="cifar")
    here = ReviewGeometries() if experiment == "reviews" else Vision()
    assert "set WHICHTOKEN_DATA to a folder with" in here.absent(large)
    assert here.absent(here.point_type()) == ""
    [result] = reproduce([f"mirror-descent/{experiment}"], preset="paper", out=tmp_path)
    assert not result.rows
    assert all(verdict.state in ("not-run", "undecided") for verdict in result.verdicts)
    assert any("WHICHTOKEN_DATA" in verdict.note for verdict in result.verdicts)


@pytest.mark.parametrize(
    ("experiment", "fields", "message"),
    [
        ("reviews", {"source": "books"}, "source='books' is not accepted .* 'synthetic' or 'imdb'"),
        ("reviews", {"block": "pre"}, "block='pre' is not accepted .* 'pre-mean' or 'post-cls'"),
        ("vision", {"method": "sgd"}, "method='sgd' is not accepted .* 'adam' or 'adamw'"),
        ("vision", {"pictures": "faces"}, "pictures='faces' is not accepted .* 'digits' or 'cifar'"),
    ],
)
def test_bad_fields_are_named(experiment, fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        reproduce([f"mirror-descent/{experiment}"], overrides=fields, out=tmp_path)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda rng: Vision().run(Picture(train=1800), rng), r"^2300 pictures are more than the 1797 of digits$"),
        (lambda rng: Vision().run(Picture(patch=3), rng), r"^patch=3 must divide side=8$"),
        (lambda rng: ReviewGeometries().run(Point(width=9), rng), r"^width=9 must be a multiple of heads=2$"),
        (lambda rng: ReviewGeometries().run(Point(reviews=0), rng), r"^n=0 must be a whole number of at least 1$"),
        (lambda rng: ReviewGeometries().run(Point(epochs=0), rng), r"^epochs=0 must be a whole number of at least 1$"),
    ],
)
def test_sizes_that_cannot_be_are_named(run, message):
    with pytest.raises(ValueError, match=message):
        run(np.random.default_rng(0))
