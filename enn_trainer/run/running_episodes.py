"""Saving and resuming of unfinished episodes.

`entity_env` defines the state of an environment; this module adds the step, settings and code for
which it is valid.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enn_trainer.base.errors import CheckpointError
from enn_trainer.base.group import ALONE, Group
from enn_trainer.checkpoints.state import State
from enn_trainer.config import TrainConfig
from enn_trainer.experience.collector import Collector
from enn_trainer.experience.env_states import gather_env_states, select_env_states
from enn_trainer.runtime.execution import DEFAULT_CONTEXT, ExecutionContext
from entity_env.errors import EntityEnvError
from entity_env.process import warn_once
from entity_env.seeding import derive_seed
from entity_env.serialization.messages import MessageError, pack, unpack
from entity_env.vec.vec_env import VecEnv, VecObs
from entity_env.world_code import changed_classes, portable_name, shared_classes

NOT_SAVED = "episodes are not saved, and restart when the run is resumed"
"""Start of a message; the reason follows."""
FRAMES_PER_STEP = "the number of the agent's frames in a step"


def take_episodes(
    envs: VecEnv,
    config: TrainConfig,
    step: int,
    frames_per_step: int | None = None,
    group: Group = ALONE,
) -> bytes | None:
    """Return the serialised state of unfinished episodes; None if environments have no state.

    Args:
        envs: environments of this process, between two steps.
        config: configuration of the run.
        step: number of frames of the run.
        frames_per_step: see `State.frames_per_step`; None for all environments.
        group: processes of the run; the result has the environments of all of them.

    Raises:
        EntityEnvError: the state of an environment is not plain data.
    """
    env_states = gather_env_states(envs.get_state(), group)
    if env_states is None:
        return None
    try:
        settings = _env_settings(config, frames_per_step)
        origin = {"settings": settings, "world": _world(envs), "code": envs.world_code()}
        return pack({"step": step, **origin, "envs": env_states}, exact=True)
    except MessageError as error:
        raise EntityEnvError(f"environments: get_state: expected plain data: {error}") from None


def continue_episodes(
    envs: VecEnv,
    state: State,
    config: TrainConfig,
    where: str,
    configured_id: str | None = None,
    frames_per_step: int | None = None,
    columns: range | None = None,
) -> tuple[VecObs | None, str]:
    """Restore the environments of a checkpoint, unless their settings or code have changed.

    Args:
        envs: environments of this process.
        state: restored state of the run.
        config: configuration of the run.
        where: source of the state, for messages.
        configured_id: `env.id` before it was set to the name of the environment of the program, as
            in checkpoints of earlier releases.
        frames_per_step: see `State.frames_per_step`; None for all environments.
        columns: indices of the environments of this rank; None for all.

    Returns:
        The current frames, or None if new episodes must start; and the reason, "" if the checkpoint
        has no episodes, see `why_not_saved`.

    Raises:
        CheckpointError: the saved episodes are damaged.
        EntityEnvError: an environment rejects its state.
    """
    if state.envs is None:
        return None, ""
    try:
        saved = unpack(state.envs)
        if type(saved["step"]) is not int:
            raise TypeError("step: expected a number")
        if saved["step"] != state.step:  # later updates of this process were not saved
            return None, f"the saved ones are of step {saved['step']}"

        # The environments must have the same settings, spaces and code.
        code = saved.get("code", {})
        if not all(type(digest) is str for digest in code.values()):
            raise TypeError("code: expected digests by the names of classes")
        now, before = _env_settings(config, frames_per_step), saved["settings"]
        was = before.get("env.id")
        if was == configured_id or _is_moved_file(was, now["env.id"], code, envs.world_code()):
            now["env.id"] = was
        if FRAMES_PER_STEP in now:  # since the run has a pool of opponents
            before = {FRAMES_PER_STEP: config.rollout.num_envs, **before}
        changed = [
            f"{name} was {value!r}"
            for name, value in before.items()
            if type(value) is not type(now.get(name)) or value != now[name]
        ]
        if changed:
            return None, ", ".join(changed)
        if pack(saved["world"]) != pack(_world(envs)):  # saved frames have the old order
            return None, "the environment has features, types or labels in another order"
        if why := _code_change(code, envs.world_code()):
            return None, why

        # Restore.
        env_states = saved["envs"] if columns is None else select_env_states(saved["envs"], columns)
        obs = envs.set_state(env_states, state.obs_space)
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where}: the saved episodes cannot be read: {error!r}") from None
    return obs, "the environments do not offer set_state" if obs is None else ""


def why_not_saved(envs: VecEnv, config: TrainConfig, world: str | None) -> str:
    """Return a message why a checkpoint has no episodes, with a fix if there is one.

    Args:
        envs: environments of the run, after a reset.
        config: configuration of the run.
        world: name of the environment class, if known.
    """
    if envs.get_state() is not None:
        return (
            "the checkpoint has none: a lesson cut them off, or it was saved after an error, by "
            "enn checkpoints, or by an old version"
        )
    if reason := envs.why_no_state():
        return f"their state cannot be saved: {reason}"
    classes = [*envs.world_code()]
    named = config.env.id.rpartition(":")[2]
    if world is None and any(name.rpartition(".")[2] == named for name in classes):
        world = named
    why = f"{world or 'this environment'} cannot save its state"
    if any(name.startswith("entity_env.adapters.") for name in classes):
        return why  # PlainState is not meant for environments of other libraries
    return f"{why}; derive it from PlainState to resume mid-episode"


class RunningEpisodes:
    """Unfinished episodes of the rollout environments of a run.

    Args:
        collector: the environments, with players and watchers.
        config: configuration of the run.
        state: state of the run.
        configured_id: `env.id` of the configuration, see `continue_episodes`.
        context: shards and processes of the run.

    Attributes:
        players: the players in the environments.
        are_valid: False if new episodes must start, as after an error.
        message: message about the episodes of a resumed run.
        unsaved: why environments with `get_state` cannot return their state; "" if they can.
    """

    def __init__(
        self,
        collector: Collector,
        config: TrainConfig,
        state: State,
        configured_id: str | None = None,
        context: ExecutionContext = DEFAULT_CONTEXT,
    ) -> None:
        self._collector, self._config, self._state = collector, config, state
        self.players = collector.players
        self._configured_id, self._context = configured_id, context
        self.are_valid = False
        self.message, self.unsaved = "its episodes go on", ""

    def begin(self, where: str, world: str | None) -> VecObs:
        """Resume the saved episodes or start new ones, and return the frames.

        Args:
            where: source of the state, for messages.
            world: name of the environment class, if known.
        """
        group = self._context.exchange.group
        resumed, why = continue_episodes(
            envs=self._collector,
            state=self._state,
            config=self._config,
            where=where,
            configured_id=self._configured_id,
            frames_per_step=self._state.frames_per_step(self._config),
            columns=None if group.size == 1 else self._context.shards.columns,
        )
        self.are_valid = resumed is not None
        obs = self.running_collector().obs
        if resumed is None:
            why = why or why_not_saved(self._collector, self._config, world)
            self.message = f"episodes restart, because {why}"
            self.unsaved = self._collector.why_no_state()
        return obs

    def running_collector(self) -> Collector:
        """Return the collector; start new episodes if needed, seeded by the step of the run."""
        if not self.are_valid:
            self._collector.seed(derive_seed(self._config.seed, "rollout", self._state.step))
            per_step = self._state.frames_per_step(self._config)
            for part in self._state.parts.values():
                part.begin_episodes(per_step)
            self._collector.reset(self._state.obs_space)
            self.are_valid = True
        return self._collector

    def store(self, is_between: bool, group: Group) -> None:
        """Store the episodes in the state before saving; None during or after a failed update.

        Args:
            is_between: False during an update.
            group: processes of the run; a group of one after a failure.
        """
        self._state.envs = None
        if is_between:
            for part in self._state.parts.values():
                part.join(group)
        if is_between and self.are_valid:
            state, config = self._state, self._config
            per_step = state.frames_per_step(config)
            state.envs = take_episodes(self._collector, config, state.step, per_step, group)
            if state.envs is None and (why := self._collector.why_no_state()) != self.unsaved:
                warn_once(f"{NOT_SAVED}: {why}")
                self.unsaved = why


def _world(envs: VecEnv) -> list[Any]:
    """Return the names of features, entity types, actions and choices in order."""
    obs_space = envs.obs_space()
    labels = [[t, k.name, k.labels] for t, kinds in obs_space.kinds.items() for k in kinds]
    return [
        obs_space.global_entity.columns,
        [[name, entity.columns] for name, entity in obs_space.entities.items()],
        [
            [name, [*space.labels, *([n, *bounds] for n, bounds in space.bounds_by_name().items())]]
            for name, space in envs.action_space().items()
        ],
        *([labels] if labels else []),
    ]


def _is_moved_file(
    before: object, now: str, code_before: Mapping[str, str], code_now: Mapping[str, str]
) -> bool:
    """Return True if `env.id` names the same class in a file that was moved.

    Args:
        before: `env.id` of the checkpoint.
        now: `env.id` of the run.
        code_before: digests in the checkpoint, which must include a class of the file.
        code_now: digests of the environments, likewise.
    """
    if not isinstance(before, str):
        return False
    (file_before, _, name_before), (file, _, name) = before.rpartition(":"), now.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or (Path(file_before).name, name_before) != (path.name, name):
        return False
    prefix = f"{path.stem}."
    both = code_before, code_now
    return all(any(portable_name(n).startswith(prefix) for n in code) for code in both)


def _code_change(before: dict[str, str], now: dict[str, str]) -> str:
    """Return a message if the source code of the environments differs, else ""."""
    if changed := changed_classes(before, now):
        return f"the environment's code changed ({', '.join(changed)})"
    if before and now and not shared_classes(before, now):
        return f"the environment's code changed (was {', '.join(map(portable_name, before))})"
    return ""


def _env_settings(config: TrainConfig, frames_per_step: int | None) -> dict[str, Any]:
    """Return the settings that determine the environments and the agent's frames."""
    learnt = frames_per_step or config.rollout.num_envs
    return {
        **({FRAMES_PER_STEP: learnt} if learnt != config.rollout.num_envs else {}),
        "env.id": config.env.id,
        "env.kwargs": json.loads(config.env.kwargs),
        "rollout.num_envs": config.rollout.num_envs,
    }
