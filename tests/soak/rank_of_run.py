"""Program of a rank that `tests.soak.ranks` kills or stops.

The folder that the variable SOAK_RANKS names gets `begun-ATTEMPT-RANK` with the number of the
process as it begins, and `learns-ATTEMPT-RANK` as it begins to train. The run ends when the folder
has a file `enough`.
"""

import os
from pathlib import Path


def main() -> None:
    folder = Path(os.environ["SOAK_RANKS"])
    name = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
    new = folder / f"new-{name}"
    new.write_text(str(os.getpid()))
    new.rename(folder / f"begun-{name}")  # before the imports, which take the longest

    from enn_trainer import Callback, StateManager, command, train
    from enn_trainer.callbacks.callback import RunningTrainer
    from entity_env.examples import Minefield

    class Watched(Callback):
        def on_train_start(self, trainer: RunningTrainer) -> None:
            (folder / f"learns-{name}").touch()

        def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
            if (folder / "enough").exists():
                trainer.request_stop("disturbed enough")

    @command()
    def run(state_manager: StateManager) -> None:
        train(state_manager, Minefield, callbacks=[Watched()])

    run()


if __name__ == "__main__":
    main()
