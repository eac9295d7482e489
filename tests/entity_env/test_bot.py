"""Bots see the visible part of a frame, and their actions become choices."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    Action,
    Bot,
    CategoricalAction,
    Entity,
    EnvList,
    InvalidAction,
    Observation,
    ObsSpace,
    ParallelEnvList,
    PlainState,
    SelectEntityActionMask,
    batch_obs,
)
from entity_env.bot import bot_choices, bot_observations, bot_state, restore_bot
from entity_env.examples import RockPaperScissors
from entity_env.observation import filter_observation
from entity_env.serialization.messages import pack, unpack
from entity_env.spaces import GLOBAL, Spaces, has_global_entity
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import unbatch_actions
from tests.entity_env.builders import allowed_by_frame
from tests.entity_env.kinds_world import COLORS, SPACE, Sorter
from tests.strategies import World, entities_of, worlds


def visible_names(obs: Observation, world: World) -> dict[Any, Any]:
    """The name that a bot knows each visible entity by, by its own name in the world."""
    names: dict[Any, Any] = {GLOBAL: GLOBAL}
    for type_name in world.obs_space.entities:
        entities = entities_of(obs, [type_name])
        flags = obs.visible.get(type_name, [True] * len(entities))
        shown = [one for one, seen in zip(entities, flags, strict=True) if seen]
        names |= {one: (type_name, row) for row, one in enumerate(shown)}
    return names


@given(worlds())
def test_bot_observes_visible_entities_and_all_actors(world: World) -> None:
    spaces = Spaces(world.obs_space, world.action_space)
    batch = batch_obs(world.frames, *spaces)
    for obs, shown in zip(
        world.frames, bot_observations(batch, world.obs_space, spaces), strict=True
    ):
        names = visible_names(obs, world)
        for name, entity in world.obs_space.entities.items():
            flags = obs.visible.get(name, [True] * obs.num_entities(name))
            rows = np.array(obs.features.get(name, []), np.float32)
            rows = rows.reshape(len(flags), len(entity.features))[np.array(flags, np.bool_)]
            np.testing.assert_array_equal(shown.features[name], rows)
            assert [*shown.ids_of_type(name)] == [(name, i) for i in range(len(rows))]
        if has_global_entity(*spaces):
            np.testing.assert_array_equal(
                shown.global_features, np.array(obs.global_features, np.float32)
            )
        untold = shown.ids, shown.visible, shown.metrics, shown.reward, shown.done
        assert not any(untold)
        for name, space in world.action_space.items():
            mask = obs.actions.get(name)
            expected = allowed_by_frame(obs, world.obs_space, space, mask)
            assert (name in shown.actions) == bool(expected)
            if expected:
                # The same through the eyes of the bot.
                got = allowed_by_frame(shown, world.obs_space, space, shown.actions[name])
                selects = isinstance(mask, SelectEntityActionMask)
                assert got == [
                    (names[actor], [names[c] if selects else c for c in choices])
                    for actor, choices in expected
                ]


@given(worlds(numbers=True), st.integers(0, 2**32 - 1))
def test_bot_actions_are_mapped_to_environment_ids(world: World, seed: int) -> None:
    spaces = Spaces(world.obs_space, world.action_space)
    batch = batch_obs(world.frames, *spaces)
    frames = bot_observations(batch, world.obs_space, spaces)
    choices = random_choices(batch, world.action_space, np.random.default_rng(seed))

    class Fixed(Bot):
        def __init__(self, actions: Mapping[str, Action]) -> None:
            self.actions = actions

        def act(self, observation: Observation) -> Mapping[str, Action]:
            return self.actions

    bots = [Fixed(actions) for actions in unbatch_actions(choices, batch, frames, *spaces)]
    given_choices = bot_choices(bots, frames, batch, spaces, where=str)
    assert given_choices.keys() == choices.keys()
    for name, rows in choices.items():
        np.testing.assert_array_equal(given_choices[name].values, rows.values)
        np.testing.assert_array_equal(given_choices[name].lengths, rows.lengths)


def test_bots_observe_label_indices_of_the_environment() -> None:
    """Whatever the order of types, features and labels is in which a run records them."""
    envs = EnvList(Sorter, 3)
    ball = SPACE.entities["Ball"]
    color, is_open = ball.kinds
    other = ObsSpace(
        [*SPACE.global_features],
        {
            "Wall": Entity([]),
            "Sign": SPACE.entities["Sign"],
            "Ball": Entity([*ball.features, is_open, type(color)("color", COLORS[::-1])]),
        },
        SPACE.global_kinds,
    )
    envs.seed(1)
    obs = envs.reset(other)
    shown = bot_observations(obs, other, Spaces.of(envs))
    envs.seed(1)
    expected = bot_observations(envs.reset(SPACE), SPACE, Spaces.of(envs))
    assert sum(len(one.features["Ball"]) for one in shown)
    for got, wanted in zip(shown, expected, strict=True):
        for name, rows in wanted.features.items():
            np.testing.assert_array_equal(got.features[name], rows)
        assert repr(got.actions) == repr(wanted.actions)
    filtered = filter_observation(expected[0], SPACE, other)
    labels = [COLORS[::-1][int(row[2])] for row in filtered.features["Ball"]]
    assert labels == [COLORS[int(row[1])] for row in shown[0].features["Ball"]]


def test_bot_frames_of_workers_equal_those_of_the_parent() -> None:
    seen = []
    for make in (EnvList, lambda *args: ParallelEnvList(*args, num_processes=2)):
        envs = make(Sorter, 4)
        try:
            envs.seed(3)
            obs = envs.reset(SPACE)
            spaces = Spaces.of(envs)
            frames = bot_observations(obs, SPACE, spaces)
            copies = [frame.features["Ball"].copy() for frame in frames]  # type: ignore[union-attr]
            choices = random_choices(obs, envs.action_space(), np.random.default_rng(0))
            envs.act(choices, SPACE)  # may write over the frames before
            for frame, rows in zip(frames, copies, strict=True):
                np.testing.assert_array_equal(frame.features["Ball"], rows)
            seen.append(frames)
        finally:
            envs.close()
    for parent_frame, worker_frame in zip(*seen, strict=True):
        assert str(parent_frame) == str(worker_frame)


class Throws(Bot):
    """Throw what `wanted` says."""

    wanted: Any = "rock"

    def act(self, observation: Observation) -> Mapping[str, Action]:
        actors: Any = observation.actions["throw"].actor_ids  # type: ignore[attr-defined]
        return {"throw": CategoricalAction(actors, np.zeros(1, np.int64), [self.wanted])}


class Fails(Throws):
    def act(self, observation: Observation) -> Mapping[str, Action]:
        raise KeyError("nothing there")


class Misnames(Throws):
    def act(self, observation: Observation) -> Mapping[str, Action]:
        return {"trow": super().act(observation)["throw"]}


def ask(*bots: Bot) -> Any:
    envs = EnvList(RockPaperScissors, len(bots))
    envs.seed(0)
    spaces = Spaces.of(envs)
    obs = envs.reset(envs.obs_space())
    frames = bot_observations(obs, envs.obs_space(), spaces)
    return bot_choices(bots, frames, obs, spaces, where=lambda i: f"match {i}, step 7")


def test_illegal_action_error_names_bot_frame_and_legal_choices() -> None:
    legal, illegal = Throws(), Throws()
    illegal.wanted = "well"
    assert len(ask(legal, legal)["throw"].values) == 2
    with pytest.raises(InvalidAction) as error:
        ask(legal, illegal)
    assert str(error.value).startswith("bot Throws in match 1, step 7: actions['throw'], actor")
    assert "['rock', 'paper', 'scissors'], got 'well'" in str(error.value)
    with pytest.raises(InvalidAction, match=r"bot Misnames in match 0, step 7: expected actions"):
        ask(Misnames())
    with pytest.raises(KeyError) as failure:
        ask(legal, Fails())
    assert failure.value.__notes__ == ["in bot Fails in match 1, step 7"]


class Counts(PlainState, Bot):
    """Keep a number and a generator of its own."""

    def __init__(self) -> None:
        self.count = 0

    def act(self, observation: Observation) -> Mapping[str, Action]:
        self.count += 1
        self.last = [self.count, self.rng.random(), int(self.rng.integers(1000, dtype=np.uint32))]
        return {}


class Draws(Bot):
    """Keep nothing but the generator."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        self.last = [self.rng.random(), int(self.rng.integers(1000, dtype=np.uint32))]
        return {}


@pytest.mark.parametrize("make", [Counts, Draws])
def test_restored_bot_continues_like_the_saved_one(make: type[Counts | Draws]) -> None:
    bot, nothing = make(), Observation()
    bot.seed(5)
    futures = []
    for _ in range(3):
        bot.act(nothing)
    state = unpack(pack({"bot": bot_state(bot)}, exact=True))["bot"]
    other = make()
    restore_bot(other, state)
    for one in (bot, other):
        futures.append([(one.act(nothing), one.last)[1] for _ in range(4)])
    assert futures[0] == futures[1]
    bot.seed(5)
    other.seed(6)
    bot.act(nothing)
    other.act(nothing)
    assert bot.last[-2:] != other.last[-2:]


def test_bot_without_act_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Bot()  # type: ignore[abstract]
