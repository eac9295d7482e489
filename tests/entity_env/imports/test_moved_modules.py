"""Moved modules are importable from their old paths."""

import importlib
import re
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

import enn_trainer
from entity_env.imports.moved_modules import MOVED, install

ROOT = Path(__file__).parents[3]


# A folder that moved gives a warning of its own, to whichever test is the first that imports it.
@pytest.mark.filterwarnings("ignore:.* is now :DeprecationWarning")
@pytest.mark.parametrize("old", MOVED)
def test_old_path_imports_the_moved_module_and_warns(old: str) -> None:
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
def test_moved_modules_exist_only_at_their_new_path(old: str) -> None:
    assert MOVED[old] not in MOVED
    assert find_spec(MOVED[old]) is not None
    path = ROOT.joinpath(*old.split("."))
    assert not path.with_suffix(".py").exists()
    assert not (path / "__init__.py").exists()


def test_import_hook_is_installed_once() -> None:
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_a_module_in_a_moved_folder_is_not_loaded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOVED, "entity_env.models", "entity_env.adapters")
    with pytest.warns(DeprecationWarning, match="entity_env.adapters"):
        old = importlib.import_module("entity_env.models.mapping")
    assert old is importlib.import_module("entity_env.adapters.mapping")
    assert old.__name__ == "entity_env.adapters.mapping"
    for name in ("entity_env.models", "entity_env.models.mapping"):
        del sys.modules[name]


def test_entry_of_a_module_precedes_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MOVED, "entity_env.models", "entity_env.adapters")
    monkeypatch.setitem(MOVED, "entity_env.models.mapping", "entity_env.vec.frames")
    with pytest.warns(DeprecationWarning, match="entity_env.models"):
        old = importlib.import_module("entity_env.models.mapping")
    assert old is importlib.import_module("entity_env.vec.frames")
    for name in ("entity_env.models", "entity_env.models.mapping"):
        del sys.modules[name]


def test_a_missing_module_of_a_moved_folder_is_reported_with_its_new_path() -> None:
    with (
        pytest.warns(DeprecationWarning, match="enn_trainer.ppo"),
        pytest.raises(ModuleNotFoundError, match=r"enn_trainer\.algorithms\.ppo\.rewards"),
    ):
        importlib.import_module("enn_trainer.ppo.rewards")


def test_names_of_0_1_16_are_importable_from_their_old_modules() -> None:
    for old in MOVED:
        sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match="is now"):
        from enn_trainer.agent import RogueNetAgent  # type: ignore[import-not-found]
    with pytest.warns(DeprecationWarning, match="is now"):
        from rogue_net.relpos_encoding import RelposEncoding  # type: ignore[import-not-found]
    assert RogueNetAgent is enn_trainer.RogueNetAgent
    assert RelposEncoding is importlib.import_module("rogue_net.relpos.encoding").RelposEncoding


def test_modules_that_coming_from_names_exist() -> None:
    page = (ROOT / "docs/coming_from.md").read_text()
    table = page.partition("| 0.1.16, and rogue_net 0.1.9 | here |\n| --- | --- |\n")[2]
    rows = [row.strip("| ").split(" | ") for row in table.partition("\n\n")[0].splitlines()]
    assert len(rows) > 10
    for old, new in rows:
        paths = re.findall(r"`([a-z_.0-9]+)`", old if new == "the same" else new)
        assert all(find_spec(path) for path in paths), paths
        if new.endswith("the old path works, with a warning"):
            assert [MOVED[old.strip("`")]] == paths
