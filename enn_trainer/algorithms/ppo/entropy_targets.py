"""Adaptive entropy coefficients, which keep the entropy of an action near a target.

A PI controller of the logarithm of the coefficient, with error = target - normalised entropy.

Source: Haarnoja et al. 2018, arXiv:1812.05905, section 5 (integral term, off-policy); Stooke et al.
2020, arXiv:2007.03964 (proportional term).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from enn_trainer.base.errors import ConfigError
from entity_env.spaces import ActionSpace

# Gain of the proportional term. Without it the coefficient lags behind the entropy, which then
# oscillates between 0 and 1.
MISS_GAIN = 5.0
# Anti-windup: where the entropy does not respond, the coefficient stays within reach.
LOG_COEF_LIMITS = (math.log(1e-4), math.log(1e2))


def initial_tunings(
    targets: Mapping[str, float], ent_coef: float, action_space: Mapping[str, ActionSpace]
) -> dict[str, Tensor]:
    """Return the initial state of the coefficients of actions with a target, by action.

    Raises:
        ConfigError: a target names an unknown action, or a continuous one without bounds.
    """
    unknown = sorted(targets.keys() - action_space.keys())
    if unknown:
        raise ConfigError(
            "ppo.ent_targets: expected actions of the environment, "
            f"{sorted(action_space)}, got {unknown}"
        )
    for name in targets:
        for component, (low, _) in action_space[name].bounds_by_name().items():
            if math.isinf(low):
                raise ConfigError(
                    f"ppo.ent_targets: {name}: expected labels, entities or numbers with bounds, "
                    f"got {component!r} without bounds; leave it out, or give it bounds"
                )
    return {name: initial_tuning(ent_coef) for name in targets}


def initial_tuning(ent_coef: float) -> Tensor:
    """Return an initial tuning state, (2,) float32: log coefficient, and an error of 0."""
    return torch.tensor([math.log(ent_coef), 0.0])


def tuned_coef(tuning: Tensor) -> Tensor:
    """Return the entropy coefficient of a tuning state: (2,) -> () float."""
    # log(coefficient) = integral + gain * error
    return (tuning[0] + MISS_GAIN * tuning[1]).exp()


def tune(
    tunings: dict[str, Tensor], entropies: Tensor, targets: Mapping[str, float], lr: float
) -> None:
    """Update coefficients: up while the entropy is below its target, down while it is above.

    Normalised entropies are between 0 and 1, so that one learning rate fits all environments.

    Args:
        tunings: (2,) float by action: the integral of the error, which is the logarithm of a
            coefficient, and the last error, target minus entropy. The dict is modified.
        entropies: (actions, 2) float, results of `normalised_entropy` (sum, and number of actors
            with a choice) in the order of `tunings`; actions without such actors do not change.
        targets: target of the mean normalised entropy, by action.
        lr: gain of the integral term.
    """
    low, high = LOG_COEF_LIMITS
    for (name, tuning), (entropy, actors) in zip(list(tunings.items()), entropies, strict=True):
        # integral += lr * error, within limits
        miss = targets[name] - entropy / actors.clamp(min=1)
        after = torch.stack([(tuning[0] + lr * miss).clamp(low, high), miss]).to(tuning)
        tunings[name] = torch.where(actors > 0, after, tuning)


def coef_of_actor(
    tunings: Mapping[str, Tensor], default_coef: float, num_actors: Mapping[str, int], like: Tensor
) -> Tensor:
    """Return the entropy coefficient of each actor, action by action.

    Args:
        tunings: tuning states of the actions with a target, see `tune`.
        default_coef: coefficient of actions without a target.
        num_actors: number of actors by action.
        like: tensor with the dtype and device of the result.

    Returns:
        (actors,) float.
    """
    coefs = {name: tuned_coef(tuning).to(like) for name, tuning in tunings.items()}
    return torch.cat(
        [
            coefs[name].expand(n) if name in coefs else like.new_full((n,), default_coef)
            for name, n in num_actors.items()
        ]
    )


def tuned_scalars(tunings: Mapping[str, Tensor], entropies: Tensor) -> dict[str, float]:
    """Return metrics of the actions with a target, by tag; for the arguments see `tune`."""
    scalars = {}
    for (name, tuning), (entropy, actors) in zip(tunings.items(), entropies, strict=True):
        scalars[f"charts/entropy_coef/{name}"] = tuned_coef(tuning).item()
        if actors > 0:
            scalars[f"losses/normalised_entropy/{name}"] = (entropy / actors).item()
    return scalars
