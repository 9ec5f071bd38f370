"""The pick, its runner-up and its radius: against brute force and against an attack."""

import families
import pytest
import torch

from whichtoken.inspection import AttentionProbe
from whichtoken.inspection.reading import pick


@pytest.fixture(scope="module", params=["bert", "llama", "mistral", "gemma2", "gpt-oss"])
def probe(request):
    dtype = torch.float32 if request.param == "gpt-oss" else torch.float64
    attention = "eager" if request.param in families.NO_SDPA else "sdpa"
    model, inputs = families.FAMILIES[request.param](attention, dtype), families.batch()
    with torch.no_grad(), AttentionProbe(model, special_tokens=[0, 5]) as probe:
        model(**inputs)
    return probe


def test_picks_are_the_two_largest_weights(probe):
    weights, picks = probe.weights(1), probe.picks(1)
    expected = weights.topk(2, -1)
    real = picks.valid[:, None].expand_as(picks.token) & (picks.runner_up >= 0)
    assert real.sum() > 50
    assert torch.equal(picks.token[real], expected.indices[..., 0][real])
    assert torch.equal(picks.runner_up[real], expected.indices[..., 1][real])
    assert torch.allclose(picks.weight[real], expected.values[..., 0][real], rtol=1e-5)
    gap = (expected.values[..., 0] / expected.values[..., 1]).log()
    assert torch.allclose(picks.gap[real], gap[real], atol=1e-4)


def test_entropy_and_special_mass(probe):
    weights, picks = probe.weights(1), probe.picks(1)
    real = picks.valid[:, None].expand_as(picks.token)
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    assert torch.allclose(picks.entropy[real], entropy[real], atol=1e-5)
    special = torch.isin(probe.tokens, torch.tensor([0, 5]))
    assert torch.allclose(picks.special_mass[real], (weights * special[:, None, None]).sum(-1)[real], atol=1e-6)
    assert (picks.effective_tokens[real] >= 1 - 1e-5).all()


def test_special_tokens_can_be_left_out(probe):
    picks = probe.picks(1, special=False)
    named = probe.tokens[torch.arange(len(picks.token))[:, None, None], picks.token.clamp_min(0)]
    there = picks.token >= 0
    assert not torch.isin(named[there], torch.tensor([0, 5])).any()


def test_the_radius_is_exactly_where_the_pick_flips(probe):
    """At 1.001 of the radius the worst change of the query flips the pick; at .999 no change does."""
    reading, picks = probe.reading(1), probe.picks(1)
    real = (picks.valid[:, None] & (picks.runner_up >= 0)).nonzero().tolist()
    generator = torch.Generator().manual_seed(0)
    for b, h, q in real[:: max(1, len(real) // 40)]:
        query, keys = reading.query[b, h, q].double(), reading.key[b, reading.group[h]].double()
        scores = reading.logits(precise=True, capped=False)[b, h, q]
        fixed = torch.where(scores > -torch.inf, scores - reading.scale * keys @ query, -torch.inf)  # mask and bias
        keys = keys.nan_to_num(0.0)  # padding may hold anything
        chosen, radius = int(picks.token[b, h, q]), float(picks.radius[b, h, q])
        towards = keys - keys[chosen]
        towards = towards / towards.norm(dim=1, keepdim=True).clamp_min(1e-12)
        noise = torch.randn(50, len(query), generator=generator, dtype=torch.float64)
        directions = torch.cat([towards, noise / noise.norm(dim=1, keepdim=True)])
        for share, flips in ((0.999, False), (1.001, True)):
            winners = (reading.scale * (query + share * radius * directions) @ keys.T + fixed).argmax(1)
            assert bool((winners != chosen).any()) == flips


def reading_of(scores):
    """A reading whose scores for one query are given."""
    from whichtoken.inspection.reading import Mask, Reading

    keys = torch.tensor(scores, dtype=torch.float64)[None, None, :, None]
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.long)
    return Reading(one, keys, keys, 1.0, Mask(), zero, zero[0], zero[0])


def test_the_first_of_equals_is_picked_with_gap_zero():
    picks = pick(reading_of([1.0, 3.0, 2.0, 3.0]))
    assert (picks.token.item(), picks.runner_up.item(), picks.gap.item()) == (1, 3, 0.0)


def test_a_token_alone_has_no_rival():
    picks = pick(reading_of([1.0]))
    assert (picks.token.item(), picks.runner_up.item(), picks.gap.item()) == (0, -1, float("inf"))
    assert picks.radius.item() == float("inf")
    assert picks.weight.item() == 1.0


def test_with_everything_excluded_nothing_is_picked():
    picks = pick(reading_of([1.0, 2.0]), exclude=torch.ones(1, 1, 2, dtype=torch.bool))
    assert (picks.token.item(), picks.weight.item(), picks.gap.item()) == (-1, 0.0, 0.0)


def test_long_texts_are_read_in_blocks(probe, monkeypatch):
    whole = probe.picks(1)
    monkeypatch.setattr("whichtoken.inspection.reading.BLOCK", 100)
    parts = probe.picks(1)
    for name in ("token", "runner_up", "gap", "weight", "entropy", "radius"):
        ours, expected = (getattr(item, name).movedim(1, 2)[whole.valid] for item in (parts, whole))
        assert torch.allclose(ours, expected, atol=1e-6), name
