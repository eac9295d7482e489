"""An auxiliary loss of one's own: weights stay near their slow average."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enn_trainer import (
    CheckpointError,
    NotFiniteError,
    State,
    StateManager,
    init_train_state,
    train,
)
from enn_trainer.algorithms.algorithm import AuxiliaryLoss, Clock
from enn_trainer.base.state_part import StateDict
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.testing import check_state_part
from entity_env.serialization.messages import unpack
from tests.toys.world import (
    Lane,
    assert_failed_updates_change_nothing,
    assert_resumes_to_the_bit,
    everything,
    manager_of,
    newest,
    run,
)

ANCHOR = "anchor"


class NearAverage(AuxiliaryLoss):
    """Half the squared distance of the weights from their slow average, by a factor that falls.

    All tensors are changed in place; averages are made in the first update.

    Args:
        agent: the network.
    """

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.averages: dict[str, Tensor] = {}
        self.factor = torch.tensor([0.5])
        self.lowest = torch.tensor(float("inf"))
        self.steps = 0

    def begin_update(self, clock: Clock) -> bool:
        """Make the averages of parameters that have none yet."""
        for name, parameter in self.agent.named_parameters():
            self.averages.setdefault(name, parameter.detach().clone())
        return True

    def add_gradient(self, step: int, context: ExecutionContext) -> Tensor:
        """Add factor * (parameter - average), and move the average towards the parameter."""
        loss = torch.zeros(())
        for name, parameter in self.agent.named_parameters():
            distance = parameter.detach() - self.averages[name]
            loss += self.factor[0] * distance.square().sum() / 2
            if parameter.grad is not None:
                parameter.grad += self.factor * distance
            self.averages[name].lerp_(parameter.detach(), 0.1)
        self.factor *= 0.99
        torch.minimum(self.lowest, loss, out=self.lowest)
        self.steps += 1
        return loss

    def state_dict(self) -> StateDict:
        """Return the averages, called PARAMETER/anchor, and the rest."""
        return {
            **{f"{name}/{ANCHOR}": average for name, average in self.averages.items()},
            "factor": self.factor,
            "lowest": self.lowest,
            "steps": self.steps,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over the tensors."""
        self.averages = {
            name.removesuffix(f"/{ANCHOR}"): average
            for name, average in state.items()
            if name.endswith(f"/{ANCHOR}")
        }
        self.factor = state.get("factor", self.factor)
        self.lowest = state.get("lowest", self.lowest)
        self.steps = state.get("steps", self.steps)


def with_loss(config: Any, ctx: dict[str, Any]) -> State:
    """Return the state of a new run, with the loss."""
    state = init_train_state(config, ctx)
    state.algorithm.auxiliary_losses["near"] = NearAverage(state.agent)
    return state


def loss_of(manager: StateManager) -> NearAverage:
    loss: NearAverage = manager.state.algorithm.auxiliary_losses["near"]
    return loss


def test_auxiliary_loss_passes_the_conformance_test() -> None:
    agent = torch.nn.Linear(2, 3)
    loss = NearAverage(agent)
    loss.begin_update(Clock(0, 0.0))
    loss.add_gradient(0, ExecutionContext())
    check_state_part(loss, NearAverage(agent))


def test_auxiliary_loss_changes_training_and_is_logged(tmp_path: Path) -> None:
    manager = run(tmp_path, 48, initial_state=with_loss)
    assert loss_of(manager).steps == 3 * 3 * 2  # updates, epochs, minibatches
    assert manager.state.metrics["losses/near_loss"] > 0
    near, far = everything(manager.state), everything(run(tmp_path, 48).state)
    assert any(not torch.equal(near[n], x) for n, x in far.items() if n.startswith("agent/"))


@pytest.mark.slow
def test_failed_updates_change_nothing(tmp_path: Path) -> None:
    assert_failed_updates_change_nothing(tmp_path, with_loss)


@pytest.mark.slow
def test_auxiliary_loss_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert_resumes_to_the_bit(tmp_path, with_loss)


def test_state_of_an_auxiliary_loss_needs_the_loss_to_resume(tmp_path: Path) -> None:
    run(tmp_path, 16, initial_state=with_loss, checkpoint_dir=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"state.loss.safetensors: has near/.* initial_state"):
        run(tmp_path, 32, checkpoint_dir=tmp_path / "run")
    assert unpack(newest(tmp_path / "run").read("state.rest.msgpack"))["version"] == 2
    with pytest.raises(CheckpointError, match="initial_state"):
        evolve(newest(tmp_path / "run"), Lane().obs_space(), Lane().action_space())


def test_auxiliary_loss_can_be_added_to_a_resumed_run(tmp_path: Path) -> None:
    run(tmp_path, 32, checkpoint_dir=tmp_path / "run")
    manager = run(tmp_path, 48, initial_state=with_loss, checkpoint_dir=tmp_path / "run")
    assert loss_of(manager).steps == 3 * 2


@pytest.mark.slow
def test_auxiliary_loss_upgrades_with_the_environment(tmp_path: Path) -> None:
    """Averages move with the columns of their parameters, like moments."""
    manager = run(tmp_path, 48, initial_state=with_loss, checkpoint_dir=tmp_path / "run")
    windy = Lane(wind=True)
    spaces = windy.obs_space(), windy.action_space()
    evolved = evolve(newest(tmp_path / "run"), *spaces, initial_state=with_loss)
    old, new = loss_of(manager).state_dict(), evolved.state.algorithm.auxiliary_losses["near"]
    assert_moved(old, new.state_dict(), dict(evolved.state.agent.named_parameters()))

    # It is saved, and goes on.
    evolved.save(tmp_path / "evolved")
    continued = manager_of(
        tmp_path,
        "total_timesteps=64",
        initial_state=with_loss,
        checkpoint_dir=tmp_path / "evolved",
    )
    train(continued, lambda: Lane(wind=True))
    assert loss_of(continued).steps > loss_of(manager).steps


def assert_moved(
    old: Mapping[str, Any], new: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> None:
    widened = 0
    assert new.keys() == old.keys()
    for name, value in old.items():
        parameter = parameters.get(name.removesuffix(f"/{ANCHOR}"))
        if parameter is None:
            assert new[name] == value, name
            continue
        assert new[name].shape == parameter.shape
        if value.shape == parameter.shape:
            assert torch.equal(new[name], value), name
        else:  # wind is the first feature
            widened += 1
            assert torch.equal(new[name][:, 1:], value)
            assert not new[name][:, 0].any()
    assert widened == 1


@pytest.mark.parametrize("name", ["a/b", "ent_tunings", "policy", "value", "entropy"])
def test_reserved_names_raise(name: str, tmp_path: Path) -> None:
    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        state.algorithm.auxiliary_losses[name] = NearAverage(state.agent)
        return state

    with pytest.raises(ValueError, match=f"auxiliary_losses.*{name}"):
        run(tmp_path, 16, initial_state=initial)


def test_names_of_network_parameters_raise(tmp_path: Path) -> None:
    def initial(config: Any, ctx: dict[str, Any]) -> State:
        agent = init_train_state(config, ctx).agent
        agent.register_parameter("far", torch.nn.Parameter(torch.zeros(1)))
        state = init_train_state(config, {**ctx, "agent": agent})
        state.algorithm.auxiliary_losses["far"] = NearAverage(agent)
        return state

    with pytest.raises(ValueError, match=r"unique names .* that no parameter has, got 'far'"):
        run(tmp_path, 16, initial_state=initial)


def test_losses_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    class Broken(NearAverage):
        def add_gradient(self, step: int, context: ExecutionContext) -> Tensor:
            return super().add_gradient(step, context) + torch.nan

    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        state.algorithm.auxiliary_losses["near"] = Broken(state.agent)
        return state

    with pytest.raises(NotFiniteError, match="the auxiliary loss near is nan"):
        run(tmp_path, 16, initial_state=initial)
