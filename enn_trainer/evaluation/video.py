"""Videos of evaluations: the first episodes of several environments, side by side."""

import importlib.util
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ConfigError
from entity_env.actions import Action
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.environment import Observation
from entity_env.match import Match
from entity_env.serialization.plain_open import new_file
from entity_env.spaces import ActionName, ObsSpace
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_env import VecEnv, VecEnvWrapper, VecObs

Picture = npt.NDArray[np.uint8]
NUM_FILMED = 4
"""Maximal number of environments, or matches, in a video."""
VIDEOS = "videos"
"""Name of the folder for videos in the folder of a run's metrics."""
PICTURES_PER_S = 10
MOST_NAME_BYTES = 100
"""Maximal length of a suite's name in a file name, which file systems limit."""
_PACKAGES = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",)}


class FilmedEnvs(VecEnvWrapper):
    """Wrapper that films the first episode of some environments.

    A context manager: the file exists after it, unless an exception was raised, or pictures could
    not be taken or written. Then `problem` has the reason, and the episodes continue without video.
    A picture is taken after each reset and each step, the last one before the environment is
    reset. The last picture of an episode stays until all episodes have ended.

    Args:
        env: environments of this process.
        path: the file to write, .mp4 or .gif; None to take pictures only.
        counted: (B,) bool, the environments of which the first few are filmed; all by default.

    Attributes:
        problem: the reason for which there is no video; None without a problem.

    Raises:
        ConfigError: the environments are not in this process.
    """

    def __init__(
        self, env: VecEnv, path: Path | None, counted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        super().__init__(env)
        inner: Any = env
        while isinstance(inner, VecEnvWrapper | AnyVecEnv):
            inner = inner.env
        if not isinstance(inner, EnvList):
            raise ConfigError(
                f"eval.capture_videos: expected environments or matches that are stepped one by "
                f"one, as in an EnvList, got {type(inner).__name__}; or turn videos off"
            )
        counted = np.ones(len(inner), dtype=np.bool_) if counted is None else counted
        counts = counted.reshape(len(inner.matches), -1).any(axis=1)
        matches: list[Any] = inner.matches
        self.filmed: list[_Filmed] = []
        for i in np.flatnonzero(counts)[:NUM_FILMED].tolist():
            matches[i] = _Filmed(matches[i])
            self.filmed.append(matches[i])
        self.path = path
        self.problem: str | None = None
        self._writer: Any = None
        self._over = False

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments and take a picture."""
        obs = self.env.reset(obs_config)
        self._append()
        return obs

    def wait(self) -> VecObs:
        """Return the observations after a step and take a picture."""
        obs = self.env.wait()
        if not self._over:
            self._append()
            self._over = all(filmed.over for filmed in self.filmed)
        return obs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish(kind is not None)

    def finish(self, failed: bool = False) -> None:
        """Complete the file, or remove what was written if the episodes or the video failed."""
        writer, self._writer = self._writer, None
        if writer is None or self.path is None:
            return
        temporary = unfinished(self.path)
        try:
            writer.close()
            if not failed and self.problem is None:
                temporary.replace(self.path)
        except Exception as error:  # video writers raise errors of any kind
            self.problem = self.problem or cannot_write(self.path, error)
        finally:
            temporary.unlink(missing_ok=True)

    def _append(self) -> None:
        problems = [filmed.problem for filmed in self.filmed if filmed.problem]
        if self.problem is None and problems:
            self.problem = problems[0]
        if self.path is None or self.problem is not None:
            return
        try:
            if self._writer is None:
                self._writer = open_film(self.path)
            self._writer.append_data(tiled([filmed.picture for filmed in self.filmed]))
        except Exception as error:  # video writers raise errors of any kind
            self.problem = cannot_write(self.path, error)


class _Filmed:
    """Match whose first episode is filmed; all but its frames is passed on."""

    def __init__(self, match: Match) -> None:
        self.match = match
        self.begun = False
        self.over = False
        self.picture: Picture = np.zeros((0, 0, 3), dtype=np.uint8)
        self.problem: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.match, name)

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

    def _after_reset(self, obs: list[Observation]) -> list[Observation]:
        self.over = self.begun
        self.begun = True
        return self._after_step(obs)

    def _after_step(self, obs: list[Observation]) -> list[Observation]:
        if not self.over and self.problem is None:
            try:
                picture = _picture(self.match)
                if self.picture.size and picture.shape != self.picture.shape:
                    raise ConfigError(
                        f"eval.capture_videos: expected pictures of {_name(self.match)} of one "
                        f"size, got (height, width) {picture.shape[:2]} after "
                        f"{self.picture.shape[:2]}; or turn videos off"
                    )
                self.picture = picture
            except ConfigError as error:  # metrics do not depend on pictures
                self.problem = str(error)
        return obs


def _name(match: Match) -> str:
    return type(getattr(match, "env", match)).__name__


def _picture(match: Match) -> Picture:
    # Render.
    world = _name(match)
    try:
        picture = match.render(mode="rgb_array")
    except NotImplementedError as error:
        raise ConfigError(
            f"eval.capture_videos: expected a world that renders, {world} does not ({error}); "
            "implement render, or turn videos off"
        ) from None
    except Exception as error:  # raised by code of the environment
        raise ConfigError(
            f"eval.capture_videos: expected a world that renders, "
            f"{world}.render(mode='rgb_array') raised {type(error).__name__}: "
            f"{' '.join(str(error).split())}; fix it, or turn videos off"
        ) from None

    # Check shape and dtype.
    if (
        not isinstance(picture, np.ndarray)
        or picture.dtype != np.uint8
        or picture.ndim != 3
        or picture.shape[2] != 3
        or not picture.size
    ):
        got = (picture.dtype, picture.shape) if isinstance(picture, np.ndarray) else type(picture)
        raise ConfigError(
            f"eval.capture_videos: expected {world}.render(mode='rgb_array') to return uint8 of "
            f"shape (height, width, 3), at least 1 each, got {got}"
        )
    return picture.copy()  # the environment may change it in the next step


def tiled(pictures: Sequence[Picture]) -> Picture:
    """Return pictures in a grid that is about as wide as high, black where it has no picture.

    Args:
        pictures: (height, width, 3) uint8 each, of any sizes.

    Returns:
        (height, width, 3) uint8, with even height and width, as video codecs need them.
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


def require_writer(path: Path, field: str) -> None:
    """Raise if a video cannot be written to a file.

    Args:
        path: the file.
        field: the setting or argument that names it.

    Raises:
        ConfigError: its suffix is unknown, or a package is missing.
    """
    if path.suffix.lower() not in _PACKAGES:
        raise ConfigError(f"{field}: expected a file named .mp4 or .gif, got {path}")
    needed = _PACKAGES[path.suffix.lower()]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{field}: expected the packages {', '.join(needed)}, {', '.join(missing)} is missing; "
            "pip install 'enn-trainer[video]'"
        )


def open_film(path: Path) -> Any:
    """Open a video writer on the temporary file of `path`, see `unfinished`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new_file(unfinished(path)).close()  # removes a link, which the writer would follow
    try:
        if path.suffix.lower() == ".gif":
            return _Gif(unfinished(path))
        import imageio.v2  # an extra

        codec: dict[str, Any] = {"codec": "libx264", "macro_block_size": 2}
        return imageio.v2.get_writer(unfinished(path), format="FFMPEG", fps=PICTURES_PER_S, **codec)
    except BaseException:
        unfinished(path).unlink(missing_ok=True)
        raise


class _Gif:
    """Writer of GIF files, which are written at once when it is closed."""

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


def film_of_suite(film: Path, name: str) -> Path:
    """Return the file of a suite's video; a long name is cut and a checksum appended to it."""
    part = name.replace("/", "_")
    if len(part.encode()) > MOST_NAME_BYTES:
        begin = part.encode()[:MOST_NAME_BYTES].decode(errors="ignore")
        part = f"{begin}-{zlib.crc32(name.encode()):08x}"
    return film.with_stem(f"{film.stem}-{part}") if name else film


def cannot_write(path: Path, error: Exception) -> str:
    """Return an error message of one line for a video that could not be written."""
    message = " ".join(str(error).split())
    return f"eval.capture_videos: cannot write {path}: {type(error).__name__}: {message}"


def unfinished(path: Path) -> Path:
    """Return the temporary file of a video, which is renamed when it is complete."""
    return path.with_name(f".writing-{path.name}")
