"""The settings of a run, their versions, and the rules that upgrade older files.

hyperstate's type reader knows `Optional[int]`, `List` and `Dict`, and not string annotations: no
`from __future__ import annotations` here. It reads the `Attributes:` of each class as its help.
"""

import json
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Literal, Optional, get_args

from hyperstate import Versioned
from hyperstate.schema.rewrite_rule import ChangeDefault, RewriteRule

from enn_trainer.errors import ConfigError
from enn_trainer.torch_optimizers import problems_of_optimizer
from rogue_net.rogue_net import RogueNetConfig
from rogue_net.value_bins import ValueBinsConfig

PerActorOrFrame = Literal["actor", "frame"]
ValueLoss = Literal["mse", "huber", "hl_gauss"]


def _script_name() -> str:
    return Path(sys.argv[0]).stem or "run"


@dataclass
class EnvConfig:
    """Which environment to run, and how.

    Attributes:
        kwargs: Keyword arguments of the environment, as a JSON object.
        id: The environment's id.
        validate: Check everything that the environment returns against its spaces.
    """

    kwargs: str = "{}"
    id: str = "MoveToOrigin"
    validate: bool = True

    def __post_init__(self) -> None:
        _refuse(_json_object("kwargs", self.kwargs))


@dataclass
class ParamGroupConfig:
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
    lr_factor: float = 1.0
    weight_decay: Optional[float] = None
    freeze_from: Optional[int] = None
    freeze_until: Optional[int] = None

    def __post_init__(self) -> None:
        _refuse(
            None if self.pattern else "pattern: expected one such as \"embedding.*\", got ''",
            _within("lr_factor", self.lr_factor, 0.0),
            _within("weight_decay", self.weight_decay, 0.0),
            _within("freeze_from", self.freeze_from, 0),
            _within("freeze_until", self.freeze_until, (self.freeze_from or 0) + 1),
        )


@dataclass
class OptimizerConfig:
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
        shuffle: Draw a new order of the frames for each pass over them; otherwise they come step by
            step, as they were collected.
        max_entities: Entities in one forward and backward pass, at most; a frame with more of them
            has one for itself. As with micro_bs, less memory, more time, and the same is learnt.
    """

    lr: float = 0.001
    lr_warmup_steps: Optional[int] = None
    bs: int = 1024
    weight_decay: float = 0.0
    micro_bs: Optional[int] = None
    anneal_lr: bool = True
    update_epochs: int = 3
    max_grad_norm: float = 2.0
    groups: List[ParamGroupConfig] = field(default_factory=list)
    name: str = "AdamW"
    kwargs: str = "{}"
    shuffle: bool = True
    max_entities: Optional[int] = None

    def __post_init__(self) -> None:
        _refuse(
            _within("lr", self.lr, 0.0),
            _within("lr_warmup_steps", self.lr_warmup_steps, 0),
            _within("bs", self.bs, 1),
            _within("weight_decay", self.weight_decay, 0.0),
            _within("micro_bs", self.micro_bs, 1),
            _within("update_epochs", self.update_epochs, 1),
            _positive("max_grad_norm", self.max_grad_norm),
            _within("max_entities", self.max_entities, 1),
            *self._problems_of_choice(),
        )

    def _problems_of_choice(self) -> List[Optional[str]]:
        not_json = _json_object("kwargs", self.kwargs)
        if not_json is not None:
            return [not_json]
        decays = bool(self.weight_decay) or any(group.weight_decay for group in self.groups)
        return [*problems_of_optimizer(self.name, self.kwargs, decays)]


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
        _refuse(
            _within("gamma", self.gamma, 0.0, 1.0),
            _within("gae_lambda", self.gae_lambda, 0.0, 1.0),
            _positive("clip_coef", self.clip_coef),
            _within("ent_coef", self.ent_coef),
            _within("vf_coef", self.vf_coef),
            _positive("target_kl", self.target_kl),
            _one_of("ratio", self.ratio, PerActorOrFrame),
            _one_of("weight_by", self.weight_by, PerActorOrFrame),
            _above("dual_clip", self.dual_clip, 1.0),
            _one_of("value_loss", self.value_loss, ValueLoss),
            _above("vf_clip_coef", self.vf_clip_coef, 0.0),
            _above("huber_delta", self.huber_delta, 0.0),
            _above("ent_target_lr", self.ent_target_lr, 0.0),
            *(_share(f"ent_targets[{name!r}]", t) for name, t in self.ent_targets.items()),
            *self._contradictions(),
        )

    def _contradictions(self) -> List[str]:
        """What cannot have an effect beside the rest."""
        binned = self.value_loss == "hl_gauss"
        found = {
            "value_bins: expected the bins of value_loss='hl_gauss', got None; set their low and "
            "high, beyond all returns": binned and self.value_bins is None,
            f"value_bins: expected value_loss='hl_gauss', which they are for, got "
            f"{self.value_loss!r}; leave them out": not binned and self.value_bins is not None,
            "clip_vloss: expected false beside value_loss='hl_gauss', which has nothing to clip, "
            "got true": binned and self.clip_vloss,
            "vf_clip_coef: expected clip_vloss=true, which it is for; leave it out": (
                self.vf_clip_coef is not None and not self.clip_vloss
            ),
            f"huber_delta: expected value_loss='huber', which it is for, got {self.value_loss!r}; "
            "leave it out": self.value_loss != "huber" and self.huber_delta != 1.0,
            "ent_target_lr: expected ent_targets, which it is for, got none; leave it out": (
                not self.ent_targets and self.ent_target_lr != 0.1
            ),
            f"ent_coef: expected a number above 0, where the coefficients of ent_targets start, "
            f"got {self.ent_coef}": bool(self.ent_targets) and not self.ent_coef > 0,
        }
        return [problem for problem, is_so in found.items() if is_so]


@dataclass
class RolloutConfig:
    """Settings of the phase that collects experience.

    Attributes:
        steps: Number of steps in each environment per rollout.
        num_envs: Number of environments that run side by side.
        processes: Number of processes that share the environments as evenly as possible.
    """

    steps: int = 16
    num_envs: int = 128
    processes: int = 4

    def __post_init__(self) -> None:
        _refuse(
            _within("steps", self.steps, 1),
            _within("num_envs", self.num_envs, 1),
            _within("processes", self.processes, 1),
        )


@dataclass
class EvalConfig:
    """Settings of the evaluations during a run.

    Attributes:
        steps: Number of steps in each environment per evaluation.
        interval: Number of environment steps between evaluations.
        num_envs: Number of environments that run side by side; as in rollouts if not set.
        processes: Number of processes that share the environments; as in rollouts if not set.
        env: The environment to evaluate in; as in rollouts if not set.
        capture_videos: Render videos of the environments.
        capture_samples: Write the samples of evaluations to this file; if its path is relative,
            under data_dir.
        capture_logits: Keep the log-probabilities of all choices with the samples.
        capture_samples_subsample: Keep one of this many frames, chosen at random.
        run_on_first_step: Evaluate before the first update, too.
        opponent: Path of a checkpoint whose policy plays the other side, or "random".
        opponent_only: Let the opponent play itself, and leave the policy out.
    """

    steps: int
    interval: int
    num_envs: Optional[int] = None
    processes: Optional[int] = None
    env: Optional[EnvConfig] = None
    capture_videos: bool = False
    capture_samples: str = ""
    capture_logits: bool = True
    capture_samples_subsample: int = 1
    run_on_first_step: bool = True
    opponent: Optional[str] = None
    opponent_only: bool = False

    def __post_init__(self) -> None:
        _refuse(
            _within("steps", self.steps, 1),
            _within("interval", self.interval, 1),
            _within("num_envs", self.num_envs, 1),
            _within("processes", self.processes, 1),
            _within("capture_samples_subsample", self.capture_samples_subsample, 1),
            "opponent_only: expected an opponent, got opponent=None"
            if self.opponent_only and self.opponent is None
            else None,
            _needs_file(
                "capture_samples_subsample",
                self.capture_samples_subsample > 1,
                self.capture_samples,
            ),
        )


@dataclass
class TrainConfig(Versioned):
    """Settings of a run.

    Attributes:
        env: The environment.
        net: The policy network.
        optim: The optimizer.
        ppo: The learning algorithm.
        rollout: How experience is collected.
        eval: Evaluations during the run; none if not set.
        vf_net: A network of its own for the value function; shared with the policy if not set.
        name: Name of the run.
        seed: Seed of every random draw.
        total_timesteps: Number of environment steps to train for.
        max_train_time: Stop after this many seconds of training.
        torch_deterministic: Use only deterministic algorithms of cuDNN during the run.
        cuda: Use the GPU if there is one.
        track: Send metrics to Weights & Biases.
        wandb_project_name: The Weights & Biases project to send them to.
        wandb_entity: The team or user who owns that project; the account's default if not set.
        capture_samples: Write the samples of rollouts to this file; if its path is relative, under
            data_dir.
        capture_logits: Keep the log-probabilities of all choices with the samples.
        capture_samples_subsample: Keep one of this many frames, chosen at random.
        trial: Number of the trial that this run is in a search for hyperparameters.
        data_dir: Directory under which the run writes its results and logs.
        cuda_empty_cache: Empty the GPU's memory cache after each optimizer step, if there is one.
    """

    env: EnvConfig
    net: RogueNetConfig
    optim: OptimizerConfig
    ppo: PPOConfig
    rollout: RolloutConfig
    eval: Optional[EvalConfig] = None
    vf_net: Optional[RogueNetConfig] = None
    name: str = field(default_factory=_script_name)
    seed: int = 1
    total_timesteps: int = 1000000
    max_train_time: Optional[int] = None
    torch_deterministic: bool = True
    cuda: bool = True
    track: bool = False
    wandb_project_name: str = "enn-ppo"
    wandb_entity: Optional[str] = None
    capture_samples: Optional[str] = None
    capture_logits: bool = False
    capture_samples_subsample: int = 1
    trial: Optional[int] = None
    data_dir: str = "."
    cuda_empty_cache: bool = False

    def __post_init__(self) -> None:
        _refuse(
            _within("seed", self.seed, 0),
            _within("total_timesteps", self.total_timesteps, 1),
            _within("max_train_time", self.max_train_time, 0),
            _within("capture_samples_subsample", self.capture_samples_subsample, 1),
            _batch_fits_rollout(self.optim.bs, self.rollout.steps, self.rollout.num_envs),
            _needs_file("capture_logits", self.capture_logits, self.capture_samples),
            _needs_file(
                "capture_samples_subsample",
                self.capture_samples_subsample > 1,
                self.capture_samples,
            ),
            "eval.capture_samples: expected another file than capture_samples, got the same"
            if self.eval is not None and _same_file(self.eval.capture_samples, self.capture_samples)
            else None,
            "cuda_empty_cache: expected cuda=true, without which there is no cache to empty; leave "
            "it out"
            if self.cuda_empty_cache and not self.cuda
            else None,
        )

    @classmethod
    def version(cls) -> int:
        """The version of the configurations that this code writes."""
        return 5

    @classmethod
    def fixed_during_run(cls) -> Dict[str, str]:
        """Why numbers cannot follow a schedule, by the path of the field or of its section."""
        network = "the network is built once"
        comparison = "evaluations are there to be compared"
        end = "it says when the run ends"
        return {
            "net": network,
            "vf_net": network,
            "ppo.value_bins": network,
            "optim.lr_warmup_steps": "it is part of how optim.lr changes, which may have one",
            "rollout": "the environments are made once, and every update has as many frames",
            "eval.steps": comparison,
            "eval.num_envs": comparison,
            "eval.processes": comparison,
            "seed": "a run has one",
            "total_timesteps": end,
            "max_train_time": end,
            "trial": "it is the number of the run",
            "capture_samples_subsample": "a file is one sample of the run",
            "eval.capture_samples_subsample": "a file is one sample of the run",
        }

    @classmethod
    def upgrade_rules(cls) -> Dict[int, List[RewriteRule]]:
        """What each older version had otherwise, so that its files keep their meaning."""
        return {
            0: [
                ChangeDefault(("net", "relpos_encoding", "per_entity_values"), True, False),
                ChangeDefault(("vf_net", "relpos_encoding", "per_entity_values"), True, False),
            ],
            1: [
                ChangeDefault(("net", "n_layer"), 1, 2),
                ChangeDefault(("net", "d_model"), 64, 32),
                ChangeDefault(("optim", "lr"), 0.00025, 0.001),
                ChangeDefault(("optim", "bs"), 128, 1024),
                ChangeDefault(("ppo", "ent_coef"), 0.01, 0.1),
                ChangeDefault(("ppo", "anneal_entropy"), False, True),
                ChangeDefault(("rollout", "steps"), 128, 16),
                ChangeDefault(("rollout", "num_envs"), 4, 128),
                ChangeDefault(("rollout", "processes"), 1, 4),
                ChangeDefault(("vf_net", "n_layer"), 1, 2),
                ChangeDefault(("vf_net", "d_model"), 64, 32),
            ],
            2: [ChangeDefault(("total_timesteps",), 25000, 1000000)],
            3: [
                ChangeDefault(
                    (net, "relpos_encoding", "enable_negative_distance_weight_bug"), True, False
                )
                for net in ("net", "vf_net")
            ],
            4: [ChangeDefault(("wandb_entity",), "entity-neural-network", None)],
        }


def _refuse(*problems: Optional[str]) -> None:
    found = [problem for problem in problems if problem is not None]
    if found:
        raise ConfigError(*found)


def _within(
    name: str, value: Optional[float], least: float = -math.inf, most: float = math.inf
) -> Optional[str]:
    """Say what is wrong with a value that must be finite and between two limits, both allowed."""
    if value is None or (-math.inf < value < math.inf and least <= value <= most):
        return None
    expected = "a finite number"
    if math.isfinite(most):
        expected = f"a number from {least} to {most}"
    elif math.isfinite(least):
        expected = f"a finite number of at least {least}"
    return f"{name}: expected {expected}, got {value}"


def _positive(name: str, value: Optional[float]) -> Optional[str]:
    """Say what is wrong with a limit that must be above 0; infinity switches it off."""
    if value is None or value > 0:
        return None
    return f"{name}: expected a number above 0, got {value}"


def _above(name: str, value: Optional[float], least: float) -> Optional[str]:
    """Say what is wrong with a finite number that must be above another."""
    if value is None or least < value < math.inf:
        return None
    return f"{name}: expected a finite number above {least}, got {value}"


def _share(name: str, value: float) -> Optional[str]:
    if 0 < value < 1:
        return None
    return f"{name}: expected a number between 0 and 1, got {value}"


def _one_of(name: str, value: str, kind: object) -> Optional[str]:
    """Say what is wrong with a value that must be one of those of a `Literal`."""
    if value in get_args(kind):
        return None
    return f"{name}: expected {' or '.join(map(repr, get_args(kind)))}, got {value!r}"


def _needs_file(name: str, asked: bool, file: Optional[str]) -> Optional[str]:
    if file or not asked:
        return None
    return f"{name}: expected capture_samples with a file to write to, got none; leave {name} out"


def _same_file(one: str, other: Optional[str]) -> bool:
    return bool(one and other) and os.path.normpath(one) == os.path.normpath(other or "")


def _json_object(name: str, text: str) -> Optional[str]:
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    return None if is_object else f'{name}: expected a JSON object such as {{"a": 1}}, got {text!r}'


def _batch_fits_rollout(bs: int, steps: int, num_envs: int) -> Optional[str]:
    if bs <= steps * num_envs:
        return None
    return (
        f"optim.bs: expected at most rollout.steps * rollout.num_envs = {steps} * {num_envs} = "
        f"{steps * num_envs} frames, got {bs}: lower optim.bs or raise the other two"
    )
