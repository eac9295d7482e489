"""Results of evaluations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from enn_trainer.evaluation.eval_metrics import Measured, PlayedEpisode, with_interval
from enn_trainer.viewer.replay import Replay


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
        replay: the first episodes, if they were asked for without a page to write.
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
    replay: Replay | None = None
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
