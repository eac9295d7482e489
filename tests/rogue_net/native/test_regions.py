"""Arrays of compiled code: detection of overruns, and no undefined behaviour."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import rogue_net
from rogue_net.native import library
from rogue_net.relpos.cells import between, grid_cells
from tests.fork_server import run_program
from tests.rogue_net.builders import needs_compiled

NATIVE = Path(rogue_net.__file__).parent / "native"
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")


@needs_gcc
@pytest.mark.parametrize(
    ("array", "index", "expected"),
    [(0, 9, "0"), (0, 10, "3"), (0, -1, "0"), (1, -1, "3"), (1, 4, "0"), (1, 20, "3")],
)
def test_out_of_bounds_write_is_detected(
    tmp_path: Path, array: int, index: int, expected: str
) -> None:
    program = tmp_path / "program.c"
    program.write_text(
        f"""
        #include <stdio.h>
        #include "{NATIVE}/blocks.h"
        #include "{NATIVE}/regions.h"
        int main(void) {{
            const int64_t sizes[2] = {{10, 5}};
            float *at[2], *room = open_regions(2, sizes, at);
            float *padded = at[{array}] + {index} < room ? room : at[{array}] + {index};
            *padded = 1.0f;
            printf("%d", close_regions(room, 2, sizes, 0));
        }}
        """
    )
    subprocess.run(["gcc", "-O1", str(program), "-o", str(tmp_path / "program")], check=True)
    said = subprocess.run([tmp_path / "program"], check=True, capture_output=True, text=True)
    assert said.stdout == expected


@needs_compiled
def test_buffer_overrun_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overrunning:
        @staticmethod
        def network_forward(*_: object) -> int:
            return 3

    monkeypatch.setattr(library, "_LIBRARY", Overrunning)
    with pytest.raises(SystemError, match=r"past the end of an array.*ROGUE_NET_NATIVE=0"):
        library.call("network_forward", library.NetworkStruct())


@pytest.mark.slow
@needs_gcc
@needs_compiled
def test_cells_of_extreme_positions_are_defined(tmp_path: Path) -> None:
    """A float that no integer can hold must not be cast to one: the sanitizer ends the process."""
    compiled = tmp_path / "pairs.so"
    sanitize = ["-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
    source = [str(NATIVE / "pairs.c"), "-o", str(compiled)]
    subprocess.run(["gcc", "-shared", "-fPIC", *sanitize, *source, "-lm"], check=True)
    program = f"""
import ctypes
import torch
from rogue_net.native import library
from tests.rogue_net.builders import KINDS, large_case
compiled = ctypes.CDLL({str(compiled)!r})
for kind in KINDS:
    for strange in (float("nan"), float("inf"), -float("inf"), -1e30, 1e30):
        net, batch = large_case(kind, 16)
        if net.relpos is None:
            continue
        for rows in batch.features.values():
            rows.values[::3] = strange
        before, library._LIBRARY.pair_cells = library._LIBRARY.pair_cells, compiled.pair_cells
        with torch.no_grad():
            net(batch)
print("defined")
"""
    root = Path(rogue_net.__file__).parents[1]
    said = run_program(["-c", program], cwd=root, text=True)
    assert (said.returncode, said.stdout) == (0, "defined\n"), said.stderr


@pytest.mark.parametrize("interpolate", [False, True])
def test_nan_positions_have_a_cell_of_the_grid(interpolate: bool) -> None:
    nan = torch.tensor([[float("nan"), 1.0], [0.0, 0.0]])
    for corner in grid_cells(nan, [2, 2], 0.5, interpolate).corners:
        assert bool(((corner >= 0) & (corner < 25)).all())
    assert between(torch.tensor([float("nan")]), 5).corners[0].tolist() == [0]
