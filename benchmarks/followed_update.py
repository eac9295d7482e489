"""Print the files of the packages that are executed by one update of `Xor`, as JSON.

Run by `structure.py` in a separate process.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from structure_code import PACKAGES

SIZES = [
    "rollout.num_envs=4",
    "rollout.steps=4",
    "optim.bs=8",
    "net.d_model=8",
    "total_timesteps=99",
]


def main() -> None:
    """Create a run, and trace its second update."""
    from enn_trainer import StateManager, Trainer
    from entity_env.examples import Xor

    specs = [importlib.util.find_spec(name) for name in PACKAGES]
    folders = [str(Path(spec.origin).parent) for spec in specs if spec and spec.origin]
    files: set[str] = set()

    def follow(frame: FrameType, event: str, arg: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(tuple(folders)):
            files.add(file)

    with Trainer(StateManager(overrides=[*SIZES, "rollout.processes=1"]), Xor) as trainer:
        trainer.step()
        sys.setprofile(follow)
        trainer.step()
        sys.setprofile(None)
    print(json.dumps(sorted(files)))


if __name__ == "__main__":
    main()
