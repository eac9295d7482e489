"""Printed summary of the contents of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from enn_trainer.checkpoints.manifest import MANIFEST
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.saved_run import Contents, read_contents
from enn_trainer.commands.next_steps import measure_command, resume_from_command
from enn_trainer.config.ron import in_one_line
from enn_trainer.stop_conditions import Now
from enn_trainer.tables import aligned, printable, show_table
from entity_env.spaces import ActionSpace, ObsSpace

_NOT_MADE_BY = ("step", "why", "created", "files", "metrics", "sha256", "packages", "format")


def show_save(path: Path, console: Console, config: bool, tensors: bool) -> None:
    """Print the contents of a checkpoint.

    Args:
        path: path of the checkpoint, in a form of `lookup.resolve`.
        console: console to print to.
        config: True to print the configuration too.
        tensors: True to print every tensor too.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    contents = read_contents(path)
    for line in [str(contents.path), *aligned(_facts(contents))]:
        console.out(printable(line, console.encoding), highlight=False)
    if config:
        console.out(f"\n{contents.config.rstrip()}", highlight=False)
    if tensors:
        rows = [
            (file, name, _shape(tensor), str(tensor.dtype).removeprefix("torch."), norm_of(tensor))
            for file, found in contents.tensors.items()
            for name, tensor in sorted(found.items())
        ]
        console.out("")
        show_table(("file", "tensor", "shape", "dtype", "norm"), rows, console, 2, by_section=True)
    for line in ["", *_next(contents)]:
        console.out(printable(line, console.encoding), highlight=False)


def in_bytes(size: int) -> str:
    """Return a number of bytes with a unit, such as `3.2 MB`."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def norm_of(tensor: Tensor) -> str:
    """Return the Euclidean norm of a tensor as text."""
    return f"{tensor.double().norm().item():.4g}"


def spaces_in_words(
    obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]
) -> list[tuple[str, str]]:
    """Return rows with the features of each entity type and the choices of each action."""
    rows = [("global", ", ".join(obs_space.global_features) or "no features")]
    rows += [
        (f"entity {name}", ", ".join(entity.features) or "no features")
        for name, entity in obs_space.entities.items()
    ]
    for name, space in action_space.items():
        kind = type(space).__name__.removesuffix("ActionSpace")
        labels = ", ".join(space.labels)
        rows.append((f"action {name}", f"{kind}: {labels}" if labels else kind))
    return rows


def _next(contents: Contents) -> list[str]:
    """Return the commands to type next."""
    if contents.settings is None:
        return ["only the program that wrote its settings can evaluate it and train from it"]
    state, metrics = contents.state, contents.manifest.get("metrics", {})
    reached = Now(state["step"], state.get("time_used", 0.0), metrics, frozenset(), 0)
    command = resume_from_command(contents.path, contents.settings, reached)
    return [
        f"to measure it:     {measure_command(contents.path, contents.settings)}",
        f"to train from it:  {command}",
    ]


def _is_shown(tag: str) -> bool:
    """Return True for metrics of episodes and losses; the others are in the manifest."""
    return "reward.mean" in tag or "length.mean" in tag or tag.startswith("losses/")


def _facts(contents: Contents) -> list[tuple[str, str]]:
    """Return rows of names and values: manifest, state and spaces."""
    manifest, state = contents.manifest, contents.state
    facts = [("step", str(state["step"]))]
    # The manifest, which enn_trainer 0.1.16 did not write.
    if "created" in manifest:
        size = sum(file["size"] for file in manifest["files"].values())
        packages = {**manifest.get("packages", {}), "python": manifest.get("python")}
        facts += [
            ("saved", f"{manifest['created']}, reason: {manifest['why']}"),
            ("size", f"{in_bytes(size)} in {len(manifest['files'])} files"),
            (
                "packages",
                ", ".join(f"{name} {v}" for name, v in packages.items() if v) or "unknown",
            ),
        ]
        facts += [
            (name, _text(value))
            for name, value in manifest.items()
            if name not in (*_NOT_MADE_BY, "python") and value is not None
        ]
        metrics = manifest.get("metrics", {})
        shown = [tag for tag in sorted(metrics) if _is_shown(tag)]
        facts += [(f"metric {tag}", f"{metrics[tag]:.6g}") for tag in shown]
        if len(metrics) > len(shown):
            facts.append(("metrics", f"{len(metrics) - len(shown)} more in {MANIFEST}"))
    else:
        facts.append(("saved", "by enn_trainer 0.1.16"))
    path = contents.path.resolve()
    note = RunDir(path.parent).pins().get(path.name)
    if note is not None:
        facts.append(("pinned", note or "yes"))
    # The state and the tensors.
    facts += [
        (name.replace("_", " "), _text(value))
        for name, value in state.items()
        if name not in ("step", "memory", *manifest) and value not in (None, "", {})
    ]
    numbers = sum(
        tensor.numel() for found in contents.tensors.values() for tensor in found.values()
    )
    count = sum(map(len, contents.tensors.values()))
    facts.append(("tensors", f"{count} with {numbers:,} numbers"))
    return facts + spaces_in_words(contents.obs_space, contents.action_space)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else in_one_line(value)


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"
