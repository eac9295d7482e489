"""The settings of cloning: those of the run that may follow, and a section of its own."""

from dataclasses import dataclass, field, fields
from typing import Dict, Optional

from enn_trainer.config import TrainConfig
from enn_trainer.config_checks import Validator
from enn_trainer.imitation_config import ImitationLoss

_LARGEST_LR = 1e30  # optimizers divide it by small numbers, and the result must be a float32


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


@dataclass
class CloneRunConfig(TrainConfig):
    """Settings of cloning, and of the run that PPO may continue from it.

    Attributes:
        clone: Behavioural cloning.
    """

    clone: CloneConfig = field(default_factory=CloneConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        with Validator(self) as check:
            check.require(
                not (self.ppo.reward_scaling and self.clone.value_coef),
                "ppo.reward_scaling: expected false beside clone.value_coef above 0, as the scale "
                "of the rewards of a run is not known before it; got true",
            )
            check.require(
                self.bc is None,
                "bc: expected none while cloning, which learns from recordings alone; leave it "
                "out, and give it to enn train",
            )

    @classmethod
    def fixed_during_run(cls) -> Dict[str, str]:
        """Return those of `TrainConfig` and of cloning."""
        return {**super().fixed_during_run(), "clone": "cloning is over before the run begins"}

    def of_run(self) -> TrainConfig:
        """Return the settings of the run that PPO may continue from it."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})
