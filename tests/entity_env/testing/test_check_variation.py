"""`check_env(World, vary={...})` finds arguments that cannot vary from episode to episode."""

from collections.abc import Callable
from typing import Any

import pytest

from entity_env import Entity, ObsSpace, check_env
from entity_env.environment import Observation
from entity_env.errors import InvalidSampler
from entity_env.examples import Duel, Locks, Minefield, MultiSnake, Pairs
from entity_env.match import Match

SHORT: dict[str, Any] = {"episodes": 3, "max_steps": 30}


class Forgets(Locks):
    """Keeps the number of keys that it was made with."""

    def set_parameters(self, length: int | None = None, keys: int | None = None) -> None:
        super().set_parameters(length, keys if "keys" not in vars(self) else None)


class Grows(Locks):
    """Has another entity type after `set_parameters`."""

    def obs_space(self) -> ObsSpace:
        space = super().obs_space()
        if self.length == 12:
            return space
        return ObsSpace(entities={**space.entities, "Door": Entity([])})


class Loses(Locks):
    """Continues with the keys of the default from a state."""

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.set_parameters(keys=3)


class Crowded(Locks):
    """Has no place for more than 4 keys, which shows when an episode begins."""

    def reset(self) -> Observation:
        if self.keys > 4:
            raise RuntimeError("no place")
        return super().reset()


class Sided(Duel):
    """Has as many sides as units."""

    def set_parameters(self, squad: int | None = None) -> None:
        super().set_parameters(squad)
        self.num_sides = 2 if self.squad == 4 else 3  # type: ignore[misc]


def only_problem(world: Callable[[], Any], **vary: str) -> tuple[str, str]:
    """Return the field and the text of the one problem that is found."""
    report = check_env(world, vary=vary, **SHORT)
    [problem] = report.problems
    return problem.field, f"{problem.where}: {problem.text}"


@pytest.mark.parametrize(
    ("world", "vary"),
    [
        (Minefield, {"max_mines": "int 0 20", "width": "uniform 150 250"}),
        (Duel, {"squad": "int 1 4"}),
        (Locks, {"length": "int 1 12", "keys": "choice 2 6"}),
        (MultiSnake, {"board_size": "int 8 12"}),  # which is made anew
    ],
)
def test_examples_can_be_varied(world: Any, vary: dict[str, str]) -> None:
    report = check_env(world, vary=vary, **SHORT)
    assert report.ok, str(report)
    assert report.episodes == 2 * SHORT["episodes"], "played with drawn arguments as well"


def test_set_parameters_must_equal_the_constructor() -> None:
    field, text = only_problem(Forgets, keys="int 5 6")
    assert field == "set_parameters"
    assert "episode 0 with keys=" in text
    assert "other " in text
    assert text.endswith("after set_parameters")


def test_spaces_must_not_depend_on_an_argument() -> None:
    assert only_problem(Pairs, pairs="int 4 6")[0] == "vary.pairs"
    field, text = only_problem(Grows, keys="3", length="int 10 12")
    assert field == "vary.length"
    assert "obs_space: expected the same space every time, got another one with length=10" in text
    field, text = only_problem(Sided, squad="choice 2 4")
    assert (field, text) == (
        "vary.squad",
        ": expected 2 sides for all values, got 3 with squad=2",
    )


def test_values_must_be_accepted() -> None:
    field, text = only_problem(Locks, keys="int 0 3")
    assert field == "vary.keys"
    assert text.startswith("with keys=0: ")
    assert "keys: expected 2 to 6, got 0" in text
    field, text = only_problem(Minefield, width="uniform 1 200")
    assert (field, "with width=1.0" in text) == ("vary.width", True)
    field, text = only_problem(Crowded, keys="int 3 5")
    assert field == "vary.keys"
    assert text.startswith("with keys=5, episode 0, step 0: reset: ")
    assert "no place" in text
    field, text = only_problem(Locks, lenght="3")
    assert (field, "unexpected keyword argument 'lenght'" in text) == ("vary.lenght", True)


def test_states_must_contain_sampled_arguments() -> None:
    assert check_env(Loses, **SHORT).ok
    assert only_problem(Loses, keys="6")[0] == "set_state"


def test_only_classes_and_functions_take_arguments() -> None:
    assert only_problem(Locks(), keys="3")[0] == "vary"  # type: ignore[arg-type]
    with pytest.raises(InvalidSampler, match=r"vary\.keys: character 6: expected int LOW HIGH"):
        check_env(Locks, vary={"keys": "int 3"})


def test_created_environments_are_closed() -> None:
    made, closed = [], []

    class Counted(Duel):
        def __init__(self, squad: int = 4) -> None:
            super().__init__(squad)
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    assert issubclass(Counted, Match)
    assert check_env(Counted, vary={"squad": "int 1 2"}, **SHORT).ok
    assert len(made) == len(closed) > 4


def test_environment_may_consume_a_sampled_list() -> None:
    class UsesUp(Locks):
        set_parameters = None  # type: ignore[assignment]

        def __init__(self, lengths: list[int] | None = None) -> None:
            self.length, self.keys = 4 if lengths is None else lengths.pop(), 3

    class IsTold(UsesUp):
        def set_parameters(self, lengths: Any = None) -> None:  # type: ignore[override]
            self.length, self.keys = lengths.pop(), 3

    for world in (UsesUp, IsTold):
        report = check_env(world, vary={"lengths": "choice [5] [7]"}, **SHORT)
        assert report.ok, str(report)
