"""Runs of several ranks, which are threads here: the same bits as in one process."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from enn_trainer import RankError, StateManager, Trainer
from enn_trainer.scale import exchange
from enn_trainer.scale.group import Group
from enn_trainer.scale.packing import digest_of
from entity_env.examples import Duel, Minefield
from entity_env.serialization.messages import pack, unpack
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets
from tests.enn_trainer.scale.thread_group import in_ranks


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SMALL = [
    *("rollout.num_envs=7", "rollout.steps=8", "rollout.processes=1", "optim.bs=16"),
    *("net.d_model=16", "net.n_layer=1", "net.n_head=2", "optim.update_epochs=2"),
    *("scale.shards=4", "total_timesteps=168", "seed=3", "checkpoint.every_seconds=inf"),
]
OF_TIME = ("charts/SPS", "throughput", "fps", "eps", "system/", "trace/", "checkpoint/")


class Ran(NamedTuple):
    """Outcome of a run in one rank."""

    digest: int
    metrics: dict[str, float]
    notices: Any
    step: int


def ran(trainer: Trainer) -> Ran:
    """Return the outcome of a run so far, without what depends on time."""
    metrics = {
        tag: "nan" if math.isnan(x) else x
        for tag, x in trainer.metrics.items()
        if not tag.startswith(OF_TIME)
    }
    state = trainer.state
    return Ran(digest_of(state.agent), metrics, state.memory["notices"], state.step)


def run(
    size: int, env: Any, settings: Sequence[str], folder: Path | None = None, one: bool = False
) -> list[Ran]:
    """Train in several ranks, or take `one` update and save; return the outcome of each rank."""

    def work(group: Group | None = None) -> Ran:
        manager = StateManager(overrides=[*SMALL, *settings], checkpoint_dir=folder)
        manager.say = lambda line: None
        with Trainer(manager, env) as trainer:
            trainer.step() if one else trainer.run()
            if one:
                trainer.save()
            return ran(trainer)

    return [work()] if size == 1 else in_ranks(size, work)


def assert_equal(env: Any, settings: Sequence[str] = (), sizes: Sequence[int] = (2, 3, 4)) -> Ran:
    """Train with each number of ranks, and compare the outcomes of all of them."""
    (expected,) = run(1, env, settings)
    for size in sizes:
        for of_rank in run(size, env, settings):
            assert of_rank == expected, size
    return expected


def test_any_number_of_ranks_gives_the_same_bits() -> None:
    expected = assert_equal(Minefield)
    assert expected.step == 168
    assert expected.metrics["episodic_reward.count"] >= 0


def test_gradients_in_slices_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of large networks, which are not sent whole."""
    (expected,) = run(1, Minefield, ["total_timesteps=56"])
    whole = run(2, Minefield, ["total_timesteps=56"])
    monkeypatch.setattr(exchange, "_MOST_GATHERED", 0)
    for size in (2, 3, 4):
        assert run(size, Minefield, ["total_timesteps=56"]) == [expected] * size
    assert whole == [expected] * 2


OPTIONS = {
    "minibatches without frames of some ranks": ["optim.bs=2"],
    "pieces": ["optim.micro_bs=4", "optim.max_entities=40"],
    "early end": ["ppo.target_kl=1e-7"],
    "value network": ["vf_net=(d_model: 16, n_layer: 1, n_head: 2)"],
    "value bins": [
        "ppo.value_loss=hl_gauss",
        "ppo.clip_vloss=false",
        "ppo.value_bins=(low: -1, high: 1, num_bins: 11)",
    ],
    "scaled rewards": ["ppo.reward_scaling=true"],
    "entropy target": ["ppo.ent_targets={move: 0.9}", "ppo.weight_by=frame", "ppo.ratio=frame"],
    "magnet": ["ppo.magnet=(every: 60)"],
    "evaluations": ["eval.interval=60", "eval.steps=5", "eval.num_envs=3", "eval.processes=1"],
    "memory": ["net.memory=(of: frame)", "ppo.seq_len=4", "optim.bs=16"],
    "lessons": [
        "env.vary.max_steps=9",
        'env.vary.width="uniform 150 250"',
        'curricula={"mines": (lessons: ['
        '(name: "few", vary: {"max_mines": "int 0 2"}, '
        'until: ["episodic_reward.mean >= -9"], episodes: 4), '
        '(name: "some", vary: {"max_mines": "int 1 4"}, until: ["lesson_step >= 50"]), '
        '(name: "all", vary: {"max_mines": "int 0 9"})], review: 0.3)}',
    ],
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_gives_the_same_bits(option: str) -> None:
    assert_equal(Minefield, OPTIONS[option], sizes=(3,))


def test_cloning_beside_learning_gives_the_same_bits(tmp_path: Path) -> None:
    recorded = ["capture_samples=shown.rec", "scale.shards=1", "data_dir=."]
    run(1, Minefield, recorded, tmp_path / "shown")
    path = tmp_path / "shown" / "shown.rec"
    assert_equal(Minefield, [f"bc.path={path}", "bc.bs=8"], sizes=(3,))


def test_ranks_with_other_demonstrations_are_named(tmp_path: Path) -> None:
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
        assert message.startswith("rank 1: demonstrations: expected that of rank 0")
    assert len(messages) == 2


@pytest.mark.parametrize("env", [Duel, Targets, Camp])
def test_every_kind_of_world_gives_the_same_bits(env: Any) -> None:
    assert_equal(env, ["rollout.num_envs=10"], sizes=(2, 4))


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
