"""The settings of a run and of cloning, their versions, and the rules that upgrade older files.

hyperstate's managers read these classes too, and know only `Optional[int]`, `List` and `Dict`, not
string annotations: no `from __future__ import annotations` here. The `Attributes:` of each class
are its help.
"""

import inspect
import sys
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Dict, List, Literal, NamedTuple, Optional, Tuple

from enn_trainer.base.errors import ConfigError
from enn_trainer.config.curriculum_config import CurriculumConfig, check_curricula
from enn_trainer.config.eval_config import (
    RECORDING,
    EnvConfig,
    EvalConfig,
    all_suites,
    check_address,
    suite_path,
)
from enn_trainer.config.ppo_config import OptimizerConfig, PPOConfig
from enn_trainer.config.rewrite_rules import AddDefault, ChangeDefault, RewriteRule
from enn_trainer.config.selfplay_config import SelfplayConfig
from enn_trainer.config.validation import COMPUTED, PATH, Section, Validator, limited
from enn_trainer.config.versioned import Versioned
from enn_trainer.stop_conditions import read_bound
from entity_env.errors import short_repr
from rogue_net.config import RogueNetConfig


def _script_name() -> str:
    return Path(sys.argv[0]).stem or "run"


ImitationLoss = Literal["cross_entropy", "kl"]
Who = Literal["hand", "all"]
_LARGEST_LR = 1e30  # optimizers divide it by small numbers, and the result must be a float32

SEQ_LEN = 64
"""Frames of recorded sequences, unless `bc.seq_len` or `clone.seq_len` is set."""

MAX_STOPS = 1000
"""Conditions in `stop`, all of which are checked after every update."""


@dataclass
class RolloutConfig(Section):
    """Settings of the phase that collects experience.

    Attributes:
        steps: Number of steps in each environment per rollout.
        num_envs: Number of environments that run side by side.
        processes: Number of processes that share the environments as evenly as possible.
        recover: "exact" to continue the episodes of a process that is lost, in worlds with
            get_state; "truncate" to cut them off.
        ray: Step the environments in workers of a Ray cluster: "auto" for the one that runs or one
            on this machine, or HOST:PORT; in processes of this machine if not set.
        ray_resources: What each of these workers takes of its host, by name.
        ray_files: Files and folders that workers of rollout.ray and eval.ray find in their working
            folder, by their relative paths.
        ray_env: Python environment of these workers: a conda environment by its name or as a file
            (.yml), packages of pip as a file (.txt), or the path of an interpreter on the hosts;
            that of the cluster if not set.
    """

    steps: int = limited(64, at_least=1)
    num_envs: int = limited(32, at_least=1)
    processes: int = limited(4, at_least=1)
    recover: Literal["exact", "truncate"] = "exact"
    ray: Optional[str] = None
    ray_resources: Dict[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    ray_files: List[str] = field(default_factory=list)
    ray_env: Optional[str] = None

    def _check(self, check: Validator) -> None:
        wrong = [name for name, amount in self.ray_resources.items() if not amount > 0]
        check.require(not wrong, f"ray_resources: expected amounts above 0, not those of {wrong}")
        check_address(check, self.ray)


@dataclass
class ScaleConfig(Section):
    """Settings of the division of a run.

    Attributes:
        shards: Number of groups into which the environments are cut. Frames of each
            are computed apart and gradients added as a tree, which changes results by rounding.
            By default as many as there are ranks as a run begins.
        timeout_s: Longest time to wait for another rank, in seconds.
    """

    shards: Optional[int] = limited(None, at_least=1)
    timeout_s: float = limited(300.0, above=0.0)


@dataclass
class CheckpointConfig(Section):
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

    every_seconds: float = limited(60.0, at_least=0, finite=False)  # infinity switches it off
    keep: int = limited(3, at_least=1)
    keep_every_steps: Optional[int] = limited(None, at_least=1)
    keep_every_minutes: Optional[float] = limited(None, above=0.0)
    best: List[str] = field(default_factory=list)
    keep_best: int = limited(1, at_least=1)

    def _check(self, check: Validator) -> None:
        for i, text in enumerate(self.best):
            with check.collect(f"best[{i}]: "):
                read_best(text)


class Best(NamedTuple):
    """A metric and the direction in which it is better.

    Attributes:
        key: the tag of a metric, such as `eval/episodic_reward.mean`.
        sign: 1 if the largest value is best, -1 if the smallest is.
    """

    key: str
    sign: int


def read_best(text: str) -> Best:
    """Return the metric and direction in a text such as `losses/entropy min`.

    Raises:
        ConfigError: it is not in this form.
    """
    match text.split():
        case [key, "max" | "min" as direction]:
            return Best(key, 1 if direction == "max" else -1)
    raise ConfigError(
        "expected a metric and max or min, as in 'eval/episodic_reward.mean max', got "
        f"{short_repr(text)}"
    )


@dataclass
class BCConfig(Section):
    """Settings of behavioural cloning beside PPO.

    Attributes:
        path: The recording to learn from as well.
        coef: Coefficient of its loss; anneal it by a schedule such as "step: 1@0 lin 0@1e5".
        bs: Recorded frames in one optimizer step, drawn at random from those with actors.
        loss: "cross_entropy" of the recorded choices, or "kl" from the recorded probabilities of
            all choices.
        who: "hand" to learn the choices of a person alone in frames whose recording says who chose,
            "all" to learn all of them.
        player: Learn the decisions of this player alone, such as an opponent in the pool of the run
            that was recorded; "" for the agent, who played where a recording says nothing else.
        seq_len: Frames of the sequences that memory is learnt from, into which recorded episodes
            are cut; 64 if not set and the network remembers.
    """

    path: str = field(metadata=PATH)
    coef: float = limited(1.0, at_least=0.0)
    bs: int = limited(256, at_least=1)
    loss: ImitationLoss = "cross_entropy"
    who: Who = "hand"
    player: str = ""
    seq_len: Optional[int] = limited(None, at_least=1)

    def _check(self, check: Validator) -> None:
        check.require(self.path != "", "path: expected a recording, got ''")


@dataclass
class CloneConfig(Section):
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
        who: "hand" to learn the choices of a person alone in frames whose recording says who chose,
            "all" to learn all of them.
        player: Learn the decisions of this player alone, such as an opponent in the pool of the run
            that was recorded; "" for the agent, who played where a recording says nothing else.
        seq_len: Frames of the sequences that memory is learnt from, into which recorded episodes
            are cut; 64 if not set and the network remembers.
    """

    loss: ImitationLoss = "cross_entropy"
    epochs: int = limited(20, at_least=1)
    bs: int = limited(512, at_least=1)
    lr: float = limited(0.001, above=0.0, at_most=_LARGEST_LR)
    value_coef: float = limited(0.5, at_least=0.0)
    test_fraction: float = limited(0.1, at_least=0, below=1)
    patience: Optional[int] = limited(3, at_least=1)
    max_frames: Optional[int] = limited(None, at_least=1)
    who: Who = "hand"
    player: str = ""
    seq_len: Optional[int] = limited(None, at_least=1)


@dataclass
class TrainConfig(Versioned, Section):
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
        capture_samples: Write the samples of rollouts to this file; if its path is relative, in
            the folder of the run, or under data_dir if that is set.
        capture_logits: Keep the log-probabilities of all choices with the samples.
        capture_samples_subsample: Keep one of this many frames, chosen at random.
        trial: Number of the trial that this run is in a search for hyperparameters.
        data_dir: Directory of the folder runs, with a folder for each run by default.
        cuda_empty_cache: Empty the GPU's memory cache after each optimizer step, if there is one.
        stop: Stop as soon as one of these holds, such as "eval/episodic_reward.mean >= 0.99".
            Metrics of episodes are over whole rounds: the k-th episode of every environment.
        bc: Behavioural cloning beside PPO; none if not set.
        mlflow_tracking_uri: Send metrics to the MLflow server or store at this address.
        checkpoint: When the run is saved, and which saves are kept.
        selfplay: Matches against a pool of opponents; none if not set.
        scale: The division of a run into groups of environments.
        curricula: Lessons in which arguments of the environment change during the run, by name.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    net: RogueNetConfig = field(default_factory=RogueNetConfig)
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    eval: Optional[EvalConfig] = None
    vf_net: Optional[RogueNetConfig] = None
    name: str = field(default_factory=_script_name, metadata=COMPUTED)
    seed: int = limited(1, at_least=0)
    total_timesteps: int = limited(1000000, at_least=1)
    max_train_time: Optional[int] = limited(None, at_least=0)
    torch_deterministic: bool = True
    cuda: bool = True
    track: bool = False
    wandb_project_name: str = "enn-ppo"
    wandb_entity: Optional[str] = None
    capture_samples: Optional[str] = field(default=None, metadata=PATH)
    capture_logits: bool = False
    capture_samples_subsample: int = limited(1, at_least=1)
    trial: Optional[int] = None
    data_dir: str = field(default=".", metadata=PATH)
    cuda_empty_cache: bool = False
    stop: List[str] = field(default_factory=list)
    bc: Optional[BCConfig] = None
    mlflow_tracking_uri: Optional[str] = None
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    selfplay: Optional[SelfplayConfig] = None
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    curricula: Dict[str, CurriculumConfig] = field(default_factory=dict)

    def __init_subclass__(cls, **options: Any) -> None:
        """Give sections that a subclass declares, also anew, their own defaults."""
        super().__init_subclass__(**options)
        for name, kind in inspect.get_annotations(cls).items():
            if name not in vars(cls) and inspect.isclass(kind) and is_dataclass(kind):
                setattr(cls, name, field(default_factory=kind))

    def _check(self, check: Validator) -> None:
        check.require(
            "/" not in self.name and "\\" not in self.name and self.name.isprintable(),
            f"name: expected a name without /, \\ and line breaks, as a folder has it, got "
            f"{short_repr(self.name)}",
        )
        steps, num_envs = self.rollout.steps, self.rollout.num_envs
        check.require(
            self.optim.bs <= steps * num_envs,
            f"optim.bs: expected at most rollout.steps * rollout.num_envs = {steps} * "
            f"{num_envs} = {steps * num_envs} frames, got {self.optim.bs}: lower optim.bs or "
            "raise the other two",
        )
        check.require(
            self.optim.bs > 1 or not self.ppo.norm_adv,
            "optim.bs: expected at least 2 frames beside ppo.norm_adv, as one alone has no "
            f"standard deviation, got {self.optim.bs}: raise it or set ppo.norm_adv=false",
        )
        check.require(
            self.scale.shards is None or self.scale.shards <= num_envs,
            f"scale.shards: expected at most rollout.num_envs={num_envs}, got {self.scale.shards}",
        )
        self._check_sequences(check)
        for name in ("capture_logits", "capture_samples_subsample"):
            check.only_with(name, bool(self.capture_samples), RECORDING)
        self._check_evaluation(check)
        self._check_ray(check)
        check.require(
            len(self.stop) <= MAX_STOPS,
            f"stop: expected at most {MAX_STOPS} conditions, got {len(self.stop)}",
        )
        for i, text in enumerate(self.stop[:MAX_STOPS]):
            with check.collect():
                read_bound(text, f"stop[{i}]")
        check.only_with("cuda_empty_cache", self.cuda, "cuda=true", "false")
        check_curricula(check, self.curricula, self.env, self.eval is not None)

    def _check_sequences(self, check: Validator) -> None:
        """Check the sequences that memory is learnt from."""
        seq_len, steps, bs = self.ppo.seq_len, self.rollout.steps, ("optim.bs", self.optim.bs)
        self._check_whole_sequences(check, "ppo", seq_len, ("rollout.steps", steps), bs)
        check.require(
            seq_len is None or seq_len <= steps or not self._remembers,
            f"ppo.seq_len: expected at most rollout.steps={steps}, got {seq_len}",
        )
        if self.bc is not None:
            self._check_recorded_sequences(check, "bc", self.bc)

    def _check_recorded_sequences(
        self, check: Validator, name: str, section: "BCConfig | CloneConfig"
    ) -> None:
        """Check the sequences of a recording."""
        default, bs = (f"{name}.seq_len", SEQ_LEN), (f"{name}.bs", section.bs)
        self._check_whole_sequences(check, name, section.seq_len, default, bs)

    def _check_whole_sequences(
        self,
        check: Validator,
        section: str,
        seq_len: Optional[int],
        default: Tuple[str, int],
        bs: Tuple[str, int],
    ) -> None:
        """Check that minibatches and microbatches have whole sequences."""
        if not self._remembers:
            check.require(
                seq_len is None,
                f"{section}.seq_len: expected memory beside it (net.memory), got {seq_len} "
                "without; leave it out",
            )
            return
        name, length = default if seq_len is None else (f"{section}.seq_len", seq_len)
        check.require(
            bs[1] % length == 0,
            f"{bs[0]}: expected a multiple of {name}={length}, as a minibatch has whole "
            f"sequences, got {bs[1]}",
        )
        check.require(
            self.optim.micro_bs is None or self.optim.micro_bs >= length,
            f"optim.micro_bs: expected at least {name}={length}, as a sequence is not cut, got "
            f"{self.optim.micro_bs}",
        )

    @property
    def _remembers(self) -> bool:
        """True if one of the networks has memory."""
        nets = [self.net] if self.vf_net is None else [self.net, self.vf_net]
        return any(net.memory is not None for net in nets)

    def _check_evaluation(self, check: Validator) -> None:
        """Check what evaluations have to do with the rest."""
        if self.eval is None:
            for i, text in enumerate(self.checkpoint.best):
                check.require(
                    not read_best(text).key.startswith("eval/"),
                    f"checkpoint.best[{i}]: expected evaluations for {text!r}, there are none; "
                    "set eval.interval and what to play, such as eval.steps",
                )
            return
        check.require(
            not _is_same_file(self.data_dir, self.eval.capture_samples, self.capture_samples),
            "eval.capture_samples: expected another file than capture_samples, got the same",
        )
        with check.collect("eval."):
            for name, suite in all_suites(self.eval, self.env):
                # An opponent needs environments of its own to play in.
                num_envs = suite.num_envs or self.rollout.num_envs
                path = f"{suite_path(name)}." if name else ""
                check.require(
                    suite.opponent is None or suite.opponent_only or num_envs >= 2,
                    f"eval.{path}num_envs: expected at least 2 beside eval.opponent, got "
                    f"{num_envs}",
                )

    def _check_ray(self, check: Validator) -> None:
        """Check the clusters of rollouts and evaluations."""
        rollout, evaluation = self.rollout.ray, None if self.eval is None else self.eval.ray
        check.require(
            None in (rollout, evaluation) or rollout == evaluation,
            f"eval.ray: expected the cluster of rollout.ray={rollout}, as a run joins one, got "
            f"{evaluation}",
        )
        for name in ("ray_files", "ray_env"):
            check.require(
                bool(rollout or evaluation) or not getattr(self.rollout, name),
                f"rollout.{name}: expected rollout.ray or eval.ray, which it is for, got neither; "
                "leave it out",
            )

    @property
    def eval_num_envs(self) -> int:
        """Number of environments of an evaluation."""
        return (self.eval and self.eval.num_envs) or self.rollout.num_envs

    @classmethod
    def version(cls) -> int:
        """Return the version of the configurations that this code writes."""
        return 9

    @classmethod
    def fixed_during_run(cls) -> Dict[str, str]:
        """Return why numbers cannot follow a schedule, by the path of the field or section."""
        compared = [
            "steps",
            "num_envs",
            "processes",
            "episodes",
            "max_steps",
            "seed",
            "suites",
            "lag",
        ]
        subsample = "capture_samples_subsample"
        fixed = {
            "the network is built once": ["net", "vf_net", "ppo.value_bins"],
            "it is part of how optim.lr changes, which may have one": ["optim.lr_warmup_steps"],
            "it is part of how ppo.ent_coef changes, which may have one": ["ppo.ent_anneal_power"],
            "the environments are made once, and every update has as many frames": [
                "rollout",
                "selfplay",
                "scale",
            ],
            "evaluations are there to be compared": [f"eval.{name}" for name in compared],
            "lessons follow one another by their own bounds": ["curricula"],
            "which saves are kept is decided anew with each of them": ["checkpoint"],
            "a run has one": ["seed"],
            "the magnet is the agent of one of its multiples": ["ppo.magnet.every"],
            "minibatches have whole sequences": ["ppo.seq_len", "bc.seq_len"],
            "it says when the run ends": ["total_timesteps", "max_train_time"],
            "it is the number of the run": ["trial"],
            "a file is one sample of the run": [subsample, f"eval.{subsample}"],
            "its loss is a mean, and bc.coef says how much that counts": ["bc.bs"],
        }
        return {path: reason for reason, paths in fixed.items() for path in paths}

    @classmethod
    def following(cls) -> Dict[str, str]:
        """Return the settings that follow others where a section leaves them out."""
        return {"eval.env.id": "env.id"}

    @classmethod
    def upgrade_rules(cls) -> Dict[int, List[RewriteRule]]:
        """Return the rules that keep the meaning of files of older versions, by version."""
        return {
            # A file of a version means the old default wherever it names no value.
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
            5: [
                *(AddDefault((net, "init"), "published") for net in ("net", "vf_net")),
                ChangeDefault(("optim", "bs"), 1024, 128),
                ChangeDefault(("ppo", "ent_coef"), 0.1, 0.2),
            ],
            6: [AddDefault(("ppo", "norm_adv_over"), "all")],
            7: [
                AddDefault(("ppo", "value_norm"), False),
                AddDefault(("ppo", "norm_adv_floor"), 0.0),
                AddDefault(("ppo", "ent_anneal_power"), 1.0),
                ChangeDefault(("ppo", "gae_lambda"), 0.95, 0.9),
                ChangeDefault(("ppo", "clip_vloss"), True, False),
                ChangeDefault(("rollout", "steps"), 16, 64),
                ChangeDefault(("rollout", "num_envs"), 128, 32),
            ],
            8: [
                ChangeDefault(("ppo", "value_loss"), "mse", "huber"),
                ChangeDefault(("ppo", "ent_anneal_power"), 4.0, 8.0),
            ],
        }


def _is_same_file(data_dir: str, one: str, other: Optional[str]) -> bool:
    if not one or not other:
        return False
    try:
        return Path(data_dir, one).resolve() == Path(data_dir, other).resolve()
    except ValueError:  # one of them is no usable path, which is a problem of its own
        return False


@dataclass
class CloneRunConfig(TrainConfig):
    """Settings of cloning, and of the run that PPO may continue from it.

    Attributes:
        clone: Behavioural cloning.
    """

    clone: CloneConfig = field(default_factory=CloneConfig)

    def _check(self, check: Validator) -> None:
        super()._check(check)
        check.require(
            self.selfplay is None,
            "selfplay: expected none while cloning, which plays no matches; leave it out",
        )
        self._check_recorded_sequences(check, "clone", self.clone)
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
