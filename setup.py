"""Build of what `pyproject.toml` cannot describe: the compiled part, and a folder of another name.

The compiled part uses nothing but Python's limited interface, so that one wheel serves every Python
from 3.11 on. Everything works without it, only slower. `ENN_PURE=1` leaves it out; so do a Python
without the limited interface and a machine without a compiler.
"""

import hashlib
import os
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

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
PACKAGES = ["entity_env", "rogue_net", "enn_trainer"]
CONFIGS = "enn_trainer.configs"
"""The configurations, which `enn_trainer/config/shipped.py` reads; in a checkout, at the top."""
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
IS_PURE = os.environ.get("ENN_PURE") == "1" or IS_FREE_THREADED


def digest() -> str:
    """Return the digest of all that is compiled, by which `compiled.py` recognises an old build."""
    files = sorted(FOLDER.glob("*.[ch]"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class BuildExtension(build_ext):
    """Build of the compiled part that removes builds for one Python, which would be found first."""

    def run(self) -> None:
        """Build, then remove what earlier releases left in the source tree."""
        super().run()
        if self.inplace or self.editable_mode:
            for old in FOLDER.glob("_native.cpython-*.so"):
                old.unlink()


COMPILED = Extension(
    "rogue_net.native._native",
    [str(FOLDER / name) for name in SOURCES],
    depends=[str(file) for file in FOLDER.glob("*.[ch]")],
    define_macros=[("SOURCE", f'"{digest()}"'), ("Py_LIMITED_API", "0x030B0000")],
    # No debug information: it names the folder of the build, and wheels are equal to the byte.
    extra_compile_args=["-O3", "-g0", "-std=gnu11", "-Wno-psabi", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,
    py_limited_api=True,
)

setup(
    packages=[*find_packages(include=[f"{name}*" for name in PACKAGES]), CONFIGS],
    package_dir={CONFIGS: "configs"},
    cmdclass={"build_ext": BuildExtension},
    ext_modules=[] if IS_PURE else [COMPILED],
    options={} if IS_PURE else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
