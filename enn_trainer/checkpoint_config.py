"""Settings of saving."""

import re
from dataclasses import dataclass, field
from typing import List, NamedTuple, Optional

from enn_trainer.config_checks import Validator
from enn_trainer.errors import ConfigError
from entity_env.short_repr import short_repr


@dataclass
class CheckpointConfig:
    """Settings of when a run is saved and which saves are kept. Pinned ones always are.

    Attributes:
        every_seconds: Save when the last save is this long ago; 0 to save, and to wait for it,
            after every update.
        keep: Number of newest saves that are kept.
        keep_every_steps: Save, and keep the first save, in each window of this many steps.
        keep_every_minutes: Save, and keep the first save, in each window of this many minutes of
            training.
        best: Save, and keep the save, where one of these metrics was best, such as
            "eval/episodic_reward.mean max" or "losses/entropy min".
        keep_best: Number of saves that are kept for each metric of best.
    """

    every_seconds: float = 60.0
    keep: int = 3
    keep_every_steps: Optional[int] = None
    keep_every_minutes: Optional[float] = None
    best: List[str] = field(default_factory=list)
    keep_best: int = 1

    def __post_init__(self) -> None:
        with Validator(self) as check:
            check.numbers("every_seconds", at_least=0, finite=False)  # infinity switches it off
            check.numbers("keep", "keep_every_steps", "keep_best", at_least=1)
            check.numbers("keep_every_minutes", above=0.0)
            for i, text in enumerate(self.best):
                with check.collect(f"best[{i}]: "):
                    read_best(text)


class Best(NamedTuple):
    """A metric and the direction in which it is better.

    Attributes:
        key: the tag of a metric, such as `eval/episodic_reward.mean`.
        sign: 1 if the largest value is best, -1 if the smallest is.
    """

    key: str
    sign: int


_BEST = re.compile(r"(?P<key>\S+)\s+(?P<direction>max|min)")


def read_best(text: str) -> Best:
    """Return the metric and direction in a text such as `losses/entropy min`.

    Raises:
        ConfigError: it is not in this form.
    """
    match = _BEST.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            "expected a metric and max or min, as in 'eval/episodic_reward.mean max', got "
            f"{short_repr(text)}"
        )
    return Best(match["key"], 1 if match["direction"] == "max" else -1)
