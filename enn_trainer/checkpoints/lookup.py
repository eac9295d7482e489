"""Lookup of checkpoints: by folder, RUN@STEP, RUN@latest, RUN@best, and for --resume.

SAVE@opponent:NAME and RUN@opponents name members of the league of a checkpoint. This module also
reads the content of checkpoints, for evaluation, display and comparison.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.checkpoints.format import (
    Checkpoint,
    SaveGone,
    VerifiedSaves,
    is_save,
    retry_while_gone,
    save_name,
    step_of,
    unless_replaced,
    verify,
)
from enn_trainer.checkpoints.retention import best_of
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.saved_state import (
    read_config,
    read_lessons,
    read_members,
    read_rounds,
    read_shapes,
    read_state,
)
from enn_trainer.config import TrainConfig
from enn_trainer.config.formats import parse
from enn_trainer.config.load import dump_config
from enn_trainer.curriculum.lessons import Lessons
from enn_trainer.curriculum.rounds import RunRounds
from enn_trainer.selfplay.league import Member
from entity_env.errors import did_you_mean
from entity_env.spaces import ActionSpace, ObsSpace, Spaces

Existing: TypeAlias = Literal["continue", "resume", "refuse", "replace"]
"""Handling of an existing run: continue it if there is one, continue it or fail, fail, or replace
it by a new run."""
_MEMBER = "@opponent:"
EXISTING: tuple[Existing, ...] = ("continue", "resume", "refuse", "replace")


def find(path: Path, say: Callable[[str], None] = print, to_continue: bool = False) -> Checkpoint:
    """Return the checkpoint at a path, or the newest valid one of the run at that path.

    Checkpoints of enn_trainer 0.1.16 are used only if the run has none of today's format, as a run
    that was continued has newer ones.

    Args:
        path: a checkpoint, or the folder of a run; or in one of the forms of `resolve`.
        say: prints a line for each newer checkpoint that is damaged.
        to_continue: True to resume the run, which needs the optimizer moments too.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """

    def look() -> Checkpoint:
        resolved = resolve(path, say)
        if not resolved.is_dir():
            if resolved != path:
                raise SaveGone(f"{resolved}: deleted")
            raise CheckpointError(f"{resolved}: expected a checkpoint directory, got none")
        if is_save(resolved):
            return verify(resolved)
        saved = RunDir(resolved).newest(say)
        if saved is None:
            from enn_trainer.checkpoints import legacy_0_1_16  # imports PyTorch

            saved = legacy_0_1_16.find(resolved, say, to_continue)
        if saved is None:
            if not resolved.is_dir():  # deleted meanwhile
                raise SaveGone(f"{resolved}: deleted")
            raise CheckpointError(
                f"{resolved}: expected a checkpoint, or the folder of a run with checkpoints "
                "(named step-...), got neither"
            )
        return saved

    return retry_while_gone(path, look)


def find_to_continue(
    run_dir: Path, existing: Existing, say: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest valid checkpoint of the run in a folder; None for a new run.

    A checkpoint that a killed process was about to replace is restored first.

    Args:
        run_dir: the folder.
        existing: handling of an existing run.
        say: prints a line for each newer checkpoint that is damaged.

    Raises:
        CheckpointError: `existing` excludes a run, or requires one, or the run cannot be continued.
    """
    run = RunDir(run_dir)
    if run.is_save:
        raise CheckpointError(
            f"--checkpoint-dir: expected the folder of a run, got a checkpoint, {run_dir}; use "
            "--resume-from to start from it"
        )
    if existing == "replace":
        return None
    if run_dir.is_dir():
        run.restore_superseded()
    saves = run.all_saves()
    if not saves:
        if existing == "resume":
            raise CheckpointError(
                f"--resume: expected a run to continue in {run_dir}, got none; "
                "--resume-or-start (in Python resume='if exists') also starts a new one"
            )
        return None
    if existing == "refuse":
        raise CheckpointError(
            f"--checkpoint-dir: expected a folder without a run, {run_dir} has one, up to "
            f"{saves[-1].name}; --resume (in Python resume=True) continues it, --force "
            "(overwrite=True) starts over and sets it aside, --resume-or-start (resume='if "
            "exists') is for jobs that are restarted automatically"
        )
    return find(run_dir, say, to_continue=True)


def resolve(path: Path, say: Callable[[str], None] = print) -> Path:
    """Resolve RUN@STEP, RUN@latest and RUN@best to a checkpoint folder; other paths are unchanged.

    `RUN@STEP` is the checkpoint of a run at that step, `RUN@latest` the newest valid one as in
    `find`, and `RUN@best` the best one by the first entry of `checkpoint.best`.

    Args:
        path: a file or folder, or one of these forms. An existing path is returned unchanged.
        say: prints a line for each newer checkpoint that is damaged.

    Raises:
        CheckpointError: the run has no such checkpoint.
    """
    name, at, which = path.name.rpartition("@")
    run_dir = path.with_name(name) if name else path
    if not at or path.exists() or not run_dir.is_dir():
        return path
    if which.isdecimal():
        save = run_dir / save_name(int(which))
        if save.is_dir():
            return save
        steps = [str(step_of(one)) for one in reversed(RunDir(run_dir).saved_paths())]
        raise CheckpointError(
            f"{run_dir}@{int(which)}: expected the step of a checkpoint, got {int(which)}; the run "
            f"has {', '.join(steps) or 'none'}"
        )
    if which == "latest":
        return find(run_dir, say).path
    if which == "best":
        return retry_while_gone(path, lambda: _best(run_dir))
    if which.startswith(("opponent:", "opponents")):
        raise CheckpointError(
            f"{path}: expected a checkpoint, got opponents of one: pool members can be evaluated "
            "but not resumed"
        )
    raise CheckpointError(f"{path}: expected {run_dir}@STEP, @latest or @best, got @{which}")


def _best(run_dir: Path) -> Path:
    paths = RunDir(run_dir).saved_paths()
    saves = VerifiedSaves().update(reversed(paths))
    if not saves and not all(path.exists() for path in paths):
        raise SaveGone(f"{run_dir}: its checkpoints were deleted while they were read")
    if not saves:
        raise CheckpointError(f"{run_dir}@best: expected a run with checkpoints, got none")
    with unless_replaced(saves[-1].path):
        config = read_config(saves[-1])
    by = config.checkpoint.best
    if not by:
        raise CheckpointError(
            f"{run_dir}@best: expected a run that keeps its best checkpoints, as with "
            "'checkpoint.best=[\"eval/episodic_reward.mean max\"]', got one without that setting"
        )
    best = best_of({saved.path.name: saved.manifest for saved in saves}, by[0], 1)
    if not best:
        raise CheckpointError(f"{run_dir}@best: no checkpoint has the metric of {by[0]!r}")
    return run_dir / best[0]


def split_member(path: Path) -> tuple[Path, str] | None:
    """Split SAVE@opponent:NAME into path and name; return None for other paths."""
    save, form, name = str(path).rpartition(_MEMBER)
    return (Path(save), name) if form and save and not path.exists() else None


def members_of(path: Path) -> list[Member]:
    """Return the opponent pool of a checkpoint, in the order in which its members joined.

    Args:
        path: as for `lookup.find`; or RUN@opponents.

    Raises:
        CheckpointError: there is no valid checkpoint, or it has no pool.
    """
    if not path.exists():
        path = Path(str(path).removesuffix("@opponents"))
    saved = find(path)
    return require_members(saved.path, pool_of(saved))


def pool_of(saved: Checkpoint) -> list[Member]:
    """Return the opponent pool of a checkpoint; [] if it has none."""
    return [member for member in read_members(saved) if member.is_in_pool]


def require_members(path: Path, pool: Sequence[Member]) -> list[Member]:
    """Return the members of a pool, or raise if it is empty."""
    if not pool:
        raise CheckpointError(
            f"{path}: expected a checkpoint with opponents (selfplay), got one without"
        )
    return [*pool]


def find_member(path: Path, name: str) -> tuple[Checkpoint, Member]:
    """Return a checkpoint and a member of its league.

    Args:
        path: the checkpoint, as for `lookup.find`.
        name: name of the member.

    Raises:
        CheckpointError: there is no valid checkpoint, or no such member; names the closest one.
    """
    saved = find(path)
    members = {member.name: member for member in read_members(saved)}
    if name not in members:
        names = ", ".join(members) or "none"
        raise CheckpointError(
            f"{saved.path}: expected one of its opponents, {names}; got {name!r}"
            f"{did_you_mean(name, members, separator='; ')}"
        )
    return saved, members[name]


class Contents(NamedTuple):
    """Content of a checkpoint as plain data, for any class of network.

    Attributes:
        saved: the checkpoint.
        config: the configuration as RON, with today's names if it is a `TrainConfig`.
        settings: the configuration; None if it is an instance of a custom class.
        state: the readable part of the state, without the spaces.
        obs_space: observation space of the agent.
        action_space: action space of the agent.
        shapes: shapes of tensors by name by file, without league members.
        members: members of the league.
        lessons: progress in curricula, and changed arguments.
        rounds: rounds of episodes.
    """

    saved: Checkpoint
    config: str
    settings: TrainConfig | None
    state: Mapping[str, Any]
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    shapes: dict[str, dict[str, tuple[int, ...]]]
    members: Sequence[Member]
    lessons: Lessons
    rounds: RunRounds

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self.saved.path

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Content of the manifest."""
        return self.saved.manifest

    @property
    def spaces(self) -> Spaces:
        """Spaces of the agent."""
        return Spaces(self.obs_space, self.action_space)


def read_contents(path: Path) -> Contents:
    """Read the content of a checkpoint, of its tensors only the shapes.

    Args:
        path: as for `lookup.find`.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    saved = find(path)
    state = read_state(saved)
    spaces = {name: state.pop(name) for name in ("obs_space", "action_space")}
    members = read_members(saved)
    files = saved.manifest["files"].keys() - {member.file for member in members}
    names = sorted(name for name in files if name.endswith(".safetensors"))
    settings = _settings(saved)
    return Contents(
        saved,
        saved.text("config.ron") if settings is None else dump_config(settings),
        settings,
        state,
        shapes={name: read_shapes(saved, name) for name in names},
        members=members,
        lessons=read_lessons(saved),
        rounds=read_rounds(saved),
        **spaces,
    )


def _settings(saved: Checkpoint) -> TrainConfig | None:
    """Return the configuration; None if it is an instance of a custom class."""
    try:
        return read_config(saved)
    except CheckpointError:
        with suppress(ConfigError):
            if isinstance(parse(saved.text("config.ron")), dict):
                return None
        raise
