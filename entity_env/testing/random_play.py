"""Episodes with random legal actions, and a report of problems with the observations."""

import contextlib
import copy
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions import Action
from entity_env.actions.chains import choose_parts
from entity_env.environment import Observation
from entity_env.errors import EntityEnvError, InvalidObservation
from entity_env.match import Match
from entity_env.names import free_name, is_computed, is_text
from entity_env.ragged import Ragged
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionName, ActionSpaces, ObsSpace, Spaces
from entity_env.vec.batching import batch_obs, unbatch_actions
from entity_env.vec.frames import has_len
from entity_env.vec.validate import validate_observation
from entity_env.vec.vec_obs import Choices, VecObs

_WIDEST = 400  # maximum length of a printed finding, as masks can be large
_FIXES = (  # pattern of a message, and the fix
    (r"to be one of \d+ labels", "give one of the labels of the space, or its index"),
    (r"to be False or True", "give False or True, or 0 or 1"),
    (r"names that are text", "give text, such as 'score', that can be written to a file"),
    (r"finite numbers", "look for divisions by zero and values that are never set"),
    (r"^\w*features.*expected", "give one row per entity and one number per feature of the space"),
    (r"^(entities|visible|ids): .*types", "add the type to obs_space(), or remove it here"),
    (r"expected (a sequence of )?\d+ ids", "give one id per row of features, in the same order"),
    (r"list or another sequence", "give a list: sets and dictionaries have no order of rows"),
    (r"unique ids", "ids must be unique among all entities of a frame, also across types"),
    (r"expected each (entity|type) once", "name every entity once"),
    (r"expected other ids", "the id of an entity of a type without ids is (type, row)"),
    (r"hashable", "use numbers, strings or tuples as ids"),
    (r"expected ids among", "the id of an entity of a type without ids is (type, row)"),
    (r"(actors|actees): expected types", "use types of obs_space()"),
    (r"is invisible", "remove hidden entities from actions, or make them visible"),
    (r"^actions: ", "add the action to action_space(), or remove it here"),
    (r"expected an? \w+Mask", "use the mask class of the action space"),
    (r"mask: expected shape", "give each actor one flag per choice or actee, in the space's order"),
    (r"expected booleans", "use True for allowed or visible, otherwise False"),
    (r"expected \d+ flags", "give one flag per row of features"),
    (r"expected a number", "give one Python number"),
    (r"expected an Observation", "return an Observation from reset and act"),
    (r"got both|contradicts", "set only one of them"),
    (r"expected (a dictionary|True or False)", "set it in the constructor of Observation"),
    (r"documentation", "see the docstring of Observation for the values of this field"),
)


@dataclass
class Finding:
    """A problem or remark.

    Attributes:
        field: a part of the observation, or a method.
        text: the expected and the actual value.
        fix: how to fix it.
        where: the episode and step of the first occurrence.
        count: number of occurrences.
    """

    field: str
    text: str
    fix: str
    where: str = ""
    count: int = 1

    @property
    def kind(self) -> tuple[str, str]:
        """Key of equivalent findings, which differ only in numbers and names."""
        expected = self.text.split(", got ")[0]
        return self.field, re.sub(r"among .*|\(.*\)|(?<!\w)-?\d[\d.e+-]*", "#", expected)

    def __str__(self) -> str:
        times = f", {self.count} times in all" if self.count > 1 else ""
        where = f" ({self.where}{times})" if self.where else ""
        text = self.text if len(self.text) <= _WIDEST else f"{self.text[:_WIDEST]}..."
        return f"  {self.field}{where}: {text}" + (f"\n    -> {self.fix}" if self.fix else "")


@dataclass
class Report:
    """The report of `check_env`.

    Attributes:
        name: of the environment.
        problems: errors of the environment.
        remarks: legal behaviour that may be unintended.
        episodes: number of episodes.
        steps: number of steps of all episodes.
    """

    name: str
    problems: list[Finding] = field(default_factory=list)
    remarks: list[Finding] = field(default_factory=list)
    episodes: int = 0
    steps: int = 0

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    def problem(self, field: str, text: str, fix: str, where: str = "") -> None:
        """Add a problem, or increase the count of an equivalent one."""
        _add(self.problems, Finding(field, text, fix, where))

    def remark(self, field: str, text: str, fix: str, where: str = "") -> None:
        """Add a remark, or increase the count of an equivalent one."""
        _add(self.remarks, Finding(field, text, fix, where))

    def problem_of(self, message: str, where: str) -> None:
        """Add the message of an `InvalidObservation` as a problem."""
        message = message.replace("features of '__global__'", "global_features")
        field, colon, text = message.partition(": ")
        if not colon:
            field, text = "Observation", message
        fix = next((fix for pattern, fix in _FIXES if re.search(pattern, message)), "")
        self.problem(field, text, fix, where)

    def raise_if_bad(self) -> None:
        """Raise an exception with the report if there are problems.

        Raises:
            EntityEnvError: there are problems.
        """
        if not self.ok:
            raise EntityEnvError(str(self))

    def __str__(self) -> str:
        counts, lines = [], []
        for noun, findings in (("problem", self.problems), ("remark", self.remarks)):
            if findings:
                counts.append(_count(len(findings), noun))
                lines += [f"{noun}s:", *map(str, findings)]
        played = f"in {_count(self.episodes, 'episode')}, {_count(self.steps, 'step')}"
        first = f"{self.name}: {', '.join(counts) or 'nothing found wrong'} {played}"
        return "\n".join([first, *lines])


def _add(findings: list[Finding], new: Finding) -> None:
    existing = next((finding for finding in findings if finding.kind == new.kind), None)
    if existing is None:
        findings.append(new)
    else:
        existing.count += 1


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


Fields: TypeAlias = dict[str, bytes]
"""The content of a batch, by field."""
Trace: TypeAlias = list[tuple[str, Fields]]
"""The episode and step of each frame, and its content."""

_LARGE = 1e4  # threshold of the remark about large numbers
_FEW_FRAMES = 5  # minimum number of frames of the remark about new ids


def random_choices(batch: VecObs, action_space: ActionSpaces, rng: np.random.Generator) -> Choices:
    """Sample uniformly random legal choices for a batch, as arguments of `VecEnv.act`."""
    return choose_parts(
        batch.action_masks,
        action_space,
        lambda name, mask: action_space[name].random_choices(mask, rng),
    )


def fields_of(batch: VecObs) -> Fields:
    """Return the content of a batch by field, to compare batches."""
    rows: dict[str, Ragged | None] = {}
    rows |= {f"features of {name!r}": block for name, block in batch.features.items()}
    rows |= {f"kinds of {name!r}": labels for name, labels in batch.kinds.items()}
    rows |= {f"visible[{name!r}]": flags for name, flags in batch.visible.items()}
    for name, mask in batch.action_masks.items():
        parts = {**vars(mask), "after": None if mask.after is None else mask.after.rows}
        rows |= {f"actions[{name!r}] {part}": ragged for part, ragged in parts.items()}
    rows |= {f"metrics[{name!r}]": values for name, values in batch.env_metrics.items()}
    present = {name: block for name, block in rows.items() if block is not None}
    fields = {name: b.values.tobytes() + b"|" + b.lengths.tobytes() for name, b in present.items()}
    fields |= {name: getattr(batch, name).tobytes() for name in ("reward", "done", "truncated")}
    if len(batch.padding):
        fields["padding"] = batch.padding.tobytes()
    if batch.final is not None:
        fields |= {f"{name} at the end": what for name, what in fields_of(batch.final).items()}
    return fields


def differences(a: Fields, b: Fields) -> list[str]:
    """Return the names of the fields in which two batches differ."""
    return [name for name in a | b if a.get(name) != b.get(name)]


class Stop(Exception):  # noqa: N818 (ends an episode)
    """End of an episode or check that cannot continue; the problem is in the report."""


class Player:
    """Player of one environment that reports its problems; chooses randomly by default."""

    def __init__(
        self, match: Match, spaces: Spaces, report: Report, seed: int, max_steps: int
    ) -> None:
        self.match, self.report, self.seed, self.max_steps = match, report, seed, max_steps
        self.obs_space, self.action_space = self.spaces = spaces
        self.trace: Trace = []
        self.actions: list[list[dict[ActionName, Action]]] = []
        # Minimum, maximum and place of the first large number, by field and feature.
        self._ranges: dict[tuple[str, str], tuple[float, float, str]] = {}
        # Ids of the episode by side and type, and by type the number of frames with only new ids.
        self._seen_ids: dict[tuple[int, str], set[Any]] = {}
        self._new_ids: dict[str, int] = {}
        self._reappearing_types: set[str] = set()

    def play(self, episodes: int, before_act: Callable[[int], None] = lambda step: None) -> Trace:
        """Play episodes and return the trace of their frames.

        Args:
            episodes: number of episodes.
            before_act: called with the index of each step.
        """
        self.trace, self.actions = [], []
        for episode in range(episodes):
            self.report.episodes += 1
            with contextlib.suppress(Stop):
                self._play_episode(episode, before_act)
        for (part, name), (low, high, where) in self._ranges.items():
            if where:
                extent = f"always {low:g}" if low == high else f"from {low:g} to {high:g}"
                text = f"expected {name} to be of moderate size, got numbers {extent}"
                fix = "scale it to about 1, or remove it if it is constant"
                self.report.remark(part, text, fix, where)
        for name in sorted(self._new_ids.keys() - self._reappearing_types):
            text = "got ids that are new in every frame, so that no entity can be tracked"
            fix = "give an entity the same id in all frames of an episode, or remove the ids"
            if self._new_ids[name] >= _FEW_FRAMES:
                self.report.remark(f"ids[{name!r}]", text, fix, f"{self.report.steps} steps")
        return self.trace

    def begin(self, episode: int, where: str) -> None:
        """Seed the choices of an episode."""
        self._rng = np.random.default_rng(derive_seed(self.seed, "choices", episode))

    def choose(self, frames: Sequence[Observation], batch: VecObs, where: str) -> Choices:
        """Return legal choices of all sides.

        Args:
            frames: valid observations, one per side.
            batch: the same frames, with features of 0.
            where: the episode and step, for messages.

        Raises:
            Stop: there are no choices; the problem is in the report.
        """
        return random_choices(batch, self.action_space, self._rng)

    def _play_episode(self, episode: int, before_act: Callable[[int], None]) -> None:
        # Begin the episode.
        where = f"episode {episode}, step 0"
        seed = derive_seed(self.seed, "episode", episode)
        call(self.report, "seed", where, self.match.seed, seed)
        frames = call(self.report, "reset", where, self.match.reset)
        self._seen_ids = {}
        batch = self._check_observations(frames, "reset", where)
        if any(o.done for o in frames):
            text = "expected the start of an episode, got one that is over"
            self.report.problem("done", text, "return done=False from reset", where)
            return
        self.begin(episode, where)
        # Take steps until the end.
        for step in range(1, self.max_steps + 1):
            before_act(step - 1)
            choices = self.choose(frames, batch, where)
            blanks = [_with_blank_features(o, self.obs_space) for o in frames]
            actions = unbatch_actions(choices, batch, blanks, *self.spaces)
            self.actions.append([_copy_actions(side_actions) for side_actions in actions])
            self.report.steps += 1
            where = f"episode {episode}, step {step}"
            frames = call(self.report, "act", where, self.match.act, actions)
            batch = self._check_observations(frames, "act", where)
            done = [o.done for o in frames]
            if any(done) != all(done):
                text = f"expected {len(done)} sides that end together, got {done}"
                self.report.problem("done", text, "end the episode for all sides at once", where)
            if any(done):
                return

        # The episode did not end.
        text = f"got no end of the episode within {self.max_steps} steps"
        fix = "end it with truncated=True after a number of steps"
        self.report.remark("done", text, fix, where)

    def _check_observations(self, frames: Any, method: str, where: str) -> VecObs:
        """Report problems of the observations, and return their batch."""
        num_sides = self.match.num_sides
        if not isinstance(frames, list | tuple) or len(frames) != num_sides:
            got = f"{len(frames)}" if isinstance(frames, list | tuple) else type(frames).__name__
            text = f"expected a list of {num_sides} observations, got {got}"
            self.report.problem(method, text, "return one observation for each side", where)
            raise Stop
        # Each field of each side.
        for side, obs in enumerate(frames):
            at = where if num_sides == 1 else f"{where}, side {side}"
            for message in _field_messages(obs, self.spaces):
                self.report.problem_of(message, at)
        if any(map(_malformed, frames)):
            raise Stop
        self.trace.append((where, frame_contents(frames, self.spaces)))
        try:
            blanks = [_with_blank_features(o, self.obs_space) for o in frames]
            batch = batch_obs(blanks, *self.spaces, strict=True)
        except Exception:  # reported before
            raise Stop from None
        for side, obs in enumerate(frames):
            for name in filter(is_computed, filter(is_text, obs.metrics)):
                text = "expected another name, as a metric of this name is computed"
                fix = f"rename it, to {'env_' + name!r}; it is logged as {free_name(name)!r}"
                self.report.problem(f"metrics[{name!r}]", text, fix, where)
            self._track_numbers(obs, where)
            self._track_ids(side, obs)
        # Masks without legal choices; those of a dependent action forbid choices of its parent.
        for name, mask in batch.action_masks.items():
            if self.action_space[name].after is not None:
                continue
            for obs, count in zip(frames, mask.actors.lengths, strict=True):
                flags = getattr(obs.actions.get(name), "mask", None)
                if not count and np.size(flags if flags is not None else ()) and not obs.done:
                    text = "got a mask without legal choices; the action is ignored"
                    fix = "remove the action from the observation, or allow a choice"
                    self.report.remark(f"actions[{name!r}].mask", text, fix, where)
        return batch

    def _track_ids(self, side: int, obs: Observation) -> None:
        """Record which types have ids that reappear in later frames of an episode."""
        for name, ids in obs.ids.items():
            if ids is None or not len(ids):
                continue
            seen_ids = self._seen_ids.setdefault((side, name), set())
            if not seen_ids.isdisjoint(ids):
                self._reappearing_types.add(name)
            elif seen_ids:
                self._new_ids[name] = self._new_ids.get(name, 0) + 1
            seen_ids.update(ids)

    def _track_numbers(self, obs: Observation, where: str) -> None:
        blocks: dict[str, tuple[list[str], Any]] = {}
        for name, entity in self.obs_space.entities.items():
            blocks[f"features of {name!r}"] = entity.features, obs.features.get(name, ())
        blocks["global_features"] = (self.obs_space.global_features, [obs.global_features])
        blocks["reward"] = (["reward"], [[obs.reward]])
        for part, (names, block) in blocks.items():
            try:
                numbers = [row[: len(names)] for row in block]  # without labels
                columns = np.asarray(numbers, dtype=np.float64).reshape(-1, len(names)).T
            except Exception:  # reported before
                continue
            for name, column in zip(names, columns, strict=True):
                column = column[np.isfinite(column)]
                if column.size:
                    low, high = column.min(), column.max()
                    previous = self._ranges.get((part, name), (low, high, ""))
                    first = previous[2] or (where if max(-low, high) > _LARGE else "")
                    self._ranges[part, name] = min(low, previous[0]), max(high, previous[1]), first


def call(report: Report, field: str, where: str, method: Callable[..., Any], *args: Any) -> Any:
    """Call a method and return its result; report an exception as a problem.

    Raises:
        Stop: the method raised.
    """
    try:
        return method(*args)
    except InvalidObservation as error:
        report.problem_of(ValueError.__str__(error), where)  # without environment and step
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # including SystemExit
        text, fix = f"expected a result, got {type(error).__name__}: {error}", "see the message"
        for last in traceback.extract_tb(error.__traceback__)[1:][-1:]:
            text += f" ({Path(last.filename).name}, line {last.lineno}, in {last.name})"
            fix = f"the last line of the traceback is: {last.line}"
        report.problem(field, text, fix, where)
    raise Stop


def _copy_actions(actions: Mapping[ActionName, Action]) -> dict[ActionName, Action]:
    """Copy actions, as environments may modify them."""
    copies = {name: copy.copy(action) for name, action in actions.items()}
    for action in copies.values():
        parts = vars(action).items()
        vars(action).update({n: part.copy() for n, part in parts if hasattr(part, "copy")})
    return copies


def _field_messages(obs: Any, spaces: Spaces) -> list[str]:
    """Return messages for all invalid fields of an observation."""
    # Fast path: most observations are valid.
    if malformed := _malformed(obs):
        return malformed
    message = _first_message("Observation", obs, spaces)
    if not message:
        return []
    blank = _blank_globals(spaces.obs_space)
    messages: dict[str, None] = {}

    def fits(field: str, **fields: Any) -> bool:
        piece = Observation(**{"global_features": blank, **fields})
        if message := _first_message(field, piece, spaces):
            messages[message] = None
        return not message

    # Fields without references to others.
    fits("global_features", global_features=obs.global_features)
    fits("reward", reward=obs.reward)
    for name, value in obs.metrics.items():
        fits(f"metrics[{name!r}]", metrics={name: value})
    for name, block in obs.features.items():
        fits(f"features of {name!r}", features={name: block})
    # Visibility, ids and actions refer to entities, and actions to their ids.
    features = _with_blank_features(obs, spaces.obs_space).features
    if features.keys() != obs.features.keys():
        return list(messages)  # other fields refer to invalid entities
    visible = {}
    for name, flags in obs.visible.items():
        if fits(f"visible[{name!r}]", features=features, visible={name: flags}):
            visible[name] = flags
    valid = [fits(f"ids[{n!r}]", features=features, ids={n: ids}) for n, ids in obs.ids.items()]
    ids_valid = all(valid) and fits("ids", features=features, ids=obs.ids)
    ids = obs.ids if ids_valid else {}
    for name, mask in obs.actions.items():
        names_ids = any(getattr(mask, f, None) is not None for f in ("actor_ids", "actee_ids"))
        if ids_valid or not names_ids:
            single = {name: mask}
            fits(f"actions[{name!r}]", features=features, ids=ids, visible=visible, actions=single)
    return list(messages) or [message]


def _malformed(obs: Any) -> list[str]:
    """Return messages for fields of a wrong type, which prevent further checks."""
    if not isinstance(obs, Observation):
        return [f"expected an Observation, got {type(obs).__name__}"]
    dictionaries = "features", "ids", "actions", "visible", "metrics"
    kinds: dict[str, tuple[Any, str]] = dict.fromkeys(dictionaries, (Mapping, "a dictionary"))
    kinds |= dict.fromkeys(("terminated", "truncated"), (bool | np.bool_, "True or False"))
    return [
        f"{field}: expected {what}, got {value!r}"
        for field, (kind, what) in kinds.items()
        if not isinstance(value := getattr(obs, field), kind)
    ]


def _first_message(field: str, obs: Any, spaces: Spaces) -> str:
    """Return the error message of an observation, "" if it is valid."""
    try:
        validate_observation(obs, spaces.obs_space, spaces.action_space)
    except InvalidObservation as error:
        return ValueError.__str__(error)  # without environment and step
    except Exception as error:
        return f"{field}: expected a value as in its documentation, got {error!r}"
    return ""


def _with_blank_features(obs: Observation, obs_space: ObsSpace) -> Observation:
    """Return the same entities and actions with features of 0, which suffice to choose actions."""
    features = {}
    for name, block in obs.features.items():
        if name in obs_space.entities and has_len(block):
            shape = len(block), len(obs_space.entities[name].columns)
            features[name] = np.zeros(shape, np.float32)
    blank = _blank_globals(obs_space)
    return Observation(features=features, ids=obs.ids, global_features=blank, actions=obs.actions)


def _blank_globals(obs_space: ObsSpace) -> list[float]:
    return [0.0] * len(obs_space.global_entity.columns)


def frame_contents(frames: Sequence[Observation], spaces: Spaces) -> Fields:
    """Return the content of frames by field, {} if they are invalid."""
    try:
        return fields_of(batch_obs(frames, spaces.obs_space, spaces.action_space))
    except Exception:  # whatever it is has been reported
        return {}
