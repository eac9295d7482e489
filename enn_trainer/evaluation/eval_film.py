"""Video files of evaluations."""

import importlib.util
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ConfigError
from entity_env.serialization.plain_open import new_file

Picture = npt.NDArray[np.uint8]
VIDEOS = "videos"
"""Name of the folder for videos in the folder of a run's metrics."""
PICTURES_PER_S = 10
MOST_NAME_BYTES = 100
"""Maximal length of a suite's name in a file name, which file systems limit."""
_PACKAGES = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",)}


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
