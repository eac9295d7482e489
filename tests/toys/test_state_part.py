"""A custom part of the state: curriculum stages, chosen by their scores."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from enn_trainer import (
    Callback,
    CheckpointError,
    ConfigError,
    State,
    StateManager,
    init_train_state,
    load_agent,
    load_checkpoint,
    train,
)
from enn_trainer.base.state_part import SpaceChange, StateDict, StatePart, UnusedPart
from enn_trainer.checkpoints.format import Checkpoint
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.checkpoints.saved_state import REST_VERSION
from enn_trainer.checkpoints.state import COMMON_PARTS
from enn_trainer.curriculum.rounds import ROUNDS
from enn_trainer.testing import check_state_part
from entity_env import Entity, Environment, Observation
from entity_env.serialization.messages import pack, unpack
from tests.soak.small_saves import write_whole
from tests.toys.world import (
    Lane,
    assert_resumes_to_the_bit,
    assert_same,
    everything,
    manager_of,
    newest,
    run,
)

REST, PARTS = "state.rest.msgpack", "state.parts.safetensors"


class Lessons(StatePart):
    """How well each lesson went.

    Attributes:
        scores: (3,) float32, by lesson; infinite before the first try.
        tried: (3,) int64, changed in place.
        notes: plain data.
    """

    def __init__(self) -> None:
        self.scores = torch.full((3,), float("-inf"))
        self.tried = torch.zeros(3, dtype=torch.int64)
        self.notes: dict[str, Any] = {
            "actions": {"roll/all": 0},
            "history": [],
            "share": 0.1,
            "best": None,
            "title": "rolling",
            "is over": False,
            "large": 2**70,
            "raw": b"\0\xff",
        }

    def add(self, lesson: int, score: float) -> None:
        """Add the score of a lesson."""
        self.scores[lesson] = score
        self.tried[lesson] += 1
        self.notes["actions"]["roll/all"] += 1
        self.notes["history"].append([lesson, {"score": score}])
        self.notes["best"] = {"lesson": int(self.scores.argmax())}

    def state_dict(self) -> StateDict:
        """Return scores, counts and notes: the objects themselves."""
        return {"scores": self.scores, "tried": self.tried, **self.notes}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over the tensors, and the notes into the old dict."""
        notes = dict(state)
        self.scores = notes.pop("scores", self.scores)
        self.tried = notes.pop("tried", self.tried)
        self.notes["history"].clear()
        self.notes["history"].extend(notes.pop("history", []))
        self.notes.update(notes)

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Rename the actions."""
        actions = {change.action(name): n for name, n in state["actions"].items()}
        return {**state, "actions": actions}


class Teaches(Callback):
    """Gives the lessons in turn."""

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        """Score a lesson."""
        number = trainer.state.step // 16
        trainer.state.parts["lessons"].add(number % 3, metrics["losses/value_loss"])


def with_lessons(config: Any, ctx: dict[str, Any]) -> State:
    """Return the state of a new run with lessons."""
    state = init_train_state(config, ctx)
    state.parts["lessons"] = Lessons()
    return state


def lessons_of(state: State) -> Lessons:
    lessons = state.parts["lessons"]
    assert isinstance(lessons, Lessons)
    return lessons


def taught(folder: Path, frames: int, **options: Any) -> StateManager:
    """Return the manager of a run with lessons."""
    initial = options.pop("initial_state", with_lessons)
    manager = manager_of(folder, f"total_timesteps={frames}", initial_state=initial, **options)
    train(manager, Lane, callbacks=[Teaches()])
    return manager


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A save after two lessons."""
    folder = tmp_path_factory.mktemp("lessons")
    taught(folder, 32, checkpoint_dir=folder / "run")
    return newest(folder / "run")


def changed(saved: Checkpoint, folder: Path, name: str, content: bytes) -> Path:
    """Return a copy of a save with another content of a file, and hashes that are right."""
    files = {file.name: file.read_bytes() for file in saved.path.iterdir()}
    path = folder / saved.path.name
    shutil.copytree(saved.path, path)
    write_whole(path, files, name, content)
    return path


def test_state_part_passes_the_conformance_test() -> None:
    lessons = Lessons()
    lessons.add(1, 0.5)
    check_state_part(lessons, Lessons())


@pytest.mark.slow
def test_state_part_resumes_bit_for_bit(tmp_path: Path) -> None:
    straight = taught(tmp_path, 80)
    for frames in (48, 80):
        resumed = taught(tmp_path, frames, checkpoint_dir=tmp_path / "parts")
    assert_same(everything(straight.state), everything(resumed.state))
    assert lessons_of(resumed.state).tried.tolist() == [1, 2, 2]
    assert repr(lessons_of(resumed.state).notes) == repr(lessons_of(straight.state).notes)
    assert_resumes_to_the_bit(tmp_path / "untaught", with_lessons)


def test_saves_do_not_change_with_the_run(saved: Checkpoint, tmp_path: Path) -> None:
    manager = manager_of(tmp_path, initial_state=with_lessons, init_path=saved.path)
    state = manager.state
    before = copy.deepcopy(lessons_of(state).notes)
    contents = manager._copy_state()
    lessons_of(state).add(0, 9.0)
    assert lessons_of(state).notes != before
    tensors: Any = contents[PARTS]
    assert tensors["lessons/tried"].tolist() == [0, 1, 1]
    rest: Any = contents[REST]
    assert unpack(rest)["parts"]["lessons"] == before


def test_moving_to_a_device_keeps_everything(saved: Checkpoint, tmp_path: Path) -> None:
    manager = manager_of(tmp_path, initial_state=with_lessons, init_path=saved.path)
    before = everything(manager.state)
    manager.state.to(torch.device("cpu"))
    assert len(lessons_of(manager.state).notes["history"]) == 2
    assert_same(before, everything(manager.state))


def test_agents_load_without_the_state_part(saved: Checkpoint) -> None:
    frame: Observation = Lane().reset()
    assert "roll/all" in load_agent(saved.path).act(frame).actions


def test_resuming_without_the_state_part_raises(saved: Checkpoint, tmp_path: Path) -> None:
    message = "has a state of lessons, which this run does not have; .* initial_state that makes it"
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, 48, init_path=saved.path)
    with pytest.raises(CheckpointError, match=message):
        _ = load_checkpoint(saved.path).state
    with pytest.raises(CheckpointError, match=message):
        evolve(saved, Lane().obs_space(), Lane().action_space())


def test_state_part_can_be_added_to_a_resumed_run(tmp_path: Path) -> None:
    run(tmp_path, 16, checkpoint_dir=tmp_path / "run")
    state = taught(tmp_path, 32, checkpoint_dir=tmp_path / "run").state
    assert lessons_of(state).tried.tolist() == [0, 0, 1]


class Glide(Lane):
    """The lane with another name of the action, and wind."""

    def __init__(self) -> None:
        super().__init__(wind=True)

    def action_space(self) -> dict[str, Any]:
        """Every cart glides."""
        return {"glide": super().action_space()["roll/all"]}


@pytest.mark.slow
def test_state_part_upgrades_with_the_environment(saved: Checkpoint, tmp_path: Path) -> None:
    world: Environment = Glide()
    rules = Rules({("action", "roll/all"): "glide"})
    spaces = world.obs_space(), world.action_space()
    evolved = evolve(saved, *spaces, rules=rules, initial_state=with_lessons)
    assert lessons_of(evolved.state).notes["actions"] == {"glide": 2}
    assert lessons_of(evolved.state).tried.tolist() == [0, 1, 1]
    evolved.save(tmp_path / "evolved")
    resumed = manager_of(tmp_path, initial_state=with_lessons, init_path=tmp_path / "evolved")
    assert lessons_of(resumed.state).notes == lessons_of(evolved.state).notes


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2), r"lessons: odd: expected plain data .* got tuple"),
        ({"a": [object()]}, r"lessons: odd\['a'\]\[0\]: expected plain data .* got object"),
        ({1: 2}, r"lessons: odd: expected keys that are str, got 1"),
        ([torch.zeros(1)], r"lessons: odd\[0\]: .* got Tensor; tensors have an entry"),
        ({"x": {1.5}}, r"lessons: odd\['x'\]: .* got set"),
    ],
)
def test_error_names_data_that_are_not_plain(value: Any, message: str, tmp_path: Path) -> None:
    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = with_lessons(config, ctx)
        lessons_of(state).notes["odd"] = value
        return state

    lessons = Lessons()
    lessons.notes["odd"] = value
    with pytest.raises(AssertionError, match=message.replace("lessons: ", "state_dict: ")):
        check_state_part(lessons, Lessons())
    with pytest.raises(ValueError, match=message):
        run(tmp_path, 16, initial_state=initial, checkpoint_dir=tmp_path / "run")


@pytest.mark.parametrize("name", COMMON_PARTS)
def test_name_of_a_builtin_part_raises(name: str, tmp_path: Path) -> None:
    def initial_state(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        parts = {**state.parts, "mine": state.parts[name], name: UnusedPart()}
        return replace(state, parts=parts)

    expected = COMMON_PARTS[name].__name__
    message = f"State.parts: expected '{name}' to be {expected}, got .*UnusedPart"
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, 16, initial_state=initial_state)


def test_names_with_a_slash_raise(tmp_path: Path) -> None:
    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        state.parts["les/sons"] = Lessons()
        return state

    with pytest.raises(ValueError, match=r"State\.parts: expected names without '/', got les/sons"):
        run(tmp_path, 16, initial_state=initial)


def test_checkpoints_without_custom_parts_only_have_episode_rounds(
    saved: Checkpoint, tmp_path: Path
) -> None:
    """Earlier programs refuse these, as they do the version of their configuration."""
    own = ["ppo.reward_scaling=true", 'ppo.ent_targets={"roll/all": 0.5}']
    run(tmp_path, 16, *own, checkpoint_dir=tmp_path / "run")
    plain = newest(tmp_path / "run")
    rest = unpack(plain.read(REST))
    assert list(rest) == ["version", "metrics", "envs", "parts"]
    assert (rest["version"], [*rest["parts"]]) == (2, [ROUNDS])
    assert PARTS not in plain.manifest["files"]
    assert unpack(saved.read(REST))["version"] == 2
    assert PARTS in saved.manifest["files"]


class Counts(StatePart):
    """A part that has nothing but a tensor, or nothing at all."""

    def __init__(self, *numbers: int) -> None:
        self.state = {"numbers": torch.tensor(numbers)} if numbers else {}

    def state_dict(self) -> StateDict:
        """Return the tensor."""
        return self.state

    def load_state_dict(self, state: StateDict) -> None:
        """Take it over, into the dict that was there before."""
        self.state.clear()
        self.state.update(state)


@pytest.mark.parametrize("numbers", [(1, 2), ()])
def test_parts_with_only_tensors_or_no_data(numbers: tuple[int, ...], tmp_path: Path) -> None:
    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        state.parts["counts"] = Counts(*numbers)
        return state

    for frames in (16, 32):
        state = run(tmp_path, frames, initial_state=initial, checkpoint_dir=tmp_path / "run").state
    assert unpack(newest(tmp_path / "run").read(REST))["parts"].keys() == {ROUNDS}
    assert [tensor.tolist() for tensor in state.parts["counts"].state_dict().values()] == (
        [[*numbers]] if numbers else []
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rest: rest.pop("parts"), "parts"),
        (lambda rest: rest.update(parts=[]), "list"),
        (lambda rest: rest.update(parts={"lessons": 1}), "int"),
        (lambda rest: rest.update(parts={"lessons": {1: 2}}), "parts: expected plain data by name"),
        (lambda rest: rest.update(parts={1: {}}), "parts: expected plain data by name"),
        (lambda rest: rest["parts"]["lessons"].update(x={1: 2}), "lessons: x: expected keys"),
        (lambda rest: rest["parts"]["lessons"].update(x=Entity([])), "got Entity"),
        (lambda rest: rest["parts"].update(algorithm={"epoch": 1}), "has epoch, but the network"),
        (
            lambda rest: rest["parts"].update(algorithm={"value_head.weight/exp_avg": 1}),
            "exp_avg",
        ),
        (lambda rest: rest["parts"].update(others={"x": 1}), "has a state of others"),
        (lambda rest: rest.update(version=REST_VERSION + 1), "is of a newer version"),
        (lambda rest: rest.update(version="2"), "version: expected a number"),
    ],
)
def test_damaged_plain_data_raise(
    change: Callable[[dict[str, Any]], object], message: str, saved: Checkpoint, tmp_path: Path
) -> None:
    rest = unpack(saved.read(REST))
    change(rest)
    path = changed(saved, tmp_path, REST, pack(rest))
    manager = manager_of(tmp_path, initial_state=with_lessons, init_path=path)
    with pytest.raises(CheckpointError, match=message) as caught:
        _ = manager.state
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("depth", "is_readable"), [(100, True), (400, True), (100_000, False)])
def test_nesting_of_plain_data_is_limited(
    depth: int, is_readable: bool, saved: Checkpoint, tmp_path: Path
) -> None:
    rest = unpack(saved.read(REST))
    rest["parts"]["lessons"]["title"] = "HERE"
    content = pack(rest).replace(b"\xa4HERE", b"\x91" * depth + b"\x01")
    path = changed(saved, tmp_path, REST, content)
    manager = manager_of(tmp_path, initial_state=with_lessons, init_path=path)
    if is_readable:
        assert repr(lessons_of(manager.state).notes["title"]) == "[" * depth + "1" + "]" * depth
    else:
        with pytest.raises(CheckpointError, match=str(path)):
            _ = manager.state


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "state.parts.safetensors"),
        (b"\xff" * 64, "state.parts.safetensors"),
        (save({"others/x": torch.zeros(1)}), "has a state of others"),
        (save({"x": torch.zeros(1)}), "has a state of x"),
    ],
)
def test_damaged_tensors_raise(
    content: bytes, message: str, saved: Checkpoint, tmp_path: Path
) -> None:
    path = changed(saved, tmp_path, PARTS, content)
    manager = manager_of(tmp_path, initial_state=with_lessons, init_path=path)
    with pytest.raises(CheckpointError, match=message) as caught:
        _ = manager.state
    assert str(path) in str(caught.value)
