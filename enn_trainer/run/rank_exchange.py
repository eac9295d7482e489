"""`RankExchange`: collective operations of several ranks during an update."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.errors import RankError
from enn_trainer.base.group import Group
from enn_trainer.checkpoints.state import State
from enn_trainer.curriculum.lessons import Lessons
from enn_trainer.experience.collector import Collector, Rollout, merge_metrics
from enn_trainer.experience.episodes import Episodes
from enn_trainer.run.joining import check_equal
from enn_trainer.run.rank_recording import RankRecorder
from enn_trainer.runtime.exchange import (
    ONE_PROCESS,
    Check,
    Exchange,
    Gradients,
    S,
    digest_of,
    input_moments,
    merge_moments,
)
from enn_trainer.runtime.interrupt import UpdateAbandoned
from enn_trainer.runtime.shards import Shards
from rogue_net.input_norm import Moments
from rogue_net.ragged import EntityBatch

_COLUMNS = ("values", "rewards", "terminated", "truncated", "last_values")


def exchange_of(group: Group, shards: Shards, device: torch.device) -> Exchange:
    """Return the `Exchange` of a run.

    Args:
        group: processes of the run.
        shards: shards of the environments of this rank.
        device: device of the agent.
    """
    return ONE_PROCESS if group.size == 1 else RankExchange(group, shards, device)


class RankExchange(Exchange):
    """Exchange between ranks, each of which processes some of the shards.

    Args:
        group: processes of the run.
        shards: shards of the environments of this rank.
        device: device of the agent.
    """

    def __init__(self, group: Group, shards: Shards, device: torch.device) -> None:
        self.group, self._shards, self._device = group, shards, device

    def rollout(self, collect: Callable[[], Any], collector: Collector, state: State) -> Rollout:
        """Collect the rollout of this rank, and gather the data that learning needs from all ranks.

        Raises:
            UpdateAbandoned: a rank abandoned its rollout after a request to stop.
            RankError: the samplers of environment arguments differ between ranks.
        """
        local: Rollout | None = None
        with suppress(UpdateAbandoned):  # raised again below, in all ranks
            local = collect()
        message = None if local is None else _plain(local, state, self._shards)
        messages = [x for x in self.group.gather(message, "collecting") if x is not None]
        if local is None or len(messages) < self.group.size:
            raise UpdateAbandoned
        check_equal([{"set_parameters": one["parameters"]} for one in messages])

        def columns(name: str) -> Tensor:
            joined = np.concatenate([one[name] for one in messages], axis=-1)
            return torch.from_numpy(joined).to(self._device)

        tensors: dict[str, Any] = {name: columns(name) for name in _COLUMNS}
        metrics = [shard for one in messages for shard in one["metrics"]]
        ended = Episodes.cat([Episodes(*one["episodes"]) for one in messages])
        episodes = ended.take(np.lexsort((ended.environment, ended.steps)))
        for recorder in collector.watchers:
            if isinstance(recorder, RankRecorder):
                recorder.write(episodes)
        return replace(
            local,
            **tensors,
            final_values=columns("final_values")[tensors["truncated"]],
            metrics=merge_metrics(metrics),
            metrics_of_shards=metrics,
            episodes=episodes,
            padding=_padding_of_ranks(messages, self._device),
            decisions=np.concatenate([one["decisions"] for one in messages], axis=1).flatten(),
            actors={name: sum(one["actors"][name] for one in messages) for name in local.actions},
        )

    def check_in_minibatch(self, check: Check) -> Check:
        """Return a check that does nothing, as ranks abandon an update together in `gradient`."""
        return lambda: None

    def gradient(self, gradients: Gradients, sums: Sequence[S], check: Check) -> list[S]:
        """Sum `grad` of the parameters over all shards, and return the sums of all shards."""
        is_abandoned = False
        try:
            check()
        except UpdateAbandoned:
            is_abandoned = True
        counts = self._shards.counts(self.group.size)
        local = [(is_abandoned, x.plain()) for x in sums]
        results = gradients.sum(self.group, counts, local)
        if any(is_abandoned for is_abandoned, _ in results):
            raise UpdateAbandoned
        return [type(sums[0]).from_plain(plain, self._device) for _, plain in results]

    def input_stats(self, agent: Any, frames: Sequence[EntityBatch]) -> None:
        """Add the frames of all shards, in order, to the input statistics of an agent."""
        local = [
            {name: [x.cpu().numpy() for x in moments] for name, moments in shard.items()}
            for shard in (input_moments(agent, batch) for batch in frames)
        ]
        merge_moments(
            agent,
            [
                {
                    n: Moments(*(torch.from_numpy(x).to(self._device) for x in m))
                    for n, m in one.items()
                }
                for one in self.group.gather_shards(local, "input statistics")
            ],
        )

    def metrics(
        self, state: State, sums: Sequence[dict[str, Any]], scalars: Mapping[str, float]
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Return the statistics of all shards, and the scalars of rank 0.

        The training time of rank 0, which schedules may depend on, is broadcast.

        Raises:
            RankError: the agents of ranks differ.
        """
        message = [[*sums], dict(scalars), state.time_used, digest_of(state.agent)]
        messages = self.group.gather(message, "metrics")
        all_sums, all_scalars, times, digests = zip(*messages, strict=True)
        differ = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if differ:
            raise RankError(
                f"rank {', '.join(map(str, differ))}: expected the parameters of rank 0 after step "
                f"{state.step}, got others; use the same processors and versions for all ranks"
            )
        state.time_used = times[0]
        totals = {**all_scalars[0], "eps": sum(one["eps"] for one in all_scalars)}
        return [one for rank_sums in all_sums for one in rank_sums], totals


def _padding_of_ranks(messages: Sequence[dict[str, Any]], device: torch.device) -> Tensor | None:
    """Return `Rollout.padding` of all ranks; None if no rank has any."""
    flags = [one["padding"] for one in messages]
    if all(flag is None for flag in flags):
        return None
    padding = [
        np.zeros_like(one["terminated"]) if flag is None else flag
        for one, flag in zip(messages, flags, strict=True)
    ]
    return torch.from_numpy(np.concatenate(padding, axis=1)).to(device)


def _plain(local: Rollout, state: State, shards: Shards) -> dict[str, Any]:
    """Return the data of a rollout that other ranks need, as plain data."""
    finals = torch.zeros_like(local.values).masked_scatter(local.truncated, local.final_values)
    ended = local.episodes
    lessons = state.part(Lessons)
    return {
        **{name: getattr(local, name).cpu().numpy() for name in _COLUMNS},
        "final_values": finals.cpu().numpy(),
        "padding": None if local.padding is None else local.padding.cpu().numpy(),
        "decisions": local.num_decisions().reshape(len(local.rewards), -1),
        "actors": local.num_actors(),
        "parameters": {} if lessons is None else lessons.parameters,
        "metrics": list(local.metrics_of_shards),
        "episodes": [
            ended.environment + shards.columns.start,
            dict(ended.metrics),
            ended.steps,
            ended.is_counted,
        ],
    }
