"""Time of exchanges in a slow network, against the formula of `docs/scale.md`."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from enn_trainer import StateManager, Trainer
from enn_trainer.base.group import Group
from enn_trainer.runtime.exchange import are_gathered
from entity_env.examples import Minefield
from tests.enn_trainer.run.thread_group import Board, ThreadGroup, group_of_context, in_ranks


class SlowGroup(ThreadGroup):
    """A rank whose exchanges take latency + bytes / bandwidth."""

    def __init__(self, rank: int, board: Board, latency_s: float, bytes_per_s: float) -> None:
        super().__init__(rank, board)
        self._latency_s, self._bytes_per_s = latency_s, bytes_per_s
        self.slept_s, self.messages = 0.0, 0

    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        found = super().exchange(data, phase)
        self._sleep(sum(map(len, found)) - len(data))
        return found

    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        got = super().exchange_slices(sent, counts)
        self._sleep((len(got) - counts[self.rank]) * got.shape[1] * got.element_size())
        return got

    def _sleep(self, num_bytes: int) -> None:
        seconds = self._latency_s + num_bytes / self._bytes_per_s
        time.sleep(seconds)
        self.slept_s += seconds
        self.messages += 1


def cost_of_update(p: int, f: int, k: int, r: int, s: int) -> tuple[int, float]:
    """Return the messages and bytes of an update, with the symbols of the page."""
    rest = 350 * k * s * (r - 1) / r + 26 * f * (r - 1) / r
    if are_gathered(4 * p, r, s):
        return k + 4, 4 * k * p * s * (r - 1) / r + rest
    return 3 * k + 4, 4 * k * p * (s / r + 1) * (r - 1) / r + rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "shards", "width", "latency_s", "bytes_per_s"),
    [
        (2, 2, 16, 1e-3, 125e6),
        (2, 4, 64, 1e-3, 125e6),
        (3, 3, 16, 0.1, 125e6),
        (4, 4, 64, 1e-3, 125e6),
        (4, 8, 128, 0.0, 125e6),
    ],
)
def test_exchange_time_follows_the_formula(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    shards: int,
    width: int,
    latency_s: float,
    bytes_per_s: float,
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [
        *("rollout.num_envs=8", "rollout.steps=16", "rollout.processes=1", "optim.bs=32"),
        *("net.n_layer=1", "net.n_head=2", f"net.d_model={width}", f"scale.shards={shards}"),
        *("optim.update_epochs=1", "checkpoint.every_seconds=inf", "total_timesteps=384"),
    ]

    def work(group: Group) -> tuple[float, int, int]:
        assert isinstance(group, ThreadGroup)
        slow = SlowGroup(group.rank, group.board, latency_s, bytes_per_s)
        with group_of_context(slow):
            manager = StateManager(overrides=settings)
            manager.say = lambda line: None
            with Trainer(manager, Minefield) as trainer:
                trainer.step()
                begun_s, begun = slow.slept_s, slow.messages
                trainer.step()
                parameters = sum(x.numel() for x in trainer.state.agent.parameters())
            return slow.slept_s - begun_s, slow.messages - begun, parameters

    for seconds, messages, parameters in in_ranks(ranks, work):
        expected_messages, num_bytes = cost_of_update(parameters, 128, 4, ranks, shards)
        assert messages == expected_messages
        expected_s = messages * latency_s + num_bytes / bytes_per_s
        assert seconds == pytest.approx(expected_s, rel=0.1)
