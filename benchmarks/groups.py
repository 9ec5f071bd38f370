"""GroupClassifier beside group logistic regression (skglm), logistic regression, both tuned, and interpret's EBM.

Data of Zhang, Meng, Cao (arXiv 2504.08638): x ~ N(0, I), y = sign <v*, x_j*>, 20 groups of 10. Errors of linear models are
exact there. Then real tables whose groups are the categories of an attribute, on random splits into 70 % and
30 % of the rows; none of them was used to develop ours. The explainable boosting machine (EBM) has its own defaults,
interactions included, and sees attributes as they were published; it is slow, so it has fewer splits. Intervals are 95 %,
paired over seeds or splits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import multivariate_normal, norm, t

from whichtoken import GroupClassifier
from whichtoken.datasets import GroupSparse
from whichtoken.lab.benchmark import CPU, Beside, Cases, Measure, cpu_seconds

from ._tables import TABLES, Table, boosted, read_table

PART = "Tables"
QUESTION = (
    "Does GroupClassifier find the group of columns that matters, and does it predict as well as the usual models?"
)
WHY = {
    "skglm's group logistic regression": {
        "win": (
            "A group lasso shrinks what it selects and, tuned for prediction, keeps more groups than it needs; whichtoken "
            "selects by attention and then refits the readout without that shrinkage."
        ),
        "even": "Nearly every group carries some signal here, so shrinking them costs little.",
        "loss": "whichtoken ranks the groups again in every fold; the group lasso follows one path of penalties.",
    },
    "logistic regression": {
        "win": (
            "Logistic regression has to learn ten times as many coefficients, because it cannot know which group matters."
        ),
        "even": "Nearly every group carries some signal here, so nearly all are kept, and both are the same model.",
        "loss": "Groups that validation on a few rows leaves out carry some signal too.",
    },
    "interpret's EBM": {
        "win": (
            "EBM boosts a curve for every column in many small rounds, and has to learn two hundred curves where ten "
            "coefficients decide."
        ),
        "even": "On this table, curves and pairs of columns predict no better than sums over groups.",
        "loss": (
            "EBM averages many models with pairs of columns and leaves no column out; whichtoken keeps only a few groups of a "
            "small table."
        ),
    },
}

Array = NDArray[np.float64]

GROUPS, WIDTH = 20, 10
IDS = np.repeat(np.arange(GROUPS), WIDTH)
SEEDS, TRANSFER_SEEDS, TRANSFER = 50, 30, 60
ALPHAS, FOLDS, FRESH = 8, 5, 20_000
BOOSTED_SEEDS, BOOSTED_SPLITS = 5, 3
OURS, SKGLM, LOGISTIC, EBM = (
    "GroupClassifier",
    "skglm's group logistic regression",
    "logistic regression",
    "interpret's EBM",
)
TUNED: dict[str, Any] = {"cv": FOLDS, "max_iter": 1000}


def measure(wanted: Cases) -> Iterator[Measure]:
    """Yield accuracies for two sample sizes, then transfer, then real tables."""
    parts: dict[str, Callable[[], Iterator[Measure]]] = {
        "n=400": lambda: _selection(400),
        "n=200": lambda: _selection(200),
        "new direction": _transfer,
        **{name: partial(_real, name) for name in TABLES},
        "boosted": lambda: _boosted_selection(400),
    }
    for name, part in parts.items():
        if wanted(name):
            yield from part()


def _selection(n: int) -> Iterator[Measure]:
    case = f"D={GROUPS} d={WIDTH} n={n}, {SEEDS} seeds"
    ours, peer, right = np.empty(SEEDS), np.empty(SEEDS), 0
    for seed in range(SEEDS):
        task, rng = _task(seed)
        X, y = _flat(task, n, rng)
        model = GroupClassifier(IDS, random_state=0).fit(X, y)
        ours[seed] = 1 - _error_of(model, task)
        peer[seed] = 1 - _error(task, *group_lasso(X, y))
        right += model.selected_groups_ == [task.relevant[0]]
    low, high = _interval(ours - peer)
    detail = f"{ours.mean():.4f} against {peer.mean():.4f}, difference {low:.4f} .. {high:.4f}"
    least = 0.0 if n == 400 else 0.01
    beside = Beside(SKGLM, ours.mean(), peer.mean(), "accuracy", True, (low, high))
    what = "accuracy above skglm group logistic regression"
    yield Measure(case, what, (ours - peer).mean(), least, detail=detail, beside=beside)
    yield Measure(case, "share of seeds with exactly the right group", right / SEEDS, 0.98)
    X, y = _flat(_task(0)[0], n, np.random.default_rng(0))
    times = cpu_seconds(lambda: GroupClassifier(IDS, random_state=0).fit(X, y)), cpu_seconds(lambda: group_lasso(X, y))
    yield Measure(
        case,
        "fit time over skglm's, both tuned",
        times[0] / times[1],
        3.0,
        at_least=False,
        detail=_times(times),
        beside=Beside(SKGLM, *times, CPU),
    )


def _transfer() -> Iterator[Measure]:
    case = f"new direction, n={TRANSFER}, {TRANSFER_SEEDS} seeds"
    ours, all_columns, lasso = np.empty((3, TRANSFER_SEEDS))
    for seed in range(TRANSFER_SEEDS):
        task, rng = _task(seed)
        source = GroupClassifier(IDS, random_state=0).fit(*_flat(task, 400, rng))
        target = GroupSparse(GROUPS, WIDTH, relevant=int(task.relevant[0]), direction=rng.standard_normal(WIDTH))
        X, y = _flat(target, TRANSFER, rng)
        model = source.fit_downstream(X, y)
        ours[seed] = _error_of(model, target)
        all_columns[seed] = _error(target, *_logistic(X, y))
        lasso[seed] = _error(target, *group_lasso(X, y))
    detail = f"errors {ours.mean():.4f}, {all_columns.mean():.4f} (all variables), {lasso.mean():.4f} (skglm)"
    beside = Beside(LOGISTIC, ours.mean(), all_columns.mean(), "error", interval=_interval(ours - all_columns))
    ratio = ours.mean() / all_columns.mean()
    yield Measure(case, "error over logistic regression's", ratio, 1 / 3, at_least=False, detail=detail, beside=beside)
    low, high = _interval(ours - lasso)
    beside = Beside(SKGLM, ours.mean(), lasso.mean(), "error", interval=(low, high))
    what, detail = "error minus skglm's, upper end", f"difference {low:.4f} .. {high:.4f}"
    yield Measure(case, what, high, 0.0, at_least=False, detail=detail, beside=beside)


def _real(name: str) -> Iterator[Measure]:
    """One table: the same splits for all, the first three of them for the boosting machine."""
    table = read_table(name)
    scores: dict[str, list[tuple[float, ...]]] = {}
    for split, (inside, outside) in enumerate(table.splits()):
        fits: dict[str, Callable[[], Array]] = {
            OURS: lambda: _probabilities(GroupClassifier(table.groups, random_state=0), table, inside, outside),  # noqa: B023
            LOGISTIC: lambda: _probabilities(_scaled_logistic(), table, inside, outside),  # noqa: B023
            SKGLM: lambda: _lasso_probabilities(table, inside, outside),  # noqa: B023
            EBM: lambda: boosted(table, inside, outside),  # noqa: B023
        }
        for who, fit in fits.items():
            if who != EBM or split < BOOSTED_SPLITS:
                scores.setdefault(who, []).append(_scores(fit, table.y[outside]))
    ours = np.array(scores[OURS])
    for peer in (EBM, SKGLM, LOGISTIC):
        theirs = np.array(scores[peer])
        mine, count = ours[: len(theirs)], len(theirs)
        means = [
            f"{what} {a:.4f} against {b:.4f}"
            for what, a, b in zip(SCORES, mine.mean(axis=0), theirs.mean(axis=0), strict=True)
        ]
        interval = _interval(mine[:, 0] - theirs[:, 0]) if count > 1 else None
        beside = Beside(peer, float(mine[:, 0].mean()), float(theirs[:, 0].mean()), "accuracy", True, interval)
        case, what = f"{name}, {count} splits", f"accuracy minus {peer}'s"
        yield Measure(case, what, beside.ours - beside.theirs, -0.01, detail=", ".join(means), beside=beside)


SCORES = ("accuracy", "AUC", "log loss", CPU)


def _scores(fit: Callable[[], Array], y: NDArray[np.intp]) -> tuple[float, float, float, float]:
    from sklearn.metrics import log_loss, roc_auc_score

    found: list[Array] = []
    seconds = cpu_seconds(lambda: found.append(fit()))
    [chances] = found
    return float(((chances > 0.5) == y).mean()), float(roc_auc_score(y, chances)), float(log_loss(y, chances)), seconds


def _probabilities(model: Any, table: Table, inside: Any, outside: Any) -> Array:
    return np.asarray(model.fit(table.X[inside], table.y[inside]).predict_proba(table.X[outside])[:, 1])


def _scaled_logistic() -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from whichtoken.app.evaluation import logistic_baseline

    return make_pipeline(StandardScaler(), logistic_baseline(**TUNED))


def _lasso_probabilities(table: Table, inside: Any, outside: Any) -> Array:
    from scipy.special import expit
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(table.X[inside])
    columns = [np.flatnonzero(table.groups == g) for g in np.unique(table.groups)]
    order = np.concatenate(columns)
    Z, test = (scaler.transform(table.X[rows])[:, order] for rows in (inside, outside))
    readout, bias = group_lasso(Z, 2.0 * table.y[inside] - 1, [len(part) for part in columns])
    return np.asarray(expit(test @ readout + bias))


def _boosted_selection(n: int) -> Iterator[Measure]:
    case = f"D={GROUPS} d={WIDTH} n={n}, {BOOSTED_SEEDS} seeds"
    ours, theirs, times = [], [], []
    for seed in range(BOOSTED_SEEDS):
        task, rng = _task(seed)
        (X, y), (fresh, labels) = (_flat(task, size, rng) for size in (n, 4000))
        y, labels = y.astype(int), labels.astype(int)  # the boosting machine takes other numbers for names
        model, machine = GroupClassifier(IDS, random_state=0), _boosting()
        times.append(tuple(cpu_seconds(lambda: one.fit(X, y)) for one in (model, machine)))  # noqa: B023
        ours.append(model.score(fresh, labels))
        theirs.append(machine.score(fresh, labels))
    beside = _accuracies(EBM, ours, theirs)
    yield Measure(case, "accuracy above EBM's", beside.ours - beside.theirs, 0.0, beside=beside)
    yield _time_of_boosting(case, times)


def _boosting() -> Any:
    from interpret.glassbox import ExplainableBoostingClassifier

    # the labels have no interactions, and pairs of 200 columns take many minutes
    return ExplainableBoostingClassifier(interactions=0, n_jobs=1, random_state=0)


def _time_of_boosting(case: str, times: list[Any]) -> Measure:
    ours, theirs = np.median(times, axis=0)
    beside = Beside(EBM, float(ours), float(theirs), CPU)
    return Measure(case, "fit time over EBM's", ours / theirs, 3.0, False, _times((ours, theirs)), beside)


def _accuracies(peer: str, ours: list[float], theirs: list[float]) -> Beside:
    interval = _interval(np.subtract(ours, theirs))
    return Beside(peer, float(np.mean(ours)), float(np.mean(theirs)), "accuracy", True, interval)


def _logistic(X: Array, y: Array) -> tuple[Array, float]:
    from whichtoken.app.evaluation import logistic_baseline

    model = logistic_baseline(**TUNED).fit(X, y)
    return model.coef_[0], float(model.intercept_[0])


def group_lasso(X: Array, y: Array, sizes: int | list[int] = WIDTH) -> tuple[Array, float]:
    """Readout and bias of skglm's group logistic regression, its strength chosen by cross-validated log-loss."""
    from sklearn.model_selection import StratifiedKFold

    ends = np.cumsum(sizes if isinstance(sizes, list) else [sizes] * (X.shape[1] // sizes))[:-1]
    strongest = max(np.linalg.norm(part) for part in np.split(y @ X, ends)) / (2 * len(y))
    alphas = strongest * np.logspace(-0.1, -2.5, ALPHAS)
    losses = np.zeros(ALPHAS)
    for inside, outside in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(X, y):
        for place, alpha in enumerate(alphas):
            try:
                readout, bias = _skglm(X[inside], y[inside], alpha, sizes)
            except np.linalg.LinAlgError:  # its solver meets numbers that are not finite on a table of categories
                losses[place] = np.inf
                continue
            losses[place] += np.logaddexp(0, -y[outside] * (X[outside] @ readout + bias)).sum()
    return _skglm(X, y, alphas[losses.argmin()], sizes)


def _skglm(X: Array, y: Array, alpha: float, sizes: int | list[int]) -> tuple[Array, float]:
    from skglm.datafits import LogisticGroup
    from skglm.penalties import WeightedGroupL2
    from skglm.solvers import GroupProxNewton
    from skglm.utils.data import grp_converter
    from skglm.utils.jit_compilation import compiled_clone

    indices, pointers = grp_converter(sizes, X.shape[1])
    penalty = compiled_clone(WeightedGroupL2(alpha, np.ones(len(pointers) - 1), pointers, indices))
    datafit = compiled_clone(LogisticGroup(pointers, indices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weak penalties of the path do not all converge
        solution = GroupProxNewton(fit_intercept=True, tol=1e-4).solve(
            np.asfortranarray(X), y.astype(float), datafit, penalty
        )[0]
    return solution[:-1], float(solution[-1])


def _task(seed: int) -> tuple[GroupSparse, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return GroupSparse(GROUPS, WIDTH, relevant=int(rng.integers(GROUPS)), direction=rng.standard_normal(WIDTH)), rng


def _flat(task: GroupSparse, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X, y = task.sample(n, rng)
    return X.reshape(n, -1), y.astype(float)


def _error_of(model: GroupClassifier, task: GroupSparse) -> float:
    """Exact where the map is linear; on fresh rows where it bends."""
    if model.choice_.group_map == "linear":
        return _error(task, model.coef_[0], model.intercept_[0])
    X, y = _flat(task, FRESH, np.random.default_rng(0))
    return 1 - float(model.score(X, y))


def _error(task: GroupSparse, readout: Array, bias: float) -> float:
    """P(sign(w.x + b) != sign(v*.x)); angle/pi where b = 0."""
    truth = np.zeros((GROUPS, WIDTH))
    truth[task.relevant[0]] = task.directions[0]
    length = float(np.linalg.norm(readout))
    if length == 0:
        return 0.5
    cosine, threshold = float(readout @ truth.ravel()) / length, bias / length
    both = multivariate_normal.cdf([threshold, 0.0], cov=[[1, -cosine], [-cosine, 1]], allow_singular=True)
    return float(norm.cdf(threshold) + 0.5 - 2 * (norm.cdf(threshold) - both))


def _interval(difference: Array) -> tuple[float, float]:
    reach = t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / math.sqrt(len(difference))
    return float(difference.mean() - reach), float(difference.mean() + reach)


def _times(times: tuple[float, float]) -> str:
    return f"{times[0]:.2f} s against {times[1]:.2f} s"
