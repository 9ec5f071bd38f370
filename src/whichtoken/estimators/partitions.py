"""Dask collections as data: tokens are split where the texts are, and answers are given partition by partition.

A bag, a series or a frame of one column holds texts. Nothing is computed before Dask is asked to, but for a fit; a worker that
dies costs the time of its partitions. What comes back from a fit is the ordinary estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from whichtoken.datasets.token_counts import TokenSequences

if TYPE_CHECKING:
    from whichtoken.estimators.text.counting import Tokenizer

Method = TypeVar("Method", bound=Callable[..., Any])
MERGED = 8  # vocabularies that are merged at a time


def is_partitioned(X: Any) -> bool:
    """Whether X is a Dask collection of texts, found without loading Dask."""
    return type(X).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(X, "to_delayed")


def distributed_tokens(tokenizer: Tokenizer, X: Any) -> TokenSequences:
    """Tokens of all texts, in the order of the partitions: split on the workers, and merged there some at a time."""
    from dask.delayed import delayed

    parts = [delayed(_tokens_of_part)(tokenizer, part, place) for place, part in enumerate(X.to_delayed())]
    while len(parts) > 1:
        groups = [parts[first : first + MERGED] for first in range(0, len(parts), MERGED)]
        parts = [delayed(TokenSequences.merged)(group) for group in groups]
    return parts[0].compute()  # type: ignore[no-any-return]


def _tokens_of_part(tokenizer: Tokenizer, part: Any, place: int) -> TokenSequences:
    from whichtoken.estimators.text.counting import texts_of

    if not len(part):
        return TokenSequences.merged([])
    try:
        texts = texts_of(part)
        if texts is None:
            raise ValueError(f"it holds {type(part).__name__} without texts")
        return tokenizer.tokens(texts)
    except ValueError as error:
        raise ValueError(f"partition {place}: {error}") from error


def by_partition(method: Method) -> Method:
    """Let a method of texts, which gives one answer for each, take a Dask collection and give a lazy one.

    Labels and scores of a series or a frame are a series or a frame with its index; everything else is a bag.
    """

    @wraps(method)
    def run(model: Any, X: Any, *others: Any, **options: Any) -> Any:
        if not is_partitioned(X):
            return method(model, X, *others, **options)
        answer = partial(_answer_part, method, model, others, options)
        if method.__name__ == "explain" or not hasattr(X, "dtypes"):
            import dask.bag

            items = X if isinstance(X, dask.bag.Bag) else dask.bag.from_delayed(X.to_delayed())  # type: ignore[no-untyped-call]
            return items.map_partitions(answer, False)
        return X.map_partitions(answer, True, meta=_answer_part(method, model, others, options, X._meta, True))

    return cast(Method, run)


def _answer_part(method: Callable[..., Any], model: Any, others: Any, options: Any, part: Any, framed: bool) -> Any:
    """The answers for one partition: a list, or with the index of the partition."""
    texts = part if hasattr(part, "columns") else list(part)
    if not len(texts) and not framed:
        return []
    with warnings.catch_warnings():
        if not len(texts):  # the form of the answer is that for some text
            warnings.simplefilter("ignore")
        found = method(model, texts if len(texts) else ["-"], *others, **options)
    if not framed:
        return list(found)
    import pandas as pd

    values = np.asarray(found)[: len(texts)]
    if values.ndim == 2:
        return pd.DataFrame(values, index=part.index, columns=list(model.classes_))
    return pd.Series(values, index=part.index, name=method.__name__)
