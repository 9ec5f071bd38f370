"""One claim, one class: what an experiment declares and what its methods return.

An experiment is a file in `claims/<theory>/`. Its module docstring states the claim (`Claim ...`) and who makes it
(`Source ...`); its class gives the grid, runs one point, predicts it, judges all rows and draws them.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.extras import is_installed, lacks
from whichtoken.lab.record import States, recorded_states

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from whichtoken.lab.instances import Lemma
    from whichtoken.lab.verdicts import Check

PointT = TypeVar("PointT")
Measured = Mapping[str, Any]


@dataclass(frozen=True)
class Predicted(Shown):
    """A number from theory with its own numerical error (quadrature, fixed point), not its distance to the truth.

    Attributes
    ----------
    value : number or array
        The prediction, a number or an array.
    error : float
        Its numerical error.

    Examples
    --------
    >>> from whichtoken.lab import Predicted
    >>> Predicted(0.5, error=1e-6).value
    0.5
    """

    value: Any
    error: float = 0.0


class Grid:
    """Every combination of the listed values, each repeated `seeds` times; fields not named keep their default.

    Parameters
    ----------
    seeds : int or (least, most)
        Repeats of each point. With two numbers, every point gets `least`; as long as a claim that depends on the point is
        undecided, its repeats double, up to `most`.
    **axes : value or list of values
        Values of a field of the point.

    Examples
    --------
    >>> from whichtoken.lab import Grid
    >>> grid = Grid(seeds=3, dim=[64, 256], length=8)
    >>> list(grid.points({}))
    [{'dim': 64, 'length': 8}, {'dim': 256, 'length': 8}]
    >>> list(grid.points({"dim": [32]}))  # an override replaces the whole axis
    [{'dim': 32, 'length': 8}]
    """

    def __init__(self, *, seeds: int | tuple[int, int], **axes: Any) -> None:
        self.least, self.most = (seeds, seeds) if isinstance(seeds, int) else seeds
        if not 1 <= self.least <= self.most:
            raise UsageError(f"seeds={seeds} must be a number of at least 1, or two of them with the smaller one first")
        self.axes = {name: values if isinstance(values, list) else [values] for name, values in axes.items()}

    def points(self, overrides: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
        """Fields of each point, with whole axes replaced by the overrides."""
        axes = {**self.axes, **overrides}
        for values in product(*axes.values()):
            yield dict(zip(axes, values, strict=True))


@dataclass(frozen=True)
class Row(Shown, Generic[PointT]):
    """One finished repeat of one point.

    Attributes
    ----------
    point : PointT
        What was run.
    seed : int
        Number of the repeat.
    status : {"ok", "failed"}
        Whether it finished.
    message : str
        What went wrong, if it failed.
    measured : Measured
        What `run` returned.
    seconds : float
        Computing time.
    package_version : str
        Version of whichtoken that computed it.
    predicted : Mapping[str, Predicted]
        What `predict` returned for the point.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from whichtoken.lab import Row
    >>> row = Row(SimpleNamespace(dim=64), seed=0, status="ok", message="", measured={"error": 0.1}, seconds=0.2,
    ...           package_version="0.1.0")
    >>> row.point.dim, row.measured["error"]
    (64, 0.1)
    """

    point: PointT
    seed: int
    status: Literal["ok", "failed"]
    message: str
    measured: Measured
    seconds: float
    package_version: str
    predicted: Mapping[str, Predicted] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Rows(list[Row[PointT]]):
    """The finished rows, in the order of the plan, with the failed ones in `failed`.

    Parameters
    ----------
    rows : iterable of Row[PointT], default=()
        Those that finished.
    failed : iterable of Row[PointT], default=()
        Those that failed.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from whichtoken.lab import Row, Rows
    >>> rows = Rows(Row(SimpleNamespace(dim=dim), seed, "ok", "", {"error": 1 / dim}, 0.1, "0.1.0")
    ...             for dim in (2, 4) for seed in (0, 1))
    >>> rows.levels("dim"), rows.where(dim=4).values("error").tolist(), rows.seed_means("error").tolist()
    ([2, 4], [0.25, 0.25], [0.375, 0.375])
    """

    def __init__(self, rows: Iterable[Row[PointT]] = (), failed: Iterable[Row[PointT]] = ()) -> None:
        super().__init__(rows)
        self.failed = list(failed)

    @classmethod
    def sorted(cls, rows: Iterable[Row[PointT]]) -> Rows[PointT]:
        """Finished rows, with the failed ones in `failed`."""
        every = list(rows)
        return cls((row for row in every if row.status == "ok"), (row for row in every if row.status == "failed"))

    def where(self, **fields: Any) -> Rows[PointT]:
        """The rows whose point has these values."""

        def match(row: Row[PointT]) -> bool:
            return all(getattr(row.point, name) == value for name, value in fields.items())

        return Rows(filter(match, self), filter(match, self.failed))

    def to_frame(self) -> pd.DataFrame:
        """One line per finished row: the fields of its point, its seed, what it measured and what was predicted."""
        import pandas as pd

        return pd.DataFrame(
            {**vars(row.point), "seed": row.seed, **row.measured}
            | {f"predicted {name}": found.value for name, found in row.predicted.items()}
            for row in self
        )

    def levels(self, name: str) -> list[Any]:
        """Distinct values of a field of the point, in the order of the plan."""
        return list(dict.fromkeys(getattr(row.point, name) for row in self))

    def values(self, name: str) -> NDArray[Any]:
        """One measured quantity, a value per row."""
        return np.array([row.measured[name] for row in self])

    def predicted(self, name: str) -> Predicted | None:
        """The prediction that these rows share; None if there is none or the rows are of different problems."""
        found = [row.predicted[name] for row in self if name in row.predicted]
        # rows of one point share the object, so each point is compared once
        others = {id(item): item for item in found}.values()
        if not found or not all(np.allclose(item.value, found[0].value, rtol=1e-9, atol=0.0) for item in others):
            return None
        return found[0]

    def per_seed(self, statistic: Callable[[Rows[PointT]], float | None]) -> NDArray[np.float64]:
        """A statistic of each repeat's rows; repeats for which it is None are left out."""
        repeats: dict[int, Rows[PointT]] = {}
        for row in self:
            repeats.setdefault(row.seed, Rows()).append(row)
        found = map(statistic, repeats.values())
        return np.array([value for value in found if value is not None], dtype=np.float64)

    def seed_means(self, quantity: str | Callable[[Row[PointT]], float]) -> NDArray[np.float64]:
        """Mean over each repeat's rows of a measured value or of a function of the row.

        Runs of one problem are dependent, so for an interval they count as one.
        """
        of = (lambda row: row.measured[quantity]) if isinstance(quantity, str) else quantity
        return self.per_seed(lambda repeat: float(np.mean([of(row) for row in repeat])))


class Experiment(ABC, Generic[PointT]):
    """A claim that can be run, judged and drawn: one file in `claims/<theory>/`, or in a folder of your own.

    A subclass declares `id` and `presets`, measures one point in `run`, says what theory expects in `predict`, yields checks
    in `judge` and draws them in `draw`. The module docstring states the claim and its source.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from whichtoken.lab import Experiment, Grid, Mean, agreement
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     sides: int = 6
    >>> class Dice(Experiment[Point]):
    ...     id = "mine/dice"
    ...     presets = {"quick": (Grid(sides=[6, 20], seeds=10),)}
    ...     def run(self, point, rng):
    ...         return {"mean": rng.integers(1, point.sides + 1, 1000).mean()}
    ...     def judge(self, rows):
    ...         for sides in rows.levels("sides"):
    ...             found = Mean(rows.where(sides=sides).values("mean"))
    ...             yield agreement(f"dice.{sides}", "the mean", theory=(sides + 1) / 2, measured=found, tolerance=0.2)
    ...     def draw(self, rows, figure):
    ...         figure.subplots().plot([row.point.sides for row in rows], rows.values("mean"), ".")
    >>> Dice().theory, sorted(Dice().run(Point(), np.random.default_rng(0)))
    ('mine', ['mean'])
    """

    id: ClassVar[str]  # "<theory>/<claim>", with dashes
    version: ClassVar[int] = 1  # raise it when run() or predict() change their numbers: older rows are then not reused
    presets: ClassVar[Mapping[str, tuple[Grid, ...]]]
    method_fields: ClassVar[frozenset[str]] = frozenset()  # kept out of the random stream: same data for each method
    point_type: ClassVar[type]
    needs: ClassVar[str] = ""  # the optional package without which no point can run, such as torch
    # a point that takes less than a second, if those of `full` take longer: tests recompute its recorded row
    spot: ClassVar[Any] = None
    # field -> (low, high): where `stress` looks for the border of the claim, from the point of the preset `map` or `quick`
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    lemmas: ClassVar[
        Sequence[Lemma]
    ] = ()  # statements about every instance, for which `stress` searches a counterexample

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in getattr(cls, "__orig_bases__", ()):
            if get_args(base) and isinstance(get_args(base)[0], type):
                cls.point_type = get_args(base)[0]

    @abstractmethod
    def run(self, point: PointT, rng: np.random.Generator) -> Measured:
        """Measure one point once. Heavy imports (torch) belong in here."""

    def predict(self, point: PointT) -> Mapping[str, Predicted]:
        """Return the prediction for this point."""
        return {}

    @property
    def missing(self) -> str:
        """The error message for an optional package that it needs and that is not installed; empty if nothing is missing."""
        return "" if not self.needs or is_installed(self.needs) else lacks(self.needs)

    def absent(self, point: PointT) -> str:
        """Why this point cannot run on this machine, and how to get what is missing; empty if it can."""
        return ""

    @abstractmethod
    def judge(self, rows: Rows[PointT]) -> Iterator[Check]:
        """Yield the checks, each with its measurements. Must accept any subset of the rows."""

    def judge_point(self, rows: Rows[PointT]) -> Iterator[Check]:
        """Yield the checks that can be judged at a single point, for the search of borders; those of `judge` by default."""
        return self.judge(rows)

    @abstractmethod
    def draw(self, rows: Rows[PointT], figure: Figure) -> None:
        """Draw the figure of the claim, from stored rows alone."""

    def problem(self, point: PointT) -> dict[str, Any]:
        """The fields of the point that define the data."""
        return {name: value for name, value in vars(point).items() if name not in self.method_fields}

    @property
    def expected(self) -> States:
        """The states on record; an experiment outside the package declares its own as a class attribute."""
        return recorded_states(self.id)

    @property
    def theory(self) -> str:
        return self.id.split("/")[0]

    @property
    def title(self) -> str:
        return self._docstring.split("\n")[0].rstrip(".")

    @property
    def claim(self) -> str:
        return self._section("Claim")

    @property
    def source(self) -> str:
        return self._section("Source")

    @property
    def _docstring(self) -> str:
        return inspect.cleandoc(inspect.getmodule(type(self)).__doc__ or "")

    def _section(self, name: str) -> str:
        """Text behind `name` in the module docstring, up to an empty line or the next section."""
        found = re.search(
            rf"^{name}\s+(.*?)(?=\n\n|\n[A-Z][a-z]+\s{{2,}}|\Z)", self._docstring, re.DOTALL | re.MULTILINE
        )
        return re.sub(r"\s+", " ", found.group(1)).strip() if found else ""
