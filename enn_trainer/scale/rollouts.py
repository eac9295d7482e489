"""Rollouts of several ranks: what every rank needs to know of the frames of all."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.config import TrainConfig
from enn_trainer.experience.collector import Collector, Rollout, collect, merged
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.lessons import Lessons
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.runtime.interrupt import UpdateAbandoned
from enn_trainer.scale.joining import check_equal
from enn_trainer.scale.recording import RankRecorder
from enn_trainer.state import State

_OF_COLUMNS = ("values", "rewards", "terminated", "truncated", "last_values")


def collect_in_ranks(
    collector: Collector, config: TrainConfig, state: State, context: ExecutionContext
) -> Rollout:
    """Collect the frames of this rank, and return them with what is known of those of all.

    Args:
        collector: the environments of this rank, with the players.
        config: configuration of the run.
        state: state of the run.
        context: interrupt check, timers, shards and processes of the run.

    Raises:
        UpdateAbandoned: a rank abandoned its rollout after a request to stop.
        RankError: a rank draws arguments of environments from other samplers.
    """
    group = context.group
    own: Rollout | None = None
    with suppress(UpdateAbandoned):  # which is raised again below, in all ranks
        own = collect(
            collector,
            steps=config.rollout.steps,
            first_frame=state.step,
            seq_len=config.ppo.seq_len,
            context=context,
        )
    if own is not None and group.size == 1:
        return own
    messages = group.gather(None if own is None else _plain(own, state, context), "collecting")
    found = [one for one in messages if one is not None]
    if own is None or len(found) < group.size:
        raise UpdateAbandoned
    check_equal([{"set_parameters": one["parameters"]} for one in found])
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
        padding=_padding_of_ranks(found, device),
        decisions=np.concatenate([one["decisions"] for one in found], axis=1).flatten(),
        actors={name: sum(one["actors"][name] for one in found) for name in own.actions},
    )


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


def _plain(own: Rollout, state: State, context: ExecutionContext) -> dict[str, Any]:
    """Return what other ranks need to know of the frames of this one, as plain data."""
    finals = torch.zeros_like(own.values).masked_scatter(own.truncated, own.final_values)
    assert context.shards is not None
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
            ended.environment + context.shards.columns.start,
            dict(ended.metrics),
            ended.steps,
            ended.is_counted,
        ],
    }
