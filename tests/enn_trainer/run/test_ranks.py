"""Runs of several ranks, which are threads here: the same bits as in one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import RankError, StateManager, Trainer
from enn_trainer.base.group import Group
from enn_trainer.runtime import exchange
from entity_env.examples import Duel, Minefield
from entity_env.serialization.messages import pack, unpack
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets
from tests.enn_trainer.run.small_runs import OPTIONS, SMALL, Ran, run
from tests.enn_trainer.run.thread_group import in_ranks
from tests.entity_env.clocks import Clocks


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def assert_equal(env: Any, settings: Sequence[str] = (), sizes: Sequence[int] = (2, 3, 4)) -> Ran:
    """Train with each number of ranks, and compare the outcomes of all of them."""
    (expected,) = run(1, env, settings)
    for size in sizes:
        for of_rank in run(size, env, settings):
            assert of_rank == expected, size
    return expected


@pytest.mark.slow
def test_any_number_of_ranks_gives_the_same_bits() -> None:
    expected = assert_equal(Minefield)
    assert expected.step == 168
    assert expected.metrics["episodic_reward.count"] >= 0


@pytest.mark.slow
def test_gradients_in_slices_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of large networks, which are not sent whole."""
    (expected,) = run(1, Minefield, ["total_timesteps=56"])
    whole = run(2, Minefield, ["total_timesteps=56"])
    monkeypatch.setattr(exchange, "_MAX_GATHERED_BYTES", 0)
    for size in (2, 3, 4):
        assert run(size, Minefield, ["total_timesteps=56"]) == [expected] * size
    assert whole == [expected] * 2


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_gives_the_same_bits(option: str) -> None:
    assert_equal(Minefield, OPTIONS[option], sizes=(3,))


@pytest.mark.slow
@pytest.mark.parametrize("option", ["memory", "scaled rewards", "pieces"])
def test_frames_between_episodes_give_the_same_bits(option: str) -> None:
    """Also where some ranks alone have any in a rollout."""
    short = [*OPTIONS[option], "rollout.steps=2", "optim.bs=4"]
    short += ["ppo.seq_len=2"] if option == "memory" else []
    assert_equal(Clocks, short, sizes=(2, 3))


@pytest.mark.slow
def test_auxiliary_cloning_gives_the_same_bits(tmp_path: Path) -> None:
    recorded = ["capture_samples=shown.rec", "scale.shards=1", "data_dir=."]
    run(1, Minefield, recorded, tmp_path / "shown")
    path = tmp_path / "shown" / "shown.rec"
    assert_equal(Minefield, [f"bc.path={path}", "bc.bs=8"], sizes=(3,))


@pytest.mark.slow
def test_ranks_with_other_demonstrations_are_reported(tmp_path: Path) -> None:
    for rank in range(2):
        recorded = ["capture_samples=shown.rec", "scale.shards=1", "data_dir=.", f"seed={rank}"]
        run(1, Minefield, recorded, tmp_path / f"{rank}")

    messages: list[str] = []

    def work(group: Group) -> None:
        manager = StateManager(overrides=[*SMALL, "bc.path=shown.rec"])
        manager.start_folder = tmp_path / f"{group.rank}"
        try:
            Trainer(manager, Minefield).close()
        except RankError as error:
            messages.append(str(error))

    in_ranks(2, work)
    for message in messages:
        assert message.startswith("rank 1: demonstrations: expected the value of rank 0")
    assert len(messages) == 2


@pytest.mark.slow
@pytest.mark.parametrize("env", [Duel, Targets, Camp])
def test_every_kind_of_environment_gives_the_same_bits(env: Any) -> None:
    assert_equal(env, ["rollout.num_envs=10"], sizes=(2, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [[], OPTIONS["memory"], OPTIONS["scaled rewards"], OPTIONS["lessons"]]
)
def test_a_run_resumes_with_any_number_of_ranks_in_the_middle_of_episodes(
    tmp_path: Path, settings: list[str]
) -> None:
    (expected,) = run(1, Minefield, settings, tmp_path / "straight")
    folder = tmp_path / "run"
    for size in (4, 1, 3):
        last = run(size, Minefield, settings, folder, one=True)
    (save,) = folder.glob("step-*168")
    (straight,) = (tmp_path / "straight").glob("step-*168")
    for of_rank in last:
        assert of_rank.digest == expected.digest
        assert of_rank.notices == expected.notices
    for name in ("state.agent.safetensors", "state.optimizer.safetensors"):
        assert (save / name).read_bytes() == (straight / name).read_bytes()
    rest = [(one / "state.rest.msgpack").read_bytes() for one in (save, straight)]
    envs = [unpack(unpack(data)["envs"]) for data in rest]
    assert pack(envs[0]["envs"]) == pack(envs[1]["envs"])
