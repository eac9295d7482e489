"""Episodes of replays, from recordings and from a running live game."""

import base64
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np

from enn_trainer.experience import players
from enn_trainer.experience.memories import Recurrence
from enn_trainer.viewer.replay import Answers, Replay, ReplayEpisode
from enn_trainer.viewer.replay_chunks import Columns, Json, encode_chunk
from enn_trainer.viewer.replay_columns import encode_episode
from entity_env.actions.chains import masks_given_choices
from entity_env.arrays import Float32Array, IntArray
from entity_env.ragged import Ragged
from entity_env.recording import read_recording, recording_format
from entity_env.recording.read_recording import Recording
from entity_env.recording.recording_format import RecordingError
from entity_env.spaces import GLOBAL, ActionSpaces
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch

MAX_STEPS = 10_000
"""Number of stored steps of a running episode; earlier ones are discarded."""


def episodes_of(
    recording: Recording, sides: int = 1, max_steps: int | None = None
) -> Iterator[ReplayEpisode]:
    """Yield the episodes of a recording as they end; unfinished ones last.

    Episodes without a frame of all sides are skipped.

    Args:
        recording: recording of environments, or of matches.
        sides: number of sides of a match; their frames are displayed together, and
            `ReplayEpisode.env` is the index of the match.
        max_steps: maximal number of steps per episode; None for all.

    Raises:
        RecordingError: the file is damaged, or does not contain matches with this number of sides.
    """
    if sides > 1 and (recording.num_envs is None or recording.num_envs % sides):
        expected = f"a multiple of {sides} environments, the sides of a match"
        raise RecordingError(f"{recording.path}: expected {expected}, got {recording.num_envs}")
    waiting: dict[int, list[read_recording.Episode]] = {}
    for episode in recording.episodes():
        index = -1 if episode.env is None else episode.env // sides
        match = waiting.setdefault(index, [])
        match.append(episode)
        if len(match) == sides:  # all sides of a match start and end together
            episodes = sorted(waiting.pop(index), key=lambda side: side.env or 0)
            steps = reduce(np.intersect1d, [side.steps for side in episodes])
            if len(steps):
                yield _join_sides(episodes, steps, recording.action_space, max_steps)


def recorded_decisions(
    obs: VecObs, batch: EntityBatch, decisions: players.Decisions
) -> recording_format.RecordedFrames:
    """Convert frames and choices to the format of recordings.

    Args:
        obs: the frames.
        batch: the same frames on a device.
        decisions: decisions of an agent.
    """
    chosen, values = decisions.chosen_on_host(), decisions.values.float().cpu().numpy()
    logits = decisions.parameters_on_host(batch.actions)
    return recording_format.RecordedFrames(obs, chosen, logits=logits, values=values)


def _join_sides(
    episodes: list[read_recording.Episode],
    steps: IntArray,
    actions: ActionSpaces,
    max_steps: int | None,
) -> ReplayEpisode:
    """Join the recorded episodes of all sides of a match, or of one environment.

    Args:
        episodes: recorded episode of each side.
        steps: (N,) int64, steps that were recorded for all sides.
        actions: action spaces.
        max_steps: maximal number of steps; None for all.
    """
    # Interleave the frames of all sides, step by step.
    ending = episodes[0].ending if max_steps is None or len(steps) <= max_steps else "unfinished"
    steps = steps[:max_steps]
    sides, size = len(episodes), len(steps)
    parts = [one.decisions.take(np.flatnonzero(np.isin(one.steps, steps))) for one in episodes]
    order = np.arange(sides * size).reshape(sides, size).T.reshape(-1)
    decisions = recording_format.RecordedFrames.cat(parts).take(order)
    unknown = np.full(size, np.nan, np.float32)  # subsampled entity-gym files
    side_rewards = [unknown if one.env is None else one.rewards[steps] for one in episodes]
    rewards = np.stack(side_rewards, axis=1).reshape(-1)
    numbers = None if (steps == np.arange(size)).all() else steps
    env = None if episodes[0].env is None else episodes[0].env // sides
    ends = {name: ending == name for name in ("terminated", "truncated")}
    fields = {"steps": numbers, "env": env, "parameters": episodes[0].parameters}
    return episode_of_frames(decisions, rewards, actions, **ends, **fields)


def episode_of_frames(
    decisions: recording_format.RecordedFrames,
    rewards: Float32Array,
    actions: ActionSpaces,
    **fields: Any,
) -> ReplayEpisode:
    """Create an episode from frames.

    Args:
        decisions: F frames and the choices in them, with logits or log-probabilities.
        rewards: (F,) float32, reward of the step taken in each frame.
        actions: action spaces.
        **fields: further fields of `ReplayEpisode`.
    """
    obs, answers = replace(decisions.obs, reward=rewards), answers_of(decisions, actions)
    by_hand = {name: decisions.is_by_hand(name, unknown=False) for name in decisions.by_hand}
    return ReplayEpisode(obs, decisions.actions, answers, by_hand=by_hand or None, **fields)


def answers_of(decisions: recording_format.RecordedFrames, actions: ActionSpaces) -> Answers:
    """Compute the probabilities and values of frames from logits or log-probabilities."""
    probs, masks = {}, masks_given_choices(decisions.obs.action_masks, decisions.actions)
    for name, rows in decisions.logits.items():
        mask, values = masks[name], rows.values
        if mask.mask is not None:
            values = np.where(mask.mask.values.reshape(values.shape), values, -np.inf)
        displayed = actions[name].shown(values, mask, decisions.actions[name].values)
        if displayed is not None:
            probs[name] = Ragged(displayed, rows.lengths)
    return Answers(probs, decisions.values)


class LiveEpisode:
    """Running episode of a live game; its last steps are encoded as chunks of a replay.

    Args:
        replay: replay with the spaces and the view.
        header: header of the page.
        number: index of the episode.
        description: description of the agent, one line.

    Attributes:
        schema: entry of the episode in the header of a page; empty before the first step.
        step: index of the current step; -1 before the first one.
        history: last steps: frames with rewards, and the recurrent states of all seats before the
            choices in them.
    """

    def __init__(self, replay: Replay, header: Json, number: int, description: str) -> None:
        self.number, self.description = number, description
        self.schema: Json = {}
        self.step = -1
        self.history = deque[tuple[recording_format.RecordedFrames, list[Recurrence]]](
            (), MAX_STEPS
        )
        self._replay, self._header = replay, header

    @property
    def frames(self) -> recording_format.RecordedFrames:
        """Current frames."""
        return self.history[-1][0]

    @property
    def first_step(self) -> int:
        """Index of the first stored step."""
        return self.step + 1 - len(self.history)

    def add(self, frames: recording_format.RecordedFrames, memories: list[Recurrence]) -> None:
        """Append a step."""
        # Store masks and visibility explicitly, because other steps of the episode may have them.
        obs = frames.obs
        for name, mask in obs.action_masks.items():
            if mask.bounds is None:
                mask.mask = mask.full_mask(self._replay.action_space[name].mask_columns)
        obs.visible = {name: obs.visibility(name) for name in obs.features if name != GLOBAL}
        self.history.append((frames, memories))
        self.step += 1
        if not self.schema:
            schema, _ = self._encoded([frames])
            self.schema = {**schema, "steps": 0}

    def chunk(self, first: int, count: int) -> str:
        """Encode some steps as a chunk of a replay, in base64."""
        start = first - self.first_step
        _, columns = self._encoded(
            frames for frames, _ in islice(self.history, start, start + count)
        )
        raw = encode_chunk(self._header, self.schema, count, columns, {})
        return base64.b64encode(raw).decode()

    def _encoded(self, steps: Iterable[recording_format.RecordedFrames]) -> tuple[Json, Columns]:
        """Encode some steps as the schema and the columns of an episode."""
        frames, actions = recording_format.RecordedFrames.cat([*steps]), self._replay.action_space
        ends = {"terminated": False, "truncated": False}
        episode = episode_of_frames(frames, frames.obs.reward, actions, **ends)
        return encode_episode(self._replay, episode)
