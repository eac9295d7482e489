"""Pictures of the example environments, and the few shapes they are made of."""

from typing import Any

import numpy as np
import pytest

from entity_env import EnvList
from entity_env.examples import ENV_REGISTRY, Minefield, MultiSnake, TreasureHunt, Xor
from entity_env.examples.draw import (
    BLUE,
    PAPER,
    RED,
    Mark,
    Scene,
    canvas,
    circle,
    draw,
    line,
    rectangle,
)
from tests.entity_env.builders import random_choices


@pytest.mark.parametrize("name", ENV_REGISTRY)
def test_pictures_have_a_constant_size_and_are_not_empty(name: str) -> None:
    """Videos and stacks of pictures need equal sizes, also at the end of an episode."""
    envs = EnvList(ENV_REGISTRY[name], 2)
    envs.seed(0)
    obs = envs.reset(envs.obs_space())
    rng = np.random.default_rng(0)
    shapes = set()
    for _ in range(4):
        pictures = envs.render()
        assert pictures.dtype == np.uint8
        shapes.add(pictures.shape)
        assert (pictures != PAPER).any(axis=(1, 2, 3)).all()
        obs = envs.act(random_choices(envs, obs, rng), envs.obs_space())
    [(count, height, width, channels)] = shapes
    assert (count * envs.sides, channels) == (len(envs), 3)
    assert max(height, width) == 320
    assert height % 2 == width % 2 == 0
    np.testing.assert_array_equal(envs.render(mode="rgb_array"), envs.render())


@pytest.mark.parametrize("name", ENV_REGISTRY)
def test_text_is_short_and_other_modes_raise(name: str) -> None:
    world: Any = ENV_REGISTRY[name]()
    world.seed(0)
    world.reset()
    text = world.render(mode="text")
    assert isinstance(text, str)
    assert text.strip()
    lines = text.split("\n")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    with pytest.raises(ValueError, match="mode: expected 'rgb_array' or 'text', got 'human'"):
        world.render(mode="human")


def test_text_has_marks_at_their_positions() -> None:
    hunt = TreasureHunt()
    hunt.reset()
    hunt.traps, hunt.treasures = [(-10, -10)], [(1, 0), (10, 10)]
    rows = hunt.render(mode="text").split("\n")  # type: ignore[union-attr]
    assert (rows[0][20], rows[10][10:12], rows[20][0]) == ("$", "P$", "x")
    snake = MultiSnake(board_size=3, num_snakes=1)
    snake.reset()
    snake.snakes, snake.food = [[(0, 0, 0), (1, 0, 0), (1, 1, 0)]], [(2, 2, 0)]
    assert snake.render(mode="text") == "step 0\n..*\n.@.\n00."
    xor = Xor()
    xor.reset()
    xor.bit1, xor.bit2, xor.negate = 0, 1, 1
    assert xor.render(mode="text") == "two inputs, negate\n01\n 1"


def test_marks_are_clipped_at_the_border() -> None:
    field = Minefield()
    field.reset()
    shape = field.render().shape  # type: ignore[union-attr]
    field.x_pos, field.y_pos = 1e4, -1e4
    assert field.render().shape == shape  # type: ignore[union-attr]
    assert "V" not in field.render(mode="text")  # type: ignore[operator]


def test_shapes_cover_their_pixels() -> None:
    picture = canvas(20, 10)
    assert picture.shape == (10, 20, 3)
    assert (picture == PAPER).all()
    circle(picture, (5, 5), 3, RED)
    assert tuple(picture[5, 5]) == tuple(picture[3, 5]) == RED
    assert tuple(picture[1, 5]) == tuple(picture[5, 9]) == PAPER
    # Area of the disc, 9 pi, by the opacity of its pixels.
    opacity = (picture[..., 0] - float(PAPER[0])) / (RED[0] - float(PAPER[0]))
    assert opacity.sum() == pytest.approx(9 * np.pi, rel=0.02)
    picture = canvas(20, 10)
    rectangle(picture, (2, 3), (6, 8), BLUE)
    assert (picture[3:8, 2:6] == BLUE).all()
    assert (picture == BLUE).all(axis=2).sum() == 20
    picture = canvas(20, 10)
    line(picture, (-5, 5), (25, 5), 1, BLUE)
    assert (picture[4:6] == BLUE).all()
    assert (picture[[2, 7]] == PAPER).all()


def test_later_marks_are_on_top() -> None:
    marks = [Mark(0, 0, "a", RED), Mark(0, 0, "b", BLUE), Mark(0, 0, "", PAPER, 0.01)]
    scene = Scene((-0.5, -0.5), (0.5, 0.5), marks, caption="two")
    assert draw(scene, mode="text") == "two\nb"
    picture = draw(scene)
    assert isinstance(picture, np.ndarray)
    assert tuple(picture[160, 100]) == BLUE
