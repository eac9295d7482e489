"""`Demonstrations`: recorded frames as tensors, with the recorded choices and their returns."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from enn_trainer.base.errors import ConfigError
from entity_env.arrays import IntArray
from entity_env.frame_data import SAME, FrameData
from entity_env.ragged import Selection, exclusive_cumsum, row_indices
from entity_env.recording.entity_gym_samples import is_entity_gym, open_entity_gym_samples
from entity_env.recording.read_recording import Recording
from entity_env.spaces import ActionName, Spaces
from rogue_net.actions.parts import joint
from rogue_net.ragged import EntityBatch, RaggedTensor
from rogue_net.space_diff import diff_spaces


@dataclass(frozen=True)
class Demonstrations(FrameData):
    """F recorded frames, grouped into sequences.

    A sequence has consecutive frames of an episode if the network has memory, else one frame.

    Attributes:
        batch: the frames.
        actions: per action int64 (actors,) per frame, the recorded choices; of continuous actions
            float32 (actors, components), the samples of the policy. -1 or NaN for actors that are
            inactive in a dependent action.
        teacher: per action float32 (actors * choices,) per frame, row by row, the recorded logits
            or log-probabilities of all choices or actees, or the recorded parameters of continuous
            distributions; 0 for choices that are not imitated; empty if unused.
        returns: (F,) float32, the discounted return from each frame; NaN if unknown.
        lengths: (sequences,) int64, frames of each sequence, which are consecutive.
        learnt: per action bool (actors,) per frame, True for choices to imitate. The other choices,
            such as choices of other players, are input of memory and of dependent actions.
        endings: number of frames without a return, by the ending of their episode.
    """

    batch: EntityBatch
    actions: Mapping[ActionName, RaggedTensor]
    teacher: Mapping[ActionName, RaggedTensor]
    returns: Tensor
    lengths: IntArray = field(metadata=SAME)
    learnt: Mapping[ActionName, RaggedTensor]
    endings: Counter[str] = field(default_factory=Counter, metadata=SAME)

    def __len__(self) -> int:
        return self.batch.num_frames

    def frames(self, sequences: IntArray) -> IntArray:
        """Return the frames of some sequences, sequence after sequence."""
        return row_indices(exclusive_cumsum(self.lengths)[sequences], self.lengths[sequences])

    def select(self, selection: Selection) -> "Demonstrations":
        """Return the selected frames as sequences of one frame."""
        return replace(super().select(selection), lengths=np.ones(len(selection.frames), np.int64))

    def take_sequences(self, sequences: IntArray) -> "Demonstrations":
        """Return the given sequences, in the given order."""
        return replace(self.take(self.frames(sequences)), lengths=self.lengths[sequences])

    def imitated_rows(self, name: ActionName, rows: Tensor) -> Tensor:
        """Select the rows of the imitated choices of an action."""
        return rows[self.learnt[name].values]

    def imitated_decisions(self) -> dict[ActionName, Tensor]:
        """Return a mask of the decisions with a choice to imitate.

        A parent action and the actions that depend on it are one decision.

        Returns:
            (actors,) bool of each action that depends on none.
        """
        counts = {name: flags.values.float() for name, flags in self.learnt.items()}
        return {name: count > 0 for name, count in joint(counts, self.batch.actions).items()}

    def per_decision(self, values: Mapping[ActionName, Tensor]) -> dict[ActionName, Tensor]:
        """Sum values over the imitated choices of each decision.

        Args:
            values: (actors,) float of each action.

        Returns:
            (decisions,) float of each action that depends on none, for the `imitated_decisions`.
        """
        to_imitate = {
            name: rows.masked_fill(~self.learnt[name].values, 0.0) for name, rows in values.items()
        }
        is_imitated = self.imitated_decisions()
        totals = joint(to_imitate, self.batch.actions)
        return {name: total[is_imitated[name]] for name, total in totals.items()}

    def num_actors(self) -> IntArray:
        """Return the number of imitated decisions of each frame over all actions, (F,) int64."""
        total = np.zeros(len(self), dtype=np.int64)
        for name, flags in self.imitated_decisions().items():
            frames = self.actions[name].frame_of_row()[flags.cpu().numpy()]
            total += np.bincount(frames, minlength=len(self))
        return total

    def with_actors(self) -> "Demonstrations":
        """Return the sequences with choices to imitate."""
        num_actors = np.add.reduceat(self.num_actors(), exclusive_cumsum(self.lengths))
        return self.take_sequences(np.flatnonzero(num_actors))

    @classmethod
    def cat(cls, parts: Sequence["Demonstrations"]) -> "Demonstrations":
        """Concatenate the frames of several parts; a single part is returned unchanged."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        endings = sum((part.endings for part in parts), Counter())
        return replace(super().cat(parts), lengths=lengths, endings=endings)


def open_recordings(paths: Sequence[str | Path]) -> dict[Path, Recording]:
    """Open recordings of one environment, of this project or of entity-gym.

    Raises:
        ConfigError: a file is missing or listed twice, or the environments differ.
        RecordingError: a file is not a recording or is damaged.
    """
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError(f"RECORDING: expected each file once, got {', '.join(map(str, paths))}")
    recordings = {Path(path): open_recording(Path(path)) for path in paths}
    (first, first_recording), *remaining = recordings.items()
    for path, other in remaining:
        check_same_spaces(str(path), other, str(first), first_recording.spaces)
    return recordings


def open_recording(path: Path, field: str = "RECORDING") -> Recording:
    """Open a recording of this project or of entity-gym.

    Args:
        path: the file.
        field: name of the setting or argument, for messages.

    Raises:
        ConfigError: the file is missing.
        RecordingError: the file is not a recording or is damaged.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(8)
    except OSError as error:
        raise ConfigError(f"{field}: expected a file, got {path} ({error.strerror})") from None
    return open_entity_gym_samples(path) if is_entity_gym(begin) else Recording.open(path)


def check_same_spaces(path: str, recording: Recording, expected: str, spaces: Spaces) -> None:
    """Raise if the spaces of a recording differ in more than the order of types and features.

    Raises:
        ConfigError: the spaces differ; the message lists the differences.
    """
    diff = diff_spaces(spaces, recording.spaces)
    different = diff.changed + diff.reordered_labels + diff.bounds
    if different:
        raise ConfigError(f"{path}: expected a recording of {expected}; {'; '.join(different)}")
