"""Stability of picks: sure ones stay, unsure ones do not, and nothing of the model changes."""

import families
import numpy as np
import torch

from whichtoken.inspection import AttentionProbe
from whichtoken.inspection.stability import pick_stability

TEXT = {
    "input_ids": torch.tensor([[3, 17, 25, 9, 41, 8, 30, 22, 51, 4]]),
    "attention_mask": torch.ones(1, 10, dtype=torch.long),
}


def test_a_wide_gap_is_stabler_than_a_narrow_one_and_the_model_stays_as_it_was():
    model = families.FAMILIES["bert"](dtype=torch.float32)
    before, mode = torch.random.get_rng_state(), model.training
    found = pick_stability(model, TEXT, special_tokens=[3, 4], repeats=12)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.training == mode
    for part in (found.dropout, found.truncation, found.synonyms):
        known = part[np.isfinite(part)]
        assert part.shape == (3, 4)
        assert ((known >= 0) & (known <= 1)).all()
    with torch.no_grad(), AttentionProbe(model, queries="cls") as probe:
        model(**TEXT)
    gap = np.stack([probe.picks(layer).gap[0, :, 0].numpy() for layer in range(3)])
    wide = gap > np.median(gap)
    assert found.dropout[wide].mean() > found.dropout[~wide].mean()


def test_without_dropout_and_change_every_pick_stays():
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = families._hugging_face("BertModel", "Bert", **families.SMALL, **still)("sdpa", torch.float32)
    found = pick_stability(model, TEXT, special_tokens=range(60), repeats=2)  # every token is special: no synonyms
    assert (found.dropout == 1).all()
    assert (found.synonyms == 1).all()
