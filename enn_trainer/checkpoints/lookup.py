"""Lookup of checkpoints: by folder, RUN@STEP, RUN@latest, RUN@best, and for --resume.

SAVE@opponent:NAME and RUN@opponents name members of the league of a checkpoint. This module also
reads the content of checkpoints, for evaluation, display and comparison.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from torch import Tensor

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.checkpoints import legacy_0_1_16
from enn_trainer.checkpoints.format import (
    WEIGHTS,
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
from enn_trainer.checkpoints.model_file import ModelFile, read_model_file
from enn_trainer.checkpoints.retention import best_of
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.state import make_policy
from enn_trainer.checkpoints.state_files import (
    read_config,
    read_lessons,
    read_members,
    read_reward_scaling,
    read_rounds,
    read_spaces,
    read_state,
    read_tensors,
)
from enn_trainer.checkpoints.weights import fitting_network, load_weights, tensors_of
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.formats import parse
from enn_trainer.config.load import dump_config, load_config
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
        saved = RunDir(resolved).newest(say) or legacy_0_1_16.find(resolved, say, to_continue)
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


class SavedRun(NamedTuple):
    """Network of a checkpoint, with the configuration and spaces of its run.

    Attributes:
        path: directory of the checkpoint, or a `model.safetensors`.
        config: configuration of the run.
        step: number of frames that the network was trained for.
        agent: the network, in evaluation mode.
        obs_space: observation space of the run.
        action_space: action space of the run.
        run_name: folder of the logs of the run, "" if unknown.
        member: name of the league member; "" for the agent of the run.
        pool: members of the opponent pool; None if they were not read.
    """

    path: Path
    config: TrainConfig
    step: int
    agent: Any
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    run_name: str = ""
    member: str = ""
    pool: Sequence[Member] | None = None

    @property
    def spaces(self) -> Spaces:
        """Spaces of the run."""
        return Spaces(self.obs_space, self.action_space)


def read_saved_run(path: Path, agent: PPOAgent | None = None, with_pool: bool = False) -> SavedRun:
    """Read the network of a checkpoint, without the optimizer state.

    Args:
        path: as for `lookup.find`; or SAVE@opponent:NAME for a league member; or a
            `model.safetensors` of `enn export`.
        agent: a custom network, which the weights are loaded into; None for a `RogueNet`.
        with_pool: True to read the opponent pool too, as the checkpoint may be deleted later.

    Raises:
        CheckpointError: there is no valid checkpoint, its weights are not finite, or the member
            does not exist or is no network.
    """
    if path.suffix == ".safetensors" and path.is_file():
        return _run_of_file(path, agent)
    if (named := split_member(path)) is None:
        saved = find(path)
        run = _agent_of(saved, agent)
    else:
        saved, member = find_member(named[0], named[1])
        run = _run_of_member(saved, member, agent)
    return run._replace(pool=_pool_of(saved)) if with_pool else run


def _agent_of(saved: Checkpoint, agent: PPOAgent | None) -> SavedRun:
    state, config = read_state(saved), read_config(saved)
    spaces = Spaces(state["obs_space"], state["action_space"])
    network = _loaded(str(saved.path), config, spaces, read_tensors(saved, WEIGHTS), agent)
    return SavedRun(saved.path, config, saved.step, network, spaces[0], dict(spaces[1]))


def read_model(path: Path) -> tuple[Path, ModelFile]:
    """Read the weights of a checkpoint, also of a custom network, with configuration and spaces.

    Args:
        path: as for `lookup.find`; or a `model.safetensors` of `enn export`.

    Returns:
        The checkpoint or file; and its content.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    if path.suffix == ".safetensors" and path.is_file():
        return path, read_model_file(path)
    saved = find(path)
    state = read_state(saved)
    spaces = Spaces(state["obs_space"], state["action_space"])
    run = saved.path.absolute().parent.name
    weights, scaling = read_tensors(saved, WEIGHTS), read_reward_scaling(saved)
    return saved.path, ModelFile(read_config(saved), spaces, saved.step, run, weights, scaling)


def _run_of_file(path: Path, agent: PPOAgent | None) -> SavedRun:
    model = read_model_file(path)
    network = _loaded(str(path), model.config, model.spaces, model.weights, agent)
    obs_space, action_space = model.spaces
    return SavedRun(
        path, model.config, model.step, network, obs_space, dict(action_space), model.run
    )


def _loaded(
    where: str,
    config: TrainConfig,
    spaces: Spaces,
    weights: Mapping[str, Tensor],
    agent: PPOAgent | None,
) -> Any:
    """Load weights into a custom network, or else into the network of a configuration."""
    network: Any = agent
    if network is None:
        network = fitting_network(where, config, spaces, weights)
    load_weights(where, network, weights)
    return network.eval()


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
    return _require_members(saved.path, _pool_of(saved))


def pool_of_run(run: SavedRun) -> list[Member]:
    """Return the opponent pool of a `SavedRun`, read from disk if needed.

    Raises:
        CheckpointError: there is no pool, or the checkpoint has been deleted.
    """
    return members_of(run.path) if run.pool is None else _require_members(run.path, run.pool)


def _pool_of(saved: Checkpoint) -> list[Member]:
    return [member for member in read_members(saved) if member.is_in_pool]


def _require_members(path: Path, pool: Sequence[Member]) -> list[Member]:
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


def _run_of_member(saved: Checkpoint, member: Member, agent: PPOAgent | None) -> SavedRun:
    name, where = member.name, f"{saved.path}: {member.file}"
    if member.kind != "network":
        raise CheckpointError(
            f"{saved.path}: opponent {name}: expected one with a network, got {member.origin!r}; "
            "pass that instead"
        )
    if member.config:
        run = run_of_member(member, saved.path)
        return run._replace(config=replace(read_config(saved), net=run.config.net, vf_net=None))
    network: Any = agent
    if network is None:
        raise CheckpointError(
            f"{where}: expected weights of a RogueNet, got weights of a custom network; pass "
            "that network as agent= in Python"
        )
    load_weights(where, network, tensors_of(where, member.weights))
    state, config = read_state(saved), read_config(saved)
    return SavedRun(
        path=saved.path,
        config=config,
        step=max(member.step, 0),
        agent=network.eval(),
        obs_space=state["obs_space"],
        action_space=state["action_space"],
        member=name,
    )


def run_of_member(member: Member, path: Path) -> SavedRun:
    """Return the network of a league member with the configuration and spaces of its run.

    Args:
        member: a member with a `RogueNet`.
        path: the checkpoint, for messages.

    Raises:
        CheckpointError: the file or the configuration is damaged, or they do not match.
    """
    where = f"{path}: {member.file}"
    try:
        config = load_config(TrainConfig, None, text=member.config)
        spaces = read_spaces(ron.loads(member.spaces))
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: its configuration cannot be read: {error}") from None
    weights = tensors_of(where, member.weights)
    try:
        network = fitting_network(where, config, spaces, weights, make=make_policy)
    except ConfigError as error:
        raise CheckpointError(f"{where}: its configuration does not fit: {error}") from None
    load_weights(where, network, weights)
    return SavedRun(
        path=path,
        config=config,
        step=max(member.step, 0),
        agent=network.eval(),
        obs_space=spaces.obs_space,
        action_space=dict(spaces.action_space),
        member=member.name,
    )


class Contents(NamedTuple):
    """Content of a checkpoint as plain data and tensors, for any class of network.

    Attributes:
        path: the folder.
        manifest: content of the manifest.
        config: the configuration as RON, with today's names if it is a `TrainConfig`.
        settings: the configuration; None if it is an instance of a custom class.
        state: the readable part of the state, without the spaces.
        obs_space: observation space of the agent.
        action_space: action space of the agent.
        tensors: tensors by name by file, without league members.
        members: members of the league.
        lessons: progress in curricula, and changed arguments.
        rounds: rounds of episodes.
    """

    path: Path
    manifest: Mapping[str, Any]
    config: str
    settings: TrainConfig | None
    state: Mapping[str, Any]
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    tensors: dict[str, dict[str, Tensor]]
    members: Sequence[Member]
    lessons: Lessons
    rounds: RunRounds

    @property
    def spaces(self) -> Spaces:
        """Spaces of the agent."""
        return Spaces(self.obs_space, self.action_space)


def read_contents(path: Path) -> Contents:
    """Read all content of a checkpoint.

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
        saved.path,
        saved.manifest,
        saved.text("config.ron") if settings is None else dump_config(settings),
        settings,
        state,
        tensors={name: read_tensors(saved, name) for name in names},
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
