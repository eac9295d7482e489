"""Learning where resets take steps: frames between two episodes change nothing."""

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import Callback, StateManager, Trainer
from enn_trainer.algorithms.ppo.returns import advantages
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.players import AgentPlayer
from entity_env import AddMetricsWrapper
from entity_env.adapters.any_vec_env import AnyVecEnv
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.resuming import of_time
from tests.entity_env.clocks import Clocks

SMALL = [
    *("rollout.num_envs=6", "rollout.steps=8", "rollout.processes=1", "optim.bs=16"),
    *("net.d_model=16", "net.n_layer=1", "optim.update_epochs=2", "total_timesteps=144"),
    *("checkpoint.every_seconds=inf", "cuda=false"),
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Rollouts(Callback):
    """Keeps the rollouts and metrics of a run."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []
        self.metrics: list[dict[str, Any]] = []

    def on_rollout_end(self, trainer: Any, rollout: Rollout) -> None:
        self.rollouts.append(rollout)

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.metrics.append(
            {tag: repr(value) for tag, value in metrics.items() if not of_time(tag)}
        )


def train(*overrides: str, steps: int = 3, **kwargs: Any) -> tuple[Any, Rollouts]:
    """Return the state after some updates, and their rollouts."""
    runs = Rollouts()
    manager = StateManager(overrides=[*SMALL, *overrides])
    manager.say = lambda line: None
    world = functools.partial(Clocks, pays=0.5, **kwargs)
    with Trainer(manager, world, callbacks=[runs]) as trainer:
        for _ in range(steps):
            trainer.step()
        return trainer.state, runs


OPTIONS = {
    "defaults": [],
    "shards": ["scale.shards=3"],
    "pieces": ["optim.micro_bs=4"],
    "minibatches of one frame": ["optim.bs=1", "optim.update_epochs=1", "ppo.norm_adv=false"],
    "discounted returns": ["ppo.gae=false", "ppo.weight_by=frame", "ppo.ratio=frame"],
    "scaled rewards": ["ppo.reward_scaling=true", "ppo.target_kl=0.001"],
    "value bins": [
        *("ppo.value_loss=hl_gauss", "ppo.clip_vloss=false"),
        "ppo.value_bins=(low: 0, high: 10, num_bins: 11)",
    ],
    "value network": ["vf_net=(d_model: 16, n_layer: 1)"],
    "entropy target": ["ppo.ent_targets={go: 0.9}"],
    "memory of frames": ["net.memory=(of: frame)"],
    "memory of entities": ["net.memory=(of: entity)", "ppo.seq_len=4"],
    "memory of a value network": [
        *("net.memory=(of: frame)", "vf_net=(d_model: 16, n_layer: 1, memory: (of: frame))"),
        "scale.shards=2",
    ],
    "no steps to learn from": [
        *("rollout.steps=1", "rollout.num_envs=1", "optim.bs=1", "ppo.norm_adv=false"),
    ],
}


WAITS = {"defaults": 2, "memory of frames": 2, "no steps to learn from": 2}
"""Steps that resets take with some options; else 1."""


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_frames_between_episodes_do_not_change_training(option: str) -> None:
    """Neither parameters nor moments, input statistics or metrics, to the bit."""
    waits, updates = WAITS.get(option, 1), 5 if option.startswith("no steps") else 3
    one, runs = train(*OPTIONS[option], waits=waits, steps=updates)
    other, others = train(*OPTIONS[option], waits=waits, steps=updates, filler=1000.0)
    assert any(rollout.padding is not None for rollout in runs.rollouts)
    for name, tensor in one.agent.state_dict().items():
        assert torch.equal(tensor, other.agent.state_dict()[name]), name
    for name, tensor in one.algorithm.state_dict().items():
        assert torch.equal(tensor, other.algorithm.state_dict()[name]), name
    if (rows := one.algorithm.state_dict().get("reward_scaling/num_rows")) is not None:
        assert int(rows) == sum(len(rollout.played_frames()) for rollout in runs.rollouts)
    assert runs.metrics == others.metrics
    assert one.memory == other.memory
    for metrics in runs.metrics:
        assert math.isnan(x := float(metrics.get("t.min", "nan"))) or x >= 1
        assert metrics.get("policy/go/actors_per_frame", "1.0") == "1.0"


@pytest.mark.slow
def test_padding_does_not_change_values_and_advantages() -> None:
    """For the same episodes and values; a last step that is cut off is bootstrapped alike."""

    def rollout(waits: int, steps: int) -> Rollout:
        envs = AddMetricsWrapper(AnyVecEnv(Clocks(4, waits=waits)))
        torch.manual_seed(0)
        spaces = envs.obs_space(), envs.action_space()
        agent = RogueNet(RogueNetConfig(d_model=16, n_layer=1), *spaces, {"value": 1})
        collector = Collector(envs, AgentPlayer(agent.eval(), seed=1))
        collector.reset(envs.obs_space())
        return collect(collector, steps=steps, first_frame=0)

    for gae in (True, False):
        ppo = PPOConfig(gae=gae, gamma=0.9, gae_lambda=0.8)
        expected, got = rollout(0, 24), rollout(1, 24)
        estimates = advantages(expected, ppo), advantages(got, ppo)
        assert got.padding is not None
        ends = (expected.terminated | expected.truncated).nonzero()
        for env in range(4):
            own = ~got.padding[:, env]
            # Up to the last end in both, behind which the future differs.
            last = int((got.terminated | got.truncated)[own, env].nonzero().max()) + 1
            assert (ends[ends[:, 1] == env][:, 0] == last - 1).any()
            for name in ("returns", "advantages"):
                one, other = (getattr(estimate, name) for estimate in estimates)
                torch.testing.assert_close(one[:last, env], other[own, env][:last])


@pytest.mark.slow
def test_only_steps_count_frames_between_episodes() -> None:
    state, runs = train(steps=1, waits=1)
    (rollout,) = runs.rollouts
    assert rollout.padding is not None
    idle = int(rollout.padding.sum())
    assert idle > 0
    assert state.step == rollout.num_frames == 48
    norm = next(x for name, x in state.agent.state_dict().items() if name.endswith("norm.count"))
    assert norm.tolist() == [6 + 48 - idle] * 2  # with the first frames
    metrics = runs.metrics[0]
    assert float(metrics["reward.count"]) == float(metrics["step.count"]) == 48 - idle
    assert float(metrics["episode_length.max"]) == 4


@pytest.mark.slow
def test_run_saved_between_episodes_resumes(tmp_path: Path) -> None:
    """Also what it remembers: the next episode begins with nothing."""
    memory = ["net.memory=(of: frame)", "checkpoint.every_seconds=0"]

    def run(folder: Path, updates: int) -> Any:
        manager = StateManager(overrides=[*SMALL, *memory], checkpoint_dir=folder)
        manager.say = lambda line: None
        runs = Rollouts()
        with Trainer(manager, functools.partial(Clocks, pays=0.5), callbacks=[runs]) as trainer:
            for _ in range(updates):
                trainer.step()
            trainer.save()
            return trainer.state, runs

    straight, expected = run(tmp_path / "straight", 3)
    run(tmp_path / "resumed", 1)
    resumed, got = run(tmp_path / "resumed", 2)
    assert expected.rollouts[0].next_obs.padding.any()
    assert [m["losses/value_loss"] for m in got.metrics] == [
        m["losses/value_loss"] for m in expected.metrics[1:]
    ]
    for name, tensor in straight.agent.state_dict().items():
        assert torch.equal(tensor, resumed.agent.state_dict()[name]), name
