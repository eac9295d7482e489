"""State of a run: everything that a checkpoint must contain."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Dict, List, Optional, Type, TypeAlias, TypeVar, Union

import torch

from enn_trainer.algorithms.optimizers import value_network
from enn_trainer.algorithms.ppo.ppo import PPO
from enn_trainer.base.errors import ConfigError
from enn_trainer.base.state_part import StatePart, copied_state, full_state
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.curriculum.lessons import CURRICULUM, Lessons
from enn_trainer.curriculum.rounds import ROUNDS, RunRounds
from enn_trainer.experience.memories import memory_specs
from enn_trainer.experience.run_memories import RecurrentStates
from enn_trainer.selfplay.league import LEAGUE, PLAYERS, League
from enn_trainer.selfplay.seating import PoolLineups
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionSpace, ObsSpace, Spaces
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet


def _algorithm_field(name: str, doc: str) -> Any:
    """Return a property that forwards to an attribute of the algorithm."""

    def set_(state: "State", value: Any) -> None:
        setattr(state.algorithm, name, value)

    return property(attrgetter(f"algorithm.{name}"), set_, doc=doc)


P = TypeVar("P", bound=StatePart)


@dataclass
class State:
    """Everything that a resumed run needs.

    Attributes:
        step: Frames of all environments so far, over all restarts.
        restart: How many times the run was resumed.
        next_eval_step: The step of the next evaluation.
        agent: The network that acts, with its input statistics: a policy with a value head, or with
            `vf_net` a policy and a value network behind one interface.
        obs_space: The observation space of the environment.
        action_space: The action space of the environment.
        time_used: Seconds of training, over all restarts.
        run_name: The folder that trackers write to, so that a resumed run continues there.
        tracker_ids: The id of the run in each tracking service, so that it continues there as well.
        parts: The parts that have tensors or behaviour of their own, by name; "algorithm" is what
            learns. Saves, resumes and upgrades go over all of them.
        memory: The memory of stop conditions and callbacks, the recording of `bc`, and whether
            input statistics cover only the first frames; plain data.
        metrics: The latest value of every tag, as it was logged; see `metrics_over_rounds`.
        envs: The unfinished episodes of the newest save, see `running_episodes.py`; None if
            environments cannot save their state, or the run failed. Set when the run is saved.
    """

    step: int
    restart: int
    next_eval_step: Optional[int]
    agent: Any
    obs_space: ObsSpace
    action_space: Dict[str, ActionSpace]
    time_used: float = 0.0
    run_name: str = ""
    tracker_ids: Dict[str, str] = field(default_factory=dict)
    parts: Dict[str, StatePart] = field(default_factory=dict)
    memory: Dict[str, Any] = field(default_factory=dict)
    metrics: Dict[str, float] = field(default_factory=dict)
    envs: Optional[bytes] = None

    @property
    def spaces(self) -> Spaces:
        """The spaces of the environment."""
        return Spaces(self.obs_space, self.action_space)

    def part(self, kind: Type[P]) -> Optional[P]:
        """Return the part of a class; None if there is none."""
        return next((part for part in self.parts.values() if isinstance(part, kind)), None)

    @property
    def algorithm(self) -> Any:
        """The part that learns: a `RolloutAlgorithm`, `PPO` unless `initial_state` made another."""
        return self.parts["algorithm"]

    # Public attributes for PPO.
    optimizer = _algorithm_field("optimizer", "The optimizer of the policy network.")
    vf_optimizer = _algorithm_field("vf_optimizer", "The optimizer of a separate value network.")
    ent_tunings = _algorithm_field("ent_tunings", "States of entropy coefficients, by action.")

    @property
    def value_function(self) -> Optional[torch.nn.Module]:
        """The value network inside `agent`, if it is separate from the policy."""
        return value_network(self.agent)

    @property
    def reward_scaling(self) -> Any:
        """Statistics of returns, if rewards are scaled by them."""
        return getattr(self.algorithm, "reward_transforms", {}).get("reward_scaling")

    def frames_per_step(self, cfg: TrainConfig) -> int:
        """Return the number of frames per step that the agent learns from."""
        seating = self.part(PoolLineups)
        table = None if seating is None else seating.table
        return cfg.rollout.num_envs if table is None else table.num_learnt

    def metrics_over_rounds(self) -> Dict[str, float]:
        """Return the latest metrics, with episode metrics averaged over whole rounds."""
        rounds = self.part(RunRounds)
        return (
            dict(self.metrics)
            if rounds is None
            else rounds.over_rounds(self.metrics, rounds.latest)
        )

    def optimizers(self) -> List[torch.optim.Optimizer]:
        """Return the optimizers of the policy and, if it is separate, of the value network."""
        return list(self.algorithm.optimizers())

    def to(self, device: torch.device) -> None:
        """Move all tensors to a device: the network and the parts."""
        self.agent.to(device)
        for part in self.parts.values():
            part.load_state_dict(copied_state(full_state(part), device))


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
    parts = {
        name: part
        for name, make in STATE_PARTS.items()
        if (part := make(cfg, agent, ctx["action_space"])) is not None
    }
    return State(
        step=0,
        restart=0,
        next_eval_step=None if cfg.eval is None else first_eval_step(cfg.eval, 0),
        agent=agent,
        obs_space=ctx["obs_space"],
        action_space=dict(ctx["action_space"]),
        parts=parts,
    )


COMMON_PARTS: Dict[str, Type[StatePart]] = {CURRICULUM: Lessons, ROUNDS: RunRounds}
"""Parts of every state, also of one that an `initial_state` of the user's own made without them."""


def with_common_parts(state: State) -> State:
    """Add the `COMMON_PARTS` that a state lacks, and return the state.

    Raises:
        ConfigError: the state has a part of another class under such a name.
    """
    for name, kind in COMMON_PARTS.items():
        part = state.parts.setdefault(name, kind())
        if not isinstance(part, kind):
            expected = f"State.parts: expected {name!r} to be {kind.__name__}"
            raise ConfigError(f"{expected}, got {part!r}")
    return state


def _players(cfg: TrainConfig, agent: Any, *_: Any) -> Optional[StatePart]:
    if cfg.selfplay is not None:
        return PoolLineups()
    return RecurrentStates() if any(memory_specs(agent)) else None


STATE_PARTS: Dict[
    str, Callable[[TrainConfig, Any, Dict[str, ActionSpace]], Optional[StatePart]]
] = {
    "algorithm": PPO,
    **{name: lambda *_, make=make: make() for name, make in COMMON_PARTS.items()},
    LEAGUE: lambda cfg, *_: None if cfg.selfplay is None else League(),
    PLAYERS: _players,
}
"""Factories of the parts of a new state, by name; they return None for an unused part.

Checkpoints preserve the saved state of unused parts.
"""

InitialState: TypeAlias = Callable[[TrainConfig, Dict[str, Any]], State]
"""Makes the state of a new run from its configuration and context, as `init_train_state`."""


def first_eval_step(cfg: EvalConfig, step: int) -> int:
    """Return the step of the first evaluation, if evaluations are switched on at `step`."""
    return step if cfg.run_on_first_step else step + cfg.interval


def make_network(
    cfg: TrainConfig, obs_space: ObsSpace, action_space: Dict[str, ActionSpace]
) -> Union[RogueNet, RogueNetWithValueNet]:
    """Return a new network with weights initialised from the seed.

    With `cfg.vf_net` it is a policy and a value network behind one interface. The state of torch's
    random number generator does not change.

    Raises:
        ConfigError: the configuration names types or features that the spaces do not have.
    """
    heads = {"value": cfg.ppo.value_bins or 1}
    normalized = ("value",) if cfg.ppo.value_norm else ()
    with _new_weights(cfg):
        if cfg.vf_net is not None:
            return RogueNetWithValueNet(
                cfg.net, cfg.vf_net, obs_space, action_space, heads, normalized
            )
        return RogueNet(cfg.net, obs_space, action_space, heads, normalized_heads=normalized)


def make_policy(
    cfg: TrainConfig, obs_space: ObsSpace, action_space: Dict[str, ActionSpace]
) -> RogueNet:
    """Return a new network as `make_network` does, but without value heads.

    Raises:
        ConfigError: the configuration names types or features that the spaces do not have.
    """
    with _new_weights(cfg):
        return RogueNet(cfg.net, obs_space, action_space)


@contextmanager
def _new_weights(cfg: TrainConfig) -> Iterator[None]:
    """Return a context that initialises weights from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(cfg.seed, "network"))
        try:
            yield
        except ValueError as error:
            raise ConfigError(f"net: {error}".replace("net: vf_config", "vf_net", 1)) from None
