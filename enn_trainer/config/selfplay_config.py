"""Settings of opponents in training.

hyperstate's managers read this class too, and know `List[str]` and not `list[str]`.
"""

from dataclasses import dataclass, field
from typing import List, Literal, Optional

from enn_trainer.config.validation import Section, Validator, limited

Choose = Literal["uniform", "latest", "pfsp", "even"]
RANDOM = "random"
"""Name of the opponent that chooses uniformly."""


@dataclass
class SelfplayConfig(Section):
    """Settings of matches against a pool of opponents.

    Attributes:
        share: Share of the matches that are played against the pool, rounded; those with the
            highest indices. In the others the agent has all sides.
        opponents: Members that never leave: "random"; a checkpoint or a run, RUN@STEP, RUN@best;
            the pool of another run, RUN@opponents; or a bot, path/file.py:Name.
        snapshot_every: A copy of the agent joins before the first update, and after the first
            update at or past each multiple of this many frames; 0 for none.
        capacity: Number of snapshots that stay. Beyond it the one with the closest neighbours in
            step leaves, but not the newest.
        choose: Weights by which members are drawn: "uniform"; "latest", the newest snapshot alone;
            "pfsp", (1 - p)^2, which prefers those that beat the agent; "even", p(1 - p), which
            prefers those as strong as the agent. p is the agent's expected score.
        in_play: Number of distinct members that are drawn for an update by these weights; games
            that begin in it draw their opponents from them.
        sides: The seats that the agent takes in turn against the pool; all if empty.
        result: The metric by which sides are compared at the end of a game: "episodic_reward", or
            a metric of the last observation of each side, such as "win"; "" for no comparison, as
            in cooperation.
        half_life: Number of later games after which a result counts half.
    """

    share: float = limited(0.2, at_least=0.0, at_most=1.0)
    opponents: List[str] = field(default_factory=list)
    snapshot_every: int = limited(50000, at_least=0)
    capacity: int = limited(16, at_least=1)
    choose: Choose = "pfsp"
    in_play: int = limited(4, at_least=1)
    sides: List[int] = field(default_factory=list)
    result: str = "episodic_reward"
    half_life: float = limited(1000.0, above=0.0)

    def _check(self, check: Validator) -> None:
        check.require(
            bool(self.opponents or self.snapshot_every),
            "opponents, snapshot_every: expected opponents, or snapshots of the agent, got none "
            "and 0",
        )
        check.require(
            self.choose != "latest" or self.snapshot_every > 0,
            "choose: expected snapshots beside 'latest', got snapshot_every=0",
        )
        check.require(
            bool(self.result) or self.choose in ("uniform", "latest"),
            f"choose: expected 'uniform' or 'latest' beside result='', by which no score is known "
            f"(a matchmaker takes its place), got {self.choose!r}",
        )
        check.require(
            len({*self.sides}) == len(self.sides) and all(side >= 0 for side in self.sides),
            f"sides: expected different seats from 0, got {self.sides}",
        )
        twice = [name for name in self.opponents if self.opponents.count(name) > 1]
        check.require(not twice, f"opponents: expected each one once, got {twice[:1]} twice")


def result_metric(selfplay: Optional[SelfplayConfig]) -> str:
    """Return the metric by which sides are compared where a comparison is asked for."""
    return (selfplay.result if selfplay is not None else "") or "episodic_reward"
