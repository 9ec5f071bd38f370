"""Which columns form which group: what users write, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Layout:
    """Groups of columns, which may overlap, and columns that are always kept."""

    names: tuple[Any, ...]
    members: tuple[NDArray[np.intp], ...]  # columns of each group
    covariates: NDArray[np.intp]

    @property
    def equal(self) -> bool:
        """Whether all groups have the same size, so that one value vector can read them all."""
        return len({len(columns) for columns in self.members}) == 1

    def columns(self, groups: Sequence[int] | NDArray[np.intp]) -> NDArray[np.intp]:
        """Columns of some groups, once each and in ascending order, with the covariates."""
        parts = [self.covariates, *(self.members[g] for g in groups)]
        return np.unique(np.concatenate(parts)).astype(np.intp)


def parse_groups(groups: Any, covariates: Any, features: int, columns: Sequence[str] | None) -> Layout:
    """The layout of `features` columns.

    Parameters
    ----------
    groups
        A group id or name per column (array or list); a mapping of group name to columns, by name or index; or None, when
        each column is a group of its own.
    covariates
        Columns that belong to no group and are always kept, by name or index. Ids of such columns are ignored.
    columns
        Names of the columns, where the data have them.
    """
    kept = _indices("covariates", () if covariates is None else covariates, features, columns)
    if isinstance(groups, Mapping):
        names = tuple(groups)
        members = tuple(_indices(f"group {name!r}", part, features, columns) for name, part in groups.items())
        _check_mapping(names, members, kept, features, columns)
        return Layout(names, members, kept)
    if groups is None:
        ids: NDArray[Any] = np.array(columns if columns is not None else range(features), dtype=object)
    else:
        ids = np.asarray(groups)
    if ids.ndim != 1 or len(ids) != features:
        raise ValueError(f"groups must name a group for each of the {features} columns of X; got {ids.shape} ids")
    free = np.setdiff1d(np.arange(features), kept)
    names = tuple(dict.fromkeys(ids[free].tolist()))  # in the order of the columns
    if not names:
        raise ValueError("groups: every column is a covariate; at least one must belong to a group")
    return Layout(names, tuple(free[ids[free] == name] for name in names), kept)


def _check_mapping(
    names: tuple[Any, ...],
    members: tuple[NDArray[np.intp], ...],
    kept: NDArray[np.intp],
    features: int,
    columns: Sequence[str] | None,
) -> None:
    if not names:
        raise ValueError("groups={} is empty; at least one group must be named")
    for name, part in zip(names, members, strict=True):
        if not len(part):
            raise ValueError(f"group {name!r} has no columns")
        if np.intersect1d(part, kept).size:
            raise ValueError(f"group {name!r} contains covariates; a column is one or the other")
    missing = np.setdiff1d(np.arange(features), np.concatenate([kept, *members]))
    if missing.size:
        example = columns[missing[0]] if columns is not None else missing[0]
        raise ValueError(
            f"groups do not cover {missing.size} of the {features} columns, such as {example!r}; add it to a group or to"
            " covariates"
        )


def _indices(where: str, wanted: Any, features: int, columns: Sequence[str] | None) -> NDArray[np.intp]:
    """Columns given by name or index, or one of them, as indices in the order given, each once."""
    places = {name: place for place, name in enumerate(columns)} if columns is not None else {}
    found = []
    for column in [wanted] if isinstance(wanted, str | int | np.integer) else wanted:
        if isinstance(column, str) and column in places:
            found.append(places[column])
        elif isinstance(column, int | np.integer) and 0 <= column < features:
            found.append(int(column))
        else:
            raise ValueError(f"{where}: X has no column {column!r}; columns are names of X or 0 to {features - 1}")
    return np.array(list(dict.fromkeys(found)), dtype=np.intp)
