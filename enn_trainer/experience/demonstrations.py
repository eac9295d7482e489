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
    """F recorded frames.

    Frames that stay together are a unit: a sequence, if the network remembers, or one frame.

    Attributes:
        batch: the frames.
        actions: per action int64 (actors,) per frame, the recorded choices; float32 (actors,
            components) of numbers, as they were drawn. Of actors who do not take a dependent
            action -1, or NaN.
        teacher: per action float32 (actors * choices,) per frame, row by row, the recorded logits
            or log-probabilities of all choices, or of all actees; or the recorded parameters of
            distributions of numbers; 0 where nothing is to be imitated; empty if not needed.
        returns: (F,) float32, the discounted return from each frame; NaN where it is not known.
        lengths: (units,) int64, frames of each unit; they are consecutive.
        learnt: per action bool (actors,) per frame, True for choices to imitate. Memory and
            dependent actions see the others too, such as those of other players.
        endings: number of frames without a return by the ending of their episode.
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

    def frames(self, units: IntArray) -> IntArray:
        """Return the frames of some units, unit after unit."""
        return row_indices(exclusive_cumsum(self.lengths)[units], self.lengths[units])

    def select(self, selection: Selection) -> "Demonstrations":
        """Return the selected frames, each of which is a unit."""
        return replace(super().select(selection), lengths=np.ones(len(selection.frames), np.int64))

    def take_units(self, units: IntArray) -> "Demonstrations":
        """Return the given units, in the given order."""
        return replace(self.take(self.frames(units)), lengths=self.lengths[units])

    def of_learnt(self, name: ActionName, rows: Tensor) -> Tensor:
        """Return the rows of those actors of an action whose choices are to be imitated."""
        return rows[self.learnt[name].values]

    def decided(self) -> dict[ActionName, Tensor]:
        """Return the actors in whose decisions something is to be imitated.

        Returns:
            (actors,) bool of each action that depends on none: a chain is one decision.
        """
        counts = {name: flags.values.float() for name, flags in self.learnt.items()}
        return {name: count > 0 for name, count in joint(counts, self.batch.actions).items()}

    def per_decision(self, parts: Mapping[ActionName, Tensor]) -> dict[ActionName, Tensor]:
        """Return the sum over the parts to imitate of each decision.

        Args:
            parts: (actors,) float of each action.

        Returns:
            (decisions,) float of each action that depends on none, of those in `decided`.
        """
        to_imitate = {
            name: rows.masked_fill(~self.learnt[name].values, 0.0) for name, rows in parts.items()
        }
        decided = self.decided()
        totals = joint(to_imitate, self.batch.actions)
        return {name: total[decided[name]] for name, total in totals.items()}

    def num_actors(self) -> IntArray:
        """Return the number of decisions to imitate of each frame in all actions, (F,) int64."""
        total = np.zeros(len(self), dtype=np.int64)
        for name, flags in self.decided().items():
            frames = self.actions[name].frame_of_row()[flags.cpu().numpy()]
            total += np.bincount(frames, minlength=len(self))
        return total

    def with_actors(self) -> "Demonstrations":
        """Return the units that have actors to imitate."""
        num_actors = np.add.reduceat(self.num_actors(), exclusive_cumsum(self.lengths))
        return self.take_units(np.flatnonzero(num_actors))

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
        check_same_spaces(str(path), other, str(first), world.spaces)
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


def check_same_spaces(path: str, recording: Recording, world: str, spaces: Spaces) -> None:
    """Raise if the spaces of a recording differ in more than the order of types and features.

    Raises:
        ConfigError: they do; the message lists the differences.
    """
    diff = diff_spaces(spaces, recording.spaces)
    different = diff.changed + diff.reordered_labels + diff.bounds
    if different:
        raise ConfigError(f"{path}: expected a recording of {world}; {'; '.join(different)}")
