"""Files and Python environment for the hosts of a Ray cluster; errors of clusters."""

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from entity_env.errors import ClusterError
from entity_env.vec.ray_cluster import RuntimeEnv, cluster
from tests.ray_marks import NEEDS_RAY

ROOT = Path(__file__).parents[3]


def run(program: str, folder: Path, **environ: str) -> str:
    """Run a program in a folder; return its output, with the last lines of its errors."""
    path = os.pathsep.join([str(ROOT), str(folder)])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return ran.stdout + ran.stderr[-3000:]


WORLD = """
from pathlib import Path
from entity_env.examples import Minefield
from levels.numbers import ONE

class Brought(Minefield):
    def __init__(self) -> None:
        super().__init__(max_mines=int(Path("levels/mines.txt").read_text()) + ONE)
"""

PROGRAM = """
import functools, shutil, sys
from pathlib import Path
from entity_env import EnvList, ParallelEnvList
from entity_env.vec.ray_cluster import RuntimeEnv, cluster
from entity_env.vec.ray_worker import RayWorker
from tests.entity_env.vec.frames import assert_same_frames, shown
from a_brought_world import Brought

runtime = RuntimeEnv(("a_brought_world.py", "levels"), folder=Path.cwd())
expected = shown(EnvList(Brought, 4), 10)
with cluster("auto", "rollout.ray", runtime if "bring" in sys.argv else RuntimeEnv()) as ray:
    Path("a_brought_world.py").unlink()
    shutil.rmtree("levels")
    new = functools.partial(RayWorker, ray, {"CPU": 0.1})
    envs = ParallelEnvList(Brought, 4, 2, new_worker=new)
    assert_same_frames(shown(envs, 10), expected)
    envs.close()
    print("the same frames")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a world in a module, that imports a module and reads a file."""
    (tmp_path / "a_brought_world.py").write_text(WORLD)
    (tmp_path / "levels").mkdir()
    (tmp_path / "levels" / "mines.txt").write_text("2")
    (tmp_path / "levels" / "numbers.py").write_text("ONE = 1")
    (tmp_path / "levels" / ".gitignore").write_text("*.txt")
    return tmp_path


class TestOnACluster:
    """Clusters of this machine."""

    pytestmark = NEEDS_RAY

    def test_workers_have_the_modules_and_data_of_the_working_folder(self, folder: Path) -> None:
        assert "the same frames" in run(f"import sys; sys.argv.append('bring')\n{PROGRAM}", folder)

    def test_errors_for_missing_modules_name_the_setting(self, folder: Path) -> None:
        output = run(PROGRAM, folder)
        assert "rollout.ray: expected the environment's modules on the host" in output
        assert "No module named 'a_brought_world'; name its files in rollout.ray_files" in output

    def test_workers_run_in_the_interpreter_of_the_environment(self, folder: Path) -> None:
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nOF_ENVIRONMENT=yes exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        program = f"""
        import functools, os
        from entity_env import ParallelEnvList
        from entity_env.examples import Minefield
        from entity_env.vec.ray_cluster import RuntimeEnv, cluster
        from entity_env.vec.ray_worker import RayWorker
        from tests.entity_env.vec.frames import shown

        class Asks(Minefield):
            def __init__(self):
                super().__init__()
                assert os.environ["OF_ENVIRONMENT"] == "yes"

        with cluster("auto", "rollout.ray", RuntimeEnv(python={str(python)!r})) as ray:
            assert "OF_ENVIRONMENT" not in os.environ
            new = functools.partial(RayWorker, ray, {{"CPU": 0.1}})
            envs = ParallelEnvList(Asks, 2, 1, new_worker=new)
            shown(envs, 2)
            envs.close()
            print("played")
        """
        assert "played" in run(program, folder)

    def test_a_python_environment_that_hosts_cannot_create_raises(self, folder: Path) -> None:
        program = """
        from entity_env import ParallelEnvList
        from entity_env.examples import Minefield
        from entity_env.vec.ray_cluster import RuntimeEnv, cluster
        from entity_env.vec.ray_worker import RayWorker
        import functools
        with cluster("auto", "rollout.ray", RuntimeEnv(python="no_such_environment")) as ray:
            new = functools.partial(RayWorker, ray, {"CPU": 0.1})
            ParallelEnvList(Minefield, 2, 1, new_worker=new)
        """
        start_s = time.monotonic()
        assert "WorkerError: rollout.ray_env: expected" in run(program, folder)
        assert time.monotonic() - start_s < 60

    def test_files_for_a_cluster_that_is_joined_already_raise(self, folder: Path) -> None:
        program = """
        import ray
        from entity_env.vec.ray_cluster import RuntimeEnv, cluster
        with cluster("auto", "rollout.ray"):
            with cluster("auto", "eval.ray", RuntimeEnv(("levels",))):
                pass
        """
        problem = "rollout.ray_files: expected no connection to Ray before the run"
        assert problem in run(program, folder)

    def test_joining_with_another_token_fails_within_seconds(self, folder: Path) -> None:
        program = """
        import subprocess, sys, os
        from entity_env.vec.ray_cluster import cluster
        another = "import sys, time\\nfrom entity_env.vec.ray_cluster import cluster\\n"
        another += "start_s = time.monotonic()\\ntry:\\n"
        another += "    with cluster(sys.argv[1], 'rollout.ray') as ray: print('joined')\\n"
        another += "finally: print(time.monotonic() - start_s < 10)"
        with cluster("auto", "rollout.ray") as ray:
            address = ray.get_runtime_context().gcs_address
            for token in os.environ["RAY_AUTH_TOKEN"], "a" * 64:
                environ = {**os.environ, "RAY_AUTH_TOKEN": token}
                command = [sys.executable, "-W", "ignore", "-c", another, address]
                ran = subprocess.run(command, env=environ, capture_output=True, text=True)
                print(ran.stdout + ran.stderr)
        """
        output = run(program, folder)
        assert "joined\nTrue" in output
        assert "False" not in output
        assert "ClusterError: rollout.ray: expected a cluster at 127.0.0.1:" in output
        assert "Authentication token is missing or incorrect" in output

    def test_an_address_without_a_cluster_fails_within_seconds(self) -> None:
        start_s = time.monotonic()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            with pytest.raises(ClusterError, match=rf"^rollout\.ray: .*{address}, got nothing"):
                enter(address)
            listening.listen()
            with pytest.raises(ClusterError, match=r"^rollout\.ray: .*Timed out while waiting"):
                enter(address)
        assert time.monotonic() - start_s < 30


def enter(address: str) -> None:
    """Join a cluster."""
    with cluster(address, "rollout.ray"):
        pass


def test_files_are_found_under_their_relative_paths_or_their_names(tmp_path: Path) -> None:
    folder, elsewhere, staged = (tmp_path / name for name in ("here", "elsewhere", "staged"))
    for path in (folder / "sim" / "maps", elsewhere, staged):
        path.mkdir(parents=True)
    (folder / "sim" / "maps" / "a.txt").write_text("a")
    (elsewhere / "b.txt").write_text("b")
    files = ("sim/maps", str(elsewhere / "b.txt"))
    assert RuntimeEnv(files, folder=folder).options(staged) == {"working_dir": str(staged)}
    assert (staged / "sim" / "maps" / "a.txt").read_text() == "a"
    assert (staged / "b.txt").read_text() == "b"
    (tmp_path / "all").mkdir()
    RuntimeEnv((".",), folder=folder).options(tmp_path / "all")
    assert (tmp_path / "all" / "sim" / "maps" / "a.txt").read_text() == "a"


def test_files_are_found_if_the_temporary_folder_is_a_link(tmp_path: Path) -> None:
    """On macOS /var is a link."""
    (tmp_path / "real" / "staged").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "a.txt").write_text("a")
    staged = tmp_path / "link" / "staged"
    RuntimeEnv(("a.txt",), folder=tmp_path).options(staged)
    assert (staged / "a.txt").read_text() == "a"


@pytest.mark.parametrize(
    ("python", "options"),
    [
        ("sim", {"conda": "sim"}),
        ("/opt/sim/bin/python", {"py_executable": "/opt/sim/bin/python"}),
        ("needs.txt", {"pip": "needs.txt"}),
        ("sim.yml", {"conda": "sim.yml"}),
    ],
)
def test_the_type_of_a_python_environment_follows_from_its_form(
    tmp_path: Path, python: str, options: dict[str, str]
) -> None:
    for name in ("needs.txt", "sim.yml"):
        (tmp_path / name).touch()
    got = RuntimeEnv(python=python, folder=tmp_path).options(tmp_path)
    assert {kind: value.replace(f"{tmp_path}/", "") for kind, value in got.items()} == options


@pytest.mark.parametrize(
    ("runtime", "problem"),
    [
        (RuntimeEnv(("none.txt",)), r"ray_files: expected files and folders, got none\.txt"),
        (RuntimeEnv(("sim", "sim/a.txt")), r"ray_files: expected each path once, got sim/a\.txt"),
        (RuntimeEnv(("sim/a.txt", "sim")), r"ray_files: expected each path once, got sim for"),
        (RuntimeEnv(python="none.txt"), r"ray_env: expected a file, got none\.txt"),
    ],
)
def test_missing_and_duplicate_files_raise(
    tmp_path: Path, runtime: RuntimeEnv, problem: str
) -> None:
    (tmp_path / "staged").mkdir()
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "a.txt").touch()
    with pytest.raises(ClusterError, match=rf"^rollout\.{problem}"):
        runtime._replace(folder=tmp_path).options(tmp_path / "staged")
