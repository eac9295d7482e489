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
    """World whose rewards depend on the process."""

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        obs.reward = float(os.getpid())
        return obs


class CannotRestore(Named):
    """World whose state cannot be restored."""

    def set_state(self, state: Any) -> None:
        raise KeyError("first line\nsecond line")


class Ends(Named):
    """World that ends its process in one step, again and again, unless a file is there."""

    file: Path | None = None

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        if self.t == 3 and self.file is not None and not self.file.exists():
            os._exit(3)
        return obs
