"""Arguments that vary from episode to episode, in vectorised environments."""

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
    """Minefield whose arguments cannot be changed."""

    def __getattribute__(self, name: str) -> Any:
        """Hide the method once the environment is made."""
        if name == "set_parameters" and "max_mines" in vars(self):
            raise AttributeError(name)
        return super().__getattribute__(name)


def steps(envs: VecEnv, count: int, obs: Any = None) -> list[Any]:
    """Return what `count` steps show, from a reset on or from frames that are given."""
    space = envs.obs_space()
    shown = [envs.reset(space) if obs is None else obs]
    for _ in range(count):
        ones = np.ones(len(envs), dtype=np.int64)
        shown.append(envs.act({"move": Ragged(ones, ones)}, space))
    return [{name: rows.values.copy() for name, rows in o.features.items()} for o in shown]


def equal(some: list[Any], others: list[Any]) -> bool:
    """Return whether all frames are the same to the bit."""
    pairs = zip(some, others, strict=True)
    return all(np.array_equal(a[name], b[name]) for a, b in pairs for name in a)


def varied(envs: VecEnv, seed: int = 3) -> VecEnv:
    """Return seeded environments whose arguments vary."""
    envs.seed(seed)
    envs.vary(VARIATION)
    return envs


@pytest.mark.slow
def test_episodes_are_the_same_in_any_number_of_processes_and_made_anew() -> None:
    shown = steps(varied(EnvList(MAKE, 4)), 12)
    assert not equal(shown, steps(varied(EnvList(MAKE, 4), seed=4), 12))
    assert equal(shown, steps(varied(EnvList(functools.partial(Anew, max_steps=5), 4)), 12))
    for processes in (1, 2):
        envs = ParallelEnvList(MAKE, 4, processes)
        try:
            assert equal(shown, steps(varied(envs), 12))
        finally:
            envs.close()


def test_running_episodes_of_a_state_keep_their_arguments() -> None:
    for make in (MAKE, functools.partial(Anew, max_steps=5)):
        envs = varied(EnvList(make, 4))
        steps(envs, 7)
        state = envs.get_state()
        assert state is not None
        rest = steps(envs, 12, envs.set_state(state, envs.obs_space()))
        others = EnvList(make, 4)
        others.vary(VARIATION)
        assert equal(rest, steps(others, 12, others.set_state(state, envs.obs_space())))


def test_running_arguments_are_those_that_the_environments_draw() -> None:
    one, other = ({"max_mines": read_sampler(text)} for text in ("int 0 9", "int 100 109"))
    variation = Variation((((0.5, one), (0.5, other)),))
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


def test_no_variation_is_the_constructors_arguments() -> None:
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


def test_values_that_the_world_does_not_take_are_an_error_with_its_place() -> None:
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
    """Return a match whose sides depend on its argument, and which has to be made anew."""
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
def test_values_are_refused_in_one_line(world: Any, squad: int, problem: str) -> None:
    envs = EnvList(world, 2)
    envs.vary(Variation.of({"squad": str(squad)}))
    with pytest.raises(EntityEnvError) as raised:
        envs.reset(envs.obs_space())
    assert str(raised.value) == f"environment 0, episode 0: {problem}"


class Over(Duel):
    """Duel whose episodes are over at once if its squads are large."""

    def reset(self) -> list[Observation]:
        """Leave the second side without units."""
        shown = super().reset()
        if self.squad > 4:
            self.hp[self.squad :] = [0] * self.squad
            return self._observe()
        return shown


def test_what_a_world_returns_wrongly_is_named_with_its_arguments() -> None:
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


def test_arguments_of_a_state_are_those_that_were_drawn_whatever_the_world_does_to_them() -> None:
    envs = EnvList(Changing, 2)
    envs.vary(Variation.of({"marks": "[2, 3]"}))
    steps(envs, 2)
    assert envs.get_state()["arguments"] == [{"marks": [2, 3]}] * 2  # type: ignore[index]


def test_a_world_that_leaves_or_fails_to_close_between_episodes_is_named() -> None:
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


def test_array_environments_do_not_vary() -> None:
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


def test_a_world_that_is_made_anew_closes_the_old_one() -> None:
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
        one = Ragged(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))
        envs.act({"go": one}, envs.obs_space())
    assert closed == made[:-1]
    assert len(made) == 5
    envs.close()
    assert closed == made


@pytest.mark.slow
def test_a_worker_that_is_replaced_draws_as_the_lost_one_would_have() -> None:
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
