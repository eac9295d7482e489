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
    """Settings of magnetic mirror descent: a KL penalty to an earlier policy, the magnet.

    Attributes:
        coef: Coefficient of the KL divergence of the policy from the magnet, a mean over actors.
        every: Update the magnet to the current agent at each multiple of this many steps.
    """

    coef: float = limited(0.1, at_least=0.0)
    every: int = limited(50000, at_least=1)


@dataclass
class PPOConfig(Section):
    """Settings of proximal policy optimization.

    Attributes:
        gae: Use generalized advantage estimation (GAE).
        gamma: Discount factor of rewards.
        gae_lambda: The lambda of GAE.
        norm_adv: Normalize advantages to mean 0 and standard deviation 1 over each minibatch.
        clip_coef: Clipping range of the probability ratio: gradients are cut beyond 1 plus or
            minus this.
        clip_vloss: Also clip the loss of the value function.
        ent_coef: Coefficient of the entropy bonus.
        vf_coef: Coefficient of the loss of the value function.
        target_kl: Stop the optimization on a rollout once the KL divergence from the policy that
            collected it exceeds this.
        anneal_entropy: Anneal the entropy coefficient to 0 over the run, see ent_anneal_power; not
            if ent_coef has a schedule.
        ratio: Clip the probability ratio of each "actor", or the joint ratio of all choices in a
            "frame", for choices of actors that depend on each other.
        weight_by: Weigh every "actor" equally in the loss of the policy, so that frames with many
            actors dominate, or every "frame", for environments with a varying number of actors.
        dual_clip: For negative advantages, clip the probability ratio at this value (dual-clip
            PPO); above 1, such as 3. For many actors, where rare actions get huge ratios.
        value_loss: Loss of the value function: "huber" grows linearly beyond huber_delta, so that
            rare large errors do not dominate; "mse" is the mean squared error; "hl_gauss" is a
            cross-entropy over value_bins, for returns of several scales.
        vf_clip_coef: Clipping range of clip_vloss, in units of returns; clip_coef if not set. Set
            it if the scale of returns is far from 1.
        huber_delta: Error beyond which value_loss "huber" grows linearly.
        value_bins: Bins of value_loss "hl_gauss".
        reward_scaling: Divide rewards by the running standard deviation of discounted returns, for
            rewards far from 1. Reported rewards stay unscaled.
        ent_targets: Target entropy of actions by name, as a share of the maximum entropy between 0
            and 1. The coefficient of such an action starts at ent_coef and is learned instead of
            annealed; to control the exploration of several actions.
        ent_target_lr: Learning rate of these coefficients: relative change per optimizer step for
            an entropy that misses its target by 1.
        magnet: Magnetic mirror descent: a KL penalty to an earlier policy, against cycling in
            games; none if not set.
        seq_len: With memory, length of the sequences for backpropagation through time, in steps;
            rollout.steps if not set.
        norm_adv_over: Normalize advantages over the frames of a minibatch with decisions
            ("acting"), so that waiting does not scale the update (fewer than two such frames are
            not normalized), or over "all" frames.
        value_norm: Normalize the targets of the value function by the running mean and standard
            deviation of returns, so that their scale does not matter. Reported values stay in units
            of returns.
        norm_adv_floor: With value_norm, least standard deviation to divide advantages by, relative
            to the standard deviation of returns, so that advantages vanish once nothing can be
            gained.
        ent_anneal_power: With anneal_entropy, exponent of the annealing: the coefficient is
            multiplied by the remaining share of the run to this power. 1 is linear; 8 falls to a
            tenth in the first quarter.
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

        # Settings without effect in combination with others.
        loss, is_binned = repr(self.value_loss), self.value_loss == "hl_gauss"
        check.require(
            not is_binned or self.value_bins is not None,
            "value_bins: expected bins for value_loss='hl_gauss', got None; set low and high "
            "beyond all returns",
        )
        check.require(
            is_binned or self.value_bins is None,
            f"value_bins: expected value_loss='hl_gauss', got {loss}; remove value_bins, which "
            "has no effect",
        )
        check.require(
            not (is_binned and self.clip_vloss),
            "clip_vloss: expected false with value_loss='hl_gauss', which cannot be clipped, "
            "got true",
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
            f"ent_coef: expected a number above 0, the initial coefficient of ent_targets, "
            f"got {self.ent_coef}",
        )


@dataclass
class ParamGroupConfig(Section):
    """Settings of a parameter group.

    Attributes:
        pattern: Names of the parameters, such as "embedding.*"; * matches anything.
        lr_factor: Factor of the learning rate.
        weight_decay: Weight decay of all parameters of the group, including biases, norms and
            embedding tables; as for other parameters if not set.
        freeze_from: Freeze the parameters from this step on; from the first step if only
            freeze_until is set.
        freeze_until: Train the parameters again from this step on; never if only freeze_from is
            set.
    """

    pattern: str
    lr_factor: float = limited(1.0, at_least=0)
    weight_decay: Optional[float] = limited(None, at_least=0)
    freeze_from: Optional[int] = limited(None, at_least=0)
    freeze_until: Optional[int] = None

    def _check(self, check: Validator) -> None:
        check.require(self.pattern != "", "pattern: expected names such as 'embedding.*', got ''")
        check.number("freeze_until", self.freeze_until, at_least=(self.freeze_from or 0) + 1)


@dataclass
class OptimizerConfig(Section):
    """Settings of the optimizer.

    Attributes:
        lr: Learning rate.
        lr_warmup_steps: Number of environment steps of linear learning rate warm-up; none if not
            set.
        bs: Batch size: number of frames per optimizer step.
        weight_decay: Weight decay of matrices; biases, norms and embedding tables have none.
        micro_bs: Number of frames per forward and backward pass; gradients are accumulated over a
            batch. Smaller values need less memory and more time, with the same result.
        anneal_lr: Anneal the learning rate linearly to 0 over the run, unless lr has a schedule.
        update_epochs: Number of epochs over the frames of each rollout.
        max_grad_norm: Clip the gradient norm to this; a separate value network is clipped on its
            own.
        groups: Parameter groups; each parameter belongs to the first group that matches its name.
        name: Optimizer: the name of a class of torch.optim.
        kwargs: Keyword arguments of the optimizer, as a JSON object; eps of AdamW is 0.00001 unless
            given.
        shuffle: Shuffle the frames in each epoch; otherwise frames stay in the order of collection.
        max_entities: Largest number of entities per forward and backward pass; a frame with more
            entities gets its own pass. Like micro_bs: less memory, more time, the same result.
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
        if not is_default and not any(p.startswith("kwargs:") for p in check.messages):
            from enn_trainer.config.torch_optimizers import problems_of_optimizer

            decays = bool(self.weight_decay) or any(g.weight_decay for g in self.groups)
            check.messages += problems_of_optimizer(self.name, self.kwargs, decays)
