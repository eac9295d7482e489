"""Every field of the configuration does something that can be seen, or is refused.

`CASES` has a case for each field of each class of the configuration, those of networks are in
`network_fields.py`: a field without one fails.
"""

import dataclasses
import functools
import os
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from enn_trainer import (
    ConfigError,
    NotFiniteError,
    StateManager,
    TrainConfig,
    TrainResult,
    train,
)
from enn_trainer.cli.load_world import envs_by_id
from entity_env import InvalidObservation
from entity_env.examples import Duel
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Recording
from entity_env.recording.recording_format import RecordedFrames, RecordedStep
from rogue_net import RogueNet
from tests.enn_trainer.builders import SMALL, weights
from tests.enn_trainer.demonstrated import rewrite
from tests.enn_trainer.network_fields import NETWORK_CASES, net
from tests.enn_trainer.resuming import tracked
from tests.enn_trainer.worlds import Seen


class Ran(typing.NamedTuple):
    """A run that is over."""

    manager: StateManager
    result: TrainResult
    folder: Path

    def scalars(self, tag: str) -> dict[int, float]:
        """What was tracked under a tag, by step."""
        rows = tracked(self.folder / "run/metrics.jsonl")
        return {row["step"]: row[tag] for row in rows if tag in row}

    def recorded(self, name: str) -> list[RecordedStep]:
        return list(Recording.open(self.folder / name).steps())


Runs: TypeAlias = Callable[..., Ran]
Case: TypeAlias = Callable[[Runs], None]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of two updates, each made once; without files of their own, of one update."""
    made: dict[tuple[object, ...], Ran] = {}

    def run(*overrides: str, has_files: bool = True) -> Ran:
        key = (has_files, *overrides)
        if key not in made:
            folder = tmp_path_factory.mktemp("run")
            small = [*SMALL, f"total_timesteps={48 if has_files else 24}", f"data_dir={folder}"]
            where = folder / "run" if has_files else None
            manager = StateManager(overrides=[*small, *overrides], checkpoint_dir=where)
            made[key] = Ran(manager, train(manager, Seen), folder)
        return made[key]

    return run


AT_FIRST = "max_train_time=0"
"""The run ends after the evaluation at step 0."""
EVALS = ("eval.steps=3", "eval.interval=24", "eval.num_envs=4")
EVAL = (AT_FIRST, *EVALS)
FILE = "capture_samples=file.rec"
EAGER = ("optim.lr=0.1", "optim.update_epochs=8")
BINS = (
    "ppo.value_loss=hl_gauss",
    "ppo.value_bins.low=-3",
    "ppo.value_bins.high=3",
)
KEEP_1 = "checkpoint.keep=1"
LEAST_LR = 'checkpoint.best=["charts/learning_rate min"]'
ENT_TARGET = 'ppo.ent_targets={"walk": 0.1}'
EVAL_FILE = (*EVAL, "eval.capture_samples=file.rec")
RIVAL_FILE = (
    *(*EVALS, "eval.capture_samples=file.rec", "eval.opponent=random", "total_timesteps=24"),
)


def group(settings: str) -> str:
    """Settings of the parameters of the transformer."""
    return f'optim.groups=[(pattern: "transformer.*", {settings})]'


TWO_UPDATES = "total_timesteps=48"


def learns_otherwise(change: str, *beside: str) -> Case:
    """With the change, and other settings beside it, other weights are learnt than without it."""

    def case(runs: Runs) -> None:
        with_it, without = (runs(*beside, *changes, has_files=False) for changes in ((change,), ()))
        assert not torch.equal(weights(with_it.manager), weights(without.manager))

    return case


def refused(*overrides: str, field: str) -> Case:
    """The settings are refused by a message that begins with the name of a field."""

    def case(runs: Runs) -> None:
        with pytest.raises(ConfigError, match=rf"(^|; ){field}\b"):
            runs(*overrides)

    return case


FIRST = 'name: "a", vary: {"size": "1"}, until: ["lesson_step >= 24"]'
SECOND = 'name: "b", vary: {"size": "2"}'
LONGER = ("total_timesteps=96", "rollout.steps=2", "optim.bs=12", "optim.update_epochs=1")
"""Eight updates, of one optimizer step each."""


def taught(first: str = FIRST, second: str = SECOND, more: str = "") -> str:
    """A curriculum of two sections of lessons."""
    return f'curricula={{"c": (lessons: [({first}), ({second})]{more})}}'


def reaches(*lessons: int) -> Callable[[Ran], bool]:
    """The run is in these lessons in its updates."""
    return lambda ran: [*ran.scalars("curriculum/c/lesson").values()] == [*lessons]


RAMP = 'name: "r", ramp: {"size": ["1", "9"]}, count: 2, until: ["lesson_step >= 24"]'


def shows(*overrides: str, that: Callable[[Ran], bool], but: tuple[str, ...]) -> Case:
    """A run with the settings shows something that one with other settings does not."""

    def case(runs: Runs) -> None:
        assert that(runs(*overrides))
        assert not that(runs(*but))

    return case


def evaluated_at(*steps: int) -> Callable[[Ran], bool]:
    return lambda ran: list(ran.scalars("eval/step.count")) == list(steps)


def saved_at(*steps: int) -> Callable[[Ran], bool]:
    names = [f"step-{step:012d}" for step in steps]
    return lambda ran: sorted(path.name for path in ran.folder.glob("run/step-*")) == names


def evaluated(frames: int) -> Callable[[Ran], bool]:
    return lambda ran: ran.result.eval["eval/step.count"] == frames


EPISODES = (AT_FIRST, "eval.episodes=5", "eval.interval=24", "eval.num_envs=4")
SUITE = "eval.suites.a.steps=5"
SUITE_SIZE = 'eval.suites.a.env.kwargs={"size": 3}'
RIVAL = "eval.suites.a.opponent=random"


def whole(episodes: int) -> Callable[[Ran], bool]:
    return lambda ran: ran.result.eval["eval/episode_length.count"] == episodes


def in_suite(name: str, value: float) -> Callable[[Ran], bool]:
    return lambda ran: ran.result.eval.get(f"eval/a/{name}") == value


def measures_otherwise(change: str, *beside: str) -> Case:
    """With the change evaluations give other numbers."""

    def case(runs: Runs) -> None:
        settings = (*EVAL, "eval.steps=40", *beside)
        assert runs(*settings, change).result.eval != runs(*settings).result.eval

    return case


def another_id_has_other_arguments(runs: Runs) -> None:
    """The arguments of one world mean nothing in another."""
    both = (*EVAL, 'env.kwargs={"size": 3}', SUITE)
    assert in_suite("size.mean", 3)(runs(*both))
    assert not in_suite("size.mean", 3)(runs(*both, "eval.suites.a.env.id=Other"))


def a_suite_may_not_be_validated(runs: Runs) -> None:
    faulty = (*EVAL, 'eval.suites.a.env.kwargs={"faulty": true}')
    with pytest.raises(InvalidObservation):
        runs(*faulty)
    assert runs(*faulty, "eval.suites.a.env.validate=false").result.eval


def is_called(name: str) -> Callable[[Ran], bool]:
    return lambda ran: ran.manager.state.run_name.startswith(name)


def the_world_is_found_by_its_id(runs: Runs) -> None:
    named = runs().manager.config
    assert named.env.id == f"{Seen.__module__}:Seen", "the class that was handed in"
    with closing(envs_by_id(named.env, 2, 1, 0)) as envs:
        assert envs.obs_space() == runs().manager.state.obs_space


def evaluations_leave_pages(runs: Runs) -> None:
    with_it, without = runs(*EVALS, "eval.capture_replays=true"), runs(*EVALS)
    assert not (without.folder / "run/replays").exists()
    names = [f"step-{step:012d}.html" for step in (0, 24, 48)]
    assert sorted(page.name for page in (with_it.folder / "run/replays").iterdir()) == names
    assert with_it.result.eval == without.result.eval


def invalid_rewards_are_refused(runs: Runs) -> None:
    faulty = 'env.kwargs={"faulty": true}'
    with pytest.raises(InvalidObservation):
        runs(faulty)
    with pytest.raises(NotFiniteError):  # found where it is learnt from, not where it comes from
        runs(faulty, "env.validate=false", "total_timesteps=24")


def the_folder_is_used(runs: Runs) -> None:
    ran, other = runs(FILE), runs()
    assert {path.name for path in ran.folder.iterdir()} == {"run", "file.rec"}
    assert {path.name for path in other.folder.iterdir()} == {"run"}


def the_gpu_is_looked_for(runs: Runs) -> None:
    asked: list[bool] = []

    def is_available() -> bool:
        asked.append(True)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", is_available)
        runs("cuda=false", "total_timesteps=1")
        without = len(asked)
        runs("cuda=true", "total_timesteps=1")
    assert len(asked) - without == without + 1


def cuts_pieces(limit: str) -> Case:
    """The pieces add up to the same gradient, so only their size is to be seen."""

    def case(runs: Runs) -> None:
        sizes: list[int] = []
        forward = RogueNet.forward

        def noting(net: RogueNet, batch: Any, *args: Any, **kwargs: Any) -> Any:
            if net.training:
                sizes.append(batch.num_frames)
            return forward(net, batch, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RogueNet, "forward", noting)
            limited = runs(limit, has_files=False)
        assert 1 <= max(sizes) < 10
        whole = runs(has_files=False)
        torch.testing.assert_close(weights(limited.manager), weights(whole.manager))

    return case


def imitates_otherwise(change: str, *beside: str) -> Case:
    """As `learns_otherwise`, beside a recording that a run without it made."""

    def case(runs: Runs) -> None:
        recording = runs(FILE, "capture_logits=true").folder / "file.rec"
        learns_otherwise(change.format(recording), *(b.format(recording) for b in beside))(runs)

    return case


def rewritten(runs: Runs, change: Callable[[RecordedFrames], object]) -> Path:
    """A recording of a run in which something about its decisions is changed."""
    made = runs(FILE, "capture_logits=true").folder / "file.rec"
    return rewrite(made, made.with_name("changed.rec"), change)


def learns_from_people(runs: Runs) -> None:
    """A recording says that a person made every second choice; all of them, if asked for."""

    def change(decisions: RecordedFrames) -> None:
        decisions.by_hand = {
            name: Ragged(np.arange(len(rows.values)) % 2 == 0, rows.lengths)
            for name, rows in decisions.actions.items()
        }

    learns_otherwise("bc.who=all", f"bc.path={rewritten(runs, change)}")(runs)


def learns_from_a_player(runs: Runs) -> None:
    """A recording says that an opponent played in every second environment."""

    def change(decisions: RecordedFrames) -> None:
        decisions.player[1::2] = "step-0"

    learns_otherwise("bc.player=step-0", f"bc.path={rewritten(runs, change)}")(runs)


DUEL = (
    *("total_timesteps=350", "rollout.num_envs=8", "rollout.steps=12", "selfplay.share=0.5"),
    *("optim.bs=36", "optim.update_epochs=1"),
)


@functools.cache
def league_after(*overrides: str) -> tuple[str, str]:
    """The states of the pool and of the seats after some updates of a game."""
    small = [*SMALL, *DUEL, "selfplay.snapshot_every=75", *overrides]
    with tempfile.TemporaryDirectory() as folder:
        manager = StateManager(overrides=[*small, f"data_dir={folder}"])
        train(manager, Duel)
    parts = manager.state.parts
    return repr(parts["league"].state_dict()), repr(parts["players"].state_dict())


def plays_otherwise(change: str, *beside: str) -> Case:
    """With the change other games are played, or they count otherwise."""

    def case(runs: Runs) -> None:
        assert league_after(*beside, change) != league_after(*beside)

    return case


def stands_in(patch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Put a module in the place of one that takes a second to import."""
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(content)
    patch.setitem(sys.modules, name, module)


def tells_wandb(*overrides: str, project: str, entity: str | None) -> Case:
    """With `track=true` and more, `wandb.init` is told so; without, it is not called.

    tracking/test_track_services.py has the real one.
    """

    def case(runs: Runs) -> None:
        told: list[dict[str, Any]] = []

        def noting(**kwargs: Any) -> Any:
            told.append(kwargs)
            raise OSError("a failure of W&B, which does not stop the run")

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WANDB_MODE", "offline")
            stands_in(patch, "wandb", init=noting, Settings=dict)
            runs("total_timesteps=24")
            assert not told
            runs("track=true", "total_timesteps=24", *overrides)
        assert [(kwargs["project"], kwargs["entity"]) for kwargs in told] == [(project, entity)]

    return case


def mlflow_is_used(runs: Runs) -> None:
    """A client that cannot be made is MLflow's failure, and does not stop the run."""
    asked = []

    def client(uri: str) -> Any:
        asked.append(uri)
        raise OSError("no server")

    with pytest.MonkeyPatch.context() as patch:
        stands_in(patch, "mlflow", MlflowClient=client)
        stands_in(patch, "mlflow.entities", Param=None)
        ran = runs("mlflow_tracking_uri=nothing://of-this-kind", "total_timesteps=24")
        runs("total_timesteps=24")
    assert asked == ["nothing://of-this-kind"]
    assert "mlflow" not in ran.manager.state.tracker_ids
    assert ran.manager.state.step == 24


CASES: dict[str, Case] = {
    # EnvConfig
    "EnvConfig.kwargs": shows(
        'env.kwargs={"size": 3}', that=lambda ran: 3.0 in ran.scalars("size.mean").values(), but=()
    ),
    "EnvConfig.id": the_world_is_found_by_its_id,
    "EnvConfig.validate": invalid_rewards_are_refused,
    # OptimizerConfig
    "OptimizerConfig.lr": learns_otherwise("optim.lr=0.01"),
    "OptimizerConfig.lr_warmup_steps": learns_otherwise("optim.lr_warmup_steps=1000"),
    "OptimizerConfig.bs": learns_otherwise("optim.bs=24"),
    "OptimizerConfig.weight_decay": learns_otherwise("optim.weight_decay=0.5"),
    "OptimizerConfig.micro_bs": cuts_pieces("optim.micro_bs=3"),
    "OptimizerConfig.anneal_lr": learns_otherwise("optim.anneal_lr=false", TWO_UPDATES),
    "OptimizerConfig.update_epochs": learns_otherwise("optim.update_epochs=1"),
    "OptimizerConfig.max_grad_norm": learns_otherwise("optim.max_grad_norm=0.01"),
    "OptimizerConfig.name": learns_otherwise("optim.name=SGD"),
    "OptimizerConfig.kwargs": learns_otherwise('optim.kwargs={"betas": [0.5, 0.5]}'),
    "OptimizerConfig.shuffle": learns_otherwise("optim.shuffle=false"),
    "OptimizerConfig.max_entities": cuts_pieces("optim.max_entities=1"),
    "OptimizerConfig.groups": learns_otherwise(group("lr_factor: 0.0")),
    # ParamGroupConfig
    "ParamGroupConfig.pattern": learns_otherwise(
        'optim.groups=[(pattern: "embedding.*", lr_factor: 0.0)]', group("lr_factor: 0.0")
    ),
    "ParamGroupConfig.lr_factor": learns_otherwise(group("lr_factor: 2.0"), group("")),
    "ParamGroupConfig.weight_decay": learns_otherwise(group("weight_decay: 0.5"), group("")),
    "ParamGroupConfig.freeze_from": learns_otherwise(
        group("freeze_from: 24"), group(""), TWO_UPDATES
    ),
    "ParamGroupConfig.freeze_until": learns_otherwise(group("freeze_until: 24"), group("")),
    # PPOConfig
    "PPOConfig.gae": learns_otherwise("ppo.gae=false"),
    "PPOConfig.gamma": learns_otherwise("ppo.gamma=0.5"),
    "PPOConfig.gae_lambda": learns_otherwise("ppo.gae_lambda=0.5"),
    "PPOConfig.norm_adv": learns_otherwise("ppo.norm_adv=false"),
    "PPOConfig.norm_adv_over": learns_otherwise("ppo.norm_adv_over=all", "rollout.steps=16"),
    "PPOConfig.clip_coef": learns_otherwise("ppo.clip_coef=0.0001"),
    "PPOConfig.clip_vloss": learns_otherwise("ppo.clip_vloss=true", "optim.lr=0.1"),
    "PPOConfig.ent_coef": learns_otherwise("ppo.ent_coef=0.9"),
    "PPOConfig.vf_coef": learns_otherwise("ppo.vf_coef=0.01"),
    "PPOConfig.target_kl": learns_otherwise("ppo.target_kl=0.00000001"),
    "PPOConfig.anneal_entropy": learns_otherwise("ppo.anneal_entropy=false", TWO_UPDATES),
    "PPOConfig.seq_len": learns_otherwise("ppo.seq_len=2", 'net.memory=(of: "frame")'),
    "PPOConfig.ratio": learns_otherwise("ppo.ratio=frame", "optim.lr=0.1"),
    "PPOConfig.weight_by": learns_otherwise("ppo.weight_by=frame"),
    "PPOConfig.dual_clip": learns_otherwise("ppo.dual_clip=1.0001", *EAGER),
    "PPOConfig.value_loss": learns_otherwise("ppo.value_loss=mse", "optim.lr=0.1"),
    "PPOConfig.vf_clip_coef": learns_otherwise(
        "ppo.vf_clip_coef=0.0001", "ppo.clip_vloss=true", "optim.lr=0.1"
    ),
    "PPOConfig.huber_delta": learns_otherwise("ppo.huber_delta=0.0001"),
    "PPOConfig.value_bins": shows(
        *BINS,
        that=lambda ran: any(p.shape == (51, 8) for p in ran.manager.state.agent.parameters()),
        but=(),
    ),
    "PPOConfig.reward_scaling": learns_otherwise("ppo.reward_scaling=true", "ppo.norm_adv=false"),
    "PPOConfig.value_norm": learns_otherwise("ppo.value_norm=false"),
    "PPOConfig.norm_adv_floor": learns_otherwise("ppo.norm_adv_floor=9"),
    "PPOConfig.ent_anneal_power": learns_otherwise("ppo.ent_anneal_power=1", TWO_UPDATES),
    "PPOConfig.ent_targets": learns_otherwise(ENT_TARGET),
    "PPOConfig.ent_target_lr": learns_otherwise("ppo.ent_target_lr=10", ENT_TARGET),
    "PPOConfig.magnet": learns_otherwise("ppo.magnet={}"),
    # MagnetConfig
    "MagnetConfig.coef": learns_otherwise("ppo.magnet.coef=0.9", "ppo.magnet.every=1000"),
    "MagnetConfig.every": learns_otherwise(
        "ppo.magnet.every=1", "ppo.magnet.coef=0.9", TWO_UPDATES
    ),
    # ValueBinsConfig
    "ValueBinsConfig.low": learns_otherwise("ppo.value_bins.low=-9", *BINS),
    "ValueBinsConfig.high": learns_otherwise("ppo.value_bins.high=9", *BINS),
    "ValueBinsConfig.num_bins": learns_otherwise("ppo.value_bins.num_bins=7", *BINS),
    "ValueBinsConfig.sigma": learns_otherwise("ppo.value_bins.sigma=2", *BINS),
    # RolloutConfig
    "RolloutConfig.steps": shows(
        "rollout.steps=5", that=lambda ran: ran.manager.state.step == 60, but=()
    ),
    "RolloutConfig.num_envs": shows(
        "rollout.num_envs=7", that=lambda ran: ran.manager.state.step == 56, but=()
    ),
    "RolloutConfig.processes": shows(
        *["rollout.processes=2", "total_timesteps=24"],
        that=lambda ran: os.getpid() not in ran.scalars("process.max").values(),
        but=(),
    ),
    # tests/entity_env/vec/test_recovery.py has lost workers
    "RolloutConfig.recover": refused("rollout.recover=never", field="rollout.recover"),
    # tests/entity_env/vec/test_ray_worker.py has workers elsewhere
    "RolloutConfig.ray": refused("rollout.ray=here", field="rollout.ray"),
    "RolloutConfig.ray_resources": refused(
        "rollout.ray_resources={CPU: -1}", field="rollout.ray_resources"
    ),
    "RolloutConfig.ray_files": refused('rollout.ray_files=["a.txt"]', field="rollout.ray_files"),
    "RolloutConfig.ray_env": refused("rollout.ray_env=sim", field="rollout.ray_env"),
    # EvalConfig
    "EvalConfig.steps": shows(*EVAL, "eval.steps=5", that=evaluated(20), but=EVAL),
    "EvalConfig.interval": shows(*EVALS, "eval.interval=48", that=evaluated_at(0, 48), but=EVALS),
    "EvalConfig.num_envs": shows(*EVAL, "eval.num_envs=7", that=evaluated(21), but=EVAL),
    "EvalConfig.processes": shows(
        *[*EVAL, "eval.processes=2"],
        that=lambda ran: ran.result.eval["eval/process.max"] != os.getpid(),
        but=EVAL,
    ),
    "EvalConfig.env": shows(
        *EVAL,
        'eval.env.kwargs={"size": 3}',
        that=lambda ran: ran.result.eval["eval/size.mean"] == 3,
        but=EVAL,
    ),
    "EvalConfig.capture_videos": refused(  # `Seen` does not render; test_video.py has films
        *EVAL, "eval.capture_videos=true", field="eval.capture_videos"
    ),
    "EvalConfig.capture_replays": evaluations_leave_pages,
    "EnvConfig.vary": refused("env.vary.size=int", field="env.vary"),
    # test_remote.py has evaluations elsewhere
    "EvalConfig.ray": refused(*EVAL, "eval.ray=here", field="eval.ray"),
    "EvalConfig.lag": refused(*EVAL, "eval.lag=2", field="eval.lag"),
    "EvalConfig.episodes": shows(*EPISODES, that=whole(5), but=(*EPISODES, "eval.episodes=4")),
    "EvalConfig.max_steps": shows(
        *EPISODES, "eval.max_steps=1", that=lambda ran: not whole(5)(ran), but=EPISODES
    ),
    "EvalConfig.deterministic": measures_otherwise("eval.deterministic=true"),
    "EvalConfig.seed": measures_otherwise("eval.seed=7"),
    "EvalConfig.suites": shows(
        *EVAL, SUITE, that=lambda ran: "eval/a/step.count" in ran.result.eval, but=EVAL
    ),
    # EvalSuiteConfig
    "EvalSuiteConfig.steps": shows(*EVAL, SUITE, that=in_suite("step.count", 20), but=EVAL),
    "EvalSuiteConfig.episodes": shows(
        *EVAL, "eval.suites.a.episodes=9", that=in_suite("episode_length.count", 9), but=EVAL
    ),
    "EvalSuiteConfig.max_steps": shows(
        *[*EVAL, "eval.suites.a.episodes=9", "eval.suites.a.max_steps=1"],
        that=lambda ran: not in_suite("episode_length.count", 9)(ran),
        but=(*EVAL, "eval.suites.a.episodes=9"),
    ),
    "EvalSuiteConfig.num_envs": shows(
        *EVAL, SUITE, "eval.suites.a.num_envs=5", that=in_suite("step.count", 25), but=EVAL
    ),
    "EvalSuiteConfig.env": shows(
        *EVAL, SUITE_SIZE, that=in_suite("size.mean", 3), but=(*EVAL, SUITE)
    ),
    "EvalSuiteConfig.deterministic": measures_otherwise("eval.suites.a.deterministic=true", SUITE),
    "EvalSuiteConfig.opponent": shows(
        *EVAL, SUITE, RIVAL, that=in_suite("step.count", 10), but=(*EVAL, SUITE)
    ),
    "EvalSuiteConfig.opponent_only": shows(
        *[*EVAL, SUITE, RIVAL, "eval.suites.a.opponent_only=true"],
        that=in_suite("step.count", 20),
        but=(*EVAL, SUITE, RIVAL),
    ),
    # EvalEnvConfig
    "EvalEnvConfig.kwargs": shows(
        *EVAL, SUITE_SIZE, that=in_suite("size.mean", 3), but=(*EVAL, SUITE)
    ),
    "EvalEnvConfig.vary": shows(
        *[*EVAL, SUITE, 'eval.suites.a.env.vary.size="3"'],
        that=in_suite("size.mean", 3),
        but=(*EVAL, SUITE),
    ),
    "EvalEnvConfig.id": another_id_has_other_arguments,
    "EvalEnvConfig.validate": a_suite_may_not_be_validated,
    "EvalConfig.capture_samples": shows(
        *EVAL_FILE, that=lambda ran: (ran.folder / "file.rec").exists(), but=EVAL
    ),
    "EvalConfig.capture_logits": shows(
        *EVAL_FILE,
        "eval.capture_logits=false",
        that=lambda ran: all(not s.decisions.logits for s in ran.recorded("file.rec")),
        but=EVAL_FILE,
    ),
    "EvalConfig.capture_samples_subsample": shows(
        *EVAL_FILE,
        "eval.capture_samples_subsample=2",
        that=lambda ran: sum(len(s.kept) for s in ran.recorded("file.rec")) < 12,
        but=EVAL_FILE,
    ),
    "EvalConfig.run_on_first_step": shows(
        *EVALS, "eval.run_on_first_step=false", that=evaluated_at(24, 48), but=EVALS
    ),
    "EvalConfig.opponent": shows(*EVAL, "eval.opponent=random", that=evaluated(6), but=EVAL),
    "EvalConfig.opponent_only": shows(
        *[*RIVAL_FILE, "eval.opponent_only=true"],
        that=lambda ran: not any(s.decisions.values.any() for s in ran.recorded("file.rec")),
        but=RIVAL_FILE,
    ),
    # CurriculumConfig
    "TrainConfig.curricula": shows(
        taught(), that=reaches(0, 1), but=(taught(FIRST.replace("24", "48")),)
    ),
    "CurriculumConfig.lessons": refused('curricula={"c": (lessons: [])}', field="curricula"),
    "CurriculumConfig.review": shows(
        *[*LONGER, taught(more=", review: 0.9")],
        that=lambda ran: min([*ran.scalars("parameters/size.min").values()][5:]) == 1,
        but=(*LONGER, taught()),
    ),
    "CurriculumConfig.restart": learns_otherwise(
        taught(more=", restart: true"), taught(), TWO_UPDATES
    ),
    # LessonConfig
    "LessonConfig.name": refused(taught(second=FIRST), field="curricula"),
    "LessonConfig.vary": shows(
        *[*LONGER, taught()],
        that=lambda ran: [*ran.scalars("parameters/size.max").values()][-1] == 2,
        but=(*LONGER, taught(second=SECOND.replace("2", "3"))),
    ),
    "LessonConfig.ramp": shows(
        *[*LONGER, taught(RAMP)],
        that=lambda ran: 9 in ran.scalars("parameters/size.max").values(),
        but=(*LONGER, taught(RAMP.replace("9", "8"))),
    ),
    "LessonConfig.count": shows(
        *[*LONGER, taught(RAMP)],
        that=lambda ran: max(ran.scalars("curriculum/c/lesson").values()) == 2,
        but=(*LONGER, taught(RAMP.replace("count: 2", "count: 5"))),
    ),
    "LessonConfig.until": shows(
        taught(), that=reaches(0, 1), but=(taught(FIRST.replace("24", "48")),)
    ),
    "LessonConfig.back": shows(
        *[*LONGER, taught(second=f'{SECOND}, back: ["lesson_step >= 24"]')],
        that=reaches(0, 0, 1, 1, 0, 0, 1, 1),
        but=(*LONGER, taught()),
    ),
    "LessonConfig.episodes": shows(
        *[*LONGER, taught(FIRST.replace("lesson_step >= 24", "size.mean >= 1") + ", episodes: 1")],
        that=lambda ran: max(ran.scalars("curriculum/c/lesson").values()) == 1,
        but=(
            *LONGER,
            taught(FIRST.replace("lesson_step >= 24", "size.mean >= 1") + ", episodes: 9999"),
        ),
    ),
    # ScaleConfig
    "ScaleConfig.shards": learns_otherwise("scale.shards=3"),
    # scale/test_torch_group.py has ranks that hang
    "ScaleConfig.timeout_s": refused("scale.timeout_s=0", field="scale.timeout_s"),
    # CheckpointConfig
    "CheckpointConfig.every_seconds": shows(
        "checkpoint.every_seconds=0", that=saved_at(0, 24, 48), but=()
    ),
    "CheckpointConfig.keep": shows(KEEP_1, that=saved_at(48), but=()),
    "CheckpointConfig.keep_every_steps": shows(
        KEEP_1, "checkpoint.keep_every_steps=20", that=saved_at(24, 48), but=(KEEP_1,)
    ),
    "CheckpointConfig.keep_every_minutes": shows(
        KEEP_1, "checkpoint.keep_every_minutes=1e-9", that=saved_at(24, 48), but=(KEEP_1,)
    ),
    "CheckpointConfig.best": shows(
        KEEP_1, 'checkpoint.best=["charts/learning_rate max"]', that=saved_at(24, 48), but=(KEEP_1,)
    ),
    "CheckpointConfig.keep_best": shows(
        *[KEEP_1, LEAST_LR, "checkpoint.keep_best=2"],
        that=saved_at(24, 48),
        but=(KEEP_1, LEAST_LR),
    ),
    # callbacks/test_export_saves.py exports, which takes some seconds
    "CheckpointConfig.export": refused("checkpoint.export=best", field="checkpoint.export"),
    # TrainConfig
    "TrainConfig.eval": shows(*EVAL, that=lambda ran: bool(ran.result.eval), but=()),
    "TrainConfig.vf_net": shows(
        "vf_net.d_model=12",
        that=lambda ran: (
            getattr(ran.manager.state.value_function, "config", None) is not None
            and ran.manager.state.value_function.config.d_model == 12
        ),
        but=(),
    ),
    "TrainConfig.name": shows(
        "name=mine", that=lambda ran: "__mine__" in ran.manager.state.run_name, but=()
    ),
    "TrainConfig.seed": learns_otherwise("seed=2"),
    "TrainConfig.stop": shows(
        'stop=["restart >= 0"]', that=lambda ran: ran.manager.state.step == 24, but=()
    ),
    "TrainConfig.total_timesteps": shows(
        "total_timesteps=24", that=lambda ran: ran.manager.state.step == 24, but=()
    ),
    "TrainConfig.max_train_time": shows(
        "max_train_time=0", that=lambda ran: ran.manager.state.step == 0, but=()
    ),
    "TrainConfig.torch_deterministic": shows(
        "torch_deterministic=false",
        that=lambda ran: set(ran.scalars("deterministic.max").values()) == {0.0},
        but=(),
    ),
    "TrainConfig.cuda": the_gpu_is_looked_for,
    "TrainConfig.track": tells_wandb(project="enn-ppo", entity=None),
    "TrainConfig.wandb_project_name": tells_wandb(
        "wandb_project_name=mine", project="mine", entity=None
    ),
    "TrainConfig.wandb_entity": tells_wandb("wandb_entity=me", project="enn-ppo", entity="me"),
    "TrainConfig.mlflow_tracking_uri": mlflow_is_used,
    "TrainConfig.capture_samples": shows(
        FILE, that=lambda ran: (ran.folder / "file.rec").exists(), but=()
    ),
    "TrainConfig.capture_logits": shows(
        FILE,
        "capture_logits=true",
        that=lambda ran: all(s.decisions.logits for s in ran.recorded("file.rec")),
        but=(FILE,),
    ),
    "TrainConfig.capture_samples_subsample": shows(
        FILE,
        "capture_samples_subsample=2",
        that=lambda ran: sum(len(s.kept) for s in ran.recorded("file.rec")) < 48,
        but=(FILE,),
    ),
    "TrainConfig.trial": shows(
        "trial=7", that=lambda ran: "__1__7__" in ran.manager.state.run_name, but=()
    ),
    "TrainConfig.data_dir": the_folder_is_used,
    "TrainConfig.bc": imitates_otherwise("bc.path={}"),
    # BCConfig
    "BCConfig.path": imitates_otherwise("bc.path={}"),
    "BCConfig.coef": imitates_otherwise("bc.coef=0.5", "bc.path={}"),
    "BCConfig.bs": imitates_otherwise("bc.bs=5", "bc.path={}"),
    "BCConfig.who": learns_from_people,
    "BCConfig.player": learns_from_a_player,
    "BCConfig.seq_len": imitates_otherwise(
        "bc.seq_len=2", "bc.path={}", 'net.memory=(of: "frame")'
    ),
    "BCConfig.loss": imitates_otherwise("bc.loss=kl", "bc.path={}"),
    "TrainConfig.selfplay": refused("selfplay={}", field="selfplay"),  # of a world of one side
    "SelfplayConfig.share": plays_otherwise("selfplay.share=0.25"),
    "SelfplayConfig.opponents": plays_otherwise('selfplay.opponents=["random"]'),
    "SelfplayConfig.snapshot_every": plays_otherwise("selfplay.snapshot_every=100000"),
    "SelfplayConfig.capacity": plays_otherwise("selfplay.capacity=1"),
    "SelfplayConfig.choose": plays_otherwise("selfplay.choose=latest"),
    "SelfplayConfig.in_play": plays_otherwise("selfplay.in_play=1"),
    "SelfplayConfig.sides": plays_otherwise("selfplay.sides=[1]"),
    "SelfplayConfig.result": plays_otherwise('selfplay.result=""', "selfplay.choose=uniform"),
    "SelfplayConfig.half_life": plays_otherwise("selfplay.half_life=1"),
    "TrainConfig.cuda_empty_cache": refused(
        "cuda=false", "cuda_empty_cache=true", field="cuda_empty_cache"
    ),
}


CASES |= {name: lambda _, case=case: case() for name, case in NETWORK_CASES.items()}


def fields_of(cls: type[Any], seen: set[type[Any]]) -> Iterator[str]:
    """Every field of a configuration class and of those within it, but sections it always has."""
    seen.add(cls)
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kinds = [hints[field.name], *typing.get_args(hints[field.name])]
        sections = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
        if kinds[0] not in sections:
            yield f"{cls.__name__}.{field.name}"
        for section in sections:
            if section not in seen:
                yield from fields_of(section, seen)


def test_every_field_has_a_case() -> None:
    assert sorted(CASES) == sorted(fields_of(TrainConfig, set()))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_field_has_an_effect_or_is_refused(name: str, runs: Runs) -> None:
    CASES[name](runs)


def test_a_case_detects_a_field_without_effect(runs: Runs) -> None:
    with pytest.raises(AssertionError):
        learns_otherwise("ppo.gae=true")(runs)
    with pytest.raises(AssertionError):
        net()()
