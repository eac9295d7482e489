"""Pinned saves, which are never deleted: `pins.json` in the folder of a run."""

import json
from pathlib import Path

from enn_trainer.errors import CheckpointError

PINS = "pins.json"
MAX_PINS_BYTES = 1 << 20


def read_pins(run_dir: Path) -> dict[str, str]:
    """The pinned saves of a run: the note of each by the name of its directory.

    Raises:
        CheckpointError: the file cannot be read, or is no such file.
    """
    path = run_dir / PINS
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PINS_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_PINS_BYTES:
        raise CheckpointError(f"{path}: larger than a list of pins can be")
    try:
        pins = json.loads(data)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged, not JSON") from None
    if not isinstance(pins, dict) or not all(isinstance(note, str) for note in pins.values()):
        raise CheckpointError(f"{path}: expected names of saves with notes, got something else")
    return pins
