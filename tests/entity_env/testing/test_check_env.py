"""`check_env` finds whatever is wrong with an environment, names it, and finds nothing else."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from entity_env import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    EntityEnvError,
    Environment,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    check_env,
)
from entity_env.examples import ENV_REGISTRY, Duel, MoveToOrigin, Xor
from entity_env.spaces import GLOBAL
from tests.entity_env.invalid_worlds import (
    RIGHT,
    Good,
    Returns,
    SpaceReorders,
    action_space_is,
    frame,
    move,
    obs_space_is,
    pick,
    renamed,
)
from tests.entity_env.worlds import Bidding, Walk

NAN, INF = float("nan"), float("inf")
A = "features of 'A'"
MOVE, PICK = "actions['move']", "actions['pick']"


def metrics(value: Any) -> Observation:
    return frame(metrics={"win": value})


def with_attribute(name: str, value: Any) -> Observation:
    """What the constructor does not look at."""
    obs = frame()
    setattr(obs, name, value)
    return obs


ANSWERS: dict[str, tuple[str, Any]] = {
    "nothing": ("Observation", None),
    "a tuple as in other interfaces": ("Observation", (frame(), 0.0, False, {})),
    "unknown type": ("entities", frame(features={"C": [[1.0]]})),
    "too few columns": (A, frame(features={"A": [[1.0]]})),
    "a flat array": (A, frame(features={"A": np.zeros(2, np.float32)})),
    "rows of different lengths": (A, frame(features={"A": [[1.0, 2.0], [3.0]]})),
    "text": (A, frame(features={"A": [["x", "y"]]})),
    "objects": (A, frame(features={"A": np.array([[object(), object()]])})),
    "a number for rows": (A, frame(features={"A": 3.0})),
    "none for rows": (A, frame(features={"A": None})),
    "nan feature": (A, frame(features={"A": [[1.0, NAN]]})),
    "infinite feature": (A, frame(features={"A": [[-INF, 1.0]]})),
    "beyond float32": (A, frame(features={"A": np.array([[1e300, 0.0]])})),
    "nan where it was cut off": (A, frame(features={"A": [[NAN, 0.0]]}, truncated=True)),
    "missing globals": ("global_features", frame(global_features=[])),
    "too many globals": ("global_features", frame(global_features=[0.0, 0.0])),
    "nan global": ("global_features", frame(global_features=[NAN])),
    "text as global": ("global_features", frame(global_features=["x"])),
    "too few ids": ("ids['A']", frame(ids={"A": ["a"]})),
    "too many ids": ("ids['A']", frame(ids={"A": ["a", "b", "c"]})),
    "ids of an unknown type": ("ids", frame(ids={"C": []})),
    "ids in a set": ("ids['A']", frame(ids={"A": {"a", "b"}})),
    "ids in a dictionary": ("ids['A']", frame(ids={"A": {"a": 0, "b": 1}})),
    "ids that are keys": ("ids['A']", frame(ids={"A": {"a": 0, "b": 1}.keys()})),
    "actors in a set": (f"{MOVE} actors", move(actor_ids={"a", "b"})),
    "actees that are keys": (f"{PICK} actees", pick(actee_ids={"a": 0, "b": 1}.keys())),
    "actees of a set of types": (f"{PICK} actees", pick(actee_types={"A", "B"})),
    "a metric that is computed": (
        "metrics['reward']",
        frame(metrics={"reward": 1.0}),
    ),
    "a metric of a group that is computed": (
        "metrics['entity_count/A']",
        frame(metrics={"entity_count/A": 1.0}),
    ),
    "a metric without a name": ("metrics", frame(metrics={3: 1.0})),
    "a metric named by half a character": ("metrics", frame(metrics={"\ud800": 1.0})),
    "equal ids": ("ids['A']", frame(ids={"A": ["a", "a"]})),
    "equal ids of two types": (
        "ids['B']",
        frame(features={"A": [[0.0, 0.0]], "B": [[0.0]]}, ids={"A": ["a"], "B": ["a"]}),
    ),
    "ids that are lists": ("ids['A']", frame(ids={"A": [[0], [1]]})),
    "ids that are a number": ("ids['A']", frame(ids={"A": 2})),
    "actions in a list": ("actions", with_attribute("actions", ["move"])),
    "unknown action": ("actions", frame(actions={"fly": CategoricalActionMask()})),
    "mask of another action": (PICK, frame(actions={"pick": CategoricalActionMask()})),
    "no mask": (MOVE, frame(actions={"move": True})),
    "unknown actor": (f"{MOVE} actors", move(actor_ids=["c"])),
    "an actor twice": (f"{MOVE} actors", move(actor_ids=["a", "a"])),
    "ids that are missing": (
        f"{MOVE} actors",
        frame(actions={"move": CategoricalActionMask(actor_ids=["a"])}),
    ),
    "unknown actor type": (f"{MOVE} actors", move(actor_types=["C"])),
    "too few mask rows": (f"{MOVE}.mask", move(mask=[[True, True]])),
    "too many mask columns": (f"{MOVE}.mask", move(mask=[[True, True, True]] * 2)),
    "probabilities as a mask": (f"{MOVE}.mask", move(mask=[[0.5, 1], [1, 1]])),
    "uneven mask": (f"{MOVE}.mask", move(mask=[[True], [True, True]])),
    "unknown actee": (f"{PICK} actees", pick(actee_ids=["c"])),
    "an actee twice": (f"{PICK} actees", pick(actee_ids=["a", "a"])),
    "unknown actee type": (f"{PICK} actees", pick(actee_types=["C"])),
    "wrong pairs": (f"{PICK}.mask", pick(mask=[[True]])),
    "an invisible actor": (
        f"{MOVE} actors",
        frame(visible={"A": [True, False]}, actions={"move": CategoricalActionMask()}),
    ),
    "too many flags": ("visible['A']", frame(visible={"A": [True]})),
    "flags of an array for the end": ("terminated", with_attribute("terminated", np.zeros(3))),
    "no entities at all": ("features", with_attribute("features", None)),
    "ids in a list": ("ids", with_attribute("ids", ["a", "b"])),
    "an array without rows": (A, frame(features={"A": np.array(3)})),
    "flags that are text": ("visible['A']", frame(visible={"A": ["n", "o"]})),
    "flags of an unknown type": ("visible", frame(visible={"C": []})),
    "flags without a type": ("visible", with_attribute("visible", [True, True])),
    "nan reward": ("reward", frame(reward=NAN)),
    "no reward": ("reward", frame(reward=None)),
    "two rewards": ("reward", frame(reward=[1.0, 2.0])),
    "text as metric": ("metrics['win']", metrics("yes")),
    "nan metric": ("metrics['win']", metrics(NAN)),
    "a number for metrics": ("metrics", with_attribute("metrics", 3.0)),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_invalid_observation_is_the_only_problem(kind: str) -> None:
    field, answer = ANSWERS[kind]
    report = check_env(lambda: Returns(answer), episodes=2, max_steps=3)
    assert [problem.field for problem in report.problems] == [field], str(report)
    [problem] = report.problems
    assert problem.where.startswith("episode 0, step 1")
    assert problem.count >= 2
    assert problem.fix


@pytest.mark.parametrize("kind", RIGHT)
def test_valid_observations_have_no_problems(kind: str) -> None:
    assert check_env(lambda: Returns(RIGHT[kind]), episodes=2, max_steps=3).ok


class BeginsOver(Good):
    def reset(self) -> Observation:
        self.t = 3
        return self.observe()


class RaisesInReset(Good):
    def reset(self) -> Observation:
        raise KeyError("level")


class RaisesInAct(Good):
    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self.observe(reward=1 / (self.t - self.t))


class RaisesInSeed(Good):
    def seed(self, seed: int) -> None:
        raise OSError("no seed")


class RaisesInClose(Good):
    def close(self) -> None:
        raise OSError("closed before")


class RaisesInSpace(Good):
    def obs_space(self) -> ObsSpace:
        raise FileNotFoundError("rules.json")


class ContradictsItself(Good):
    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self.observe(done=False, terminated=True)


class NamesBoth(Good):
    def act(self, actions: Mapping[str, Action]) -> Observation:
        mask = CategoricalActionMask(actor_ids=[0], actor_types=["A"])
        return self.observe(actions={"move": mask})


class GlobalRandom(Good):
    def draw(self) -> float:
        return random.random()


class GlobalNumpy(Good):
    def draw(self) -> float:
        return float(np.random.rand())  # noqa: NPY002 (the mistake)


class Unseeded(Good):
    def __init__(self) -> None:
        self.own = np.random.default_rng()

    def draw(self) -> float:
        return float(self.own.random())


class SeedsGlobally(Good):
    def seed(self, seed: int) -> None:
        random.seed(seed)

    def draw(self) -> float:
        return random.random()


class Remembers(Good):
    age = 0

    def draw(self) -> float:
        self.age += 1
        return float(self.age)


class InstancesDiffer(Good):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.bias = self.made

    def draw(self) -> float:
        return self.bias + self.rng.random()


class SpaceGrows(Good):
    calls = 0

    def obs_space(self) -> ObsSpace:
        self.calls += 1
        return ObsSpace(entities={"A": Entity(["x"]), f"B{self.calls}": Entity([])})


class ActionsGrow(Good):
    calls = 0

    def action_space(self) -> dict[str, ActionSpace]:
        self.calls += 1
        return {"move": CategoricalActionSpace([str(i) for i in range(self.calls)])}


class ForgetsTime(PlainState, Good):
    def get_state(self) -> dict[str, Any]:
        return {name: value for name, value in super().get_state().items() if name != "t"}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.t = 0


class AliasesState(Good):
    """Returns its own list, which changes with the game."""

    def reset(self) -> Any:
        self.log: list[float] = []
        return super().reset()

    def draw(self) -> float:
        self.log.append(0.5)
        return float(len(self.log))

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "log": self.log}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t, self.log = state["t"], state["log"]


class ImpureState(PlainState, Good):
    def get_state(self) -> dict[str, Any]:
        return {"rng": self.rng}


class NamedByObjects(PlainState, Good):
    names = (object(),)

    def observe(self, **fields: Any) -> Observation:
        obs = super().observe(**fields)
        obs.ids = {"A": [*self.names]}
        return obs


class RaisesInGetState(Good):
    def get_state(self) -> dict[str, Any]:
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class OneSideMissing(Bidding):
    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        return super().act(actions)[:1]


class SidesEndApart(Bidding):
    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        frames = super().act(actions)
        frames[1].done = True
        return frames


WORLDS: dict[str, tuple[str, Any]] = {
    "begins over": ("done", BeginsOver),
    "raises in reset": ("reset", RaisesInReset),
    "raises in act": ("act", RaisesInAct),
    "raises in seed": ("seed", RaisesInSeed),
    "raises in close": ("close", RaisesInClose),
    "raises in a space": ("obs_space", RaisesInSpace),
    "raises when made": ("create_env", lambda: 1 / 0),
    "makes something else": ("create_env", lambda: 3),
    "an abstract class": ("create_env", Environment),
    "contradicting flags": ("Observation", ContradictsItself),
    "actors named twice over": ("CategoricalActionMask", NamesBoth),
    "global random": ("seed", GlobalRandom),
    "global numpy": ("seed", GlobalNumpy),
    "a generator without a seed": ("seed", Unseeded),
    "seeds the global generator": ("random", SeedsGlobally),
    "remembers earlier episodes": ("seed", Remembers),
    "instances differ": ("seed", InstancesDiffer),
    "a space that grows": ("obs_space", SpaceGrows),
    "a space that reorders": ("obs_space", SpaceReorders),
    "actions that grow": ("action_space", ActionsGrow),
    "no space": ("obs_space", obs_space_is(None)),
    "a dictionary for a space": ("obs_space", obs_space_is({"A": ["x"]})),
    "a list for an entity": ("obs_space", obs_space_is(ObsSpace(entities={"A": ["x"]}))),  # type: ignore[dict-item]
    "text for features": ("obs_space", obs_space_is(ObsSpace(entities={"A": Entity("x")}))),  # type: ignore[arg-type]
    "a feature twice": (
        "obs_space",
        obs_space_is(ObsSpace(entities={"A": renamed(Entity([]), "features", ["x", "x"])})),
    ),
    "the reserved name": (
        "obs_space",
        obs_space_is(renamed(ObsSpace(), "entities", {GLOBAL: Entity([])})),
    ),
    "no actions": ("action_space", action_space_is(None)),
    "a list for an action": ("action_space", action_space_is({"move": ["l", "r"]})),
    "no choices": ("action_space", action_space_is({"move": CategoricalActionSpace([])})),
    "a choice twice": (
        "action_space",
        action_space_is(
            {"move": renamed(CategoricalActionSpace([]), "index_to_label", ["l", "l"])}
        ),
    ),
    "a state without the time": ("set_state", ForgetsTime),
    "a state that changes later": ("set_state", AliasesState),
    "a state with an object": ("get_state", ImpureState),
    "ids that cannot be saved": ("get_state", NamedByObjects),
    "no state after all": ("get_state", RaisesInGetState),
    "a side is missing": ("act", OneSideMissing),
    "sides end apart": ("done", SidesEndApart),
}


@pytest.mark.parametrize("kind", WORLDS)
def test_defect_of_an_environment_is_the_only_problem(kind: str) -> None:
    field, create_env = WORLDS[kind]
    report = check_env(create_env)
    assert [problem.field for problem in report.problems] == [field], str(report)
    assert report.problems[0].fix
    assert not report.remarks, str(report)
    assert "1 problem " in str(report)


class Endless(Good):
    def observe(self, **fields: Any) -> Observation:
        return super().observe(done=False)


class Wild(Good):
    def draw(self) -> float:
        return 1e6 * super().draw()


class ConstantHuge(Good):
    def draw(self) -> float:
        return -2e4


class ReusesArrays(Good):
    array = np.zeros((1, 1), np.float32)

    def observe(self, **fields: Any) -> Observation:
        self.array[:] = self.draw()
        return super().observe(features={"A": self.array})


class NothingLegal(Good):
    def observe(self, **fields: Any) -> Observation:
        mask = CategoricalActionMask(mask=[[False, False]])
        return super().observe(actions={"move": mask})


class NewIds(Good):
    def observe(self, **fields: Any) -> Observation:
        return super().observe(ids={"A": [f"entity {self.draw()}"]})


REMARKS: dict[str, tuple[str, str, type[Environment]]] = {
    "endless": ("done", "no end", Endless),
    "wild": (A, "from ", Wild),
    "constant and huge": (A, "x to be of moderate size, got numbers always -20000", ConstantHuge),
    "reused": (A, "changed afterwards", ReusesArrays),
    "nothing legal": (f"{MOVE}.mask", "without legal choices", NothingLegal),
    "new ids": ("ids['A']", "new in every frame", NewIds),
}


@pytest.mark.parametrize("kind", REMARKS)
def test_legal_but_unusual_behaviour_gets_a_remark(kind: str) -> None:
    field, text, create_env = REMARKS[kind]
    report = check_env(create_env, max_steps=10)
    assert report.ok, str(report)
    assert [remark.field for remark in report.remarks] == [field], str(report)
    assert text in report.remarks[0].text
    assert "1 remark " in str(report)
    report.raise_if_bad()


class NothingToSelect(Good):
    def action_space(self) -> dict[str, Any]:
        whom = SelectEntityActionSpace(after="move", when=["b"])
        return {"move": CategoricalActionSpace(["a", "b"]), "whom": whom}

    def observe(self, **fields: Any) -> Observation:
        whom = SelectEntityActionMask(mask=[[False]])
        return super().observe(actions={"move": CategoricalActionMask(), "whom": whom})


def test_mask_that_forbids_a_label_by_its_dependent_action_gets_no_remark() -> None:
    report = check_env(NothingToSelect, max_steps=10)
    assert report.ok
    assert not report.remarks, str(report)


def test_all_problems_are_reported_at_once() -> None:
    answer = frame(
        features={"A": [[NAN, 0.0], [0.0, 0.0]], "B": [[0.0, 1.0]]},
        ids={"A": ["a", "a"], "B": ["b", "c"]},
        global_features=[INF],
        reward=NAN,
        metrics={"m": "x", "n": NAN},
        visible={"A": [True]},
        actions={"fly": CategoricalActionMask(), "move": CategoricalActionMask(mask=[[True]])},
    )
    report = check_env(lambda: Returns(answer), episodes=1, max_steps=1)
    assert {problem.field for problem in report.problems} == {
        A,
        "features of 'B'",
        "ids['A']",
        "ids['B']",
        "global_features",
        "reward",
        "metrics['m']",
        "metrics['n']",
        "visible['A']",
        "actions",
        f"{MOVE}.mask",
    }
    with pytest.raises(EntityEnvError, match="Returns: 11 problems in 1 episode, 1 step"):
        report.raise_if_bad()


def test_problem_names_step_line_and_generator() -> None:
    text = str(check_env(RaisesInAct))
    assert "act (episode 0, step 1, 3 times in all): expected a result, got ZeroDivisionError" in (
        text
    )
    assert "return self.observe(reward=1 / (self.t - self.t))" in text
    assert "global generator random" in str(check_env(GlobalRandom))
    assert "global generator numpy.random" in str(check_env(GlobalNumpy))
    assert "global generator" not in str(check_env(Unseeded))


class WildTwice(Wild):
    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"A": Entity(["x1", "x2"])})

    def observe(self, **fields: Any) -> Observation:
        return super().observe(features={"A": [[self.draw(), self.draw()]]})


def test_problems_are_distinguished_by_feature() -> None:
    assert [remark.text[:11] for remark in check_env(WildTwice).remarks] == [
        "expected x1",
        "expected x2",
    ]


def test_created_environments_are_closed() -> None:
    open_worlds: list[Environment] = []

    class Closes(Good):
        def __init__(self) -> None:
            open_worlds.append(self)

        def close(self) -> None:
            open_worlds.remove(self)

    for create_env in (Closes, type("Odd", (Closes,), {"obs_space": lambda self: None})):
        check_env(create_env)
        assert open_worlds == []
    check_env(Closes())
    assert len(open_worlds) == 1


def test_instance_is_checked_by_reseeding() -> None:
    assert check_env(Good()).ok
    assert check_env(Bidding()).ok
    for env in (Unseeded(), GlobalRandom(), Remembers()):
        assert [problem.field for problem in check_env(env).problems] == ["seed"]
    assert [problem.field for problem in check_env(ForgetsTime()).problems] == ["set_state"]


def test_global_generators_are_restored() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    check_env(GlobalNumpy)
    check_env(GlobalRandom)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == expected  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize("name", ENV_REGISTRY)
def test_examples_pass(name: str) -> None:
    report = check_env(ENV_REGISTRY[name], episodes=2, max_steps=40)
    assert report.ok, str(report)


@pytest.mark.slow
def test_report_without_findings_is_one_line() -> None:
    text = "MoveToOrigin: nothing found wrong in 3 episodes, 96 steps"
    assert str(check_env(MoveToOrigin)) == text
    assert str(check_env(lambda: MoveToOrigin())) == text
    assert str(check_env(Xor, episodes=1)) == "Xor: nothing found wrong in 1 episode, 1 step"
    assert check_env(Duel, episodes=1).ok
    assert check_env(Walk).ok
