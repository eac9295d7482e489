"""Members of a league follow their run into other worlds."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import load_agent
from enn_trainer.base.state_part import UnusedPart
from enn_trainer.checkpoints.lookup import find, members_of
from enn_trainer.checkpoints.migrate.config_diff import renamed_config
from enn_trainer.checkpoints.migrate.evolve import EvolvedRun, evolve, evolved_state
from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.cli import run as enn
from enn_trainer.selfplay.league import LEAGUE, PLAYERS
from enn_trainer.selfplay.seating import PoolLineups
from entity_env import CategoricalAction, Match, Observation
from entity_env.spaces import Spaces
from tests.enn_trainer.selfplay.joust import (
    FRAMES,
    Joust,
    Tilt,
    Tourney,
    league_of,
    members,
    run,
    saves_of,
)

RULES = Rules({("type", "Knight"): "Rider"})


@pytest.fixture(scope="module")
def jousts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with eight members, of which some have results; it is not changed."""
    folder: Path = tmp_path_factory.mktemp("jousts") / "run"
    run(folder, 7)
    assert len(members_of(folder)) == 8
    return folder


def evolved(saved: Path, world: Match, rules: Rules = RULES) -> EvolvedRun:
    return evolve(find(saved), world.obs_space(), world.action_space(), rules=rules)


def probs(path: str, world: Any, seed: int = 3) -> list[Any]:
    """Return the probabilities of an agent in a game, by the order of the world."""
    agent, found = load_agent(path, env=world), []
    world.seed(seed)
    shown: list[Observation] = world.reset()
    for _ in range(3):
        acts = [agent.act(one).actions["ride"] for one in shown]
        for act in acts:
            assert isinstance(act, CategoricalAction)
            found.append(act.probs)
        shown = world.act([{"ride": CategoricalAction(a.actors, [0], ["walk"])} for a in acts])  # type: ignore[union-attr, attr-defined]
    return found


@pytest.mark.slow
def test_upgraded_members_play_as_before(jousts: Path, tmp_path: Path) -> None:
    """In an evolved world, with another name of the type and a feature in front."""
    upgraded = evolved(jousts, Tourney())
    upgraded.save(tmp_path / "new")
    before = {member.name: member for member in members_of(jousts)}
    now = {member.name: member for member in members_of(tmp_path / "new")}
    assert [*now] == [*before]
    for name, member in now.items():
        run_of = read_saved_run(Path(f"{tmp_path / 'new'}@opponent:{name}"))
        assert run_of.obs_space == Tourney().obs_space()
        one = probs(f"{jousts}@opponent:{name}", Joust())
        other = probs(f"{tmp_path / 'new'}@opponent:{name}", Tourney())
        assert np.allclose(one, other, atol=1e-5)
        # Ratings are a start; results were those of another world.
        assert member.elo == before[name].elo
        assert member.games == 0
        assert member.results.size == 0
        assert member.step == before[name].step
    assert any(member.games for member in before.values())
    report = str(upgraded.report)
    for name in before:
        assert f"opponent {name}: " in report
    assert {*upgraded.report.opponents} == {*before}


@pytest.mark.slow
def test_upgraded_league_continues(jousts: Path, tmp_path: Path) -> None:
    evolved(jousts, Tourney()).save(tmp_path / "new")
    before = {member.name: member for member in members_of(tmp_path / "new")}
    state = run(tmp_path / "new", 9, env=Tourney).state
    assert state.step == 9 * FRAMES
    # The ratings of members with results are fitted anew, also those of snapshots.
    now = members(state)
    assert any(now[name].games and now[name].elo != old.elo for name, old in before.items())
    assert {f"step-{24 * i}" for i in range(10)} == {*members(state)}
    assert sum(member.games for member in members(state).values()) > 0
    saves = saves_of(tmp_path / "new")
    assert len({(path / "opponent-step-24.safetensors").stat().st_ino for path in saves}) == 1


@pytest.mark.slow
def test_run_from_an_upgraded_league_is_reproducible(jousts: Path, tmp_path: Path) -> None:
    evolved(jousts, Tourney()).save(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    states = [run(tmp_path / name, 9, env=Tourney).state for name in ("one", "two")]
    first, second = (state.agent.state_dict() for state in states)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert repr(league_of(states[0]).state_dict()) == repr(league_of(states[1]).state_dict())


@pytest.mark.slow
def test_members_of_other_environment_versions_are_upgraded(jousts: Path, tmp_path: Path) -> None:
    """A save that was named knows less than the run does."""

    class Plain(Joust):
        features = ("lance",)

    run(tmp_path / "plain", 1, env=Plain)
    run(tmp_path / "both", 1, f'selfplay.opponents=["{jousts}", "{tmp_path / "plain"}"]')
    both = evolved(tmp_path / "both", Tourney())
    both.save(tmp_path / "new")
    names = [member.name for member in members_of(tmp_path / "new")]
    assert "plain-24" in names
    one = probs(f"{tmp_path / 'plain'}@24", Joust())
    other = probs(f"{tmp_path / 'new'}@opponent:plain-24", Tourney())
    assert np.allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_members_that_cannot_be_upgraded_are_dropped_and_named(
    jousts: Path, tmp_path: Path
) -> None:
    """Here one whose own world has both the old and the new name."""

    class Both(Joust):
        def obs_space(self) -> Any:
            space = super().obs_space()
            space.entities["Rider"] = space.entities["Knight"]
            return space

    run(tmp_path / "both", 1, env=Both)
    saved = find(jousts)
    state = evolve(saved, Joust().obs_space(), Joust().action_space()).state
    odd = members_of(tmp_path / "both")[0]
    league_of(state).members[3] = replace(odd, name="odd")

    config, world = read_config(saved), Tourney()
    spaces = Spaces.of(world)
    new = renamed_config(config, RULES, state.obs_space, spaces)
    after, report = evolved_state(state, config, new, spaces, RULES)
    assert "odd" not in members(after)
    assert len(members(after)) == 7
    assert "removed, as it cannot be upgraded: rename: two names become one" in str(report)


def test_same_environment_keeps_results(jousts: Path) -> None:
    before = members_of(jousts)
    state = evolved(jousts, Joust(), Rules()).state
    assert [m.games for m in league_of(state).members] == [m.games for m in before]
    for one, other in zip(before, league_of(state).members, strict=True):
        assert np.array_equal(one.results, other.results)
        assert one.weights == other.weights


@pytest.mark.slow
def test_members_follow_a_new_order_of_labels_on_resume(jousts: Path, tmp_path: Path) -> None:
    shutil.copytree(jousts, tmp_path / "run")
    state = run(tmp_path / "run", 8, env=Tilt).state
    assert state.step == 8 * FRAMES
    before = {member.name: member for member in members_of(jousts)}
    for name, member in members(state).items():
        if name not in before:
            continue
        assert member.games >= before[name].games, "results stay"
        one = np.array(probs(f"{jousts}@opponent:{name}", Joust()))
        other = np.array(probs(f"{tmp_path / 'run'}@opponent:{name}", Tilt()))
        assert np.allclose(one, other[..., [1, 2, 0]], atol=1e-6)
    assert isinstance(state.parts["players"], PoolLineups)


@pytest.mark.slow
def test_unused_league_is_upgraded(jousts: Path, tmp_path: Path) -> None:
    shutil.copytree(jousts, tmp_path / "run")
    run(tmp_path / "run", 8, "selfplay=None", pool=False)
    upgraded = evolved(tmp_path / "run", Tourney())
    assert all(isinstance(upgraded.state.parts[name], UnusedPart) for name in (LEAGUE, PLAYERS))
    assert len(upgraded.report.opponents) == 8
    upgraded.save(tmp_path / "new")
    state = run(tmp_path / "new", 9, env=Tourney).state
    assert {*members(state)} > {"step-0", "step-168"}


WORLD = """
from entity_env.spaces import Spaces
from tests.enn_trainer.selfplay.joust import Tourney


class World(Tourney):
    pass
"""


def test_evolve_command_reports_every_member(
    jousts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    (tmp_path / "tourney.py").write_text(WORLD)
    monkeypatch.chdir(tmp_path)
    line = f"{jousts} --env tourney.py:World --to {tmp_path / 'new'} --rename Knight=Rider"
    assert not enn(["checkpoints", "evolve", *shlex.split(line)])
    shown = capsys.readouterr().out
    for member in members_of(jousts):
        assert f"opponent {member.name}: " in shown
    assert len(members_of(tmp_path / "new")) == 8
