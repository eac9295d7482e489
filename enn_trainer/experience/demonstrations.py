"""Recorded frames as tensors, with the actions that were taken and their returns."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.checkpoints.migrate.space_diff import diff_spaces
from enn_trainer.config.train_config import Who
from enn_trainer.errors import ConfigError
from entity_env.errors import LONG, did_you_mean, short_repr
from entity_env.ragged import Ragged, exclusive_cumsum
from entity_env.recording.entity_gym_samples import is_entity_gym, open_entity_gym_samples
from entity_env.recording.read_recording import Episode, Recording
from entity_env.recording.recording_format import Decisions, RecordingError
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor, restrict_action
from rogue_net.wiring import adapt_batch

_MADE_TENSORS_AT = 4096  # frames converted at a time, to bound the memory of copies


@dataclass(frozen=True)
class Demonstrations:
    """F recorded frames.

    Attributes:
        batch: the frames.
        actions: per action int64 (actors,) per frame, the recorded choices.
        teacher: per action float32 (actors * choices,) per frame, row by row, the recorded logits
            or log-probabilities of all choices, or of all actees; empty if not needed.
        returns: (F,) float32, the discounted return from each frame; NaN where it is not known.
        endings: number of frames without a return by the ending of their episode.
    """

    batch: EntityBatch
    actions: Mapping[ActionName, RaggedTensor]
    teacher: Mapping[ActionName, RaggedTensor]
    returns: Tensor
    endings: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.batch.num_frames

    def take(self, frames: npt.NDArray[np.int64]) -> "Demonstrations":
        """Return the given frames, in the given order."""
        index = torch.from_numpy(frames).to(self.returns.device)
        return Demonstrations(
            self.batch.take(frames),
            {name: rows.take(frames) for name, rows in self.actions.items()},
            {name: rows.take(frames) for name, rows in self.teacher.items()},
            self.returns.index_select(0, index),
            self.endings,
        )

    def num_actors(self) -> npt.NDArray[np.int64]:
        """Return the number of actors of each frame in all actions, (F,) int64."""
        nothing = np.zeros(len(self), dtype=np.int64)
        return sum((rows.lengths for rows in self.actions.values()), start=nothing)

    @staticmethod
    def cat(pieces: Sequence["Demonstrations"]) -> "Demonstrations":
        """Concatenate the frames of all pieces."""
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
    """Open recordings of one environment, of this project or of entity-gym.

    Raises:
        ConfigError: a file is missing or given twice, or the environments differ.
        RecordingError: a file is no recording or is damaged.
    """
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError(f"RECORDING: expected each file once, got {', '.join(map(str, paths))}")
    recordings = {Path(path): open_recording(Path(path)) for path in paths}
    (first, world), *others = recordings.items()
    for path, other in others:
        check_same_spaces(str(path), other, str(first), world.obs_space, world.action_space)
    return recordings


def open_recording(path: Path, field: str = "RECORDING") -> Recording:
    """Open a recording of this project or of entity-gym.

    Args:
        path: the file.
        field: name of the setting or argument, for messages.

    Raises:
        ConfigError: the file is missing.
        RecordingError: the file is no recording or is damaged.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(8)
    except OSError as error:
        raise ConfigError(f"{field}: expected a file, got {path} ({error.strerror})") from None
    return open_entity_gym_samples(path) if is_entity_gym(begin) else Recording.open(path)


def check_same_spaces(
    path: str,
    recording: Recording,
    world: str,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
) -> None:
    """Raise if the spaces of a recording differ in more than the order of types and features.

    Raises:
        ConfigError: they do; the message lists the differences.
    """
    theirs = recording.obs_space, recording.action_space
    diff = diff_spaces(obs_space, action_space, *theirs)
    if different := diff.changed + diff.reordered_labels:
        raise ConfigError(f"{path}: expected a recording of {world}; {'; '.join(different)}")


@dataclass(frozen=True)
class Reading:
    """Reader that converts recordings to tensors.

    Attributes:
        obs_space: observation space of the network, for the order of types and features.
        gamma: discount factor of the returns.
        device: device of the tensors.
        teacher_for: the setting that needs the probabilities of all choices; None without one.
        max_frames: approximate limit of frames of all recordings together; None for no limit.
        who: "hand" to leave out the choices that an agent made, where a recording says who chose.
        player: name of the player whose frames are read, "" for the agent.
    """

    obs_space: ObsSpace
    gamma: float
    device: torch.device
    teacher_for: str | None = None
    max_frames: int | None = None
    who: Who = "all"
    player: str = ""

    def read(self, recordings: Mapping[Path, Recording]) -> Demonstrations | None:
        """Read all frames, episode after episode, or return None if there are none.

        Raises:
            ConfigError: `teacher_for` needs probabilities that were not recorded.
            RecordingError: a file is damaged, or actions do not match their observations.
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
            episode = frames_of(self.player, episode)
            num_frames = len(episode.decisions)
            if num_frames:
                waiting.append(episode)
            total, since = total + num_frames, since + num_frames
            if since >= _MADE_TENSORS_AT:
                yield self._tensors(path, recording, waiting)
                waiting, since = [], 0
        if waiting:
            yield self._tensors(path, recording, waiting)

    def _tensors(
        self, path: Path, recording: Recording, episodes: Sequence[Episode]
    ) -> Demonstrations:
        # Frames and returns.
        for episode in episodes:
            last, num_rewards = int(episode.steps.max(initial=-1)), len(episode.rewards)
            if episode.ending == "terminated" and last >= num_rewards:
                raise RecordingError(
                    f"{path}: episode {episode.number}: expected steps up to {num_rewards - 1}, "
                    f"as there are rewards, got step {last}"
                )
        decisions = Decisions.cat([episode.decisions for episode in episodes])
        batch = EntityBatch.of(decisions.obs, self.device)
        returns = [returns_of(episode, self.gamma) for episode in episodes]
        endings: Counter[str] = Counter()
        for episode, known in zip(episodes, returns, strict=True):
            endings[episode.ending] += int(np.isnan(known).sum())

        # Choices, and the probabilities of a teacher.
        actions, teacher, acts = {}, {}, {}
        nobody = Ragged.empty(np.zeros(0, dtype=np.int64), len(decisions))
        for name, space in recording.action_space.items():
            where = f"{path}: action {name!r}"
            acting = batch.actions[name]
            chosen = decisions.actions.get(name, nobody)
            _check_choices(where, chosen, acting, space)
            actions[name] = RaggedTensor.of(chosen, self.device)
            if self.teacher_for is not None:
                logits = decisions.logits.get(name, nobody)
                rows = _row_by_row(where, logits, acting, space, self.teacher_for)
                teacher[name] = RaggedTensor.of(rows, self.device)
            acts[name] = acting
            if self.who == "hand" and name in decisions.by_hand:
                # Leave out the actors that an agent chose for.
                is_kept = decisions.is_by_hand(name, unknown=True)
                pairs = None if acting.actees is None else np.ones(len(acting.actees.values), bool)
                acts[name] = restrict_action(acting, is_kept, pairs).action
                actions[name] = actions[name].keep(is_kept)
                if self.teacher_for is not None:
                    of_rows = np.repeat(is_kept, space.num_parameters(acting))
                    teacher[name] = teacher[name].keep(of_rows)
        return Demonstrations(
            adapt_batch(replace(batch, actions=acts), recording.obs_space, self.obs_space),
            actions,
            teacher,
            torch.from_numpy(np.concatenate(returns)).to(self.device),
            +endings,
        )


def frames_of(player: str, episode: Episode) -> Episode:
    """Return an episode with the frames of one player alone, and the rewards of all its steps."""
    own = np.flatnonzero(episode.decisions.player == player)
    if len(own) == len(episode.decisions):
        return episode
    return replace(episode, decisions=episode.decisions.take(own), steps=episode.steps[own])


def check_player(player: str, recordings: Iterable[Recording], setting: str) -> None:
    """Raise if recordings have frames, but none of a player.

    Args:
        player: the name, "" for the agent.
        recordings: the recordings, which are read.
        setting: name of the setting, for messages.

    Raises:
        ConfigError: the message lists the players.
    """
    known = {name for r in recordings for step in r.steps() for name in step.decisions.player}
    if known and player not in known:
        raise ConfigError(
            f'{setting}: expected a player of the recording, "" for the agent, among '
            f"{short_repr(sorted(known), LONG)}, got {short_repr(player)}"
            f"{did_you_mean(player, known)}"
        )


def returns_of(episode: Episode, gamma: float) -> npt.NDArray[np.float32]:
    """Compute the discounted return from each frame of an episode.

    It is known only if the episode terminated, as the rest of a truncated or unfinished episode is
    not in the file.

    Returns:
        (K,) float32 for the K frames that were kept; NaN where it is not known.
    """
    # G_t = r_t + gamma * G_{t+1}
    if episode.ending != "terminated":
        return np.full(len(episode.steps), np.nan, dtype=np.float32)
    rewards = episode.rewards[::-1].tolist()
    backwards = list(accumulate(rewards, lambda later, reward: reward + gamma * later))
    returns: npt.NDArray[np.float32] = np.array(backwards[::-1], dtype=np.float32)[episode.steps]
    return returns


def with_actors(shown: Demonstrations) -> Demonstrations:
    """Return the frames that have actors."""
    return shown.take(np.flatnonzero(shown.num_actors()))


def _check_choices(where: str, chosen: Ragged, acting: ActionBatch, space: ActionSpace) -> None:
    """Raise if choices do not match the actors, do not exist, or are masked."""
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
    where: str, logits: Ragged, acting: ActionBatch, space: ActionSpace, setting: str
) -> Ragged:
    """Return the recorded logits of all choices, one actor after the other."""
    ends = np.cumsum(acting.actors.lengths)
    numbers_before = np.cumsum([0, *space.num_parameters(acting)])
    expected = numbers_before[ends] - numbers_before[ends - acting.actors.lengths]
    lengths = logits.lengths * logits.size2()
    if not np.array_equal(lengths, expected):
        raise ConfigError(
            f"{setting}: expected a recording with the logits of all choices, {expected.sum()} of "
            f"{where}, got {lengths.sum()}; record them, or take the loss cross_entropy"
        )
    return Ragged(logits.values.reshape(-1).astype(np.float32), lengths)
