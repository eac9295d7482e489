"""PPO of stable-baselines3 for the players of `flat_foraging.py`."""

from typing import Any

import gymnasium
import numpy as np
from mlp_ppo import Settings
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv


class Players(VecEnv):
    """Vectorised environment of stable-baselines3 with one environment per player.

    Args:
        worlds: environments: a `FlatForaging`, or an object with its attributes and `step`.
            MaskablePPO also needs `action_masks`, (N, actions) bool.
    """

    def __init__(self, worlds: Any) -> None:
        self.worlds, self.render_mode = worlds, None
        num_envs, num_features = worlds.obs.shape
        obs_space = gymnasium.spaces.Box(-1.0, 1.0, (num_features,), np.float32)
        super().__init__(num_envs, obs_space, gymnasium.spaces.Discrete(worlds.num_actions))

    def reset(self) -> Any:
        """Return the current frames; running episodes continue."""
        return self.worlds.obs

    def step_async(self, actions: Any) -> None:
        """Store the actions of the next step."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Step the environments."""
        outcome = self.worlds.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(outcome.ends):
            infos[i]["TimeLimit.truncated"] = bool(outcome.truncated[i])
            infos[i]["terminal_observation"] = outcome.last[i]
        return self.worlds.obs, outcome.rewards, outcome.ends, infos

    def close(self) -> None:
        """Do nothing."""

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False for all environments."""
        return [False] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of all environments."""
        owner = self.worlds if attr_name == "action_masks" else self
        return [getattr(owner, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise, because no attribute can be set."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """Return the action mask of each environment; no other method is supported."""
        if method_name != "action_masks":
            raise NotImplementedError
        return list(self.worlds.action_masks)


def make_ppo(worlds: Any, hidden: int, settings: Settings, seed: int) -> PPO:
    """Create a PPO learner with two hidden layers each for policy and value function."""
    layers = [hidden, hidden]
    arguments = settings._asdict()
    del arguments["n_envs"]
    return PPO(
        "MlpPolicy",
        Players(worlds),
        policy_kwargs={"net_arch": {"pi": layers, "vf": layers}},
        seed=seed,
        device="cpu",
        **arguments,
    )
