"""Runs of several ranks with opponents: the same members, seats and results as in one process."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from enn_trainer import StateManager, Trainer
from enn_trainer.base.group import Group
from entity_env.serialization.messages import pack
from tests.enn_trainer.run.small_runs import LEAGUE, Ran, ran
from tests.enn_trainer.run.thread_group import in_ranks
from tests.enn_trainer.selfplay.counting_bot import AGAINST_COUNTING, COUNTING
from tests.enn_trainer.selfplay.joust import Joust


class WithLeague(NamedTuple):
    """Outcome of a run in one rank, with that of its league."""

    ran: Ran
    league: bytes
    games: list[int]
    players: list[list[str]]


def run(
    size: int, settings: list[str], folder: Path | None = None, one: bool = False
) -> list[WithLeague]:
    """Train in several ranks, or take `one` update and save; return the outcome of each rank."""

    def work(group: Group | None = None) -> WithLeague:
        manager = StateManager(overrides=[*LEAGUE, *settings], checkpoint_dir=folder)
        manager.say = lambda line: None
        with Trainer(manager, Joust) as trainer:
            trainer.step() if one else trainer.run()
            if one:
                trainer.save()
            seating: Any = trainer.state.parts["players"]
            members = trainer.state.parts["league"].state_dict()
            plain = {name: x for name, x in members.items() if not hasattr(x, "dtype")}
            games = seating.games.tolist()
            return WithLeague(ran(trainer), pack(plain), games, [*seating.players])

    return [work()] if size == 1 else in_ranks(size, work)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], ["net.memory=(of: frame)", "ppo.seq_len=2"]])
def test_leagues_have_the_same_members_seats_and_results(settings: list[str]) -> None:
    (expected,) = run(1, settings)
    assert expected.ran.metrics["selfplay/games"] > 0
    for size in (2, 4):
        for of_rank in run(size, settings):
            assert of_rank == expected, size


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [["net.memory=(of: frame)", "ppo.seq_len=2"], [*AGAINST_COUNTING]],
)
def test_running_games_continue_with_another_number_of_ranks(
    tmp_path: Path, settings: list[str]
) -> None:
    Path("bots.py").write_text(COUNTING)
    (expected,) = run(1, settings)
    for size in (3, 1, 4):
        last = run(size, settings, tmp_path / "run", one=True)
    for of_rank in last:
        assert of_rank.ran.digest == expected.ran.digest
        assert (of_rank.games, of_rank.players) == (expected.games, expected.players)
        assert of_rank.league == expected.league
