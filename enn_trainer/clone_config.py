"""The settings of cloning: those of the run that may follow, and a section of its own."""

from dataclasses import dataclass, field, fields
from typing import Dict, Optional

from enn_trainer.config import TrainConfig
from enn_trainer.config_checks import above, one_of, refuse, within
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
        refuse(
            one_of("loss", self.loss, ImitationLoss),
            within("epochs", self.epochs, 1),
            within("bs", self.bs, 1),
            above("lr", self.lr, 0.0),
            None
            if self.lr <= _LARGEST_LR
            else f"lr: expected a number up to {_LARGEST_LR}, got {self.lr}",
            within("value_coef", self.value_coef, 0.0),
            None
            if 0 <= self.test_fraction < 1
            else f"test_fraction: expected a number from 0 to below 1, got {self.test_fraction}",
            within("patience", self.patience, 1),
            within("max_frames", self.max_frames, 1),
        )


@dataclass
class CloneRunConfig(TrainConfig):
    """Settings of cloning, and of the run that PPO may continue from it.

    Attributes:
        clone: Behavioural cloning.
    """

    clone: CloneConfig = field(default_factory=CloneConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(
            "ppo.reward_scaling: expected false beside clone.value_coef above 0, as the scale of "
            "the rewards of a run is not known before it; got true"
            if self.ppo.reward_scaling and self.clone.value_coef
            else None,
            "bc: expected none while cloning, which learns from recordings alone; leave it out, "
            "and give it to enn train"
            if self.bc is not None
            else None,
        )

    @classmethod
    def fixed_during_run(cls) -> Dict[str, str]:
        """As of `TrainConfig`, and those of cloning."""
        return {**super().fixed_during_run(), "clone": "cloning is over before the run begins"}

    def of_run(self) -> TrainConfig:
        """The settings of the run that PPO may continue from it."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})
