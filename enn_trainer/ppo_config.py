"""Settings of the learning algorithm."""

from dataclasses import dataclass, field
from typing import Dict, Literal, Optional

from enn_trainer.config_checks import Validator
from rogue_net.value_bins import ValueBinsConfig

PerActorOrFrame = Literal["actor", "frame"]
ValueLoss = Literal["mse", "huber", "hl_gauss"]


@dataclass
class PPOConfig:
    """Settings of proximal policy optimization.

    Attributes:
        gae: Estimate advantages by generalized advantage estimation.
        gamma: Discount factor of rewards.
        gae_lambda: The lambda of generalized advantage estimation.
        norm_adv: Normalize advantages to mean 0 and standard deviation 1.
        clip_coef: How far the probability of an action may move away from 1 times its old one
            before its gradient is cut.
        clip_vloss: Clip the value function's loss, too.
        ent_coef: Coefficient of the entropy bonus.
        vf_coef: Coefficient of the value function's loss.
        target_kl: Leave a rollout's optimization once the KL divergence from the policy that
            collected it exceeds this.
        anneal_entropy: Lower the entropy coefficient linearly to 0 over the run, unless ent_coef
            has a schedule.
        ratio: Clip the probability ratio of each "actor" by itself, or that of all that was chosen
            in a "frame" together, for actors whose choices only make sense together.
        weight_by: Every "actor" counts the same in the policy's loss, so that frames with many
            dominate, or every "frame", for worlds whose number of actors changes a lot.
        dual_clip: Where an action turned out badly, ignore how much more probable than this many
            times it became; above 1, such as 3. For many actors, of which rare ones get huge
            ratios.
        value_loss: The value function's loss: "mse" squares; "huber" grows linearly beyond
            huber_delta, for rare large returns; "hl_gauss" learns the probabilities of value_bins
            as classes, for returns of several sizes.
        vf_clip_coef: How far a value may move before clip_vloss stops it, in units of the returns;
            clip_coef if not set. Set it where returns are not of the size of 1.
        huber_delta: The error beyond which value_loss "huber" grows linearly.
        value_bins: The bins of value_loss "hl_gauss".
        reward_scaling: Divide rewards by the running standard deviation of discounted returns, for
            rewards that are far from 1. What is reported stays as it was.
        ent_targets: For each action named, the share of the largest possible entropy to keep,
            between 0 and 1. Its coefficient starts as ent_coef and is learnt, and not annealed;
            for keeping several actions exploring to a known degree.
        ent_target_lr: Relative change of these coefficients in an optimizer step, for an entropy
            that misses its target by 1.
    """

    gae: bool = True
    gamma: float = 0.99
    gae_lambda: float = 0.95
    norm_adv: bool = True
    clip_coef: float = 0.2
    clip_vloss: bool = True
    ent_coef: float = 0.1
    vf_coef: float = 0.5
    target_kl: Optional[float] = None
    anneal_entropy: bool = True
    ratio: PerActorOrFrame = "actor"
    weight_by: PerActorOrFrame = "actor"
    dual_clip: Optional[float] = None
    value_loss: ValueLoss = "mse"
    vf_clip_coef: Optional[float] = None
    huber_delta: float = 1.0
    value_bins: Optional[ValueBinsConfig] = None
    reward_scaling: bool = False
    ent_targets: Dict[str, float] = field(default_factory=dict)
    ent_target_lr: float = 0.1

    def __post_init__(self) -> None:
        with Validator(self) as check:
            check.numbers("gamma", "gae_lambda", at_least=0.0, at_most=1.0)
            check.numbers("clip_coef", "target_kl", above=0, finite=False)
            check.numbers("ent_coef", "vf_coef")
            check.choices(PerActorOrFrame, "ratio", "weight_by")
            check.choices(ValueLoss, "value_loss")
            check.numbers("dual_clip", above=1.0)
            check.numbers("vf_clip_coef", "huber_delta", "ent_target_lr", above=0.0)
            targets = {f"ent_targets[{name!r}]": t for name, t in self.ent_targets.items()}
            check.numbers(values=targets, above=0, below=1)

            # Settings that have no effect beside the others.
            is_binned = self.value_loss == "hl_gauss"
            check.require(
                not is_binned or self.value_bins is not None,
                "value_bins: expected the bins of value_loss='hl_gauss', got None; set their low "
                "and high, beyond all returns",
            )
            check.require(
                is_binned or self.value_bins is None,
                f"value_bins: expected value_loss='hl_gauss', which they are for, got "
                f"{self.value_loss!r}; leave them out",
            )
            check.require(
                not (is_binned and self.clip_vloss),
                "clip_vloss: expected false beside value_loss='hl_gauss', which has nothing to "
                "clip, got true",
            )
            check.require(
                self.clip_vloss or self.vf_clip_coef is None,
                "vf_clip_coef: expected clip_vloss=true, which it is for; leave it out",
            )
            check.require(
                self.value_loss == "huber" or self.huber_delta == 1.0,
                f"huber_delta: expected value_loss='huber', which it is for, got "
                f"{self.value_loss!r}; leave it out",
            )
            check.require(
                bool(self.ent_targets) or self.ent_target_lr == 0.1,
                "ent_target_lr: expected ent_targets, which it is for, got none; leave it out",
            )
            check.require(
                not self.ent_targets or self.ent_coef > 0,
                f"ent_coef: expected a number above 0, where the coefficients of ent_targets "
                f"start, got {self.ent_coef}",
            )
