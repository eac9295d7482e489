"""Videos of environments: every picture of their first episodes once, side by side."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ConfigError
from entity_env.actions import Action
from entity_env.any_vec_env import AnyVecEnv
from entity_env.env_list import EnvList
from entity_env.environment import Observation
from entity_env.match import Match
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from entity_env.vec_env import VecEnv, VecEnvWrapper, VecObs

Picture = npt.NDArray[np.uint8]
NUM_FILMED = 4
"""So many environments, or matches, are seen in a video."""
PICTURES_PER_S = 10
_PACKAGES = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",)}


def require_writer(path: Path, field: str) -> None:
    """Refuse a file that no video can be written to.

    Args:
        path: the file.
        field: what asks for it.

    Raises:
        ConfigError: it is of no known kind, or a package is missing.
    """
    if path.suffix not in _PACKAGES and path.name not in _PACKAGES:
        raise ConfigError(f"{field}: expected a file named .mp4 or .gif, got {path}")
    needed = _PACKAGES[path.suffix or path.name]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{field}: expected the packages {', '.join(needed)}, {', '.join(missing)} is missing; "
            "pip install 'enn-trainer[video]'"
        )


class FilmedEnvs(VecEnvWrapper):
    """Films the first episode of each of the first environments.

    A picture is taken after each reset and each step, the last one before the environment is
    reset; where an episode is over, its last picture stays until all of them are.

    Args:
        env: environments of this process.
        path: the file to write, a .mp4 or .gif; None to take pictures only.

    Raises:
        ConfigError: the environments are not of this process.
    """

    def __init__(self, env: VecEnv, path: Path | None) -> None:
        super().__init__(env)
        inner: Any = env
        while isinstance(inner, VecEnvWrapper | AnyVecEnv):
            inner = inner.env
        if not isinstance(inner, EnvList):
            raise ConfigError(
                f"eval.capture_videos: expected environments or matches that are stepped one by "
                f"one, as in an EnvList, got {type(inner).__name__}; leave videos out"
            )
        self.filmed = [_Filmed(match) for match in inner.matches[:NUM_FILMED]]
        inner.matches[: len(self.filmed)] = self.filmed
        self.path = path
        self._writer: Any = None
        self._over = False

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        obs = self.env.reset(obs_config)
        self._append()
        return obs

    def wait(self) -> VecObs:
        """What is shown after a step."""
        obs = self.env.wait()
        if not self._over:
            self._append()
            self._over = all(filmed.over for filmed in self.filmed)
        return obs

    def finish(self, failed: bool = False) -> None:
        """Write what is left; the file is there from now on, unless something failed."""
        if self._writer is None or self.path is None:
            return
        self._writer.close()
        self._writer = None
        if failed:
            _unfinished(self.path).unlink()
        else:
            _unfinished(self.path).replace(self.path)

    def _append(self) -> None:
        if self.path is None:
            return
        if self._writer is None:
            self._writer = _open(self.path)
        self._writer.append_data(tiled([filmed.picture for filmed in self.filmed]))


class _Filmed(Match):
    """A match of whose first episode pictures are taken."""

    def __init__(self, match: Match) -> None:
        self.match = match
        self.num_sides = match.num_sides
        self.filters_itself = match.filters_itself
        self.begun = False
        self.over = False
        self.picture: Picture = np.zeros((0, 0, 3), dtype=np.uint8)

    def obs_space(self) -> ObsSpace:
        return self.match.obs_space()

    def action_space(self) -> dict[ActionName, ActionSpace]:
        return self.match.action_space()

    def reset(self) -> list[Observation]:
        return self._after_reset(self.match.reset())

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        return self._after_step(self.match.act(actions))

    def reset_filter(self, obs_filter: ObsSpace) -> list[Observation]:
        return self._after_reset(self.match.reset_filter(obs_filter))

    def act_filter(
        self, actions: Sequence[Mapping[ActionName, Action]], obs_filter: ObsSpace
    ) -> list[Observation]:
        return self._after_step(self.match.act_filter(actions, obs_filter))

    def seed(self, seed: int) -> None:
        self.match.seed(seed)

    def render(self, **kwargs: Any) -> Picture | str:
        return self.match.render(**kwargs)

    def close(self) -> None:
        self.match.close()

    def _after_reset(self, obs: list[Observation]) -> list[Observation]:
        self.over = self.begun
        self.begun = True
        return self._after_step(obs)

    def _after_step(self, obs: list[Observation]) -> list[Observation]:
        if not self.over:
            self.picture = _picture(self.match)
        return obs


def _picture(match: Match) -> Picture:
    world = type(getattr(match, "env", match)).__name__
    try:
        picture = match.render(mode="rgb_array")
    except NotImplementedError as error:
        raise ConfigError(
            f"eval.capture_videos: expected a world that renders, {world} does not ({error}); "
            "write its render, or leave videos out"
        ) from None
    if (
        not isinstance(picture, np.ndarray)
        or picture.dtype != np.uint8
        or picture.ndim != 3
        or picture.shape[2] != 3
    ):
        got = (picture.dtype, picture.shape) if isinstance(picture, np.ndarray) else type(picture)
        raise ConfigError(
            f"eval.capture_videos: expected {world}.render(mode='rgb_array') to return uint8 of "
            f"shape (height, width, 3), got {got}"
        )
    return picture.copy()  # the world may paint on it again


def tiled(pictures: Sequence[Picture]) -> Picture:
    """Pictures in rows and columns, as many of each as there can be; black where there is none.

    Args:
        pictures: (height, width, 3) uint8 each, of any sizes.

    Returns:
        (height, width, 3) uint8, of even sizes, which videos need.
    """
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    height, width = (max(picture.shape[i] for picture in pictures) for i in (0, 1))
    sheet = np.zeros(
        (rows * height + rows * height % 2, columns * width + columns * width % 2, 3),
        dtype=np.uint8,
    )
    for i, picture in enumerate(pictures):
        top, left = i // columns * height, i % columns * width
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return sheet


def _open(path: Path) -> Any:
    """A writer of a file beside the one that is asked for, which appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gif":
        return _Gif(_unfinished(path))
    import imageio.v2  # an extra

    return imageio.v2.get_writer(
        _unfinished(path), format="FFMPEG", fps=PICTURES_PER_S, codec="libx264", macro_block_size=2
    )


class _Gif:
    """Keeps the pictures, as a file of this kind is written at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pictures: list[Any] = []

    def append_data(self, picture: Picture) -> None:
        from PIL import Image  # an extra

        self.pictures.append(Image.fromarray(picture).quantize())

    def close(self) -> None:
        first, *rest = self.pictures
        first.save(
            self.path,
            format="GIF",
            save_all=True,
            append_images=rest,
            duration=1000 // PICTURES_PER_S,
            loop=0,
        )


def _unfinished(path: Path) -> Path:
    return path.with_name(f".writing-{path.name}")
