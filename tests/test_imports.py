"""Imports point one way: entity_env, rogue_net, enn_trainer; and inside a package down the map."""

import ast
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["entity_env", "rogue_net", "enn_trainer"]
EXTRAS = {
    "tensorboard",
    "wandb",
    "gymnasium",
    "pettingzoo",
    "optuna",
    "onnx",
    "mlflow",
    "matplotlib",
    "imageio",
    "PIL",
}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def names_of(node: ast.AST) -> set[str]:
    """Return the modules and names that a node imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return {module} | {f"{module}.{alias.name}" for alias in node.names}
    return set()


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules and names that a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        assert getattr(node, "level", 0) == 0, f"{path}: relative import"
        names |= names_of(node)
    return frozenset(names)


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_order_of_packages(package: str) -> None:
    above = set(PACKAGES[PACKAGES.index(package) + 1 :])
    for path in modules(package):
        assert not above & {name.split(".")[0] for name in imports(path)}, path


@pytest.mark.slow
def test_compiled_code_is_imported_in_one_module() -> None:
    """So that networks, heads and layouts never ask whether they are compiled."""
    native, door = "rogue_net.native", "rogue_net.native.backend"
    what_there_is = {f"{native}.INSTRUCTIONS", f"{native}.PROBLEM"}  # for `enn --version`
    for package in PACKAGES:
        for path in modules(package):
            if path.parent != ROOT / "rogue_net/native":
                found = {name for name in imports(path) if name.startswith(native)}
                found -= {native, *what_there_is}
                inside = {name for name in found if not name.startswith(door)}
                assert not inside, (path, inside)


@pytest.mark.slow
def test_entity_env_never_imports_torch() -> None:
    for path in modules("entity_env"):
        assert "torch" not in {name.split(".")[0] for name in imports(path)}, path


LIGHT = {
    "from enn_trainer.runtime.versions import versions; versions()": {"torch", "numpy"},
    "import entity_env, rogue_net, enn_trainer": {"torch", "numpy", "importlib.metadata"},
    "import enn_trainer.cli; enn_trainer.cli.usage()": {"torch", "numpy"},
    "from enn_trainer.cli import COMMANDS; [one.parser() for one in COMMANDS.values()]": {"torch"},
    "from enn_trainer import ConfigError": {"torch", "numpy"},
    "import entity_env.examples; from entity_env import *": {"torch"},
    "import enn_trainer.config, rogue_net.config, rogue_net.relpos.config": {"torch"},
    "from enn_trainer import TrainConfig, RogueNetConfig, stop_conditions": {"torch"},
}
"""Imports, and the packages that they leave alone."""


@pytest.mark.parametrize("code", LIGHT)
def test_light_imports_import_nothing_heavy(code: str) -> None:
    """So that configurations and small commands are fast, and work with a broken torch."""
    program = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=ROOT,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert not (LIGHT[code] | EXTRAS) & {*done.stdout.split()}


COMMANDS_WITHOUT_TORCH = [
    "train --help",
    "train --hps-info lr",
    "eval",
    "inspect RUN",
    "inspect RUN@latest",
    "checkpoints list RUN",
    "checkpoints list RUN --json",
    "checkpoints verify RUN",
    "checkpoints show RUN --config",
    "checkpoints prune RUN --dry-run",
    "league show RUN",
    "plot",
    "runs RUN",
    "envs",
    "config dump-schema FOLDER/schema.ron",
]


def test_commands_that_compute_nothing_do_not_import_torch(tmp_path: Path) -> None:
    """They would take two seconds more."""
    run = tmp_path / "run"
    shutil.copytree(ROOT / "tests/golden/checkpoints/0.2.0", run)
    lines = [
        [word.replace("RUN", str(run)).replace("FOLDER", str(tmp_path)) for word in line.split()]
        for line in COMMANDS_WITHOUT_TORCH
    ]
    program = (
        "import sys; from contextlib import suppress; from enn_trainer.cli import run\n"
        f"for line in {lines!r}:\n"
        "    with suppress(SystemExit): run(line)\n"
        "    assert 'torch' not in sys.modules, line"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "step-000000000064" in done.stdout


@pytest.fixture(scope="module")
def loaded() -> tuple[list[str], list[str]]:
    """Modules that come with the trainer after torch, and those that come with all commands."""
    code = (
        "import sys, torch; before = set(sys.modules); import enn_trainer; enn_trainer.train; "
        "new = set(sys.modules) - before; print(*sorted(new)); import enn_trainer.cli; "
        "[command.load() for command in enn_trainer.cli.COMMANDS.values()]; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        timeout=60,
        capture_output=True,
        text=True,
    )
    with_trainer, with_commands = done.stdout.splitlines()
    return with_trainer.split(), with_commands.split()


@pytest.mark.slow
def test_importing_the_package_imports_no_optional_dependencies(
    loaded: tuple[list[str], list[str]],
) -> None:
    _, modules = loaded
    assert {"enn_trainer.cli.train_command", "enn_trainer.tracking.track"} <= {*modules}
    assert not EXTRAS & {*modules}


@pytest.mark.slow
def test_import_time_without_torch_is_short(
    loaded: tuple[list[str], list[str]],
) -> None:
    """Half of `import torch` at most, as `benchmarks/startup.py` measures: nothing large comes."""
    new, _ = loaded
    assert "enn_trainer.run.trainer" in new
    # Parts of torch that it does not import itself, as its compiler, take longer than all of it.
    assert not [name for name in new if name.startswith(("torch.", "sympy", "networkx"))]
    others = {name.partition(".")[0] for name in new} - {*PACKAGES, *sys.stdlib_module_names}
    allowed = {"rich", "hyperstate", "click", "docstring_parser", "msgpack", "msgpack_numpy"}
    allowed |= {"safetensors", "cloudpickle", "pyron", "ragged_buffer", "numpy"}
    # What comes compiled adds modules of its own, such as _cython_3_3_0; pygments comes with rich.
    assert not {name for name in others if not name.startswith("_")} - allowed - {"pygments"}
    assert len(new) < 400, len(new)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_have_no_import_cycles(package: str) -> None:
    """So that there is an order in which the files can be read."""
    names = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
        for p in modules(package)
    }
    remaining = {
        name: {i for i in imports(path) if i in names and i not in (name, package)}
        for name, path in names.items()
        if name != package
    }
    while remaining:
        free = [name for name, needs in remaining.items() if not needs & remaining.keys()]
        assert free, f"these import each other: {remaining}"
        for name in free:
            del remaining[name]


@pytest.mark.slow
def test_ragged_buffer_is_imported_in_one_module() -> None:
    for package in PACKAGES:
        for path in modules(package):
            if path != ROOT / "entity_env" / "ragged.py":
                assert "ragged_buffer" not in imports(path), path


@pytest.mark.slow
def test_hyperstate_is_imported_in_one_module() -> None:
    door = ROOT / "enn_trainer" / "config" / "hyperstate_door.py"
    for package in PACKAGES:
        for path in modules(package):
            found = {name.partition(".")[0] for name in imports(path)} & {"hyperstate", "pyron"}
            assert found == ({"hyperstate"} if path == door else set()), path


@pytest.mark.slow
def test_no_file_format_executes_code() -> None:
    """Pickles travel between a program and its own workers, and are never read from a file."""
    for package in PACKAGES:
        for path in modules(package):
            used = {name.split(".")[0] for name in imports(path)}
            assert not used & {"dill", "shelve", "marshal", "joblib"}, path
            if "pickle" in used:
                assert path.name == "transport.py", path
            if "cloudpickle" in used:
                assert path.name in ("worker.py", "parallel.py", "remote.py"), path


@pytest.mark.slow
def test_no_test_module_is_imported() -> None:
    """Shared test code is in separate modules."""
    wrong = []
    for path in [ROOT / "conftest.py", *modules("tests"), *modules("benchmarks")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                names = [name.rpartition(".")[2] for name in sorted(names_of(node))]
                wrong += [f"{where}: {name}" for name in names if name.startswith("test_")]
    assert not wrong, wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_exists(package: str) -> None:
    module = __import__(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name), name


BY_NAME = {
    *("import_module", "__import__", "spec_from_file_location", "exec_module", "load_module"),
    *("run_path", "run_module", "resolve_name", "find_world", "find_bot", "NamedWorld"),
}
"""Functions and classes by which a text becomes code, whatever they are an attribute of."""
BUILT_IN = {"eval", "exec", "compile"}
DOORS = {
    "entity_env/named_world.py": "imports what a name stands for; callers say who wrote the name",
    "enn_trainer/runtime/trust.py": "imports what is trusted",
    "enn_trainer/cli/load_world.py": "lets workers import what was imported here",
    "entity_env/imports/__init__.py": "modules of this package, by a table",
    "entity_env/imports/moved_modules.py": "modules of this package, by a table",
    "enn_trainer/cli/__init__.py": "commands of this package, by a table",
    "rogue_net/native/compiled.py": "the compiled module of this package",
    "entity_env/vec/worker.py": "the script of the user, which started the worker",
}
"""Files that import code by a name, and the origin of the name."""


def ways_to_code(path: Path) -> set[str]:
    """Return the functions that a file uses by which a text becomes code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names} & BY_NAME
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & BY_NAME
        elif isinstance(node, ast.Name):
            found |= {node.id} & BY_NAME
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & BUILT_IN
    return found


@pytest.mark.slow
def test_code_is_imported_by_name_in_one_module() -> None:
    """So that none is imported that the user neither wrote nor trusts."""
    for package in PACKAGES:
        for path in modules(package):
            found, where = ways_to_code(path), str(path.relative_to(ROOT))
            assert not found or where in DOORS, (where, found)
    own = ways_to_code(ROOT / "enn_trainer/cli/load_world.py")
    assert own == {"NamedWorld"}, "by the names that were imported through the door"
    assert ways_to_code(ROOT / "enn_trainer/runtime/trust.py") == {"find_world", "find_bot"}
