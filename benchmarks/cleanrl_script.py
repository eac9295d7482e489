"""Runs a copy of CleanRL's published PPO script for the agents of vector environments."""

import re
import runpy
import sys
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from mlp_ppo import Settings

_WIDTH = r"\b64\b"
"""The width of the layers in the script."""
_FRAMES = 10**9


class _TrainingEndError(Exception):
    """Ends the script."""


class Slots(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Vector environment of Gymnasium with one environment per agent.

    Args:
        worlds: a `FlatForaging`, or an object with its attributes and `step`.
        num_steps: steps of a rollout.
        begin: called at the reset with the network of the script; returns a function that is
            called with the number of frames after each update, and returns True to end.
    """

    def __init__(
        self, worlds: Any, num_steps: int, begin: Callable[[Any], Callable[[int], bool]]
    ) -> None:
        self._worlds, self._num_steps, self._begin, self._steps = worlds, num_steps, begin, 0
        self.num_envs, num_features = worlds.obs.shape
        box = gymnasium.spaces.Box(-np.inf, np.inf, (num_features,), np.float32)
        self.single_observation_space = box
        self.single_action_space = gymnasium.spaces.Discrete(worlds.num_actions)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Return the current frames."""
        self._on_update = self._begin(vars(sys.modules["__main__"])["agent"])
        return self._worlds.obs, {}

    def step(self, actions: Any) -> Any:
        """Step all environments; those that end are reset in the same step."""
        has_updated = self._steps > 0 and self._steps % self._num_steps == 0
        if has_updated and self._on_update(self._num_steps * self.num_envs):
            raise _TrainingEndError
        self._steps += 1
        outcome = self._worlds.step(actions)
        terminated = outcome.ends & ~outcome.truncated
        return self._worlds.obs, outcome.rewards, terminated, outcome.truncated, {}


def train(
    script: str,
    slots: Slots,
    width: int,
    settings: Settings,
    seed: int,
    folder: str,
) -> None:
    """Run the script, with a constant learning rate, until `slots` ends it.

    Args:
        script: file that reads its flags, and creates `gymnasium.vector.SyncVectorEnv` and `agent`.
            A copy with layers of another width runs in `folder`.
        slots: used as its vector environment.
        width: of the layers.
        settings: hyperparameters.
        seed: of weights and actions.
        folder: of the files that the script writes.

    Raises:
        ValueError: the script has no layers of the width 64.
    """
    text, num_widths = re.subn(_WIDTH, str(width), Path(script).read_text())
    if not num_widths:
        raise ValueError(
            f"cleanrl: expected a script with layers of 64 units, got none in {script}; use a copy "
            "of cleanrl/ppo.py"
        )
    copy = Path(folder, "ppo.py")
    copy.write_text(text)
    flags = {
        "seed": seed,
        "total-timesteps": _FRAMES,
        "num-envs": settings.n_envs,
        "num-steps": settings.n_steps,
        "num-minibatches": settings.n_envs * settings.n_steps // settings.batch_size,
        "update-epochs": settings.n_epochs,
        "learning-rate": settings.learning_rate,
        "gamma": settings.gamma,
        "gae-lambda": settings.gae_lambda,
        "clip-coef": settings.clip_range,
        "ent-coef": settings.ent_coef,
        "vf-coef": settings.vf_coef,
        "max-grad-norm": settings.max_grad_norm,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    argv = [str(copy), *words, "--no-anneal-lr", "--no-cuda"]
    with (
        suppress(_TrainingEndError),
        chdir(folder),
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(gymnasium.vector, "SyncVectorEnv", return_value=slots),
    ):
        runpy.run_path(str(copy), run_name="__main__")
