"""How claims are judged: criteria that stand in a table beside a claim file, and checks of its runs.

A criterion says what is stated, and which value would refute it. Called with what was measured it gives a check; `part` gives the
check of one point and `each` those of all points; the parts of a criterion become one check. The table of a claim is the TOML
file of its name, with what `Experiment` declares in its class, its criteria, the grids of its presets and the ranges in which
`stress` searches:

    [claim]
    version = 2
    methods = ["loss"]

    [sign]
    code = "alignment.sign"
    words = "share of runs in which the query turns toward the signal"
    comparison = "at least"
    value = 0.9

    [presets]
    quick = [{ dim = 250, seeds = 44 }]

    TABLE = ClaimTable(__name__)

    class Alignment(Claim[Point], table=TABLE):
        def judge(self, rows):
            yield TABLE.sign(share_of_runs(rows, "turns"), on=rows)
            yield from TABLE.cosine.each(rows, "dim", "d{}", "d = {}", "cosine")
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib.resources import files
from typing import Any

from numpy.typing import ArrayLike

from whichtoken.claims._runs import PointT, group_by
from whichtoken.lab import Check, Experiment, Grid, Mean, Predicted, Rows, pooled
from whichtoken.lab.samples import Sample
from whichtoken.lab.verdicts import Comparison, Kind, Regime, points_of

Checks = Iterator[Check]  # what `judge` yields
Predictions = Mapping[str, Predicted]  # what `predict` returns
Measure = str | Callable[[Rows[Any]], Sample | ArrayLike]  # name of a measured quantity, or a function of the runs


@dataclass(frozen=True)
class Criterion:
    """One entry of the table of a claim: what is stated, and which value would refute it.

    Code and words are format strings; their fields are filled in where the criterion is used. A value of None is given there,
    because it depends on the rows.

    >>> MEAN = Criterion("equal", "dice.{sides}", 3.5, "mean of a die with {sides} sides", tolerance=0.2)
    >>> MEAN([3.4, 3.5, 3.6], sides=6).claim
    'mean of a die with 6 sides'
    """

    comparison: Comparison
    code: str
    value: float | None
    words: str
    tolerance: float = 0.0
    material: float | None = None
    theory_error: float = 0.0
    kind: Kind = "our-law"
    regime: Regime = "unknown"
    within: Criterion | None = None  # the pool that its checks are parts of

    def __call__(
        self,
        measured: Sample | ArrayLike,
        *,
        on: Rows[Any] | None = None,
        value: float | None = None,
        tolerance: float | None = None,
        theory_error: float | None = None,
        within: Criterion | None = None,
        **fields: Any,
    ) -> Check:
        """The check of what was measured; plain values, one per repeat, are averaged.

        Parameters
        ----------
        on : the rows that were measured; all rows of the claim if not given.
        value, tolerance, theory_error, within : replace those of the table.
        **fields : of the format strings.
        """
        sample: Any = measured if hasattr(measured, "interval") else Mean(measured)
        check = Check(
            self.code.format(**fields),
            self.words.format(**fields),
            self.value if value is None else value,
            sample,
            self.comparison,
            self.tolerance if tolerance is None else tolerance,
            self.theory_error if theory_error is None else theory_error,
            material=self.material,
            kind=self.kind,
            regime=self.regime,
            points=None if on is None else points_of(on),
            counts_failed=getattr(sample, "counts_failed", False),
        )
        whole = within or self.within
        return Part(**vars(check), criterion=whole, fields=fields, required=True) if whole else check

    def part(self, label: str, words: str, measured: Sample | ArrayLike, /, **options: Any) -> Part:
        """The check of one point of a pool; its code ends in the label, and its words say which point it is."""
        check = replace(self, code=f"{self.code}.{label}", words=words)(measured, **options)
        return Part(**vars(check), criterion=self, fields=options)

    def each(
        self, rows: Rows[Any], by: str, label: str, words: str, measure: Measure, *, predicted: str = "",
        relative: float = 0.0, absolute: float = 0.0, **options: Any,
    ) -> Iterator[Part]:  # fmt: skip
        """A part for each group of runs that share a field of the point, or several, separated by blanks.

        Parameters
        ----------
        label, words : format strings of the values of the fields.
        predicted, relative, absolute : the prediction that is the criterion's value, see `as_predicted`.
        """
        names = by.split()
        for values, runs in group_by(rows, *names):
            levels = (values,) if len(names) == 1 else values
            measured = runs.values(measure) if isinstance(measure, str) else measure(runs)
            expected = as_predicted(runs, predicted, relative=relative, absolute=absolute) if predicted else {}
            yield self.part(label.format(*levels), words.format(*levels), measured, on=runs, **expected, **options)

    def pool(self, parts: Iterable[Check], **fields: Any) -> Check:
        """One check of many parts: it agrees if every part does."""
        code, words = self.code.format(**fields), self.words.format(**fields)
        return pooled(code, words, parts, kind=self.kind, regime=self.regime)


@dataclass(frozen=True)
class Part(Check):
    """The check of one point, or of one of several criteria, with the pool that it belongs to and the fields of its strings."""

    criterion: Criterion = field(kw_only=True)
    fields: Mapping[str, Any] = field(kw_only=True)
    required: bool = field(default=False, kw_only=True)  # whether the pool says nothing without it


class ClaimTable:
    """What a claim declares, its criteria, by name, and the grids of its presets: the TOML file beside the module of the claim.

    Parameters
    ----------
    module : str
        `__name__` of the module.
    """

    def __init__(self, module: str) -> None:
        package, _, name = module.rpartition(".")
        table = tomllib.loads(files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
        # a claim is called as its file
        self.id = "/".join(module.split(".")[-2:]).replace("_", "-")
        self.declared: dict[str, Any] = {"version": 1, "needs": "", "methods": [], "spot": None} | table.pop(
            "claim", {}
        )
        # settings that grids use by name
        self.shared: dict[str, dict[str, Any]] = table.pop("shared", {})
        self.presets = {name: tuple(map(self._grid, grids)) for name, grids in table.pop("presets", {}).items()}
        ranges = table.pop("ranges", {})
        self.ranges: dict[str, tuple[float, float]] = {name: tuple(ends) for name, ends in ranges.items()}
        # such as what a code calls something, and its words
        self.tables: dict[str, dict[str, Any]] = table.pop("tables", {})
        pools = {name: entry.pop("within", "") for name, entry in table.items()}
        self.criteria = {name: Criterion(**{"value": None} | entry) for name, entry in table.items()}
        for name, whole in pools.items():
            if whole:
                self.criteria[name] = replace(self.criteria[name], within=self.criteria[whole])

    def __getattr__(self, name: str) -> Criterion:
        return self[name]

    def __getitem__(self, name: str) -> Criterion:
        return self.criteria[name]

    def _grid(self, entry: dict[str, Any]) -> Grid:
        """A grid of the fields in a table; a list among the values of a field is a tuple of the point."""
        axes = self.shared.get(entry.pop("use", ""), {}) | entry
        seeds = _hashable(axes.pop("seeds"))
        values = {
            name: list(map(_hashable, value)) if isinstance(value, list) else value for name, value in axes.items()
        }
        return Grid(seeds=seeds, **values)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Judge = Callable[[Any, Rows[Any]], Iterator[Check]]


def pool_parts(judge: Judge) -> Judge:
    """Let `judge` yield parts: those of one criterion become one check, where the first of them stands.

    Checks on no rows are left out, as in a run that has none of their points; a part that its pool requires only with the pool.
    """

    @wraps(judge)
    def pooled_checks(self: Any, rows: Rows[Any]) -> Iterator[Check]:
        found: dict[str, list[Check]] = {}
        for check in judge(self, rows):
            code = check.criterion.code.format(**check.fields) if isinstance(check, Part) else check.code
            found.setdefault(code, []).append(check)
        for checks in found.values():
            if any(_has_rows(check) for check in checks):
                parts = [check for check in checks if _has_rows(check) or (isinstance(check, Part) and check.required)]
                first = parts[0]
                yield first.criterion.pool(parts, **first.fields) if isinstance(first, Part) else first

    return pooled_checks


def _has_rows(check: Check) -> bool:
    return check.points is None or bool(check.points)


class Claim(Experiment[PointT]):
    """A claim whose declarations, criteria, grids and ranges stand in a table; the parts that `judge` yields are pooled."""

    def __init_subclass__(cls, *, table: ClaimTable | None = None) -> None:
        super().__init_subclass__()
        if table is not None:  # a variant of a claim keeps those of the claim
            if twice := {"id", "version", "needs", "method_fields", "spot", "presets", "ranges"} & vars(cls).keys():
                raise TypeError(
                    f"{cls.__name__}: {', '.join(sorted(twice))} of a claim with a table stand in the table"
                )
            cls.id, cls.presets, cls.ranges = table.id, table.presets, table.ranges
            cls.version, cls.needs = table.declared["version"], table.declared["needs"]
            cls.method_fields = frozenset(table.declared["methods"])
            if spot := table.declared["spot"]:
                cls.spot = cls.point_type(**{name: _hashable(value) for name, value in spot.items()})
        if "judge" in vars(cls):
            cls.judge = pool_parts(cls.judge)  # type: ignore[assignment, method-assign]


def as_predicted(runs: Rows[Any], name: str, *, relative: float = 0.0, absolute: float = 0.0) -> dict[str, Any]:
    """Value and tolerance of a criterion from a prediction of the runs: a share of it plus an absolute difference."""
    predicted = runs.predicted(name)
    if predicted is None:
        return {"value": None, "tolerance": absolute}
    theory = float(predicted.value)
    return {"value": theory, "tolerance": relative * abs(theory) + absolute, "theory_error": predicted.error}
