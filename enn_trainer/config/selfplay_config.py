"""Settings of opponents in training.

hyperstate's managers also read this class and support only `List[str]`, not `list[str]`.
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
        share: Share of the matches to play against the pool, rounded; the matches with the highest
            indices. In other matches the agent plays all sides.
        opponents: Permanent pool members: "random"; a checkpoint or a run, RUN@STEP, RUN@best; the
            pool of another run, RUN@opponents; or a bot, path/file.py:Name.
        snapshot_every: Number of frames between snapshots of the agent, which join the pool; the
            first one before the first update. 0 for none.
        capacity: Largest number of snapshots in the pool. Beyond it the snapshot with the closest
            neighbors in step is removed, but never the newest.
        choose: Sampling weights of pool members: "uniform"; "latest", only the newest snapshot;
            "pfsp", (1 - p)^2, which prefers members that beat the agent; "even", p(1 - p), which
            prefers members of equal strength. p is the expected score of the agent.
        in_play: Number of distinct members to sample for each update; games that start in the
            update get their opponents from them.
        sides: Seats that the agent takes in turn against the pool; all if empty.
        result: Metric to compare sides by at the end of a game: "episodic_reward", or a metric of
            the last observation of each side, such as "win"; "" for none, as in cooperation.
        half_life: Number of games after which the weight of a result has halved.
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
            "opponents, snapshot_every: expected opponents or snapshots of the agent, got neither",
        )
        check.require(
            self.choose != "latest" or self.snapshot_every > 0,
            "choose: expected snapshot_every above 0 with 'latest', got 0",
        )
        check.require(
            bool(self.result) or self.choose in ("uniform", "latest"),
            f"choose: expected 'uniform' or 'latest' with result='', which has no scores (or use "
            f"a matchmaker), got {self.choose!r}",
        )
        check.require(
            len({*self.sides}) == len(self.sides) and all(side >= 0 for side in self.sides),
            f"sides: expected distinct seats from 0, got {self.sides}",
        )
        twice = [name for name in self.opponents if self.opponents.count(name) > 1]
        check.require(not twice, f"opponents: expected distinct names, got {twice[:1]} twice")


def result_metric(selfplay: Optional[SelfplayConfig]) -> str:
    """Return the metric to compare sides by; "episodic_reward" without self-play or result."""
    return (selfplay.result if selfplay is not None else "") or "episodic_reward"
