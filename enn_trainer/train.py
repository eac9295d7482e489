"""The command `python -m enn_trainer.train`; the same as `enn train`."""

import signal
import sys

from enn_trainer.runtime.interrupt import ended_by, one_line_if_interrupted

if __name__ == "__main__":
    with one_line_if_interrupted():
        with ended_by(signal.SIGINT):
            from enn_trainer.cli.train_command import train_command
        sys.exit(train_command(sys.argv[1:], "python -m enn_trainer.train"))
