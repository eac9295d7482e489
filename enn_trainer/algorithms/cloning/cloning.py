"""Behavioural cloning as an algorithm: epochs over recorded frames."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.algorithms.algorithm import Algorithm, Clock
from enn_trainer.algorithms.cloning.imitation import CloneLoss, CloneScore, loss_of, value_scale
from enn_trainer.algorithms.minibatches import Frames, add_gradients, minibatches, pieces
from enn_trainer.algorithms.optimizers import (
    begin_update,
    check_finite,
    clipped_step,
    load_moments,
    make_optimizers,
    moments_of,
)
from enn_trainer.config import CloneRunConfig
from enn_trainer.errors import NotFiniteError
from enn_trainer.experience.demonstrations import Demonstrations
from enn_trainer.runtime.execution import ExecutionContext, cost_of_entity
from enn_trainer.state_part import StateDict
from entity_env.seeding import derive_seed, mix


class Cloning(Algorithm[Demonstrations]):
    """Behavioural cloning: an update is an epoch over recorded frames.

    Args:
        config: configuration of cloning, and of a run that continues from it.
        agent: the network; its parameters are changed.
        train: frames to train on; the scale of the value loss is that of their returns.

    Attributes:
        trained: score of the network while it learnt, in the last complete epoch.
    """

    def __init__(self, config: CloneRunConfig, agent: Any, train: Demonstrations) -> None:
        self.config = config
        self.agent = agent
        self._parameters = dict(agent.named_parameters())
        self._optimizers = [o for o in make_optimizers(agent, config.optim) if o is not None]
        # No clipping of values, as there are no old values to stay near.
        self._ppo = replace(config.ppo, clip_vloss=False, vf_clip_coef=None)
        self._value_scale = value_scale(train.returns, self._ppo)
        self.trained: CloneScore | None = None

    def update(
        self, data: Demonstrations, clock: Clock, context: ExecutionContext
    ) -> dict[str, float]:
        """Train on every frame once.

        Args:
            data: frames to train on.
            clock: its step is the number of earlier epochs.
            context: threads, interrupt check, and the function notified of optimizer steps.

        Returns:
            The mean loss of the epoch, as a metric.

        Raises:
            NotFiniteError: a loss, a gradient or a weight is NaN or infinite.
        """
        train, epoch, config, agent = data, clock.step, self.config, self.agent
        agent.train()
        total = CloneScore()
        seed = derive_seed(config.seed, "clone", epoch)
        num_batches = math.ceil(len(train) / config.clone.bs)
        batches = minibatches(len(train), config.clone.bs, 1, seed)
        for number, frames in enumerate(batches, start=1):
            # Learning rate, annealed over all epochs: lr * (1 - progress).
            lr = config.clone.lr
            if config.optim.anneal_lr:
                taken = epoch * num_batches + number - 1
                lr *= 1 - taken / (config.clone.epochs * num_batches)
            agent.zero_grad(set_to_none=True)
            for optimizer in self._optimizers:
                begin_update(optimizer, lr, float(config.optim.weight_decay), step=0)

            # Draw a batch.
            keys = mix(derive_seed(seed, "dropout"), frames).view(np.int64)
            drawn = train.take(frames)
            drawn = replace(drawn, batch=replace(drawn.batch, keys=keys))
            num_actors = int(drawn.num_actors().sum())
            num_returns = int((~drawn.returns.isnan()).sum())

            def loss_of_piece(
                piece: Frames,
                drawn: Demonstrations = drawn,
                num_actors: int = num_actors,
                num_returns: int = num_returns,
            ) -> tuple[Tensor | None, tuple[Tensor, CloneScore]]:
                context.check()
                of_piece = self._loss_of(drawn.take(piece))
                loss = of_piece.mean(config.clone.value_coef, num_actors, num_returns)
                # Without actors and returns there is no gradient.
                return loss if loss.requires_grad else None, (loss.detach(), of_piece.score)

            # Add the gradients of its pieces, and step.
            results: list[tuple[Tensor, CloneScore]] = []
            losses = [partial(loss_of_piece, piece) for piece in self._pieces(drawn)]
            add_gradients(agent.parameters(), losses, results.append, context.lanes)
            for _, score in results:
                total += score
            mean = sum((loss for loss, _ in results), start=drawn.returns.new_zeros(()))
            norms = [clipped_step(o, config.optim.max_grad_norm).to(mean) for o in self._optimizers]
            names = ["the norm of the gradient", "the norm of the value network's gradient"]
            where = f"epoch {epoch + 1}, batch {number} of {num_batches}"
            checked = {"the loss": mean, **dict(zip(names, norms, strict=False))}
            check_finite(agent, checked, where, rate="clone.lr")
            context.on_optimizer_step(results)
        self.trained = total
        return {"clone/loss": total.mean_loss(config.clone.value_coef)}

    @torch.no_grad()
    def score(self, shown: Demonstrations, epoch: int, context: ExecutionContext) -> CloneScore:
        """Evaluate the network on frames, in evaluation mode.

        Args:
            shown: the frames.
            epoch: number of completed epochs, for messages.
            context: threads and interrupt check.

        Raises:
            NotFiniteError: the loss is NaN or infinite.
        """
        self.agent.eval()
        total, bs = CloneScore(), self.config.clone.bs

        def score_of_piece(piece: Frames, some: Demonstrations) -> CloneScore:
            context.check()
            return self._loss_of(some.take(piece)).score

        for start in range(0, len(shown), bs):
            some = shown.take(np.arange(start, min(start + bs, len(shown))))
            scores: list[CloneScore] = []
            tasks = [partial(score_of_piece, piece, some) for piece in self._pieces(some)]
            context.lanes.run(tasks, scores.append)
            for score in scores:
                total += score
        loss = total.mean_loss(self.config.clone.value_coef)
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"epoch {epoch}: expected a finite test loss, got {loss}; lower clone.lr, or look "
                "for rewards and features that are very large"
            )
        return total

    def state_dict(self) -> StateDict:
        """Return optimizer moments."""
        return moments_of(self._optimizers, self._parameters)

    def load_state_dict(self, state: StateDict) -> None:
        """Restore optimizer moments."""
        load_moments(self._optimizers, self._parameters, state)

    def _loss_of(self, shown: Demonstrations) -> CloneLoss:
        loss = self.config.clone.loss
        return loss_of(self.agent, shown, loss, self._ppo, self._value_scale)

    def _pieces(self, shown: Demonstrations) -> list[Frames]:
        optim, cost = self.config.optim, cost_of_entity(self.agent)
        return pieces(shown.num_entities(), optim.micro_bs, optim.max_entities, cost)
