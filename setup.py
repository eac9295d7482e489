"""What `pyproject.toml` cannot say: the compiled part, without which all works, only slower."""

from setuptools import Extension, setup

FOLDER = "rogue_net/native"
SOURCES = ["native.c", "pairs.c", "blocks_any.c", "blocks_v3.c", "blocks_v4.c"]

setup(
    ext_modules=[
        Extension(
            "rogue_net.native._native",
            [f"{FOLDER}/{name}" for name in SOURCES],
            depends=[f"{FOLDER}/{name}" for name in ("blocks.c", "blocks.h")],
            extra_compile_args=["-O3", "-std=gnu11", "-Wno-psabi"],
            optional=True,
        )
    ]
)
