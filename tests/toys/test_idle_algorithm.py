"""An algorithm that learns nothing, for agents that are written by hand or only measured."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from enn_trainer import (
    Callback,
    State,
    StateManager,
    Trainer,
    init_train_state,
    load_agent,
    train,
)
from enn_trainer.algorithms.algorithm import Clock, RolloutAlgorithm
from enn_trainer.base.state_part import StateDict
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.experience.collector import Rollout
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.testing import check_state_part
from rogue_net import EntityBatch, NetOutput
from rogue_net.answer import answer
from tests.toys.world import Lane, assert_same, everything, manager_of, newest

EVALUATED = ["eval.interval=32", "eval.num_envs=2", "eval.steps=10"]


class Idle(RolloutAlgorithm):
    """Counts frames."""

    def __init__(self) -> None:
        self.frames = 0

    def update(self, data: Rollout, clock: Clock, context: ExecutionContext) -> dict[str, float]:
        """Count the frames."""
        self.frames += data.num_frames
        return {"idle/frames": self.frames}

    def state_dict(self) -> StateDict:
        """Return the count."""
        return {"frames": self.frames}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the count."""
        self.frames = state.get("frames", 0)


def idle(config: Any, ctx: dict[str, Any]) -> State:
    """Return the state of a run that learns nothing."""
    state = init_train_state(config, ctx)
    state.parts["algorithm"] = Idle()
    return state


class Counts(Callback):
    """Sees rollouts."""

    frames = 0

    def on_rollout_end(self, trainer: Any, rollout: Rollout) -> None:
        """Count frames, and change the rates of all optimizers: there are none."""
        self.frames += rollout.num_frames
        assert trainer.state.optimizers() == []


def stepped(folder: Path, updates: int, **options: Any) -> StateManager:
    """Return the manager of a run of single updates."""
    agent = options.pop("agent", None)
    options.setdefault("initial_state", idle)
    manager = manager_of(folder, "total_timesteps=800", *EVALUATED, **options)
    with Trainer(manager, Lane, agent=agent) as trainer:
        for _ in range(updates):
            trainer.step()
        trainer.save()
    return manager


def test_idle_algorithm_passes_the_conformance_test() -> None:
    algorithm = Idle()
    algorithm.frames = 16
    check_state_part(algorithm, Idle())


def test_idle_algorithm_trains_and_is_evaluated(tmp_path: Path) -> None:
    manager = manager_of(
        tmp_path,
        *("total_timesteps=64", "cuda_empty_cache=true", *EVALUATED),
        initial_state=idle,
        checkpoint_dir=tmp_path / "run",
    )
    callback = Counts()
    result = train(manager, Lane, callbacks=[callback])
    assert callback.frames == result.step == 64
    assert result.eval["eval/episodic_reward.mean"] < 0
    assert manager.state.metrics["idle/frames"] == 64


def test_updates_are_taken_and_evaluated(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, "total_timesteps=64", *EVALUATED, initial_state=idle)
    callback = Counts()
    with Trainer(manager, Lane, callbacks=[callback]) as trainer:
        before = trainer.state.agent.state_dict()
        before = {name: tensor.clone() for name, tensor in before.items()}
        for updates in (1, 2):
            assert trainer.step()["idle/frames"] == 16 * updates
        assert trainer.evaluate()["eval/episodic_reward.mean"] < 0
        assert callback.frames == trainer.state.step == 32
        assert_same(before, trainer.state.agent.state_dict())
        assert trainer.state.reward_scaling is None
        with pytest.raises(AttributeError, match="optimizer"):
            _ = trainer.state.optimizer


@pytest.mark.slow
def test_idle_algorithm_resumes_bit_for_bit(tmp_path: Path) -> None:
    straight = stepped(tmp_path, 4)
    for _ in range(2):
        resumed = stepped(tmp_path, 2, checkpoint_dir=tmp_path / "run")
    assert resumed.state.restart == 1
    assert resumed.state.algorithm.frames == 64
    assert_same(everything(straight.state), everything(resumed.state))
    assert "roll/all" in load_agent(tmp_path / "run").act(Lane().reset()).actions


def test_failed_updates_change_nothing(tmp_path: Path) -> None:
    class Fails(Idle):
        def update(
            self, data: Rollout, clock: Clock, context: ExecutionContext
        ) -> dict[str, float]:
            super().update(data, clock, context)
            if clock.step == 16:
                raise OSError("no more")
            return {}

    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        state.parts["algorithm"] = Fails()
        return state

    manager = manager_of(tmp_path, "total_timesteps=64", initial_state=initial)
    with Trainer(manager, Lane) as trainer:
        trainer.step()
        for _ in range(2):
            with pytest.raises(OSError, match="no more"):
                trainer.step()
            assert trainer.state.algorithm.frames == trainer.state.step == 16


@pytest.mark.slow
def test_idle_algorithm_upgrades_with_the_environment(tmp_path: Path) -> None:
    stepped(tmp_path, 2, checkpoint_dir=tmp_path / "run")
    windy = Lane(wind=True)
    spaces = windy.obs_space(), windy.action_space()
    evolved = evolve(newest(tmp_path / "run"), *spaces, initial_state=idle)
    assert evolved.state.algorithm.frames == 32
    evolved.save(tmp_path / "evolved")
    manager = manager_of(
        tmp_path,
        "total_timesteps=800",
        initial_state=idle,
        checkpoint_dir=tmp_path / "evolved",
    )
    with Trainer(manager, lambda: Lane(wind=True)) as trainer:
        assert trainer.step()["idle/frames"] == 48


@pytest.mark.slow
def test_ppo_continues_a_run_of_the_idle_algorithm(tmp_path: Path) -> None:
    """Its own entries are refused; without any, PPO begins without moments."""

    class Forgets(Idle):
        def state_dict(self) -> StateDict:
            return {}

    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        state.parts["algorithm"] = Forgets()
        return state

    stepped(tmp_path, 1, checkpoint_dir=tmp_path / "idle")
    with pytest.raises(ValueError, match=r"has frames, but .* initial_state that makes it"):
        stepped(tmp_path, 1, checkpoint_dir=tmp_path / "idle", initial_state=init_train_state)
    stepped(tmp_path, 1, checkpoint_dir=tmp_path / "run", initial_state=initial)
    manager = stepped(tmp_path, 1, checkpoint_dir=tmp_path / "run", initial_state=init_train_state)
    assert manager.state.step == 32
    assert manager.state.optimizer.state


class Stays(nn.Module):
    """Every cart stays where it is; there is nothing to learn."""

    def forward(self, batch: EntityBatch, actions: Any = None, uniforms: Any = None) -> NetOutput:
        """Return a certain choice."""
        log_probs = {}
        for name, action in batch.actions.items():
            certain = torch.tensor([-torch.inf, 0.0, -torch.inf])
            log_probs[name] = certain.expand(len(action.actors.values), -1)
        return answer(log_probs, self.values(batch), actions, uniforms)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return 0."""
        return {"value": torch.zeros(batch.num_frames, 1)}

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Do nothing."""


@pytest.mark.slow
def test_agents_without_parameters_are_run_and_played(tmp_path: Path) -> None:
    def initial(config: Any, ctx: dict[str, Any]) -> State:
        # Without PPO, which would have nothing to optimise.
        spaces = ctx["obs_space"], ctx["action_space"]
        return State(0, 0, None, ctx["agent"], *spaces, parts={"algorithm": Idle()})

    for updates in (1, 2):
        manager = stepped(
            tmp_path,
            updates,
            agent=Stays(),
            checkpoint_dir=tmp_path / "run",
            initial_state=initial,
        )
    assert manager.state.algorithm.frames == 48
    played = load_agent(tmp_path / "run", agent=Stays()).act(Lane().reset())
    roll: Any = played.actions["roll/all"]
    assert roll.indices.tolist() == [1, 1]
