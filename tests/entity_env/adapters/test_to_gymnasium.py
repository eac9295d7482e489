"""Padded environments: observations, masks, and the actors of choices."""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import assume, given
from hypothesis import strategies as st

from entity_env import (
    Action,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    GlobalContinuousAction,
    GlobalContinuousActionMask,
    InvalidAction,
    InvalidObservation,
    Match,
    Observation,
    ObsSpace,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.to_gymnasium import ToGymnasium
from entity_env.examples import ENV_REGISTRY, Duel, Medics, MineSweeper, TreasureHunt, Xor
from tests.entity_env.adapters.worlds import SEEN_FROM_ME, VIEW, Show
from tests.entity_env.kinds_world import COLORS, Sorter
from tests.entity_env.worlds import Walk
from tests.strategies import World, entities_named, worlds

MOST = 3  # entities of a type in the worlds of the strategy
SOLO = [name for name, cls in ENV_REGISTRY.items() if not issubclass(cls, Match)]
INDEPENDENT = [
    name
    for name in SOLO
    if not any(
        space.components or space.after for space in ENV_REGISTRY[name]().action_space().values()
    )
]
"""Environments without continuous and autoregressive actions."""


class Replay(Environment):
    """Environment that returns the frames of a random environment and logs the actions."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.action_log: list[Mapping[str, Action]] = []

    def obs_space(self) -> ObsSpace:
        return self.world.obs_space

    def action_space(self) -> dict[str, ActionSpace]:
        return self.world.action_space

    def reset(self) -> Observation:
        self.action_log = []
        return self.world.frames[0]

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.action_log.append(actions)
        return self.world.frames[len(self.action_log)]


@pytest.mark.parametrize("name", SOLO)
def test_passes_the_checker_of_gymnasium(name: str) -> None:
    """`gymnasium.make` includes the check of all render modes."""

    def make(**kwargs: Any) -> ToGymnasium:
        return ToGymnasium(ENV_REGISTRY[name](), 40, **kwargs)  # type: ignore[arg-type]

    gymnasium.register(id=f"entity_env/{name}-v0", entry_point=make)
    try:
        env = gymnasium.make(f"entity_env/{name}-v0", disable_env_checker=True)
        with warnings.catch_warnings():
            # A feature has no bounds that anybody knows.
            warnings.filterwarnings("ignore", ".*A Box observation space m..imum value is -?inf")
            check_env(env.unwrapped)
    finally:
        del gymnasium.registry[f"entity_env/{name}-v0"]


def pieces(env: ToGymnasium, mask: Any) -> list[Any]:
    """Return the mask of each choice of the action."""
    if not env.heads:
        return []
    space = env.action_space
    choices = space["choices"] if isinstance(space, gymnasium.spaces.Dict) else space
    assert isinstance(choices, gymnasium.spaces.MultiDiscrete)
    return np.split(np.asarray(mask), np.cumsum(choices.nvec)[:-1])


def bounds_of(obs: Observation, world: World, name: str) -> dict[Any, Any]:
    """Return the bounds of the numbers of each actor, one entity at a time."""
    offered, space = obs.actions.get(name), world.action_space[name]
    if offered is None:
        return {}
    assert isinstance(offered, ContinuousActionMask | GlobalContinuousActionMask)
    actors: list[Any] = [None]
    if isinstance(offered, ContinuousActionMask):
        actors = entities_named(obs, world.obs_space, offered.actor_ids, offered.actor_types)
    shape = len(actors), len(space.components)
    pairs = np.float32([*space.bounds_by_name().values()])
    low, high = (
        np.broadcast_to(pairs[:, i], shape) if rows is None else np.reshape(rows, shape)
        for i, rows in enumerate((offered.low, offered.high))
    )
    return dict(zip(actors, zip(low, high, strict=True), strict=True))


def legal_of(obs: Observation, world: World, name: str) -> dict[Any, list[Any]]:
    """Return the legal choices of each actor that has any, one entity at a time."""
    offered, space = obs.actions.get(name), world.action_space[name]
    if offered is None:
        return {}
    if isinstance(offered, GlobalCategoricalActionMask):
        assert isinstance(space, GlobalCategoricalActionSpace)
        row = np.ones(len(space)) if offered.mask is None else offered.mask
        legal = {None: [i for i, allowed in enumerate(row) if allowed]}
    else:
        actors = entities_named(obs, world.obs_space, offered.actor_ids, offered.actor_types)
        if isinstance(offered, SelectEntityActionMask):
            targets = entities_named(obs, world.obs_space, offered.actee_ids, offered.actee_types)
        else:
            targets = list(range(len(space)))  # type: ignore[arg-type]
        rows = np.ones((len(actors), len(targets))) if offered.mask is None else offered.mask
        legal = {
            actor: [t for t, allowed in zip(targets, row, strict=True) if allowed]
            for actor, row in zip(actors, rows, strict=True)
        }
    return {actor: choices for actor, choices in legal.items() if choices}


def choices_of(action: Action | None) -> dict[Any, Any]:
    """Return the choice, or the numbers, of each actor."""
    if action is None:
        return {}
    if isinstance(action, GlobalContinuousAction):
        return {None: action.values.tolist()}
    if isinstance(action, ContinuousAction):
        return dict(zip(action.actors, action.values.tolist(), strict=True))
    if isinstance(action, GlobalCategoricalAction):
        return {None: action.index}
    if isinstance(action, CategoricalAction):
        return dict(zip(action.actors, action.indices.tolist(), strict=True))
    assert isinstance(action, SelectEntityAction)
    return dict(zip(action.actors, action.actees, strict=True))


def test_adapted_view_from_a_place_is_padded() -> None:
    """A Gymnasium environment is adapted and wrapped again, as for a baseline."""
    world = Show(copy.deepcopy(VIEW))
    env = ToGymnasium(
        FromGymnasium(lambda: world, SEEN_FROM_ME), {"me": 1, "cell": 9}, {"do": ["me"]}
    )
    assert env.heads == [("do", "me", 0)]
    padded, _ = env.reset(seed=3)
    for choice in (1, 0, 1):
        cells = [
            [row, column, *(np.arange(3) == kind), is_open]
            for (row, column), (kind, is_open) in zip(
                np.ndindex(3, 3), world.value["image"].reshape(9, 2).tolist(), strict=True
            )
            if kind != 0
        ]
        assert padded["entities/me"].tolist() == [[1, 2]]
        assert padded["entities/cell"][: len(cells)].tolist() == cells
        assert padded["present/cell"].sum() == len(cells)
        padded, *_ = env.step(np.array([choice]))
        assert world.action_log[-1] == choice


def test_labels_are_one_hot_columns() -> None:
    """One-hot labels come after the numbers; they are zero in empty slots."""
    env = ToGymnasium(Sorter(), {"Ball": 5, "Sign": 1, "Wall": 2})
    colors = [f"color={color}" for color in COLORS]
    assert env.columns == {
        "entities/Ball": ["x", *colors, "open=False", "open=True"],
        "entities/Sign": colors,
        "globals": ["time", "season=dry", "season=wet"],
    }
    numbers = set()
    for seed in range(5):
        padded, _ = env.reset(seed=seed)
        assert padded in env.observation_space
        world = env.world
        assert isinstance(world, Sorter)
        rows = [
            [x, *(color == one for one in COLORS), not is_open, is_open]
            for x, color, is_open in world.balls
        ]
        rows += [[0] * 6] * (5 - len(rows))
        np.testing.assert_array_equal(padded["entities/Ball"], np.array(rows, np.float32))
        assert padded["entities/Sign"].tolist() == [[world.sign == one for one in COLORS]]
        assert padded["globals"].tolist() == [0, world.season == "dry", world.season == "wet"]
        numbers.add(len(world.balls))
    assert len(numbers) > 1
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*A Box observation space m..imum value is -?inf")
        check_env(env, skip_render_check=True)


@pytest.mark.slow
@given(worlds(numbers=True), st.integers(0, 2**32 - 1))
def test_choice_of_a_slot_reaches_its_entity(world: World, seed: int) -> None:
    for frame in world.frames:
        frame.done = False
    assume(any(world.obs_space.entities or n in ("plan", "pay") for n in world.action_space))
    replay = Replay(world)
    env = ToGymnasium(replay, MOST)
    env.action_space.seed(seed)
    padded, _ = env.reset()
    slots = [(t, i) for t in world.obs_space.entities for i in range(MOST)]
    for step, frame in enumerate(world.frames[:-1]):
        named: dict[Any, Any] = {
            (t, i): frame.ids[t][i] if t in frame.ids else (t, i)
            for t, rows in frame.features.items()
            for i in range(len(rows))
        }
        choosing = [name for name, space in world.action_space.items() if not space.components]
        legal = {name: legal_of(frame, world, name) for name in choosing}
        bounds = {
            name: bounds_of(frame, world, name)
            for name in world.action_space
            if name not in choosing
        }
        check_padded(env, world, frame, padded)
        action = env.action_space.sample()
        expected: dict[str, dict[Any, Any]] = {name: {} for name in world.action_space}
        illegal = 0
        given_choices, given_numbers = (
            (action["choices"], action["numbers"])
            if env.heads and env.numbers
            else (action if env.heads else [], action if env.numbers else [])
        )
        masks = pieces(env, padded.get("action_mask"))
        acts_of_numbers = padded["acts"][len(env.heads) :]
        for number, number_value, acts in zip(
            env.numbers, given_numbers, acts_of_numbers, strict=True
        ):
            actor = None if number.entity is None else named.get((number.entity, number.row))
            present = number.entity is None or actor is not None
            acting = present and actor in bounds[number.action]
            assert acts == acting
            if acting:
                column = world.action_space[number.action].components.index(number.component)
                low, high = (bound[column] for bound in bounds[number.action][actor])
                illegal += not low <= number_value <= high
                expected[number.action].setdefault(actor, []).append(
                    float(np.clip(number_value, low, high))
                )
        acts_of_choices = padded["acts"][: len(env.heads)]
        for head, chosen, mask, acts in zip(
            env.heads, given_choices, masks, acts_of_choices, strict=True
        ):
            actor = None if head.entity is None else named.get((head.entity, head.row))
            present = head.entity is None or actor is not None
            choices = legal[head.action].get(actor, []) if present else []
            assert acts == bool(choices)
            if not choices:
                assert np.flatnonzero(mask).tolist() == [0]
                continue
            select = type(world.action_space[head.action]).__name__ == "SelectEntityActionSpace"
            meaning = [named.get(slot) for slot in slots] if select else list(range(len(mask)))
            allowed = [m is not None and m in choices for m in meaning]
            assert mask.astype(bool).tolist() == allowed
            if not allowed[chosen]:
                illegal += 1
                chosen = allowed.index(True)
            expected[head.action][actor] = meaning[chosen]
        padded, reward, _, _, info = env.step(action)
        assert {
            n: choices_of(replay.action_log[step].get(n)) for n in world.action_space
        } == expected
        assert info["illegal_actions"] == illegal
        assert info["metrics"] == world.frames[step + 1].metrics
        assert reward == world.frames[step + 1].reward


def check_padded(env: ToGymnasium, world: World, frame: Observation, padded: Any) -> None:
    assert padded in env.observation_space
    for name, entity in world.obs_space.entities.items():
        rows = frame.features.get(name, [])
        visible = np.asarray(frame.visible.get(name, [True] * len(rows)), dtype=bool)
        present = np.zeros(MOST)
        present[: len(rows)] = visible
        np.testing.assert_array_equal(padded[f"present/{name}"], present)
        assert (f"entities/{name}" in padded) == bool(entity.features)
        if entity.features:
            features = np.zeros((MOST, len(entity.features)), np.float32)
            if len(rows):
                features[: len(rows)] = np.asarray(rows, np.float32) * visible[:, None]
            np.testing.assert_array_equal(padded[f"entities/{name}"], features)
    if world.obs_space.global_features:
        np.testing.assert_array_equal(
            padded["globals"], np.asarray(frame.global_features, np.float32)
        )


@pytest.mark.parametrize("name", INDEPENDENT)
def test_masked_choices_are_never_illegal(name: str) -> None:
    env = ToGymnasium(ENV_REGISTRY[name](), 40, on_illegal="error")  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    padded, _ = env.reset(seed=3)
    ended = False
    for _ in range(30):
        np.testing.assert_array_equal(env.action_masks(), padded["action_mask"])
        action = np.array(
            [rng.choice(np.flatnonzero(m)) for m in pieces(env, padded["action_mask"])]
        )
        padded, _, terminated, truncated, info = env.step(action)
        assert info["illegal_actions"] == 0
        ended = terminated or truncated
        if ended:
            assert not padded["acts"].any()
            padded, _ = env.reset()


def test_episodes_are_a_function_of_the_seed() -> None:
    def play(seed: int) -> list[Any]:
        env = ToGymnasium(Walk(), 3)
        env.action_space.seed(0)
        seen, _ = env.reset(seed=seed)
        frames: list[Any] = [seen]
        for _ in range(20):
            seen, *rest = env.step(env.action_space.sample())
            frames += [seen, rest]
            if rest[1] or rest[2]:
                frames.append(env.reset()[0])
        return frames

    assert repr(play(1)) == repr(play(1))
    assert repr(play(1)) != repr(play(2))


def test_terminated_and_truncated_are_distinguished() -> None:
    env = ToGymnasium(Walk(), 3)
    endings = set()
    for seed in range(20):
        env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert truncated == env.world.cut  # type: ignore[attr-defined]
        endings.add((terminated, truncated))
        with pytest.raises(gymnasium.error.ResetNeeded, match="call reset first"):
            env.step(env.action_space.sample())
    assert endings == {(True, False), (False, True)}


def test_actors_limit_the_elements_of_the_action() -> None:
    sizes = {"Mine": 5, "Robot": 2, "Orbital Cannon": 1}
    limits = {"Move": ["Robot"], "Fire Orbital Cannon": ["Orbital Cannon"]}
    env = ToGymnasium(MineSweeper(orbital_cannon=True), sizes, actors=limits)
    assert [tuple(head) for head in env.heads] == [
        ("Move", "Robot", 0),
        ("Move", "Robot", 1),
        ("Fire Orbital Cannon", "Orbital Cannon", 0),
    ]
    assert env.action_space == gymnasium.spaces.MultiDiscrete([5, 5, 8])
    assert env.reset(seed=0)[0]["action_mask"].shape == (18,)
    env = ToGymnasium(MineSweeper(), sizes, actors={"Move": ["Mine"]})
    with pytest.raises(InvalidObservation, match=r"'Robot'; add it to actors\['Move'\]"):
        env.reset()


def test_rendered_images_and_text_are_passed_through() -> None:
    env = ToGymnasium(TreasureHunt(), 9, render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == env.world.render(mode="text")
    assert ToGymnasium(TreasureHunt(), 9).render() is None
    picture = ToGymnasium(Xor(), 2, render_mode="rgb_array")
    picture.reset(seed=0)
    assert picture.render().dtype == np.uint8
    assert ToGymnasium(Walk(), 1).metadata["render_modes"] == []
    with pytest.raises(ValueError, match="render_mode: expected one of "):
        ToGymnasium(Walk(), 1, render_mode="ansi")


def test_more_entities_than_slots_are_refused() -> None:
    env = ToGymnasium(MineSweeper(nmines=5), {"Mine": 4, "Robot": 2, "Orbital Cannon": 1})
    with pytest.raises(InvalidObservation, match=r"'Mine': expected at most 4 .* got 5; .*max_ent"):
        env.reset()


def test_illegal_choice_raises_with_on_illegal_error() -> None:
    sizes = {"Mine": 4, "Robot": 1, "Orbital Cannon": 1}
    corner = MineSweeper(width=1, height=5, nmines=4, nrobots=1)
    env = ToGymnasium(corner, sizes, {"Move": ["Robot"]}, on_illegal="error")
    env.reset(seed=0)
    left = np.zeros(len(env.heads), dtype=np.int64)
    left[0] = 2
    with pytest.raises(InvalidAction, match=r"action\[0\]: choice 2 of 'Move' by row 0 of 'Robot'"):
        env.step(left)
    left[0] = 4
    env.step(left)  # what was refused has changed nothing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_entities": 0}, "max_entities: expected a positive number"),
        (
            {"max_entities": {"Thing": 1}},
            r"each of \['Goal', 'Thing'\]|each of \['Thing', 'Goal'\]",
        ),
        ({"max_entities": 2.5}, "max_entities: expected a positive number"),
        ({"max_entities": True}, "max_entities: expected a positive number"),
        ({"max_entities": {"Goal": 1, "Thing": "2"}}, "max_entities: expected a positive number"),
        ({"max_entities": 1, "actors": {"mov": ["Thing"]}}, "actors: .*'mov'"),
        ({"max_entities": 1, "actors": {"move": ["Think"]}}, "actors: .*'Think'"),
        ({"max_entities": 1, "actors": {"move": "Thing"}}, "actors: expected lists"),
        ({"max_entities": 1, "on_illegal": "ignore"}, "on_illegal: .*'ignore'"),
    ],
)
def test_invalid_argument_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToGymnasium(Walk(), **arguments)


def test_invalid_action_is_refused() -> None:
    env = ToGymnasium(Walk(), 3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action: expected one of MultiDiscrete"):
        env.step(np.array([7]))


def test_environment_without_choices_is_refused() -> None:
    class Still(Walk):
        def action_space(self) -> dict[str, ActionSpace]:
            return {}

    with pytest.raises(ValueError, match="env: expected at least one action with actors"):
        ToGymnasium(Still(), 1)


def test_action_without_choices_is_refused() -> None:
    class Stuck(Walk):
        def action_space(self) -> dict[str, ActionSpace]:
            return {"go": GlobalCategoricalActionSpace([])}

    with pytest.raises(ValueError, match="env: expected at least one choice for 'go', got none"):
        ToGymnasium(Stuck(), 1)


@pytest.mark.parametrize("env", [Duel(), Xor])
def test_wrapping_a_non_environment_is_refused(env: Any) -> None:
    with pytest.raises(ValueError, match="env: expected an Environment, got "):
        ToGymnasium(env, 1)


def test_masks_are_optional_in_each_step() -> None:
    """The mask of the previous step must not persist."""

    class Rests(Walk):
        def observe(self, reward: float) -> Observation:
            obs = super().observe(reward)
            moves = CategoricalActionMask(actor_types=["Thing"] * (self.clock != 1))
            obs.actions = {**obs.actions, "move": moves}
            return obs

    env = ToGymnasium(Rests(), 3, actors={"move": ["Thing"], "pick": ["Thing"]})
    env.reset(seed=1)
    acts = [head for head, on in zip(env.heads, env.reset(seed=1)[0]["acts"], strict=True) if on]
    assert {head.action for head in acts} == {"move", "pick"}
    padded, *_ = env.step(env.action_space.sample())
    assert not padded["acts"].any()


class Aims(Walk):
    """Environment with a continuous action and bounds in each frame."""

    def action_space(self) -> dict[str, ActionSpace]:
        return {"aim": ContinuousActionSpace({"x": (-1, 1), "free": (-np.inf, np.inf)})}

    def act(self, actions: Any) -> Observation:
        self.action_log = actions["aim"].values.tolist()
        return self.observe(0.0)

    def observe(self, reward: float) -> Observation:
        low, high = [[0, -np.inf]], [[0.5, np.inf]]
        mask = ContinuousActionMask(["one"], low=low, high=high)
        obs = Observation(features={"Thing": [[0.0]] * 2}, ids={"Thing": ["one", "two"]})
        return Observation(features=obs.features, ids=obs.ids, actions={"aim": mask}, reward=reward)

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Thing": Entity(["x"])})


class Mixed(Aims):
    """The same with a choice in addition."""

    def action_space(self) -> dict[str, ActionSpace]:
        return {"go": GlobalCategoricalActionSpace(["l", "r"]), **super().action_space()}

    def observe(self, reward: float) -> Observation:
        obs = super().observe(reward)
        obs.actions = {"go": GlobalCategoricalActionMask(), **obs.actions}
        return obs


def test_continuous_actions_are_one_box_in_environment_units() -> None:
    env = ToGymnasium(Aims(), 2)
    low, high = np.tile([[-1, -np.inf], [1, np.inf]], 2).astype(np.float32)
    assert env.action_space == gymnasium.spaces.Box(low, high)
    assert [tuple(number) for number in env.numbers] == [
        ("aim", "Thing", row, name) for row in range(2) for name in ("x", "free")
    ]
    padded, _ = env.reset(seed=0)
    assert padded in env.observation_space
    assert "action_mask" not in padded
    assert padded["acts"].tolist() == [1, 1, 0, 0]
    for sent, sent_numbers, illegal in (
        ([0.25, 7, 1, 3], [0.25, 7], 0),
        (np.array([-1, -8, 1, 3]), [0, -8], 1),  # a bound of the frame
    ):
        *_, info = env.step(sent)
        assert env.world.action_log == [sent_numbers]  # type: ignore[attr-defined]
        assert info["illegal_actions"] == illegal
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*A Box observation space m..imum value is -?inf")
        warnings.filterwarnings("ignore", ".*For Box action spaces, we recommend")
        warnings.filterwarnings("ignore", ".*A Box action space m..imum value is -?inf")
        check_env(ToGymnasium(Aims(), 2), skip_render_check=True)


def test_mixed_actions_are_a_dict_space() -> None:
    env = ToGymnasium(Mixed(), 1)
    assert isinstance(env.action_space, gymnasium.spaces.Dict)
    assert [*env.action_space] == ["choices", "numbers"]
    with pytest.raises(InvalidObservation, match="at most 1 entities, got 2"):
        env.reset()
    env = ToGymnasium(Mixed(), 2)
    padded, _ = env.reset(seed=0)
    assert padded["acts"].tolist() == [1, 1, 1, 0, 0]
    assert padded["action_mask"].tolist() == [1, 1]
    env.step({"choices": np.array([1]), "numbers": np.float32([0.5, 2, 0, 0])})
    assert env.world.action_log == [[0.5, 2]]  # type: ignore[attr-defined]
    for wrong in (np.array([1]), {"choices": np.array([1])}):
        with pytest.raises(ValueError, match="action: expected one of Dict"):
            env.step(wrong)


@pytest.mark.parametrize(
    "wrong", [[0.5, 2, 0], [1.5, 0, 0, 0], [np.nan] * 4, [0, np.inf, 0, 0], ["a"] * 4, None]
)
def test_nan_or_out_of_bounds_numbers_are_refused(wrong: Any) -> None:
    env = ToGymnasium(Aims(), 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action: expected one of Box"):
        env.step(wrong)


def test_number_out_of_frame_bounds_raises_with_on_illegal_error() -> None:
    env = ToGymnasium(Aims(), 2, on_illegal="error")
    env.reset(seed=0)
    message = r"action\[0\]: 'x' of 'aim' by row 0 of 'Thing': .* from 0 to 0.5 now, got -1;"
    with pytest.raises(InvalidAction, match=message):
        env.step(np.float32([-1, 0, 0, 0]))


def test_pendulum_round_trips() -> None:
    """Both adapters together preserve the action of a continuous environment."""
    env = ToGymnasium(FromGymnasium("Pendulum-v1"), {})
    raw = gymnasium.make("Pendulum-v1")
    assert env.action_space == raw.action_space
    padded, _ = env.reset(seed=7)
    value, _ = raw.reset(seed=7)
    raw.action_space.seed(0)
    for _ in range(5):
        assert padded["globals"].tolist() == value.tolist()
        action = raw.action_space.sample()
        value, expected, *_ = raw.step(action)
        padded, reward, *_ = env.step(action)
        assert reward == expected


def test_autoregressive_actions_are_part_of_the_action() -> None:
    """A choice that does not fit the parent action is replaced by the first legal one."""
    sizes, actors = {"Medic": 1, "Unit": 10}, {"command": ["Medic"], "whom": ["Medic"]}
    env = ToGymnasium(Medics(), sizes, actors)
    assert [head.action for head in env.heads] == ["command", "whom"]
    env.action_space.seed(0)
    world, counts = env.world, {0: 0, 1: 0}
    assert isinstance(world, Medics)
    padded, _ = env.reset(seed=0)
    for _ in range(60):
        command, whom = pieces(env, padded["action_mask"])
        ailments = {ailment for _, ailment in world.units}
        assert np.flatnonzero(command).tolist() == sorted(ailments)
        assert np.flatnonzero(whom).tolist() == [1 + i for i in range(len(world.units))]
        action = env.action_space.sample()
        action[0] = np.random.default_rng(0).choice(sorted(ailments))
        fits = [1 + i for i, (_, ailment) in enumerate(world.units) if ailment == action[0]]
        padded, _, terminated, truncated, info = env.step(action)
        assert world.treated + 1 == (action[1] if action[1] in fits else fits[0])
        assert info["illegal_actions"] == (action[1] not in fits)
        counts[info["illegal_actions"]] += 1
        if terminated or truncated:
            padded, _ = env.reset()
    assert all(counts.values())


class Dotted(Walk):
    """Type name with a full stop, like in a nested observation."""

    names = ("my.unit",)

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={name: Entity(["x"]) for name in self.names})

    def action_space(self) -> dict[str, ActionSpace]:
        return {"go": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        features = {name: [[0.5]] for name in self.names}
        return Observation(features=features, actions={"go": GlobalCategoricalActionMask()})


def test_keys_are_valid_module_names() -> None:
    """Stable-Baselines3 has a module for each key; PyTorch refuses names with a full stop."""
    env = ToGymnasium(Dotted(), 2)
    obs, _ = env.reset()
    torch.nn.ModuleDict({key: torch.nn.Identity() for key in env.observation_space})
    assert obs["entities/my/unit"].tolist() == [[0.5], [0.0]]
    assert obs["present/my/unit"].tolist() == [1, 0]
    assert env.columns == {"entities/my/unit": ["x"]}


def test_types_with_equal_keys_are_refused() -> None:
    class Two(Dotted):
        names = ("my.unit", "my/unit")

    with pytest.raises(ValueError, match=r"differ after replacing '.' by '/', got .*'my/unit'"):
        ToGymnasium(Two(), 2)
