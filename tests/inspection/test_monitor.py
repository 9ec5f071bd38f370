"""Watching attention during training: what is logged is what the probe reads, and trouble is said once."""

import families
import numpy as np
import pytest
import torch

from whichtoken.inspection import AttentionMonitor, AttentionProbe
from whichtoken.inspection.monitor import AttentionWarning


@pytest.mark.filterwarnings("ignore::whichtoken.inspection.monitor.AttentionWarning")
def test_state_is_that_of_the_probe_and_only_some_steps_have_hooks():
    model, inputs = families.FAMILIES["bert"](), families.batch()
    monitor = AttentionMonitor(model, every=3, texts=3, queries=12)
    steps(monitor, model, inputs, 7)
    assert [state.step for state in monitor.history] == [0, 3, 6]
    assert monitor.to_frame().groupby("step").size().to_dict() == dict.fromkeys((0, 3, 6), monitor.history[0].gap.size)
    with torch.no_grad(), AttentionProbe(model) as probe:
        model(**inputs)
    picks = probe.picks(1)
    real = picks.valid[:, None].expand_as(picks.gap)
    for head in range(4):
        gaps = picks.gap[:, head][real[:, head]]
        assert monitor.history[0].gap[1, head] == pytest.approx(float(gaps.median()))
        assert monitor.history[0].max_logit[1, head] == pytest.approx(
            float(picks.largest_logit[:, head][real[:, head]].max())
        )
    assert set(monitor.history[0].summary()) == {
        "attention/gap", "attention/effective_tokens", "attention/sink_share", "attention/max_logit",
    }  # fmt: skip
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def steps(monitor, model, inputs, count):
    for _ in range(count):
        with monitor:
            model(**inputs)


def test_blow_up_and_collapse_are_said_once():
    model, inputs = families.FAMILIES["bert"](), families.batch()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight *= 1e4
    monitor = AttentionMonitor(model, every=1)
    with pytest.warns(AttentionWarning) as said:
        steps(monitor, model, inputs, 3)
    sentences = [str(warning.message) for warning in said]
    assert len(sentences) == 2
    assert "blows up: layer" in sentences[0]
    assert "collapses: 12 of 12 heads" in sentences[1]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the families' own code
def test_layers_that_cannot_be_read_do_not_move_the_others():
    """The first layer of this hybrid is refused: its weights stay, and the second is the one that is clipped."""
    sweep = pytest.importorskip("sweep")
    model, inputs = sweep.build("minimax", "MiniMaxForCausalLM"), sweep.batch()
    read = [name for name, part in model.named_modules() if type(part).__name__ == "MiniMaxAttention"]
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    monitor = AttentionMonitor(model, every=1)
    with torch.no_grad():
        steps(monitor, model, inputs, 1)
        layer = monitor.history[0].layers.tolist()
        assert [monitor._probe.names[number] for number in layer] == read
        monitor.qk_clip = 0.5 * float(monitor.history[0].max_logit.max())
        steps(monitor, model, inputs, 2)
    changed = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert changed
    assert all(name.startswith(read[0]) for name in changed)
    assert set(monitor.to_frame()["layer"]) == set(layer)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the families' own code
def test_a_model_that_cannot_be_watched_is_said_once():
    sweep = pytest.importorskip("sweep")
    model, inputs = sweep.build("rwkv", "RwkvForCausalLM"), sweep.batch()
    monitor = AttentionMonitor(model, every=1)
    with pytest.warns(AttentionWarning, match="nothing is watched: layer 0") as said, torch.no_grad():
        steps(monitor, model, {"input_ids": inputs["input_ids"]}, 2)
    assert len([1 for warning in said if "nothing is watched" in str(warning.message)]) == 1


def test_a_loop_that_was_interrupted_in_a_step_goes_on():
    """A trainer that is stopped by an exception does not call back; training may begin again with the same monitor."""
    model, inputs = families.FAMILIES["bert"](), families.batch()
    monitor = AttentionMonitor(model, every=1)
    monitor.__enter__()
    steps(monitor, model, inputs, 1)
    assert len(monitor.history) == 1
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_clip_that_is_not_possible_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match="qk_clip cannot scale the queries and keys of Qwen3Attention"):
        AttentionMonitor(families.FAMILIES["qwen3"](), qk_clip=100.0)


def test_a_failing_step_leaves_no_hooks():
    model = families.FAMILIES["bert"]()
    monitor = AttentionMonitor(model, every=1)
    with pytest.raises(Exception, match="specify"), monitor:
        model()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not monitor.history


class Rows(torch.utils.data.Dataset):
    """Eight texts of the same length with a label."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        ids = torch.randint(5, 11, (6,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(i % 2)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the trainer
def test_a_real_trainer_logs_attention_beside_the_loss(tmp_path, monkeypatch):
    pytest.importorskip("accelerate", reason="pip install accelerate: the Trainer of transformers needs it")
    # the folder tests/datasets is not the package of that name
    monkeypatch.setattr("transformers.trainer.is_datasets_available", lambda: False)
    logged = []
    model = families.tiny_classifier()
    monitor = AttentionMonitor(model, every=2, log=logged.append)
    options = families.transformers.TrainingArguments(
        tmp_path, per_device_train_batch_size=2, max_steps=4, report_to=[], use_cpu=True, logging_steps=1, save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = families.transformers.Trainer(
        model, options, train_dataset=Rows(), callbacks=[monitor.trainer_callback()]
    )
    trainer.train()
    assert [state.step for state in monitor.history] == [0, 2]
    assert [entry["step"] for entry in logged] == [0.0, 2.0]
    assert sum("attention/max_logit" in entry for entry in trainer.state.log_history) == 2
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lightning
def test_a_real_lightning_loop_logs_attention(tmp_path):
    try:
        lightning = pytest.importorskip("pytorch_lightning", reason="pip install lightning")
    except ImportError:
        pytest.skip("pip install lightning")
    model = families.tiny_classifier()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, number):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    monitor = AttentionMonitor(model, every=2)
    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[monitor.lightning_callback()], default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Rows(), batch_size=2))
    assert [state.step for state in monitor.history] == [0, 2]
    assert "attention/max_logit" in trainer.callback_metrics


@pytest.mark.filterwarnings("ignore::whichtoken.inspection.monitor.AttentionWarning")
@pytest.mark.parametrize("family", ["bert", "llama", "torch"])
def test_a_clipped_head_has_the_logit_that_was_asked_for(family):
    model = families.TorchEncoder() if family == "torch" else families.FAMILIES[family]()
    inputs = families.batch()
    monitor = AttentionMonitor(model, every=1, qk_clip=1.5)
    steps(monitor, model, inputs, 1)
    before = monitor.history[0].max_logit
    assert (before > 1.5).any()
    # the first layer alone: what the others are given changes with it
    steps(monitor, model, inputs, 1)
    expected = np.minimum(before[0], 1.5)
    assert monitor.history[1].max_logit[0] == pytest.approx(expected, rel=1e-6)


FAST = 0.3  # learning rate of the projections


def train(clip):
    """A small attention classifier whose queries and keys learn too fast; its last loss and largest logit."""
    torch.manual_seed(0)
    model = families.TorchEncoder(dtype=torch.float32)
    head = torch.nn.Linear(32, 2)
    monitor = AttentionMonitor(model, every=1, qk_clip=clip)
    fast = [layer.self_attn.in_proj_weight for layer in model.encoder.layers]
    slow = [p for p in [*model.parameters(), *head.parameters()] if not any(p is other for other in fast)]
    optimizer = torch.optim.Adam([{"params": fast, "lr": FAST}, {"params": slow, "lr": 2e-3}])
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(60):
        ids = torch.randint(3, 60, (16, 8), generator=generator)
        labels = (ids[:, 1] > 30).long()
        with monitor:
            hidden = model(ids, torch.ones_like(ids))
        loss = torch.nn.functional.cross_entropy(head(hidden[:, 0]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.mean(losses[-10:]), max(float(state.max_logit.max()) for state in monitor.history)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::whichtoken.inspection.monitor.AttentionWarning")
def test_the_clip_holds_logits_that_explode_without_it():
    loss, logit = train(None)
    clipped_loss, clipped_logit = train(20.0)
    assert logit > 1000
    assert clipped_logit < 0.1 * logit
    assert clipped_loss < loss - 0.2


def test_a_monitor_in_training_reads_what_dropout_hides():
    model, inputs = families.tiny_classifier().train(), families.batch()
    inputs["input_ids"] = inputs["input_ids"].clamp_max(11)
    monitor = AttentionMonitor(model, every=1)
    with monitor:
        model(**inputs)
    assert monitor.history[0].gap.shape == (2, 4)


def test_wrong_settings_are_one_sentence():
    with pytest.raises(ValueError, match="every=0 must be a whole number of at least 1"):
        AttentionMonitor(families.FAMILIES["bert"](), every=0)
    with pytest.raises(ValueError, match="qk_clip=-1 must be positive"):
        AttentionMonitor(families.FAMILIES["bert"](), qk_clip=-1)
