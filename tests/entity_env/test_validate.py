"""Whatever an environment returns wrongly is refused with the field and the step."""

from typing import Any

import pytest

from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    InvalidObservation,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    ValidatingEnv,
)

A = {"A": [[1.0, 2.0], [3.0, 4.0]]}
NAN, INF = float("nan"), float("inf")


class Returns(Environment):
    """A good first frame, then what it is told to return."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["t"], {"A": Entity(["x", "y"]), "B": Entity(["z"])})

    def action_space(self) -> dict[str, Any]:
        return {
            "move": CategoricalActionSpace(["l", "r"]),
            "plan": GlobalCategoricalActionSpace(["u", "v", "w"]),
            "pick": SelectEntityActionSpace(),
        }

    def reset(self) -> Observation:
        return frame()

    def act(self, actions: Any) -> Any:
        return self.answer


def frame(**fields: Any) -> Observation:
    return Observation(**{"global_features": [0.0], "features": A, **fields})


def move(**fields: Any) -> Observation:
    ids = {"A": ["a", "b"]}
    return frame(ids=ids, actions={"move": CategoricalActionMask(**fields)})


def pick(**fields: Any) -> Observation:
    ids = {"A": ["a", "b"]}
    return frame(ids=ids, actions={"pick": SelectEntityActionMask(**fields)})


WRONG: dict[str, tuple[Any, str]] = {
    "no observation": (None, "expected an Observation, got NoneType"),
    "unknown type": (frame(features={"C": [[1.0]]}), r"entities: .*got \['C'\]"),
    "too few columns": (frame(features={"A": [[1.0]]}), r"'A': expected shape \(1, 2\)"),
    "rows of different lengths": (frame(features={"A": [[1.0, 2.0], [3.0]]}), "features of 'A'"),
    "text as feature": (frame(features={"A": [["x", "y"]]}), "features of 'A'"),
    "a number for rows": (frame(features={"A": 3.0}), "features of 'A'.*got 3.0"),
    "nothing for rows": (frame(features={"A": None}), "features of 'A'.*got None"),
    "nan feature": (
        frame(features={"A": [[1.0, NAN]]}),
        "'A': .*finite numbers, got y=nan in row 0",
    ),
    "infinite feature": (frame(features={"B": [[1.0], [INF]]}), "'B': .*got z=inf in row 1"),
    "missing globals": (frame(global_features=[]), r"global_features: expected shape \(1, 1\)"),
    "nan global": (frame(global_features=[NAN]), "'__global__': .*got t=nan"),
    "a number for globals": (frame(global_features=0.5), "global_features"),
    "too few ids": (frame(ids={"A": ["a"]}), r"ids.'A'.: expected 2 ids, got 1"),
    "ids of nobody": (frame(features={}, ids={"A": ["a"]}), r"ids.'A'.: expected 0 ids, got 1"),
    "ids of an unknown type": (frame(ids={"C": []}), r"ids: .*got \['C'\]"),
    "equal ids": (frame(ids={"A": ["a", "a"]}), r"ids.'A'.: expected unique ids"),
    "ids that are lists": (frame(ids={"A": [[0], ([1],)]}), r"ids.'A'.: expected hashable"),
    "unknown action": (
        frame(actions={"fly": CategoricalActionMask()}),
        r"actions: expected some of .*got \['fly'\]",
    ),
    "mask of another action": (
        frame(actions={"move": GlobalCategoricalActionMask()}),
        "actions.'move'.: expected a CategoricalActionMask, got GlobalCategoricalActionMask",
    ),
    "no mask": (frame(actions={"move": True}), "actions.'move'.: expected a Categorical.*got bool"),
    "unknown actor": (move(actor_ids=["c"]), r"actions.'move'. actors: .*got \['c'\]"),
    "an id for ids": (move(actor_ids=3), "actions.'move'. actors: expected ids among"),
    "an actor that is a list": (move(actor_ids=[["a"]]), "actions.'move'. actors: expected ids"),
    "unknown actor type": (move(actor_types=["C"]), "actions.'move'. actors: .*got 'C'"),
    "too few mask rows": (move(mask=[[True, True]]), r"'move'..mask: expected shape \(2, 2\)"),
    "uneven mask": (move(mask=[[True, True], [True]]), "actions.'move'..mask: expected booleans"),
    "nan in a mask": (move(mask=[[1, 1], [1, NAN]]), "actions.'move'..mask: expected booleans"),
    "probabilities as a mask": (move(mask=[[0.5, 1], [1, 1]]), "'move'..mask: expected booleans"),
    "unknown actee": (pick(actee_ids=["c"]), r"actions.'pick'. actees: .*got \['c'\]"),
    "unknown actee type": (pick(actee_types=["C"]), "actions.'pick'. actees: .*got 'C'"),
    "wrong pairs": (pick(mask=[[True]]), r"'pick'..mask: expected shape \(2, 2\), got \(1, 1\)"),
    "short global mask": (
        frame(actions={"plan": GlobalCategoricalActionMask([True])}),
        r"'plan'..mask: expected shape \(1, 3\)",
    ),
    "uneven global mask": (
        frame(actions={"plan": GlobalCategoricalActionMask([[True], [True, True]])}),  # type: ignore[list-item]
        "'plan'..mask: expected booleans",
    ),
    "too many flags": (frame(visible={"A": [True]}), r"visible.'A'.: expected 2 flags, got 1"),
    "flags that are text": (frame(visible={"A": ["n", "o"]}), "visible.'A'.: expected booleans"),
    "flags of an unknown type": (frame(visible={"C": []}), r"visible: .*got \['C'\]"),
    "an invisible actor": (
        frame(visible={"A": [True, False]}, actions={"move": CategoricalActionMask()}),
        "actions.'move'. actors: entity 1 of the frame .* is invisible",
    ),
    "an invisible actee": (
        frame(
            visible={"A": [True, False]},
            features={**A, "B": [[0.0]]},
            actions={"pick": SelectEntityActionMask(actor_types=["B"], actee_types=["A"])},
        ),
        "actions.'pick'. actees: entity 1 of the frame .* is invisible",
    ),
    "nan reward": (frame(reward=NAN), "reward: expected finite numbers, got reward=nan"),
    "no reward": (frame(reward=None), "reward: expected"),
    "two rewards": (frame(reward=[1.0, 2.0]), "reward: expected a number, got .1.0, 2.0."),
    "a reward in an array": (frame(reward=[1.0]), "reward: expected a number"),
    "text as metric": (frame(metrics={"win": "yes"}), "metrics.'win'.: expected a number"),
    "nan metric": (frame(metrics={"win": NAN}), "metrics.'win'.: expected finite numbers"),
    "nan where it was cut off": (
        frame(features={"A": [[NAN, 0.0]]}, truncated=True),
        "features of 'A': expected finite",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_answers_are_refused_with_field_and_step(kind: str) -> None:
    answer, message = WRONG[kind]
    env = ValidatingEnv(Returns(answer))
    env.reset()
    with pytest.raises(InvalidObservation, match=message) as caught:
        env.act({})
    assert caught.value.step == 1
    assert str(caught.value).startswith("environment Returns, episode 0, step 1: ")


RIGHT = {
    "nothing": frame(features={}),
    "no rows of no type": frame(features={"A": [], "B": []}),
    "integers": frame(features={"A": [[1, 2]]}, reward=True, metrics={"win": 1}),
    "masks of zeros and ones": move(mask=[[0, 1], [1.0, 0.0]]),
    "nobody acts": move(actor_ids=[], mask=[]),
    "nothing legal": pick(mask=[[False, False], [False, False]]),
    "hidden but not named": frame(visible={"A": [True, False]}),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_right_answers_pass_unchanged(kind: str) -> None:
    env = ValidatingEnv(Returns(RIGHT[kind]))
    env.reset()
    assert env.act({}) is RIGHT[kind]


def test_an_episode_that_begins_over_is_refused() -> None:
    env = ValidatingEnv(Returns(None))
    env.env.reset = lambda: frame(done=True)  # type: ignore[method-assign]
    with pytest.raises(
        InvalidObservation, match="episode 0, step 0: done: expected an episode that begins"
    ):
        env.reset()
