"""The settings of a run, their versions, and the rules that upgrade older files.

hyperstate's type reader knows `Optional[int]`, `List` and `Dict`, and not string annotations: no
`from __future__ import annotations` here. It reads the `Attributes:` of each class as its help.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional

from hyperstate import Versioned
from hyperstate.schema.rewrite_rule import ChangeDefault, RewriteRule

from enn_trainer.checkpoint_config import CheckpointConfig, read_best
from enn_trainer.config_checks import (
    COMPUTED,
    JSON_TEXT,
    json_object,
    part_of_file_name,
    refuse,
    usable_path,
    within,
)
from enn_trainer.errors import ConfigError
from enn_trainer.eval_config import EvalSuiteConfig, all_suites, bad_suite_name, suite_path
from enn_trainer.imitation_config import BCConfig
from enn_trainer.optimizer_config import OptimizerConfig
from enn_trainer.ppo_config import PPOConfig
from enn_trainer.stop_conditions import read_bound
from rogue_net.config import RogueNetConfig


def _script_name() -> str:
    return Path(sys.argv[0]).stem or "run"


MAX_STOPS = 1000
"""Conditions in `stop`. Each is asked after every update."""


@dataclass
class EnvConfig:
    """Which environment to run, and how.

    Attributes:
        kwargs: Keyword arguments of the environment, as a JSON object; files may have a section.
        id: The environment: one of `enn envs`, package.module:Class, or path/file.py:Class.
        validate: Check everything that the environment returns against its spaces.
    """

    kwargs: str = field(default="{}", metadata=JSON_TEXT)
    id: str = "MoveToOrigin"
    validate: bool = True

    def __post_init__(self) -> None:
        refuse(json_object("kwargs", self.kwargs), usable_path("id", self.id))


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
        refuse(
            within("steps", self.steps, 1),
            within("num_envs", self.num_envs, 1),
            within("processes", self.processes, 1),
        )


@dataclass
class EvalConfig:
    """Settings of the evaluations during a run.

    Attributes:
        steps: Number of steps in each environment per evaluation; one of steps and episodes is set.
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
        episodes: Number of whole episodes per evaluation, as many in each environment.
        max_steps: Number of steps in each environment after which whole episodes are given up.
        deterministic: Take the most probable choices instead of sampling.
        seed: Seed of episodes and choices; that of the run if not set.
        suites: More evaluations at the same time by their names, with other settings.
    """

    steps: Optional[int] = None
    interval: int = 100_000
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
    episodes: Optional[int] = None
    max_steps: int = 10_000
    deterministic: bool = False
    seed: Optional[int] = None
    suites: Dict[str, EvalSuiteConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse(
            "steps, episodes: expected exactly one of them, got "
            + ("neither" if self.steps is None else "both")
            if (self.steps is None) == (self.episodes is None)
            else None,
            within("steps", self.steps, 1),
            within("episodes", self.episodes, 1),
            within("max_steps", self.max_steps, 1),
            within("seed", self.seed, 0),
            *(bad_suite_name(name) for name in self.suites),
            within("interval", self.interval, 1),
            within("num_envs", self.num_envs, 1),
            within("processes", self.processes, 1),
            within("capture_samples_subsample", self.capture_samples_subsample, 1),
            usable_path("capture_samples", self.capture_samples),
            usable_path("opponent", self.opponent),
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
        stop: Stop as soon as one of these holds, such as "eval/episodic_reward.mean >= 0.99".
        bc: Behavioural cloning beside PPO; none if not set.
        mlflow_tracking_uri: Send metrics to the MLflow server or store at this address.
        checkpoint: When the run is saved, and which saves are kept.
    """

    env: EnvConfig
    net: RogueNetConfig
    optim: OptimizerConfig
    ppo: PPOConfig
    rollout: RolloutConfig
    eval: Optional[EvalConfig] = None
    vf_net: Optional[RogueNetConfig] = None
    name: str = field(default_factory=_script_name, metadata=COMPUTED)
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
    stop: List[str] = field(default_factory=list)
    bc: Optional[BCConfig] = None
    mlflow_tracking_uri: Optional[str] = None
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        refuse(
            part_of_file_name("name", self.name),
            within("seed", self.seed, 0),
            within("total_timesteps", self.total_timesteps, 1),
            within("max_train_time", self.max_train_time, 0),
            within("capture_samples_subsample", self.capture_samples_subsample, 1),
            usable_path("capture_samples", self.capture_samples),
            usable_path("data_dir", self.data_dir),
            _batch_fits_rollout(self.optim.bs, self.rollout.steps, self.rollout.num_envs),
            _needs_file("capture_logits", self.capture_logits, self.capture_samples),
            _needs_file(
                "capture_samples_subsample",
                self.capture_samples_subsample > 1,
                self.capture_samples,
            ),
            "eval.capture_samples: expected another file than capture_samples, got the same"
            if self.eval is not None
            and _same_file(self.data_dir, self.eval.capture_samples, self.capture_samples)
            else None,
            *_rooms_for_both(self.eval, self.env, self.rollout.num_envs),
            f"stop: expected at most {MAX_STOPS} conditions, got {len(self.stop)}"
            if len(self.stop) > MAX_STOPS
            else None,
            *(_no_bound(f"stop[{i}]", text) for i, text in enumerate(self.stop[:MAX_STOPS])),
            *_not_measured(self.checkpoint, self.eval),
            "cuda_empty_cache: expected cuda=true, without which there is no cache to empty; leave "
            "it out"
            if self.cuda_empty_cache and not self.cuda
            else None,
        )

    @property
    def eval_num_envs(self) -> int:
        """Number of environments of an evaluation: as in rollouts if it says nothing else."""
        return (self.eval and self.eval.num_envs) or self.rollout.num_envs

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
            "eval.episodes": comparison,
            "eval.max_steps": comparison,
            "eval.seed": comparison,
            "eval.suites": comparison,
            "checkpoint": "which saves are kept is decided anew with each of them",
            "seed": "a run has one",
            "total_timesteps": end,
            "max_train_time": end,
            "trial": "it is the number of the run",
            "capture_samples_subsample": "a file is one sample of the run",
            "eval.capture_samples_subsample": "a file is one sample of the run",
            "bc.bs": "its loss is a mean, and bc.coef says how much that counts",
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


def _needs_file(name: str, asked: bool, file: Optional[str]) -> Optional[str]:
    if file or not asked:
        return None
    return f"{name}: expected capture_samples with a file to write to, got none; leave {name} out"


def _same_file(data_dir: str, one: str, other: Optional[str]) -> bool:
    if not one or not other:
        return False
    try:
        return Path(data_dir, one).resolve() == Path(data_dir, other).resolve()
    except ValueError:  # one of them is no usable path, which is a problem of its own
        return False


def _rooms_for_both(
    evaluation: Optional[EvalConfig], env: EnvConfig, num_envs: int
) -> Iterator[str]:
    """Say where an opponent would have nowhere to play."""
    if evaluation is None:
        return
    try:
        suites = list(all_suites(evaluation, env))
    except ConfigError as error:
        yield from (f"eval.{problem}" for problem in error.problems)
        return
    for name, suite in suites:
        got = suite.num_envs or num_envs
        if suite.opponent is not None and not suite.opponent_only and got < 2:
            path = f"{suite_path(name)}." if name else ""
            yield f"eval.{path}num_envs: expected at least 2 beside eval.opponent, got {got}"


def _not_measured(checkpoint: CheckpointConfig, evaluation: Optional[EvalConfig]) -> Iterator[str]:
    """Say where a save should be the best of evaluations that there are not."""
    for i, text in enumerate(checkpoint.best):
        if evaluation is None and read_best(text).key.startswith("eval/"):
            yield (
                f"checkpoint.best[{i}]: expected evaluations for {text!r}, there are none; set "
                "eval.interval and what to play, such as eval.steps"
            )


def _no_bound(name: str, text: str) -> Optional[str]:
    try:
        read_bound(text, name)
    except ConfigError as error:
        return str(error)
    return None


def _batch_fits_rollout(bs: int, steps: int, num_envs: int) -> Optional[str]:
    if bs <= steps * num_envs:
        return None
    return (
        f"optim.bs: expected at most rollout.steps * rollout.num_envs = {steps} * {num_envs} = "
        f"{steps * num_envs} frames, got {bs}: lower optim.bs or raise the other two"
    )
