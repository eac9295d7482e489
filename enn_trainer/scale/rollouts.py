"""Rollouts of several ranks: what every rank needs to know of the frames of all."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.config import TrainConfig
from enn_trainer.experience.collector import Collector, Rollout, collect, merged
from enn_trainer.experience.episodes import Episodes
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.runtime.interrupt import UpdateAbandoned
from enn_trainer.scale.recording import RankRecorder

_OF_COLUMNS = ("values", "rewards", "terminated", "truncated", "last_values")


def collect_in_ranks(
    collector: Collector, config: TrainConfig, first_frame: int, context: ExecutionContext
) -> Rollout:
    """Collect the frames of this rank, and return them with what is known of those of all.

    Args:
        collector: the environments of this rank, with the players.
        config: configuration of the run.
        first_frame: number of frames of the run before.
        context: interrupt check, timers, shards and processes of the run.

    Raises:
        UpdateAbandoned: a rank abandoned its rollout after a request to stop.
    """
    group = context.group
    own: Rollout | None = None
    with suppress(UpdateAbandoned):  # which is raised again below, in all ranks
        own = collect(
            collector,
            steps=config.rollout.steps,
            first_frame=first_frame,
            seq_len=config.ppo.seq_len,
            context=context,
        )
    if own is not None and group.size == 1:
        return own
    messages = group.gather(None if own is None else _plain(own, context), "collecting")
    found = [one for one in messages if one is not None]
    if own is None or len(found) < group.size:
        raise UpdateAbandoned
    device = own.values.device

    def columns(name: str) -> Tensor:
        of_all = np.concatenate([one[name] for one in found], axis=-1)
        return torch.from_numpy(of_all).to(device)

    of_columns: dict[str, Any] = {name: columns(name) for name in _OF_COLUMNS}
    metrics = [of_shard for one in found for of_shard in one["metrics"]]
    ended = Episodes.cat([Episodes(*one["episodes"]) for one in found])
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
        decisions=np.concatenate([one["decisions"] for one in found], axis=1).flatten(),
        actors={name: sum(one["actors"][name] for one in found) for name in own.actions},
    )


def _plain(own: Rollout, context: ExecutionContext) -> dict[str, Any]:
    """Return what other ranks need to know of the frames of this one, as plain data."""
    finals = torch.zeros_like(own.values).masked_scatter(own.truncated, own.final_values)
    assert context.shards is not None
    ended, metrics, steps = own.episodes
    return {
        **{name: getattr(own, name).cpu().numpy() for name in _OF_COLUMNS},
        "final_values": finals.cpu().numpy(),
        "decisions": own.num_decisions().reshape(len(own.rewards), -1),
        "actors": own.num_actors(),
        "metrics": list(own.metrics_of_shards),
        "episodes": [ended + context.shards.columns.start, dict(metrics), steps],
    }
