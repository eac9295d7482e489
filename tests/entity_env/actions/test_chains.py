"""Batches of autoregressive actions: legal choices, active actors, and errors."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import (
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    EnvList,
    GlobalCategoricalActionSpace,
    InvalidAction,
    InvalidObservation,
    InvalidSpace,
    Observation,
    ObsSpace,
    Ragged,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    VecObs,
    batch_obs,
    check_env,
)
from entity_env.actions.chains import check_parent_links
from entity_env.serialization.messages import pack, unpack
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import unbatch_actions
from entity_env.vec.validate import check_spaces
from tests.enn_trainer.chains_world import Camp
from tests.entity_env.builders import assert_same

SPACE = ObsSpace(entities={"Unit": Entity(["x"]), "Aim": Entity(["x"])})
LABELS = ["a", "b", "c"]


@st.composite
def frames(draw: st.DrawFn) -> tuple[dict[str, Any], list[Observation]]:
    """Chains of three parts: labels, then labels or an entity, then labels, entities or numbers."""
    when = draw(st.lists(st.sampled_from(LABELS), unique=True, max_size=3))
    second: Any = draw(
        st.sampled_from(
            [
                CategoricalActionSpace(LABELS, after="first", when=when),
                SelectEntityActionSpace(after="first", when=when),
            ]
        )
    )
    on = draw(st.lists(st.sampled_from(LABELS), unique=True, max_size=3)) if second.labels else []
    third: Any = draw(
        st.sampled_from(
            [
                CategoricalActionSpace(["p", "q"], after="second", when=on),
                SelectEntityActionSpace(after="second", when=on),
                ContinuousActionSpace({"n": (0, 1)}, after="second", when=on),
            ]
        )
    )
    spaces = {"third": third, "first": CategoricalActionSpace(LABELS), "second": second}
    return spaces, [draw(one_frame(spaces)) for _ in range(draw(st.integers(1, 3)))]


@st.composite
def one_frame(draw: st.DrawFn, spaces: dict[str, Any]) -> Observation:
    units, aims = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    ids = {"Unit": [f"u{k}" for k in range(units)], "Aim": [f"a{k}" for k in range(aims)]}
    actions: dict[str, Any] = {}
    named = ids["Unit"]
    for name in ("first", "second", "third"):
        space = spaces[name]
        if draw(st.integers(0, 5)) == 0:
            break  # from here on nothing is offered
        if name != "first":
            named = [one for one in named if draw(st.integers(0, 3)) > 0]
        options = aims if isinstance(space, SelectEntityActionSpace) else len(space.names)
        shape = [len(named), options]
        if len(space.when) > 1 and draw(st.booleans()):
            shape.insert(1, len(space.when))
        size = int(np.prod(shape))
        mask = None
        if draw(st.booleans()):
            mask = np.array(
                draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_
            ).reshape(shape)
        if isinstance(space, CategoricalActionSpace):
            actions[name] = CategoricalActionMask(actor_ids=[*named], mask=mask)
        elif isinstance(space, SelectEntityActionSpace):
            actions[name] = SelectEntityActionMask(
                actor_ids=[*named], actee_types=["Aim"], mask=mask
            )
        else:
            actions[name] = ContinuousActionMask(actor_ids=[*named])
    features = {name: [[0.0]] * len(one) for name, one in ids.items()}
    return Observation(features=features, ids=ids, actions=actions)


def outcomes(spaces: dict[str, Any], frame: Observation, unit: str, name: str, before: Any) -> Any:
    """All ways in which an actor may go on from an action, by hand."""
    space, given = spaces[name], frame.actions.get(name)
    if given is None or unit not in given.actor_ids:
        return []
    row = [*given.actor_ids].index(unit)
    choices: Any = space.labels
    if isinstance(space, SelectEntityActionSpace):
        choices = frame.ids["Aim"]
    if space.components:
        choices, allowed = ["number"], [True]
    else:
        allowed = [True] * len(choices)
        if given.mask is not None:
            of_row = given.mask[row]
            allowed = of_row[space.when.index(before)] if of_row.ndim == 2 else of_row
    following = {"first": "second", "second": "third"}.get(name)
    found = []
    for choice, is_allowed in zip(choices, allowed, strict=True):
        if not is_allowed:
            continue
        child = spaces.get(following) if following else None
        if child is None or (child.when and choice not in child.when):
            found.append([(name, choice)])
        else:
            more = outcomes(spaces, frame, unit, following, choice)  # type: ignore[arg-type]
            found += [[(name, choice), *rest] for rest in more]
    return found


def num_actors(first: list[bool]) -> list[int]:
    """Return the number of actors of three dependent actions, by the mask of the first.

    Of the choices of the first action `a` and `b`, `b` alone leads to the third.
    """
    spaces = {
        "first": CategoricalActionSpace(LABELS),
        "second": CategoricalActionSpace(LABELS, after="first", when=["a", "b"]),
        "third": CategoricalActionSpace(["p", "q"], after="second", when=["b"]),
    }
    of_second = [[[False, False, True], [False, True, False]]]
    actions: dict[str, Any] = {
        "first": CategoricalActionMask(actor_ids=["u0"], mask=np.array([first])),
        "second": CategoricalActionMask(actor_ids=["u0"], mask=np.array(of_second)),
        "third": CategoricalActionMask(actor_ids=["u0"]),
    }
    frame = Observation(features={"Unit": [[0.0]]}, ids={"Unit": ["u0"]}, actions=actions)
    masks = batch_obs([frame], SPACE, spaces).action_masks
    return [masks[name].actors.items() for name in spaces]


def test_action_after_a_masked_choice_has_no_actors() -> None:
    assert num_actors([True, False, False]) == [1, 1, 0]


def test_action_is_available_if_any_allowed_choice_leads_to_it() -> None:
    assert num_actors([True, True, False]) == [1, 1, 1]


@settings(max_examples=300)
@given(frames(), st.integers(0, 2**32 - 1))
def test_legal_choices_have_a_legal_continuation(
    world: tuple[dict[str, Any], list[Observation]], seed: int
) -> None:
    spaces, shown = world
    batch = batch_obs(shown, SPACE, spaces)
    for i, frame in enumerate(shown):
        units = frame.ids["Unit"]
        possible = {unit: outcomes(spaces, frame, unit, "first", None) for unit in units}
        of_frame = {name: mask.take(np.array([i])) for name, mask in batch.action_masks.items()}
        first = of_frame["first"]
        acting = [units[k] for k in first.actors.values]
        assert acting == [unit for unit in frame.ids["Unit"] if possible[unit]]
        flags = first.full_mask((3,)).values
        for unit, row in zip(acting, flags, strict=True):
            legal = {path[0][1] for path in possible[unit]}
            assert {LABELS[k] for k in np.flatnonzero(row)} == legal
        for name in ("second", "third"):
            reach = {u for u in units if any(name in dict(path) for path in possible[u])}
            assert {units[k] for k in of_frame[name].actors.values} == reach
    # Random play only ever takes one of these ways.
    choices = random_choices(batch, spaces, np.random.default_rng(seed))
    taken = unbatch_actions(choices, batch, shown, SPACE, spaces)
    for frame, actions in zip(shown, taken, strict=True):
        paths: dict[str, list[Any]] = {}
        for name in ("first", "second", "third"):
            if name not in actions:
                continue
            action: Any = actions[name]
            chosen = ["number"] * len(action.actors) if spaces[name].components else action.chosen
            for actor, choice in zip(action.actors, chosen, strict=True):
                paths.setdefault(actor, []).append((name, choice))
        for actor, path in paths.items():
            assert path in outcomes(spaces, frame, actor, "first", None)


@given(frames())
def test_autoregressive_frames_are_concatenated_selected_and_sent(
    world: tuple[dict[str, Any], list[Observation]],
) -> None:
    spaces, shown = world
    whole = batch_obs(shown, SPACE, spaces)
    pieces = [batch_obs([frame], SPACE, spaces) for frame in shown]
    joined = VecObs.cat(pieces)
    everything = np.arange(len(shown))
    for name, mask in whole.action_masks.items():
        columns = spaces[name].mask_columns
        other = joined.action_masks[name]
        assert vars(mask.take(everything)).keys() == vars(other).keys()
        np.testing.assert_array_equal(mask.actors.values, other.actors.values)
        assert repr(mask.after) == repr(other.after)
        if mask.bounds is None:
            np.testing.assert_array_equal(
                mask.full_mask(columns).values, other.full_mask(columns).values
            )
    assert_same(unpack(pack(whole)), whole)
    check_parent_links(whole.action_masks, spaces)  # what is linked stays as it is
    check_parent_links(joined.action_masks, spaces)


def test_autoregressive_environment_conforms_in_workers() -> None:
    assert not check_env(Camp).problems


def test_restored_environments_continue_with_autoregressive_actions() -> None:
    envs, others = EnvList(Camp, 4), EnvList(Camp, 4)
    envs.seed(1)
    obs = envs.reset(envs.obs_space())
    rng = np.random.default_rng(0)
    for _ in range(4):
        obs = envs.act(random_choices(obs, envs.action_space(), rng), envs.obs_space())
    again = others.set_state(envs.get_state(), others.obs_space())  # type: ignore[arg-type]
    assert again is not None
    choices = random_choices(obs, envs.action_space(), rng)
    assert_same(envs.act(choices, envs.obs_space()), others.act(choices, others.obs_space()))


# -- Errors ----------------------------------------------------------------------------------------

DO = CategoricalActionSpace(["rest", "heal"])


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"x": CategoricalActionSpace(["a"], after="y")}, "after: expected one of"),
        ({"x": CategoricalActionSpace(["a"], after="x")}, "after: expected one of"),
        ({"do": DO, "x": CategoricalActionSpace(["a"], when=["heal"])}, "when: expected none"),
        (
            {"n": ContinuousActionSpace({"a": (0, 1)}), "x": SelectEntityActionSpace(after="n")},
            "expected a discrete action, got the continuous action 'n'",
        ),
        (
            {"do": DO, "x": SelectEntityActionSpace(after="do", when=["heel"])},
            r"when: expected labels among \['rest', 'heal'\], got \['heel'\]",
        ),
        (
            {"a": SelectEntityActionSpace(), "x": SelectEntityActionSpace(after="a", when=["b"])},
            r"when: expected none, got \['b'\]",
        ),
        (
            {
                "a": SelectEntityActionSpace(after="b"),
                "b": SelectEntityActionSpace(after="a"),
            },
            "cycle",
        ),
        (
            {"do": DO, "x": GlobalCategoricalActionSpace(["a"], after="do")},
            "expected a global action",
        ),
        (
            {"do": DO, "x": SelectEntityActionSpace(after="do", when=["heal", "heal"])},
            "each label once",
        ),
    ],
)
def test_invalid_parent_actions_raise(spaces: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpace, match=message):
        check_spaces(SPACE, spaces)


def test_actor_missing_in_the_parent_action_raises() -> None:
    spaces = {"do": DO, "x": CategoricalActionSpace(["a"], after="do", when=["heal"])}
    frame = Observation(
        features={"Unit": [[0.0], [1.0]]},
        ids={"Unit": ["u", "v"]},
        actions={
            "do": CategoricalActionMask(actor_ids=["u"]),
            "x": CategoricalActionMask(actor_ids=["u", "v"]),
        },
    )
    message = r"actions\['x'\] actors: expected actors of 'do', which comes before"
    with pytest.raises(InvalidObservation, match=message):
        batch_obs([frame], SPACE, spaces)


def test_choices_of_inactive_actors_raise() -> None:
    envs = EnvList(Camp, 3)
    envs.seed(0)
    obs = envs.reset(envs.obs_space())
    good = random_choices(obs, envs.action_space(), np.random.default_rng(1))
    rest = good["do"].values * 0
    lengths = good["do"].lengths
    choices = good | {"do": Ragged(rest, lengths)}
    with pytest.raises(InvalidAction, match=r"actions\['whom'\]: expected -1 in environment"):
        envs.act(choices, envs.obs_space())
    whom, force, shout = (good[name] for name in ("whom", "force", "shout"))
    none = {
        "whom": Ragged(np.full_like(whom.values, -1), whom.lengths),
        "shout": Ragged(np.full_like(shout.values, -1), shout.lengths),
        "force": Ragged(np.full_like(force.values, 0.5), force.lengths),
    }
    with pytest.raises(InvalidAction, match=r"actions\['force'\]: expected NaN in environment"):
        envs.act(choices | none, envs.obs_space())
    none["force"] = Ragged(np.full_like(force.values, np.nan), force.lengths)
    envs.act(choices | none, envs.obs_space())


def test_mask_shape_error_names_both_valid_shapes() -> None:
    spaces = {"do": DO, "x": CategoricalActionSpace(["a"], after="do", when=["heal", "rest"])}
    frame = Observation(
        features={"Unit": [[0.0]]},
        actions={
            "do": CategoricalActionMask(actor_types=["Unit"]),
            "x": CategoricalActionMask(actor_types=["Unit"], mask=[[[True]]]),
        },
    )
    with pytest.raises(InvalidObservation, match=r"shape \(1, 1\) or \(1, 2, 1\)"):
        batch_obs([frame], SPACE, spaces)


def test_actions_are_encoded_parents_first() -> None:
    spaces: dict[str, Any] = {
        "x": CategoricalActionSpace(["a", "b"], after="do", when=["heal"]),
        "do": DO,
    }
    for do, x in product(["rest", "heal"], ["a", "b"]):
        frame = Observation(
            features={"Unit": [[0.0]]},
            ids={"Unit": ["u"]},
            actions={
                "do": CategoricalActionMask(actor_types=["Unit"]),
                "x": CategoricalActionMask(actor_types=["Unit"]),
            },
        )
        batch = batch_obs([frame], SPACE, spaces)
        taken = do == "heal"
        choices = {
            "do": Ragged(np.array([DO.labels.index(do)]), np.array([1])),
            "x": Ragged(np.array(["ab".index(x) if taken else -1]), np.array([1])),
        }
        [actions] = unbatch_actions(choices, batch, [frame], SPACE, spaces)
        found: Any = actions["x"]
        assert isinstance(found, CategoricalAction)
        assert found.labels == ([x] if taken else [])
