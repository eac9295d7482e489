"""Validation of observations: errors name the field and the step."""

from typing import Any

import numpy as np
import pytest

from entity_env import (
    CategoricalActionMask,
    EnvList,
    GlobalCategoricalActionMask,
    InvalidObservation,
    Observation,
    SelectEntityActionMask,
    ValidatingEnv,
)
from entity_env.testing.random_play import random_choices
from tests.entity_env.invalid_worlds import RIGHT, A, Returns, frame, move, pick

NAN, INF = float("nan"), float("inf")


class Unreadable:
    """An array-like that NumPy cannot convert, as a tensor that needs gradients."""

    def __array__(self, *_: object, **__: object) -> None:
        raise RuntimeError("detach it first")


def with_flag(name: str, value: Any) -> Observation:
    """A flag that is set after the constructor has looked at it."""
    obs = frame()
    setattr(obs, name, value)
    return obs


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
    "an actor that is an array": (
        move(actor_ids=[np.array(["a"])]),
        "'move'. actors: expected ids",
    ),
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
            ids={"A": ["a", "b"]},
            actions={"pick": SelectEntityActionMask(actor_types=["B"], actee_ids=["b"])},
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
    "complex features": (
        frame(features={"A": np.array([[1 + 2j, 0]])}),
        r"features of 'A': expected 1 rows of 2 numbers, got .*complex",
    ),
    "complex numbers in rows": (
        frame(features={"A": [[np.complex64(1 + 2j), 0.0]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*complex",
    ),
    "numbers written as text": (
        frame(features={"A": [["1.5", "2"]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*text",
    ),
    "an array of text": (
        frame(features={"A": np.array([["1.5", "2"]])}),
        "features of 'A': expected 1 rows of 2 numbers, got .*text",
    ),
    "dates": (
        frame(features={"A": np.array([["2020-01-01", "2021-01-01"]], dtype="M8[D]")}),
        "features of 'A': expected 1 rows of 2 numbers, got .*dates",
    ),
    "lengths of time in rows": (
        frame(features={"A": [[np.timedelta64(3, "s"), 1.0]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*timedelta64",
    ),
    "a masked array": (
        frame(features={"A": np.ma.array([[1.0, 2.0]], mask=[[True, False]])}),
        "features of 'A': expected 1 rows of 2 numbers, got .*masked array",
    ),
    "masked rows": (
        frame(features={"A": [np.ma.array([1.0, 2.0], mask=[True, False])]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*masked array",
    ),
    "a feature that is none": (
        frame(features={"A": [[None, 1.0]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*NoneType",
    ),
    "an integer beyond all floats": (
        frame(features={"A": [[10**400, 1]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*too large",
    ),
    "an integer too long to print": (
        frame(features={"A": [[10**5000, 1]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*too large",
    ),
    "masked numbers in rows": (
        frame(features={"A": [[np.ma.array(0.1, mask=True), 1.0]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*masked array",
    ),
    "masked integers in rows": (
        frame(features={"A": [[np.ma.array(5, mask=True), np.ma.array(7, mask=True)]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*masked array",
    ),
    "masked arrays in rows": (
        frame(features={"A": [[np.ma.array([0.1], mask=[True]), [1.0]]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*masked array",
    ),
    "masked globals": (
        frame(global_features=[np.ma.masked]),
        "global_features: expected .*masked array",
    ),
    "rows of rows": (
        frame(features={"A": [[[1.0], [2.0]]]}),
        r"features of 'A': expected shape \(1, 2\), got \(1, 2, 1\)",
    ),
    "an array that cannot be read": (
        frame(features={"A": [[Unreadable(), 1.0]]}),
        "features of 'A': expected 1 rows of 2 numbers, got .*Unreadable",
    ),
    "complex globals": (frame(global_features=[1j]), "global_features: expected .*complex"),
    "text that looks like a global": (frame(global_features=["1"]), "global_features: .*text"),
    "masked flags in rows": (
        move(mask=[[np.ma.array(True, mask=True), False], [True, True]]),
        r"actions.'move'..mask: expected booleans, got .*masked",
    ),
    "a complex reward": (frame(reward=np.complex64(1 + 2j)), "reward: expected a number, got"),
    "a complex reward of Python": (frame(reward=1 + 2j), "reward: expected a number, got"),
    "text that looks like a reward": (frame(reward="1.5"), "reward: expected a number, got '1.5'"),
    "bytes that look like a reward": (
        frame(reward=b"1.5"),
        "reward: expected a number, got b'1.5'",
    ),
    "a date as reward": (frame(reward=np.datetime64("2020")), "reward: expected a number, got"),
    "a length of time as reward": (
        frame(reward=np.timedelta64(3, "s")),
        "reward: expected a number",
    ),
    "a masked reward": (frame(reward=np.ma.masked), "reward: expected a number, got masked"),
    "a masked array as reward": (
        frame(reward=np.ma.array(1.0, mask=True)),
        "reward: expected a number, got masked",
    ),
    "a reward beyond all floats": (frame(reward=10**400), "reward: expected a number, got 1000"),
    "a reward too long to print": (frame(reward=10**5000), "reward: expected a number, got an int"),
    "text that looks like a metric": (frame(metrics={"win": "1"}), "metrics.'win'.: expected a"),
    "a metric beyond all floats": (frame(metrics={"win": 10**400}), "metrics.'win'.: expected a"),
    "a masked mask": (
        move(mask=np.ma.array([[True, True]] * 2, mask=[[True, False]] * 2)),
        "'move'..mask: expected booleans",
    ),
    "a complex mask": (move(mask=np.ones((2, 2), complex)), "'move'..mask: expected booleans"),
    "masked visibility": (
        frame(visible={"A": np.ma.array([True, True], mask=[True, False])}),
        "visible.'A'.: expected booleans",
    ),
    "text as an end": (with_flag("terminated", "False"), "terminated: expected True or False"),
    "nan as an end": (with_flag("truncated", NAN), "truncated: expected True or False"),
    "equal ids of two types": (
        frame(features={**A, "B": [[0.0]]}, ids={"A": ["a", "b"], "B": ["b"]}),
        r"ids.'B'.: expected unique ids",
    ),
    "an id like that of a row": (
        frame(features={**A, "B": [[0.0]]}, ids={"A": ["a", ("B", 0)]}),
        r"ids.'A'.: expected other ids than .*'B', 0",
    ),
    "ids that are a number": (
        frame(ids={"A": 2}),
        r"ids.'A'.: expected a sequence of 2 ids, got 2",
    ),
    "an actor named twice": (
        move(actor_ids=["a", "a"]),
        "'move'. actors: expected each entity once",
    ),
    "a type named twice": (move(actor_types=["A", "A"]), "'move'. actors: expected each type once"),
    "an actee named twice": (
        pick(actee_ids=["a", "a"]),
        "'pick'. actees: expected each entity once",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_errors_for_invalid_observations_name_field_and_step(kind: str) -> None:
    answer, message = WRONG[kind]
    env = ValidatingEnv(Returns(answer))
    env.reset()
    with pytest.raises(InvalidObservation, match=message) as caught:
        env.act({})
    assert caught.value.step == 1
    assert str(caught.value).startswith("environment Returns, episode 0, step 1: ")


@pytest.mark.parametrize("kind", [kind for kind in WRONG if kind != "nan metric"])
def test_invalid_observations_are_rejected_in_training(kind: str) -> None:
    """Metrics that are not finite count as missing instead, if no setting uses them."""
    answer, message = WRONG[kind]
    message = message.replace("NoneType", "None")
    envs = EnvList(lambda: Returns(answer), 1, validate=True)
    obs = envs.reset(envs.obs_space())
    choices = random_choices(obs, envs.action_space(), np.random.default_rng(0))
    with pytest.raises(InvalidObservation, match=message) as caught:
        envs.act(choices, envs.obs_space())
    assert (caught.value.env_index, caught.value.step) == (0, 1)


@pytest.mark.parametrize("flag", ["done", "terminated", "truncated"])
@pytest.mark.parametrize(
    "value", ["False", "yes", b"", [False], [], {}, NAN, 0.5, 1j, np.zeros(2), np.ma.masked]
)
def test_ambiguous_end_flags_are_rejected(flag: str, value: Any) -> None:
    with pytest.raises(InvalidObservation, match=f"{flag}: expected True or False, got"):
        frame(**{flag: value})


@pytest.mark.parametrize("flag", ["done", "terminated", "truncated"])
@pytest.mark.parametrize("value", [1, 0, 1.0, 3, np.True_, np.int8(0), np.array(True), np.zeros(1)])
def test_numbers_and_arrays_of_size_one_are_accepted_as_end_flags(flag: str, value: Any) -> None:
    assert frame(**{flag: value}).done is bool(value)


@pytest.mark.parametrize("kind", RIGHT)
def test_valid_observations_pass_unchanged(kind: str) -> None:
    env = ValidatingEnv(Returns(RIGHT[kind]))
    env.reset()
    assert env.act({}) is RIGHT[kind]


def test_done_in_the_first_observation_is_rejected() -> None:
    env = ValidatingEnv(Returns(None))
    env.env.reset = lambda: frame(done=True)  # type: ignore[method-assign]
    with pytest.raises(
        InvalidObservation, match="episode 0, step 0: done: expected False in the first"
    ):
        env.reset()
