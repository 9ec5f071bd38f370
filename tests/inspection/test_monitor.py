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


def test_a_failing_step_leaves_no_hooks():
    model = families.FAMILIES["bert"]()
    monitor = AttentionMonitor(model, every=1)
    with pytest.raises(Exception, match="specify"), monitor:
        model()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not monitor.history


@pytest.mark.filterwarnings("ignore::whichtoken.inspection.monitor.AttentionWarning")
def test_the_trainer_callback_logs(tmp_path):
    model, inputs = families.FAMILIES["bert"](), families.batch()
    monitor = AttentionMonitor(model, every=2)
    callback = monitor.trainer_callback()
    state = type("State", (), {"log_history": [], "global_step": 5})()
    for _ in range(3):
        callback.on_step_begin(None, state, None)
        model(**inputs)
        callback.on_step_end(None, state, None)
    assert len(state.log_history) == 2
    assert np.isfinite(state.log_history[0]["attention/gap"])


def test_wrong_settings_are_one_sentence():
    with pytest.raises(ValueError, match="every=0 must be a whole number of at least 1"):
        AttentionMonitor(families.FAMILIES["bert"](), every=0)
