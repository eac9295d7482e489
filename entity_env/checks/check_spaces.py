"""Checks of observation and action spaces, shared by `check_env`, training and the network."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entity_env.errors import InvalidSpace
from entity_env.spaces import ACTION_SPACES, GLOBAL, Entity, ObsSpace


class SpaceProblem(NamedTuple):
    """A defect of a space.

    Attributes:
        field: `obs_space` or `action_space`.
        text: what was expected and what came.
        fix: the remedy.
    """

    field: str
    text: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}; {self.fix}"


def space_problems(obs_space: Any, action_space: Any) -> list[SpaceProblem]:
    """Return everything that is wrong with the spaces of an environment."""
    return [
        *(SpaceProblem("obs_space", *found) for found in _obs_space_problems(obs_space)),
        *(SpaceProblem("action_space", *found) for found in _action_space_problems(action_space)),
    ]


def changed_spaces(before: tuple[Any, Any], now: tuple[Any, Any], when: str) -> list[SpaceProblem]:
    """Return a problem for each space that differs, even if only in the order of its types.

    Args:
        before: the observation space and the action space.
        now: the same at another time, or of another instance.
        when: completes "got another one ...", in messages.
    """
    return [
        SpaceProblem(
            field,
            f"expected the same space every time, got another one {when}: {a} became {b}",
            "let it depend on nothing but the arguments of the constructor",
        )
        for field, a, b in zip(("obs_space", "action_space"), before, now, strict=True)
        if a is not b and repr(a) != repr(b)  # unlike ==, the order of the types counts
    ]


def check_spaces(obs_space: Any, action_space: Any) -> None:
    """Raise if an environment with these spaces cannot be trained in.

    Raises:
        InvalidSpace: lists every problem in one line.
    """
    _raise_problems(space_problems(obs_space, action_space))


def check_same_spaces(before: tuple[Any, Any], now: tuple[Any, Any], when: str) -> None:
    """Raise if spaces differ; the arguments are those of `changed_spaces`.

    Raises:
        InvalidSpace: shows both spaces.
    """
    _raise_problems(changed_spaces(before, now, when))


def _raise_problems(problems: list[SpaceProblem]) -> None:
    if problems:
        raise InvalidSpace(". ".join(map(str, problems)))


def _obs_space_problems(space: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(space, ObsSpace) or not isinstance(space.entities, Mapping):
        yield f"expected an ObsSpace with a dictionary of entities, got {space!r}", "return one"
        return
    blocks = [("ObsSpace.global_features", space.global_features)]
    for name, entity in space.entities.items():
        if not isinstance(name, str) or not isinstance(entity, Entity):
            yield (
                f"entities: expected names with an Entity each, got {name!r}: {entity!r}",
                "use Entity",
            )
        else:
            blocks.append((f"entities[{name!r}].features", entity.features))
    for what, names in blocks:
        yield from _name_problems(what, names)
    if GLOBAL in space.entities:
        yield f"entities: expected other names than {GLOBAL!r}, got it", "choose another name"


def _action_space_problems(space: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(space, Mapping):
        yield f"expected a dictionary from names to spaces, got {space!r}", "return one"
        return
    for name, action in space.items():
        if type(action) not in ACTION_SPACES.values() or not isinstance(name, str):
            yield (
                f"expected names with one of {[*ACTION_SPACES]} each, got {name!r}: {action!r}",
                "use these",
            )
            continue
        for field, value in vars(action).items():
            if field == "index_to_label":
                what = f"[{name!r}].{field}"
                yield from _name_problems(what, value)
                if len(value) == 0:
                    yield f"{what}: expected at least one choice, got none", "name the choices"


def _name_problems(what: str, names: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        yield f"{what}: expected a list of names, got {names!r}", "give a list of strings"
    elif len(set(names)) < len(names):
        yield f"{what}: expected every name once, got {names!r}", "rename one of them"
