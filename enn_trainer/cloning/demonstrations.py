"""Recorded frames as tensors, with what was done in them and what came of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.checkpoints.migrate.space_diff import label_orders, space_differences
from enn_trainer.errors import ConfigError
from entity_env.ragged import Ragged, exclusive_cumsum
from entity_env.recording.entity_gym_samples import open_entity_gym_samples
from entity_env.recording.read_recording import Episode, Recording
from entity_env.recording.recording_format import Decisions, RecordingError
from entity_env.spaces import (
    GLOBAL,
    ActionName,
    ActionSpace,
    ObsSpace,
)
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor
from rogue_net.wiring import adapt_batch

_MADE_TENSORS_AT = 4096  # frames that wait as arrays, so that these never are a second copy of all


@dataclass(frozen=True)
class Demonstrations:
    """F recorded frames.

    Attributes:
        batch: the frames.
        actions: per action int64 (actors,) per frame, what was chosen.
        teacher: per action float32 (actors * choices,) per frame, row by row, the recorded logits
            or log-probabilities of all choices, or of all actees; empty where none were asked for.
        returns: (F,) float32, the discounted return from each frame; not a number where it is not
            known.
        endings: how many frames without a return are of episodes that ended in which way.
    """

    batch: EntityBatch
    actions: Mapping[ActionName, RaggedTensor]
    teacher: Mapping[ActionName, RaggedTensor]
    returns: Tensor
    endings: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.batch.num_frames

    def take(self, frames: npt.NDArray[np.int64]) -> "Demonstrations":
        """The given frames, in the given order."""
        index = torch.from_numpy(frames).to(self.returns.device)
        return Demonstrations(
            self.batch.take(frames),
            {name: rows.take(frames) for name, rows in self.actions.items()},
            {name: rows.take(frames) for name, rows in self.teacher.items()},
            self.returns.index_select(0, index),
            self.endings,
        )

    def num_actors(self) -> npt.NDArray[np.int64]:
        """(F,) int64, of all actions together."""
        nothing = np.zeros(len(self), dtype=np.int64)
        return sum((rows.lengths for rows in self.actions.values()), start=nothing)

    def num_entities(self) -> npt.NDArray[np.int64]:
        """(F,) int64; what is global is no entity."""
        nothing = np.zeros(len(self), dtype=np.int64)
        features = self.batch.features.items()
        return sum((rows.lengths for name, rows in features if name != GLOBAL), start=nothing)

    @staticmethod
    def cat(pieces: Sequence["Demonstrations"]) -> "Demonstrations":
        """The frames of all pieces, one piece after the other."""
        if len(pieces) == 1:
            return pieces[0]
        first = pieces[0]
        return Demonstrations(
            EntityBatch.cat([piece.batch for piece in pieces]),
            {n: RaggedTensor.cat([p.actions[n] for p in pieces]) for n in first.actions},
            {n: RaggedTensor.cat([p.teacher[n] for p in pieces]) for n in first.teacher},
            torch.cat([piece.returns for piece in pieces]),
            sum((piece.endings for piece in pieces), Counter()),
        )


def open_recordings(paths: Sequence[str | Path]) -> dict[Path, Recording]:
    """Recordings of one world, of this project or of entity-gym.

    Raises:
        ConfigError: there is no such file, one is given twice, or they are of different worlds.
        RecordingError: a file is no recording or is damaged.
    """
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError(f"RECORDING: expected each file once, got {', '.join(map(str, paths))}")
    recordings = {Path(path): open_recording(Path(path)) for path in paths}
    (first, world), *others = recordings.items()
    for path, other in others:
        refuse_other_world(str(path), other, str(first), world.obs_space, world.action_space)
    return recordings


def open_recording(path: Path, field: str = "RECORDING") -> Recording:
    """A recording of this project or of entity-gym, which `field` names in messages.

    Raises:
        ConfigError: there is no such file.
        RecordingError: the file is no recording or is damaged.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(8)
    except OSError as error:
        raise ConfigError(f"{field}: expected a file, got {path} ({error.strerror})") from None
    # entity-gym begins with a version, 0 or 1, of eight bytes
    is_entity_gym = begin[1:] == bytes(7) and begin[0] in (0, 1)
    return open_entity_gym_samples(path) if is_entity_gym else Recording.open(path)


def refuse_other_world(
    path: str,
    recording: Recording,
    world: str,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
) -> None:
    """Refuse a recording whose spaces differ in more than the order of types and features.

    Raises:
        ConfigError: it does; lists the differences.
    """
    theirs = recording.obs_space, recording.action_space
    different = space_differences(obs_space, action_space, *theirs)
    different += label_orders(action_space, theirs[1])
    if different:
        raise ConfigError(f"{path}: expected a recording of {world}; {'; '.join(different)}")


@dataclass(frozen=True)
class Reading:
    """How recordings become tensors.

    Attributes:
        obs_space: the order of types and features that the network knows.
        gamma: discount factor of the returns.
        device: where the tensors are kept.
        teacher_for: the setting that needs the probabilities of all choices; None where none does.
        max_frames: to read of all recordings together, about; None for no limit.
    """

    obs_space: ObsSpace
    gamma: float
    device: torch.device
    teacher_for: str | None = None
    max_frames: int | None = None

    def read(self, recordings: Mapping[Path, Recording]) -> Demonstrations | None:
        """All frames, episode after episode; None if there are none.

        Raises:
            ConfigError: `teacher_for` needs what was not recorded.
            RecordingError: a file is damaged, or what was done does not fit what is shown.
        """
        limit = None if self.max_frames is None else max(1, self.max_frames // len(recordings))
        pieces = [
            piece
            for path, recording in recordings.items()
            for piece in self._pieces(path, recording, limit)
        ]
        return Demonstrations.cat(pieces) if pieces else None

    def _pieces(
        self, path: Path, recording: Recording, limit: int | None
    ) -> Iterable[Demonstrations]:
        waiting: list[Episode] = []
        total = since = 0
        for episode in recording.episodes():
            if limit is not None and total >= limit:
                break
            if len(episode.decisions):
                waiting.append(episode)
                total, since = total + len(episode.decisions), since + len(episode.decisions)
            if since >= _MADE_TENSORS_AT:
                yield self._tensors(path, recording, waiting)
                waiting, since = [], 0
        if waiting:
            yield self._tensors(path, recording, waiting)

    def _tensors(
        self, path: Path, recording: Recording, episodes: Sequence[Episode]
    ) -> Demonstrations:
        for episode in episodes:
            _check_steps(path, episode)
        decisions = Decisions.cat([episode.decisions for episode in episodes])
        batch = EntityBatch.of(decisions.obs, self.device)
        returns = [returns_of(episode, self.gamma) for episode in episodes]
        endings: Counter[str] = Counter()
        for episode, known in zip(episodes, returns, strict=True):
            endings[episode.ending] += int(np.isnan(known).sum())
        actions, teacher = {}, {}
        for name, space in recording.action_space.items():
            where = f"{path}: action {name!r}"
            acting = batch.actions[name]
            chosen = decisions.actions.get(name)
            if chosen is None:
                chosen = Ragged.empty(np.zeros(0, dtype=np.int64), len(decisions))
            _refuse_impossible(where, chosen, acting, space)
            actions[name] = RaggedTensor.of(chosen, self.device)
            if self.teacher_for is not None:
                logits = decisions.logits.get(name)
                rows = _row_by_row(where, logits, acting, space, self.teacher_for)
                teacher[name] = RaggedTensor.of(rows, self.device)
        return Demonstrations(
            adapt_batch(batch, recording.obs_space, self.obs_space),
            actions,
            teacher,
            torch.from_numpy(np.concatenate(returns)).to(self.device),
            +endings,
        )


def _check_steps(path: Path, episode: Episode) -> None:
    """Raise if frames are of steps whose rewards are not in the recording."""
    last = int(episode.steps.max(initial=-1))
    if episode.ending == "terminated" and last >= len(episode.rewards):
        raise RecordingError(
            f"{path}: episode {episode.number}: expected steps up to {len(episode.rewards) - 1}, "
            f"as there are rewards, got step {last}"
        )


def returns_of(episode: Episode, gamma: float) -> npt.NDArray[np.float32]:
    """The discounted return from each frame of an episode.

    It is known where the episode ended by itself: what is cut off or still runs had a future that
    is not in the file.

    Returns:
        (K,) float32, of the K frames that were kept; not numbers where it is not known.
    """
    if episode.ending != "terminated":
        return np.full(len(episode.steps), np.nan, dtype=np.float32)
    rewards = episode.rewards[::-1].tolist()
    backwards = list(accumulate(rewards, lambda later, reward: reward + gamma * later))
    returns: npt.NDArray[np.float32] = np.array(backwards[::-1], dtype=np.float32)[episode.steps]
    return returns


def with_actors(shown: Demonstrations) -> Demonstrations:
    """The frames in which something was chosen."""
    return shown.take(np.flatnonzero(shown.num_actors()))


def _refuse_impossible(where: str, chosen: Ragged, acting: ActionBatch, space: ActionSpace) -> None:
    """Refuse choices that are not of the actors, do not exist, or were not allowed."""
    lengths = acting.actors.lengths
    if not np.array_equal(chosen.lengths, lengths):
        raise RecordingError(
            f"{where}: expected a choice of each of {lengths.sum()} actors, got "
            f"{chosen.lengths.sum()}"
        )
    per_actor = space.num_choices(acting)
    values = chosen.values
    allowed = (values >= 0) & (values < per_actor)
    if acting.mask is not None:
        mask = acting.mask.values.cpu().numpy().reshape(-1)
        first = exclusive_cumsum(per_actor)
        allowed[allowed] = mask[(first + values)[allowed]]
    if not allowed.all():
        wrong = int(np.flatnonzero(~allowed)[0])
        raise RecordingError(
            f"{where}: expected a choice that is allowed, got {values[wrong]} of "
            f"{per_actor[wrong]}, which is not, by {int((~allowed).sum())} actors"
        )


def _row_by_row(
    where: str,
    logits: Ragged | None,
    acting: ActionBatch,
    space: ActionSpace,
    setting: str,
) -> Ragged:
    """What was recorded of all choices, one actor after the other."""
    ends = np.cumsum(acting.actors.lengths)
    numbers_before = np.cumsum([0, *space.num_parameters(acting)])
    expected = numbers_before[ends] - numbers_before[ends - acting.actors.lengths]
    if logits is None:
        logits = Ragged.empty(np.zeros(0, dtype=np.float32), len(expected))
    lengths = logits.lengths * logits.size2()
    if not np.array_equal(lengths, expected):
        raise ConfigError(
            f"{setting}: expected a recording with the logits of all choices, {expected.sum()} of "
            f"{where}, got {lengths.sum()}; record them, or take the loss cross_entropy"
        )
    return replace(logits, values=logits.values.reshape(-1).astype(np.float32), lengths=lengths)
