"""Videos of evaluations: the first episodes of several environments in a grid."""

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from enn_trainer.base.errors import ConfigError
from enn_trainer.evaluation.evaluation import EpisodeCapture, EvaluationFacts
from entity_env.actions import Action
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.arrays import BoolArray, ImageArray
from entity_env.environment import Observation
from entity_env.imports.extras import missing_package
from entity_env.match import Match
from entity_env.serialization.plain_open import new_file
from entity_env.spaces import ActionName, ObsSpace
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_env import VecEnv, VecEnvWrapper, VecObs

MAX_ENVS = 4
"""Maximal number of environments, or matches, in a video."""
PICTURES_PER_S = 10
MAX_NAME_BYTES = 100
"""Maximal length in bytes of a suite's name in a file name; file systems have a limit."""
_FIELD = "eval.capture_videos"
_PACKAGES = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",)}


def unwrapped(env: VecEnv) -> Any:
    """Return the innermost environments of nested wrappers."""
    inner: Any = env
    while isinstance(inner, VecEnvWrapper | AnyVecEnv):
        inner = inner.env
    return inner


def env_list_of(env: VecEnv) -> EnvList | None:
    """Return the innermost environments if they are an `EnvList`, else None."""
    inner = unwrapped(env)
    return inner if isinstance(inner, EnvList) else None


class RecordVideo(VecEnvWrapper):
    """Wrapper that records a video of the first episode of some environments.

    A context manager: on exit the file is complete, unless an exception was raised, or images could
    not be rendered or written. Then `problem` has the reason, and the episodes continue without
    video. An image is rendered after each reset and each step, the last one before the environment
    is reset. The last image of an episode is repeated until all episodes have ended.

    Args:
        env: environments of this process.
        path: the .mp4 or .gif file to write; None to render only.
        counted: (B,) bool, environments to choose from, the first few are recorded; by default all.

    Raises:
        ConfigError: the environments are not in this process.
    """

    def __init__(self, env: VecEnv, path: Path | None, counted: BoolArray | None = None) -> None:
        super().__init__(env)
        inner = env_list_of(env)
        if inner is None:
            raise ConfigError(
                f"eval.capture_videos: expected environments or matches that are stepped one by "
                f"one, as in an EnvList, got {type(unwrapped(env)).__name__}; or turn videos off"
            )
        counted = np.ones(len(inner), dtype=np.bool_) if counted is None else counted
        counts = counted.reshape(len(inner.matches), -1).any(axis=1)
        matches: list[Any] = inner.matches
        self.path = path
        self.rendered: list[_RenderedMatch] = []
        self._problems: list[str] = []
        for i in np.flatnonzero(counts)[:MAX_ENVS].tolist():
            matches[i] = _RenderedMatch(matches[i], self._problems)
            self.rendered.append(matches[i])
        self._writer: Any = None
        self._over = False

    @property
    def problem(self) -> str | None:
        """Error message if the video could not be made; None without a problem."""
        return self._problems[0] if self._problems else None

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments and render them."""
        obs = self.env.reset(obs_config)
        self._append()
        return obs

    def wait(self) -> VecObs:
        """Return the observations after a step and render the environments."""
        obs = self.env.wait()
        if not self._over:
            self._append()
            self._over = all(rendered.over for rendered in self.rendered)
        return obs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        writer, self._writer = self._writer, None
        if writer is None or self.path is None:
            return
        temporary = temporary_path(self.path)
        try:
            writer.close()
            if kind is None and not self._problems:
                temporary.replace(self.path)
        except Exception as error:  # video writers raise errors of any kind
            self._problems.append(cannot_write(self.path, error))
        finally:
            temporary.unlink(missing_ok=True)

    def _append(self) -> None:
        if self.path is None or self._problems:
            return
        try:
            if self._writer is None:
                self._writer = open_video(self.path)
            self._writer.append_data(tile_images([rendered.picture for rendered in self.rendered]))
        except Exception as error:  # video writers raise errors of any kind
            self._problems.append(cannot_write(self.path, error))


class VideoFile(EpisodeCapture):
    """Capture that writes a video of the first episodes of a suite.

    Args:
        path: the .mp4 or .gif file; named suites append their name.
    """

    processes = 1

    def __init__(self, path: Path) -> None:
        self.path = path

    def for_suite(self, name: str) -> "VideoFile":
        """Return the capture of one suite, with its own file."""
        return VideoFile(path_of_suite(self.path, name))

    def wrap(self, envs: VecEnv, counted: BoolArray, stack: ExitStack) -> VecEnv:
        """Wrap environments to record a video until the stack is closed."""
        self._envs = stack.enter_context(RecordVideo(envs, self.path, counted))
        return self._envs

    def results(self, facts: EvaluationFacts) -> dict[str, Any]:
        """Return the path of the video, or the error message."""
        problem = self._envs.problem
        return {"video": self.path if problem is None else None, "video_problem": problem}


class _RenderedMatch:
    """Wrapper of a match that renders its first episode.

    Args:
        match: the match.
        problems: receives an error message if rendering fails; rendering then stops.
    """

    def __init__(self, match: Match, problems: list[str]) -> None:
        self.match, self.problems = match, problems
        self.world = type(getattr(match, "env", match)).__name__
        self.begun = self.over = False
        self.picture: ImageArray = np.zeros((0, 0, 3), dtype=np.uint8)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.match, name)

    def reset_filter(self, obs_filter: ObsSpace) -> list[Observation]:
        obs = self.match.reset_filter(obs_filter)
        self.begun, self.over = True, self.begun
        return self._after_step(obs)

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        return self._after_step(self.match.act(actions))

    def act_filter(
        self, actions: Sequence[Mapping[ActionName, Action]], obs_filter: ObsSpace
    ) -> list[Observation]:
        return self._after_step(self.match.act_filter(actions, obs_filter))

    def _after_step(self, obs: list[Observation]) -> list[Observation]:
        if self.over or self.problems:
            return obs
        try:
            picture = render_image(self.match, self.world, _FIELD, "turn videos off")
            if self.picture.size and picture.shape != self.picture.shape:
                raise ConfigError(
                    f"eval.capture_videos: expected pictures of {self.world} of one size, got "
                    f"(height, width) {picture.shape[:2]} after {self.picture.shape[:2]}; or turn "
                    "videos off"
                )
            self.picture = picture
        except ConfigError as error:  # metrics do not depend on images
            self.problems.append(str(error))
        return obs


def render_image(match: Match, world: str, field: str, alternative: str) -> ImageArray:
    """Render a match.

    Args:
        match: an environment or match.
        world: name of the environment, for messages.
        field: setting or option that requires rendering, for messages.
        alternative: remedy other than implementing or fixing `render`, for messages.

    Returns:
        (height, width, 3) uint8, a copy.

    Raises:
        ConfigError: rendering fails or returns something else.
    """
    # Render.
    try:
        picture: Any = match.render(mode="rgb_array")
    except NotImplementedError as error:
        raise ConfigError(
            f"{field}: expected an environment that renders, {world} does not ({error}); "
            f"implement render, or {alternative}"
        ) from None
    except Exception as error:  # raised by code of the environment
        raise ConfigError(
            f"{field}: expected an environment that renders, "
            f"{world}.render(mode='rgb_array') raised {type(error).__name__}: "
            f"{' '.join(str(error).split())}; fix it, or {alternative}"
        ) from None

    # Check shape and dtype.
    is_array = isinstance(picture, np.ndarray)
    if not (is_array and picture.dtype == np.uint8 and picture.shape[2:] == (3,) and picture.size):
        got = (picture.dtype, picture.shape) if is_array else type(picture)
        raise ConfigError(
            f"{field}: expected {world}.render(mode='rgb_array') to return uint8 of "
            f"shape (height, width, 3), at least 1 each, got {got}"
        )
    return np.array(picture)  # a copy, because the next step may overwrite it


def encode_png(picture: ImageArray) -> bytes:
    """Encode an image as PNG."""
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row starts with its filter type: none
    rows[:, 1:] = picture.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of RGB
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows.tobytes()))
    return b"".join([b"\x89PNG\r\n\x1a\n", *chunks, chunk(b"IEND", b"")])


def tile_images(pictures: Sequence[ImageArray]) -> ImageArray:
    """Tile images in a grid that is about as wide as high; empty cells are black.

    Args:
        pictures: (height, width, 3) uint8 each, of any sizes.

    Returns:
        (height, width, 3) uint8, with even height and width, as video codecs require.
    """
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    height, width = (max(picture.shape[i] for picture in pictures) for i in (0, 1))
    even = (size + size % 2 for size in (rows * height, columns * width))
    sheet = np.zeros((*even, 3), dtype=np.uint8)
    for i, picture in enumerate(pictures):
        top, left = i // columns * height, i % columns * width
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return sheet


def require_writer(path: Path, field: str) -> None:
    """Check that a video can be written to a file.

    Args:
        path: the file.
        field: setting or argument that names it.

    Raises:
        ConfigError: its suffix is unknown, or a package is missing.
    """
    if path.suffix.lower() not in _PACKAGES:
        raise ConfigError(f"{field}: expected a file named .mp4 or .gif, got {path}")
    if missing := missing_package(*_PACKAGES[path.suffix.lower()]):
        raise ConfigError(f"{field}: {missing}")


def open_video(path: Path) -> Any:
    """Open a video writer on the temporary file of `path`, see `temporary_path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new_file(temporary_path(path)).close()  # replaces a symlink, which the writer would follow
    try:
        if path.suffix.lower() == ".gif":
            return _Gif(temporary_path(path))
        import imageio.v2  # an extra

        codec: dict[str, Any] = {"codec": "libx264", "macro_block_size": 2}
        return imageio.v2.get_writer(
            temporary_path(path), format="FFMPEG", fps=PICTURES_PER_S, **codec
        )
    except BaseException:
        temporary_path(path).unlink(missing_ok=True)
        raise


class _Gif:
    """Writer of GIF files that buffers all images until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pictures: list[Any] = []

    def append_data(self, picture: ImageArray) -> None:
        from PIL import Image  # an extra

        self.pictures.append(Image.fromarray(picture).quantize())

    def close(self) -> None:
        first, *rest = self.pictures
        timing = {"duration": 1000 // PICTURES_PER_S, "loop": 0}
        first.save(self.path, format="GIF", save_all=True, append_images=rest, **timing)


def path_of_suite(path: Path, name: str) -> Path:
    """Return the path of a suite's video or replay; a long name is cut and gets a checksum."""
    part = name.replace("/", "_")
    if len(part.encode()) > MAX_NAME_BYTES:
        start = part.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
        part = f"{start}-{zlib.crc32(name.encode()):08x}"
    return path.with_stem(f"{path.stem}-{part}") if name else path


def cannot_write(path: Path, error: Exception, field: str = _FIELD) -> str:
    """Format an error message of one line for a file that could not be written."""
    message = " ".join(str(error).split())
    return f"{field}: cannot write {path}: {type(error).__name__}: {message}"


def temporary_path(path: Path) -> Path:
    """Return the temporary path of a video, which is renamed when it is complete."""
    return path.with_name(f".writing-{path.name}")
