"""Evaluations under way: played elsewhere, with results that count at a fixed later step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from enn_trainer.evaluation.eval_metrics import Measured
from enn_trainer.evaluation.results import SuiteResult

EVALUATIONS = "evaluations"
"""Name of the evaluations under way in `State.memory`."""
_COUNTS = ("episodes", "missing", "max_steps", "limit")


class UnderWay(Protocol):
    """Evaluation that is played elsewhere."""

    def results(
        self, stop: Callable[[], bool], watch: Callable[[str, float], None]
    ) -> Mapping[str, SuiteResult] | None:
        """Wait for the results by suite, and return them; None if `stop` returned True before.

        Args:
            stop: called from time to time while waiting.
            watch: called with the name of a suite and 1.0 when that is played.

        Raises:
            Exception: the first error of a suite, as if it had been played here.
        """

    def cancel(self) -> None:
        """End the evaluation; its results are not needed."""


PlayElsewhere: TypeAlias = Callable[[bytes, Sequence[str]], UnderWay]
"""Begins to play suites by name; the bytes are an evaluation of `remote.packed`."""


class Evaluation(NamedTuple):
    """Evaluation whose results have not counted yet.

    Attributes:
        step: step of the weights.
        due: step at which the results count.
        under_way: the evaluation that is played; None once it has results.
        results: results by suite; None before they arrived.
    """

    step: int
    due: int
    under_way: UnderWay | None
    results: Mapping[str, SuiteResult] | None = None

    def waited_for(
        self,
        stop: Callable[[], bool] = lambda: False,
        watch: Callable[[str, float], None] = lambda suite, share: None,
    ) -> "Evaluation":
        """Return the evaluation with results, without them if `stop` returned True before."""
        if self.results is not None or self.under_way is None:
            return self
        results = self.under_way.results(stop, watch)
        return self if results is None else self._replace(under_way=None, results=results)

    def plain(self) -> dict[str, Any]:
        """Return an evaluation with results as plain data."""
        assert self.results is not None
        suites = [
            {
                "suite": suite,
                "metrics": _plain_metrics(result.metrics),
                **{name: getattr(result, name) for name in _COUNTS},
                "opponents": [
                    {"name": member, "metrics": _plain_metrics(against)}
                    for member, against in result.opponents.items()
                ],
            }
            for suite, result in self.results.items()
        ]
        return {"step": self.step, "due": self.due, "suites": suites}

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation that `plain` returned."""
        results = {
            one["suite"]: SuiteResult(
                metrics=_metrics_of(one["metrics"]),
                opponents={o["name"]: _metrics_of(o["metrics"]) for o in one["opponents"]},
                **{name: one[name] for name in _COUNTS},
            )
            for one in plain["suites"]
        }
        return Evaluation(plain["step"], plain["due"], None, results)


def _plain_metrics(metrics: Mapping[str, Measured]) -> list[dict[str, Any]]:
    return [{"name": name, **vars(measured)} for name, measured in metrics.items()]


def _metrics_of(plain: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    fields = Measured.__dataclass_fields__
    return {one["name"]: Measured(**{name: one[name] for name in fields}) for one in plain}
