"""Program that trains with ranks on GPUs; rank 1 runs out of memory if OUT_OF_MEMORY is set."""

import os

import torch

from enn_trainer import Callback, StateManager, command, train
from enn_trainer.callbacks.callback import RunningTrainer
from enn_trainer.runtime.exchange import digest_of
from enn_trainer.runtime.torch_group import current_group
from entity_env.examples import Minefield


class Watched(Callback):
    """Allocates too much in rank 1 after the first update, and prints the end of the run."""

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        if trainer.rank == 1 and "OUT_OF_MEMORY" in os.environ:
            torch.empty(2**50, dtype=torch.uint8, device="cuda")

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        if error is None:
            device = next(trainer.state.agent.parameters()).device
            by = "nccl" if getattr(current_group(), "_by_gpu", False) else "gloo"
            digest = digest_of(trainer.state.agent)
            print(f"rank {trainer.rank} on {device} by {by}: {digest}", flush=True)


@command()
def main(state_manager: StateManager) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    train(state_manager, Minefield, callbacks=[Watched()])


if __name__ == "__main__":
    main()
