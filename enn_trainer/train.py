"""The command `python -m enn_trainer.train`; the same as `enn train`."""

import sys

from enn_trainer.cli.train_command import train_command

if __name__ == "__main__":
    sys.exit(train_command(sys.argv[1:], "python -m enn_trainer.train"))
