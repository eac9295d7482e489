"""Episodes of a recording, and the running one of a live game, as a replay shows them."""

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
from enn_trainer.viewer.replay import Answers, Episode, Replay
from enn_trainer.viewer.replay_chunks import Columns, Json, encoded_chunk
from enn_trainer.viewer.replay_columns import encode_episode
from entity_env.actions.chains import masks_after
from entity_env.arrays import Float32Array, IntArray
from entity_env.ragged import Ragged
from entity_env.recording import read_recording, recording_format
from entity_env.recording.read_recording import Recording
from entity_env.recording.recording_format import RecordingError
from entity_env.spaces import GLOBAL, ActionSpaces
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch

MOST_STEPS = 10_000
"""Steps of the running episode that are kept; of longer ones the last."""


def episodes_of(
    recording: Recording, sides: int = 1, max_steps: int | None = None
) -> Iterator[Episode]:
    """Yield the episodes of a recording, each at its end; unfinished ones last.

    An episode of which the recording has no frame of all sides is left out.

    Args:
        recording: of environments, or of matches.
        sides: the number of sides of a match, whose frames are shown together. `Episode.env` then
            counts matches.
        max_steps: the steps of an episode that are shown; None for all.

    Raises:
        RecordingError: the file is damaged, or is not one of matches of so many sides.
    """
    if sides > 1 and (recording.num_envs is None or recording.num_envs % sides):
        expected = f"a multiple of {sides} environments, the sides of a match"
        raise RecordingError(f"{recording.path}: expected {expected}, got {recording.num_envs}")
    waiting: dict[int, list[read_recording.Episode]] = {}
    for one in recording.episodes():
        number = -1 if one.env is None else one.env // sides
        match = waiting.setdefault(number, [])
        match.append(one)
        if len(match) == sides:  # all sides of a match begin and end together
            of_sides = sorted(waiting.pop(number), key=lambda side: side.env or 0)
            steps = reduce(np.intersect1d, [side.steps for side in of_sides])
            if len(steps):
                yield _joined(of_sides, steps, recording.action_space, max_steps)


def recorded(
    obs: VecObs, batch: EntityBatch, decisions: players.Decisions
) -> recording_format.Decisions:
    """Return frames and the choices in them as a recording has them.

    Args:
        obs: the frames.
        batch: the same on a device.
        decisions: of an agent.
    """
    chosen, values = decisions.chosen_on_host(), decisions.values.float().cpu().numpy()
    logits = decisions.parameters_on_host(batch.actions)
    return recording_format.Decisions(obs, chosen, logits=logits, values=values)


def _joined(
    of_sides: list[read_recording.Episode],
    steps: IntArray,
    actions: ActionSpaces,
    max_steps: int | None,
) -> Episode:
    """Return the episode of a match, or of an environment, from the recordings of its sides.

    Args:
        of_sides: the recordings.
        steps: (N,) those that were kept of all sides.
        actions: the action spaces.
        max_steps: the steps that are shown; None for all.
    """
    # The frames of these steps, side by side.
    ending = of_sides[0].ending if max_steps is None or len(steps) <= max_steps else "unfinished"
    steps = steps[:max_steps]
    sides, size = len(of_sides), len(steps)
    pieces = [one.decisions.take(np.flatnonzero(np.isin(one.steps, steps))) for one in of_sides]
    order = np.arange(sides * size).reshape(sides, size).T.reshape(-1)
    decisions = recording_format.Decisions.cat(pieces).take(order)
    unknown = np.full(size, np.nan, np.float32)  # in sub-sampled files of entity-gym
    of_steps = [unknown if one.env is None else one.rewards[steps] for one in of_sides]
    rewards = np.stack(of_steps, axis=1).reshape(-1)
    numbers = None if (steps == np.arange(size)).all() else steps
    env = None if of_sides[0].env is None else of_sides[0].env // sides
    ends = {name: ending == name for name in ("terminated", "truncated")}
    of_match = {"steps": numbers, "env": env, "parameters": of_sides[0].parameters}
    return episode_of_frames(decisions, rewards, actions, **ends, **of_match)


def episode_of_frames(
    decisions: recording_format.Decisions,
    rewards: Float32Array,
    actions: ActionSpaces,
    **others: Any,
) -> Episode:
    """Return the episode of some frames.

    Args:
        decisions: the F frames, and the choices in them, with logits or log-probabilities.
        rewards: (F,) float32, of the step taken in each.
        actions: the action spaces.
        **others: fields of `Episode`.
    """
    obs, answers = replace(decisions.obs, reward=rewards), answers_of(decisions, actions)
    by_hand = {name: decisions.is_by_hand(name, unknown=False) for name in decisions.by_hand}
    return Episode(obs, decisions.actions, answers, by_hand=by_hand or None, **others)


def answers_of(decisions: recording_format.Decisions, actions: ActionSpaces) -> Answers:
    """Return the probabilities and values of frames with logits or log-probabilities."""
    found, masks = {}, masks_after(decisions.obs.action_masks, decisions.actions)
    for name, rows in decisions.logits.items():
        mask, values = masks[name], rows.values
        if mask.mask is not None:
            values = np.where(mask.mask.values.reshape(values.shape), values, -np.inf)
        shown = actions[name].shown(values, mask, decisions.actions[name].values)
        if shown is not None:
            found[name] = Ragged(shown, rows.lengths)
    return Answers(found, decisions.values)


class LiveEpisode:
    """The running episode of a live game, whose last steps pages get as chunks of a replay.

    Args:
        replay: with the spaces and the view.
        header: of the page.
        number: of the episode.
        about: a line about the agent.

    Attributes:
        schema: the entry of the episode in the header of a page; empty before the first step.
        step: number of the current step; -1 before the first one.
        kept: the last steps: frames with their rewards, and the recurrent states of all seats
            before choices in them.
    """

    def __init__(self, replay: Replay, header: Json, number: int, about: str) -> None:
        self.number, self.about = number, about
        self.schema: Json = {}
        self.step = -1
        self.kept = deque[tuple[recording_format.Decisions, list[Recurrence]]](maxlen=MOST_STEPS)
        self._replay, self._header = replay, header

    @property
    def frames(self) -> recording_format.Decisions:
        """The current frames."""
        return self.kept[-1][0]

    @property
    def first_step(self) -> int:
        """Number of the first step that is kept."""
        return self.step + 1 - len(self.kept)

    def add(self, frames: recording_format.Decisions, memories: list[Recurrence]) -> None:
        """Add the next step."""
        # Masks and visibility are written out, as other steps of the episode may have them.
        obs = frames.obs
        for name, mask in obs.action_masks.items():
            if mask.bounds is None:
                mask.mask = mask.full_mask(self._replay.action_space[name].mask_columns)
        obs.visible = {name: obs.visibility(name) for name in obs.features if name != GLOBAL}
        self.kept.append((frames, memories))
        self.step += 1
        if not self.schema:
            schema, _ = self._encoded([frames])
            self.schema = {**schema, "steps": 0}

    def chunk(self, first: int, count: int) -> str:
        """Return some steps as a chunk of a replay, in base64."""
        start = first - self.first_step
        _, columns = self._encoded(frames for frames, _ in islice(self.kept, start, start + count))
        raw = encoded_chunk(self._header, self.schema, count, columns, {})
        return base64.b64encode(raw).decode()

    def _encoded(self, steps: Iterable[recording_format.Decisions]) -> tuple[Json, Columns]:
        """Return some steps as the entry and the columns of an episode."""
        frames, actions = recording_format.Decisions.cat([*steps]), self._replay.action_space
        ends = {"terminated": False, "truncated": False}
        episode = episode_of_frames(frames, frames.obs.reward, actions, **ends)
        return encode_episode(self._replay, episode)
