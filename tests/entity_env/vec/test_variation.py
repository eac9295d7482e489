"""Arguments that vary from episode to episode, in vectorized environments."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_env.actions import Action, GlobalCategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.errors import EntityEnvError
from entity_env.examples.duel import Duel
from entity_env.examples.minefield import Minefield
from entity_env.examples.minefield_vec import VecMinefield
from entity_env.ragged import Ragged
from entity_env.spaces import ActionSpace, GlobalCategoricalActionSpace, ObsSpace
from entity_env.vec.parallel import ParallelEnvList
from entity_env.vec.samplers import read_sampler
from entity_env.vec.serial import EnvList
from entity_env.vec.variation import RunningArguments, Variation
from entity_env.vec.vec_env import VecEnv

VARIATION = Variation.of({"max_mines": "int 0 9", "width": "uniform 60 90"})
MAKE = functools.partial(Minefield, max_steps=5)


class Anew(Minefield):
    """Minefield without `set_parameters`, which must be replaced to change its arguments."""

    def __getattribute__(self, name: str) -> Any:
        """Hide the method once the environment is made."""
        if name == "set_parameters" and "max_mines" in vars(self):
            raise AttributeError(name)
        return super().__getattribute__(name)


def steps(envs: VecEnv, count: int, obs: Any = None) -> list[Any]:
    """Return the features of `count` steps, from a reset or from given frames on."""
    space = envs.obs_space()
    frames = [envs.reset(space) if obs is None else obs]
    for _ in range(count):
        ones = np.ones(len(envs), dtype=np.int64)
        frames.append(envs.act({"move": Ragged(ones, ones)}, space))
    return [{name: rows.values.copy() for name, rows in o.features.items()} for o in frames]


def equal(first: list[Any], second: list[Any]) -> bool:
    """Return whether all frames are the same to the bit."""
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(a[name], b[name]) for a, b in pairs for name in a)


def varied(envs: VecEnv, seed: int = 3) -> VecEnv:
    """Return seeded environments with varying arguments."""
    envs.seed(seed)
    envs.vary(VARIATION)
    return envs


@pytest.mark.slow
def test_episodes_do_not_depend_on_processes_or_set_parameters() -> None:
    expected = steps(varied(EnvList(MAKE, 4)), 12)
    assert not equal(expected, steps(varied(EnvList(MAKE, 4), seed=4), 12))
    assert equal(expected, steps(varied(EnvList(functools.partial(Anew, max_steps=5), 4)), 12))
    for processes in (1, 2):
        envs = ParallelEnvList(MAKE, 4, processes)
        try:
            assert equal(expected, steps(varied(envs), 12))
        finally:
            envs.close()


def test_running_episodes_of_a_state_keep_their_arguments() -> None:
    for make in (MAKE, functools.partial(Anew, max_steps=5)):
        envs = varied(EnvList(make, 4))
        steps(envs, 7)
        state = envs.get_state()
        assert state is not None
        rest = steps(envs, 12, envs.set_state(state, envs.obs_space()))
        restored = EnvList(make, 4)
        restored.vary(VARIATION)
        assert equal(rest, steps(restored, 12, restored.set_state(state, envs.obs_space())))


def test_running_arguments_match_the_draws_of_the_environments() -> None:
    low, high = ({"max_mines": read_sampler(text)} for text in ("int 0 9", "int 100 109"))
    variation = Variation((((0.5, low), (0.5, high)),))
    envs, running = EnvList(MAKE, 6), RunningArguments(6)
    envs.seed(3)
    running.seed(3)
    running.variation = variation
    envs.vary(variation)
    space, ones = envs.obs_space(), np.ones(6, dtype=np.int64)
    envs.reset(space)
    running.begin()
    for _ in range(12):
        state = envs.get_state()
        assert state is not None
        assert running.arguments == state["arguments"]
        for match, arguments in enumerate(running.arguments):
            assert running.alternatives(match) == [int(arguments["max_mines"] >= 100)]
        again = RunningArguments(6)
        again.set_state(state)
        assert (again.arguments, again.episode.tolist()) == (
            running.arguments,
            running.episode.tolist(),
        )
        obs = envs.act({"move": Ragged(ones, ones)}, space)
        running.begin(np.flatnonzero(obs.done))
    assert running.episode.min() >= 2


def test_without_variation_arguments_are_those_of_the_constructor() -> None:
    envs = EnvList(MAKE, 2)
    envs.seed(3)
    plain = steps(envs, 6)
    assert "arguments" not in (envs.get_state() or {})
    envs = EnvList(MAKE, 2)
    varied(envs)
    steps(envs, 6)
    envs.vary(Variation())
    envs.seed(3)
    assert equal(plain, steps(envs, 6))


def test_errors_for_rejected_values_name_environment_and_episode() -> None:
    envs = EnvList(MAKE, 2)
    envs.vary(Variation.of({"width": "1"}))
    with pytest.raises(EntityEnvError, match=r"environment 0, episode 0: Minefield .*at least 10"):
        envs.reset(envs.obs_space())


class Picky(Duel):
    """Duel that refuses squads in several lines or without a word, and has sides by its size."""

    def set_parameters(self, squad: int | None = None) -> None:
        """Take squads of at most 4."""
        if squad == 7:
            raise AssertionError
        if squad is not None and squad > 4:
            raise ValueError(f"squad:\n  too large, {squad}\n")
        super().set_parameters(squad)


def resized(squad: int = 4) -> Any:
    """Return a match without `set_parameters`; its number of sides depends on its argument."""
    match: Any = Duel(squad)
    match.set_parameters, match.num_sides = None, squad // 2
    return match


@pytest.mark.parametrize(
    ("world", "squad", "problem"),
    [
        (Picky, 5, "Picky does not take {'squad': 5}: squad: too large, 5"),
        (Picky, 7, "Picky does not take {'squad': 7}: AssertionError"),
        (resized, 6, "Duel does not take {'squad': 6}: num_sides: expected 2, got 3"),
    ],
)
def test_errors_for_rejected_values_are_one_line(world: Any, squad: int, problem: str) -> None:
    envs = EnvList(world, 2)
    envs.vary(Variation.of({"squad": str(squad)}))
    with pytest.raises(EntityEnvError) as raised:
        envs.reset(envs.obs_space())
    assert str(raised.value) == f"environment 0, episode 0: {problem}"


class Over(Duel):
    """Duel with large squads ends every episode in its first frame."""

    def reset(self) -> list[Observation]:
        """Leave the second side without units."""
        sides = super().reset()
        if self.squad > 4:
            self.hp[self.squad :] = [0] * self.squad
            return self._observe()
        return sides


def test_errors_for_invalid_observations_name_the_arguments() -> None:
    envs = EnvList(Over, 2)
    envs.vary(Variation.of({"squad": "5"}))
    place = r"environment 0, episode 0, step 0: done: .*, with \{'squad': 5\}$"
    with pytest.raises(EntityEnvError, match=place):
        envs.reset(envs.obs_space())


class Changing(Anew):
    """Minefield that changes a list that it is given, may leave, and may fail to close."""

    def __init__(self, marks: list[int] | None = None, leaves: bool = False) -> None:
        if leaves:
            raise SystemExit(3)
        self.marks = marks or []
        super().__init__(max_steps=5)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.marks.append(7)
        return super().act(actions)

    def close(self) -> None:
        if self.marks == [1]:
            raise RuntimeError("cannot close")


def test_saved_arguments_are_unchanged_if_the_environment_modifies_them() -> None:
    envs = EnvList(Changing, 2)
    envs.vary(Variation.of({"marks": "[2, 3]"}))
    steps(envs, 2)
    assert envs.get_state()["arguments"] == [{"marks": [2, 3]}] * 2  # type: ignore[index]


def test_errors_between_episodes_name_the_environment() -> None:
    envs = EnvList(Changing, 2)
    envs.vary(Variation.of({"leaves": "true"}))
    with pytest.raises(EntityEnvError, match=r"environment 0, episode 0: .*raised SystemExit: 3"):
        envs.reset(envs.obs_space())
    envs = EnvList(Changing, 2)
    envs.vary(Variation.of({"marks": "[1]"}))
    envs.reset(envs.obs_space())
    with pytest.raises(RuntimeError, match="cannot close") as error:
        envs.reset(envs.obs_space())
    assert error.value.__notes__ == ["in environment 0"]


def test_vary_raises_for_environments_in_array_operations() -> None:
    with pytest.raises(EntityEnvError, match="vary: VecMinefield does not vary"):
        VecMinefield(2).vary(VARIATION)


def test_all_sides_of_a_match_share_the_draw() -> None:
    variation = Variation.of({"squad": "int 1 9"})
    envs = EnvList(Duel, 12)
    envs.seed(3)
    envs.vary(variation)
    counts = envs.reset(envs.obs_space()).features["Ally"].lengths
    drawn = [variation.arguments(3, match, 0)["squad"] for match in range(6)]
    assert counts.tolist() == [squad for squad in drawn for _ in range(2)]
    assert len({*drawn}) > 1


def test_replaced_environments_are_closed() -> None:
    made, closed = [], []

    class Closing(Environment):
        def __init__(self, size: int = 0) -> None:
            self.size = size
            made.append(self)

        def obs_space(self) -> ObsSpace:
            return ObsSpace(global_features=["size"])

        def action_space(self) -> dict[str, ActionSpace]:
            return {"go": GlobalCategoricalActionSpace(["on"])}

        def reset(self) -> Observation:
            return Observation(
                global_features=[self.size], actions={"go": GlobalCategoricalActionMask()}
            )

        def act(self, actions: Mapping[str, Action]) -> Observation:
            return Observation(global_features=[self.size], done=True)

        def close(self) -> None:
            closed.append(self)

    envs = EnvList(Closing, 1)
    envs.vary(Variation.of({"size": "int 1 9"}))
    envs.reset(envs.obs_space())
    for _ in range(3):
        choice = Ragged(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))
        envs.act({"go": choice}, envs.obs_space())
    assert closed == made[:-1]
    assert len(made) == 5
    envs.close()
    assert closed == made


@pytest.mark.slow
def test_replaced_workers_draw_the_same_arguments() -> None:
    envs = ParallelEnvList(MAKE, 4, 2, recover="truncate")
    try:
        varied(envs)
        space, ones = envs.obs_space(), np.ones(4, dtype=np.int64)
        envs.reset(space)
        envs._workers[0].process.kill()
        obs = envs.act({"move": Ragged(ones, ones)}, space)
        assert obs.truncated[:2].all()
        second = EnvList(MAKE, 4)
        second.vary(VARIATION)
        second.seed(3, [1] * 4)
        expected = second.reset(space)
        for name, rows in expected.features.items():
            for i in range(2):
                np.testing.assert_array_equal(obs.features[name][i].values, rows[i].values)
    finally:
        envs.close()
