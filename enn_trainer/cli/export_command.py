"""The command `enn export`."""

import signal
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.cli.arguments import OneLineParser, line_with_trust, positive
from enn_trainer.export import OPSET
from enn_trainer.runtime.interrupt import ended_by
from enn_trainer.runtime.start_folder import paths_from

_EPILOG = """\
The folder gets model.onnx, for any number of entities, model.safetensors for load_agent,
interface.json, play.py and example.npz. The outputs of onnxruntime are compared with those of
PyTorch in 200 frames of the environment, or in random frames without one; nothing is written if
they differ.

examples:
  enn export runs/xor --to out"""


def parser() -> OneLineParser:
    """Return the parser of `enn export`."""
    description = "Write an agent for onnxruntime, with its weights and interface."
    parser = OneLineParser(prog="enn export", description=description, epilog=_EPILOG)
    parser.run("checkpoint", "RUN", "a checkpoint, a run's folder, or a model.safetensors")
    folder = "folder to write; an export is replaced"
    parser.option("--to", "DIR", folder, type=Path, required=True)
    version = f"version of the ONNX operators (default: {OPSET})"
    parser.option("--opset", "N", version, type=positive, default=OPSET)
    parser.env_options("environment of the frames", "arguments of the environment")
    parser.flag("--trust", "use the environment that the checkpoint names")
    return parser


def export_command(arguments: Sequence[str]) -> int:
    """Run `enn export`: write an agent for onnxruntime.

    Raises:
        ConfigError, CheckpointError: a mistake in the arguments, there is no valid checkpoint, or
            the agent cannot be exported.
    """
    options = parser().parse_args(arguments)
    options.line = line_with_trust("enn export", arguments)
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.export import export  # imports PyTorch
    with paths_from(Path.cwd()):
        export(options)
    return 0
