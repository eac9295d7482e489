"""Futures of the example environments from saved states, here or in a new interpreter.

    python -m tests.entity_env.vec.example_futures STATES

prints them for the states in a file.
"""

import json
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from entity_env import EnvList
from entity_env.examples import ENV_REGISTRY
from entity_env.serialization.messages import pack, unpack
from entity_env.testing.random_play import random_choices

NUM_ENVS = 4


def futures(states: Mapping[str, Any], steps: int = 8) -> dict[str, list[int]]:
    """Return the checksum of each frame that follows a state, by example environment."""
    checksums = {}
    for name, state in states.items():
        envs, rng = EnvList(ENV_REGISTRY[name], NUM_ENVS), np.random.default_rng(0)
        space = envs.obs_space()
        obs = envs.set_state(state, space)
        assert obs is not None
        checksums[name] = [zlib.crc32(pack(obs))]
        for _ in range(steps):
            obs = envs.act(random_choices(obs, envs.action_space(), rng), space)
            checksums[name].append(zlib.crc32(pack(obs)))
    return checksums


if __name__ == "__main__":
    print(json.dumps(futures(unpack(Path(sys.argv[1]).read_bytes()))))
