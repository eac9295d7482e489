"""Lookup of saves, by their folders, RUN@STEP, RUN@latest, RUN@best and for --resume.

SAVE@opponent:NAME and RUN@opponents are members of the league of a save. The content of saves is
read here as well, to be played, measured, shown and compared.
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
from enn_trainer.checkpoints.retention import best_of
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.state import make_policy
from enn_trainer.checkpoints.state_files import (
    read_config,
    read_lessons,
    read_members,
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
"""Action for the run in a folder: continue it if there is one, continue it, raise if there is one,
or begin another one in its place."""
_MEMBER = "@opponent:"
EXISTING: tuple[Existing, ...] = ("continue", "resume", "refuse", "replace")


def find(path: Path, say: Callable[[str], None] = print, to_continue: bool = False) -> Checkpoint:
    """Return the save at a path, or the newest valid one of the run there.

    One of enn_trainer 0.1.16 is taken only where there is none of ours: a run that was continued
    with this program is newer than what it began with.

    Args:
        path: a checkpoint, or the folder of a run; or in one of the forms of `resolve`.
        say: prints a line on each newer one that is damaged.
        to_continue: True if the run goes on, which needs all of a save.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """

    def look() -> Checkpoint:
        found = resolve(path, say)
        if not found.is_dir():
            if found != path:
                raise SaveGone(f"{found}: deleted")
            raise CheckpointError(f"{found}: expected a checkpoint directory, there is none")
        if is_save(found):
            return verify(found)
        saved = RunDir(found).newest(say) or legacy_0_1_16.find(found, say, to_continue)
        if saved is None:
            if not found.is_dir():  # since it was found
                raise SaveGone(f"{found}: deleted")
            raise CheckpointError(
                f"{found}: expected a checkpoint, or the folder of a run with some in it "
                f"(named step-...), found neither"
            )
        return saved

    return retry_while_gone(path, look)


def find_to_continue(
    run_dir: Path, existing: Existing, say: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest valid save of the run in a folder; None for a run that begins there.

    A save that a killed process was about to replace is put back first.

    Args:
        run_dir: the folder.
        existing: the action for a run that is there.
        say: prints a line on each newer save that is damaged.

    Raises:
        CheckpointError: there is a run and should be none, or the other way round; or it cannot be
            continued.
    """
    run = RunDir(run_dir)
    if run.is_save:
        raise CheckpointError(
            f"--checkpoint-dir: expected the folder of a run, {run_dir} is one of its saves; "
            "--resume-from starts from it"
        )
    if existing == "replace":
        return None
    if run_dir.is_dir():
        run.restore_superseded()
    saves = run.all_saves()
    if not saves:
        if existing == "resume":
            raise CheckpointError(
                f"--resume: expected a run to continue in {run_dir}, there is none; "
                "--resume-or-start begins one then"
            )
        return None
    if existing == "refuse":
        raise CheckpointError(
            f"--checkpoint-dir: expected a folder without a run, {run_dir} has one, up to "
            f"{saves[-1].name}; --resume continues it, --force starts over and sets it aside, "
            "--resume-or-start is for jobs that are started again and again"
        )
    return find(run_dir, say, to_continue=True)


def resolve(path: Path, say: Callable[[str], None] = print) -> Path:
    """Return the folder or file that a path stands for; one that exists stands for itself.

    `RUN@STEP` is the save of a run at that step, `RUN@latest` its newest valid one as of `find`,
    and `RUN@best` the best one by the first entry of `checkpoint.best` of its configuration.

    Args:
        path: of a file or folder, or in one of these forms.
        say: prints a line on each newer save that is damaged.

    Raises:
        CheckpointError: the run has no such save.
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
            f"{run_dir}@{int(which)}: expected a save of that step, there are those of "
            f"{', '.join(steps) or 'none'}"
        )
    if which == "latest":
        return find(run_dir, say).path
    if which == "best":
        return retry_while_gone(path, lambda: _best(run_dir))
    if which.startswith(("opponent:", "opponents")):
        raise CheckpointError(
            f"{path}: expected a save, got opponents in one, which can play, but are no run"
        )
    raise CheckpointError(f"{path}: expected {run_dir}@STEP, @latest or @best, got @{which}")


def _best(run_dir: Path) -> Path:
    paths = RunDir(run_dir).saved_paths()
    saves = VerifiedSaves().update(reversed(paths))
    if not saves and not all(path.exists() for path in paths):
        raise SaveGone(f"{run_dir}: its saves were deleted while they were read")
    if not saves:
        raise CheckpointError(f"{run_dir}@best: expected a run with saves, there are none")
    with unless_replaced(saves[-1].path):
        config = read_config(saves[-1])
    by = config.checkpoint.best
    if not by:
        raise CheckpointError(
            f"{run_dir}@best: expected a run that keeps its best saves, as with "
            "'checkpoint.best=[\"eval/episodic_reward.mean max\"]'; this one does not"
        )
    best = best_of({saved.path.name: saved.manifest for saved in saves}, by[0], 1)
    if not best:
        raise CheckpointError(f"{run_dir}@best: no save has what it is judged by, {by[0]}")
    return run_dir / best[0]


class SavedRun(NamedTuple):
    """Network of a save, and its run.

    Attributes:
        path: the directory of the save.
        config: of the run.
        step: how many frames it was trained for.
        agent: the network, in evaluation mode.
        obs_space: the observations it was trained on.
        action_space: the actions it was trained on.
        run_name: the folder of the run's logs, "" if unknown.
        member: name of the member of its league that it is; "" for the agent of the run.
        pool: the members of the pool of the save; None if they were not read.
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
        """The spaces it was trained on."""
        return Spaces(self.obs_space, self.action_space)


def read_saved_run(path: Path, agent: PPOAgent | None = None, with_pool: bool = False) -> SavedRun:
    """Read the network of a save, without its optimizer.

    Args:
        path: as for `lookup.find`; or SAVE@opponent:NAME, for a member of the league of a save.
        agent: the user's own network, which takes the weights; None for a `RogueNet`.
        with_pool: True to read the members of its pool too, as the save may be deleted later.

    Raises:
        CheckpointError: there is no valid checkpoint, or its weights are no finite numbers; or it
            has no such member, or not as a network.
    """
    if (named := split_member(path)) is None:
        saved = find(path)
        run = _agent_of(saved, agent)
    else:
        saved, member = find_member(named[0], named[1])
        run = _run_of_member(saved, member, agent)
    return run._replace(pool=_pool_of(saved)) if with_pool else run


def _agent_of(saved: Checkpoint, agent: PPOAgent | None) -> SavedRun:
    state, config = read_state(saved), read_config(saved)
    obs_space, action_space = state["obs_space"], state["action_space"]
    where, weights = str(saved.path), read_tensors(saved, WEIGHTS)
    network: Any = agent
    if network is None:
        network = fitting_network(where, config, Spaces(obs_space, action_space), weights)
    load_weights(where, network, weights)
    return SavedRun(saved.path, config, saved.step, network.eval(), obs_space, action_space)


def split_member(path: Path) -> tuple[Path, str] | None:
    """Return the path of the save and the name in SAVE@opponent:NAME; None for another path."""
    save, form, name = str(path).rpartition(_MEMBER)
    return (Path(save), name) if form and save and not path.exists() else None


def members_of(path: Path) -> list[Member]:
    """Return the pool of a save, in the order in which its members joined.

    Args:
        path: as for `lookup.find`; or RUN@opponents.

    Raises:
        CheckpointError: there is no valid checkpoint, or it has no pool.
    """
    if not path.exists():
        path = Path(str(path).removesuffix("@opponents"))
    saved = find(path)
    return _some(saved.path, _pool_of(saved))


def pool_of_run(run: SavedRun) -> list[Member]:
    """Return the pool of a save that was read, in the order in which its members joined.

    Raises:
        CheckpointError: it has none; or it was read without, and there is no such save any more.
    """
    return members_of(run.path) if run.pool is None else _some(run.path, run.pool)


def _pool_of(saved: Checkpoint) -> list[Member]:
    return [member for member in read_members(saved) if member.is_in_pool]


def _some(path: Path, pool: Sequence[Member]) -> list[Member]:
    """Return the members of a pool, of which there has to be one."""
    if not pool:
        raise CheckpointError(
            f"{path}: expected a save of a run with opponents (selfplay), it has none"
        )
    return [*pool]


def find_member(path: Path, name: str) -> tuple[Checkpoint, Member]:
    """Return a save and a member of its league.

    Args:
        path: of the save, as for `lookup.find`.
        name: of the member.

    Raises:
        CheckpointError: there is no valid checkpoint, or no such member; names the nearest one.
    """
    saved = find(path)
    members = {member.name: member for member in read_members(saved)}
    if name not in members:
        there = ", ".join(members) or "none"
        raise CheckpointError(
            f"{saved.path}: expected one of its opponents, which are {there}; got {name!r}"
            f"{did_you_mean(name, members, separator='; ')}"
        )
    return saved, members[name]


def _run_of_member(saved: Checkpoint, member: Member, agent: PPOAgent | None) -> SavedRun:
    name, where = member.name, f"{saved.path}: {member.file}"
    if member.kind != "network":
        raise CheckpointError(
            f"{saved.path}: opponent {name}: expected one with a network, it is {member.origin!r}; "
            "name that instead"
        )
    if member.config:
        run = run_of_member(member, saved.path)
        return run._replace(config=replace(read_config(saved), net=run.config.net, vf_net=None))
    network: Any = agent
    if network is None:
        raise CheckpointError(
            f"{where}: the weights are those of a network of your own; expected that network "
            "beside the path, as agent= in Python"
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
    """Return a member as the run that it was taken from; not for networks of the user's own.

    Args:
        member: with a network.
        path: of the save, for messages.

    Raises:
        CheckpointError: its file or its configuration is damaged, or they do not fit.
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
    """All content of a save as plain data and tensors, whatever network it is of.

    Attributes:
        path: its folder.
        manifest: the content of its manifest.
        config: the configuration as RON, with the names of today if it is a `TrainConfig`.
        settings: the configuration; None if it is of a class of the user's own.
        state: the readable part of the state, without the spaces.
        obs_space: the observations of the agent.
        action_space: its actions.
        tensors: by name, by file; without those of the members of its league.
        members: of its league.
        lessons: progress in curricula, and arguments that were changed.
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
        """The spaces of the agent."""
        return Spaces(self.obs_space, self.action_space)


def read_contents(path: Path) -> Contents:
    """Read all content of a save.

    Args:
        path: as for `lookup.find`.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    saved = find(path)
    state = read_state(saved)
    spaces = {name: state.pop(name) for name in ("obs_space", "action_space")}
    members = read_members(saved)
    others = saved.manifest["files"].keys() - {member.file for member in members}
    names = sorted(name for name in others if name.endswith(".safetensors"))
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
    """Return the configuration; None for one of a class of the user's own."""
    try:
        return read_config(saved)
    except CheckpointError:
        with suppress(ConfigError):
            if isinstance(parse(saved.text("config.ron")), dict):
                return None
        raise
