"""A sparse matrix whose arrays do not fit together is refused wherever one is taken, before compiled code sees it."""

import numpy as np
import pytest
from scipy import sparse

from whichtoken import BagClassifier, TextClassifier
from whichtoken.attention import RaggedArray
from whichtoken.datasets import TokenCounts
from whichtoken.margin import selection_svm
from whichtoken.theory.trained_embeddings import attend, certify, minimal_deletions, signed_frequency

SIGNS = [1, -1] * 10
COUNTS = np.random.default_rng(0).poisson(1.0, (20, 6)) + np.eye(20, 6, dtype=int)


@pytest.fixture(scope="module")
def fitted():
    return TextClassifier(C=1.0, max_epochs=1, random_state=0).fit(sparse.csr_array(COUNTS), SIGNS)


ENTRANCES = {
    "fit": lambda X, model: TextClassifier(C=1.0, max_epochs=1).fit(X, SIGNS),
    "predict": lambda X, model: model.predict(X),
    "explain": lambda X, model: model.explain(X),
    "certificates": lambda X, model: model.certificates(X),
    "partial_fit": lambda X, model: TextClassifier(C=1.0).partial_fit(X, SIGNS, classes=[-1, 1]),
    "bags": lambda X, model: BagClassifier(C=1.0).fit([X] * 4, [0, 1, 0, 1]),
    "items": lambda X, model: RaggedArray.of(X),
    "token counts": lambda X, model: TokenCounts(X, SIGNS),
    "selection_svm": lambda X, model: selection_svm(np.eye(6), X, [0] * 20),
    "selection_svm, selected": lambda X, model: selection_svm(np.eye(6), COUNTS, X),
    "certify": lambda X, model: certify(X, np.zeros(6), np.ones(6)),
    "minimal_deletions": lambda X, model: minimal_deletions(X, np.zeros(6), np.ones(6)),
    "attend": lambda X, model: attend(np.zeros(6), np.ones(6), X, SIGNS),
    "signed_frequency": lambda X, model: signed_frequency(X, SIGNS),
}


def damaged():
    for kind in ("csr", "csc"):
        for name, place, value in (
            ("indptr", 3, 10**8),
            ("indptr", 3, -(10**7)),
            ("indptr", -1, 10**8),
            ("indptr", 0, 5),
            ("indices", 3, 10**8),
            ("indices", 3, -(10**7)),
        ):
            matrix = sparse.csr_array(COUNTS).asformat(kind)
            getattr(matrix, name)[place] = value
            yield f"{kind} {name}[{place}]={value}", matrix
        matrix = sparse.csr_array(COUNTS).asformat(kind)
        matrix.data = matrix.data[:2]
        yield f"{kind} data", matrix
    matrix = sparse.csr_array(COUNTS).asformat("coo")
    matrix.coords[0][2] = 10**7
    yield "coo", matrix


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_damaged_sparse_matrix_is_refused_at_every_entrance(entrance, fitted):
    for name, matrix in damaged():
        with pytest.raises(ValueError, match="is a damaged sparse matrix"):
            pytest.fail(f"{name} was taken: {ENTRANCES[entrance](matrix, fitted)}")


def test_bags_whose_starts_do_not_fit_are_refused():
    for starts in ([0, 2, 10**9], [0, 5, 3, 6], [1, 3, 6], [0, 3], [0], []):
        with pytest.raises(ValueError, match="starts"):
            RaggedArray(np.array(starts, dtype=np.intp), np.zeros((6, 2)))
