"""A field more in a class of frames is wherever frames are, without a line elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from enn_trainer.algorithms.ppo.returns import advantages
from enn_trainer.config import OptimizerConfig, PPOConfig
from enn_trainer.experience.collector import RolloutStorage
from enn_trainer.experience.players import Decisions
from enn_trainer.runtime.shards import Shards
from entity_env.ragged import Ragged
from entity_env.serialization import messages
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch, RaggedTensor
from tests.enn_trainer.algorithms.ppo.builders import a_rollout, optimize


@dataclass(frozen=True)
class TaggedBatch(EntityBatch):
    """Frames with tags, two of each, on the device."""

    tags: Mapping[str, RaggedTensor] = field(default_factory=dict)


@dataclass
class TaggedObs(VecObs):
    """Frames with tags."""

    tags: dict[str, Ragged] = field(default_factory=dict)


def tagged(batch: EntityBatch, first: int = 0) -> TaggedBatch:
    numbers = torch.arange(first, first + batch.num_frames).repeat_interleave(2)
    lengths = np.full(batch.num_frames, 2)
    return TaggedBatch(**vars(batch), tags={"number": RaggedTensor(numbers, lengths)})


def numbers_of(batch: Any) -> list[int]:
    """Return the tag of each frame."""
    rows = batch.tags["number"]
    assert rows.lengths.tolist() == [2] * batch.num_frames
    return np.asarray(rows.values)[::2].tolist()


def test_new_field_is_indexed_sliced_and_concatenated() -> None:
    batch = tagged(a_rollout()[1].batch)
    assert numbers_of(batch.take(np.array([5, 0, 5]))) == [5, 0, 5]
    assert numbers_of(batch.slice(slice(2, 4))) == [2, 3]
    joined = TaggedBatch.cat([batch.slice(slice(3, 5)), batch.slice(slice(0, 1))])
    assert numbers_of(joined) == [3, 4, 0]


@pytest.mark.parametrize("worth_writing", [1, 10**6])
def test_new_field_is_in_the_storage_of_a_rollout(
    worth_writing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_trainer.experience.collector._MIN_WRITE_BYTES", worth_writing)
    rollout = a_rollout(num_envs=4, steps=3)[1]
    batch = tagged(rollout.batch)
    whole = Decisions(
        rollout.actions, rollout.logprobs, rollout.entropies, rollout.values.flatten()
    )
    storage = RolloutStorage(12)
    for step in (slice(0, 4), slice(4, 8), slice(8, 12)):
        storage.add(batch.slice(step), whole.slice(step))
    frames, decisions = storage.take()
    assert numbers_of(frames) == list(range(12))
    assert torch.equal(decisions.values, whole.values)


def test_new_field_is_in_minibatches() -> None:
    net, rollout = a_rollout(num_envs=4, steps=6)
    rollout, seen = replace(rollout, batch=tagged(rollout.batch)), list[int]()
    net.register_forward_pre_hook(lambda _, arguments: seen.extend(numbers_of(arguments[0])))
    ppo = PPOConfig()
    optimize(
        net,
        torch.optim.Adam(net.parameters(), lr=0.0),
        rollout,
        advantages(rollout, ppo),
        ppo=ppo,
        optim=OptimizerConfig(bs=6, micro_bs=4, update_epochs=2),
        ent_coef=0.0,
        seed=3,
    )
    assert sorted(seen) == sorted([*range(24)] * 2)
    assert seen[:24] != list(range(24))


def test_new_field_is_in_the_shards_of_two_ranks() -> None:
    rollout = a_rollout(num_envs=4, steps=2)[1]
    of_ranks = []
    for rank in range(2):
        shards = Shards.of(4, 1, 2).for_rank(rank, 2)
        columns = np.arange(8).reshape(2, 4)[:, 2 * rank : 2 * rank + 2].flatten()
        batch = tagged(rollout.batch).take(columns)
        own = {name: rows.take(columns) for name, rows in rollout.actions.items()}
        of_rank = replace(rollout, batch=batch, actions=own, entropies=own, shards=shards)
        of_ranks += [numbers_of(frames) for frames in of_rank.frames_of_shards()]
    assert of_ranks == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_new_field_is_in_the_messages_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(messages._CLASSES, "TaggedObs", TaggedObs)

    def of_worker(numbers: list[int]) -> TaggedObs:
        rows: npt.NDArray[np.int64] = np.repeat(numbers, 2)
        blank = np.zeros(len(numbers), np.float32)
        tags = {"number": Ragged(rows, np.full(len(numbers), 2))}
        return TaggedObs({}, {}, {}, blank, blank > 0, {}, tags=tags)

    pieces = [messages.unpack(messages.pack(of_worker(numbers))) for numbers in ([4, 2], [7])]
    joined = VecObs.cat(pieces)
    assert isinstance(joined, TaggedObs)
    assert joined.tags["number"].values.tolist() == [4, 4, 2, 2, 7, 7]
    assert joined.take(np.array([2, 0])).tags["number"].values.tolist() == [7, 7, 4, 4]
