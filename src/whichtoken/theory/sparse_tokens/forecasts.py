"""What a power analysis says: a forecast per model, and the plan that holds them."""

from __future__ import annotations

from dataclasses import dataclass

from whichtoken.display.shown import Shown
from whichtoken.theory.sparse_tokens.design import RIDGE, Design, SharedDesign
from whichtoken.theory.sparse_tokens.ways import Way


@dataclass(frozen=True)
class Forecast(Shown):
    """What to expect of one model."""

    error: float  # predicted test error with the planned samples
    unlimited_error: float  # with all the data in the world
    samples_needed: int | None  # for the target; None without a target, or where no amount of data reaches it
    capacity: float  # samples, those of the query included, up to which the readout's training set is separable, about
    ridge: float = RIDGE  # with the planned samples; larger than usual where that would do worse than a constant answer
    moved: str | None = None  # where the error was moved to, if its numerical error took it past that


@dataclass(frozen=True)
class Plan(Shown):
    """The task as planned for, a forecast per model, the design for attention, limits and warnings: the result of `plan`.

    Attributes
    ----------
    length, signal_tokens, strength, prevalence, dim : numbers
        The task.
    samples : int
        Sequences that were planned for.
    target_error : float or None
        Wanted test error, if there is one.
    design : Design
        Temperature, ridge and split of the samples to use for attention whose query and readout have samples of their own.
    shared_design : SharedDesign
        Temperature and ridge to use for attention whose query and readout are both trained on all samples.
    attention, pooled, vectorized : Forecast
        Predicted error, samples needed and capacity of each model; attention with the samples split.
    reuse, bag_classifier : Way
        Predicted error and samples needed of attention with all samples for query and readout, and of `BagClassifier`.
    recommended : str
        How to train attention: "split", "reuse" or "BagClassifier".
    bayes_floor : float
        No classifier does better.
    bayes_floor_error : float
        Standard error of that number, which is sampled.
    linear_oracle : float
        No linear one does better.
    attention_oracle : float
        Attention that knows the signal.
    warnings : tuple of str
        Where the theory should not be trusted.

    Examples
    --------
    >>> from whichtoken.theory.sparse_tokens import plan
    >>> study = plan(length=10, signal_tokens=1, strength=5.0, prevalence=0.5, dim=500, samples=2000)
    >>> study.bayes_floor < study.attention.error < study.pooled.error
    True
    """

    length: int
    signal_tokens: int
    strength: float
    prevalence: float
    dim: int
    samples: int
    target_error: float | None
    design: Design
    shared_design: SharedDesign
    attention: Forecast
    pooled: Forecast
    vectorized: Forecast
    reuse: Way
    bag_classifier: Way
    recommended: str
    bayes_floor: float
    bayes_floor_error: float
    linear_oracle: float
    attention_oracle: float
    warnings: tuple[str, ...]

    def _headline(self) -> str:
        names = {"attention": self.attention, "mean pooling": self.pooled, "all tokens": self.vectorized}
        errors = ", ".join(f"{name} {forecast.error:.3g}" for name, forecast in names.items())
        return (
            f"predicted test errors with {self.samples} sequences: {errors}; no classifier below {self.bayes_floor:.3g}"
        )
