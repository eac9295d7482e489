"""The settings of learning from recordings during a run. See `config.py` for how they are written.

Those of cloning, which comes before a run, are in `clone_config.py`.
"""

from dataclasses import dataclass
from typing import Literal

from enn_trainer.config_checks import one_of, refuse, usable_path, within

ImitationLoss = Literal["cross_entropy", "kl"]


@dataclass
class BCConfig:
    """Settings of behavioural cloning beside PPO.

    Attributes:
        path: The recording to learn from as well.
        coef: Coefficient of its loss; anneal it by a schedule such as "step: 1@0 lin 0@1e5".
        bs: Recorded frames in one optimizer step, drawn at random from those with actors.
        loss: "cross_entropy" of the recorded choices, or "kl" from the recorded probabilities of
            all choices.
    """

    path: str
    coef: float = 1.0
    bs: int = 256
    loss: ImitationLoss = "cross_entropy"

    def __post_init__(self) -> None:
        refuse(
            None if self.path else "path: expected a recording, got ''",
            usable_path("path", self.path),
            within("coef", self.coef, 0.0),
            within("bs", self.bs, 1),
            one_of("loss", self.loss, ImitationLoss),
        )
