"""Train one attention head, and prove where its weights are going.

Which token each sequence ends on, the max-margin direction for that choice, and how near training came to it.
"""

import numpy as np

from whichtoken.data import AttentionTokens
from whichtoken.flows import attention_descent
from whichtoken.margin import key_query_svm

rng = np.random.default_rng(0)
problem = AttentionTokens(sequences=6, length=8, dim=10).sample(rng)

for p in (1.1, 2.0, 3.0):
    rule = "geometric" if p > 2 else "normalized"  # constant steps grow W as a root only when p > 2
    lr = 0.01 if p > 2 else 1.0
    trained = attention_descent(problem, 1e-3 * rng.standard_normal((10, 10)), p=p, lr=lr, steps=3000, rule=rule)
    limit = key_query_svm(problem.tokens, problem.queries, trained.selected, p=p)
    W, V = trained.final.direction, limit.direction
    cosine = np.vdot(W, V) / np.linalg.norm(W) / np.linalg.norm(V)
    print(
        f"p = {p}: selects tokens {trained.selected}, margin {limit.margin:.4f} (gap {limit.gap:.0e}), cosine {cosine:.6f}"
    )
