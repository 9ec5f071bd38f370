"""What each theory asks and finds, in plain words: the texts of the overview. States and counts come from the runs.

The order is that in which a newcomer understands them: first attention finds something (a signal, words, a group of
variables), then where training ends and what the optimiser has to do with it, last how fast training can be.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A sentence and the verdicts that bear it: those of `experiment` whose code fits `pattern`."""

    sentence: str
    experiment: str
    pattern: str


@dataclass(frozen=True)
class Theory:
    """One card of the overview."""

    id: str  # the part of a claim's id before the slash
    name: str
    question: str
    about: str  # the same within a sentence
    paper: str
    figure: tuple[str, int]  # a claim, and which panel of its figure
    caption: str
    headlines: tuple[Finding, ...]
    fails: Finding


THEORIES = (
    Theory(
        id="sparse-tokens",
        name="Sparse tokens",
        question="Can attention find a weak signal that hides in a few of many tokens, and how much data does it need?",
        about="finding a weak signal in a few of many tokens",
        paper="Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification "
        "(arXiv 2509.25153)",
        figure=("sparse-tokens/errors", 0),
        caption="Test error against the number of training samples: lines are predicted, dots are trained.",
        headlines=(
            Finding(
                "Test error and training loss are what theory says before anything is trained.",
                "sparse-tokens/errors",
                "errors.t*",
            ),
            Finding(
                "Two gradient steps turn the query towards the signal exactly as far as predicted.",
                "sparse-tokens/alignment",
                "alignment.cosine.*",
            ),
            Finding(
                "A signal as strong as the logarithm of the length is enough for attention; linear scores need the square root.",
                "sparse-tokens/detection",
                "detection.*",
            ),
            Finding(
                "The classifier that users fit has the error that theory predicts for it.",
                "sparse-tokens/estimator",
                "estimator.test-error.*",
            ),
        ),
        fails=Finding(
            "With a query that is not aligned with the signal, attention does worse than plain averaging.",
            "sparse-tokens/regimes",
            "regimes.loses.*",
        ),
    ),
    Theory(
        id="trained-embeddings",
        name="Trained embeddings",
        question="How do embeddings come to know which words matter?",
        about="embeddings that learn which words matter",
        paper="Wu, Shevchenko, Oymak, Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens "
        "(arXiv 2505.17282)",
        figure=("trained-embeddings/levels", 1),
        caption="Each dot is a token: what its embedding says after training, against what it really says about the label.",
        headlines=(
            Finding(
                "One gradient step writes the importance of every token into its embedding.",
                "trained-embeddings/one-step",
                "one-step.rate.*",
            ),
            Finding(
                "After training, tokens are sorted by what they say about the label.",
                "trained-embeddings/levels",
                "levels.value.*",
            ),
            Finding(
                "The <cls> vector turns to the max-margin direction of the tokens that it selects.",
                "trained-embeddings/direction",
                "direction.limit.*",
            ),
            Finding(
                "Reviews show the same picture: the words that decide are those that matter.",
                "trained-embeddings/reviews",
                "reviews.value.*",
            ),
        ),
        fails=Finding(
            "Between small and large first steps lies a window in which attention settles on the wrong tokens.",
            "trained-embeddings/selection-window",
            "window.middle",
        ),
    ),
    Theory(
        id="group-sparse",
        name="Group-sparse selection",
        question="Can a transformer find the one group of variables that matters among many that do not?",
        about="finding the group of variables that matters",
        paper="Zhang, Meng, Cao, Transformer Learns Optimal Variable Selection in Group-Sparse Classification "
        "(arXiv 2504.08638)",
        figure=("group-sparse/trajectory", 0),
        caption="Training from fresh batches (lines) against the map that predicts it (dots).",
        headlines=(
            Finding(
                "Loss and attention follow, step by step, a map that can be computed without training.",
                "group-sparse/trajectory",
                "trajectory.attention.*",
            ),
            Finding(
                "Whatever the query, attention ends on the group that matters.",
                "group-sparse/attention-map",
                "attention-map.every-query.*",
            ),
            Finding(
                "What was found carries over: a new task on the same group needs fewer samples.",
                "group-sparse/transfer",
                "transfer.advantage",
            ),
            Finding(
                "Any orthogonal encoding of the positions will do.",
                "group-sparse/encodings",
                "encodings.invariance",
            ),
        ),
        fails=Finding(
            "The attention left on the other groups is not exponentially small in their number, as the paper has it.",
            "group-sparse/attention-map",
            "attention-map.exponential*",
        ),
    ),
    Theory(
        id="mirror-descent",
        name="Mirror descent",
        question="Training makes attention scores grow without end: in which direction, and who decides?",
        about="the direction in which training ends",
        paper="Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent: Generalized Max-Margin Token "
        "Selection (arXiv 2410.14581)",
        figure=("mirror-descent/direction", 1),
        caption="Distance from the certified max-margin direction while training, for four geometries.",
        headlines=(
            Finding(
                "The direction is that of a max-margin problem in the geometry of the optimiser.",
                "mirror-descent/direction",
                "direction.limit.*",
            ),
            Finding(
                "The regularisation path leads to the same direction.",
                "mirror-descent/path",
                "path.limit.*",
            ),
            Finding(
                "A smaller p gives sparser attention weights.",
                "mirror-descent/sparsity",
                "sparsity.*",
            ),
            Finding(
                "Trained together, attention and decoder end in one of a known family of such problems.",
                "mirror-descent/joint",
                "joint.family.*",
            ),
        ),
        fails=Finding(
            "That the sparse geometry classifies pictures better than Adam is not seen at these sizes.",
            "mirror-descent/vision",
            "vision.accuracy.*",
        ),
    ),
    Theory(
        id="optimisers",
        name="Optimisers",
        question="Which tokens, and which margin, do Adam, Muon and their relatives choose?",
        about="the tokens and margins that optimisers choose",
        paper="An atlas of our own, beginning from Tarzanagh, Li, Thrampoulidis, Oymak, Transformers as Support Vector "
        "Machines (arXiv 2308.16898) and Gronich, Vardi (arXiv 2602.16340)",
        figure=("optimisers/margins", 1),
        caption="How far each optimiser still is from the largest margin of its own norm, while training.",
        headlines=(
            Finding(
                "Every optimiser maximises the margin in the norm of which its steps are the steepest.",
                "optimisers/margins",
                "margins.limit.*",
            ),
            Finding(
                "Adam is sign descent while its second moments forget faster than gradients fall.",
                "optimisers/adam",
                "adam.sign.*",
            ),
            Finding(
                "Keys and queries that are trained apart end in the nuclear norm.",
                "optimisers/keys-queries",
                "keys-queries.own.gd",
            ),
            Finding(
                "From one start, optimisers do not all select the same tokens.",
                "optimisers/tokens",
                "tokens.same.*",
            ),
        ),
        fails=Finding(
            "Momentum that forgets too slowly misses the largest margin, however long the training.",
            "optimisers/momentum",
            "momentum.misses.*",
        ),
    ),
    Theory(
        id="attention-regression",
        name="Attention regression",
        question="Can attention be trained at a steady rate, however badly conditioned the problem?",
        about="how fast attention can be trained",
        paper="Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514)",
        figure=("attention-regression/convergence", 1),
        caption="Excess error against the number of gradients, each method at its best step size.",
        headlines=(
            Finding(
                "In the limit of many tokens structure-aware descent shrinks the loss by one factor a step, at any conditioning.",
                "attention-regression/convergence",
                "convergence.gram-quarter.*",
            ),
            Finding(
                "Over a long context attention is a linear map, up to an error with a known constant.",
                "attention-regression/limit",
                "limit.constant.*",
            ),
            Finding(
                "Trained on n tokens, the layer ends at an excess of order 1/n.",
                "attention-regression/floor",
                "floor.constant.*",
            ),
            Finding(
                "Of all factors of one map, balanced ones have the smallest error.",
                "attention-regression/gauge",
                "gauge.floor.*",
            ),
        ),
        fails=Finding(
            "On finitely many tokens the descent is slower than in the limit, and ends at a floor.",
            "attention-regression/convergence",
            "convergence.tokens.geometric.*",
        ),
    ),
)
