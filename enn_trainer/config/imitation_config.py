"""Settings of learning from recordings: by cloning before a run, and beside PPO."""

from dataclasses import dataclass
from typing import Literal, Optional

from enn_trainer.config.validation import Validator

ImitationLoss = Literal["cross_entropy", "kl"]
_LARGEST_LR = 1e30  # optimizers divide it by small numbers, and the result must be a float32


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


@dataclass
class CloneConfig:
    """Settings of behavioural cloning.

    Attributes:
        loss: "cross_entropy" of the recorded choices, or "kl" from the recorded probabilities of
            all choices, of recordings that have them.
        epochs: Number of passes over the frames, at most.
        bs: Batch size: frames in one optimizer step.
        lr: The learning rate, in place of optim.lr; lowered linearly to 0 if optim.anneal_lr.
        value_coef: Coefficient of the loss of the value function, which learns the discounted
            returns of the recorded episodes. Its loss is divided by twice what it is for a value
            of 0, so that the size of the rewards is no matter.
        test_fraction: Share of the episodes that are set apart to test on.
        patience: Stop after so many epochs in a row without a better loss on these; never if not
            set. The best weights are kept in any case.
        max_frames: Read about so many frames to train on, and as many to test on, where there is
            not enough memory for all: the first whole episodes, equally many frames of each file.
    """

    loss: ImitationLoss = "cross_entropy"
    epochs: int = 20
    bs: int = 512
    lr: float = 0.001
    value_coef: float = 0.5
    test_fraction: float = 0.1
    patience: Optional[int] = 3
    max_frames: Optional[int] = None

    def __post_init__(self) -> None:
        with Validator(self) as check:
            check.choices(ImitationLoss, "loss")
            check.numbers("epochs", "bs", "patience", "max_frames", at_least=1)
            check.numbers("lr", above=0.0, at_most=_LARGEST_LR)
            check.numbers("value_coef", at_least=0.0)
            check.numbers("test_fraction", at_least=0, below=1)
