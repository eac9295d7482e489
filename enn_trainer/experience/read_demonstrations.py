"""`Reading`: recordings as `Demonstrations`, and checks that they fit the environment."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.base.errors import ConfigError
from enn_trainer.config.train_config import SEQ_LEN, Who
from enn_trainer.experience.demonstrations import Demonstrations
from enn_trainer.experience.memories import past_of_recorded, remembering_of
from entity_env.actions import EntityName, chains
from entity_env.arrays import Float32Array, IntArray
from entity_env.errors import LONG, did_you_mean, short_repr
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Episode, Recording
from entity_env.recording.recording_format import Decisions, RecordingError
from entity_env.spaces import ActionName, ObsSpace
from rogue_net.actions.distributions import ActionDistribution
from rogue_net.actions.heads import HEADS
from rogue_net.actions.parts import of_all
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor, to_device
from rogue_net.wiring import adapt_batch

_MADE_TENSORS_AT = 4096  # frames converted at a time, to bound the memory of copies
_IDENTITY_FIX = "record a run that remembers, or call track() before the first reset"


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
        agent: the network; if it remembers something, frames are read as sequences, with choices
            and frames of others, which memory sees too.
        seq_len: frames of a sequence at most.
    """

    obs_space: ObsSpace
    gamma: float
    device: torch.device
    teacher_for: str | None = None
    max_frames: int | None = None
    who: Who = "all"
    player: str = ""
    agent: Any = None
    seq_len: int = SEQ_LEN

    @property
    def is_sequential(self) -> bool:
        """True if frames are read as sequences."""
        return self.agent is not None and any(remembering_of(self.agent))

    def read(self, recordings: Mapping[Path, Recording]) -> Demonstrations | None:
        """Read all frames, episode after episode, or return None if there are none.

        Raises:
            ConfigError: `teacher_for` needs probabilities that were not recorded.
            RecordingError: a file is damaged, or actions do not match their observations.
        """
        if self.is_sequential:
            for path, recording in recordings.items():
                if recording.subsample > 1 or recording.num_envs is None:
                    raise ConfigError(
                        f"net.memory: expected a recording of all frames, of which memory learns, "
                        f"got {path}, which was sub-sampled; leave memory out, or take another"
                    )
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
            own = frames_of(self.player, episode)
            num_frames = len(own.decisions)
            if num_frames:
                episode = episode if self.is_sequential else own
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
        # Returns, choices, those to imitate, and the probabilities of a teacher for them.
        frames = _RecordedFrames(self, path, recording, episodes)
        returns, endings = frames.returns()
        actions = frames.actions()
        learnt = frames.learnt()
        teacher = {} if self.teacher_for is None else frames.teacher(learnt, self.teacher_for)

        # Without the other choices, unless memory or dependent actions see them.
        batch, spaces = frames.batch, recording.action_space
        if not (self.is_sequential or any(space.after for space in spaces.values())):
            acting = {}
            for name, mask in frames.decisions.obs.action_masks.items():
                kept = learnt[name].values.cpu().numpy()
                acting[name] = ActionBatch.of(mask.keep(kept), self.device)
                actions[name], learnt[name] = actions[name].keep(kept), learnt[name].keep(kept)
                if name in teacher:
                    of_rows = np.repeat(kept, spaces[name].num_parameters(mask))
                    teacher[name] = teacher[name].keep(of_rows)
            batch = replace(batch, actions=acting)

        # In the order of the network's space, and with what memory sees.
        batch = adapt_batch(batch, recording.obs_space, self.obs_space)
        lengths, past = np.ones(len(returns), np.int64), None
        if self.is_sequential:
            lengths, reward = self._sequences(path, episodes)
            past = past_of_recorded(self.agent, batch, lengths, reward)
        return Demonstrations(
            replace(batch, past=past, identity={}),
            actions,
            teacher,
            torch.from_numpy(returns).to(self.device),
            lengths,
            learnt,
            endings,
        )

    def _sequences(self, path: Path, episodes: Sequence[Episode]) -> tuple[IntArray, Float32Array]:
        """Return the lengths of the sequences of episodes, and the reward before each frame.

        Raises:
            RecordingError: an episode lacks frames.
        """
        lengths, rewards = [], []
        for episode in episodes:
            num_frames = len(episode.steps)
            if (np.diff(episode.steps) != 1).any():
                raise RecordingError(
                    f"{path}: episode {episode.number}: expected all its frames, of which memory "
                    f"learns, got steps {short_repr(episode.steps.tolist())}"
                )
            starts = np.arange(0, num_frames, self.seq_len)
            lengths.append(np.diff(starts, append=num_frames))
            rewards.append(np.append(np.float32(0), episode.rewards)[:num_frames])
        return np.concatenate(lengths), np.concatenate(rewards).astype(np.float32)


class _RecordedFrames:
    """Frames of episodes, which are checked and converted field by field.

    Args:
        reading: the reader.
        path: the file, for messages.
        recording: the recording.
        episodes: some of its episodes.
    """

    def __init__(
        self, reading: Reading, path: Path, recording: Recording, episodes: Sequence[Episode]
    ) -> None:
        self.reading, self.path, self.episodes = reading, path, episodes
        self.spaces = recording.action_space
        decisions = Decisions.cat([episode.decisions for episode in episodes])
        actions = {}
        for name, space in self.spaces.items():
            nothing = np.zeros((0, *space.choice_columns), space.choice_dtype)
            actions[name] = decisions.actions.get(name, Ragged.empty(nothing, len(decisions)))
        self.decisions = replace(decisions, actions=actions)
        self.is_read = decisions.player == reading.player
        self.batch = EntityBatch.of(decisions.obs, reading.device)

    def returns(self) -> tuple[Float32Array, Counter[str]]:
        """Compute the returns of the player, (F,) float32, and count endings of unknown ones.

        Raises:
            RecordingError: there are no rewards of some steps.
        """
        for episode in self.episodes:
            last, num_rewards = int(episode.steps.max(initial=-1)), len(episode.rewards)
            if episode.ending == "terminated" and last >= num_rewards:
                raise RecordingError(
                    f"{self.path}: episode {episode.number}: expected steps up to "
                    f"{num_rewards - 1}, as there are rewards, got step {last}"
                )
        returns = np.concatenate([returns_of(one, self.reading.gamma) for one in self.episodes])
        returns[~self.is_read] = np.nan
        ending = self._of_frames([episode.ending for episode in self.episodes])
        return returns, Counter(ending[self.is_read & np.isnan(returns)].tolist())

    def actions(self) -> dict[ActionName, RaggedTensor]:
        """Return the choices, continuous ones as they were drawn.

        Raises:
            RecordingError: they do not match the actors, do not exist, or are not allowed.
        """
        for name in chains.parents_first(self.spaces):
            self._check_choices(name)
        device = self.reading.device
        chosen = {n: RaggedTensor.of(rows, device) for n, rows in self.decisions.actions.items()}
        values = {name: rows.values for name, rows in chosen.items()}
        for name, space in self.spaces.items():
            if space.components:
                uniform = partial(HEADS[type(space)].uniform, space)
                distribution = of_all(name, self.batch.actions, values, uniform)
                drawn = self._as_drawn(name, distribution, values[name])
                chosen[name] = RaggedTensor(drawn, chosen[name].lengths)
        return chosen

    def learnt(self) -> dict[ActionName, RaggedTensor]:
        """Return the actors to imitate, bool (actors,) per frame of each action."""
        learnt = {}
        for name, rows in self.decisions.actions.items():
            flags = np.repeat(self.is_read, rows.lengths) & chains.is_taken(rows.values)
            if self.reading.who == "hand":
                flags &= self.decisions.is_by_hand(name, unknown=True)
            learnt[name] = RaggedTensor.of(Ragged(flags, rows.lengths), self.reading.device)
        return learnt

    def teacher(
        self, learnt: Mapping[ActionName, RaggedTensor], setting: str
    ) -> dict[ActionName, RaggedTensor]:
        """Return the recorded parameters of distributions, actor after actor.

        Args:
            learnt: the actors to imitate; the others get 0.
            setting: name of the setting that needs the parameters.

        Raises:
            ConfigError: they were not recorded.
        """
        num_frames, teacher = len(self.decisions), {}
        for name, space in self.spaces.items():
            where = f"{self.path}: action {name!r}"
            imitated = learnt[name].values.cpu().numpy()
            counts = space.num_parameters(self.batch.actions[name])  # of each actor
            frame_of_actor = learnt[name].frame_of_row()
            expected = np.bincount(frame_of_actor, counts, num_frames).astype(np.int64)
            logits = self.decisions.logits.get(name, Ragged.empty(np.zeros(0), num_frames))
            lengths = logits.lengths * logits.size2()
            if not np.array_equal(lengths, expected):
                raise ConfigError(
                    f"{setting}: expected a recording with the logits of all choices, "
                    f"{expected.sum()} of {where}, got {lengths.sum()}; record them, or take the "
                    "loss cross_entropy"
                )
            rows = logits.values.reshape(-1).astype(np.float32)
            if space.components:
                mean, log_std = rows.reshape(-1, 2, len(space.components)).swapaxes(0, 1)
                has_density = (np.isfinite(mean) & (log_std > -np.inf)).all(axis=1)
                if missing := int((imitated & ~has_density).sum()):
                    raise ConfigError(
                        f"{setting}: expected a recording with distributions of all numbers, got "
                        f"none of {missing} choices of {where}, as of those of bots; take the loss "
                        "cross_entropy"
                    )
            rows[~np.repeat(imitated, counts)] = 0
            teacher[name] = RaggedTensor.of(Ragged(rows, lengths), self.reading.device)
        return teacher

    def _check_choices(self, name: ActionName) -> None:
        chosen, mask = self.decisions.actions[name], self.decisions.obs.action_masks[name]
        where, lengths = f"{self.path}: action {name!r}", mask.actors.lengths
        if not np.array_equal(chosen.lengths, lengths):
            raise RecordingError(
                f"{where}: expected a choice of each of {lengths.sum()} actors, got "
                f"{chosen.lengths.sum()}"
            )
        values, taken = chosen.values, np.ones(len(chosen.values), np.bool_)
        if mask.after is not None:
            mask, taken = chains.narrowed(mask, self.decisions.actions[mask.after.action])
        wrong = np.flatnonzero(~taken & chains.is_taken(values))
        expected = "no choice after another one before"
        illegal = None if len(wrong) else self.spaces[name].illegal_choice(values[taken], mask)
        if illegal is not None:
            wrong, expected = np.flatnonzero(taken)[[illegal[0]]], "a choice that is allowed"
        if len(wrong):
            row = int(wrong[0])
            frame = np.repeat(np.arange(len(lengths)), lengths)[row]
            step = np.concatenate([episode.steps for episode in self.episodes])[frame]
            number = self._of_frames([episode.number for episode in self.episodes])[frame]
            raise RecordingError(
                f"{where}: expected {expected}, got {short_repr(values[row].tolist())} in step "
                f"{step} of episode {number}"
            )

    def _as_drawn(
        self, name: ActionName, distribution: ActionDistribution, executed: Tensor
    ) -> Tensor:
        """Return continuous actions as they were drawn; inverted where this is not recorded."""
        drawn = distribution.from_env(executed)
        recorded = self.decisions.drawn.get(name)
        if recorded is None or not recorded.items():
            return drawn
        lengths = self.decisions.actions[name].lengths
        is_recorded = to_device(np.repeat(recorded.lengths > 0, lengths), drawn.device).unsqueeze(1)
        drawn = drawn.masked_scatter(
            is_recorded, torch.from_numpy(recorded.values).to(drawn.device)
        )
        same = torch.isclose(
            distribution.to_env(drawn), executed, rtol=1e-4, atol=1e-6, equal_nan=True
        )
        wrong = is_recorded & ~same
        if wrong.any():
            raise RecordingError(
                f"{self.path}: action {name!r}: drawn: expected what "
                f"{float(executed[wrong][0]):g} was drawn as, got {float(drawn[wrong][0]):g}"
            )
        return drawn

    def _of_frames(self, values: Sequence[Any]) -> npt.NDArray[Any]:
        """Return the value of each frame's episode."""
        return np.repeat(values, [len(episode.steps) for episode in self.episodes])


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


def returns_of(episode: Episode, gamma: float) -> Float32Array:
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
    returns: Float32Array = np.array(backwards[::-1], dtype=np.float32)[episode.steps]
    return returns


def check_recorded_ids(agent: Any, shown: Demonstrations, field: str) -> list[str]:
    """Return lines about the entities that are to be remembered and have no identity.

    Args:
        agent: the network.
        shown: what was read for it.
        field: name of the setting or argument with the recording.

    Raises:
        ConfigError: nothing is remembered but entities, and none has an identity.
    """
    past, lines = shown.batch.past, dict[str, None]()
    pasts = (None, None) if past is None else (past, past.of_values)
    for remembering, of_net in zip(remembering_of(agent), pasts, strict=True):
        if remembering is None or of_net is None:
            continue
        known, seen = Counter(of_net.kind.values.tolist()), Counter[EntityName]()
        for name in remembering.types:
            is_seen = shown.batch.visibility(name).values
            seen[name] = len(is_seen) if remembering.sees_hidden else int(is_seen.sum())
        if not remembering.frame and seen.total() and not known.total():
            raise ConfigError(
                f"{field}: expected a recording in which entities have identity, for "
                f'net.memory.of="entity", got one without; {_IDENTITY_FIX}, or remember the frame '
                '(of="frame")'
            )
        for kind, name in enumerate(remembering.types, 1):
            if missing := seen[name] - known[kind]:
                lines[
                    f"{field}: {missing} of {seen[name]} entities of {name} have no identity, so "
                    f"memory of them learns nothing there; {_IDENTITY_FIX}"
                ] = None
    return [*lines]
