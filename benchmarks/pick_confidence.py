"""A published reaction mapper whose head is the product: does the gap of a pick tell right from wrong?

RXNMapper (ALBERT, 12 layers of 8 heads; head 5 of layer 10, both counted from 0, is its map) finds for each atom of a
product the atom of the reactants that it came from. The reference is two other mappers where they agree, up to symmetry
of the molecules; symmetric atoms are one choice. Its own confidence is that of its published procedure: both directions of
attention added, other elements left out, neighbors of mapped atoms favored 90 times, greedily.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from whichtoken.datasets.corpora import data_file
from whichtoken.inspection import AttentionProbe
from whichtoken.inspection.confidence import PickConfidence
from whichtoken.inspection.loading import load_transformer, packaged_model
from whichtoken.lab.benchmark import Beside, Measure
from whichtoken.tables import read_table

PART = "Transformers"
QUESTION = "Does the gap of a pick tell right picks from wrong ones?"
WHY = {
    "attention weight": {
        "win": (
            "A weight is small where symmetric atoms share it, and large where all rivals are poor; the gap compares with the "
            "best real rival."
        ),
    },
    "gap to any other atom, symmetric ones too": {
        "win": "Symmetric atoms are not rivals.",
    },
    "attention weight of all symmetric atoms together": {
        "win": "The weight also depends on all the tokens that were never in competition.",
    },
    "the mapper's own confidence": {
        "win": (
            "The mapper's whole procedure makes far fewer mistakes, and leaves few for its confidence to detect. This row "
            "compares confidences, not the quality of the maps."
        ),
    },
}

LAYER, HEAD = 10, 5
FAVOR = 90.0  # of neighbors of mapped atoms, in the mapper's own procedure
LONGEST = 512
FIRST = (
    1000  # row of the table: the earlier ones were looked at when it was chosen to count symmetric atoms as one choice
)
WIDEST = 1e3  # gap of a pick without rival
COLUMNS = ("gap", "plain_gap", "weight", "weight_alike", "own", "right", "own_right")
ROUNDS = 16  # of looking one bond further
TOKEN = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
ATOM = re.compile(r"\[[0-9]*([A-Za-z][a-z]?)[^:\]]*(?::([0-9]+))?]")
ORGANIC = re.compile(r"\[(Br|Cl|B|C|N|O|S|P|F|I|b|c|o|s|p|n)(H[0-9]?)?:[0-9]+]")


class Side(NamedTuple):
    """The atoms of reactants or products: what they are, elements, atom maps, bonds, and the places of their tokens."""

    kinds: list[str]
    elements: list[str]
    maps: list[int]
    bonds: list[tuple[int, int, str]]
    places: list[int]

    def neighbors(self) -> NDArray[np.bool_]:
        """Which atoms are bonded."""
        flags = np.zeros((len(self.kinds),) * 2, dtype=bool)
        for a, b, _ in self.bonds:
            flags[a, b] = flags[b, a] = True
        return flags

    def classes(self) -> list[int]:
        """A name for each atom, the same for symmetric atoms (iterated neighborhoods)."""
        near: list[list[tuple[int, str]]] = [[] for _ in self.kinds]
        for a, b, sign in self.bonds:
            near[a].append((b, sign))
            near[b].append((a, sign))
        names = [hash(kind) for kind in self.kinds]
        for _ in range(ROUNDS):
            names = [
                hash((name, tuple(sorted((names[j], sign) for j, sign in around))))
                for name, around in zip(names, near, strict=True)
            ]
        return names


def measure() -> Iterator[Measure]:
    """Yield how well gap, weight and the mapper's own confidence tell right picks from wrong ones."""
    picks = read_picks()
    right, reaction = picks["right"], picks["reaction"]
    case = f"{len(np.unique(reaction))} reactions, {len(right)} atoms, {100 * np.mean(~right):.2f} % wrong"
    gap = PickConfidence(picks["gap"], right, reaction)
    low, high = gap.auroc_interval()
    yield Measure(
        case, "AUROC of the gap", gap.auroc, 0.88, detail=f"95 % interval {low:.3f} to {high:.3f}, over reactions"
    )
    peers = {
        "attention weight": "weight",
        "gap to any other atom, symmetric ones too": "plain_gap",
        "attention weight of all symmetric atoms together": "weight_alike",
    }
    for name, key in peers.items():
        peer = PickConfidence(picks[key], right, reaction)
        low, high = gap.auroc_difference(peer)
        detail = f"{gap.auroc:.3f} against {peer.auroc:.3f}; 95 % interval {low:.3f} to {high:.3f}"
        target = 0.05 if key == "weight" else 0.0
        what, beside = (
            f"AUROC of the gap above that of the {name}",
            Beside(name, gap.auroc, peer.auroc, "AUROC", True, (low, high)),
        )
        yield Measure(case, what, gap.auroc - peer.auroc, target, detail=detail, beside=beside)
        ours, theirs = gap.risk(0.8), peer.risk(0.8)
        detail = f"{100 * ours:.2f} % against {100 * theirs:.2f} %, {100 * gap.risk(1.0):.2f} % without abstaining"
        limit = 0.6 if key == "weight" else 1.0
        what = f"error at 80 % coverage over that of the {name}"
        beside = Beside(name, 100 * ours, 100 * theirs, "% wrong among the most confident 80 %")
        yield Measure(case, what, ours / theirs, limit, at_least=False, detail=detail, beside=beside)
    own = PickConfidence(picks["own"], picks["own_right"], reaction)
    detail = f"{gap.auroc:.3f} against {own.auroc:.3f} for the picks of its procedure, {100 * own.risk(1.0):.2f} % of them wrong"
    yield Measure(
        case,
        "AUROC of the gap above that of the mapper's own confidence, each for its own picks",
        gap.auroc - own.auroc,
        0,
        detail=detail,
        beside=Beside("the mapper's own confidence", gap.auroc, own.auroc, "AUROC", True),
    )
    yield Measure(case, "calibration error of the gap, cross-fitted", gap.calibration_error(), 0.02, at_least=False)


def read_picks(first: int = FIRST) -> dict[str, NDArray[Any]]:
    """One entry per product atom with a reference: scores of the pick, whether it is right, and its reaction."""
    folder = packaged_model("rxnmapper")
    model = load_transformer(folder, classifier=False)
    vocabulary = {word: i for i, word in enumerate((folder / "vocab.txt").read_text().splitlines())}
    table = read_table(data_file("mapped_reactions.parquet"))[first:]
    found: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "reaction")}
    for number, row in enumerate(table.itertuples(index=False)):
        for values in _picks(model, vocabulary, row):
            for name, value in zip((*COLUMNS, "reaction"), (*values, number), strict=True):
                found[name].append(value)
    return {name: np.asarray(values) for name, values in found.items()}


def _picks(model: Any, vocabulary: dict[str, int], row: Any) -> Iterator[tuple[Any, ...]]:
    """The values of `COLUMNS` for each atom of a reaction whose reference mappers agree."""
    reference = _reference(row.graphormer, row.local_mapper)
    text = re.sub(r":[0-9]+]", "]", ORGANIC.sub(_plain, row.rxn_mapper))
    tokens = TOKEN.findall(text)
    if reference is None or "".join(tokens) != text or len(tokens) + 2 > LONGEST:
        return
    ids = torch.tensor([[vocabulary.get(token, vocabulary["[UNK]"]) for token in ["[CLS]", *tokens, "[SEP]"]]])
    origin, wanted = (side.classes() for side in _sides(row.rxn_mapper))
    reactants, products = _sides(text)
    alike = torch.arange(ids.shape[1])[None].clone()  # a number for each token, the same for symmetric atoms
    alike[0, reactants.places] = torch.tensor([len(tokens) + 2 + origin.index(name) for name in origin])
    exclude = torch.ones(1, 1, len(products.places), ids.shape[1], dtype=torch.bool)
    elements = np.array(reactants.elements)
    for i, element in enumerate(
        products.elements
    ):  # as the mapper does: only atoms of the reactants, of the same element
        exclude[0, 0, i, np.array(reactants.places)[elements == element]] = False
    with torch.no_grad(), AttentionProbe(model, layers=[LAYER], heads=[HEAD]) as probe:
        model(ids)
    picks = probe.picks(LAYER, queries=products.places, exclude=exclude, alike=alike)
    plain = probe.picks(LAYER, queries=products.places, exclude=exclude)
    weights = probe.weights(LAYER)[0, 0].numpy()
    own, own_pick = _own_procedure(weights, reactants, products)
    for i, place in enumerate(products.places):
        token = int(picks.token[0, 0, i])
        if token < 0 or wanted[i] not in reference:
            continue
        together = float(weights[place, (alike[0] == alike[0, token]).numpy()].sum())
        kinds = reference[wanted[i]]
        yield (
            min(float(picks.gap[0, 0, i]), WIDEST), min(float(plain.gap[0, 0, i]), WIDEST),
            float(weights[place, token]), together, own[i],
            origin[reactants.places.index(token)] in kinds, own_pick[i] >= 0 and origin[own_pick[i]] in kinds,
        )  # fmt: skip


def _reference(first: str, second: str) -> dict[int, set[int]] | None:
    """For each kind of product atom the kinds of reactant atoms that it came from; nothing where the mappers disagree."""
    found = [_origins(text) for text in (first, second)]
    if found[0] is None or found[0] != found[1]:
        return None
    return {name: set(origins) for name, origins in found[0].items()}


def _origins(text: str) -> dict[int, list[int]] | None:
    if text.count(">>") != 1:
        return None
    reactants, products = _sides(text)
    by_map = dict(zip(reactants.maps, reactants.classes(), strict=True))
    origins: dict[int, list[int]] = {}
    for name, number in zip(products.classes(), products.maps, strict=True):
        if number == 0 or number not in by_map:
            return None
        origins.setdefault(name, []).append(by_map[number])
    return {name: sorted(kinds) for name, kinds in origins.items()}


def _sides(text: str) -> tuple[Side, Side]:
    """Reactants and products of a reaction; places count the tokens of the whole, with [CLS] in front."""
    left, right = text.split(">>")
    before = len(TOKEN.findall(left))
    return _side(left, 1), _side(right, before + 2)


def _side(text: str, first: int) -> Side:
    kinds, elements, maps, places = [], [], [], []
    bonds: list[tuple[int, int, str]] = []
    stack: list[int] = []
    rings: dict[str, tuple[int, str]] = {}
    last, bond = -1, ""
    for place, token in enumerate(TOKEN.findall(text)):
        atom = ATOM.fullmatch(token) if token[0] == "[" else None
        if atom or token[0].isalpha():
            kinds.append(re.sub(r"[@]|:[0-9]+", "", token))
            elements.append((atom[1] if atom else token).rstrip("H").upper() or "H")
            maps.append(int(atom[2] or 0) if atom else 0)
            places.append(first + place)
            if last >= 0:
                bonds.append((last, len(kinds) - 1, bond))
            last, bond = len(kinds) - 1, ""
        elif token == "(":
            stack.append(last)
        elif token == ")":
            last = stack.pop()
        elif token in ".~":
            last, bond = -1, ""
        elif token[0].isdigit() or token[0] == "%":
            if token in rings:
                other, sign = rings.pop(token)
                bonds.append((other, last, bond or sign))
            else:
                rings[token] = (last, bond)
            bond = ""
        else:
            bond = token if token in "=#" else ""
    return Side(kinds, elements, maps, bonds, places)


def _plain(match: re.Match[str]) -> str:
    """An atom without its map and without the brackets that it needs no longer."""
    return "[nH]" if match[1] == "n" and match[2] else match[1]


def _own_procedure(weights: NDArray[np.float32], reactants: Side, products: Side) -> tuple[list[float], list[int]]:
    """The published procedure of RXNMapper: confidence and origin of each product atom."""
    p, r = products.places, reactants.places
    both = weights[np.ix_(p, r)].astype(float) + weights[np.ix_(r, p)].T.astype(float)
    both *= np.array(products.elements)[:, None] == np.array(reactants.elements)[None]
    near = [side.neighbors() for side in (products, reactants)]
    confidence, origins = np.ones(len(p)), np.full(len(p), -1)
    for _ in p:
        total = both.sum(1, keepdims=True)
        share = np.divide(both, total, out=np.zeros_like(both), where=total > 0)
        atom, origin = np.unravel_index(share.argmax(), share.shape)
        if np.isclose(share[atom, origin], 0.0):
            break
        confidence[atom], origins[atom] = share[atom, origin], origin
        both[np.ix_(near[0][atom], near[1][origin])] *= FAVOR
        both[atom], both[:, origin] = 0.0, 0.0
    return confidence.tolist(), origins.tolist()
