"""Views: how a page draws a world, with the defaults of worlds that do not say."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from entity_env import (
    Entity,
    EntityView,
    Environment,
    Flag,
    Kind,
    Match,
    ObsSpace,
    ValidatingEnv,
    View,
    check_env,
)
from entity_env.errors import InvalidView
from entity_env.examples import ENV_REGISTRY, Duel, Minefield, TreasureHunt, VecMinefield, Xor
from entity_env.match import Solo, match_of
from entity_env.spaces import GLOBAL
from entity_env.view import view_of

SPACE = ObsSpace(
    global_features=["x", "y", Kind("season", ["dry", "wet"])],
    entities={
        "Robot": Entity(["x", "y", "angle", "speed", Kind("color", ["red", "green"])]),
        "Door": Entity(["row", "column", Flag("open")]),
        "Sign": Entity([Kind("x", ["left"]), Kind("y", ["top"])]),
        "Shelf": Entity([]),
    },
)


def robot(**fields: Any) -> View:
    return View({"Robot": EntityView(**fields)})


@pytest.mark.parametrize("name", ENV_REGISTRY)
def test_views_of_examples_match_their_spaces(name: str) -> None:
    world = ENV_REGISTRY[name]()
    declared, space = world.view(), world.obs_space()
    assert declared is not None
    assert declared.entities.keys() <= {*space.entities, GLOBAL}
    view = view_of(declared, space)
    assert [*view.entities][: len(space.entities)] == [*space.entities]
    positioned = [entity for entity in view.entities.values() if entity.position]
    features = {*space.global_features}.union(*(e.features for e in space.entities.values()))
    assert bool(positioned) == bool(features & {"x", "x_pos"}), "what has positions is placed"
    assert not view.bounds or len(view.bounds) == 2
    assert not view.y_down, "as the examples draw themselves"


@pytest.mark.parametrize("name", ENV_REGISTRY)
def test_entity_types_of_examples_differ_in_shape(name: str) -> None:
    """So that they can be distinguished without colour."""
    declared = ENV_REGISTRY[name]().view()
    assert declared is not None
    shapes = [entity.shape for entity in declared.entities.values() if entity.shape is not None]
    assert len({*shapes}) == len(shapes)


def test_views_of_examples_with_other_arguments_match() -> None:
    world = Minefield(translate=True)
    view = view_of(world.view(), world.obs_space())
    assert view.entities["Vehicle"].position == (), "it is where all else is relative to"
    assert view.entities["Mine"].position == ("x_pos", "y_pos")
    balls = ENV_REGISTRY["PickMatchingBalls"](one_hot=True)  # type: ignore[call-arg]
    view_of(balls.view(), balls.obs_space())


@pytest.mark.parametrize(
    ("features", "position"),
    [
        (["x", "y"], ("x", "y")),
        (["y", "hp", "x"], ("x", "y")),
        (["x", "y", "z"], ("x", "y", "z")),
        (["x_pos", "y_pos"], ("x_pos", "y_pos")),
        (["x_pos", "y_pos", "z_pos"], ("x_pos", "y_pos", "z_pos")),
        (["pos_x", "pos_y"], ("pos_x", "pos_y")),
        (["pos_x", "pos_y", "pos_z"], ("pos_x", "pos_y", "pos_z")),
        (["row", "column"], ("column", "row")),
        (["x", "y_pos"], ("x",)),
        (["hp", "y"], ("y",)),
        (["row"], ("row",)),
        (["hp"], ()),
        ([Kind("x", ["a"]), Kind("y", ["a"])], ()),
        ([], ()),
    ],
)
def test_positions_default_to_common_names(features: list[Any], position: tuple[str, ...]) -> None:
    by_type = view_of(None, ObsSpace(entities={"A": Entity(features)}))
    assert by_type.entities == {"A": EntityView(position=position)}
    assert by_type.y_down == ("row" in position)
    global_view = view_of(None, ObsSpace(global_features=features))
    assert global_view.entities == ({GLOBAL: EntityView(position=position)} if features else {})


def test_default_view_has_all_entity_types() -> None:
    view = view_of(None, SPACE)
    assert {name: entity.position for name, entity in view.entities.items()} == {
        "Robot": ("x", "y"),
        "Door": ("column", "row"),
        "Sign": (),
        "Shelf": (),
        GLOBAL: ("x", "y"),
    }
    assert view.bounds == ()


def test_network_positions_override_common_names() -> None:
    view = view_of(None, SPACE, network_positions=["angle", "speed"])
    assert view.entities["Robot"].position == ("angle", "speed")
    assert view.entities["Door"].position == ("column", "row")
    for in_any_order in (["x", "y"], ["y", "x"]):
        view = view_of(None, SPACE, network_positions=in_any_order)
        assert view.entities["Robot"].position == ("x", "y")
    many = ["angle", "speed", "x", "y"]
    view = view_of(None, SPACE, network_positions=many)
    assert view.entities["Robot"].position == ("angle", "speed", "x"), "at most three axes"


def test_view_positions_override_network_positions() -> None:
    declared = robot(position=("speed",), heading=("angle",))
    view = view_of(declared, SPACE, network_positions=["x", "y"])
    assert view.entities["Robot"] == declared.entities["Robot"]
    assert view.entities[GLOBAL].position == ("x", "y")
    view = view_of(robot(position=()), SPACE, network_positions=["x", "y"])
    assert view.entities["Robot"].position == (), "in the table, as the world says"


def test_positions_argument_overrides_all_positions() -> None:
    declared = View(
        {"Robot": EntityView(("x", "y"), heading=("angle",), shape="star", size="speed")},
        bounds=((0, 1), (0, 1)),
        y_down=True,
    )
    view = view_of(declared, SPACE, ["angle", "speed"], network_positions=["x", "y"])
    robot = EntityView(("angle", "speed"), shape="star", size="speed")
    assert view.entities["Robot"] == robot, "a heading is along other axes"
    assert {entity.position for name, entity in view.entities.items() if name != "Robot"} == {()}
    assert (view.bounds, view.y_down) == ((), False)
    assert view_of(None, SPACE, ["row", "column"]).entities["Door"].position == ("row", "column")


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (["x", "yy"], r"positions: expected features among .*, got 'yy', did you mean y\?"),
        (["x", "color"], r"positions: .*got 'color', which is categorical"),
        (["x", "row"], r"positions: expected features that a type has together, got \['x'"),
        (["x", "x"], r"positions: .*each once"),
        (["x", "y", "angle", "speed"], r"positions: expected up to 3 features"),
    ],
)
def test_unknown_positions_raise(positions: list[str], message: str) -> None:
    with pytest.raises(InvalidView, match=message):
        view_of(None, SPACE, positions)


WRONG: dict[str, tuple[Any, str]] = {
    "no view": ({"Robot": {}}, r"view: expected a View"),
    "no dictionary": (View([]), r"view: expected a View of a dictionary"),  # type: ignore[arg-type]
    "unknown type": (View({"Robt": EntityView()}), r"\['Robt'\]: .*did you mean Robot\?"),
    "no globals": (View({"__globals__": EntityView()}), r"did you mean __global__\?"),
    "no entity view": (View({"Robot": None}), r"\['Robot'\]: expected an EntityView, got None"),  # type: ignore[dict-item]
    "unknown position": (robot(position=("x", "zz")), r"position: .*got 'zz'"),
    "kind as position": (
        robot(position=("x", "color")),
        r"position: .*'color', which is categorical",
    ),
    "text as position": (robot(position="x"), r"position: expected a tuple of names.*got 'x'"),
    "four axes": (robot(position=("x", "y", "angle", "speed")), r"position: expected up to 3"),
    "an axis twice": (robot(position=("x", "x")), r"position: .*each once"),
    "unknown heading": (robot(heading=("angel",)), r"heading: .*'angel', did you mean angle\?"),
    "kind as heading": (robot(heading=("color",)), r"heading: .*'color', which is categorical"),
    "three headings": (robot(heading=("x", "y", "speed")), r"heading: expected up to 2"),
    "unknown label": (robot(label=("colour",)), r"label: .*'colour', did you mean color\?"),
    "numbers as label": (robot(label=(3,)), r"label: expected a tuple of names"),
    "unknown shape": (robot(shape="sqare"), r"shape: .*'sqare', did you mean square\?"),
    "name of a colour": (robot(colour="red"), r"colour: expected '#rrggbb', or features among"),
    "short colour": (robot(colour="#fff"), r"colour: expected '#rrggbb'.*got '#fff'"),
    "colour as code": (robot(colour="#ffffff;x"), r"colour: expected '#rrggbb'"),
    "numbers as colour": (robot(colour=(1, 2, 3)), r"colour: .*got \(1, 2, 3\)"),
    "no size": (robot(size=0), r"size: expected a number above 0.*got 0"),
    "endless size": (robot(size=float("inf")), r"size: .*got inf"),
    "unknown size": (robot(size="sped"), r"size: .*'sped', did you mean speed\?"),
    "kind as size": (robot(size="color"), r"size: .*'color', which is categorical"),
    "empty bounds": (View(bounds=((0, 1), (2, 2))), r"view.bounds: expected \(low, high\)"),
    "flat bounds": (View(bounds=(0, 1)), r"view.bounds"),  # type: ignore[arg-type]
    "four bounds": (View(bounds=((0, 1),) * 4), r"view.bounds: .*up to 3 axes"),
    "open bounds": (View(bounds=((0, float("nan")),)), r"view.bounds"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_views_raise(case: str) -> None:
    view, message = WRONG[case]
    with pytest.raises(InvalidView, match=message):
        view_of(view, SPACE)


def test_view_error_lists_all_problems() -> None:
    view = View({"Robot": EntityView(shape="sqare", colour="red"), "Dor": EntityView()})  # type: ignore[arg-type]
    with pytest.raises(InvalidView) as error:
        view_of(view, SPACE)
    assert all(field in str(error.value) for field in ("shape", "colour", "'Dor'"))


def test_views_are_plain_data() -> None:
    fields: Any = {"position": ["x", "y"], "size": np.float32(0.5), "label": ["color"]}
    declared = View({"Robot": EntityView(colour="color", **fields)}, ((np.int64(0), 1), (0, 1)))
    plain = dataclasses.asdict(view_of(declared, SPACE))
    read = json.loads(json.dumps(plain))
    assert read["entities"]["Robot"] == {
        "position": ["x", "y"],
        "heading": [],
        "shape": None,
        "colour": "color",
        "size": 0.5,
        "label": ["color"],
    }
    assert read["entities"]["Shelf"]["position"] == []
    assert read["bounds"] == [[0.0, 1.0], [0.0, 1.0]]
    again = View(
        {k: EntityView(**v) for k, v in read["entities"].items()},
        **{k: read[k] for k in ("bounds", "y_down")},
    )
    assert view_of(again, SPACE) == view_of(declared, SPACE)


def test_environments_have_no_view_by_default() -> None:
    assert Environment.view(Xor()) is None
    assert Match.view(Duel()) is None


def test_wrappers_have_the_view_of_the_environment() -> None:
    world = TreasureHunt()
    assert Solo(world).view() == ValidatingEnv(world).view() == world.view()
    assert match_of(Duel()).view() == Duel().view()
    assert VecMinefield(2, width=50.0).view() == Minefield(width=50.0).view()


def test_attribute_named_view_is_no_view() -> None:
    """Such as the distance that is seen, of worlds that were written before there were views."""

    class Near(Xor):
        view = 5  # type: ignore[assignment]

    assert Solo(Near()).view() is None
    assert check_env(Near).ok


def test_check_env_reports_an_invalid_view() -> None:
    class Bad(Xor):
        def view(self) -> View:
            return View({"Inputs": EntityView(), GLOBAL: EntityView(label=("negat",))})

    report = check_env(Bad)
    problems = [(problem.field, problem.text) for problem in report.problems]
    assert [field for field, _ in problems] == [
        "view.entities['Inputs']",
        "view.entities['__global__'].label",
    ]
    assert "did you mean Input?" in problems[0][1]
    assert "did you mean negate?" in problems[1][1]
    assert report.episodes > 0, "the episodes are played all the same"


def test_check_env_reports_a_view_that_raises() -> None:
    class Raising(Xor):
        def view(self) -> View:
            return View({"Input": EntityView(label=(str(self.bit1),))})  # before there was a reset

    (problem,) = check_env(Raising).problems
    assert (problem.field, "bit1" in problem.text) == ("view", True)
