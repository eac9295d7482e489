"""ThreadPool change when things are computed, and nothing of what comes out."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from enn_trainer import Callback, Trainer
from enn_trainer.algorithms import minibatches
from enn_trainer.experience import players
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.runtime.execution import ThreadPool, cost_of_entity
from entity_env import EnvList
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import NetOutput, RogueNet, RogueNetConfig
from rogue_net.wiring import Wired
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.resuming import assert_same, of_time
from tests.enn_trainer.worlds import Meadow


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_are_in_the_order_of_tasks(count: int) -> None:
    """Also where the first tasks take longest."""

    def task(i: int) -> int:
        time.sleep(0.002 * (20 - i))
        return i

    taken: list[int] = []
    with ThreadPool(count) as threads:
        threads.run([lambda i=i: task(i) for i in range(20)], taken.append)  # type: ignore[misc]
    assert taken == list(range(20))


def test_tasks_run_at_the_same_time() -> None:
    """Each waits for the other; alone it would wait in vain."""
    both = threading.Barrier(2, timeout=20)
    ranks: list[int] = []
    with ThreadPool(2) as threads:
        threads.run([both.wait, both.wait], ranks.append)
    assert sorted(ranks) == [0, 1]


def test_one_task_stays_in_the_calling_thread() -> None:
    where: list[int] = []
    with ThreadPool(2) as threads:
        threads.run([threading.get_ident], where.append)
    assert where == [threading.get_ident()]


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_runs_after_the_first_error(count: int) -> None:
    """Neither the task beside it, nor one that waits: what follows may change what they read."""
    running: set[int] = set()

    def task(i: int) -> int:
        running.add(i)
        if i == 3:
            running.discard(i)
            raise ValueError("the third")
        time.sleep(0.02)
        running.discard(i)
        return i

    taken: list[int] = []
    with ThreadPool(count) as threads:
        with pytest.raises(ValueError, match="the third"):
            threads.run([lambda i=i: task(i) for i in range(50)], taken.append)  # type: ignore[misc]
        assert not running
        assert taken == [0, 1, 2]
        threads.run([lambda: 7, lambda: 8], taken.append)  # they go on after it
    assert taken == [0, 1, 2, 7, 8]


def test_error_in_take_cancels_the_tasks() -> None:
    begun: list[int] = []

    def task(i: int) -> int:
        begun.append(i)
        return i

    def take(result: int) -> None:
        raise KeyError(result)

    with ThreadPool(2) as threads:
        with pytest.raises(KeyError):
            threads.run([lambda i=i: task(i) for i in range(100)], take)  # type: ignore[misc]
        known = len(begun)
        assert known < 100
        time.sleep(0.05)
        assert len(begun) == known


@pytest.mark.parametrize("grad", [True, False])
def test_tasks_have_the_grad_mode_of_the_caller(grad: bool) -> None:
    """Torch keeps this for each thread apart."""
    seen: list[bool] = []
    with ThreadPool(2) as threads, torch.set_grad_enabled(grad):
        threads.run([torch.is_grad_enabled] * 4, seen.append)
    assert seen == [grad] * 4


def test_pool_threads_have_one_torch_thread_each() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    with ThreadPool(2) as threads, threads.at_work():
        threads.run([torch.get_num_threads] * 4, seen.append)
        assert torch.get_num_threads() == 1
    assert seen == [1] * 4
    assert torch.get_num_threads() == before


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few frames are cut like many."""
    monkeypatch.setattr(minibatches, "LEAST_COST", 3 * 8**2)
    monkeypatch.setattr(minibatches, "MICROBATCH_ENTITIES", 12)
    monkeypatch.setattr(players, "LEAST_COST", 2 * 8**2)
    monkeypatch.setattr(players, "MAX_FRAMES", 3)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


BOTH = ["net.embd_pdrop=0.1", "vf_net.d_model=8", "vf_net.n_layer=1", "eval.steps=4"]
EVALUATED = ["eval.interval=24", "eval.num_envs=5"]


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "most"), [([], 3), ([*BOTH, *EVALUATED], 2)])
def test_results_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, overrides: list[str], most: int, small_pieces: None
) -> None:
    """A run is a function of its configuration, whatever else the machine does."""
    managers, passes = [], []

    class Watching(Callback):
        def on_train_start(self, trainer: Trainer) -> None:
            def note(*_: object) -> None:
                passes.append(threading.current_thread().name)

            trainer.state.agent.register_forward_pre_hook(note)

    settings = ["total_timesteps=48", *overrides]
    for count in (1, most):
        passes.clear()
        with torch_threads(count):
            managers.append(run_small(tmp_path, *settings, callbacks=[Watching()]))
            assert torch.get_num_threads() == count
        assert ({name[:4] for name in passes} == {"lane"}) == (count > 1)
        assert len(passes) > 2 * (48 / 6 + 48 / 10), "frames were not cut"
    one, other = managers
    assert_same(other.state, one.state)
    assert tracked_of(other.state.metrics) == tracked_of(one.state.metrics)


def tracked_of(metrics: Mapping[str, float]) -> str:
    return repr({tag: value for tag, value in metrics.items() if not of_time(tag)})


@pytest.mark.slow
def test_custom_network_gets_all_frames_at_once(tmp_path: Path, small_pieces: None) -> None:
    """In the thread that trains: it may remember something, or look at frames together."""
    frames: list[int] = []
    threads: set[str] = set()

    class Own(RogueNet):
        def forward(self, batch: EntityBatch, *rest: Any, **options: Any) -> NetOutput:
            frames.append(batch.num_frames)
            threads.add(threading.current_thread().name)
            return super().forward(batch, *rest, **options)

    envs = EnvList(Meadow, 1)
    net = RogueNet.__new__(Own)
    config = RogueNetConfig(d_model=8, n_layer=1)
    Own.__init__(net, config, envs.obs_space(), envs.action_space(), {"value": 1})
    with torch_threads(2):
        run_small(tmp_path, "total_timesteps=24", agent=net)
        assert torch.get_num_threads() == 2
    assert set(frames) <= {6, 16, 8, 1}, frames
    assert threads == {threading.main_thread().name}


def test_cost_of_entity_by_network() -> None:
    envs = EnvList(Meadow, 1)
    net = RogueNet(RogueNetConfig(d_model=8), envs.obs_space(), envs.action_space(), {"value": 1})
    assert cost_of_entity(net) == 64
    assert cost_of_entity(Wired(net, envs.obs_space())) == 64
    assert cost_of_entity(nn.Linear(1, 1)) is None
    own = Wired(nn.Linear(1, 1), envs.obs_space(), {}, envs.obs_space(), {})
    assert cost_of_entity(own) is None
    assert cost_of_entity(net.to("meta")) is None, "only on the CPU"


def test_microbatches_of_acting_depend_on_the_number_of_frames() -> None:
    for num_frames, width in product(range(0, 5000, 7), (16, 32, 128)):
        pieces = players.equal_slices(num_frames, width**2)
        sizes = [piece.stop - piece.start for piece in pieces]
        assert [i for piece in pieces for i in range(piece.start, piece.stop)] == [
            *range(num_frames)
        ]
        assert len(pieces) == 1 or len(pieces) % 2 == 0
        assert max(sizes) - min(sizes) <= 1
        if len(pieces) > 1:
            few = max(players.MAX_FRAMES, 2 * players.LEAST_COST // width**2)
            assert max(sizes) <= few + 1
            assert (min(sizes) + 1) * width**2 > players.LEAST_COST


def test_microbatches_have_the_outputs_of_the_batch(
    monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    """Choices are the same, and of each actor; also where pieces differ in their most actees."""
    envs = EnvList(Meadow, 9)
    envs.seed(3)
    batch = EntityBatch.of(envs.reset(envs.obs_space()))
    net = RogueNet(RogueNetConfig(d_model=8), envs.obs_space(), envs.action_space(), {"value": 1})
    net.double()
    features = {name: replace(r, values=r.values.double()) for name, r in batch.features.items()}
    batch = replace(batch, features=features)

    def said(seed: int | None) -> Decisions:
        with torch.no_grad(), ThreadPool(2) as threads:
            player = AgentPlayer(net, seed, threads)
            values = player.values(batch, np.arange(9))
            decisions = player.choose(batch, np.arange(9), 7)
            torch.testing.assert_close(decisions.values, values)
            return decisions

    cut = [said(5), said(None)]
    monkeypatch.setattr(players, "LEAST_COST", 100 * 8**2)
    for one, other in zip(cut, [said(5), said(None)], strict=True):
        torch.testing.assert_close(one.values, other.values)
        assert one.chosen.keys() == other.chosen.keys() == net.action_space.keys()
        for name, actions in other.chosen.items():
            assert torch.equal(one.chosen[name].values, actions.values)
            for part in ("logprobs", "entropies"):
                rows, expected = getattr(one, part)[name], getattr(other, part)[name]
                torch.testing.assert_close(rows.values, expected.values)
            together = [d.distributions[name].to_rows(batch.actions[name]) for d in (one, other)]
            torch.testing.assert_close(*(rows.values for rows in together))
