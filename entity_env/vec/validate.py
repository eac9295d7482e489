"""Checks of spaces, and of observations against their spaces."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.actions.chains import after_of, dependency_problems
from entity_env.arrays import IntArray
from entity_env.environment import Environment, Observation
from entity_env.errors import InvalidObservation, InvalidSpace, short_repr, unexpected
from entity_env.kinds import Kind, first_unknown, label_dtype
from entity_env.names import is_text
from entity_env.observation import GLOBAL, Entity, ObsSpace
from entity_env.ragged import Ragged
from entity_env.spaces import ACTION_SPACES, ActionName, ActionSpace, ActionSpaces, num_columns
from entity_env.vec.batching import batch_obs, located_errors_of_final
from entity_env.vec.row_checks import check_rows, expect
from entity_env.vec.vec_obs import VecObs
from entity_env.view import View

SpaceProblem: TypeAlias = tuple[str, str, str]
"""The space (`obs_space` or `action_space`), expected and actual value, and the remedy."""


def space_problems(obs_space: Any, action_space: Any) -> list[SpaceProblem]:
    """Return all problems of the spaces of an environment."""
    return [
        *(("obs_space", *problem) for problem in _obs_space_problems(obs_space)),
        *(("action_space", *problem) for problem in _action_space_problems(action_space)),
    ]


def changed_spaces(before: tuple[Any, Any], now: tuple[Any, Any], when: str) -> list[SpaceProblem]:
    """Return a problem for each space that differs, even if only in the order of its types.

    Args:
        before: the observation space and the action space.
        now: the spaces at another time, or of another instance.
        when: completes "got another one ...", in messages.
    """
    expected = f"expected the same space every time, got another one {when}"
    fix = "let it depend only on the arguments of the constructor"
    return [
        (field, f"{expected}: {a} became {b}", fix)
        for field, a, b in zip(("obs_space", "action_space"), before, now, strict=True)
        if a is not b and repr(a) != repr(b)  # unlike ==, the order of the types counts
    ]


def check_spaces(obs_space: Any, action_space: Any) -> None:
    """Raise if the spaces of an environment are invalid.

    Raises:
        InvalidSpace: lists every problem in one line.
    """
    _raise_problems(space_problems(obs_space, action_space))


def check_same_spaces(before: tuple[Any, Any], now: tuple[Any, Any], when: str) -> None:
    """Raise if spaces differ; for the arguments see `changed_spaces`.

    Raises:
        InvalidSpace: contains both spaces.
    """
    _raise_problems(changed_spaces(before, now, when))


def _raise_problems(problems: list[SpaceProblem]) -> None:
    if problems:
        raise InvalidSpace(". ".join(f"{field}: {text}; {fix}" for field, text, fix in problems))


def _obs_space_problems(space: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(space, ObsSpace) or not isinstance(space.entities, Mapping):
        yield f"expected an ObsSpace with a dictionary of entities, got {space!r}", "return one"
        return
    blocks = [("ObsSpace.global_features", space.global_features, space.global_kinds)]
    for name, entity in space.entities.items():
        if not isinstance(name, str) or not isinstance(entity, Entity):
            got = f"{name!r}: {entity!r}"
            yield f"entities: expected names with an Entity each, got {got}", "use Entity"
        else:
            blocks.append((f"entities[{name!r}].features", entity.features, entity.kinds))
            yield from _text_problems("entities", [name])
    for what, names, kinds in blocks:
        if not all(isinstance(kind, Kind) for kind in kinds):
            yield f"{what}: expected objects of Kind or Flag, got {kinds!r}", "use Kind or Flag"
        else:
            all_names = [*names, *(kind.name for kind in kinds)] if kinds else names
            yield from _name_problems(what, all_names)
            yield from _text_problems(what, [label for kind in kinds for label in kind.labels])
    if GLOBAL in space.entities:
        yield f"entities: the name {GLOBAL!r} is reserved", "choose another name"


def _action_space_problems(space: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(space, Mapping):
        yield f"expected a dictionary from names to spaces, got {space!r}", "return one"
        return
    for name, action in space.items():
        if type(action) not in ACTION_SPACES.values() or not isinstance(name, str):
            classes, got = [*ACTION_SPACES], f"{name!r}: {action!r}"
            yield f"expected names with one of {classes} each, got {got}", "use these"
            continue
        yield from _text_problems("", [name])
        if "index_to_label" in vars(action):
            what, labels = f"[{name!r}].index_to_label", vars(action)["index_to_label"]
            yield from _name_problems(what, labels)
            if len(labels) == 0:
                yield f"{what}: expected at least one choice, got none", "name the choices"
    if all(type(action) in ACTION_SPACES.values() for action in space.values()):
        yield from dependency_problems(space)


def _name_problems(what: str, names: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        yield f"{what}: expected a list of names, got {names!r}", "give a list of strings"
    elif len(set(names)) < len(names):
        yield f"{what}: expected every name once, got {names!r}", "rename one of them"
    else:
        yield from _text_problems(what, names)


def _text_problems(what: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    if broken := [name for name in names if not is_text(name)]:
        expected = f"{what}: expected text" if what else "expected text"
        fix = "decode names with errors='replace', or rename them"
        yield f"{expected}, got {broken!r}, half of a surrogate pair", fix


def check_finite_batch(batch: VecObs, obs_space: ObsSpace) -> None:
    """Raise if a feature or reward of a batch is not a finite number.

    Metrics are checked where they are used, see `FiniteMetrics`.

    Raises:
        InvalidObservation: names the environment, field, feature and value.
    """
    for name, rows in batch.features.items():
        names = obs_space.global_features if name == GLOBAL else obs_space.entities[name].features
        _check_finite(rows, f"features of {name!r}", names)
    if batch.final is not None:
        with located_errors_of_final(batch.truncated):
            check_finite_batch(batch.final, obs_space)
    one_each = np.ones(len(batch), dtype=np.int64)
    _check_finite(Ragged(batch.reward[:, None], one_each), "reward", ["reward"])


def check_finite_metrics(batch: VecObs) -> None:
    """Raise if a metric of a batch is not a finite number.

    Raises:
        InvalidObservation: names the environment, metric and value.
    """
    for name, values in batch.env_metrics.items():
        _check_finite(Ragged(values.as_array(), values.lengths), f"metrics[{name!r}]", [name])


def _check_finite(rows: Ragged, what: str, names: list[str]) -> None:
    if np.isfinite(rows.values).all():
        return
    row, column = np.argwhere(~np.isfinite(rows.values))[0]
    frame = int(np.searchsorted(np.cumsum(rows.lengths), row, side="right"))
    entity = int(row - rows.starts[frame])
    got = f"{names[column]}={rows.values[row, column]} in row {entity}"
    raise unexpected(frame, what, "finite numbers", got)


def check_features(
    frames: VecObs,
    obs_space: ObsSpace,
    action_space: ActionSpaces,
    where: str = "",
    exact: bool = False,
) -> IntArray:
    """Raise if features or visibility of frames from a file do not fit the spaces.

    Args:
        frames: B frames.
        obs_space: entity types and features of the frames.
        action_space: their actions.
        where: the beginning of messages.
        exact: require the dtypes of new frames; otherwise numbers of any size are accepted.

    Returns:
        (B,) int64, the number of entities of each frame.

    Raises:
        InvalidObservation: with the field and the expected value.
    """
    columns = num_columns(obs_space, action_space)
    same = frames.features.keys() == columns.keys()
    expect(same, f"{where}features", short_repr([*columns]), [*frames.features])
    num_entities = np.zeros(len(frames), dtype=np.int64)
    for name, rows in frames.features.items():
        what = f"{where}features[{name!r}]"
        check_rows(rows, what, np.float32, (columns[name],), len(frames), exact)
        if name != GLOBAL:
            num_entities += rows.lengths
        elif exact:
            expect((rows.lengths == 1).all(), what, "one row each", rows.lengths)
    for name, flags in frames.visible.items():
        what = f"{where}visible[{name!r}]"
        expect(name in columns, what, f"types among {[*columns]}", name)
        check_rows(flags, what, np.bool_, (), len(frames), exact)
        same = np.array_equal(flags.lengths, frames.features[name].lengths)
        expect(same, what, "one for each entity", flags.lengths)
    check_kinds(frames, obs_space, where, exact=True)
    check_identity(frames, where)
    return num_entities


def check_kinds(frames: VecObs, obs_space: ObsSpace, where: str = "", exact: bool = False) -> None:
    """Raise if the categorical features of frames do not fit their space.

    Args:
        frames: B frames with valid features.
        obs_space: their categorical features.
        where: the beginning of messages.
        exact: require the dtype of new frames; otherwise any integers are accepted.

    Raises:
        InvalidObservation: names the field and, for an index, its environment and entity.
    """
    kinds = obs_space.kinds
    same = frames.kinds.keys() == kinds.keys()
    expect(same, f"{where}kinds", f"labels of {[*kinds]}", [*frames.kinds])
    for name, type_kinds in kinds.items():
        rows, what = frames.kinds[name], f"{where}kinds[{name!r}]"
        dtype = label_dtype(type_kinds)
        if type(rows) is Ragged and not exact and rows.values.dtype.kind in "iu":
            dtype = rows.values.dtype
        check_rows(rows, what, dtype, (len(type_kinds),), len(frames), exact=True)
        same = np.array_equal(rows.lengths, frames.features[name].lengths)
        expect(same, what, "one row for each entity", rows.lengths)
        violation = first_unknown(rows.values, type_kinds)
        if violation is not None:
            row, column = violation
            frame = int(np.searchsorted(np.cumsum(rows.lengths), row, side="right"))
            kind, value = type_kinds[column], rows.values[row, column]
            expected = f"{kind.name} from 0 to {len(kind.labels) - 1}"
            got = f"{value} in row {row - rows.starts[frame]}"
            raise unexpected(frame, what, expected, got)


def check_identity(frames: VecObs, where: str = "") -> None:
    """Raise unless, in each frame, `identity` has a number for every entity of a type, or for none.

    Args:
        frames: B frames with valid features.
        where: the beginning of messages.

    Raises:
        InvalidObservation: with the field and the expected value.
    """
    for name, numbers in frames.identity.items():
        what = f"{where}identity[{name!r}]"
        types = [one for one in frames.features if one != GLOBAL]
        expect(name in types, what, f"types among {types}", name)
        check_rows(numbers, what, np.int64, (), len(frames), exact=True)
        fits = (numbers.lengths == 0) | (numbers.lengths == frames.features[name].lengths)
        expect(fits.all(), what, "one for each entity, or none", numbers.lengths)
        expect((numbers.values >= 0).all(), what, "numbers from 0", numbers.values)
        frame = np.repeat(np.arange(len(frames)), numbers.lengths)
        order = np.lexsort((numbers.values, frame))
        is_repeated = (np.diff(numbers.values[order]) == 0) & (np.diff(frame[order]) == 0)
        expect(not is_repeated.any(), what, "each number once in a frame", numbers.values)


def check_masks(
    frames: VecObs,
    action_space: ActionSpaces,
    num_entities: IntArray,
    where: str = "",
    exact: bool = False,
) -> None:
    """Raise if the masks of frames from a file do not fit the actions.

    Args:
        frames: B frames.
        action_space: their actions.
        num_entities: (B,) int64, the number of entities of each frame.
        where: the beginning of messages.
        exact: as in `check_features`; also every actor has a legal choice, and the global actor is
            behind all entities.

    Raises:
        InvalidObservation: with the field and the expected value.
    """
    same = frames.action_masks.keys() == action_space.keys()
    expect(same, f"{where}actions", short_repr([*action_space]), [*frames.action_masks])
    for name, space in action_space.items():
        mask, what, kind = frames.action_masks[name], f"{where}actions[{name!r}]", type(space)
        expected = f"a {kind.batch_mask_type.__name__}"
        expect(type(mask) is kind.batch_mask_type, what, expected, type(mask).__name__)
        after, got = after_of(action_space, name, mask.actors), mask.after
        same = (after is None) == (got is None)
        if after is not None and got is not None:
            same = (after.action, after.when) == (got.action, got.when)
        expected = "none" if after is None else f"{after.action!r} with labels {after.when}"
        expect(same, f"{what}.after", expected, "none" if got is None else repr(got.action))
        # Positions of entities in their frame; the position of the global actor is last.
        for field, rows in (("actors", mask.actors), ("actees", mask.actees)):
            if rows is None:
                continue
            at, is_global = f"{what}.{field}", space.is_global and field == "actors"
            check_rows(rows, at, np.int64, (), len(frames), exact)
            first = np.repeat(num_entities, rows.lengths) if is_global and exact else 0
            end = np.repeat(num_entities + is_global, rows.lengths)
            inside = (rows.values >= first) & (rows.values < end)
            expect(inside.all(), at, "positions in the frame", rows.values[~inside])
        space.check_mask(mask, what, exact)


def validate_observation(obs: Observation, obs_space: ObsSpace, action_space: ActionSpaces) -> None:
    """Raise if an observation does not fit the spaces.

    Raises:
        InvalidObservation: names the field, its expected and its actual value.
    """
    if not isinstance(obs, Observation):
        raise InvalidObservation(f"expected an Observation, got {type(obs).__name__}")
    batch = batch_obs([obs], obs_space, action_space, strict=True)
    check_finite_batch(batch, obs_space)
    check_finite_metrics(batch)


class ValidatingEnv(Environment):
    """Wrapper that checks all observations of an environment.

    Args:
        env: the environment to check.

    Raises:
        InvalidObservation: from `reset` and `act`, with the environment, episode, step, field,
            expected and actual value.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._obs_space = env.obs_space()
        self._action_space = env.action_space()
        self._episode = -1
        self._step = 0

    def obs_space(self) -> ObsSpace:
        """Return the space of the environment."""
        return self._obs_space

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the spaces of the environment."""
        return self._action_space

    def reset(self) -> Observation:
        """Begin an episode and return its first observation, after checking it."""
        self._episode += 1
        self._step = 0
        return self._checked(self.env.reset())

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Take a step and return the observation, after checking it."""
        self._step += 1
        return self._checked(self.env.act(actions))

    def seed(self, seed: int) -> None:
        """Seed the environment, if its attribute `seed` is a method."""
        if callable(self.env.seed):
            self.env.seed(seed)

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Render the environment."""
        return self.env.render(**kwargs)

    def view(self) -> View | None:
        """Return the view of the environment, if its attribute `view` is a method."""
        return self.env.view() if callable(self.env.view) else None

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _checked(self, obs: Observation) -> Observation:
        try:
            validate_observation(obs, self._obs_space, self._action_space)
            if obs.done and self._step == 0:
                raise InvalidObservation("done: expected False in the first observation, got True")
        except InvalidObservation as error:
            error.env_index, error.env_name = None, type(self.env).__name__
            error.episode, error.step = self._episode, self._step
            raise
        return obs
