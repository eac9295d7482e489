"""Startup time: import of the package, and time to the first update.

    python benchmarks/startup.py [--repeats 5] [--results FILE.md]

The import of `enn_trainer` and its `train` is compared with the import of torch alone, in
alternating processes; the first update is measured from the start of `make demo` to its first line.
Each figure is the median, with the smallest and largest. The exit status is 1 if one of them
exceeds its limit.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

IMPORT = "import enn_trainer; enn_trainer.train"
"""Exported names are imported lazily."""
MAX_IMPORT_RATIO = 1.5
"""Maximal time of `IMPORT` relative to `import torch`."""
MAX_FIRST_UPDATE_S = 4.0

ROOT = Path(__file__).parent.parent
DEMO = ["--config", str(ROOT / "configs/move_to_origin.ron"), "total_timesteps=600000"]


def seconds_to_import(statement: str) -> float:
    """Measure an import in a separate process, without the startup of the interpreter."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def seconds_to_first_update() -> float:
    """Measure the time from the start of the command to the line of the first update."""
    with TemporaryDirectory() as folder:
        where = [f"data_dir={folder}", "--checkpoint-dir", f"{folder}/run"]
        command = [sys.executable, "-m", "enn_trainer.train", *DEMO, *where]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            for line in demo.stdout:
                if line.startswith("step "):
                    break
            else:
                raise RuntimeError(f"the demo ended without an update, status {demo.wait()}")
            seconds = time.perf_counter() - start
            demo.kill()
        return seconds


def format_times(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    measures: dict[str, Callable[[], float]] = {
        "import torch": lambda: seconds_to_import("import torch"),
        IMPORT: lambda: seconds_to_import(IMPORT),
        "first update of the demo": seconds_to_first_update,
    }
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    for measure in measures.values():  # warm up the file cache
        measure()
    for _ in range(options.repeats):
        for name, measure in measures.items():
            seconds[name].append(measure())
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    ratio = medians[IMPORT] / medians["import torch"]
    first_s = medians["first update of the demo"]
    text = "\n".join(
        [
            "# Starting",
            "",
            f"`{' '.join(['python', *sys.argv])}`, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}. Seconds, median (smallest to largest) of "
            f"{options.repeats}.",
            "",
            "| what | seconds |",
            "| --- | --- |",
            *(f"| {name} | {format_times(of)} |" for name, of in seconds.items()),
            "",
            f"`{IMPORT}` takes {ratio:.2f} times `import torch` (at most {MAX_IMPORT_RATIO}), "
            f"the first update comes after {first_s:.1f} s (at most {MAX_FIRST_UPDATE_S:g}).",
            "",
        ]
    )
    print(text, end="")
    if options.results:
        options.results.write_text(text)
    sys.exit(ratio > MAX_IMPORT_RATIO or first_s > MAX_FIRST_UPDATE_S)


if __name__ == "__main__":
    main()
