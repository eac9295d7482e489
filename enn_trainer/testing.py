"""Assertions for tests of custom environments, agents and state parts."""

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from enn_trainer.base.state_part import (
    SavedNetwork,
    SpaceChange,
    StateDict,
    StatePart,
    check_plain,
    copied_state,
    full_state,
)
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.experience.envs import EnvFactory
from enn_trainer.run.session import TrainResult
from enn_trainer.run.trainer import Trainer
from enn_trainer.stop_conditions import AtLeast
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.serialization.messages import pack, unpack


def assert_learns(
    state_manager: StateManager,
    env: type[Environment] | type[Match] | EnvFactory,
    key: str,
    bound: float,
) -> TrainResult:
    """Train until a metric reaches a bound, and raise if it does not.

    Example:
        >>> def test_orchard_can_be_learnt(tmp_path):
        ...     settings = ["total_timesteps=50000", f"data_dir={tmp_path}"]
        ...     manager = StateManager(overrides=settings)
        ...     assert_learns(manager, Orchard, "episodic_reward.mean", 2.2)

    Args:
        state_manager: state manager; `total_timesteps` of its configuration limits the training.
        env: the environment.
        key: tag of the metric, such as `eval/episodic_reward.mean`.
        bound: value that the metric must reach.

    Raises:
        AssertionError: the bound was not reached; the message has the last value.
    """
    goal = AtLeast(key, bound)
    with Trainer(state_manager, env) as trainer:
        result = trainer.run(goal)
        reached = trainer.state.metrics_over_rounds().get(key)
    if reached is None or not goal.holds(reached):
        raise AssertionError(
            f"expected {goal} within {result.step} frames, got {reached} at the end"
        )
    return result


def check_state_part(part: StatePart, new: StatePart) -> None:
    """Raise if a state part does not survive checkpoints, resumes and failed updates.

    Example:
        >>> def test_running_scale_conforms():
        ...     scale = RunningScale()
        ...     scale.observe(torch.ones(3))
        ...     check_state_part(scale, RunningScale())

    Args:
        part: the part, in a state that differs from a new one; it is not modified.
        new: a new part, constructed in the same way; it is modified.

    Raises:
        AssertionError: there is a problem; the message names the entry.
    """
    # The state is plain data and tensors, and reading does not change it.
    saved = copied_state(_checked(full_state(part)))
    _check_equal("state_dict, called twice", full_state(part), saved)
    initial = copied_state(_checked(full_state(new)))
    if saved and _bits(initial) == _bits(saved):
        raise AssertionError("part: expected a state that differs from the one of a new part")

    # A checkpoint and a resume.
    tensors = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
    plain = {name: value for name, value in saved.items() if name not in tensors}
    new.load_state_dict({})
    _check_equal("load_state_dict of an empty state into a new part", full_state(new), initial)
    new.load_state_dict({**load_tensors(save_tensors(tensors)), **unpack(pack(plain))})
    _check_equal("state_dict after load_state_dict", full_state(new), saved)

    # An upgrade to the same spaces.
    evolved = new.evolve(copied_state(full_state(new)), _IdentityChange())
    _check_equal("evolve without a change of the spaces", evolved, saved)

    # A failed update: restore an earlier state, also if entries are new.
    argument = copied_state(initial)
    new.load_state_dict(argument)
    _check_equal("state_dict after load_state_dict of an earlier state", full_state(new), initial)
    _check_equal("the argument of load_state_dict afterwards", argument, initial)
    _check_equal("the part, after another one was loaded", full_state(part), saved)
    new.load_state_dict(copied_state(saved))
    new.restore(copied_state(new.snapshot()))
    _check_equal("state_dict after restore of a snapshot", full_state(new), saved)


class _IdentityChange(SpaceChange):
    """Change of spaces that changes nothing; `others` returns all entries."""

    is_same_world = True

    def action(self, name: str) -> str:
        return name

    def network(self, name: str, saved: SavedNetwork) -> SavedNetwork:
        return saved

    def parameter(self, name: str) -> str:
        return name

    def moments(self, state: StateDict) -> dict[str, Any]:
        return {}

    def others(self, state: StateDict) -> dict[str, Any]:
        return dict(state)

    def copy_of_agent(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)


def _checked(state: object) -> StateDict:
    """Return a state, or raise if it is not a mapping of tensors and plain data."""
    if not isinstance(state, Mapping) or any(type(name) is not str for name in state):
        raise AssertionError(f"state_dict: expected tensors and plain data by name, got {state!r}")
    for name, value in state.items():
        try:
            if not isinstance(value, Tensor):
                check_plain(name, value)
        except ValueError as error:
            raise AssertionError(f"state_dict: {error}") from None
    return state


def _check_equal(what: str, state: StateDict, expected: StateDict) -> None:
    """Raise if a state is not bitwise equal to the expected one."""
    got, bits = _bits(_checked(state)), _bits(expected)
    if got.keys() != bits.keys():
        raise AssertionError(f"{what}: expected entries {sorted(bits)}, got {sorted(got)}")
    for name, value in expected.items():
        if got[name] != bits[name]:
            raise AssertionError(f"{what}: {name}: expected {value!r}, got {state[name]!r}")


def _bits(state: StateDict) -> dict[str, tuple[object, ...]]:
    """Return data that compare equal if and only if the states are bitwise equal."""
    bits: dict[str, tuple[object, ...]] = {}
    for name, value in state.items():
        bits[name] = type(value), repr(value)
        if isinstance(value, Tensor):
            # As bytes, so that NaN equals itself.
            content = value.detach().contiguous().flatten().view(torch.uint8)
            bits[name] = value.dtype, value.shape, value.device, content.tolist()
    return bits
