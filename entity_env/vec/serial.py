"""Environments that step one after the other in this process."""

import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import EntityID
from entity_env.environment import Environment, Observation
from entity_env.errors import (
    EntityEnvError,
    InvalidObservation,
    InvalidSampler,
    as_error,
    exits_as_errors,
    in_environment,
    one_line,
    unexpected,
)
from entity_env.match import (
    CreateEnv,
    Match,
    SideActions,
    Solo,
    copy_containers,
    match_of,
    world_of,
)
from entity_env.plain_state import UnsavableSharingError
from entity_env.process import ProcessTimes, times_of_this_process
from entity_env.ragged import Ragged
from entity_env.seeding import derive_seed, derive_seeds
from entity_env.spaces import ActionName, ActionSpace, EntityName, ObsSpace
from entity_env.vec import episode_state
from entity_env.vec.batching import LAST, Outcomes, batch_obs, batch_outcomes, unbatch_actions
from entity_env.vec.frames import Frames
from entity_env.vec.identity import IdentityTracker, types_to_track
from entity_env.vec.validate import check_finite_batch, check_same_spaces, check_spaces
from entity_env.vec.variation import Variation, check_parameters
from entity_env.vec.vec_env import VecEnv, VecObs, copy_of_filter
from entity_env.world_code import code_of

_ATTEMPTS = 100
"""Number of resets before an error if the first frame ends the episode, as random ones may."""
_FILTERS = Solo.act_filter, Match.act_filter
"""Default methods, which do not pass the filter to the environment."""
_LAST_STEP_FIELDS = ("reward", LAST)
"""Fields about the last step of an episode, in a batch with the first frame of the next one."""


class EnvList(VecEnv):
    """`num_envs` environments in this process, or matches with `num_envs` sides in all.

    Args:
        create_env: makes one `Environment` or `Match`.
        num_envs: the number of frames in a step; a multiple of the sides of a match.
        first_env_index: the index of the first among all environments of the run.
        validate: raise for features and rewards that are not finite, and for unordered ids, with
            the environment, step and field.

    Raises:
        EntityEnvError: `num_envs` is not a multiple of the sides of a match.
        InvalidSpace: `check_env` rejects a space, or instances differ in their spaces.
    """

    def __init__(
        self, create_env: CreateEnv, num_envs: int, first_env_index: int = 0, validate: bool = False
    ) -> None:
        self.first_env_index, self.validate = first_env_index, validate
        with in_environment(first_env_index):
            self.matches = [match_of(create_env())]
        self.sides = self.matches[0].num_sides
        try:
            if num_envs < 1 or num_envs % self.sides:
                expected = f"a positive multiple of {self.sides}, the sides of a match"
                raise EntityEnvError(f"num_envs: expected {expected}, got {num_envs}")
            for i in range(num_envs // self.sides):
                with in_environment(self._index(i)):
                    if i > 0:
                        self.matches.append(match_of(create_env()))
                    spaces = self.matches[i].obs_space(), self.matches[i].action_space()
                if i == 0:
                    check_spaces(spaces[0], spaces[1])
                    first = spaces
                check_same_spaces(first, spaces, "in a new instance")
            self._obs_space, self._action_space = copy.deepcopy(first)
        except BaseException:
            self.close()
            raise
        self._code = code_of(*(type(world_of(match)) for match in self.matches))
        self._seed: int | None = None
        self._episodes = [0] * len(self.matches)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        # The last frames, their batch, and the space that they show.
        self._last: tuple[list[Observation], VecObs, ObsSpace] | None = None
        self._filters: dict[int, ObsSpace] = {}  # copies for matches that apply the filter
        # The current samplers, and the arguments of the running episodes: None if none vary.
        self._create_env: Callable[..., Environment | Match] = create_env
        self._variation = Variation()
        self._arguments: list[dict[str, Any]] | None = None
        self._world_ns, self._made_ns = 0, 0
        self._tracker = IdentityTracker([], 0)
        self._why_no_state = ""

    def obs_space(self) -> ObsSpace:
        """Return the space of observations."""
        return self._obs_space

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the spaces of actions."""
        return self._action_space

    def __len__(self) -> int:
        return len(self.matches) * self.sides

    def seed(self, seed: int, episodes: Sequence[int] | None = None) -> None:
        """Seed each following episode with a function of `seed`, its environment and its index.

        The global generators of `random` and `numpy` are seeded once as well, for environments that
        draw from them.

        Args:
            seed: the seed of the run.
            episodes: for each environment, the number of episodes that it has begun.
        """
        self.check_no_begun_step("seed")
        self._seed = seed
        counts = [0] * len(self) if episodes is None else list(episodes)
        self._episodes = counts[:: self.sides]
        source = self.first_env_index, sum(counts)
        random.seed(derive_seed(seed, "random", *source))
        np.random.seed(derive_seed(seed, "numpy", *source) % 2**32)  # noqa: NPY002 (theirs)

    def vary(self, variation: Variation) -> None:
        """Draw the arguments of all following episodes.

        Raises:
            InvalidSampler: the environments do not accept an argument.
        """
        self.check_no_begun_step("vary")
        check_parameters(world_of(self.matches[0]), self._create_env, variation)
        self._variation = variation
        if self._arguments is None:
            self._arguments = [{} for _ in self.matches]

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Assign numbers to the entities by their ids, from the first reset on."""
        tracked = types_to_track(types, self._obs_space, self._last is not None)
        self._tracker = IdentityTracker(tracked, len(self))

    def tracked_ids(self, env: int, name: EntityName, first: int = 0) -> list[EntityID]:
        """Return the ids of an entity type in the running episode of an environment.

        Args:
            env: its index in this list.
            name: the entity type.
            first: the number of the first id to return.

        Returns:
            The ids with numbers `first`, `first` + 1, ...; [] without `track`.
        """
        tables = self._tracker.tables
        return [*islice(tables[env].get(name, ()), first, None)] if tables else []

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments."""
        self.check_no_begun_step("reset")
        indices = range(len(self.matches))
        frames = list(chain.from_iterable(self._reset_matches(indices, obs_config)))
        self._steps[:] = 0
        self._tracker.begin()
        return self._batch_frames(frames, None, obs_config)

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Step all environments, and reset each one at the end of its episode."""
        if self._last is None:
            raise EntityEnvError("act: call reset first")
        frames, batch, space = self._last
        chosen = unbatch_actions(actions, batch, frames, space, self._action_space)
        self._steps += 1
        sides, frames = self.sides, self._step_matches(chosen, obs_filter)
        outcomes = self._read_outcomes(frames, obs_filter)
        # Reset matches in which all sides have ended.
        done = outcomes.done.reshape(-1, sides)
        mixed = np.flatnonzero(done.all(axis=1) != done.any(axis=1))
        if len(mixed):
            i = int(mixed[0])
            expected, got = f"{sides} sides that end together", done[i].tolist()
            raise self._locate(unexpected(None, "done", expected, got), i * sides)
        ended: list[int] = np.flatnonzero(done[:, 0]).tolist()
        for i, first_frames in zip(ended, self._reset_matches(ended, obs_filter), strict=True):
            frames[i * sides : (i + 1) * sides] = first_frames
        batch = self._batch_frames(frames, outcomes, obs_filter)
        self._steps[batch.done] = 0
        return batch

    @exits_as_errors()
    def get_state(self) -> dict[str, Any] | None:
        """Return the state of all environments, in the format of `episode_state.py`.

        Returns:
            None if an environment has no `get_state`, or its attributes share memory in a way that
            a state cannot describe; `why_no_state` has the reason.

        Raises:
            EntityEnvError: there was no reset; or the state of an environment, or an id in its
                last frame, is not plain data.
        """
        self.check_no_begun_step("get_state")
        if self._last is None:
            raise EntityEnvError("get_state: call reset first")
        if not all(map(episode_state.offers_state, self.matches)):
            return None
        self._why_no_state = ""
        matches, sides, (frames, batch, _) = [], self.sides, self._last
        for i, match in enumerate(self.matches):
            part = slice(i * sides, (i + 1) * sides)
            tables = self._tracker.tables[part]
            try:
                matches.append(
                    episode_state.match_bytes(match, frames[part], self._action_space, tables)
                )
            except UnsavableSharingError as error:
                self._why_no_state = f"{type(world_of(match)).__name__}: get_state: {error}"
                return None
            except Exception as error:
                raise self._state_error("get_state", error, i) from error
        lengths = np.fromiter(map(len, matches), dtype=np.int64, count=len(matches))
        optional = {} if self._arguments is None else {"arguments": [*map(dict, self._arguments)]}
        return {
            **optional,
            "seed": self._seed,
            "episodes": np.repeat(np.array(self._episodes, dtype=np.int64), sides),
            "steps": self._steps.copy(),
            "frames": episode_state.without_outcomes(batch),
            "matches": Ragged(np.frombuffer(b"".join(matches), np.uint8), lengths),
        }

    def why_no_state(self) -> str:
        """Return the attributes that share memory, if `get_state` returned None because of them."""
        return self._why_no_state

    @exits_as_errors()
    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue from a state, saved with any number of processes.

        Args:
            state: result of `get_state`.
            obs_config: as in the reset.

        Raises:
            InvalidObservation: the state has another number of environments, or other spaces.
            EntityEnvError: an environment raises for its own state.
        """
        self.check_no_begun_step("set_state")
        episode_state.check_num_envs(state, len(self))
        if not all(map(episode_state.offers_state, self.matches)):
            return None
        sides, batch, frames = self.sides, episode_state.without_outcomes(state["frames"]), []
        episode_state.check_saved_state(state, len(self.matches), obs_config, self._action_space)
        counts: list[int] = state["episodes"].tolist()
        if state["seed"] is not None:
            self.seed(state["seed"], counts)
        self._seed, self._episodes = state["seed"], counts[::sides]
        self._steps = state["steps"].copy()
        self._tracker.begin()
        if "arguments" in state or self._arguments is not None:
            self._arguments = self._arguments or [{} for _ in self.matches]
            for i, arguments in enumerate(state.get("arguments", [{}] * len(self.matches))):
                self._set_arguments(i, dict(arguments))
        for i, match in enumerate(self.matches):
            saved = state["matches"][i].values.tobytes()
            tables = self._tracker.tables[i * sides : (i + 1) * sides]
            try:
                frames += episode_state.restore_match(match, saved, batch, i * sides, tables)
            except Exception as error:
                raise self._state_error("set_state", error, i) from error
        Frames(frames, [*obs_config.entities], batch.features, batch.visible).check_ids()
        # Decode some actions, to check that every actor has an id.
        chosen = episode_state.first_choices(batch.action_masks, self._action_space)
        unbatch_actions(chosen, batch, frames, obs_config, self._action_space)
        if self._tracker.types:
            self._tracker.update(batch, frames)
        self._last = frames, batch, obs_config
        return batch

    def world_code(self) -> dict[str, str]:
        """Return digests of the source of the environments' classes."""
        return self._code

    def process_times(self) -> list[ProcessTimes]:
        """Return the time and memory that this process has used."""
        return [times_of_this_process(self._world_ns / 1e9, self._made_ns / 1e9)]

    @exits_as_errors()
    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Render all matches, (matches, height, width, 3) uint8."""
        return np.stack([match.render(**kwargs) for match in self.matches])

    def close(self) -> None:
        """Close every environment, even if closing one of them raises. Safe to call twice."""
        failed: BaseException | None = None
        while self.matches:
            match = self.matches.pop()
            try:
                with in_environment(self._index(len(self.matches))):
                    match.close()
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _step_matches(self, chosen: SideActions, obs_filter: ObsSpace) -> list[Observation]:
        """Step all matches, and return the observations of all sides."""
        filtering = obs_filter != self._obs_space or any(m.filters_itself for m in self.matches)
        # Call environments directly: a call through `Solo` may cost half of their step.
        envs: list[Any] = [match.env for match in self.matches if isinstance(match, Solo)]
        all_solo = len(envs) == len(chosen)
        acting: Sequence[Any] = chosen
        if not all_solo:
            envs = self.matches
            acting = [chosen[i : i + self.sides] for i in range(0, len(chosen), self.sides)]
        answers: list[Any] = []
        start_ns = time.perf_counter_ns()
        try:
            if filtering:
                for i, (env, actions) in enumerate(zip(envs, acting, strict=True)):
                    answers.append(env.act_filter(actions, self._filter_for(i, obs_filter)))
            else:
                for env, actions in zip(envs, acting, strict=True):
                    answers.append(env.act(actions))
        except BaseException as error:
            raise self._locate(error, len(answers) * self.sides)  # noqa: B904 (has its cause)
        self._world_ns += time.perf_counter_ns() - start_ns
        # Check that all sides of all matches returned an observation.
        if all_solo:
            answers = [[o] for o in answers]
        outcomes = list(chain.from_iterable(answers))
        kinds = set(map(type, outcomes))
        if {*map(len, answers)} == {self.sides} and all(issubclass(k, Observation) for k in kinds):
            return outcomes
        for i, answer in enumerate(answers):
            if len(answer) != self.sides or not all(isinstance(o, Observation) for o in answer):
                what = "an Observation" if self.sides == 1 else f"{self.sides} Observations"
                got = answer[0] if self.sides == 1 else answer
                raise self._locate(unexpected(None, "act", what, repr(got)), i * self.sides)
        raise AssertionError

    def _reset_matches(self, which: Sequence[int], space: ObsSpace) -> Iterator[list[Observation]]:
        """Reset each match; repeat if its episode is over at once."""
        if len(which) == 0:
            return
        # Seed of an episode: hash of the run's seed, "episode", the match and its episode number.
        seeds: Sequence[int | None] = [None] * len(which)
        if self._seed is not None:
            numbers = self.first_env_index // self.sides + np.array(which)
            episodes = np.array(self._episodes)[which]
            seeds = derive_seeds(self._seed, "episode", numbers, episodes)
        for i, seed in zip(which, seeds, strict=True):
            game, episode = self._index(i) // self.sides, self._episodes[i]
            self._episodes[i] += 1
            if self._arguments is not None:
                self._set_arguments(i, self._variation.arguments(self._seed or 0, game, episode))
            match = self.matches[i]
            for attempt in range(_ATTEMPTS):
                if self._seed is not None and attempt:
                    seed = derive_seed(self._seed, "episode", game, episode, attempt)
                if seed is not None:
                    match.seed(seed)
                # Measure the time of the environment's code, and check its frames.
                try:
                    start_ns = time.perf_counter_ns()
                    frames = match.reset_filter(self._filter_for(i, space))
                    self._world_ns += time.perf_counter_ns() - start_ns
                    for o in frames:
                        if not isinstance(o, Observation):
                            raise InvalidObservation(f"reset: expected an Observation, got {o!r}")
                    # All sides begin together; if all are over at once, reset again.
                    done = [o.done for o in frames]
                    if done == [False] * self.sides:
                        break
                    if done != [True] * self.sides or attempt == _ATTEMPTS - 1:
                        got = f"{done}, {_ATTEMPTS} times in a row" if all(done) else done
                        expected = "False for all sides after a reset"
                        raise unexpected(None, "done", expected, got)
                except BaseException as error:
                    raise self._locate(error, i * self.sides, begins=True)  # noqa: B904 (as above)
            yield frames

    def _filter_for(self, i: int, space: ObsSpace) -> ObsSpace:
        """Return the filter for a match, as a separate copy if the match applies it."""
        match = self.matches[i]
        if not match.filters_itself and type(match).act_filter in _FILTERS:
            return space
        self._filters[i] = copy_of_filter(space, self._filters.get(i))
        return self._filters[i]

    def _set_arguments(self, i: int, arguments: dict[str, Any]) -> None:
        """Pass the arguments of an episode to a match, or replace it by one made with them.

        Raises:
            InvalidSampler: the environment rejects them.
        """
        assert self._arguments is not None
        env = world_of(self.matches[i])
        previous, self._arguments[i] = self._arguments[i], arguments
        if not previous and not arguments:
            return
        start_ns, new = time.perf_counter_ns(), None
        values = copy_containers(arguments)  # the environment may change lists and objects
        try:
            with exits_as_errors():
                setter = getattr(env, "set_parameters", None)
                if callable(setter) and arguments.keys() >= previous.keys():
                    setter(**values)
                    self._world_ns += time.perf_counter_ns() - start_ns
                    return
                new = match_of(self._create_env(**values))
                if new.num_sides != self.sides:
                    raise unexpected(None, "num_sides", str(self.sides), new.num_sides)
                check_same_spaces(
                    (self._obs_space, self._action_space),
                    (new.obs_space(), new.action_space()),
                    f"with the arguments {arguments}",
                )
        except Exception as error:
            if new is not None:
                new.close()
            where = f"environment {self._index(i)}, episode {self._episodes[i] - 1}"
            what = one_line(error)
            if not isinstance(error, InvalidSampler):
                what = f"{type(env).__name__} does not take {arguments}: {what}"
            raise InvalidSampler(f"{where}: {what}") from error
        old, self.matches[i] = self.matches[i], new
        with in_environment(self._index(i)):
            old.close()
        self._made_ns += time.perf_counter_ns() - start_ns

    def _read_outcomes(self, obs: list[Observation], space: ObsSpace) -> Outcomes:
        """Copy the outcomes of a step, before resets overwrite them."""
        try:
            outcomes = batch_outcomes(obs, space, self._action_space)
            if self._tracker.types and outcomes.final is not None:
                self._tracker.number_last(outcomes.final, outcomes.truncated, obs)
        except InvalidObservation as error:
            raise self._locate(error, error.env_index or 0)  # noqa: B904 (as above)
        return outcomes

    def _batch_frames(
        self, frames: list[Observation], outcomes: Outcomes | None, space: ObsSpace
    ) -> VecObs:
        try:
            batch = batch_obs(frames, space, self._action_space, outcomes, strict=self.validate)
            if self.validate:
                check_finite_batch(batch, space)
            if self._tracker.types:
                self._tracker.update(batch, frames)
        except InvalidObservation as error:
            i = error.env_index or 0
            begins = outcomes is not None and bool(outcomes.done[i])
            is_last_step = str(error.args[0]).startswith(_LAST_STEP_FIELDS)
            raise self._locate(error, i, prior=begins and is_last_step, begins=begins)  # noqa: B904 (as above)
        self._last = frames, batch, space
        return batch

    def _index(self, match: int) -> int:
        """Return the index of the first side of a match among all environments of the run."""
        return self.first_env_index + match * self.sides

    def _locate(
        self, error: BaseException, i: int, prior: bool = False, begins: bool = False
    ) -> BaseException:
        """Return the exception to raise, with the environment, its episode and step.

        Args:
            error: raised by the environment, or by a check of its observation.
            i: index of the environment.
            prior: it occurred in the episode before the running one.
            begins: the running episode begins in this step.
        """
        index, episode = self.first_env_index + i, self._episodes[i // self.sides] - 1 - prior
        step = 0 if begins and not prior else int(self._steps[i])
        arguments = None if prior or self._arguments is None else self._arguments[i // self.sides]
        drawn = f", with {arguments}" if arguments else ""
        if isinstance(error, InvalidObservation):
            error.env_index, error.episode, error.step = index, episode, step
            error.args = (f"{error.args[0]}{drawn}",)
        else:
            error = as_error(error)
            error.add_note(f"in environment {index}, episode {episode}, step {step}{drawn}")
        return error

    def _state_error(self, method: str, error: Exception, i: int) -> EntityEnvError:
        """Return the error for a match that raised in `get_state` or `set_state`."""
        name = type(world_of(self.matches[i])).__name__
        what = str(error).removeprefix(f"{method}: ")
        if not isinstance(error, EntityEnvError):
            what = f"{type(error).__name__}: {error}"
        where = f"environment {self._index(i)} ({name})"
        fix = "correct the method, or remove it; resumed runs then begin new episodes"
        return EntityEnvError(f"{where}: {method}: {what}; {fix}")
