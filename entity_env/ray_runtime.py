"""Files and Python environment that hosts of a Ray cluster get."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from entity_env.errors import ClusterError

_KINDS = {".txt": "pip", ".yml": "conda", ".yaml": "conda"}
"""Ray's words for files that describe a Python environment."""


class RuntimeEnv(NamedTuple):
    """Files and Python environment that hosts of a cluster get.

    Attributes:
        files: files and folders that workers find in their working folder: under the path that they
            have in `folder`, or by their names.
        python: a conda environment by its name, as a file (.yml), packages of pip (.txt), or the
            path of an interpreter on the hosts; None for that of the cluster.
        folder: the folder of relative paths.
    """

    files: Sequence[str] = ()
    python: str | None = None
    folder: Path = Path()

    def options(self, staged: Path) -> dict[str, Any]:
        """Return the environment in Ray's words.

        Args:
            staged: an empty folder, which gets links to the files.

        Raises:
            ClusterError: a file is missing, or two have one name.
        """
        options: dict[str, Any] = {}
        for name in self.files:
            self._stage(name, staged)
        if self.files:
            options["working_dir"] = str(staged)
        if self.python is not None:
            file = self.folder / self.python
            if file.suffix not in _KINDS:
                options["py_executable" if os.sep in self.python else "conda"] = self.python
            elif file.is_file():
                options[_KINDS[file.suffix]] = str(file)
            else:
                raise ClusterError(
                    f"rollout.ray_env: expected a file, got {self.python}, which is not there"
                )
        return options

    def _stage(self, name: str, staged: Path) -> None:
        """Link a file or folder, or the files of the whole folder, into another folder."""
        path = (self.folder / name).resolve()
        if not path.exists():
            raise ClusterError(
                f"rollout.ray_files: expected files and folders, got {name}, which is not there"
            )
        folder = self.folder.resolve()
        for target in path.iterdir() if path == folder else [path]:
            is_inside = target.is_relative_to(folder)
            link = staged / (target.relative_to(folder) if is_inside else target.name)
            if link.exists() or any(p.is_symlink() for p in link.parents):
                raise ClusterError(
                    f"rollout.ray_files: expected each path once, got {name}, which another "
                    "one has as well; leave one of them out"
                )
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)


NOTHING_BROUGHT = RuntimeEnv()
