"""What attributes of an environment share, they share again after a resume."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from entity_env import EnvList, ParallelEnvList, PlainState, check_env
from entity_env.plain_state import UnsavableSharingError
from entity_env.serialization.messages import pack, unpack
from tests.entity_env.worlds import Repeats


class World(PlainState):
    """Anything with attributes."""


def world_of(**attributes: Any) -> Any:
    world = World()
    vars(world).update(attributes)
    return world


def restored(world: Any) -> Any:
    other = World()
    other.set_state(unpack(pack(world.get_state(), exact=True)))
    return other


def test_shared_references_are_restored() -> None:
    hero, rng = {"health": 10}, np.random.default_rng(0)
    world = restored(
        world_of(
            hero=hero,
            units=[hero, {"health": 5}],
            targets={"a": (hero, [hero])},
            seen=(seen := {1, 2}),
            known=[seen],
            draws=rng,
            dice=[rng, np.random.Generator(rng.bit_generator)],
        )
    )
    world.hero["health"] -= 1
    assert [unit["health"] for unit in world.units] == [9, 5]
    assert world.targets["a"][0] is world.targets["a"][1][0] is world.hero
    assert world.known[0] is world.seen
    assert world.draws.random() != world.dice[0].random() != world.dice[1].random()
    assert world.units[1] is not world.hero


def test_shared_generator_is_restored() -> None:
    world = world_of()
    world.deck = [world.rng]
    world = restored(world)
    assert world.deck[0] is world.rng


def test_reference_cycles_are_restored() -> None:
    team: dict[str, Any] = {"units": []}
    team["units"] += [{"team": team, "friends": team["units"]} for _ in range(2)]
    chain: list[Any] = []
    for _ in range(3000):  # deeper than calls can be nested
        chain = [chain]
    everything: list[Any] = []
    while chain:
        everything.append(chain)
        chain = chain[0]
    world = restored(world_of(team=team, everything=everything))
    for unit in world.team["units"]:
        assert unit["team"] is world.team
        assert unit["friends"] is world.team["units"]
    assert all(
        one[0] is two for one, two in zip(world.everything, world.everything[1:], strict=False)
    )


GRID = np.arange(24, dtype=np.float32).reshape(4, 6)
VIEWS: dict[str, Callable[[Any], Any]] = {
    "row": lambda grid: grid[1],
    "column": lambda grid: grid[:, 2],
    "transposed": lambda grid: grid.T,
    "reversed": lambda grid: grid[::-1, ::-2],
    "flat": lambda grid: grid.reshape(-1),
    "bytes": lambda grid: grid.view(np.uint8)[:, 1:],
    "whole": lambda grid: grid[:],
    "number": lambda grid: grid[2, 3, ...],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_array_views_share_memory_after_restore(name: str, order: Any) -> None:
    grid = GRID.copy(order="C" if name in ("flat", "bytes") else order)
    world = world_of(view=[VIEWS[name](grid)], grid=grid, other=grid.copy())
    again = restored(restored(world))
    for one in (world, again):
        one.grid += 1
        one.view[0][...] += 2
    for old, new in ((world.grid, again.grid), (world.view[0], again.view[0])):
        np.testing.assert_array_equal(new, old)
        assert (new.strides, new.dtype, new.flags.writeable) == (old.strides, old.dtype, True)
    np.testing.assert_array_equal(again.other, GRID)


def test_array_views_without_their_base_share_memory() -> None:
    grid = GRID.copy()
    world = restored(
        world_of(left=grid[:, :4], right=grid[:, 2:], apart=grid[:1, 4:5], zero=grid[:0])
    )
    world.left[0, 3] = 99
    assert world.right[0, 1] == 99
    again = restored(world)
    again.right[0, 1] = 7
    assert again.left[0, 3] == 7
    assert again.zero.shape == (0, 6)


def test_shared_array_and_its_view_are_restored() -> None:
    grid = GRID.copy()
    world = restored(world_of(grid=grid, same=[grid], row=grid[0]))
    assert world.same[0] is world.grid
    world.row[0] = 99
    assert world.grid[0, 0] == 99


def test_states_without_sharing_keep_their_format() -> None:
    parts = np.zeros((2, 5))
    world = world_of(units=[{"a": 1}], place=(0, 1), again=(0, 1), x=parts[0], y=parts[1])
    state = world.get_state()
    assert {name: state[name] for name in ("units", "place", "again")} == {
        "units": [{"dict": [["a", 1]]}],
        "place": {"tuple": [0, 1]},
        "again": {"tuple": [0, 1]},
    }
    assert state.keys() == {"rng", "units", "place", "again", "x", "y"}
    assert [*state["x"]] == [*state["y"]] == ["array"]


def test_state_without_an_attribute_can_be_restored() -> None:
    """An environment may derive one attribute from the others."""
    units = [{"a": 1}, {"a": 2}]
    for name in ("units", "by_number"):
        state = world_of(by_number={0: units[0], 1: units[1]}, units=units).get_state()
        del state[name]
        world: Any = World()
        world.set_state(state)
        [left] = {"units", "by_number"} & vars(world).keys()
        assert getattr(world, left)[1] == {"a": 2}


def test_views_of_text_arrays_share_memory_after_restore() -> None:
    words = np.array([["a", "bc"], ["d", ""]])
    world = restored(world_of(words=words, column=words[:, 1], rest=words[1]))
    world.words[1, 1] = "e"
    assert (world.column[1], world.rest[1], world.words.dtype) == ("e", "e", np.dtype("<U2"))


def test_overlapping_strides_error_names_both_attributes() -> None:
    row = np.zeros(3)
    table = np.broadcast_to(row, (4, 3))
    with pytest.raises(UnsavableSharingError, match=r"^(row and table|table and row): expected"):
        world_of(row=row, table=table).get_state()
    assert restored(world_of(table=table)).table.tolist() == table.tolist()


def test_environments_with_overlapping_strides_have_no_state() -> None:
    for envs in (EnvList(Repeats, 2), ParallelEnvList(Repeats, 2, 2)):
        with contextlib.closing(envs):
            envs.reset(envs.obs_space())
            assert envs.get_state() is None
            assert envs.why_no_state().startswith("Repeats: get_state: row and table: expected")
    report = check_env(Repeats)
    assert report.ok
    assert [remark.field for remark in report.remarks] == ["get_state"]


@pytest.mark.parametrize(
    "content",
    [
        [1, "<f8", 0, [10**9], [0]],
        [1, "<f8", 0, [4], [8]],
        [1, "<f8", 24, [2], [8]],
        [1, "<f8", -8, [1], [8]],
        [1, "|O", 0, [1], [8]],
        [7, "<f8", 0, [1], [8]],
        [0, "<f8", 0, [1], [8]],
    ],
)
def test_view_beyond_its_memory_raises(content: list[Any]) -> None:
    """A save may come from somebody else."""
    table = [{"part": content}, {"array": np.zeros(24, np.uint8)}]
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        World().set_state({"rng": None, "shared objects": table, "x": {"same": 0}})
