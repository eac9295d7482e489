"""Measuring an agent in environments of its own, alone or against an opponent."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent, draw_uniforms
from enn_trainer.capture import act, capture_of_evals, recorded
from enn_trainer.config import TrainConfig
from enn_trainer.envs import EnvFactory, global_randomness_kept
from enn_trainer.errors import ConfigError
from enn_trainer.opponents import space_differences
from enn_trainer.state import State
from entity_env.metrics import AddMetricsWrapper
from entity_env.seeding import derive_seed
from entity_env.spaces import ObsSpace
from entity_env.vec_env import Metric, VecEnv, add_metrics
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device
from rogue_net.rogue_net import NetOutput


class Seats(NamedTuple):
    """Which environments an agent plays in: `frames` are their indices."""

    agent: PPOAgent
    frames: npt.NDArray[np.int64]


def evaluate(
    config: TrainConfig,
    create_envs: EnvFactory,
    state: State,
    opponent: PPOAgent | None,
    device: torch.device,
    stop: Callable[[], bool],
) -> Mapping[str, Metric]:
    """Play `eval.steps` steps in `eval.num_envs` environments made for it.

    With an opponent, the agent plays where the index is even and the opponent where it is odd,
    and only the agent's environments count; with `eval.opponent_only` the opponent plays
    everywhere. The result is a function of the configuration and the agents: episodes and choices
    have seeds of their own, and neither the agents nor any generator of random numbers is changed.
    With `eval.capture_samples` the frames of both are recorded.

    Args:
        config: of the run.
        create_envs: makes the environments.
        state: of the run, with the agent to measure.
        opponent: whom to play against.
        device: where they play.
        stop: asked before each step whether to end early.

    Returns:
        The metrics of the environments.

    Raises:
        ConfigError: `eval.env` is another world than that of the run.
    """
    cfg = config.eval
    assert cfg is not None
    num_envs = config.eval_num_envs
    processes = cfg.processes or min(config.rollout.processes, num_envs)
    with global_randomness_kept(), ExitStack() as stack:
        try:
            envs = create_envs(cfg.env or config.env, num_envs, processes, 0)
        except ConfigError as error:
            if cfg.env is None:
                raise
            raise ConfigError(*(f"eval.{problem}" for problem in error.problems)) from None
        stack.callback(envs.close)
        different = space_differences(
            state.obs_space, state.action_space, envs.obs_space(), envs.action_space()
        )
        if different:
            raise ConfigError(f"eval.env: expected the world of env; {'; '.join(different)}")
        agent = state.agent
        everywhere = np.arange(num_envs)
        counted = None
        if opponent is None:
            seats = [Seats(agent, everywhere)]
        elif cfg.opponent_only:
            seats = [Seats(opponent, everywhere)]
        else:
            seats = [Seats(agent, everywhere[::2]), Seats(opponent, everywhere[1::2])]
            counted = everywhere % 2 == 0
        envs = AddMetricsWrapper(envs, counted)
        envs = recorded(envs, capture_of_evals(config), state.run_name, stack)
        seed = derive_seed(config.seed, "eval")
        return play(envs, seats, cfg.steps, seed, device, stop, state.step, state.obs_space)


@torch.no_grad()
def play(
    envs: VecEnv,
    seats: Sequence[Seats],
    steps: int,
    seed: int,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
    run_step: int = 0,
    obs_space: ObsSpace | None = None,
) -> Mapping[str, Metric]:
    """Let agents play for some steps, each in its environments.

    Args:
        envs: where they play.
        seats: who plays in which of them.
        steps: how many.
        seed: of episodes and choices.
        device: where the agents are.
        stop: asked before each step whether to end early.
        run_step: the step of the run, for a recording.
        obs_space: what the agents see, in the order in which they know it; by default that of the
            environments.

    Returns:
        The metrics of all steps.
    """
    obs_space = envs.obs_space() if obs_space is None else obs_space
    metrics: dict[str, Metric] = {}
    envs.seed(seed)
    obs = envs.reset(obs_space)
    for t in range(steps):
        if stop():
            break
        batch = EntityBatch.of(obs, device)
        obs = act(envs, obs_space, _answer(seats, batch, seed, t), batch, run_step)
        add_metrics(metrics, obs.metrics)
    return metrics


def _answer(seats: Sequence[Seats], batch: EntityBatch, seed: int, t: int) -> NetOutput:
    """What every agent says about its frames, put together in the order of the frames."""
    taken = [seat for seat in seats if len(seat.frames)]
    outs, batches = [], []
    for agent, frames in taken:
        theirs = batch.take(frames)
        batches.append(theirs)
        outs.append(agent(theirs, uniforms=draw_uniforms(theirs.actions, seed, frames, t)))
    if len(outs) == 1:
        return outs[0]
    order = np.argsort(np.concatenate([seat.frames for seat in taken]))
    lengths = {
        name: np.concatenate([b.actions[name].actors.lengths for b in batches])
        for name in batch.actions
    }

    def of_actors(said: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {
            name: RaggedTensor(_cat([s[name] for s in said]), n).take(order).values
            for name, n in lengths.items()
        }

    values = torch.cat([out.values["value"] for out in outs])
    return NetOutput(
        actions=of_actors([out.actions for out in outs]),
        logprobs=of_actors([out.logprobs for out in outs]),
        entropies=of_actors([out.entropies for out in outs]),
        log_probs=of_actors([out.log_probs for out in outs]),
        values={"value": values.index_select(0, to_device(order, values.device))},
    )


def _cat(pieces: Sequence[Tensor]) -> Tensor:
    """Rows one piece after the other, the narrower ones made wider by what is not possible."""
    if pieces[0].dim() == 1:
        return torch.cat(list(pieces))
    widest = max(piece.shape[1] for piece in pieces)
    return torch.cat(
        [
            nn.functional.pad(piece, (0, widest - piece.shape[1]), value=-math.inf)
            for piece in pieces
        ]
    )
