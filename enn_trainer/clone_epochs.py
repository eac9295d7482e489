"""The epochs of cloning: optimizer steps on recorded frames, until there is nothing to gain."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.clone_config import CloneRunConfig
from enn_trainer.clone_score import CloneScore, score_of
from enn_trainer.demonstrations import Demonstrations
from enn_trainer.errors import NotFiniteError
from enn_trainer.optimize import microbatches, minibatches
from enn_trainer.optimizers import begin_update, clipped_step, make_optimizers
from enn_trainer.progress import format_duration
from enn_trainer.state import State
from entity_env.seeding import derive_seed, mix

SAY_EVERY_S = 10.0
"""Within an epoch that takes longer than this, lines tell how far it is."""


class Cloning:
    """Epochs over recorded frames, until there is nothing more to gain.

    Attributes:
        epochs: how many were completed.
        trained: the last one's score, while it learnt.
        best: the score of the best weights on what is set apart.

    Args:
        config: of cloning, and of the run that may follow.
        state: of that run; its network is trained.
        train: what to train on.
        test: what to find the best weights with; None to keep the last ones.
        say: is told how it goes, line by line.
        asked_to_stop: asked before each optimizer step.
    """

    def __init__(
        self,
        config: CloneRunConfig,
        state: State,
        train: Demonstrations,
        test: Demonstrations | None,
        say: Callable[[str], None],
        asked_to_stop: Callable[[], bool],
    ) -> None:
        self.config = config
        self.state = state
        self.train = train
        self.test = test
        self.say = say
        self.asked_to_stop = asked_to_stop
        self.epochs = 0
        self.trained: CloneScore | None = None
        self.best: CloneScore | None = None
        self._tested: CloneScore | None = None
        self._best_weights: dict[str, Tensor] | None = None
        self._best_epoch = 0
        self._batches = math.ceil(len(train) / config.clone.bs)
        self._taken = 0  # optimizer steps
        self._start = self._said = time.monotonic()
        # A value is not to stay near an older one: there is none.
        self._ppo = replace(config.ppo, clip_vloss=False, vf_clip_coef=None)

    def run(self) -> None:
        """Train, and leave the best weights in the network and fresh optimizers beside it."""
        settings = self.config.clone
        while self.epochs < settings.epochs and self._epoch():
            self.epochs += 1
            if self.test is not None:
                self._tested = self._score(self.test)
                self._keep_best(self._tested)
            self._say_epoch()
            since_best = self.epochs - self._best_epoch
            if self.best and settings.patience is not None and since_best >= settings.patience:
                self.say(f"no better for {since_best} epochs")
                break
        state = self.state
        if self._best_weights is not None:
            state.agent.load_state_dict(self._best_weights)
        state.agent.eval()
        state.optimizer, state.vf_optimizer = make_optimizers(state.agent, self.config.optim)

    def _epoch(self) -> bool:
        """Every frame once; False if it was cut short."""
        config, total = self.config, CloneScore()
        seed = derive_seed(config.seed, "clone", self.epochs)
        self.state.agent.train()
        batches = minibatches(len(self.train), config.clone.bs, 1, seed)
        for number, frames in enumerate(batches, start=1):
            if self.asked_to_stop():
                return False
            self._begin_step()
            score = CloneScore()
            keys = mix(derive_seed(seed, "dropout"), frames).view(np.int64)
            drawn = self.train.take(frames)
            drawn = replace(drawn, batch=replace(drawn.batch, keys=keys))
            num_actors = int(drawn.num_actors().sum())
            num_returns = int((~drawn.returns.isnan()).sum())
            for part in self._parts(drawn):
                of_part = score_of(self.state.agent, part, config.clone.loss, self._ppo)
                loss = of_part.loss(config.clone.value_coef, num_actors, num_returns)
                if loss.requires_grad:  # frames without actors or returns have nothing to say
                    loss.backward()  # type: ignore[no-untyped-call]
                score += of_part.detached()
            mean = float(score.loss(config.clone.value_coef, num_actors, num_returns))
            if not math.isfinite(mean):
                raise NotFiniteError(
                    f"clone: expected a finite loss, got {mean} in epoch {self.epochs + 1}, batch "
                    f"{number} of {self._batches}; lower clone.lr, or look for numbers in the "
                    "recording that are not finite"
                )
            for optimizer in self.state.optimizers():
                clipped_step(optimizer, config.optim.max_grad_norm)
            self._taken += 1
            total += score
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

    def _parts(self, shown: Demonstrations) -> list[Demonstrations]:
        """Frames in as many pieces as the limits of a forward pass ask for."""
        optim, frames = self.config.optim, np.arange(len(shown))
        pieces = [*microbatches(shown.num_entities(), optim.micro_bs, optim.max_entities)]
        return [shown] if len(pieces) == 1 else [shown.take(frames[piece]) for piece in pieces]

    @torch.no_grad()
    def _score(self, shown: Demonstrations) -> CloneScore:
        """How the network does, as it acts: without dropout."""
        agent: nn.Module = self.state.agent
        agent.eval()
        total, bs = CloneScore(), self.config.clone.bs
        for start in range(0, len(shown), bs):
            frames = np.arange(start, min(start + bs, len(shown)))
            for part in self._parts(shown.take(frames)):
                total += score_of(self.state.agent, part, self.config.clone.loss, self._ppo)
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
