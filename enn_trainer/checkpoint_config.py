"""The settings of saving. See `config.py` for how they are written."""

import re
from dataclasses import dataclass, field
from typing import List, NamedTuple, Optional

from enn_trainer.config_checks import above, refuse, within
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
        refuse(
            None
            if self.every_seconds >= 0  # infinity switches it off
            else f"every_seconds: expected a number of at least 0, got {self.every_seconds}",
            within("keep", self.keep, 1),
            within("keep_every_steps", self.keep_every_steps, 1),
            above("keep_every_minutes", self.keep_every_minutes, 0.0)
            if self.keep_every_minutes is not None
            else None,
            within("keep_best", self.keep_best, 1),
            *(_no_best(f"best[{i}]", text) for i, text in enumerate(self.best)),
        )


class Best(NamedTuple):
    """What a save can be best at.

    Attributes:
        key: the tag of a metric, such as `eval/episodic_reward.mean`.
        sign: 1 if the largest value is best, -1 if the smallest is.
    """

    key: str
    sign: int


_BEST = re.compile(r"(?P<key>\S+)\s+(?P<direction>max|min)")


def read_best(text: str) -> Best:
    """What a text in the form `losses/entropy min` says.

    Raises:
        ValueError: it is not in this form.
    """
    match = _BEST.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            "expected a metric and max or min, as in 'eval/episodic_reward.mean max', got "
            f"{short_repr(text)}"
        )
    return Best(match["key"], 1 if match["direction"] == "max" else -1)


def _no_best(name: str, text: str) -> Optional[str]:
    try:
        read_best(text)
    except ValueError as error:
        return f"{name}: {error}"
    return None
