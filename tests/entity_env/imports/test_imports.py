import ast
import copy
import importlib
import itertools
import pickle
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import cloudpickle
import pytest

import enn_trainer
import entity_env
import rogue_net

ROOT = Path(__file__).parents[3]
PACKAGES = [entity_env, rogue_net, enn_trainer]
SHADOWED = [
    (package, name)
    for package in PACKAGES
    for name in package.__all__
    if (Path(package.__path__[0]) / f"{name}.py").exists() and name != "stop_conditions"
]
"""Exported functions with the name of a module in the package."""


def in_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_every_export_and_star_import_binds_them(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    bound: dict[str, object] = {}
    exec(f"from {package.__name__} import *", bound)
    assert set(package.__all__) == bound.keys() - {"__builtins__"}
    assert all(bound[name] is getattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_and_programs_get_each_name_from_the_same_module(package: ModuleType) -> None:
    """The imports for type checkers match the table used at run time."""
    tree = ast.parse(Path(package.__file__ or "").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}  # type: ignore[attr-defined]
    assert seen == package._module_of
    assert {*package._module_of} - {"__version__"} == {*package.__all__}


def test_exported_functions_named_like_a_module_are_importable() -> None:
    names = {f"{package.__name__}.{name}" for package, name in SHADOWED}
    assert names == {f"enn_trainer.{name}" for name in ("train", "command", "check_agent")}


@pytest.mark.slow
def test_exported_function_takes_precedence_over_its_module() -> None:
    """Importing the module must not replace the exported function."""
    in_new_process("".join(imports_in_every_order(*shadowed) for shadowed in SHADOWED))


@pytest.mark.parametrize("function", ["enn_trainer.load_agent", "entity_env.check_env"])
def test_exported_function_takes_precedence_over_a_moved_module(function: str) -> None:
    code = f"import warnings; warnings.simplefilter('ignore'); import {function}; "
    in_new_process(code + f"assert type({function}).__name__ == 'function'")


def imports_in_every_order(package: ModuleType, name: str) -> str:
    """Return a program that imports an exported function and its module in pairs of ways."""
    full = f"{package.__name__}.{name}"
    ways = [
        f"import {full}",
        f"import {full} as m; assert type(m).__name__ == 'function', m",
        f"from {full} import __doc__",
        f"from {package.__name__} import {name} as f; assert type(f).__name__ == 'function', f",
        f"import importlib as i; m = i.import_module('{full}'); assert m.__name__ == '{full}', m",
        f"assert type({full}).__name__ == 'function', {full}",
    ]
    check = f"assert type({full}).__name__ == 'function', {full}"
    body = f"import sys, {package.__name__}\n"
    for order in itertools.permutations(ways, 2):
        body += f"for n in [n for n in sys.modules if n.startswith({full!r})]: del sys.modules[n]\n"
        body += f"vars({package.__name__}).pop({name!r}, None)\n"
        for way in order:
            body += f"{way}\n{check}\n"
    return body


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name_raises_the_usual_attribute_error(package: ModuleType) -> None:
    name = package.__name__
    for wrong in ("nothing", "_nothing", "__nothing__"):
        with pytest.raises(AttributeError) as caught:
            getattr(package, wrong)
        assert str(caught.value) == f"module {name!r} has no attribute {wrong!r}"
        assert caught.value.name == wrong
        assert not hasattr(package, wrong)
    with pytest.raises(ImportError, match=f"cannot import name 'nothing' from {name!r}"):
        exec(f"from {name} import nothing")


def test_modules_of_a_package_are_its_attributes() -> None:
    code = "import enn_trainer, sys; assert 'enn_trainer.config' not in sys.modules; "
    in_new_process(code + "print(enn_trainer.config.TrainConfig, enn_trainer.base.errors)")
    assert enn_trainer.stop_conditions is sys.modules["enn_trainer.stop_conditions"]


@pytest.mark.parametrize("package", PACKAGES)
def test_exports_and_packages_survive_pickling(package: ModuleType) -> None:
    """Pickled functions of a program refer to imported packages."""
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, type | FunctionType):
            assert pickle.loads(pickle.dumps(value)) is value
    for module in (pickle.loads(pickle.dumps(package)), copy.deepcopy(package)):
        assert module is package
    assert pickle.loads(cloudpickle.dumps(lambda: package))() is package


def test_an_export_can_be_replaced_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    original = enn_trainer.load_agent
    with monkeypatch.context() as patch:
        patch.setattr(enn_trainer, "load_agent", len)
        assert enn_trainer.load_agent is len
    assert enn_trainer.load_agent is original
    importlib.reload(enn_trainer)
    assert enn_trainer.load_agent is original
