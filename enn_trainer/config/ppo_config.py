"""Settings of the learning algorithm and its optimizer."""

from dataclasses import dataclass, field
from typing import Dict, List, Literal, Optional

from enn_trainer.config.validation import JSON_TEXT, Section, Validator, limited
from rogue_net.config import ValueBinsConfig

PerActorOrFrame = Literal["actor", "frame"]
ValueLoss = Literal["mse", "huber", "hl_gauss"]
NormAdvOver = Literal["acting", "all"]


@dataclass
class MagnetConfig(Section):
    """Settings of the magnet: an earlier self that the policy is kept close to.

    Attributes:
        coef: Coefficient of the KL divergence of the policy from the magnet, a mean over actors.
        every: The magnet is the agent of the last multiple of this many steps.
    """

    coef: float = limited(0.1, at_least=0.0)
    every: int = limited(50000, at_least=1)


@dataclass
class PPOConfig(Section):
    """Settings of proximal policy optimization.

    Attributes:
        gae: Estimate advantages by generalized advantage estimation.
        gamma: Discount factor of rewards.
        gae_lambda: The lambda of generalized advantage estimation.
        norm_adv: Normalize advantages to mean 0 and standard deviation 1 over each minibatch.
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
        value_loss: The value function's loss: "huber" grows linearly beyond huber_delta, so that
            rare large errors leave something to the policy; "mse" squares all errors; "hl_gauss"
            learns the probabilities of value_bins as classes, for returns of several sizes.
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
        magnet: An earlier self that the policy is kept close to, against running in circles in
            games; none if not set.
        seq_len: With memory, the number of steps of an environment that gradients go back through,
            which are learnt from together; rollout.steps if not set.
        norm_adv_over: Mean and standard deviation are those of the frames of a minibatch in which
            somebody acts ("acting"), so that waiting does not scale the policy's step, and fewer
            than two of them are not normalized; or those of "all" frames.
        value_norm: The value function computes in standard deviations from the mean of all returns
            of the run so far, so that their size is no matter. What is reported and shown stays in
            units of the returns.
        norm_adv_floor: With value_norm, advantages whose standard deviation is below this share of
            that of the returns are divided by that share instead, so that they vanish once there is
            nothing left to gain.
        ent_anneal_power: With anneal_entropy, the entropy coefficient falls by this power of the
            share of the run that is left: 1 is linear, 8 falls to a tenth in the first quarter.
    """

    gae: bool = True
    gamma: float = limited(0.99, at_least=0.0, at_most=1.0)
    gae_lambda: float = limited(0.9, at_least=0.0, at_most=1.0)
    norm_adv: bool = True
    clip_coef: float = limited(0.2, above=0, finite=False)
    clip_vloss: bool = False
    ent_coef: float = limited(0.2)
    vf_coef: float = limited(0.5)
    target_kl: Optional[float] = limited(None, above=0, finite=False)
    anneal_entropy: bool = True
    ratio: PerActorOrFrame = "actor"
    weight_by: PerActorOrFrame = "actor"
    dual_clip: Optional[float] = limited(None, above=1.0)
    value_loss: ValueLoss = "huber"
    vf_clip_coef: Optional[float] = limited(None, above=0.0)
    huber_delta: float = limited(1.0, above=0.0)
    value_bins: Optional[ValueBinsConfig] = None
    reward_scaling: bool = False
    ent_targets: Dict[str, float] = field(default_factory=dict)
    ent_target_lr: float = limited(0.1, above=0.0)
    magnet: Optional[MagnetConfig] = None
    seq_len: Optional[int] = limited(None, at_least=1)
    norm_adv_over: NormAdvOver = "acting"
    value_norm: bool = True
    norm_adv_floor: float = limited(0.1, at_least=0.0)
    ent_anneal_power: float = limited(8.0, at_least=0.0)

    def _check(self, check: Validator) -> None:
        for name, target in self.ent_targets.items():
            check.number(f"ent_targets[{name!r}]", target, above=0, below=1)

        # Settings that have no effect beside the others.
        loss, is_binned = repr(self.value_loss), self.value_loss == "hl_gauss"
        check.require(
            not is_binned or self.value_bins is not None,
            "value_bins: expected the bins of value_loss='hl_gauss', got None; set their low "
            "and high, beyond all returns",
        )
        check.require(
            is_binned or self.value_bins is None,
            f"value_bins: expected value_loss='hl_gauss', which they are for, got {loss}; "
            "leave them out",
        )
        check.require(
            not (is_binned and self.clip_vloss),
            "clip_vloss: expected false beside value_loss='hl_gauss', which has nothing to "
            "clip, got true",
        )
        check.only_with("vf_clip_coef", self.clip_vloss, "clip_vloss=true", "false")
        check.only_with("huber_delta", self.value_loss == "huber", "value_loss='huber'", loss)
        check.only_with("norm_adv_floor", self.value_norm, "value_norm=true", "false", 0.0)
        check.only_with(
            "ent_anneal_power", self.anneal_entropy, "anneal_entropy=true", "false", 1.0, 4.0
        )
        check.only_with("ent_target_lr", bool(self.ent_targets), "ent_targets")
        check.require(
            not self.ent_targets or self.ent_coef > 0,
            f"ent_coef: expected a number above 0, where the coefficients of ent_targets "
            f"start, got {self.ent_coef}",
        )


@dataclass
class ParamGroupConfig(Section):
    """Settings of some of the parameters.

    Attributes:
        pattern: Names of the parameters, such as "embedding.*"; * stands for anything.
        lr_factor: Factor of the learning rate.
        weight_decay: Weight decay of all of them, also of those that optim.weight_decay spares;
            as of all others if not set.
        freeze_from: Leave them as they are from this step on; from the first one if only
            freeze_until is set.
        freeze_until: Train them again from this step on; never if only freeze_from is set.
    """

    pattern: str
    lr_factor: float = limited(1.0, at_least=0)
    weight_decay: Optional[float] = limited(None, at_least=0)
    freeze_from: Optional[int] = limited(None, at_least=0)
    freeze_until: Optional[int] = None

    def _check(self, check: Validator) -> None:
        check.require(self.pattern != "", "pattern: expected one such as \"embedding.*\", got ''")
        check.number("freeze_until", self.freeze_until, at_least=(self.freeze_from or 0) + 1)


@dataclass
class OptimizerConfig(Section):
    """Settings of the optimizer.

    Attributes:
        lr: The learning rate.
        lr_warmup_steps: Number of environment steps over which the learning rate rises from 0 to
            its value; none if not set.
        bs: Batch size: frames in one optimizer step.
        weight_decay: Weight decay, of the matrices; biases, norms and embedding tables have
            none.
        micro_bs: Frames in one forward and backward pass, whose gradients are added up to those of
            a batch. A smaller number needs less memory, takes longer, and learns the same.
        anneal_lr: Lower the learning rate linearly to 0 over the run, unless lr has a schedule.
        update_epochs: Number of passes over the frames of each rollout.
        max_grad_norm: Scale gradients down to this norm, those of a value network for themselves.
        groups: Settings of some of the parameters; each follows the first group that fits its name.
        name: Which optimizer: a class of torch.optim.
        kwargs: Keyword arguments of the optimizer, as a JSON object; eps of AdamW is 0.00001 if it
            is not among them.
        shuffle: Draw a new order of the frames for each pass over them; without it they come step
            by step, as they were collected.
        max_entities: Entities in one forward and backward pass, at most; a frame with more of them
            has one for itself. As with micro_bs, less memory, more time, and the same is learnt.
    """

    lr: float = limited(0.001, at_least=0.0)
    lr_warmup_steps: Optional[int] = limited(None, at_least=0)
    bs: int = limited(128, at_least=1)
    weight_decay: float = limited(0.0, at_least=0.0)
    micro_bs: Optional[int] = limited(None, at_least=1)
    anneal_lr: bool = True
    update_epochs: int = limited(3, at_least=1)
    max_grad_norm: float = limited(2.0, above=0, finite=False)
    groups: List[ParamGroupConfig] = field(default_factory=list)
    name: str = "AdamW"
    kwargs: str = field(default="{}", metadata=JSON_TEXT)
    shuffle: bool = True
    max_entities: Optional[int] = limited(None, at_least=1)

    def _check(self, check: Validator) -> None:
        is_default = (self.name, self.kwargs) == ("AdamW", "{}")  # known to work, without torch
        if not is_default and not any(p.startswith("kwargs:") for p in check.found):
            from enn_trainer.config.torch_optimizers import problems_of_optimizer

            decays = bool(self.weight_decay) or any(g.weight_decay for g in self.groups)
            check.found += problems_of_optimizer(self.name, self.kwargs, decays)
