"""Play with random legal actions, and a report of everything that is wrong with the answers."""

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

_WIDEST = 400  # characters of a finding that are printed: masks can be large
_FIXES = (  # pattern of a message, and the remedy
    (r"to be one of \d+ labels", "give one of the labels of the space, or its index"),
    (r"to be False or True", "give False or True, or 0 or 1"),
    (r"names that are text", "give text, such as 'score', that can be written to a file"),
    (r"finite numbers", "look for divisions by zero and for values that are never set"),
    (r"^\w*features.*expected", "give one row per entity and one number per feature of the space"),
    (r"^(entities|visible|ids): .*types", "name the type in obs_space(), or leave it out here"),
    (r"expected (a sequence of )?\d+ ids", "give one id per row of features, in the same order"),
    (r"list or another sequence", "give a list: sets and dictionaries are no order of rows"),
    (r"unique ids", "ids must differ between all entities of a frame, also of different types"),
    (r"expected each (entity|type) once", "name every entity once"),
    (r"expected other ids", "entities of a type without ids are called (type, row)"),
    (r"hashable", "use numbers, strings or tuples as ids"),
    (r"expected ids among", "entities of a type without ids are called (type, row)"),
    (r"(actors|actees): expected types", "name types of obs_space()"),
    (r"is invisible", "leave hidden entities out of actions, or show them"),
    (r"^actions: ", "name the action in action_space(), or leave it out here"),
    (r"expected an? \w+Mask", "use the mask that belongs to the action's space"),
    (r"mask: expected shape", "give each actor one flag per choice or actee, in the space's order"),
    (r"expected booleans", "use True where something is allowed or visible, False elsewhere"),
    (r"expected \d+ flags", "give one flag per row of features"),
    (r"expected a number", "give one Python number"),
    (r"expected an Observation", "return an Observation from reset and act"),
    (r"got both|contradicts", "say it in one way only"),
    (r"expected (a dictionary|True or False)", "set it in the constructor of Observation"),
    (r"documentation", "see the docstring of Observation for what this field can be"),
)


@dataclass
class Finding:
    """A problem or remark.

    Attributes:
        field: a part of the observation, or a method.
        text: what was expected and what came.
        fix: the remedy.
        where: the episode and step where it occurred first.
        count: the number of times that it occurred.
    """

    field: str
    text: str
    fix: str
    where: str = ""
    count: int = 1

    @property
    def kind(self) -> tuple[str, str]:
        """Equal for findings that differ only in numbers and names."""
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
        remarks: legal behaviour that may not be intended.
        episodes: the number of episodes that were begun.
        steps: the number of their steps.
    """

    name: str
    problems: list[Finding] = field(default_factory=list)
    remarks: list[Finding] = field(default_factory=list)
    episodes: int = 0
    steps: int = 0

    @property
    def ok(self) -> bool:
        """There are no problems."""
        return not self.problems

    def problem(self, field: str, text: str, fix: str, where: str = "") -> None:
        """Add a problem, or count one that is known."""
        _add(self.problems, Finding(field, text, fix, where))

    def remark(self, field: str, text: str, fix: str, where: str = "") -> None:
        """Add a remark, or count one that is known."""
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
        """Raise if there are problems.

        Raises:
            EntityEnvError: with the whole report.
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
    known = next((finding for finding in findings if finding.kind == new.kind), None)
    if known is None:
        findings.append(new)
    else:
        known.count += 1


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


Fields: TypeAlias = dict[str, bytes]
"""The content of a batch, by the name of the field."""
Trace: TypeAlias = list[tuple[str, Fields]]
"""The episode and step of each frame, and its content."""

_LARGE = 1e4  # numbers larger than this get a remark
_FEW_FRAMES = 5  # fewer frames in which no entity comes back get none


def random_choices(batch: VecObs, action_space: ActionSpaces, rng: np.random.Generator) -> Choices:
    """Return uniformly random legal choices for a batch, as `VecEnv.act` takes them."""
    return choose_parts(
        batch.action_masks,
        action_space,
        lambda name, mask: action_space[name].random_choices(mask, rng),
    )


def fields_of(batch: VecObs) -> Fields:
    """Return the content of a batch by field, for comparisons."""
    rows: dict[str, Ragged | None] = {}
    rows |= {f"features of {name!r}": block for name, block in batch.features.items()}
    rows |= {f"kinds of {name!r}": labels for name, labels in batch.kinds.items()}
    rows |= {f"visible[{name!r}]": flags for name, flags in batch.visible.items()}
    for name, mask in batch.action_masks.items():
        parts = {**vars(mask), "after": None if mask.after is None else mask.after.rows}
        rows |= {f"actions[{name!r}] {part}": ragged for part, ragged in parts.items()}
    rows |= {f"metrics[{name!r}]": values for name, values in batch.env_metrics.items()}
    given = {name: block for name, block in rows.items() if block is not None}
    fields = {name: b.values.tobytes() + b"|" + b.lengths.tobytes() for name, b in given.items()}
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
    """End of an episode or check that cannot continue; its cause has been reported."""


class Player:
    """Player of one environment, by default at random, which reports all that is wrong with it."""

    def __init__(
        self, match: Match, spaces: Spaces, report: Report, seed: int, max_steps: int
    ) -> None:
        self.match, self.report, self.seed, self.max_steps = match, report, seed, max_steps
        self.obs_space, self.action_space = self.spaces = spaces
        self.trace: Trace = []
        self.actions: list[list[dict[ActionName, Action]]] = []
        # Smallest and largest number of each field and feature, and the place of a large one.
        self._ranges: dict[tuple[str, str], tuple[float, float, str]] = {}
        # Ids shown in the episode by side and type, and frames in which none of a type came back.
        self._shown_ids: dict[tuple[int, str], set[Any]] = {}
        self._new_ids: dict[str, int] = {}
        self._known_ids: set[str] = set()

    def play(self, episodes: int, before_act: Callable[[int], None] = lambda step: None) -> Trace:
        """Play episodes and return the place and the content of each frame."""
        self.trace, self.actions = [], []
        for episode in range(episodes):
            self.report.episodes += 1
            with contextlib.suppress(Stop):
                self._play_episode(episode, before_act)
        for (part, name), (low, high, where) in self._ranges.items():
            if where:
                came = f"always {low:g}" if low == high else f"from {low:g} to {high:g}"
                text = f"expected {name} to be of moderate size, got numbers {came}"
                fix = "scale it to about 1, or leave it out if it is constant"
                self.report.remark(part, text, fix, where)
        for name in sorted(self._new_ids.keys() - self._known_ids):
            text = "got ids that are new in every frame, by which no entity is known again"
            fix = "give an entity the same id in all frames of an episode, or leave ids out"
            if self._new_ids[name] >= _FEW_FRAMES:
                self.report.remark(f"ids[{name!r}]", text, fix, f"{self.report.steps} steps")
        return self.trace

    def begin(self, episode: int, where: str) -> None:
        """Prepare the choices of an episode."""
        self._rng = np.random.default_rng(derive_seed(self.seed, "choices", episode))

    def choose(self, frames: Sequence[Observation], batch: VecObs, where: str) -> Choices:
        """Return legal choices of all sides.

        Args:
            frames: valid observations, one of each side.
            batch: the same, with features of 0.
            where: the place, for messages.

        Raises:
            Stop: there are none; the cause has been reported.
        """
        return random_choices(batch, self.action_space, self._rng)

    def _play_episode(self, episode: int, before_act: Callable[[int], None]) -> None:
        # Begin the episode.
        where = f"episode {episode}, step 0"
        seed = derive_seed(self.seed, "episode", episode)
        answer(self.report, "seed", where, self.match.seed, seed)
        frames = answer(self.report, "reset", where, self.match.reset)
        self._shown_ids = {}
        batch = self._check_answer(frames, "reset", where)
        if any(o.done for o in frames):
            text = "expected an episode that begins, got one that is over"
            self.report.problem("done", text, "return done=False from reset", where)
            return
        self.begin(episode, where)
        # Take steps until it ends.
        for step in range(1, self.max_steps + 1):
            before_act(step - 1)
            choices = self.choose(frames, batch, where)
            blanks = [_blank_features(o, self.obs_space) for o in frames]
            actions = unbatch_actions(choices, batch, blanks, *self.spaces)
            self.actions.append([_copied(of_side) for of_side in actions])
            self.report.steps += 1
            where = f"episode {episode}, step {step}"
            frames = answer(self.report, "act", where, self.match.act, actions)
            batch = self._check_answer(frames, "act", where)
            over = [o.done for o in frames]
            if any(over) != all(over):
                text = f"expected {len(over)} sides that end together, got {over}"
                self.report.problem("done", text, "end the episode for all sides at once", where)
            if any(over):
                return

        # It did not end.
        text = f"got no end of the episode within {self.max_steps} steps"
        fix = "end it with truncated=True after a number of steps"
        self.report.remark("done", text, fix, where)

    def _check_answer(self, frames: Any, method: str, where: str) -> VecObs:
        """Report what is wrong with an answer, and return a batch to choose actions for."""
        num_sides = self.match.num_sides
        if not isinstance(frames, list | tuple) or len(frames) != num_sides:
            came = f"{len(frames)}" if isinstance(frames, list | tuple) else type(frames).__name__
            text = f"expected a list of {num_sides} observations, got {came}"
            self.report.problem(method, text, "return one observation for each side", where)
            raise Stop
        # Each field of each side.
        for side, obs in enumerate(frames):
            at = where if num_sides == 1 else f"{where}, side {side}"
            for message in _field_messages(obs, self.spaces):
                self.report.problem_of(message, at)
        if any(map(_malformed, frames)):
            raise Stop
        self.trace.append((where, shown_by(frames, self.spaces)))
        try:
            blanks = [_blank_features(o, self.obs_space) for o in frames]
            batch = batch_obs(blanks, *self.spaces, strict=True)
        except Exception:  # whatever it is has been reported
            raise Stop from None
        for side, obs in enumerate(frames):
            for name in filter(is_computed, filter(is_text, obs.metrics)):
                text = "expected another name, as this one is computed for every environment"
                fix = f"rename it, to {'env_' + name!r}; it is logged as {free_name(name)!r}"
                self.report.problem(f"metrics[{name!r}]", text, fix, where)
            self._track_numbers(obs, where)
            self._track_ids(side, obs)
        # Masks that allow nothing.
        for name, mask in batch.action_masks.items():
            for obs, count in zip(frames, mask.actors.lengths, strict=True):
                given = getattr(obs.actions.get(name), "mask", None)
                if not count and np.size(given if given is not None else ()) and not obs.done:
                    text = "got a mask under which nobody can do anything; the action is left out"
                    fix = "leave the action out of the observation, or allow something"
                    self.report.remark(f"actions[{name!r}].mask", text, fix, where)
        return batch

    def _track_ids(self, side: int, obs: Observation) -> None:
        """Note if entities of a type come back in later frames of an episode."""
        for name, ids in obs.ids.items():
            if ids is None or not len(ids):
                continue
            shown = self._shown_ids.setdefault((side, name), set())
            if not shown.isdisjoint(ids):
                self._known_ids.add(name)
            elif shown:
                self._new_ids[name] = self._new_ids.get(name, 0) + 1
            shown.update(ids)

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
            except Exception:  # whatever it is has been reported
                continue
            for name, column in zip(names, columns, strict=True):
                column = column[np.isfinite(column)]
                if column.size:
                    low, high = column.min(), column.max()
                    known = self._ranges.get((part, name), (low, high, ""))
                    first = known[2] or (where if max(-low, high) > _LARGE else "")
                    self._ranges[part, name] = min(low, known[0]), max(high, known[1]), first


def answer(report: Report, field: str, where: str, method: Callable[..., Any], *args: Any) -> Any:
    """Call a method and return its answer; report an exception as a problem.

    Raises:
        Stop: the method raised.
    """
    try:
        return method(*args)
    except InvalidObservation as error:
        report.problem_of(ValueError.__str__(error), where)  # without environment and step
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, which would end the check
        text, fix = f"expected an answer, got {type(error).__name__}: {error}", "see the message"
        for last in traceback.extract_tb(error.__traceback__)[1:][-1:]:
            text += f" ({Path(last.filename).name}, line {last.lineno}, in {last.name})"
            fix = f"the traceback ends in this line: {last.line}"
        report.problem(field, text, fix, where)
    raise Stop


def _copied(actions: Mapping[ActionName, Action]) -> dict[ActionName, Action]:
    """Return a copy of actions, which environments may change as they act."""
    own = {name: copy.copy(action) for name, action in actions.items()}
    for action in own.values():
        parts = vars(action).items()
        vars(action).update({n: part.copy() for n, part in parts if hasattr(part, "copy")})
    return own


def _field_messages(obs: Any, spaces: Spaces) -> list[str]:
    """Return the messages about an observation, each field checked by itself."""
    # All at once: nothing is wrong with most observations.
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

    # Values that refer to nothing else.
    fits("global_features", global_features=obs.global_features)
    fits("reward", reward=obs.reward)
    for name, value in obs.metrics.items():
        fits(f"metrics[{name!r}]", metrics={name: value})
    for name, block in obs.features.items():
        fits(f"features of {name!r}", features={name: block})
    # Visibility, ids and actions refer to entities, and actions to their ids.
    features = _blank_features(obs, spaces.obs_space).features
    if features.keys() != obs.features.keys():
        return list(messages)  # what refers to entities cannot be checked without them
    visible = {}
    for name, flags in obs.visible.items():
        if fits(f"visible[{name!r}]", features=features, visible={name: flags}):
            visible[name] = flags
    each = [fits(f"ids[{n!r}]", features=features, ids={n: ids}) for n, ids in obs.ids.items()]
    known = all(each) and fits("ids", features=features, ids=obs.ids)
    ids = obs.ids if known else {}
    for name, mask in obs.actions.items():
        names_ids = any(getattr(mask, f, None) is not None for f in ("actor_ids", "actee_ids"))
        if known or not names_ids:
            one = {name: mask}
            fits(f"actions[{name!r}]", features=features, ids=ids, visible=visible, actions=one)
    return list(messages) or [message]


def _malformed(obs: Any) -> list[str]:
    """Return messages about fields of a type that does not allow further checks."""
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
    """Return what is wrong with an observation, "" if nothing is."""
    try:
        validate_observation(obs, spaces.obs_space, spaces.action_space)
    except InvalidObservation as error:
        return ValueError.__str__(error)  # without environment and step
    except Exception as error:
        return f"{field}: expected what its documentation says, got {error!r}"
    return ""


def _blank_features(obs: Observation, obs_space: ObsSpace) -> Observation:
    """Return the same entities and actions with features of 0: enough to choose actions."""
    features = {}
    for name, block in obs.features.items():
        if name in obs_space.entities and has_len(block):
            shape = len(block), len(obs_space.entities[name].columns)
            features[name] = np.zeros(shape, np.float32)
    blank = _blank_globals(obs_space)
    return Observation(features=features, ids=obs.ids, global_features=blank, actions=obs.actions)


def _blank_globals(obs_space: ObsSpace) -> list[float]:
    return [0.0] * len(obs_space.global_entity.columns)


def shown_by(frames: Sequence[Observation], spaces: Spaces) -> Fields:
    """Return the content of frames by field, {} if they cannot be batched."""
    try:
        return fields_of(batch_obs(frames, spaces.obs_space, spaces.action_space))
    except Exception:  # whatever it is has been reported
        return {}
