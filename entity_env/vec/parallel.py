"""Environments that step in worker processes."""

import copy
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.arrays import IntArray
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError, WorkerError
from entity_env.match import CreateEnv, Match
from entity_env.process import ProcessTimes, warn_once
from entity_env.ragged import Ragged, as_choices
from entity_env.spaces import ActionName, ActionSpace, EntityName, ObsSpace
from entity_env.vec.episode_state import cat_states, split_state
from entity_env.vec.identity import types_to_track
from entity_env.vec.recovery import STEP_TRIES, Recovery, RecoveryStep
from entity_env.vec.validate import check_same_spaces
from entity_env.vec.variation import Variation
from entity_env.vec.vec_env import VecEnv
from entity_env.vec.vec_obs import VecObs
from entity_env.vec.worker import (
    RestartQuota,
    Worker,
    WorkerLostError,
    WorkerProcess,
    WorkerSetup,
    pickled,
)
from entity_env.world_code import code_of

logger = logging.getLogger(__name__)


class ParallelEnvList(VecEnv):
    """`num_envs` environments, split as equally as possible over `num_processes` processes.

    A worker that is killed, exits, hangs or fails while it starts is named in the log and replaced.
    If the environments have `get_state` and `set_state`, the new worker continues the same
    episodes, and all frames are the same as without the loss: see `recovery.py`. Otherwise its
    running episodes count as truncated at their last frames, and the run goes on. An environment
    that raises in a reset or a step is an error, and not replaced.

    Args:
        create_env: makes one `Environment` or `Match`; sent to the workers.
        num_envs: the number of frames in a step; a multiple of the sides of a match.
        num_processes: the largest number of workers; there are never more than matches.
        start_method: accepted for compatibility; workers are always fresh interpreters.
        first_env_index: the index of the first among all environments of the run.
        validate: raise for features and rewards that are not finite, and for unordered ids, with
            the environment, step and field.
        timeout_s: seconds after which a worker that does not answer counts as lost; None for no
            limit.
        restarts: the limit on the number of lost workers that are replaced; of the workers of one
            remote host only the first one counts.
        recover: "exact" to continue the episodes of lost workers, "truncate" to truncate them.
        new_worker: starts one worker, on this host or another one.
        like: one of the environments, for its sides and its class where these depend on arguments
            or `create_env` is a function; the caller closes it.

    Raises:
        WorkerError: an environment raised, with the worker's traceback; or a worker was lost and
            may not be replaced.
        InvalidObservation: an environment returned something that its spaces do not allow.
        InvalidSpace: `check_env` rejects a space, or instances differ in their spaces.
    """

    def __init__(
        self,
        create_env: CreateEnv,
        num_envs: int,
        num_processes: int,
        start_method: str | None = None,
        *,
        first_env_index: int = 0,
        validate: bool = False,
        timeout_s: float | None = 600.0,
        restarts: RestartQuota | None = None,
        recover: str = "exact",
        new_worker: Callable[[WorkerSetup], Worker] = WorkerProcess,
        like: Environment | Match | None = None,
    ) -> None:
        # Sides of a match and digests of the source, without making an environment in this process.
        cls: Any = create_env.func if isinstance(create_env, functools.partial) else create_env
        cls, sides = (type(like), like) if like is not None else (cls, cls)
        local_code = code_of(cls) if isinstance(cls, type) else {}
        code, first = pickled(create_env, "env"), first_env_index
        # Environments and core of each worker.
        setups = []
        self.sides = getattr(sides, "num_sides", 1)
        counts = split_evenly(num_envs, num_processes, self.sides)
        cores: list[int | None] = [None] * len(counts)
        if new_worker is WorkerProcess:
            cores = cores_of_workers(len(counts))
        for count, core in zip(counts, cores, strict=True):
            setups.append(WorkerSetup(code, count, first, validate, timeout_s, core, local_code))
            first += count
        # State between steps: episodes begun (for seeds), last frames, and the space they show.
        self._restarts = RestartQuota() if restarts is None else restarts
        self._seed: int | None = None
        self._tracked: list[EntityName] = []
        self._variation: list[Any] | None = None
        self._episodes = np.zeros(num_envs, dtype=np.int64)
        self._batch: VecObs | None = None
        self._space: ObsSpace | None = None
        # For lost workers: states and messages to replay, the arguments of the running step, and
        # workers with a replacement that was counted already.
        self._recovery = Recovery(len(setups), recover)
        self._step: RecoveryStep | None = None
        self._counted: set[int] = set()
        # Indices of the lost workers of each host.
        self._lost_by_host: dict[str, set[int]] = {}
        # Start all workers before waiting for any; replace workers that are lost meanwhile.
        self._new_worker = new_worker
        self._workers: list[Worker] = []
        try:
            self._workers += map(new_worker, setups)
            spaces = [
                self._restart(i, answer) if isinstance(answer, WorkerLostError) else answer
                for i, answer in enumerate([worker.started() for worker in self._workers])
            ]
            for answer in spaces[1:]:
                check_same_spaces(spaces[0][:2], answer[:2], "in another worker")
        except BaseException:
            self.close()
            raise
        for text in spaces[0][3]:
            warn_once(text)
        self._obs_space: ObsSpace = spaces[0][0]
        self._action_space: dict[ActionName, ActionSpace] = spaces[0][1]
        # Workers do not see the source of classes that the main program defines.
        self._code: dict[str, str] = {**spaces[0][2], **local_code}
        without_state = next((answer[4] for answer in spaces if answer[4]), None)
        if without_state is not None:
            self._recovery.give_up(f"{without_state} has no get_state and set_state")

    def obs_space(self) -> ObsSpace:
        """Return the space of observations."""
        return self._obs_space

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the spaces of actions."""
        return self._action_space

    def __len__(self) -> int:
        return sum(worker.setup.num_envs for worker in self._workers)

    def seed(self, seed: int) -> None:
        """Seed each episode with a function of `seed`, its environment and its number."""
        self._broadcast("seed", seed)
        self._seed = seed
        self._episodes[:] = 0

    def vary(self, variation: Variation) -> None:
        """Draw the arguments of all following episodes, in the workers."""
        groups = variation.to_plain()
        self._broadcast("vary_by", groups)
        self._variation = groups

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Assign numbers to the entities by their ids, in the workers."""
        tracked = types_to_track(types, self._obs_space, self._batch is not None)
        self._broadcast("track", tracked)
        self._tracked = tracked

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments."""
        pieces = self._ask_all(
            lambda i, lost: self._recover_and_ask(i, lost, "reset", obs_config), "reset", obs_config
        )
        self._episodes += 1
        self._space = copy.deepcopy(obs_config)
        self._recovery.append("reset", [self._space])
        return self._store_frames(VecObs.cat(pieces))

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Step all environments."""
        self.act_async(actions, obs_filter)
        return self.wait()

    def act_async(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> None:
        """Send the actions of a step to the workers."""
        if self._batch is None:
            raise EntityEnvError("act_async: call reset first")
        self.check_no_begun_step("act_async")
        if self._recovery.is_due:
            self._recovery.save(lambda: self._ask_all(self._recover_and_snapshot, "snapshot"))
        # Equal spaces may have their types in another order, and with that show other frames.
        same = obs_filter == self._space and [*obs_filter.entities] == [*self._space.entities]
        self._space = self._space if same else copy.deepcopy(obs_filter)
        chosen = {name: as_choices(rows) for name, rows in actions.items()}
        self._step = RecoveryStep.of(chosen, None if same else self._space, self._recovery.is_exact)
        self._send_all("act_on", self._step.arguments(self._counts()))
        self._begun = actions, obs_filter

    def wait(self) -> VecObs:
        """Return the frames of all workers after the step that `act_async` began."""
        if self._begun is None:
            raise EntityEnvError("wait: call act_async first")
        self._begun = None
        pieces: list[VecObs] = self._receive_all(self._repeat_step)
        assert self._step is not None
        self._recovery.append("act_on", self._step)
        batch = self._store_frames(VecObs.cat(pieces))
        self._episodes += batch.done
        return batch

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments, as `EnvList.get_state`.

        Also None if a worker was lost and the next step will truncate its episodes.
        """
        states = self._ask_all(
            lambda i, lost: self._ask(i, "get_state") if self._recover(i, lost) else None,
            "get_state",
        )
        return None if any(state is None for state in states) else cat_states(states)

    def why_no_state(self) -> str:
        """Return why the environments of a worker returned no state."""
        reasons: list[str] = self._ask_all(lambda i, lost: "", "why_no_state")
        return next(filter(None, reasons), "")

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue from a state, whatever the number of processes that saved it."""
        space = copy.deepcopy(obs_config)
        arguments = [[piece, space] for piece in split_state(state, self._counts())]
        self._send_all("set_state", arguments)
        pieces = self._receive_all(
            lambda i, lost: self._recover_and_ask(i, lost, "set_state", *arguments[i])
        )
        self._seed = state["seed"]
        self._episodes = state["episodes"].copy()
        if any(piece is None for piece in pieces):
            return None
        self._recovery.append("set_state", arguments)
        self._space = space
        return self._store_frames(VecObs.cat(pieces))

    def world_code(self) -> dict[str, str]:
        """Return digests of the source of the environments' classes."""
        return self._code

    def process_times(self) -> list[ProcessTimes]:
        """Return the time and memory of each worker; empty for workers lost during the call."""
        waited_s = [worker.waited_s for worker in self._workers]
        answers: list[list[ProcessTimes]] = self._ask_all(lambda i, lost: [], "process_times")
        pairs = zip(answers, waited_s, strict=True)
        return [times._replace(waited_s=waited) for answer, waited in pairs for times in answer]

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Raise NotImplementedError."""
        raise NotImplementedError("ParallelEnvList does not render; use an EnvList")

    def close(self) -> None:
        """Stop all workers. Safe to call twice.

        Raises:
            WorkerError: an environment could not be closed; all others are closed.
        """
        workers, self._workers = self._workers, []
        errors = [error for worker in workers if (error := worker.close()) is not None]
        if errors:
            raise errors[0]

    def _send_all(self, name: str, arguments: Sequence[list[Any]]) -> None:
        if not self._workers:
            raise WorkerError(f"{name}: the workers are closed")
        self.check_no_begun_step(name)
        last = self._workers[-1]
        for worker, args in zip(self._workers, arguments, strict=True):
            worker.send([name, args], is_last=worker is last)

    def _ask_all(
        self, on_loss: Callable[[int, WorkerLostError], Any], name: str, *arguments: Any
    ) -> list[Any]:
        """Return the answers of all workers to the same message, as `_receive_all`."""
        self._send_all(name, [[*arguments] for _ in self._workers])
        return self._receive_all(on_loss)

    def _receive_all(self, on_loss: Callable[[int, WorkerLostError], Any]) -> list[Any]:
        """Return the answers of all workers.

        All answers are read before an error is raised, so that none is left for the next call.

        Args:
            on_loss: returns the answer in place of that of a lost worker, from its index and error.
        """
        answers = [worker.receive() for worker in self._workers]
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, WorkerLostError):
                raise answer
        return [
            on_loss(i, answer) if isinstance(answer, WorkerLostError) else answer
            for i, answer in enumerate(answers)
        ]

    def _broadcast(self, name: str, argument: Any) -> None:
        """Send all workers a message between steps that has no answer."""

        def resend(i: int, lost: WorkerLostError) -> None:
            if self._recover(i, lost):
                self._ask(i, name, argument)
            elif self._batch is None:  # after the first reset, the next step handles the loss
                self._replace_and_ask(i, lost, name, argument)

        self._ask_all(resend, name, argument)
        self._recovery.append(name, [argument])

    def _store_frames(self, batch: VecObs) -> VecObs:
        """Store a copy of the last frames, as wrappers may change the result; return them."""
        self._batch = replace(
            batch,
            features={**batch.features},
            visible={**batch.visible},
            action_masks={**batch.action_masks},
            reward=batch.reward.copy(),
        )
        return batch

    def _counts(self) -> list[int]:
        """Return the number of environments of each worker."""
        return [worker.setup.num_envs for worker in self._workers]

    def _restart(self, i: int, lost: WorkerLostError) -> Any:
        """Replace a lost worker by a new one that tracks the same entity types.

        Returns:
            The first answer of the new worker: its spaces, digests of its code, warnings.

        Raises:
            WorkerError: the limit on restarts is reached; the message has the last loss.
        """
        setup = self._workers[i].setup
        self._workers[i].kill()
        started: Any = lost
        while isinstance(started, WorkerLostError):
            if self._is_counted(i) and (limit := self._restarts.take()):
                raise WorkerError(f"{started}\nIt is not replaced: {limit}")
            logger.warning("%s was lost, starting another one: %s", setup, started)
            self._workers[i] = self._new_worker(setup)
            started = self._workers[i].started()
        if self._tracked:
            self._ask(i, "track", self._tracked)
        return started

    def _is_counted(self, i: int) -> bool:
        """Return True if the loss of a worker uses up a restart.

        When a host is lost with all of its workers, only the first one counts.
        """
        host = self._workers[i].host
        lost_workers = self._lost_by_host.setdefault(host, set())
        is_lost_with_host = bool(host and lost_workers) and i not in lost_workers
        lost_workers.add(i)
        if i in self._counted:
            self._counted.remove(i)
            return False
        return not is_lost_with_host

    def _recover(self, i: int, lost: WorkerLostError) -> bool:
        """Replace a lost worker by one in the same state.

        Returns:
            False if that is impossible: there is no worker then, and its replacement is not counted
            again. The reason is logged.
        """
        while self._recovery.can_recover(i):
            try:
                self._restart(i, lost)
                ask, first = functools.partial(self._ask, i), self._workers[0].setup.first
                difference = self._recovery.catch_up(ask, i, self._counts(), self._batch, first)
            except WorkerLostError as error:
                lost = error
                continue
            if difference is None:
                logger.warning("%s is replaced and continues its episodes", self._workers[i].setup)
                return True
            self._recovery.give_up(f"the replay differs in {difference}")
            self._recovery.log_reason()
            self._drop(i)
        return False

    def _drop(self, i: int) -> None:
        """End a replacement and truncate its episodes; the next replacement is not counted."""
        self._workers[i].kill()
        self._counted.add(i)

    def _repeat_step(self, i: int, lost: WorkerLostError) -> VecObs:
        """Repeat a step, in which a worker was lost, with its replacement; return the frames."""
        assert self._step is not None
        for _ in range(STEP_TRIES):
            if not self._recover(i, lost):
                break
            self._workers[i].send(["act_on", self._step.arguments(self._counts())[i]])
            answer: VecObs | Exception = self._workers[i].receive()
            if isinstance(answer, VecObs):
                return answer
            if not isinstance(answer, WorkerLostError):
                raise answer
            lost = answer
            self._drop(i)
        return self._truncate_and_restart(i, lost)

    def _replace(self, i: int, lost: WorkerLostError) -> Any:
        """Replace a lost worker by one that begins new episodes in the next reset.

        Returns:
            The answer of `_restart`.
        """
        started = self._restart(i, lost)
        if self._variation is not None:
            self._ask(i, "vary_by", self._variation)
        if self._seed is not None:
            self._ask(i, "seed", self._seed, self._episodes[self._frame_indices(i)].tolist())
        self._recovery.forget(i)
        return started

    def _frame_indices(self, i: int) -> IntArray:
        """Return the indices of the frames of a worker among all frames."""
        first = sum(self._counts()[:i])
        return np.arange(first, first + self._workers[i].setup.num_envs)

    def _truncate_and_restart(self, i: int, lost: WorkerLostError) -> VecObs:
        """Return a step in which the episodes of a lost worker are truncated and new ones begin."""
        assert self._batch is not None
        assert self._space is not None
        self._recovery.log_reason()
        frames = self._frame_indices(i)
        first_frames: VecObs = self._replace_and_ask(i, lost, "reset", self._space)
        # The last frames of the lost worker are the final observations of its episodes.
        truncated = np.ones(len(frames), dtype=np.bool_)
        last = self._batch.take(frames)
        final = replace(last, action_masks={}, done=truncated, truncated=truncated)
        flags = truncated.copy(), truncated.copy()
        return replace(first_frames, done=truncated, truncated=flags[0], final=final, lost=flags[1])

    def _recover_and_ask(self, i: int, lost: WorkerLostError, name: str, *arguments: Any) -> Any:
        """Recover or replace a lost worker, and return the answer of the new one."""
        if self._recover(i, lost):
            return self._ask(i, name, *arguments)
        return self._replace_and_ask(i, lost, name, *arguments)

    def _recover_and_snapshot(self, i: int, lost: WorkerLostError) -> Any:
        """Recover a lost worker and return its state, or None if it cannot be recovered."""
        return self._ask(i, "snapshot") if self._recover(i, lost) else None

    def _replace_and_ask(self, i: int, lost: WorkerLostError, name: str, *arguments: Any) -> Any:
        """Replace a lost worker and return the answer of the new one."""
        self._replace(i, lost)
        return self._ask(i, name, *arguments)

    def _ask(self, i: int, name: str, *arguments: Any) -> Any:
        self._workers[i].send([name, [*arguments]])
        answer = self._workers[i].receive()
        if isinstance(answer, Exception):
            raise answer
        return answer


def cores_of_workers(num_workers: int) -> list[int | None]:
    """Return a core for each worker, or None for each if there are more cores than workers.

    Without this, the system runs two workers on one core in some steps, and moves others away from
    the core with their data in its cache.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    # With fewer workers, other programs may choose the same few cores.
    if not 0 < len(cores) <= num_workers:
        return [None] * num_workers
    return [cores[i % len(cores)] for i in range(num_workers)]


def split_evenly(num_envs: int, num_processes: int, sides: int = 1) -> list[int]:
    """Return the numbers of environments of each worker, none of them 0.

    Each is a multiple of `sides`, the environments of a match; they differ by at most one match.
    """
    matches = max(1, -(-num_envs // sides))
    pieces = max(1, min(num_processes, matches))
    sizes = [sides * (matches // pieces + (i < matches % pieces)) for i in range(pieces)]
    sizes[-1] -= sum(sizes) - num_envs  # EnvList rejects incomplete matches
    return sizes
