"""Two-layer training against autograd and torch.optim.AdamW on padded ids."""

import numpy as np
import pytest
import torch
from benchmarks._padded_ids import TwoLayerAttentionModule, padded_ids

from whichtoken.theory.trained_embeddings.cls_model import ClsAttention
from whichtoken.theory.trained_embeddings.cls_training import train_cls
from whichtoken.theory.trained_embeddings.training_loop import Safeguards, TrainingPlan
from whichtoken.theory.trained_embeddings.two_layer import TwoLayerAttention, train_two_layer


def some_documents(n=24, vocabulary=30, length=6):
    rng = np.random.default_rng(0)
    law = np.append(1 / np.arange(1, vocabulary), 0.0)
    return rng.multinomial(length, law / law.sum(), size=n), np.where(rng.random(n) < 0.5, 1, -1)


@pytest.mark.parametrize(("train_value", "logit_scale"), [(False, 1.0), (True, 1.0), (True, 11**-0.5)])
def test_trajectory_is_torchs(train_value, logit_scale):
    counts, labels = some_documents()
    plan = TrainingPlan(lr=0.01, epochs=3, batch_size=5, weight_decay=0.05, drops=(2,), train_value=train_value)
    model = TwoLayerAttention.start(30, 11, np.random.default_rng(1), np.float64, logit_scale)
    module = TwoLayerAttentionModule(model)
    trained = [module.embedding.weight, module.cls, *([module.value] if train_value else [])]
    optimizer = torch.optim.AdamW(trained, lr=plan.lr, weight_decay=plan.weight_decay)
    rng, losses = np.random.default_rng(2), []
    for epoch in range(plan.epochs):
        optimizer.param_groups[0]["lr"] = plan.learning_rate(epoch)
        order, batches = rng.permutation(len(labels)), []
        for start in range(0, len(labels), plan.batch_size):
            rows = order[start : start + plan.batch_size]
            loss = module.loss(padded_ids(counts[rows]), torch.tensor(labels[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches.append(loss.item())
        losses.append(np.mean(batches))
    history = train_two_layer(model, counts, labels, plan, np.random.default_rng(2))
    np.testing.assert_allclose(history.losses, losses, rtol=1e-11)
    np.testing.assert_allclose(model.embeddings, module.embedding.weight.detach(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.cls, module.cls.detach(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.value, module.value.detach(), rtol=0, atol=1e-10)


def test_resumed_run_equals_the_uninterrupted_one(tmp_path):
    counts, labels = some_documents()

    def run_to(epochs, checkpoint):
        model = TwoLayerAttention.start(30, 11, np.random.default_rng(1))
        plan = TrainingPlan(epochs=epochs, batch_size=5)
        guards = Safeguards(checkpoint=checkpoint, held_out=(counts[:9], labels[:9]))
        return model, train_two_layer(model, counts, labels, plan, np.random.default_rng(2), guards=guards)

    whole, history = run_to(4, None)
    run_to(2, tmp_path / "run")
    resumed, resumed_history = run_to(4, tmp_path / "run")
    assert resumed_history.losses == history.losses
    assert np.array_equal(resumed.embeddings, whole.embeddings)


def test_other_optimizers_are_refused():
    counts, labels = some_documents()
    model = TwoLayerAttention.start(30, 11, np.random.default_rng(1))
    with pytest.raises(ValueError, match="optimizer='sgd' must be adamw"):
        train_two_layer(model, counts, labels, TrainingPlan("sgd"), np.random.default_rng(0))


def test_models_are_not_trained_as_if_they_had_another_number_of_layers(tmp_path):
    counts, labels = some_documents()
    plan, rng = TrainingPlan(epochs=1, batch_size=5), np.random.default_rng(0)
    guards = Safeguards(checkpoint=tmp_path / "run")
    one, two = ClsAttention.start(30, 11, rng), TwoLayerAttention.start(30, 11, rng)
    with pytest.raises(ValueError, match="model of type TwoLayerAttention must be ClsAttention"):
        train_cls(two, counts, labels, plan, rng)
    with pytest.raises(ValueError, match="model of type ClsAttention must be TwoLayerAttention"):
        train_two_layer(one, counts, labels, plan, rng)
    train_cls(one, counts, labels, plan, rng, guards=guards)
    with pytest.raises(ValueError, match="was written with engine=ClsAdamW, this run has TwoLayerAdamW"):
        train_two_layer(two, counts, labels, plan, rng, guards=guards)
