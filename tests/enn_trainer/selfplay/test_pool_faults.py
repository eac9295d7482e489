"""Pools of runs that lose members, fail, or meet names, orders and bots that are unusual."""

from collections import defaultdict
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch

from enn_trainer import ConfigError, StateManager, Trainer, train
from enn_trainer.base.policy import frozen_copy
from enn_trainer.run.tournament import exploit
from rogue_net.embedding import module_key
from tests.enn_trainer.selfplay.counting_bot import AGAINST_COUNTING, COUNTING
from tests.enn_trainer.selfplay.joust import (
    POOL,
    SETTINGS,
    Joust,
    league_of,
    members,
    run,
    saves_of,
)
from tests.soak.mutations import flipped


@pytest.fixture(autouse=True)
def _runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bots.py").write_text(COUNTING)


def parts(manager: StateManager) -> dict[str, str]:
    """Return league and players as text."""
    return {name: repr(manager.state.parts[name].state_dict()) for name in ("league", "players")}


def flip(save: Path, pattern: str) -> None:
    """Change a byte of files of a save, which earlier saves have by links as well."""
    for file in save.glob(pattern):
        file.write_bytes(flipped(file.read_bytes(), 500, 2))


@pytest.mark.slow
def test_snapshots_join_the_pool_with_members_of_another_run() -> None:
    """They have the same names there."""
    run(Path("rival"), 3, "seed=5", 'selfplay.opponents=["random"]')
    manager = run(Path("own"), 2, 'selfplay.opponents=["rival@opponents"]')
    found = list(members(manager.state).values())
    assert [m.step for m in found if m.origin == "snapshot"] == [0, 24, 48]
    others = [m for m in found if m.origin == "rival@opponents"]
    assert {m.kind for m in others} == {"network", "random"}
    assert len({m.name for m in found}) == len(found)
    first = found[0]
    assert (first.elo, first.ci95) == (1200.0, 0.0)


def test_run_takes_a_snapshot_after_losing_its_only_member() -> None:
    settings = "selfplay.snapshot_every=100000"
    run(Path("one"), 2, settings)
    rmtree(saves_of(Path("one"))[0])  # without a member yet
    flip(saves_of(Path("one"))[-1], "opponent-step-0.safetensors")
    manager = run(Path("one"), 4, settings)
    assert list(members(manager.state)) == ["step-48"]


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_lost_named_member_does_not_need_its_path(given: bool) -> None:
    run(Path("rival"), 1, pool=False)
    named = 'selfplay.opponents=["rival"]'
    run(Path("own"), 2, named)
    flip(saves_of(Path("own"))[-1], "opponent-rival*")
    rmtree("rival")
    manager = run(Path("own"), 3, *([named] if given else []))
    assert {m.origin for m in league_of(manager.state).members} == {"snapshot"}
    run(Path("own"), 4)  # of whose save it is no member any more


def test_missing_new_opponent_raises_on_resume() -> None:
    run(Path("own"), 1)
    with pytest.raises(Exception, match=r"selfplay\.opponents\[0\]: rival: expected a checkpoint"):
        run(Path("own"), 2, 'selfplay.opponents=["rival"]')


@pytest.mark.slow
def test_stateful_bots_are_resumed() -> None:
    straight = run(Path("straight"), 8, *AGAINST_COUNTING)
    run(Path("cut"), 3, *AGAINST_COUNTING)
    run(Path("cut"), 5, *AGAINST_COUNTING)
    cut = run(Path("cut"), 8, *AGAINST_COUNTING)
    weights = straight.state.agent.state_dict(), cut.state.agent.state_dict()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert parts(straight) == parts(cut)


@pytest.mark.parametrize("updates", [0, 3])
def test_failed_update_restores_players_and_bots(
    updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SETTINGS, *POOL, *AGAINST_COUNTING, "total_timesteps=100000"]
    manager = StateManager(overrides=settings)

    def fail(*_: Any) -> None:
        raise ArithmeticError("as a test asks")

    with Trainer(manager, Joust) as trainer:
        for _ in range(updates):
            trainer.step()
        before = parts(manager)
        with monkeypatch.context() as patch:
            patch.setattr(manager.state.algorithm, "update", fail)
            for _ in range(2):
                with pytest.raises(ArithmeticError):
                    trainer.step()
                assert parts(manager) == before
        trainer.step()
        assert parts(manager) != before


class Swapped(Joust):
    """The same world with another entity type, in front or behind."""

    is_first = False

    def obs_space(self) -> Any:
        space = super().obs_space()
        squire = {"Squire": type(space.entities["Knight"])(["age", "speed", "reach"])}
        types = {**squire, **space.entities} if self.is_first else {**space.entities, **squire}
        return type(space)(["turn"], types)

    def _observe(self) -> Any:
        shown = super()._observe()
        for frame in shown:
            frame.features = {**frame.features, "Squire": [[1.0, 2.0, 3.0]]}
        return shown


class SwappedFirst(Swapped):
    """The same with the types in the other order."""

    is_first = True


def test_member_with_another_order_of_types_plays_equally() -> None:
    run(Path("rival"), 1, "seed=4", pool=False, env=SwappedFirst)
    settings = [*SETTINGS, *POOL, 'selfplay.opponents=["rival"]', "total_timesteps=1000"]
    manager = StateManager(overrides=settings)
    with Trainer(manager, Swapped) as trainer:
        trainer.step()
        players = trainer.episodes.running_collector().players
        agent, member = players.player(""), players.player("rival-32")  # type: ignore[attr-defined]
        assert type(member.agent).__name__ == "Wired"
        assert type(agent.agent).__name__ == "RogueNet"


class Loud(Joust):
    """Knights of the second side are as fast as nobody of the first."""

    def _observe(self) -> Any:
        shown = super()._observe()
        shown[1].features = {"Knight": [[1000.0, 1.0]]}
        return shown


def test_input_statistics_have_frames_of_the_agent_only() -> None:
    pool = ["selfplay.share=1", "selfplay.sides=[0]", "optim.bs=8", "total_timesteps=1000"]
    with Trainer(StateManager(overrides=[*SETTINGS, *POOL, *pool]), Loud) as trainer:
        for _ in range(3):
            agent: Any = trainer.state.agent
            norm = agent.embedding.by_type[module_key("Knight")].norm
            assert norm.mean.abs().max() < 100
            trainer.step()


def test_matchmaker_without_a_pool_raises() -> None:
    manager = StateManager(overrides=[*SETTINGS, "total_timesteps=24"])
    with pytest.raises(ConfigError, match="matchmaker: expected the setting selfplay"):
        train(manager, Joust, matchmaker=lambda members, step: [1.0])  # type: ignore[arg-type,return-value]


def test_exploiter_is_saved_next_to_its_victim() -> None:
    config = run(Path("victim"), 1).config
    config.total_timesteps = 24
    found = exploit("victim", Joust, config, games=4)
    assert found.path.parent.name == "exploits"
    assert found.path.parent.parent.resolve() == Path("victim").resolve()


def test_copied_networks_have_separate_empty_dicts() -> None:
    network = torch.nn.Linear(1, 1)
    network.seen = defaultdict(list)  # type: ignore[assignment]
    copied = frozen_copy(network, "selfplay")
    copied.seen["a"].append(1)
    copied.register_forward_hook(lambda *_: None)
    assert network.seen == {}
    assert not network._forward_hooks
    assert not any(parameter.requires_grad for parameter in copied.parameters())


def test_opponent_that_cannot_be_created_raises_before_training() -> None:
    def refuse(name: str, *_: Any) -> Any:
        raise ConfigError(f"opponents: expected one that there is, got {name}")

    overrides = [*SETTINGS, *POOL, 'selfplay.opponents=["nobody"]', "total_timesteps=24"]
    with pytest.raises(ConfigError, match="got nobody"):
        Trainer(StateManager(overrides=overrides), Joust, create_opponent=refuse)
