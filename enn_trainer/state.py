"""State of a run: everything that a save has to hold."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union

import torch
from torch import Tensor

from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.errors import ConfigError
from enn_trainer.ppo import loss_state
from enn_trainer.ppo.optimizers import make_optimizers, value_network
from enn_trainer.ppo.reward_scaling import RewardScaling
from entity_env.seeding import derive_seed
from entity_env.spaces import (
    ActionSpace,
    ObsSpace,
)
from rogue_net.rogue_net import RogueNet
from rogue_net.value_net import RogueNetWithValueNet


@dataclass
class State:
    """Everything that a resumed run needs.

    Attributes:
        step: Frames of all environments so far, over all restarts.
        restart: How many times the run was resumed.
        next_eval_step: The step of the next evaluation.
        agent: The network that acts, with its input statistics: a policy with a value head, or with
            `vf_net` a policy and a value network behind one interface.
        value_function: The value network inside `agent`, if it is separate from the policy.
        optimizer: The optimizer of the policy network.
        vf_optimizer: The optimizer of the value network, if it is separate from the policy.
        obs_space: The observation space of the environment.
        action_space: The action space of the environment.
        time_used: Seconds of training, over all restarts.
        run_name: The folder that trackers write to, so that a resumed run continues there.
        tracker_ids: The id of the run in each tracking service, so that it continues there as well.
        ent_tunings: For each action with an entropy target (2,) float32, the state of its
            coefficient, see `entropy_targets.py`.
        reward_scaling: Statistics of returns, if rewards are scaled by them.
        memory: The memory of stop conditions and callbacks, the recording of `bc`, and whether
            input statistics cover only the first frames; plain data.
        metrics: The latest value of every tag, for stop conditions.
        envs: The unfinished episodes of the newest save, see `running_episodes.py`; None if
            environments cannot save their state, or the run failed. Set when the run is saved.
    """

    step: int
    restart: int
    next_eval_step: Optional[int]
    agent: Any
    value_function: Optional[Any]
    optimizer: torch.optim.Optimizer
    vf_optimizer: Optional[torch.optim.Optimizer]
    obs_space: ObsSpace
    action_space: Dict[str, ActionSpace]
    time_used: float = 0.0
    run_name: str = ""
    tracker_ids: Dict[str, str] = field(default_factory=dict)
    ent_tunings: Dict[str, Tensor] = field(default_factory=dict)
    reward_scaling: Optional[RewardScaling] = None
    memory: Dict[str, Any] = field(default_factory=dict)
    metrics: Dict[str, float] = field(default_factory=dict)
    envs: Optional[bytes] = None

    def to(self, device: torch.device) -> None:
        """Move all tensors to a device: networks, optimizer moments and statistics."""
        self.agent.to(device)
        self.ent_tunings = {name: t.to(device) for name, t in self.ent_tunings.items()}
        if self.reward_scaling is not None:
            self.reward_scaling.to(device)
        for optimizer in self.optimizers():
            optimizer.load_state_dict(optimizer.state_dict())  # puts moments where parameters are

    def optimizers(self) -> List[torch.optim.Optimizer]:
        """Return the optimizer of the policy, and that of the value network if there is one."""
        both = [self.optimizer, self.vf_optimizer]
        return [optimizer for optimizer in both if optimizer is not None]


def init_train_state(cfg: TrainConfig, ctx: Dict[str, Any]) -> State:
    """Return the initial state of a run.

    Args:
        cfg: the configuration.
        ctx: `obs_space` and `action_space` of the environment; and `agent`, a network of the
            user's own, or None.
    """
    agent = ctx.get("agent")
    if agent is None:
        agent = make_network(cfg, ctx["obs_space"], ctx["action_space"])
    optimizer, vf_optimizer = make_optimizers(agent, cfg.optim)
    return State(
        step=0,
        restart=0,
        next_eval_step=None if cfg.eval is None else first_eval_step(cfg.eval, 0),
        agent=agent,
        value_function=value_network(agent),
        optimizer=optimizer,
        vf_optimizer=vf_optimizer,
        obs_space=ctx["obs_space"],
        action_space=dict(ctx["action_space"]),
        ent_tunings=loss_state.fresh_ent_tunings(cfg.ppo, ctx["action_space"]),
        reward_scaling=loss_state.fresh_reward_scaling(cfg),
    )


def first_eval_step(cfg: EvalConfig, step: int) -> int:
    """Return the step of the first evaluation, if evaluations are switched on at `step`."""
    return step if cfg.run_on_first_step else step + cfg.interval


def make_network(
    cfg: TrainConfig, obs_space: ObsSpace, action_space: Dict[str, ActionSpace]
) -> Union[RogueNet, RogueNetWithValueNet]:
    """Return a new network, whose weights are a function of the seed.

    With `cfg.vf_net` it is a policy and a value network behind one interface. The state of torch's
    random number generator does not change.

    Raises:
        ConfigError: the configuration names types or features that the spaces do not have.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(cfg.seed, "network"))
        try:
            heads = {"value": cfg.ppo.value_bins or 1}
            if cfg.vf_net is not None:
                return RogueNetWithValueNet(cfg.net, cfg.vf_net, obs_space, action_space, heads)
            return RogueNet(cfg.net, obs_space, action_space, regression_heads=heads)
        except ValueError as error:
            raise ConfigError(f"net: {error}".replace("net: vf_config", "vf_net", 1)) from None
