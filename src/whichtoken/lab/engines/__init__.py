"""Run tasks in processes on this machine or on a Dask cluster, with the same numbers for any number of workers."""

from __future__ import annotations

import numpy as np

from whichtoken.errors import UsageError, unknown
from whichtoken.lab.engines.common import Engine, TimeLimit, time_limit
from whichtoken.lab.engines.dask import DaskEngine, scheduler_address
from whichtoken.lab.engines.local import LocalEngine

ENGINES = ("local", "dask", "dask://host:port")
MOST_WORKERS = 1000

__all__ = ["ENGINES", "DaskEngine", "Engine", "LocalEngine", "TimeLimit", "parse_engine", "time_limit"]


def parse_engine(name: str, workers: int | None = None, limit: TimeLimit | None = None) -> Engine:
    """The engine of this name: local, dask, or dask://host:port.

    Parameters
    ----------
    name : str
        Local, dask or dask://host:port.
    workers : int, optional
        Processes on this machine; one per available core when not given.
    limit : TimeLimit, optional
        How long a point may take; forever when not given.

    Returns
    -------
    Engine
        What runs the tasks.

    Raises
    ------
    UsageError
        If there is no engine of this name.

    Examples
    --------
    >>> from whichtoken.lab.engines import parse_engine
    >>> type(parse_engine("local", workers=1)).__name__
    'LocalEngine'
    """
    limit = limit or TimeLimit()
    if name == "local":
        return LocalEngine(_check_workers(workers), limit)
    if name == "dask":
        return DaskEngine(None, _check_workers(workers), limit)
    if name.startswith("dask://"):
        return DaskEngine(scheduler_address(name), _check_workers(workers), limit)
    raise unknown("engine", name, ENGINES)


def _check_workers(workers: int | None) -> int:
    from loky import cpu_count

    if workers is None:
        return int(cpu_count())
    if isinstance(workers, bool) or not isinstance(workers, (int, np.integer)) or not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"{{workers}} must be a whole number from 1 to {MOST_WORKERS}", workers=workers)
    return int(workers)
