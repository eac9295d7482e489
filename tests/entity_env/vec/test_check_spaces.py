"""Invalid spaces raise the same errors in `check_env` and in training code."""

from collections.abc import Callable
from typing import Any

import pytest

from entity_env import (
    CategoricalActionSpace,
    Entity,
    Environment,
    EnvList,
    GlobalCategoricalActionSpace,
    InvalidSpace,
    Kind,
    ObsSpace,
    ParallelEnvList,
    check_env,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.spaces import GLOBAL
from rogue_net import RogueNet, RogueNetConfig
from tests.entity_env.invalid_worlds import (
    Good,
    SpaceReorders,
    action_space_is,
    obs_space_is,
    renamed,
)

NO_LABELS = "index_to_label: expected at least one choice, got none"
WRONG_SPACES: dict[str, tuple[Callable[[], Environment], str]] = {
    "an action without labels": (
        action_space_is({"move": CategoricalActionSpace([])}),
        rf"action_space: \['move'\]\.{NO_LABELS}",
    ),
    "a global action without labels": (
        action_space_is({"move": GlobalCategoricalActionSpace([])}),
        rf"action_space: \['move'\]\.{NO_LABELS}",
    ),
    "a label twice": (
        action_space_is(
            {"move": renamed(CategoricalActionSpace([]), "index_to_label", ["l", "l"])}
        ),
        "expected every name once",
    ),
    "a list for an action": (
        action_space_is({"move": ["l", "r"]}),
        r"action_space: expected names with one of",
    ),
    "numbers as labels": (
        action_space_is({"move": CategoricalActionSpace([1, 2])}),  # type: ignore[list-item]
        "expected a list of names, got",
    ),
    "a feature twice": (
        obs_space_is(ObsSpace(entities={"A": renamed(Entity([]), "features", ["x", "x"])})),
        r"obs_space: entities\['A'\].features: expected every name once",
    ),
    "text for features": (
        obs_space_is(ObsSpace(entities={"A": Entity("xy")})),  # type: ignore[arg-type]
        "expected a list of names, got 'xy'",
    ),
    "a list for an entity": (
        obs_space_is(ObsSpace(entities={"A": ["x"]})),  # type: ignore[dict-item]
        "expected names with an Entity each",
    ),
    "half a character as a type": (
        obs_space_is(ObsSpace(entities={"A\ud800": Entity(["x"])})),
        "obs_space: entities: expected text, got",
    ),
    "half a character as a feature": (
        obs_space_is(ObsSpace(entities={"A": Entity(["\udfff"])})),
        r"obs_space: entities\['A'\].features: expected text, got",
    ),
    "half a character as a label of a kind": (
        obs_space_is(ObsSpace(["x", Kind("k", ["a\ud800"])])),
        "obs_space: ObsSpace.global_features: expected text, got",
    ),
    "half a character as an action": (
        action_space_is({"\ud800": CategoricalActionSpace(["a"])}),
        "action_space: expected text, got",
    ),
    "half a character as a choice": (
        action_space_is({"move": CategoricalActionSpace(["\ud83d"])}),
        r"action_space: \['move'\].index_to_label: expected text, got",
    ),
    "the reserved name": (
        obs_space_is(renamed(ObsSpace(), "entities", {GLOBAL: Entity([])})),
        "is reserved",
    ),
}


def check_message(create_env: Callable[[], Environment]) -> str:
    (problem,) = check_env(create_env).problems
    return f"{problem.field}: {problem.text}"


@pytest.mark.parametrize("kind", WRONG_SPACES)
def test_invalid_spaces_raise_the_message_of_check_env(kind: str) -> None:
    create_env, message = WRONG_SPACES[kind]
    with pytest.raises(InvalidSpace, match=message) as error:
        EnvList(create_env, 2)
    assert check_message(create_env) in str(error.value)
    assert "\n" not in str(error.value)


def test_invalid_spaces_in_workers_raise_without_a_traceback() -> None:
    create_env, message = WRONG_SPACES["an action without labels"]
    with pytest.raises(InvalidSpace, match=message) as error:
        ParallelEnvList(create_env, 2, 1)
    assert "\n" not in str(error.value)


class Vectorised:
    """As much of a vectorised environment as is asked for its spaces."""

    def __init__(self, env: Environment) -> None:
        self.obs_space, self.action_space = env.obs_space, env.action_space


@pytest.mark.parametrize("kind", WRONG_SPACES)
def test_vectorized_environments_with_invalid_spaces_are_rejected(kind: str) -> None:
    create_env, message = WRONG_SPACES[kind]
    with pytest.raises(InvalidSpace, match=message):
        AnyVecEnv(Vectorised(create_env()))


@pytest.mark.parametrize("kind", ["an action without labels", "a global action without labels"])
def test_networks_for_actions_without_labels_are_rejected(kind: str) -> None:
    env = WRONG_SPACES[kind][0]()
    with pytest.raises(InvalidSpace, match=NO_LABELS):
        RogueNet(RogueNetConfig(d_model=8, n_head=1), env.obs_space(), env.action_space())


class Alternates(Good):
    """Every second instance has another feature."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Alternates.made += 1
        self.number = Alternates.made

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"A": Entity([f"x{self.number % 2}"])})


@pytest.mark.parametrize("create_env", [Alternates, SpaceReorders])
def test_instances_with_different_spaces_are_rejected(create_env: Any) -> None:
    with pytest.raises(InvalidSpace, match="expected the same space every time, got another one"):
        EnvList(create_env, 3)
