"""Program that trains with the ranks that torchrun starts; rank 1 sends itself a signal."""

import os
import signal

from enn_trainer import Callback, StateManager, command, train
from enn_trainer.callbacks.callback import RunningTrainer
from entity_env.examples import Minefield


class Signalled(Callback):
    """Sends this process the signal of the variable RANK_SIGNAL after the second update, once."""

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        number = int(os.environ.get("RANK_SIGNAL", "0"))
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if trainer.rank == 1 and trainer.state.step == 112 and number and is_first:
            os.kill(os.getpid(), signal.Signals(number))


@command()
def main(state_manager: StateManager) -> None:
    result = train(state_manager, Minefield, callbacks=[Signalled()])
    print(f"step {result.step} {result.stopped_by}", flush=True)


if __name__ == "__main__":
    main()
