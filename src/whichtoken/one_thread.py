"""One thread where matrices are small: more wait for each other longer than they compute."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[Any]:
    """A context with a single thread for BLAS and OpenMP; the setting of before comes back at its end."""
    limits: AbstractContextManager[Any] = _libraries().limit(limits=1)
    return limits


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # finding the libraries takes longer than a small problem
