"""One claim of every theory, cheap to run: `make test` runs these, `make test-rest` all others."""

import pytest

SMOKE = {
    "attention-regression/limit",
    "group-sparse/finite-sample",
    "mirror-descent/initialization",
    "optimizers/tokens",
    "sparse-tokens/capacity",
    "trained-embeddings/one-step",
}


def by_claim(id, *values):
    """A row of parameters that belongs to a claim."""
    return pytest.param(*values, id=id, marks=pytest.mark.smoke if id in SMOKE else ())
