"""State of the options of the loss: entropy coefficients and reward scaling, with their saves."""

from collections.abc import Mapping

import torch
from torch import Tensor

from enn_trainer.config import TrainConfig
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.errors import ConfigError
from enn_trainer.ppo.entropy_targets import begun
from enn_trainer.ppo.reward_scaling import RewardScaling
from entity_env.spaces import ActionSpace
from rogue_net.input_norm import Moments

_TUNING = "ent_tunings/"
_SCALING = "reward_scaling/"


def fresh_ent_tunings(ppo: PPOConfig, action_space: Mapping[str, ActionSpace]) -> dict[str, Tensor]:
    """Return the initial state of the coefficients of `ppo.ent_targets`, (2,) float32 each.

    Raises:
        ConfigError: a target names no action of the environment.
    """
    unknown = sorted(ppo.ent_targets.keys() - action_space.keys())
    if unknown:
        raise ConfigError(
            f"ppo.ent_targets: expected actions of the world, {sorted(action_space)}, got {unknown}"
        )
    return {name: begun(ppo.ent_coef) for name in ppo.ent_targets}


def fresh_reward_scaling(cfg: TrainConfig) -> RewardScaling | None:
    """Return the initial state of reward scaling, or None if rewards are not scaled."""
    return RewardScaling.fresh(cfg.rollout.num_envs) if cfg.ppo.reward_scaling else None


def to_tensors(
    ent_tunings: Mapping[str, Tensor], reward_scaling: RewardScaling | None
) -> dict[str, Tensor]:
    """Return the tensors of a save by name."""
    tensors = {_TUNING + name: tuning for name, tuning in ent_tunings.items()}
    if reward_scaling is not None:
        tensors |= {_SCALING + name: x for name, x in reward_scaling.moments._asdict().items()}
        tensors[_SCALING + "returns"] = reward_scaling.returns
    return tensors


def ent_tunings(
    tensors: Mapping[str, Tensor], ppo: PPOConfig, action_space: Mapping[str, ActionSpace]
) -> dict[str, Tensor]:
    """Read the state of entropy coefficients from a save; new targets get the initial state.

    Raises:
        ValueError: a tensor has the wrong shape or type, or is not finite.
    """
    fresh = fresh_ent_tunings(ppo, action_space)
    found = {name: tensors.get(_TUNING + name, tuning) for name, tuning in fresh.items()}
    for name, tuning in found.items():
        _check(_TUNING + name, tuning, fresh[name].dtype, (2,))
    return found


def reward_scaling(tensors: Mapping[str, Tensor], cfg: TrainConfig) -> RewardScaling | None:
    """Read the state of reward scaling from a save, or make it if the option is new.

    Raises:
        ValueError: a tensor is missing, has the wrong shape or type, or is not finite.
    """
    saved = {
        name.removeprefix(_SCALING): tensor
        for name, tensor in tensors.items()
        if name.startswith(_SCALING)
    }
    if not cfg.ppo.reward_scaling or not saved:
        return fresh_reward_scaling(cfg)
    parts = (*Moments._fields, "returns")
    if saved.keys() != {*parts}:
        raise ValueError(
            f"reward_scaling: expected {', '.join(parts)}, got {', '.join(sorted(saved))}"
        )
    if saved["num_rows"].ndim == 0:  # older saves have one count for all features
        saved["num_rows"] = saved["num_rows"][None]
    for name, shape in zip(parts, ((1,), (1,), (1,), (saved["returns"].numel(),)), strict=True):
        dtype = torch.int64 if name == "num_rows" else torch.float64
        _check(_SCALING + name, saved[name], dtype, shape)
    returns = saved.pop("returns")
    return RewardScaling(Moments(**saved), returns)


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.isfinite().all():
        raise ValueError(
            f"{name}: expected {list(shape)} finite numbers of {dtype}, got "
            f"{list(tensor.shape)} of {tensor.dtype}"
        )
