import math

import numpy as np
import pytest
import torch

from whichtoken.datasets import AttentionTokens
from whichtoken.flows.limits import limit_problem
from whichtoken.flows.margin_norms import NORMS, margin_scale
from whichtoken.margin import key_query_svm
from whichtoken.optim import MirrorDescent

W = torch.zeros(10, 10)
KEYS_AND_QUERIES = [torch.zeros(10, 4), torch.zeros(10, 4)]
KNOWN = {
    "sgd": (torch.optim.SGD([W], lr=0.1), "entrywise", 2.0),
    "momentum": (torch.optim.SGD([W], lr=0.1, momentum=0.9, nesterov=True), "entrywise", 2.0),
    "adam, default eps": (torch.optim.Adam([W]), "entrywise", 2.0),
    "adam, no eps": (torch.optim.Adam([W], eps=0.0), "entrywise", math.inf),
    "adamw without decay": (torch.optim.AdamW([W], eps=0.0, weight_decay=0.0), "entrywise", math.inf),
    "rmsprop": (torch.optim.RMSprop([W], eps=0.0), "entrywise", math.inf),
    "muon": (torch.optim.Muon([W], weight_decay=0.0), "schatten", math.inf),
    "mirror": (MirrorDescent([W], lr=0.1, p=1.5), "entrywise", 1.5),
    "keys and queries": (torch.optim.SGD(KEYS_AND_QUERIES, lr=0.1), "schatten", 1.0),
}
UNKNOWN = {
    "weight_decay=0.01 keeps W bounded": torch.optim.AdamW([W]),
    "weight_decay=0.1 keeps W bounded": torch.optim.Muon([W]),
    "SGD with weight_decay=0.5 keeps W bounded": torch.optim.SGD([W], lr=0.1, weight_decay=0.5),
    "amsgrad=True never forgets": torch.optim.Adam([W], amsgrad=True),
    "for RMSprop with momentum or centered=True no limit is known": torch.optim.RMSprop([W], momentum=0.9),
    "for Adagrad no limit is known": torch.optim.Adagrad([W]),
    "for Adam on keys and queries apart no limit is known": torch.optim.Adam(KEYS_AND_QUERIES),
    "heads=2 trains a matrix for each head": MirrorDescent([W.clone()], lr=0.1, p=1.5, norm="schatten", heads=2),
    "maximize=True ascends": torch.optim.SGD([W], lr=0.1, maximize=True),
}


def small_problem():
    problem = AttentionTokens().sample(np.random.default_rng(3))
    return problem.tokens, problem.queries, problem.token_scores.argmax(axis=1)


@pytest.mark.parametrize("name", KNOWN)
def test_certified_limit_of_a_torch_optimizer(name):
    optimizer, norm, p = KNOWN[name]
    found = limit_problem(optimizer, *small_problem())
    assert (found.norm, found.p) == (norm, p)
    expected = key_query_svm(*small_problem(), p=p, norm=norm)
    assert found.certificate.margin == expected.margin
    assert found.certificate.gap < 1e-6
    assert type(optimizer).__name__ in found.statement
    assert "arXiv" in found.source


@pytest.mark.parametrize("words", UNKNOWN)
def test_says_in_one_sentence_why_no_limit_is_known(words):
    found = limit_problem(UNKNOWN[words], *small_problem())
    assert found.certificate is None
    assert found.norm is None
    assert words in found.statement
    assert "\n" not in found.statement
    assert ". " not in found.statement


def test_pace_says_whether_constant_steps_are_small_enough():
    """Adam forgets log(1 / beta2) / 2 a step, Muon log(1 / momentum); gradient descent has nothing to forget."""
    adam = limit_problem(torch.optim.Adam([W], lr=0.02, eps=0.0), *small_problem())
    assert adam.pace == pytest.approx(0.02 * adam.certificate.margin / (math.log(1 / 0.999) / 2), rel=1e-12)
    muon = limit_problem(torch.optim.Muon([W], lr=0.02, weight_decay=0.0), *small_problem())
    assert muon.pace == pytest.approx(0.02 * muon.certificate.margin / math.log(1 / 0.95), rel=1e-12)
    assert limit_problem(torch.optim.SGD([W], lr=0.02, momentum=0.9), *small_problem()).pace == 0.0


def test_who_trains_keys_and_queries_may_say_so():
    optimizer = torch.optim.SGD([W], lr=0.1)
    assert limit_problem(optimizer, *small_problem(), factored=True).p == 1.0


def test_refuses_what_is_no_optimizer():
    with pytest.raises(ValueError, match="must be an instance of a torch optimizer"):
        limit_problem("adam", *small_problem())


def test_refuses_groups_that_disagree():
    groups = [{"params": [W], "eps": 0.0}, {"params": [torch.zeros(3)]}]
    with pytest.raises(ValueError, match="different options"):
        limit_problem(torch.optim.Adam(groups), *small_problem())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": np.full((2, 3, 2), np.nan)}, "finite"),
        ({"tokens": np.ones((2, 1, 2)), "selected": [0, 0]}, "there is nothing to separate"),
        ({"selected": [0, 7]}, "selected"),
    ],
    ids=["not finite", "one token", "no such token"],
)
def test_refuses_bad_problems_in_one_sentence(change, sentence):
    rng = np.random.default_rng(0)
    given = {
        "tokens": rng.standard_normal((2, 3, 2)),
        "queries": rng.standard_normal((2, 2)),
        "selected": [0, 1],
        **change,
    }
    with pytest.raises(ValueError, match=sentence) as caught:
        limit_problem(torch.optim.SGD([W], lr=0.1), **given)
    assert "\n" not in str(caught.value)


def test_one_dimension_has_a_limit():
    tokens, queries = np.array([[[1.0], [0.5], [-1.0]]]), np.array([[2.0]])
    found = limit_problem(torch.optim.Muon([torch.zeros(1, 1)], weight_decay=0.0), tokens, queries, [0])
    assert found.certificate.margin == pytest.approx(1.0, rel=1e-6)


def test_limit_direction_has_all_of_its_own_margin_and_less_of_others():
    problem = small_problem()
    scale = margin_scale(*problem)
    assert scale.gap < 1e-6
    for name, certificate in scale.certificates.items():
        shares = scale.shares(7.0 * certificate.direction)
        assert shares[name] == pytest.approx(1.0, abs=2e-6)
        assert max(share for other, share in shares.items() if other != name) < 1.0


def test_a_token_that_is_behind_has_a_negative_share():
    tokens, queries, selected = small_problem()
    scale = margin_scale(tokens, queries, selected, {"l2": NORMS["l2"]})
    assert scale.shares(-scale.certificates["l2"].direction)["l2"] < 0


def test_tokens_that_cannot_be_separated_have_no_scale():
    tokens = np.array([[[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]])
    with pytest.raises(ValueError, match="cannot be separated"):
        margin_scale(tokens, np.array([[1.0, 0.0]]), [0])


def test_names_of_the_room_are_functions_whatever_was_imported_before():
    import importlib

    flows = importlib.import_module("whichtoken.flows")
    for name in flows.__all__:
        assert callable(getattr(flows, name)), name
        assert callable(getattr(flows, name)), name  # importing its module must not take its place


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (torch.optim.SGD([torch.zeros(3, 3)], lr=0.1), "trains a matrix of shape"),
        (torch.optim.SGD([W], lr=0.0), "lr=0 of this optimizer must be positive"),
    ],
)
def test_an_optimizer_that_cannot_train_these_weights_is_refused(optimizer, message):
    with pytest.raises(ValueError, match=message):
        limit_problem(optimizer, *small_problem())
