"""Files of a small save, and metrics of an old and of a new save."""

from enn_trainer.checkpoints import format as checkpoint

FILES = {"config.ron": b"(a: 1)", checkpoint.WEIGHTS: b"w" * 100}
OLD, NEW = {"metrics": {"a": 1.0}}, {"metrics": {"a": 1.0, "eval/good": 2.0}}
