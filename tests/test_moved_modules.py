"""Modules that moved are found under the paths that they had."""

import importlib
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from entity_env.moved_modules import MOVED, install

ROOT = Path(__file__).parent.parent


# A folder that moved gives a warning of its own, to whichever test is the first that imports it.
@pytest.mark.filterwarnings("ignore:.* is now :DeprecationWarning")
@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_gives_the_module_at_its_new_path_and_warns(old: str) -> None:
    sys.modules.pop(old, None)
    with warnings.catch_warnings():  # of its folder, if that moved as well
        warnings.simplefilter("ignore")
        importlib.import_module(old.rpartition(".")[0])
    new = importlib.import_module(MOVED[old])
    spec, name = new.__spec__, new.__name__
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        assert importlib.import_module(old) is new
    assert (new.__spec__, new.__name__) == (spec, name)


@pytest.mark.parametrize("old", MOVED)
def test_a_moved_module_has_left_its_old_place_and_is_at_its_new_one(old: str) -> None:
    assert MOVED[old] not in MOVED
    assert find_spec(MOVED[old]) is not None
    path = ROOT.joinpath(*old.split("."))
    assert not path.with_suffix(".py").exists()
    assert not (path / "__init__.py").exists()


def test_the_hook_is_installed_once() -> None:
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_a_moved_module_is_found_in_a_folder_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the same name in the new folder must not be loaded twice."""
    monkeypatch.setitem(MOVED, "entity_env.models", "entity_env.adapters")
    monkeypatch.setitem(MOVED, "entity_env.models.mapping", "entity_env.adapters.mapping")
    with pytest.warns(DeprecationWarning, match="entity_env.adapters"):
        old = importlib.import_module("entity_env.models.mapping")
    assert old is importlib.import_module("entity_env.adapters.mapping")
    assert old.__name__ == "entity_env.adapters.mapping"
    for name in ("entity_env.models", "entity_env.models.mapping"):
        del sys.modules[name]


def test_an_old_module_is_found_in_an_old_folder_by_name() -> None:
    sys.modules.pop("enn_trainer.settings", None)
    sys.modules.pop("enn_trainer.config.config_io", None)
    with pytest.warns(DeprecationWarning, match="enn_trainer"):
        from enn_trainer.settings import config_io  # type: ignore[import-not-found]
    assert config_io is importlib.import_module("enn_trainer.config.load")
