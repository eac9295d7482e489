"""Results of evaluations, also of those that are played elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from enn_trainer.config import TrainConfig
from enn_trainer.evaluation.eval_metrics import Measured, PlayedEpisode, with_interval
from enn_trainer.experience.collector import Watcher
from enn_trainer.experience.players import Environments
from entity_env.vec.variation import RunningArguments
from entity_env.vec.vec_env import VecEnv

Watch: TypeAlias = Callable[[str, float], None]
"""Callback before each step: name of the suite, and its finished share from 0 to 1."""
EXPLAINING = "explaining"
"""Name that `Watch` gets in place of a suite's, while the frames of a replay are explained."""
EVALUATIONS = "evaluations"
"""Name of the evaluations under way in `State.memory`."""
_COUNTS = ("episodes", "missing", "max_steps", "limit")


class SuiteResult(NamedTuple):
    """Result of one suite.

    Attributes:
        metrics: metrics by name.
        episodes: number of whole episodes that count.
        missing: number of episodes that should count but did not end within `max_steps`, or before
            the evaluation was stopped.
        max_steps: the limit on the steps of each environment.
        limit: the setting that defines `max_steps`.
        film: the video file; None without one.
        film_problem: the reason why a requested video is missing; None without a problem.
        replay: `Replay` of the first episodes, if it was asked for without a page to write.
        page: the page with the first episodes; None without one.
        opponents: metrics by name against each member of a pool, by the name of the member.
        page_problem: the reason why a requested page is missing; None without a problem.
        played: the episodes that count, if they were asked for.
    """

    metrics: Mapping[str, Measured]
    episodes: int
    missing: int
    max_steps: int
    limit: str = "eval.max_steps"
    film: Path | None = None
    film_problem: str | None = None
    replay: Any = None
    page: Path | None = None
    page_problem: str | None = None
    opponents: Mapping[str, Mapping[str, Measured]] = {}
    played: Sequence[PlayedEpisode] = ()

    def in_words(self) -> str:
        """Return the result as one line of text."""
        words = [f"{name} {with_interval(m)}" for name, m in self.metrics.items() if m.count]
        if self.missing:
            words.append(
                f"WARNING: {self.missing} of {self.episodes + self.missing} episodes did not end "
                f"within max_steps={self.max_steps} and are left out, which favours short "
                f"episodes; raise {self.limit}"
            )
        if self.film_problem:
            words.append(f"WARNING: no video: {self.film_problem}")
        if self.page_problem:
            words.append(f"WARNING: no replay: {self.page_problem}")
        return "  ".join(words)


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


class EpisodeReplay:
    """Replay of the first episodes of a suite; here none.

    Attributes:
        processes: number of worker processes of the environments; None for any.
    """

    processes: int | None = None

    def of_suite(self, name: str) -> "EpisodeReplay":
        """Return the replay of a suite, with a page of its own."""
        return self

    def watchers(self, envs: VecEnv, own: Environments, running: RunningArguments) -> list[Watcher]:
        """Return the watchers that keep episodes.

        Args:
            envs: the environments, before their first reset.
            own: (n,) int64, those in which the agent acts.
            running: the arguments of the running episodes.
        """
        return []

    def progress(self, share: float, is_done: bool) -> tuple[float, bool]:
        """Return the finished share of what is to be played, and True if it is done.

        Args:
            share: finished share of the episodes that count.
            is_done: True if all of these have ended.
        """
        return share, is_done

    def results(
        self, network: Any, title: str, about: dict[str, str], config: TrainConfig, watch: Watch
    ) -> dict[str, Any]:
        """Return the fields of `SuiteResult` about the replay, before the environments close.

        Args:
            network: acts in the episodes; None if it is not known.
            title: of the page.
            about: facts by name.
            config: configuration of the run.
            watch: progress callback.
        """
        return {}


NO_REPLAY = EpisodeReplay()
"""No replay."""
