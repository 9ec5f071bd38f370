r"""Predictions for a one-layer softmax attention model with trained embeddings and a `<cls>` vector.

f(X) = softmax(p^T E_X^T) E_X v on sequences of tokens, logistic loss, labels -1 and +1 (Wu, Shevchenko, Oymak, Mondelli,
"Attention with Trained Embeddings Provably Selects Important Tokens"). The model sees a sequence only through its token
counts, and the tokens only through a score and a value each.

===========  ==================  ========================================================================
symbol       name in the code    meaning
===========  ==================  ========================================================================
S, n, T      vocabulary, ...     tokens, sequences, tokens of a sequence
c_Xs         counts              how often token s occurs in sequence X
E_s, p, v    embeddings, cls,    embedding of a token, of `<cls>`, and the output vector, all in R^d
             value
a_s, g_s     scores, values      a_s = p.E_s decides who is attended to, g_s = v.E_s what is said
q_Xs         weights             attention of X on token s, proportional to c_Xs e^{a_s}
alpha_s      signed_frequency    (1/n) sum_X y_X c_Xs / T_X
gamma_s      (y times values)    y v.E_s, how much token s speaks for the right label
eta_0        lr                  the first gradient step
mu           local_optimality    advantage of the selected tokens over the second ones (Definition 16)
===========  ==================  ========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.lazy import on_demand

if TYPE_CHECKING:
    from whichtoken.theory.trained_embeddings.attention import Attended, attend
    from whichtoken.theory.trained_embeddings.bounds import (
        OneStepBounds,
        Requirements,
        loss_bound,
        one_step_bounds,
        theorem_requirements,
        unique_selection_requirements,
    )
    from whichtoken.theory.trained_embeddings.conditions import (
        OneRelevantToken,
        TheoremConditions,
        loss_limit,
        one_relevant_token,
        relevant_selection,
        rival_selections,
        theorem_conditions,
    )
    from whichtoken.theory.trained_embeddings.decisions import Certificate, Flips, certify, minimal_deletions
    from whichtoken.theory.trained_embeddings.explain import TheoremExplanation, explain_theorem, lost_label
    from whichtoken.theory.trained_embeddings.frequencies import (
        TokenClasses,
        posterior_difference,
        signed_frequency,
        token_classes,
    )
    from whichtoken.theory.trained_embeddings.one_step import (
        OneStepError,
        first_step,
        ideal_first_step,
        one_step_error,
    )
    from whichtoken.theory.trained_embeddings.selection import (
        dominant_share,
        local_optimality,
        remaining_sets,
        secondary_sets,
        selection_margin,
        selection_sets,
    )
    from whichtoken.theory.trained_embeddings.unique import Rival, UniqueSelection, smallest_rival, unique_selection

_HOME = {
    "Attended": "attention",
    "Certificate": "decisions",
    "Flips": "decisions",
    "OneRelevantToken": "conditions",
    "OneStepBounds": "bounds",
    "OneStepError": "one_step",
    "Requirements": "bounds",
    "Rival": "unique",
    "TheoremConditions": "conditions",
    "TheoremExplanation": "explain",
    "TokenClasses": "frequencies",
    "UniqueSelection": "unique",
    "attend": "attention",
    "certify": "decisions",
    "dominant_share": "selection",
    "explain_theorem": "explain",
    "first_step": "one_step",
    "ideal_first_step": "one_step",
    "local_optimality": "selection",
    "loss_bound": "bounds",
    "loss_limit": "conditions",
    "lost_label": "explain",
    "minimal_deletions": "decisions",
    "one_relevant_token": "conditions",
    "one_step_bounds": "bounds",
    "one_step_error": "one_step",
    "posterior_difference": "frequencies",
    "relevant_selection": "conditions",
    "remaining_sets": "selection",
    "rival_selections": "conditions",
    "secondary_sets": "selection",
    "selection_margin": "selection",
    "selection_sets": "selection",
    "signed_frequency": "frequencies",
    "smallest_rival": "unique",
    "theorem_conditions": "conditions",
    "theorem_requirements": "bounds",
    "token_classes": "frequencies",
    "unique_selection": "unique",
    "unique_selection_requirements": "bounds",
}

__all__ = [
    "Attended",
    "Certificate",
    "Flips",
    "OneRelevantToken",
    "OneStepBounds",
    "OneStepError",
    "Requirements",
    "Rival",
    "TheoremConditions",
    "TheoremExplanation",
    "TokenClasses",
    "UniqueSelection",
    "attend",
    "certify",
    "dominant_share",
    "explain_theorem",
    "first_step",
    "ideal_first_step",
    "local_optimality",
    "loss_bound",
    "loss_limit",
    "lost_label",
    "minimal_deletions",
    "one_relevant_token",
    "one_step_bounds",
    "one_step_error",
    "posterior_difference",
    "relevant_selection",
    "remaining_sets",
    "rival_selections",
    "secondary_sets",
    "selection_margin",
    "selection_sets",
    "signed_frequency",
    "smallest_rival",
    "theorem_conditions",
    "theorem_requirements",
    "token_classes",
    "unique_selection",
    "unique_selection_requirements",
]

__getattr__, __dir__ = on_demand(__name__, _HOME)
