"""Worlds of lost workers, without imports of pytest, which each worker would repeat."""

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from entity_env import Action, Observation
from tests.entity_env.worlds import Named


class DrawsGlobally(Named):
    """World that draws from the global generators."""

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        obs.reward = random.random() + np.random.rand()  # noqa: NPY002
        return obs


class ShowsItsProcess(Named):
    """Environment with the process id as reward."""

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        obs.reward = float(os.getpid())
        return obs


class CannotRestore(Named):
    """Environment that raises in `set_state`."""

    def set_state(self, state: Any) -> None:
        raise KeyError("first line\nsecond line")


class Ends(Named):
    """Environment that ends its process in step 3 until a file exists."""

    file: Path | None = None

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        if self.t == 3 and self.file is not None and not self.file.exists():
            os._exit(3)
        return obs
