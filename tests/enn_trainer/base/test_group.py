"""Groups of ranks: messages, work of rank 0, and sums over shards."""

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.base.errors import ConfigError
from enn_trainer.base.group import ALONE, Group, tree_sum
from enn_trainer.runtime.shards import Shards
from enn_trainer.runtime.torch_group import current_group
from tests.enn_trainer.run.thread_group import in_ranks


def test_group_of_one_process() -> None:
    assert current_group() is ALONE
    assert ALONE.gather({"a": 1}, "x") == [{"a": 1}]
    assert ALONE.broadcast(3, "x") == 3
    assert ALONE.lead(lambda: 4, "x") == 4


@given(
    shards=st.integers(1, 7),
    ranks=st.integers(1, 7),
    columns=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_sums_over_shards_do_not_depend_on_ranks(
    shards: int, ranks: int, columns: int, seed: int
) -> None:
    ranks = min(ranks, shards)
    rows = torch.randn(shards, columns, generator=torch.Generator().manual_seed(seed))
    expected = tree_sum([*rows], torch.add)
    owned = [Shards.of(shards, 1, shards).for_rank(rank, ranks).local for rank in range(ranks)]
    assert [shard for own in owned for shard in own] == [*range(shards)]

    def add(group: Group) -> torch.Tensor:
        own = owned[group.rank]
        return group.tree_sum(rows[own.start : own.stop], [len(one) for one in owned])

    for found in in_ranks(ranks, add):
        assert torch.equal(found, expected)


def test_gather_returns_plain_data_in_the_order_of_ranks() -> None:
    def work(group: Group) -> list[object]:
        own = [group.rank] * group.rank
        return [*group.gather_shards(own, "x"), group.broadcast(f"of {group.rank}", "y")]

    assert in_ranks(3, work) == [[1, 2, 2, "of 0"]] * 3


def test_gathered_arrays_are_bitwise_equal() -> None:
    given = np.array([0.1, -0.0, np.inf, np.nan], np.float32)
    for found in in_ranks(2, lambda group: group.broadcast({"a": given}, "x")):
        assert found["a"].tobytes() == given.tobytes()


def test_ranks_wait_for_rank_0_and_send_their_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("enn_trainer.base.group.ALIVE_S", 0.0)
    told: list[int] = []

    def work(group: Group) -> int:
        def play(alive: Callable[[], None]) -> int:
            for _ in range(3 if group.leads else 0):
                alive()
                time.sleep(0.01)
            return 7 if group.leads else 0

        def answer(number: int) -> None:
            if group.leads:
                told.append(number)

        return group.together(play, "x", lambda: 15 * group.rank, answer)[0]

    assert in_ranks(2, work) == [7, 7]
    assert told == [15] * 4


def test_error_of_rank_0_is_raised_in_all_ranks() -> None:
    def work(group: Group) -> None:
        def fail() -> None:
            raise ConfigError("eval.env: expected another")

        with pytest.raises(ConfigError, match="expected another") as raised:
            group.lead(fail, "x")
        assert str(raised.value).startswith("eval" if group.leads else "rank 0: eval")

    in_ranks(3, work)


def test_ranks_work_at_their_own_pace_and_get_all_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("enn_trainer.base.group.ALIVE_S", 0.0)

    def work(group: Group) -> list[int]:
        def play(alive: Callable[[], None]) -> int:
            for _ in range(3 * group.rank):
                alive()
            return group.rank

        return group.together(play, "x")

    assert in_ranks(3, work) == [[0, 1, 2]] * 3


def test_error_of_a_rank_is_raised_in_working_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("enn_trainer.base.group.ALIVE_S", 0.0)

    def work(group: Group) -> list[int]:
        def fail(alive: Callable[[], None]) -> None:
            if group.rank == 0:
                while True:
                    alive()
            if group.rank == 1:
                raise ConfigError("one")
            raise ConfigError("two")

        with pytest.raises(ConfigError) as raised:
            group.together(fail, "x")
        assert str(raised.value) == ["rank 1: one; rank 2: two", "one", "two"][group.rank]
        return group.gather(group.rank, "y")

    assert in_ranks(3, work) == [[0, 1, 2]] * 3


def test_failing_rank_ends_the_others() -> None:
    def work(group: Group) -> None:
        if group.rank == 1:
            raise ValueError("of rank 1")
        group.gather(1, "x")

    with pytest.raises(ValueError, match="of rank 1"):
        in_ranks(3, work)
