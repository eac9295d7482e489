"""Proximal policy optimisation.

Source: Schulman et al. 2017, arXiv:1707.06347.
"""

from enn_trainer.algorithm import Clock
from enn_trainer.cloning.bc_term import bc_of_update
from enn_trainer.cloning.demonstrations import Demonstrations
from enn_trainer.config import TrainConfig
from enn_trainer.ppo.advantages import advantages
from enn_trainer.ppo.annealing import rates_at
from enn_trainer.ppo.optimize import optimize
from enn_trainer.ppo.optimizers import begin_update
from enn_trainer.ppo.reward_scaling import reward_scalars
from enn_trainer.ppo.rollout import Rollout
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.state import State
from entity_env.seeding import derive_seed

FIRST_FRAMES = "first frames"
"""In the memory of a state whose input statistics know no more than the first frames."""


class PPO:
    """Improves the agent of a state on rollouts.

    Args:
        config: of the run.
        state: of the run; the agent, the optimizers and what the loss learns besides are changed.
        demonstrations: recorded frames to clone in each optimizer step; None for none.
    """

    def __init__(
        self, config: TrainConfig, state: State, demonstrations: Demonstrations | None = None
    ) -> None:
        self.config = config
        self.state = state
        self.demonstrations = demonstrations

    def begin_update(self, clock: Clock) -> None:
        """Set the learning rates and the weight decay of an update, and freeze parameters."""
        lr = rates_at(self.config, *clock).lr
        for optimizer in self.state.optimizers():
            begin_update(optimizer, lr, float(self.config.optim.weight_decay), clock.step)

    def update(self, rollout: Rollout, clock: Clock, context: ExecutionContext) -> dict[str, float]:
        """Compute returns, take the frames into the input statistics, and take optimizer steps."""
        config, state, span = self.config, self.state, context.spans.span
        rates = rates_at(config, *clock)
        with span("returns"):
            estimate = advantages(rollout, config.ppo, state.reward_scaling)
        # Input statistics change after the optimisation, except in the first update: until then
        # they know the first frames alone, in which what changes with time is the same everywhere.
        knows_first_frames = state.memory.get(FIRST_FRAMES, False)
        if knows_first_frames:
            with span("stats"):
                state.agent.update_input_stats(rollout.batch)
        with span("optimize"):
            losses = optimize(
                state.agent,
                state.optimizer,
                rollout,
                estimate,
                ppo=config.ppo,
                optim=config.optim,
                ent_coef=rates.ent_coef,
                seed=derive_seed(config.seed, "minibatches", clock.step),
                ent_tunings=state.ent_tunings,
                vf_optimizer=state.vf_optimizer,
                add_bc_gradient=bc_of_update(
                    state.agent, self.demonstrations, config, clock.step, context
                ),
                context=context,
            )
        if not knows_first_frames:
            with span("stats"):
                state.agent.update_input_stats(rollout.batch)
        state.memory.pop(FIRST_FRAMES, None)
        return {
            **losses,
            "charts/learning_rate": rates.lr,
            "charts/entropy_coef": rates.ent_coef,
            **reward_scalars(state.reward_scaling),
        }
