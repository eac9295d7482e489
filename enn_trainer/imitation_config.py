"""The settings of learning from recordings during a run. See `config.py` for how they are written.

Those of cloning, which comes before a run, are in `clone_config.py`.
"""

from dataclasses import dataclass
from typing import Literal

from enn_trainer.config_checks import Validator

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
        with Validator(self) as check:
            check.require(self.path != "", "path: expected a recording, got ''")
            check.paths("path")
            check.numbers("coef", at_least=0.0)
            check.numbers("bs", at_least=1)
            check.choices(ImitationLoss, "loss")
