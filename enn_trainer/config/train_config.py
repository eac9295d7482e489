"""Settings of training and cloning runs, their version, and upgrade rules for older files.

hyperstate's managers also read these classes and support only `Optional[int]`, `List` and `Dict`,
not string annotations: no `from __future__ import annotations` here. The `Attributes:` of each
class are its help.
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
_LARGEST_LR = 1e30  # after a division by small numbers in optimizers it must fit into float32

SEQ_LEN = 64
"""Default length of recorded sequences; see `bc.seq_len` and `clone.seq_len`."""

MAX_STOPS = 1000
"""Largest number of conditions in `stop`."""


@dataclass
class RolloutConfig(Section):
    """Settings of the collection of experience.

    Attributes:
        steps: Number of steps in each environment per rollout.
        num_envs: Number of parallel environments.
        processes: Number of worker processes that the environments are distributed over.
        recover: After the loss of a worker process, "exact" to continue its episodes, in
            environments with get_state; "truncate" to truncate them.
        ray: Step the environments in workers of a Ray cluster: "auto" for a running cluster or a
            new one on this machine, or HOST:PORT; in processes of this machine if not set.
        ray_resources: Resources that each of these workers reserves on its host, by name.
        ray_files: Files and folders to copy to the working folder of workers of rollout.ray and
            eval.ray, by relative path.
        ray_env: Python environment of these workers: name or file (.yml) of a conda environment, a
            requirements file for pip (.txt), or the path of an interpreter on the hosts; the
            environment of the cluster if not set.
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
        check.require(not wrong, f"ray_resources: expected amounts above 0, got others for {wrong}")
        check_address(check, self.ray)


@dataclass
class ScaleConfig(Section):
    """Settings of data parallelism.

    Attributes:
        shards: Number of shards of the environments. Each shard is computed separately and
            gradients are summed as a tree, so that the number affects rounding. By default the
            number of ranks at the start of the run.
        timeout_s: Longest time to wait for another rank, in seconds.
    """

    shards: Optional[int] = limited(None, at_least=1)
    timeout_s: float = limited(300.0, above=0.0)


@dataclass
class CheckpointConfig(Section):
    """Settings of saves: when to save, and which saves to keep. Pinned saves are always kept.

    Attributes:
        every_seconds: Seconds between saves; 0 to save synchronously after every update.
        keep: Number of newest saves to keep.
        keep_every_steps: Save, and keep the first save, in each window of this many steps.
        keep_every_minutes: Save, and keep the first save, in each window of this many minutes of
            training.
        best: Save, and keep the save, at the best value of each of these metrics, such as
            "eval/episodic_reward.mean max" or "losses/entropy min".
        keep_best: Number of saves to keep for each metric of best.
        export: Export "every" save, or the "best" one by the first metric of best, to the folder
            export in the folder of the run, as enn export does; none if not set.
    """

    every_seconds: float = limited(60.0, at_least=0, finite=False)  # infinity disables it
    keep: int = limited(3, at_least=1)
    keep_every_steps: Optional[int] = limited(None, at_least=1)
    keep_every_minutes: Optional[float] = limited(None, above=0.0)
    best: List[str] = field(default_factory=list)
    keep_best: int = limited(1, at_least=1)
    export: Optional[Literal["every", "best"]] = None

    def _check(self, check: Validator) -> None:
        check.require(
            self.export != "best" or bool(self.best),
            "export: expected every without best, got best; name a metric, such as "
            "checkpoint.best='[\"eval/episodic_reward.mean max\"]'",
        )
        for i, text in enumerate(self.best):
            with check.collect(f"best[{i}]: "):
                read_best(text)


class Best(NamedTuple):
    """A metric and its direction of improvement.

    Attributes:
        key: Tag of the metric, such as `eval/episodic_reward.mean`.
        sign: 1 if larger is better, -1 if smaller is better.
    """

    key: str
    sign: int


def read_best(text: str) -> Best:
    """Parse a metric and direction such as `losses/entropy min`.

    Raises:
        ConfigError: the text does not have this form.
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
    """Settings of behavioural cloning as an auxiliary loss of PPO.

    Attributes:
        path: The recording to imitate.
        coef: Coefficient of the loss; anneal it by a schedule such as "step: 1@0 lin 0@1e5".
        bs: Number of recorded frames per optimizer step, sampled from frames with actors.
        loss: "cross_entropy" of the recorded choices, or "kl" from the recorded probabilities of
            all choices.
        who: Decisions to imitate: "hand" for only the choices of a person, in frames that record
            their author; "all" for all choices.
        player: Imitate only the decisions of this player, such as an opponent in the pool of the
            recorded run; "" for the agent, which is the default player of a recording.
        seq_len: Length of recorded sequences for networks with memory, in frames; 64 if not set.
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
            all choices, for recordings with probabilities.
        epochs: Largest number of epochs over the frames.
        bs: Batch size: number of frames per optimizer step.
        lr: Learning rate, instead of optim.lr; annealed linearly to 0 if optim.anneal_lr.
        value_coef: Coefficient of the loss of the value function, which predicts the discounted
            returns of the recorded episodes. The loss is divided by twice the loss of the
            prediction 0, so that the scale of rewards does not matter.
        test_fraction: Share of the episodes to hold out for testing.
        patience: Stop after this many consecutive epochs without improvement of the held-out loss;
            never if not set. The best weights are kept in any case.
        max_frames: Approximate limit of the frames to train on, and of the frames to test on, to
            save memory: reads the first whole episodes, equally many frames of each file.
        who: Decisions to imitate: "hand" for only the choices of a person, in frames that record
            their author; "all" for all choices.
        player: Imitate only the decisions of this player, such as an opponent in the pool of the
            recorded run; "" for the agent, which is the default player of a recording.
        seq_len: Length of recorded sequences for networks with memory, in frames; 64 if not set.
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
        rollout: Collection of experience.
        eval: Evaluations during the run; none if not set.
        vf_net: A separate network for the value function; shared with the policy if not set.
        name: Name of the run.
        seed: Seed of all random numbers.
        total_timesteps: Number of environment steps to train for.
        max_train_time: Stop after this many seconds of training.
        torch_deterministic: Use only deterministic algorithms of cuDNN during the run.
        cuda: Use the GPU if there is one.
        track: Log metrics to Weights & Biases.
        wandb_project_name: Name of the Weights & Biases project.
        wandb_entity: Team or user of that project; the account's default if not set.
        capture_samples: Record the samples of rollouts to this file; a relative path is in the
            folder of the run, or in data_dir if that is set.
        capture_logits: Record the log-probabilities of all choices with the samples.
        capture_samples_subsample: Record 1 of this many frames, chosen at random.
        trial: Number of the trial of this run in a hyperparameter search.
        data_dir: Parent directory of runs/, which has a folder for each run by default.
        cuda_empty_cache: Empty the GPU's memory cache after each optimizer step, if there is one.
        stop: Stop as soon as one of these holds, such as "eval/episodic_reward.mean >= 0.99".
            Episode metrics are over complete rounds: the k-th episode of every environment.
        bc: Behavioural cloning as an auxiliary loss of PPO; none if not set.
        mlflow_tracking_uri: Log metrics to the MLflow server or store at this address.
        checkpoint: When to save the run, and which saves to keep.
        selfplay: Matches against a pool of opponents; none if not set.
        scale: Data parallelism.
        curricula: Curricula of stages that set arguments of the environment, by name.
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
        """Add default factories to the sections that a subclass declares or redeclares."""
        super().__init_subclass__(**options)
        for name, kind in inspect.get_annotations(cls).items():
            if name not in vars(cls) and inspect.isclass(kind) and is_dataclass(kind):
                setattr(cls, name, field(default_factory=kind))

    def _check(self, check: Validator) -> None:
        check.require(
            "/" not in self.name and "\\" not in self.name and self.name.isprintable(),
            f"name: expected a name without /, \\ and line breaks, because a folder gets it, got "
            f"{short_repr(self.name)}",
        )
        steps, num_envs = self.rollout.steps, self.rollout.num_envs
        check.require(
            self.optim.bs <= steps * num_envs,
            f"optim.bs: expected at most rollout.steps * rollout.num_envs = {steps} * "
            f"{num_envs} = {steps * num_envs} frames, got {self.optim.bs}; lower optim.bs or "
            "raise the other two",
        )
        check.require(
            self.optim.bs > 1 or not self.ppo.norm_adv,
            "optim.bs: expected at least 2 frames with ppo.norm_adv, because a single frame has "
            f"no standard deviation, got {self.optim.bs}; raise it or set ppo.norm_adv=false",
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
        """Check the sequences for networks with memory."""
        seq_len, steps, bs = self.ppo.seq_len, self.rollout.steps, ("optim.bs", self.optim.bs)
        self._check_whole_sequences(check, "ppo", seq_len, ("rollout.steps", steps), bs)
        check.require(
            seq_len is None or seq_len <= steps or not self._has_memory,
            f"ppo.seq_len: expected at most rollout.steps={steps}, got {seq_len}",
        )
        if self.bc is not None:
            self._check_recorded_sequences(check, "bc", self.bc)

    def _check_recorded_sequences(
        self, check: Validator, name: str, section: "BCConfig | CloneConfig"
    ) -> None:
        """Check the recorded sequences for networks with memory."""
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
        """Check that minibatches and microbatches consist of whole sequences."""
        if not self._has_memory:
            check.require(
                seq_len is None,
                f"{section}.seq_len: expected a network with memory (net.memory), got none; remove "
                f"{section}.seq_len={seq_len}",
            )
            return
        name, length = default if seq_len is None else (f"{section}.seq_len", seq_len)
        check.require(
            bs[1] % length == 0,
            f"{bs[0]}: expected a multiple of {name}={length}, because minibatches consist of "
            f"whole sequences, got {bs[1]}",
        )
        check.require(
            self.optim.micro_bs is None or self.optim.micro_bs >= length,
            f"optim.micro_bs: expected at least {name}={length}, because sequences are not split, "
            f"got {self.optim.micro_bs}",
        )

    @property
    def _has_memory(self) -> bool:
        """True if one of the networks has memory."""
        nets = [self.net] if self.vf_net is None else [self.net, self.vf_net]
        return any(net.memory is not None for net in nets)

    def _check_evaluation(self, check: Validator) -> None:
        """Check evaluations against other settings."""
        if self.eval is None:
            for i, text in enumerate(self.checkpoint.best):
                check.require(
                    not read_best(text).key.startswith("eval/"),
                    f"checkpoint.best[{i}]: expected evaluations for {text!r}, got none; "
                    "set eval.interval and a length, such as eval.steps",
                )
            return
        check.require(
            not _is_same_file(self.data_dir, self.eval.capture_samples, self.capture_samples),
            "eval.capture_samples: expected another file than capture_samples, got the same",
        )
        with check.collect("eval."):
            for name, suite in all_suites(self.eval, self.env):
                # Environments are split between the policy and the opponent.
                num_envs = suite.num_envs or self.rollout.num_envs
                path = f"{suite_path(name)}." if name else ""
                check.require(
                    suite.opponent is None or suite.opponent_only or num_envs >= 2,
                    f"eval.{path}num_envs: expected at least 2 with eval.opponent, got {num_envs}",
                )

    def _check_ray(self, check: Validator) -> None:
        """Check the Ray settings of rollouts and evaluations."""
        rollout, evaluation = self.rollout.ray, None if self.eval is None else self.eval.ray
        check.require(
            None in (rollout, evaluation) or rollout == evaluation,
            f"eval.ray: expected the same cluster as rollout.ray={rollout}, because a run joins "
            f"only one, got {evaluation}",
        )
        for name in ("ray_files", "ray_env"):
            check.require(
                bool(rollout or evaluation) or not getattr(self.rollout, name),
                f"rollout.{name}: expected rollout.ray or eval.ray, got neither; remove "
                f"rollout.{name}, which has no effect",
            )

    @property
    def eval_num_envs(self) -> int:
        """Number of environments per evaluation."""
        return (self.eval and self.eval.num_envs) or self.rollout.num_envs

    @classmethod
    def version(cls) -> int:
        """Return the current version of configuration files."""
        return 9

    @classmethod
    def fixed_during_run(cls) -> Dict[str, str]:
        """Return the reasons why settings cannot follow a schedule, by path of field or section."""
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
            "it defines the warm-up of optim.lr; schedule optim.lr": ["optim.lr_warmup_steps"],
            "it defines the annealing of ppo.ent_coef; schedule that": ["ppo.ent_anneal_power"],
            "environments are created once, and all updates have the same number of frames": [
                "rollout",
                "selfplay",
                "scale",
            ],
            "evaluations must be comparable": [f"eval.{name}" for name in compared],
            "stages have their own conditions": ["curricula"],
            "the keep policy applies to all saves": ["checkpoint"],
            "a run has one seed": ["seed"],
            "the magnet is updated at its multiples": ["ppo.magnet.every"],
            "minibatches consist of whole sequences": ["ppo.seq_len", "bc.seq_len"],
            "it determines the end of the run": ["total_timesteps", "max_train_time"],
            "it identifies the run": ["trial"],
            "a recording is one sample of the run": [subsample, f"eval.{subsample}"],
            "its loss is a mean; schedule bc.coef": ["bc.bs"],
        }
        return {path: reason for reason, paths in fixed.items() for path in paths}

    @classmethod
    def following(cls) -> Dict[str, str]:
        """Return the settings that default to the value of another setting."""
        return {"eval.env.id": "env.id"}

    @classmethod
    def upgrade_rules(cls) -> Dict[int, List[RewriteRule]]:
        """Return the rules that upgrade files to the next version, by their version."""
        return {
            # A missing value in an older file stands for the old default.
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


def _is_same_file(data_dir: str, first: str, second: Optional[str]) -> bool:
    if not first or not second:
        return False
    try:
        return Path(data_dir, first).resolve() == Path(data_dir, second).resolve()
    except ValueError:  # an invalid path, which is reported separately
        return False


@dataclass
class CloneRunConfig(TrainConfig):
    """Settings of cloning, and of a PPO run that continues from it.

    Attributes:
        clone: Behavioural cloning.
    """

    clone: CloneConfig = field(default_factory=CloneConfig)

    def _check(self, check: Validator) -> None:
        super()._check(check)
        check.require(
            self.selfplay is None,
            "selfplay: expected none for cloning, which plays no matches; remove it",
        )
        self._check_recorded_sequences(check, "clone", self.clone)
        check.require(
            self.bc is None,
            "bc: expected none for cloning, which learns only from recordings; remove it, and "
            "set it for enn train",
        )

    @classmethod
    def fixed_during_run(cls) -> Dict[str, str]:
        """Return the reasons of `TrainConfig`, and the reason for the settings of cloning."""
        return {**super().fixed_during_run(), "clone": "cloning ends before the run starts"}

    def of_run(self) -> TrainConfig:
        """Return the settings of a PPO run that continues from the clone."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})
