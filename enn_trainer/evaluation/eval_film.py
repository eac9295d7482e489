"""The files of films."""

import importlib.util
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ConfigError
from entity_env.plain_open import new_file

Picture = npt.NDArray[np.uint8]
VIDEOS = "videos"
"""Folder for the films of a run, in the folder of its numbers."""
PICTURES_PER_S = 10
MOST_NAME_BYTES = 100
"""Of a suite's name in that of a file, which systems limit."""
_PACKAGES = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",)}


def require_writer(path: Path, field: str) -> None:
    """Refuse a file that no video can be written to.

    Args:
        path: the file.
        field: what asks for it.

    Raises:
        ConfigError: it is of no known kind, or a package is missing.
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
    """A writer of a file beside the one that is asked for, which appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new_file(unfinished(path)).close()  # so that no link in its place is written through
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


def film_of_suite(film: Path, name: str) -> Path:
    """The file of a suite's video; of a long name the beginning, and a number for all of it."""
    part = name.replace("/", "_")
    if len(part.encode()) > MOST_NAME_BYTES:
        begin = part.encode()[:MOST_NAME_BYTES].decode(errors="ignore")
        part = f"{begin}-{zlib.crc32(name.encode()):08x}"
    return film.with_stem(f"{film.stem}-{part}") if name else film


def cannot_write(path: Path, error: Exception) -> str:
    """Why there is no film, in one line."""
    message = " ".join(str(error).split())
    return f"eval.capture_videos: cannot write {path}: {type(error).__name__}: {message}"


def unfinished(path: Path) -> Path:
    """What a film is called until it is complete."""
    return path.with_name(f".writing-{path.name}")
