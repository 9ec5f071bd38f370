"""Engines of `<cls>` attention against torch.optim on the same batches."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from whichtoken.theory.trained_embeddings.cls_model import ClsAttention
from whichtoken.theory.trained_embeddings.cls_training import memory_needed, start_cls, train_cls
from whichtoken.theory.trained_embeddings.training_loop import Safeguards, TrainingPlan


def some_documents(n=60, vocabulary=50, length=8, seed=0):
    """Tokens of very different frequency, so that some miss many steps and the last none ever occurs."""
    rng = np.random.default_rng(seed)
    law = np.append(1 / np.arange(1, vocabulary), 0.0)
    counts = rng.multinomial(length, law / law.sum(), size=n)
    return counts, np.where(rng.random(n) < 0.5, 1, -1)


def torch_training(model, counts, labels, plan, seed, dtype=torch.float64):
    """The same run through autograd and torch.optim, on dense counts."""
    E, p, v = (
        torch.tensor(array, dtype=dtype).requires_grad_() for array in (model.embeddings, model.cls, model.value)
    )
    trained = [E, p, v] if plan.train_value else [E, p]
    kinds = {
        "adamw": lambda: torch.optim.AdamW(trained, lr=plan.lr, weight_decay=plan.weight_decay, betas=plan.betas),
        "sgd": lambda: torch.optim.SGD(trained, lr=plan.lr),
        "gd": lambda: torch.optim.SGD(trained, lr=plan.lr),
    }
    optimizer, rng = kinds[plan.optimizer](), np.random.default_rng(seed)
    X, y = torch.tensor(counts, dtype=dtype), torch.tensor(labels, dtype=dtype)
    losses = []
    for epoch in range(plan.epochs):
        optimizer.param_groups[0]["lr"] = plan.learning_rate(epoch)
        order = np.arange(len(y)) if plan.optimizer == "gd" else rng.permutation(len(y))
        size = len(y) if plan.optimizer == "gd" else plan.batch_size
        batches = []
        for start in range(0, len(y), size):
            rows = order[start : start + size]
            attention = torch.softmax(model.logit_scale * (E @ p) + torch.log(X[rows]), dim=1)
            loss = torch.nn.functional.softplus(-y[rows] * (attention @ (E @ v))).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches.append(loss.item())
        losses.append(np.mean(batches))
    return [parameter.detach().numpy() for parameter in (E, p, v)], losses


@pytest.mark.parametrize("train_value", [False, True])
@pytest.mark.parametrize(("optimizer", "logit_scale"), [("adamw", 1.0), ("adamw", 0.3), ("sgd", 1.0), ("gd", 1.0)])
def test_trajectory_is_torchs(optimizer, logit_scale, train_value):
    counts, labels = some_documents()
    lr = 0.01 if optimizer == "adamw" else 1.0
    plan = TrainingPlan(optimizer, lr, 6, batch_size=7, weight_decay=0.05, drops=(2, 4), train_value=train_value)
    model = ClsAttention.start(50, 19, np.random.default_rng(1), np.float64, logit_scale)
    reference, losses = torch_training(model, counts, labels, plan, seed=2)
    history = train_cls(model, counts, labels, plan, np.random.default_rng(2))
    np.testing.assert_allclose(history.losses, losses, rtol=1e-12)
    for ours, theirs in zip((model.embeddings, model.cls, model.value), reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_scaled_scores_are_refused_by_other_optimizers():
    model = ClsAttention.start(50, 19, np.random.default_rng(1), logit_scale=0.3)
    with pytest.raises(ValueError, match="must be adamw where logit_scale"):
        train_cls(model, *some_documents(), TrainingPlan("sgd"), np.random.default_rng(2))


@pytest.mark.slow
def test_float32_stays_as_close_as_torch_when_missed_steps_are_summed_by_quadrature():
    counts, labels = some_documents(n=240)
    plan = TrainingPlan("adamw", 1e-3, 14, batch_size=4, weight_decay=1e-4, drops=(12,))
    model = ClsAttention.start(50, 16, np.random.default_rng(1))
    start = model.embeddings.copy()
    exact, _ = torch_training(model, counts, labels, plan, seed=2)
    single, _ = torch_training(model, counts, labels, plan, seed=2, dtype=torch.float32)
    train_cls(model, counts, labels, plan, np.random.default_rng(2))  # 840 steps, quadrature from step 600 on
    ours, theirs = (
        np.linalg.norm(E - exact[0]) / np.linalg.norm(exact[0] - start) for E in (model.embeddings, single[0])
    )
    assert ours < max(2 * theirs, 5e-6)


@pytest.mark.slow
def test_numbers_do_not_depend_on_threads():
    counts, labels = some_documents()
    results = []
    for threads in (1, 2):
        model = ClsAttention.start(50, 16, np.random.default_rng(1))
        train_cls(
            model, counts, labels, TrainingPlan(epochs=3, batch_size=7), np.random.default_rng(2), threads=threads
        )
        results.append(model)
    assert np.array_equal(results[0].embeddings, results[1].embeddings)
    assert np.array_equal(results[0].cls, results[1].cls)


def test_sgd_leaves_absent_rows_alone():
    counts, labels = some_documents()
    model = ClsAttention.start(50, 16, np.random.default_rng(1))
    before = model.embeddings.copy()
    train_cls(model, counts, labels, TrainingPlan("sgd", lr=1.0, epochs=1, batch_size=7), np.random.default_rng(2))
    moved = (model.embeddings != before).any(axis=1)
    assert np.array_equal(moved, counts.sum(axis=0) > 0)


def test_learning_rate_drops_at_its_epochs():
    plan = TrainingPlan(lr=1.0, drops=(2, 3), drop_factor=0.1)
    np.testing.assert_allclose([plan.learning_rate(epoch) for epoch in range(5)], [1, 1, 0.1, 0.01, 0.01])


def run_to(epochs, checkpoint):
    counts, labels = some_documents()
    model = ClsAttention.start(50, 16, np.random.default_rng(1))
    guards = Safeguards(checkpoint=checkpoint, held_out=some_documents(seed=9))
    plan = TrainingPlan(epochs=epochs, batch_size=7, drops=(2, 5))
    return model, train_cls(model, counts, labels, plan, np.random.default_rng(2), guards=guards)


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_any_layout_and_any_generator_survive_a_checkpoint(tmp_path, bits):
    counts, labels = some_documents()

    def run_to(epochs, checkpoint):
        start = ClsAttention.start(50, 16, np.random.default_rng(1))
        model = ClsAttention(np.asfortranarray(start.embeddings), start.cls, start.value)
        plan = TrainingPlan("sgd", lr=1.0, epochs=epochs, batch_size=7, drops=())
        rng = np.random.Generator(bits(2))
        train_cls(model, counts, labels, plan, rng, guards=Safeguards(checkpoint=checkpoint))
        return model

    run_to(2, str(tmp_path / "run"))
    assert np.array_equal(run_to(4, str(tmp_path / "run")).embeddings, run_to(4, None).embeddings)


def test_resumed_run_equals_the_uninterrupted_one(tmp_path):
    whole, history = run_to(8, tmp_path / "whole")
    run_to(3, tmp_path / "parts")
    parts, resumed = run_to(8, tmp_path / "parts")
    assert resumed.losses == history.losses
    assert resumed.held_out_accuracies == history.held_out_accuracies
    assert np.array_equal(parts.embeddings, whole.embeddings)
    assert np.array_equal(parts.cls, whole.cls)


@pytest.mark.process
def test_kill_loses_at_most_one_epoch(tmp_path):
    path, epochs = tmp_path / "run", 4000
    code = f"import test_cls_training as t, pathlib; t.run_to({epochs}, pathlib.Path({str(path)!r}))"
    here = os.path.dirname(__file__)
    process = subprocess.Popen([sys.executable, "-c", code], cwd=here)
    try:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    from whichtoken.theory.trained_embeddings.training_loop import load_checkpoint

    done = len(load_checkpoint(path)[1]["history"]["losses"])
    assert 1 <= done < epochs
    resumed, history = run_to(done + 2, path)
    whole, reference = run_to(done + 2, None)
    assert history.losses == reference.losses
    assert np.array_equal(resumed.embeddings, whole.embeddings)


def test_checkpoint_of_another_run_is_refused(tmp_path):
    run_to(2, tmp_path / "run")
    counts, labels = some_documents()
    model = ClsAttention.start(50, 16, np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"written with lr=0.01, this run has 0.02"):
        train_cls(
            model, counts, labels, TrainingPlan(lr=0.02, batch_size=7, drops=(2, 5)), np.random.default_rng(0),
            guards=Safeguards(checkpoint=tmp_path / "run"),
        )  # fmt: skip
    wider = ClsAttention.start(50, 17, np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"with embeddings=\[50, 16, 'float32'\], this run has \[50, 17, 'float32'\]"):
        train_cls(
            wider, counts, labels, TrainingPlan(batch_size=7, drops=(2, 5)), np.random.default_rng(0),
            guards=Safeguards(checkpoint=tmp_path / "run"),
        )  # fmt: skip
    with pytest.raises(ValueError, match="is a folder; a file in it is expected"):
        Safeguards(checkpoint=tmp_path)
    (tmp_path / "broken").write_bytes(json.dumps({"no": "tensors"}).encode())
    with pytest.raises(ValueError, match="cannot be read as a checkpoint of a training run"):
        run_to(2, tmp_path / "broken")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": float("nan")}, "lr=nan must be positive and finite"),
        ({"lr": 0.0}, "lr=0.0 must be positive"),
        ({"epochs": 0}, "epochs=0 must be a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 must be at least 0"),
        ({"optimizer": "adam"}, "optimizer='adam' must be one of adamw, sgd, gd"),
        ({"drops": (20, 10)}, r"drops=\(20, 10\) must be increasing"),
        ({"betas": (0.9, 1.0)}, "betas"),
    ],
)
def test_bad_plans_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingPlan(**settings)


def test_what_does_not_fit_is_refused_with_its_size():
    assert memory_needed(7394, 2048) == 3 * 7394 * 2048 * 4
    with pytest.raises(ValueError, match=r"dim=1000000000 with adamw needs 8.87e\+04 GB, .* GB are free"):
        start_cls(7394, 10**9, np.random.default_rng(0))


def test_a_run_that_diverges_stops_with_a_sentence():
    counts, labels = some_documents()
    model = ClsAttention.start(50, 16, np.random.default_rng(1))
    model.value[:] = np.nan
    with pytest.raises(ValueError, match="loss became nan in epoch 0"):
        train_cls(model, counts, labels, TrainingPlan(epochs=1), np.random.default_rng(2))
