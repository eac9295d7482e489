"""Entry point of `python -m enn_trainer.cli`, the same as `enn`."""

from enn_trainer.cli import main

main()
