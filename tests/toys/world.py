"""A small environment with reproducible resumed runs, and short runs of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enn_trainer import Callback, StateManager, Trainer, train
from enn_trainer.checkpoints.format import Checkpoint, verify
from entity_env import (
    Action,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    PlainState,
)

SETTINGS = [
    *("rollout.num_envs=4", "rollout.steps=4", "rollout.processes=1", "optim.bs=8"),
    *("net.d_model=8", "net.n_layer=1", "optim.anneal_lr=false", "ppo.anneal_entropy=false"),
]


class Lane(PlainState, Environment):
    """Carts are paid for rolling to their goals, for five steps.

    Args:
        wind: also show a feature that says nothing, and name the action otherwise.
    """

    fails_at = -1  # steps of all environments until one fails

    def __init__(self, wind: bool = False) -> None:
        self.wind = wind

    def obs_space(self) -> ObsSpace:
        """Carts, where they are, and where they want to go."""
        return ObsSpace(entities={"Cart": Entity(["wind", "x", "goal"][not self.wind :])})

    def action_space(self) -> dict[str, Any]:
        """Every cart rolls; the name of the action has a slash."""
        return {"roll/all": CategoricalActionSpace(["left", "stay", "right"])}

    def reset(self) -> Observation:
        """Begin an episode of five steps."""
        self.left = 5
        self.carts = [[float(self.rng.randint(-2, 2)) for _ in "xg"] for _ in range(2)]
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Roll."""
        Lane.fails_at -= 1
        if Lane.fails_at == 0:
            raise OSError("the lane is closed")
        self.left -= 1
        roll: Any = actions["roll/all"]
        for (_, row), index in zip(roll.actors, roll.indices, strict=True):
            self.carts[row][0] += int(index) - 1
        return self._observe()

    def _observe(self) -> Observation:
        return Observation(
            entities={"Cart": [[0.0, *cart][not self.wind :] for cart in self.carts]},
            actions={"roll/all": CategoricalActionMask(actor_types=["Cart"])},
            reward=-sum(abs(x - goal) for x, goal in self.carts),
            done=self.left == 0,
        )


def manager_of(folder: Path, *overrides: str, **options: Any) -> StateManager:
    """Return the manager of a run."""
    return StateManager(overrides=[*SETTINGS, f"data_dir={folder}", *overrides], **options)


def run(
    folder: Path,
    frames: int,
    *overrides: str,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> StateManager:
    """Train for a number of frames, 16 per update, and return the manager."""
    manager = manager_of(folder, f"total_timesteps={frames}", *overrides, **options)
    train(manager, Lane, callbacks=callbacks)
    return manager


def everything(state: Any) -> dict[str, Any]:
    """Return copies of the tensors and plain data of a state: the network's and the parts'."""
    found = {f"agent/{name}": value for name, value in state.agent.state_dict().items()}
    for part, content in state.parts.items():
        found |= {f"{part}/{name}": value for name, value in content.state_dict().items()}
    return {n: x.detach().clone() if isinstance(x, Tensor) else repr(x) for n, x in found.items()}


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Compare to the bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = (
            torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        )
        assert same, name


def assert_resumes_to_the_bit(folder: Path, initial_state: Callable[..., Any]) -> None:
    """Compare a run of five updates with one in two parts, the second in the midst of episodes."""
    straight = run(folder, 80, initial_state=initial_state)
    for frames in (48, 80):
        resumed = run(folder, frames, initial_state=initial_state, checkpoint_dir=folder / "parts")
    assert resumed.state.restart == 1
    assert_same(everything(straight.state), everything(resumed.state))


class FailsIn(Callback):
    """Raises in an optimizer step."""

    def __init__(self, step: int) -> None:
        self.left = step

    def on_minibatch(self, trainer: Any, losses: Any) -> None:
        """Count down."""
        self.left -= 1
        if self.left == 0:
            raise OSError("no more")


def assert_failed_updates_change_nothing(
    folder: Path,
    initial_state: Callable[..., Any],
    changed_by_new_episodes: tuple[str, ...] = (),
    callbacks: Sequence[Callback] = (),
) -> None:
    """Compare the state after failures with that before, in the first update and in a later one.

    Args:
        folder: a folder.
        initial_state: makes the state of a new run.
        changed_by_new_episodes: ends of entries that change before the second failure.
        callbacks: further callbacks.
    """
    for updates_before in (0, 2):
        failing = FailsIn(-1)
        manager = manager_of(folder, "total_timesteps=800", initial_state=initial_state)
        with Trainer(manager, Lane, callbacks=[*callbacks, failing]) as trainer:
            for _ in range(updates_before):
                trainer.step()
            before = everything(trainer.state)

            # In the middle of the optimizer steps, and of the rollout after it.
            failing.left = 5
            with pytest.raises(OSError, match="no more"):
                trainer.step()
            assert_same(before, everything(trainer.state))
            Lane.fails_at = 9
            with pytest.raises(OSError, match="the lane is closed"):
                trainer.step()
            after = everything(trainer.state)
            kept = [name for name in before if not name.endswith(changed_by_new_episodes)]
            assert before.keys() == after.keys()
            assert_same({n: before[n] for n in kept}, {n: after[n] for n in kept})

            # An update that does not fail changes it.
            trainer.step()
            assert trainer.state.step == 16 * (updates_before + 1)
            changed = everything(trainer.state)
            assert any(repr(changed[name]) != repr(value) for name, value in before.items())


def newest(run_dir: Path) -> Checkpoint:
    """Return the newest save of a run."""
    return verify(max(run_dir.glob("step-*")))
