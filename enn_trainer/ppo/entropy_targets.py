"""Entropy coefficients that are learnt, so that the entropy of an action meets a target.

Source: Haarnoja et al. 2018, arXiv:1812.05905, section 5, where a network learns off-policy;
Stooke et al. 2020, arXiv:2007.03964, for the share of the last miss.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

# Without it the coefficient lags behind the entropy and drives it from 0 to 1 and back, for ever.
MISS_GAIN = 5.0
# Where the entropy does not follow, the coefficient must not go so far that it cannot come back.
LOG_COEF_LIMITS = (math.log(1e-4), math.log(1e2))


def begun(ent_coef: float) -> Tensor:
    """(2,) float32, what tuning knows before it begins: log coefficient, and nothing missed."""
    return torch.tensor([math.log(ent_coef), 0.0])


def tuned_coef(tuning: Tensor) -> Tensor:
    """(2,) -> () float, the coefficient."""
    return (tuning[0] + MISS_GAIN * tuning[1]).exp()


def tune(
    tunings: dict[str, Tensor], entropies: Tensor, targets: Mapping[str, float], lr: float
) -> None:
    """Raise each coefficient while the entropy is below its target, lower it while it is above.

    Normalised entropies are between 0 and 1, so that plain steps along the gradient have the same
    meaning in every world.

    Args:
        tunings: per action (2,) float, the logarithm of what its coefficient comes to in the long
            run, and by how much the last entropy was below its target; replaced by those after.
        entropies: (actions, 2) float, what `normalised_entropy` says of the actions, in the order
            of `tunings`; nothing changes where no actor had a choice.
        targets: per action the mean normalised entropy that is wanted.
        lr: what the first of the two changes by for a miss of 1.
    """
    for (name, tuning), (entropy, actors) in zip(list(tunings.items()), entropies, strict=True):
        miss = targets[name] - entropy / actors.clamp(min=1)
        after = torch.stack([(tuning[0] + lr * miss).clamp(*LOG_COEF_LIMITS), miss]).to(tuning)
        tunings[name] = torch.where(actors > 0, after, tuning)


def coef_of_actor(
    tunings: Mapping[str, Tensor], others: float, num_actors: Mapping[str, int], like: Tensor
) -> Tensor:
    """The entropy coefficient of each actor, action after action.

    Args:
        tunings: of the actions that are tuned, see `tune`.
        others: the coefficient of the other actions.
        num_actors: per action.
        like: gives type and device.

    Returns:
        (actors,) float.
    """
    coefs = {name: tuned_coef(tuning).to(like) for name, tuning in tunings.items()}
    return torch.cat(
        [
            coefs[name].expand(n) if name in coefs else like.new_full((n,), others)
            for name, n in num_actors.items()
        ]
    )


def tuned_scalars(tunings: Mapping[str, Tensor], entropies: Tensor) -> dict[str, float]:
    """What to report of each action with a target; the arguments are those of `tune`."""
    scalars = {}
    for (name, tuning), (entropy, actors) in zip(tunings.items(), entropies, strict=True):
        scalars[f"charts/entropy_coef/{name}"] = tuned_coef(tuning).item()
        if actors > 0:
            scalars[f"losses/normalised_entropy/{name}"] = (entropy / actors).item()
    return scalars
