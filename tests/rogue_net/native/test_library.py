"""The compiled library without torch."""

import ctypes
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rogue_net
from entity_env.seeding import mix, uniforms

FILES = list(Path(rogue_net.__file__).parent.glob("native/_native*.so"))

pytestmark = pytest.mark.skipif(not FILES, reason="there was no compiler")


@pytest.fixture
def compiled() -> Any:
    """The compiled module, loaded without its package, which imports torch."""
    loader = ExtensionFileLoader("_native", str(FILES[0]))
    spec = spec_from_file_location("_native", FILES[0], loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_native_module_uses_the_stable_abi(compiled: Any) -> None:
    assert FILES[0].name == "_native.abi3.so"
    assert compiled.instructions in ("any", "x86-64-v3", "x86-64-v4")


def test_compiled_random_numbers_equal_numpy(compiled: Any) -> None:
    library = ctypes.CDLL(compiled.__file__)
    lengths, environments = np.array([2, 0, 3]), np.array([7, 8, 2**40])
    drawn = np.zeros(5, np.float32)
    arrays = (environments, lengths, drawn)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
    library.draw_uniforms(ctypes.c_uint64(mix(5)), ctypes.c_int64(3), *pointers)
    rows, ranks = np.repeat(environments, lengths), np.array([0, 1, 0, 1, 2])
    np.testing.assert_array_equal(drawn, uniforms(mix(5, rows, ranks)))
