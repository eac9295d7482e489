"""What `pyproject.toml` cannot say: the compiled part, without which all works, only slower."""

import hashlib
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("rogue_net/native")
SOURCES = [
    "draws.c",
    "native.c",
    "network.c",
    "pairs.c",
    "threads.c",
    "blocks_any.c",
    "blocks_v3.c",
    "blocks_v4.c",
]


def digest() -> str:
    """Of all that is compiled, so that what is old can be told; as in `library.py`."""
    files = sorted(FOLDER.glob("*.[ch]"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


setup(
    ext_modules=[
        Extension(
            "rogue_net.native._native",
            [str(FOLDER / name) for name in SOURCES],
            depends=[str(file) for file in FOLDER.glob("*.[ch]")],
            define_macros=[("SOURCE", f'"{digest()}"')],
            extra_compile_args=["-O3", "-std=gnu11", "-Wno-psabi", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
