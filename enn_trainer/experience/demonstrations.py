"""Recorded frames as tensors, with the actions that were taken and their returns."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.checkpoints.migrate.space_diff import diff_spaces
from enn_trainer.config.train_config import SEQ_LEN, Who
from enn_trainer.errors import ConfigError
from enn_trainer.experience.memories import past_of_recorded, remembering_of
from entity_env.actions import EntityName
from entity_env.errors import LONG, did_you_mean, short_repr
from entity_env.frame_data import SAME, FrameData
from entity_env.ragged import Ragged, Selection, exclusive_cumsum, row_indices
from entity_env.recording.entity_gym_samples import is_entity_gym, open_entity_gym_samples
from entity_env.recording.read_recording import Episode, Recording
from entity_env.recording.recording_format import Decisions, RecordingError
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from entity_env.vec import chains
from rogue_net.heads import HEADS
from rogue_net.parts import is_taken, joint, of_all
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor, restrict_action, to_device
from rogue_net.wiring import adapt_batch

_MADE_TENSORS_AT = 4096  # frames converted at a time, to bound the memory of copies


@dataclass(frozen=True)
class Demonstrations(FrameData):
    """F recorded frames.

    Frames that stay together are a unit: a sequence, if the network remembers, or one frame.

    Attributes:
        batch: the frames.
        actions: per action int64 (actors,) per frame, the recorded choices; float32 (actors,
            components) of numbers, as they were drawn. Of actors who do not take a dependent
            action -1, or NaN.
        teacher: per action float32 (actors * choices,) per frame, row by row, the recorded logits
            or log-probabilities of all choices, or of all actees; or the recorded parameters of
            distributions of numbers; empty if not needed.
        returns: (F,) float32, the discounted return from each frame; NaN where it is not known.
        lengths: (units,) int64, frames of each unit; they are consecutive.
        learnt: per action bool (actors,) per frame, False for choices that are not to be imitated,
            and that memory and dependent actions see nonetheless; empty if there are none.
        endings: number of frames without a return by the ending of their episode.
    """

    batch: EntityBatch
    actions: Mapping[ActionName, RaggedTensor]
    teacher: Mapping[ActionName, RaggedTensor]
    returns: Tensor
    lengths: npt.NDArray[np.int64] = field(metadata=SAME)
    learnt: Mapping[ActionName, RaggedTensor] = field(default_factory=dict)
    endings: Counter[str] = field(default_factory=Counter, metadata=SAME)

    def __len__(self) -> int:
        return self.batch.num_frames

    def frames(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the frames of some units, unit after unit."""
        return row_indices(exclusive_cumsum(self.lengths)[units], self.lengths[units])

    def select(self, selection: Selection) -> "Demonstrations":
        """Return the selected frames, each of which is a unit."""
        return replace(super().select(selection), lengths=np.ones(len(selection.frames), np.int64))

    def take_units(self, units: npt.NDArray[np.int64]) -> "Demonstrations":
        """Return the given units, in the given order."""
        return replace(self.take(self.frames(units)), lengths=self.lengths[units])

    def is_learnt(self, name: ActionName) -> Tensor | None:
        """Return the actors of an action whose choices are to be imitated; None for all of them.

        Returns:
            (actors,) bool. Who does not take a dependent action imitates nothing there.
        """
        known, rows = self.learnt.get(name), self.actions[name]
        flags = None if known is None else known.values
        if self.batch.actions[name].after is None:
            return flags
        taken = is_taken(rows.values)
        return taken if flags is None else taken & flags

    def of_learnt(self, name: ActionName, of_actors: Tensor) -> Tensor:
        """Return the rows of those actors of an action whose choices are to be imitated."""
        flags = self.is_learnt(name)
        return of_actors if flags is None else of_actors[flags]

    def decided(self) -> dict[ActionName, Tensor | None]:
        """Return the actors in whose decisions something is to be imitated; None for all of them.

        Returns:
            (actors,) bool of each action that depends on none: a chain is one decision.
        """
        flags = {name: self.is_learnt(name) for name in self.actions}
        if all(self.batch.actions[name].after is None for name in flags):
            return flags
        counts = {
            name: torch.ones(len(rows.values), device=rows.values.device)
            if (known := flags[name]) is None
            else known.float()
            for name, rows in self.actions.items()
        }
        return {name: count > 0 for name, count in joint(counts, self.batch.actions).items()}

    def per_decision(self, of_parts: Mapping[ActionName, Tensor]) -> dict[ActionName, Tensor]:
        """Return the sum over the parts to imitate of each decision.

        Args:
            of_parts: (actors,) float of each action.

        Returns:
            (decisions,) float of each action that depends on none, of those in `decided`.
        """
        if all(self.batch.actions[name].after is None for name in of_parts):
            return {name: self.of_learnt(name, rows) for name, rows in of_parts.items()}
        parts = {}
        for name, rows in of_parts.items():
            flags = self.is_learnt(name)
            parts[name] = rows if flags is None else rows.masked_fill(~flags, 0.0)
        decided, totals = self.decided(), joint(parts, self.batch.actions)
        return {
            name: rows if (flags := decided[name]) is None else rows[flags]
            for name, rows in totals.items()
        }

    def num_actors(self) -> npt.NDArray[np.int64]:
        """Return the number of decisions to imitate of each frame in all actions, (F,) int64."""
        total = np.zeros(len(self), dtype=np.int64)
        for name, flags in self.decided().items():
            frame = self.actions[name].frame_of_row()
            learnt = frame if flags is None else frame[flags.cpu().numpy()]
            total += np.bincount(learnt, minlength=len(self))
        return total

    @classmethod
    def cat(cls, pieces: Sequence["Demonstrations"]) -> "Demonstrations":
        """Concatenate the frames of all pieces; one piece stays as it is."""
        if len(pieces) == 1:
            return pieces[0]
        lengths = np.concatenate([piece.lengths for piece in pieces])
        endings = sum((piece.endings for piece in pieces), Counter())
        return replace(super().cat(pieces), lengths=lengths, endings=endings)


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
    different = diff.changed + diff.reordered_labels + diff.bounds
    if different:
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
        own = decisions.player == self.player
        returns = np.concatenate([returns_of(episode, self.gamma) for episode in episodes])
        returns[~own] = np.nan
        endings: Counter[str] = Counter()
        ending = np.repeat([e.ending for e in episodes], [len(e.decisions) for e in episodes])
        endings.update(ending[own & np.isnan(returns)].tolist())

        # Choices, and the probabilities of a teacher.
        actions, teacher, acts, learnt = {}, {}, {}, {}
        spaces = recording.action_space
        nobody = Ragged.empty(np.zeros(0, dtype=np.int64), len(decisions))
        given = {
            name: decisions.actions.get(name, Ragged.empty(_no_choice(space), len(decisions)))
            for name, space in spaces.items()
        }
        whole = {name: rows.values for name, rows in given.items()}
        _check_all_choices(path, episodes, given, decisions, spaces)
        # Memory and dependent actions see choices that are not to be imitated.
        keeps_all = self.is_sequential or any(one.after is not None for one in spaces.values())
        for name, space in spaces.items():
            where = f"{path}: action {name!r}"
            acting = batch.actions[name]
            actions[name] = RaggedTensor.of(given[name], self.device)
            if space.components:
                actions[name] = self._drawn(where, name, space, batch, whole, decisions)
            acts[name] = acting
            is_kept = np.repeat(own, acting.actors.lengths)
            if self.who == "hand" and name in decisions.by_hand:
                is_kept &= decisions.is_by_hand(name, unknown=True)
            if self.teacher_for is not None:
                logits = decisions.logits.get(name, nobody)
                rows = _row_by_row(where, logits, acting, space, self.teacher_for)
                imitated = is_kept & is_taken(actions[name].values).cpu().numpy()
                if space.components and (without := _without_density(rows, imitated)):
                    raise ConfigError(
                        f"{self.teacher_for}: expected a recording with distributions of all "
                        f"numbers, got none of {without} choices of {where}, as of those of bots; "
                        "take the loss cross_entropy"
                    )
                if space.components or acting.after is not None:
                    of_rows = np.repeat(imitated, space.num_parameters(acting))
                    rows = replace(rows, values=np.where(of_rows, rows.values, np.float32(0)))
                teacher[name] = RaggedTensor.of(rows, self.device)
            if keeps_all:
                kept = Ragged(is_kept, acting.actors.lengths)
                learnt[name] = RaggedTensor.of(kept, self.device)
            elif not is_kept.all():
                # Leave out the actors that an agent chose for.
                pairs = None if acting.actees is None else np.ones(len(acting.actees.values), bool)
                acts[name] = restrict_action(acting, is_kept, pairs).action
                actions[name] = actions[name].keep(is_kept)
                if self.teacher_for is not None:
                    of_rows = np.repeat(is_kept, space.num_parameters(acting))
                    teacher[name] = teacher[name].keep(of_rows)
        batch = replace(batch, actions=acts)
        batch = adapt_batch(batch, recording.obs_space, self.obs_space)
        lengths = np.ones(len(decisions), np.int64)
        past = None
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

    def _drawn(
        self,
        where: str,
        name: ActionName,
        space: ActionSpace,
        batch: EntityBatch,
        whole: Mapping[ActionName, npt.NDArray[Any]],
        decisions: Decisions,
    ) -> RaggedTensor:
        """Return numbers as they were drawn, where this is not known inverted.

        Args:
            where: file and action, for messages.
            name: of the action.
            space: of the action.
            batch: F frames.
            whole: the choices of all actions, as the environment got them.
            decisions: the same frames.

        Raises:
            RecordingError: what was drawn is not what the environment got.
        """
        given = {one: torch.from_numpy(values).to(self.device) for one, values in whole.items()}
        uniform_of = partial(HEADS[type(space)].uniform, space)
        distribution = of_all(name, batch.actions, given, uniform_of)
        numbers, lengths = given[name], batch.actions[name].actors.lengths
        drawn = distribution.from_env(numbers)
        known = decisions.drawn.get(name)
        if known is None or not known.items():
            return RaggedTensor(drawn, lengths)
        is_known = to_device(np.repeat(known.lengths > 0, lengths), self.device).unsqueeze(1)
        recorded = drawn.masked_scatter(is_known, torch.from_numpy(known.values).to(self.device))
        again = distribution.to_env(recorded)
        same = torch.isclose(again, numbers, rtol=1e-4, atol=1e-6, equal_nan=True)
        wrong = is_known & ~same
        if wrong.any():
            raise RecordingError(
                f"{where}: drawn: expected what {float(numbers[wrong][0]):g} was drawn as, got "
                f"{float(recorded[wrong][0]):g}"
            )
        return RaggedTensor(recorded, lengths)

    def _sequences(
        self, path: Path, episodes: Sequence[Episode]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
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
    """Return the units that have actors to imitate."""
    of_units = np.add.reduceat(shown.num_actors(), exclusive_cumsum(shown.lengths))
    return shown.take_units(np.flatnonzero(of_units))


def check_recorded_identity(agent: Any, shown: Demonstrations, field: str) -> list[str]:
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


_IDENTITY_FIX = "record a run that remembers, or call track() before the first reset"


def _no_choice(space: ActionSpace) -> npt.NDArray[Any]:
    """Return the choices of nobody."""
    return np.zeros((0, *space.choice_columns), space.choice_dtype)


def _check_all_choices(
    path: Path,
    episodes: Sequence[Episode],
    given: Mapping[ActionName, Ragged],
    decisions: Decisions,
    action_space: Mapping[ActionName, ActionSpace],
) -> None:
    """Raise if choices do not match the actors, do not exist, or are not allowed.

    Args:
        path: the file, for messages.
        episodes: whose frames these are, one after the other.
        given: the choices.
        decisions: the frames.
        action_space: the actions.

    Raises:
        RecordingError: names action, episode and step.
    """
    for name in chains.parents_first(action_space):
        where, space = f"{path}: action {name!r}", action_space[name]
        chosen, mask = given[name], decisions.obs.action_masks[name]
        lengths = mask.actors.lengths
        if not np.array_equal(chosen.lengths, lengths):
            raise RecordingError(
                f"{where}: expected a choice of each of {lengths.sum()} actors, got "
                f"{chosen.lengths.sum()}"
            )
        values, taken = chosen.values, np.ones(len(chosen.values), np.bool_)
        if mask.after is not None:
            mask, taken = chains.narrowed(mask, given[mask.after.action])
        wrong = np.flatnonzero(~taken)[chains.is_taken(values[~taken])]
        what = "no choice after another one before"
        if not len(wrong) and (found := space.illegal_choice(values[taken], mask)) is not None:
            wrong, what = np.flatnonzero(taken)[[found[0]]], "a choice that is allowed"
        if len(wrong):
            row = int(wrong[0])
            frame = int(np.searchsorted(np.cumsum(lengths), row, side="right"))
            sizes = np.cumsum([len(episode.steps) for episode in episodes])
            episode = episodes[k := int(np.searchsorted(sizes, frame, side="right"))]
            step = episode.steps[frame - sizes[k]]
            raise RecordingError(
                f"{where}: expected {what}, got {short_repr(values[row].tolist())} in step {step} "
                f"of episode {episode.number}"
            )


def _without_density(rows: Ragged, imitated: npt.NDArray[np.bool_]) -> int:
    """Return how many recorded distributions of numbers have none, of those to be imitated.

    Args:
        rows: float32 (actors * 2 * components,) per frame, means and logarithms of deviations.
        imitated: (actors,) bool.
    """
    if not len(imitated):
        return 0
    mean, log_std = np.split(rows.values.reshape(len(imitated), -1), 2, axis=1)
    known = (np.isfinite(mean) & (log_std > -np.inf)).all(axis=1)
    return int((imitated & ~known).sum())


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
