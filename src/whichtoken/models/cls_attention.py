"""One-layer attention with a `<cls>` query and trained embeddings, on token counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.attention import pool_outputs
from whichtoken.display.shown import Shown
from whichtoken.models.cls_kernels import add_gradient
from whichtoken.models.cls_model import ClsModel, Floats, binary_labels, count_matrix


@dataclass(frozen=True)
class ClsGradient(Shown):
    """Loss and gradient in score space: the embeddings' gradient has rank two, A v^T + B p^T."""

    loss: float
    along_value: Floats  # (vocabulary,) A
    along_cls: Floats  # (vocabulary,) B; its sum over the tokens of any one document is zero


class ClsAttention(ClsModel):
    """f(X) = softmax(p^T E_X^T) E_X v: attention of one query over the tokens of a document.

    A document is its token counts: no tensor of shape batch x length x d is ever made. Model (1) of Wu, Shevchenko, Oymak,
    Mondelli, Attention with Trained Embeddings Provably Selects Important Tokens.

    Parameters
    ----------
    embeddings : array of shape (vocabulary, d)
        E, float32 or float64.
    cls, value : array of shape (d,)
        The query p and the readout v, of the same type.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.models import ClsAttention
    >>> model = ClsAttention(np.eye(2), cls=np.zeros(2), value=np.array([1.0, -1.0]))
    >>> model.decision([[3, 1], [1, 1]]).tolist()  # two documents: tokens 0 and 1, three and one times; once each
    [0.5, 0.0]
    >>> ClsAttention.start(vocabulary=5, dim=8, rng=np.random.default_rng(0)).embeddings.shape
    (5, 8)
    """

    def decision(self, counts: Any) -> Floats:
        """The output f of every document, (n,); its sign is the predicted label."""
        documents = count_matrix(counts, len(self.embeddings))
        scores, values = self.scores()
        outputs = pool_outputs(scores, values, documents.indptr, documents.data, tokens=documents.indices)
        return np.asarray(outputs, dtype=np.float64)

    def gradient(self, counts: Any, labels: Any) -> ClsGradient:
        """Loss and gradient in score space; O(nonzero counts) beyond the scores."""
        documents = count_matrix(counts, len(self.embeddings))
        signs = binary_labels(labels, documents.shape[0])
        scores, values = self.scores()
        weights, shares = np.exp(scores - scores.max()), np.empty(len(scores))
        along_value, along_cls = np.zeros((2, len(scores)))
        loss = add_gradient(
            documents.indptr, documents.indices, documents.data, signs, np.arange(len(signs)),
            weights, scores, values, along_value, along_cls, shares,
        )  # fmt: skip
        return ClsGradient(loss, along_value, along_cls)

    def parameter_gradients(self, gradient: ClsGradient) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Gradients of (embeddings, cls, value): A v^T + B p^T, E^T B and E^T A."""
        A, B = (part.astype(self.embeddings.dtype) for part in (gradient.along_value, gradient.along_cls))
        return np.outer(A, self.value) + np.outer(B, self.cls), B @ self.embeddings, A @ self.embeddings
