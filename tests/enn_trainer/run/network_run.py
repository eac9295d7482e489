"""Program that trains with ranks; rank 0 waits once for a file `go` after it made one, `there`."""

import time
from pathlib import Path

from enn_trainer import Callback, StateManager, command, train
from enn_trainer.callbacks.callback import RunningTrainer
from enn_trainer.runtime.exchange import digest_of
from entity_env.examples import Minefield


class Waits(Callback):
    """Waits in rank 0 after the second update."""

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        if trainer.rank == 0 and trainer.state.step == 112:
            Path("there").touch()
            while not Path("go").exists():
                time.sleep(0.01)

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        if error is None:
            digest = digest_of(trainer.state.agent)
            print(f"rank {trainer.rank} ends at {trainer.state.step} with {digest}", flush=True)


@command()
def main(state_manager: StateManager) -> None:
    train(state_manager, Minefield, callbacks=[Waits()])


if __name__ == "__main__":
    main()
