"""Training loop of cloning: epochs over recorded frames with early stopping."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.cloning.clone_score import CloneLoss, CloneScore, loss_of, value_scale
from enn_trainer.cloning.demonstrations import Demonstrations
from enn_trainer.config import CloneRunConfig
from enn_trainer.errors import NotFiniteError
from enn_trainer.lanes import ONE_LANE, Lanes, cost_of_entity
from enn_trainer.ppo.gradients import add_gradients
from enn_trainer.ppo.minibatches import Frames, minibatches, pieces
from enn_trainer.ppo.not_finite import check_finite, check_finite_weights
from enn_trainer.ppo.optimizers import begin_update, clipped_step, make_optimizers
from enn_trainer.state import State
from enn_trainer.tracking.progress import format_duration
from entity_env.seeding import derive_seed, mix

SAY_EVERY_S = 10.0
"""Interval of progress messages within an epoch."""


class _Stopped(Exception):  # noqa: N818 (no error: a stop was requested)
    pass


class Cloning:
    """Training loop over recorded frames, with early stopping by the test loss.

    Attributes:
        epochs: number of completed epochs.
        trained: training score of the last epoch.
        best: test score of the best weights.

    Args:
        config: configuration of cloning, and of a run that continues from it.
        state: initial state of that run; its network is trained.
        train: frames to train on.
        test: frames to select the best weights with; None to keep the last weights.
        say: prints a line of progress.
        is_stop_requested: called before each forward pass.
        lanes: threads for forward passes.
    """

    def __init__(
        self,
        config: CloneRunConfig,
        state: State,
        train: Demonstrations,
        test: Demonstrations | None,
        say: Callable[[str], None],
        is_stop_requested: Callable[[], bool],
        lanes: Lanes = ONE_LANE,
    ) -> None:
        self.config = config
        self.state = state
        self.train = train
        self.test = test
        self.say = say
        self.is_stop_requested = is_stop_requested
        self.lanes = lanes

        # Progress and scores.
        self.epochs = 0
        self.trained: CloneScore | None = None
        self.best: CloneScore | None = None
        self._tested: CloneScore | None = None
        self._best_weights: dict[str, Tensor] | None = None
        self._best_epoch = 0
        self._batches = math.ceil(len(train) / config.clone.bs)
        self._taken = 0  # optimizer steps
        self._start = self._said = time.monotonic()

        # No clipping of values, as there are no old values to stay near.
        self._ppo = replace(config.ppo, clip_vloss=False, vf_clip_coef=None)
        self._value_scale = value_scale(train.returns, self._ppo)

    def run(self) -> None:
        """Train, load the best weights into the network, and make new optimizers for it.

        Raises:
            NotFiniteError: a loss, a gradient or a weight is NaN or infinite.
        """
        settings = self.config.clone
        while self.epochs < settings.epochs and self._epoch():
            self.epochs += 1
            self._check_weights()
            if self.test is not None:
                self._tested = self._score(self.test)
                if self._tested is None:
                    break
                self._keep_best(self._tested)
            self._say_epoch()
            since_best = self.epochs - self._best_epoch
            if self.best and settings.patience is not None and since_best >= settings.patience:
                self.say(f"no better for {since_best} epochs")
                break
        state = self.state
        if self._best_weights is not None:
            state.agent.load_state_dict(self._best_weights)
        self._check_weights()  # also after an epoch that was interrupted
        state.agent.eval()
        state.optimizer, state.vf_optimizer = make_optimizers(state.agent, self.config.optim)

    def _epoch(self) -> bool:
        """Train on every frame once, and return False if interrupted."""
        config, total = self.config, CloneScore()
        seed = derive_seed(config.seed, "clone", self.epochs)
        agent: nn.Module = self.state.agent
        agent.train()
        batches = minibatches(len(self.train), config.clone.bs, 1, seed)
        for number, frames in enumerate(batches, start=1):
            # Draw a batch.
            self._begin_step()
            keys = mix(derive_seed(seed, "dropout"), frames).view(np.int64)
            drawn = self.train.take(frames)
            drawn = replace(drawn, batch=replace(drawn.batch, keys=keys))
            num_actors = int(drawn.num_actors().sum())
            num_returns = int((~drawn.returns.isnan()).sum())
            results: list[tuple[Tensor, CloneScore]] = []

            # Add the gradients of its pieces, and step.
            loss_of = partial(self._loss_of_piece, drawn, num_actors, num_returns)
            try:
                losses = [partial(loss_of, piece) for piece in self._pieces(drawn)]
                add_gradients(agent.parameters(), losses, results.append, self.lanes)
            except _Stopped:
                return False
            for _, score in results:
                total += score
            mean = sum((loss for loss, _ in results), start=drawn.returns.new_zeros(()))
            self._step(mean, f"epoch {self.epochs + 1}, batch {number} of {self._batches}")
            self._say_batch(number)
        self.trained = total
        return True

    def _begin_step(self) -> None:
        config = self.config
        lr = config.clone.lr
        if config.optim.anneal_lr:
            lr *= 1 - self._taken / (config.clone.epochs * self._batches)
        agent: Any = self.state.agent
        agent.zero_grad(set_to_none=True)
        for optimizer in self.state.optimizers():
            begin_update(optimizer, lr, float(config.optim.weight_decay), step=0)

    def _step(self, loss: Tensor, where: str) -> None:
        """Take an optimizer step, and raise if the loss or the gradient is not finite."""
        state, limit = self.state, self.config.optim.max_grad_norm
        norms = [clipped_step(optimizer, limit).to(loss) for optimizer in state.optimizers()]
        names = ["the norm of the gradient", "the norm of the value network's gradient"]
        losses = {"the loss": loss, **dict(zip(names, norms, strict=False))}
        check_finite(state.agent, losses, where, rate="clone.lr")
        self._taken += 1

    def _check_weights(self) -> None:
        where = f"epoch {max(1, self.epochs)}, after the update"
        check_finite_weights(self.state.agent, where, rate="clone.lr")

    def _loss_of(self, shown: Demonstrations) -> CloneLoss:
        loss = self.config.clone.loss
        return loss_of(self.state.agent, shown, loss, self._ppo, self._value_scale)

    def _loss_of_piece(
        self, shown: Demonstrations, num_actors: int, num_returns: int, piece: Frames
    ) -> tuple[Tensor | None, tuple[Tensor, CloneScore]]:
        """Compute the part of the mean loss of a batch that is due to some of its frames."""
        if self.is_stop_requested():
            raise _Stopped
        of_piece = self._loss_of(shown.take(piece))
        loss = of_piece.mean(self.config.clone.value_coef, num_actors, num_returns)
        # Without actors and returns there is no gradient.
        return loss if loss.requires_grad else None, (loss.detach(), of_piece.score)

    def _score_of_piece(self, shown: Demonstrations, piece: Frames) -> CloneScore:
        if self.is_stop_requested():
            raise _Stopped
        return self._loss_of(shown.take(piece)).score

    def _pieces(self, shown: Demonstrations) -> list[Frames]:
        optim, cost = self.config.optim, cost_of_entity(self.state.agent)
        return pieces(shown.num_entities(), optim.micro_bs, optim.max_entities, cost)

    @torch.no_grad()
    def _score(self, shown: Demonstrations) -> CloneScore | None:
        """Evaluate the network in evaluation mode, and return None if interrupted."""
        agent: nn.Module = self.state.agent
        agent.eval()
        total, bs = CloneScore(), self.config.clone.bs
        for start in range(0, len(shown), bs):
            frames = np.arange(start, min(start + bs, len(shown)))
            some = shown.take(frames)
            scores: list[CloneScore] = []
            try:
                tasks = [partial(self._score_of_piece, some, piece) for piece in self._pieces(some)]
                self.lanes.run(tasks, scores.append)
            except _Stopped:
                return None
            for score in scores:
                total += score
        loss = total.mean_loss(self.config.clone.value_coef)
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"epoch {self.epochs}: expected a finite test loss, got {loss}; lower clone.lr, or "
                "look for rewards and features that are very large"
            )
        return total

    def _keep_best(self, score: CloneScore) -> None:
        coef = self.config.clone.value_coef
        if self.best is None or score.mean_loss(coef) < self.best.mean_loss(coef):
            self.best, self._best_epoch = score, self.epochs
            self._best_weights = copy.deepcopy(self.state.agent.state_dict())

    def _say_epoch(self) -> None:
        assert self.trained is not None
        coef = self.config.clone.value_coef
        parts = [f"epoch {self.epochs}/{self.config.clone.epochs}", f"left {self._left()}"]
        parts.append(f"loss {self.trained.mean_loss(coef):.4f}")
        shown = self.trained
        if self._tested is not None:
            shown = self._tested
            parts.append(f"test loss {shown.mean_loss(coef):.4f}")
        parts.append(shown.in_words())
        self.say("  ".join(parts))
        self._said = time.monotonic()

    def _say_batch(self, number: int) -> None:
        if time.monotonic() - self._said >= SAY_EVERY_S and number < self._batches:
            self._said = time.monotonic()
            self.say(
                f"epoch {self.epochs + 1}/{self.config.clone.epochs}  batch {number}/"
                f"{self._batches}  left {self._left()}"
            )

    def _left(self) -> str:
        elapsed = time.monotonic() - self._start
        done = self._taken / (self.config.clone.epochs * self._batches)
        return format_duration(elapsed * (1 - done) / done)
