"""`RankExchange`: what several ranks exchange in an update, by which each knows the whole of it."""

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
from enn_trainer.experience.collector import Collector, Rollout, merged
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

_OF_COLUMNS = ("values", "rewards", "terminated", "truncated", "last_values")


def exchange_of(group: Group, shards: Shards, device: torch.device) -> Exchange:
    """Return the exchange of a run.

    Args:
        group: processes of the run.
        shards: groups of its environments.
        device: device of the agent.
    """
    return ONE_PROCESS if group.size == 1 else RankExchange(group, shards, device)


class RankExchange(Exchange):
    """Exchange of several ranks, each of which computes some of the shards.

    Args:
        group: processes of the run.
        shards: groups of its environments, with those of this rank.
        device: device of the agent.
    """

    def __init__(self, group: Group, shards: Shards, device: torch.device) -> None:
        self.group, self._shards, self._device = group, shards, device

    def rollout(self, collect: Callable[[], Any], collector: Collector, state: State) -> Rollout:
        """Return the rollout of this rank with the data of all that learning needs.

        Raises:
            UpdateAbandoned: a rank abandoned its rollout after a request to stop.
            RankError: a rank draws arguments of environments from other samplers.
        """
        own: Rollout | None = None
        with suppress(UpdateAbandoned):  # which is raised again below, in all ranks
            own = collect()
        message = None if own is None else _plain(own, state, self._shards)
        of_ranks = [x for x in self.group.gather(message, "collecting") if x is not None]
        if own is None or len(of_ranks) < self.group.size:
            raise UpdateAbandoned
        check_equal([{"set_parameters": one["parameters"]} for one in of_ranks])

        def columns(name: str) -> Tensor:
            joined = np.concatenate([one[name] for one in of_ranks], axis=-1)
            return torch.from_numpy(joined).to(self._device)

        of_columns: dict[str, Any] = {name: columns(name) for name in _OF_COLUMNS}
        metrics = [of_shard for one in of_ranks for of_shard in one["metrics"]]
        ended = Episodes.cat([Episodes(*one["episodes"]) for one in of_ranks])
        episodes = ended.take(np.lexsort((ended.environment, ended.steps)))
        for recorder in collector.watchers:
            if isinstance(recorder, RankRecorder):
                recorder.write(episodes)
        return replace(
            own,
            **of_columns,
            final_values=columns("final_values")[of_columns["truncated"]],
            metrics=merged(metrics),
            metrics_of_shards=metrics,
            episodes=episodes,
            padding=_padding_of_ranks(of_ranks, self._device),
            decisions=np.concatenate([one["decisions"] for one in of_ranks], axis=1).flatten(),
            actors={name: sum(one["actors"][name] for one in of_ranks) for name in own.actions},
        )

    def check_in_minibatch(self, check: Check) -> Check:
        """Return no check: ranks abandon an update together, see `gradient`."""
        return lambda: None

    def gradient(self, gradients: Gradients, sums: Sequence[S], check: Check) -> list[S]:
        """Let `grad` of the parameters be the sums over all shards; all ranks get their sums."""
        is_abandoned = False
        try:
            check()
        except UpdateAbandoned:
            is_abandoned = True
        counts = self._shards.counts(self.group.size)
        own = [(is_abandoned, of_shard.plain()) for of_shard in sums]
        of_shards = gradients.sum(self.group, counts, own)
        if any(is_abandoned for is_abandoned, _ in of_shards):
            raise UpdateAbandoned
        return [type(sums[0]).of_plain(plain, self._device) for _, plain in of_shards]

    def input_stats(self, agent: Any, frames: Sequence[EntityBatch]) -> None:
        """Add the frames of all shards to the input statistics of an agent, in their order."""
        own = [
            {name: [x.cpu().numpy() for x in moments] for name, moments in of_shard.items()}
            for of_shard in (input_moments(agent, batch) for batch in frames)
        ]
        merge_moments(
            agent,
            [
                {
                    n: Moments(*(torch.from_numpy(x).to(self._device) for x in m))
                    for n, m in one.items()
                }
                for one in self.group.gather_shards(own, "input statistics")
            ],
        )

    def metrics(
        self, state: State, sums: Sequence[dict[str, Any]], scalars: Mapping[str, float]
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Return the statistics of all shards, and the scalars of rank 0.

        All ranks get the training time of rank 0, on which schedules may depend.

        Raises:
            RankError: the agents of some ranks differ.
        """
        own = [[*sums], dict(scalars), state.time_used, digest_of(state.agent)]
        of_ranks = self.group.gather(own, "metrics")
        all_sums, all_scalars, times, digests = zip(*of_ranks, strict=True)
        differ = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if differ:
            raise RankError(
                f"rank {', '.join(map(str, differ))}: expected the parameters of rank 0 after step "
                f"{state.step}, got others; ranks need processors and versions of one kind"
            )
        state.time_used = times[0]
        of_all = {**all_scalars[0], "eps": sum(one["eps"] for one in all_scalars)}
        return [one for of_rank in all_sums for one in of_rank], of_all


def _padding_of_ranks(found: Sequence[dict[str, Any]], device: torch.device) -> Tensor | None:
    """Return `Rollout.padding` of all ranks; None if no rank has any."""
    flags = [one["padding"] for one in found]
    if all(of_rank is None for of_rank in flags):
        return None
    of_all = [
        np.zeros_like(one["terminated"]) if of_rank is None else of_rank
        for one, of_rank in zip(found, flags, strict=True)
    ]
    return torch.from_numpy(np.concatenate(of_all, axis=1)).to(device)


def _plain(own: Rollout, state: State, shards: Shards) -> dict[str, Any]:
    """Return what other ranks need to know of the frames of this one, as plain data."""
    finals = torch.zeros_like(own.values).masked_scatter(own.truncated, own.final_values)
    ended = own.episodes
    lessons = state.part(Lessons)
    return {
        **{name: getattr(own, name).cpu().numpy() for name in _OF_COLUMNS},
        "final_values": finals.cpu().numpy(),
        "padding": None if own.padding is None else own.padding.cpu().numpy(),
        "decisions": own.num_decisions().reshape(len(own.rewards), -1),
        "actors": own.num_actors(),
        "parameters": {} if lessons is None else lessons.parameters,
        "metrics": list(own.metrics_of_shards),
        "episodes": [
            ended.environment + shards.columns.start,
            dict(ended.metrics),
            ended.steps,
            ended.is_counted,
        ],
    }
