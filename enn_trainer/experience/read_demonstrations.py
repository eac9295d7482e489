"""`RecordingReader`: converts recordings to `Demonstrations`, with checks of their content."""

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
from enn_trainer.experience.memories import memory_specs, recorded_past
from entity_env.actions import EntityName, chains
from entity_env.arrays import Float32Array, IntArray
from entity_env.errors import LONG, did_you_mean, short_repr
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Episode, Recording
from entity_env.recording.recording_format import RecordedFrames, RecordingError
from entity_env.spaces import ActionName, ObsSpace
from rogue_net.actions.distributions import ActionDistribution
from rogue_net.actions.heads import HEADS
from rogue_net.actions.parts import conditional_distribution
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor, to_device
from rogue_net.wiring import adapt_batch

_CONVERT_FRAMES = 4096  # frames converted at a time, to bound the memory of copies
_IDENTITY_FIX = "record a run with net.memory, or call track() before the first reset"


@dataclass(frozen=True)
class RecordingReader:
    """Reader that converts recordings to tensors.

    Attributes:
        obs_space: observation space of the network, for the order of types and features.
        gamma: discount factor of the returns.
        device: device of the tensors.
        teacher_for: name of the setting that needs the probabilities of all choices; None if none
            does.
        max_frames: approximate limit of the total number of frames; None for no limit.
        who: "hand" to leave out choices of an agent, in recordings that mark choices of a person.
        player: name of the player to read frames of, "" for the agent.
        agent: the network; if it has memory, frames are read as sequences, which include the
            choices and frames of other players as input of the memory.
        seq_len: maximal number of frames of a sequence.
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
        return self.agent is not None and any(memory_specs(self.agent))

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
                        f"net.memory: expected a recording of all frames, as memory needs, got "
                        f"{path}, which was sub-sampled; leave net.memory out, or record all frames"
                    )
        limit = None if self.max_frames is None else max(1, self.max_frames // len(recordings))
        parts = [
            part
            for path, recording in recordings.items()
            for part in self._read_parts(path, recording, limit)
        ]
        return Demonstrations.cat(parts) if parts else None

    def _read_parts(
        self, path: Path, recording: Recording, limit: int | None
    ) -> Iterable[Demonstrations]:
        waiting: list[Episode] = []
        num_read = num_waiting = 0
        for episode in recording.episodes():
            if limit is not None and num_read >= limit:
                break
            player_frames = frames_of(self.player, episode)
            num_frames = len(player_frames.decisions)
            if num_frames:
                episode = episode if self.is_sequential else player_frames
                waiting.append(episode)
            num_read, num_waiting = num_read + num_frames, num_waiting + num_frames
            if num_waiting >= _CONVERT_FRAMES:
                yield self._tensors(path, recording, waiting)
                waiting, num_waiting = [], 0
        if waiting:
            yield self._tensors(path, recording, waiting)

    def _tensors(
        self, path: Path, recording: Recording, episodes: Sequence[Episode]
    ) -> Demonstrations:
        # Returns, choices, which of them to imitate, and the probabilities of a teacher.
        frames = _EpisodeFrames(self, path, recording, episodes)
        returns, endings = frames.returns()
        actions = frames.actions()
        learnt = frames.learnt()
        teacher = {} if self.teacher_for is None else frames.teacher(learnt, self.teacher_for)

        # Drop choices that are not imitated, unless memory or dependent actions need them.
        batch, spaces = frames.batch, recording.action_space
        if not (self.is_sequential or any(space.after for space in spaces.values())):
            learnt_actions = {}
            for name, mask in frames.decisions.obs.action_masks.items():
                is_learnt = learnt[name].values.cpu().numpy()
                learnt_actions[name] = ActionBatch.of(mask.keep(is_learnt), self.device)
                actions[name], learnt[name] = (
                    actions[name].keep(is_learnt),
                    learnt[name].keep(is_learnt),
                )
                if name in teacher:
                    row_mask = np.repeat(is_learnt, spaces[name].num_parameters(mask))
                    teacher[name] = teacher[name].keep(row_mask)
            batch = replace(batch, actions=learnt_actions)

        # Order features like the network, and add the history.
        batch = adapt_batch(batch, recording.obs_space, self.obs_space)
        lengths, past = np.ones(len(returns), np.int64), None
        if self.is_sequential:
            lengths, reward = self._sequences(path, episodes)
            past = recorded_past(self.agent, batch, lengths, reward)
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
        """Return the lengths of the sequences of episodes, and the reward of the previous step.

        Raises:
            RecordingError: an episode lacks frames.
        """
        lengths, rewards = [], []
        for episode in episodes:
            num_frames = len(episode.steps)
            if (np.diff(episode.steps) != 1).any():
                raise RecordingError(
                    f"{path}: episode {episode.number}: expected all its frames, as memory needs, "
                    f"got steps {short_repr(episode.steps.tolist())}"
                )
            starts = np.arange(0, num_frames, self.seq_len)
            lengths.append(np.diff(starts, append=num_frames))
            rewards.append(np.append(np.float32(0), episode.rewards)[:num_frames])
        return np.concatenate(lengths), np.concatenate(rewards).astype(np.float32)


class _EpisodeFrames:
    """Frames of episodes; the methods check and convert one field each.

    Args:
        reading: the reader.
        path: the file, for messages.
        recording: the recording.
        episodes: some of its episodes.
    """

    def __init__(
        self,
        reading: RecordingReader,
        path: Path,
        recording: Recording,
        episodes: Sequence[Episode],
    ) -> None:
        self.reading, self.path, self.episodes = reading, path, episodes
        self.spaces = recording.action_space
        decisions = RecordedFrames.cat([episode.decisions for episode in episodes])
        actions = {}
        for name, space in self.spaces.items():
            no_choices = np.zeros((0, *space.choice_columns), space.choice_dtype)
            actions[name] = decisions.actions.get(name, Ragged.empty(no_choices, len(decisions)))
        self.decisions = replace(decisions, actions=actions)
        self.is_read = decisions.player == reading.player
        self.batch = EntityBatch.of(decisions.obs, reading.device)

    def returns(self) -> tuple[Float32Array, Counter[str]]:
        """Compute the returns of the player, (F,) float32, and count endings of unknown returns.

        Raises:
            RecordingError: rewards of some steps are missing.
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
        ending = self._repeat_per_frame([episode.ending for episode in self.episodes])
        return returns, Counter(ending[self.is_read & np.isnan(returns)].tolist())

    def actions(self) -> dict[ActionName, RaggedTensor]:
        """Return the choices; of continuous actions the samples of the policy.

        Raises:
            RecordingError: choices do not match the actors, do not exist, or are illegal.
        """
        for name in chains.parents_first(self.spaces):
            self._check_choices(name)
        device = self.reading.device
        chosen = {n: RaggedTensor.of(rows, device) for n, rows in self.decisions.actions.items()}
        values = {name: rows.values for name, rows in chosen.items()}
        for name, space in self.spaces.items():
            if space.components:
                uniform = partial(HEADS[type(space)].uniform, space)
                distribution = conditional_distribution(name, self.batch.actions, values, uniform)
                drawn = self._invert_numbers(name, distribution, values[name])
                chosen[name] = RaggedTensor(drawn, chosen[name].lengths)
        return chosen

    def learnt(self) -> dict[ActionName, RaggedTensor]:
        """Return a mask of the choices to imitate, bool (actors,) per frame of each action."""
        learnt = {}
        for name, rows in self.decisions.actions.items():
            flags = np.repeat(self.is_read, rows.lengths) & chains.has_choice(rows.values)
            if self.reading.who == "hand":
                flags &= self.decisions.is_by_hand(name, unknown=True)
            learnt[name] = RaggedTensor.of(Ragged(flags, rows.lengths), self.reading.device)
        return learnt

    def teacher(
        self, learnt: Mapping[ActionName, RaggedTensor], setting: str
    ) -> dict[ActionName, RaggedTensor]:
        """Return the recorded parameters of distributions, actor after actor.

        Args:
            learnt: mask of the choices to imitate; the parameters of others are 0.
            setting: name of the setting that needs the parameters.

        Raises:
            ConfigError: the parameters were not recorded.
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
                    f"{expected.sum()} of {where}, got {lengths.sum()}; record them, or use the "
                    "loss cross_entropy"
                )
            rows = logits.values.reshape(-1).astype(np.float32)
            if space.components:
                mean, log_std = rows.reshape(-1, 2, len(space.components)).swapaxes(0, 1)
                has_density = (np.isfinite(mean) & (log_std > -np.inf)).all(axis=1)
                if missing := int((imitated & ~has_density).sum()):
                    raise ConfigError(
                        f"{setting}: expected a recording with the distributions of continuous "
                        f"actions, got none for {missing} choices of {where}, as bots have none; "
                        "use the loss cross_entropy"
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
        values, is_active = chosen.values, np.ones(len(chosen.values), np.bool_)
        if mask.after is not None:
            mask, is_active = chains.mask_given_parent(
                mask, self.decisions.actions[mask.after.action]
            )
        wrong = np.flatnonzero(~is_active & chains.has_choice(values))
        expected = "no choice of an actor that is inactive after its parent action"
        illegal = None if len(wrong) else self.spaces[name].illegal_choice(values[is_active], mask)
        if illegal is not None:
            wrong, expected = np.flatnonzero(is_active)[[illegal[0]]], "a choice that is allowed"
        if len(wrong):
            row = int(wrong[0])
            frame = np.repeat(np.arange(len(lengths)), lengths)[row]
            step = np.concatenate([episode.steps for episode in self.episodes])[frame]
            number = self._repeat_per_frame([episode.number for episode in self.episodes])[frame]
            raise RecordingError(
                f"{where}: expected {expected}, got {short_repr(values[row].tolist())} in step "
                f"{step} of episode {number}"
            )

    def _invert_numbers(
        self, name: ActionName, distribution: ActionDistribution, executed: Tensor
    ) -> Tensor:
        """Return the samples of continuous actions; inverted from the choices if not recorded."""
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
                f"{self.path}: action {name!r}: drawn: expected the sample of "
                f"{float(executed[wrong][0]):g}, got {float(drawn[wrong][0]):g}"
            )
        return drawn

    def _repeat_per_frame(self, values: Sequence[Any]) -> npt.NDArray[Any]:
        """Repeat the value of each episode for all its frames."""
        return np.repeat(values, [len(episode.steps) for episode in self.episodes])


def frames_of(player: str, episode: Episode) -> Episode:
    """Return an episode with the frames of one player, and the rewards of all its steps."""
    indices = np.flatnonzero(episode.decisions.player == player)
    if len(indices) == len(episode.decisions):
        return episode
    return replace(episode, decisions=episode.decisions.take(indices), steps=episode.steps[indices])


def check_player(player: str, recordings: Iterable[Recording], setting: str) -> None:
    """Raise if recordings have frames, but none of a player.

    Args:
        player: name of the player, "" for the agent.
        recordings: the recordings, which are read to the end.
        setting: name of the setting, for messages.

    Raises:
        ConfigError: no frame is of the player; the message lists the players.
    """
    players = {name for r in recordings for step in r.steps() for name in step.decisions.player}
    if players and player not in players:
        raise ConfigError(
            f'{setting}: expected a player of the recording, "" for the agent, among '
            f"{short_repr(sorted(players), LONG)}, got {short_repr(player)}"
            f"{did_you_mean(player, players)}"
        )


def returns_of(episode: Episode, gamma: float) -> Float32Array:
    """Compute the discounted return from each frame of an episode.

    Only terminated episodes have returns, as the rest of a truncated or unfinished episode is not
    in the file.

    Returns:
        (K,) float32 for the K recorded frames; NaN if unknown.
    """
    # G_t = r_t + gamma * G_{t+1}
    if episode.ending != "terminated":
        return np.full(len(episode.steps), np.nan, dtype=np.float32)
    rewards = episode.rewards[::-1].tolist()
    backwards = list(accumulate(rewards, lambda later, reward: reward + gamma * later))
    returns: Float32Array = np.array(backwards[::-1], dtype=np.float32)[episode.steps]
    return returns


def check_recorded_ids(agent: Any, demonstrations: Demonstrations, field: str) -> list[str]:
    """Return warnings about recorded entities that get no memory, as they have no identity.

    Args:
        agent: the network.
        demonstrations: the frames that were read for it.
        field: name of the setting or argument with the recording.

    Raises:
        ConfigError: the network has memory of entities only, and none has an identity.
    """
    past, lines = demonstrations.batch.past, dict[str, None]()
    pasts = (None, None) if past is None else (past, past.value_past)
    for spec, net_past in zip(memory_specs(agent), pasts, strict=True):
        if spec is None or net_past is None:
            continue
        num_known, num_seen = Counter(net_past.kind.values.tolist()), Counter[EntityName]()
        for name in spec.types:
            visible = demonstrations.batch.visibility(name).values
            num_seen[name] = len(visible) if spec.sees_hidden else int(visible.sum())
        if not spec.frame and num_seen.total() and not num_known.total():
            raise ConfigError(
                f"{field}: expected a recording with the identity of entities, for "
                f'net.memory.of="entity", got one without; {_IDENTITY_FIX}, or use '
                'net.memory.of="frame"'
            )
        for kind, name in enumerate(spec.types, 1):
            if missing := num_seen[name] - num_known[kind]:
                lines[
                    f"{field}: {missing} of {num_seen[name]} entities of {name} have no identity "
                    f"and get no memory; {_IDENTITY_FIX}"
                ] = None
    return [*lines]
