"""Compare training with an earlier commit: results to the bit, or speed.

    python benchmarks/same.py COMMIT [--cases xor resumed ...] [--keep FOLDER] [--without REGEX]
                                     [--variables ENN_PPO__NORM_ADV_OVER=all ...]
    python benchmarks/same.py COMMIT --speed [--repeats 5] [--results FILE.md]

COMMIT is checked out in a separate folder, and its extension is compiled there. Each case is a few
commands of `enn`, run with both versions at the same time, one thread each. Their files are
compared: tensors and state of all checkpoints, metrics except those of time, memory or files, and
recordings byte by byte. Every configuration of `configs/` for an example runs three updates of at
most 4,096 frames; other cases cover the other options. Each checkout reads its own `configs/`.
Single-process cases run again without the extension. `--without` excludes entries of files that a
change adds or removes, such as a part of the state; `--variables` restores earlier meanings of
settings in this checkout.

--speed compares frames per second in the cases of `ceiling.py`, alternating both checkouts.
Results are not comparable between machines, because processors round differently.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from ceiling import CASES as SPEED_CASES
from measured_on import processor, short_revision
from safetensors import safe_open

from enn_trainer import StateManager
from entity_env.examples import ENV_REGISTRY

ROOT = Path(__file__).resolve().parents[1]
MAX_FRAMES = 4096
UPDATES = 3
TIMED = re.compile(r"time|.*(SPS|throughput|fps|eps)$|system/|checkpoint/|trace/|rest_ms|worker")
"""Metrics of time, memory or files."""
TIMED_STATE = re.compile(
    rf".*(time_used|run_name|tracker_ids|saved_at|created|seconds|sha256|metrics/({TIMED.pattern}))"
)
"""Entries of a state that depend on time, and digests of checkpoints with such entries."""
NOTHING = re.compile("(?!)")
AFTER: dict[str, str] = {}
"""Environment variables of the commands with the code of this checkout."""
LEAST_MEAN, LEAST_RATIO = 0.97, 0.93
HERD = f"env.id={ROOT}/benchmarks/same_worlds.py:Herd"
OLDER_HERD = f"env.id={ROOT}/benchmarks/same_worlds.py:OlderHerd"
SMALL = ["rollout.num_envs=32", "rollout.steps=8", "optim.bs=128", "total_timesteps=768"]
NET = ["net.d_model=16", "optim.lr=0.01"]
RELPOS = [
    'net.relpos_encoding.position_features=["x"]',
    "net.relpos_encoding.extent=[3]",
    "net.relpos_encoding.scale=0.2",
]


@dataclass(frozen=True)
class Case:
    """Commands that run one after another in one folder.

    Attributes:
        name: name of the case.
        commands: arguments of `enn`, or "torchrun" and arguments of training for two ranks.
        compiled: True to use the compiled extension.
        fails: indices of the commands that must fail.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    compiled: bool = True
    fails: tuple[int, ...] = ()


def cases() -> Iterator[Case]:
    """Yield all cases: configurations, options, then single-process cases without the extension."""
    single: list[Case] = []
    for path in sorted((ROOT / "configs").glob("*.ron")):
        if (settings := _config_settings(path)) is None:
            continue
        for processes in (1, 2):
            case_settings = (*settings, f"rollout.processes={processes}")
            case = Case(f"{path.stem}, {processes} processes", (_train(*case_settings),))
            single += [case] * (processes == 1)
            yield case
    for name, commands, fails in _option_cases():
        case = Case(name, tuple(commands), fails=fails)
        single.append(case)
        yield case
    for case in single:
        yield Case(f"{case.name}, uncompiled", case.commands, False, case.fails)


def _train(*arguments: str, run: str = "run") -> tuple[str, ...]:
    return ("train", *arguments, f"data_dir={run}-data", "--checkpoint-dir", run)


def _config_settings(path: Path) -> tuple[str, ...] | None:
    """Return the settings of a configuration, shortened to three updates of at most 4,096 frames.

    None for environments of benchmarks, which `enn train` cannot find.
    """
    config = StateManager(init_path=path).config
    if config.env.id not in ENV_REGISTRY:
        return None
    num_envs = min(config.rollout.num_envs, 256)
    steps = max(1, min(config.rollout.steps, MAX_FRAMES // num_envs))
    frames = num_envs * steps
    settings = [
        *("--config", str(path), f"rollout.num_envs={num_envs}", f"rollout.steps={steps}"),
        f"optim.bs={min(config.optim.bs, frames // 2)}",
        f"total_timesteps={UPDATES * frames}",
    ]
    if config.eval is not None:
        settings += [
            "eval.num_envs=8",
            "eval.episodes=none",
            "eval.steps=8",
            "eval.opponent=random",
        ]
        settings += [f"eval.interval={frames}"]
    return tuple(settings)


def _option_cases() -> Iterator[tuple[str, list[tuple[str, ...]], tuple[int, ...]]]:
    """Yield cases of options that no configuration covers: name, commands, indices that fail."""
    one_process, two_processes = "rollout.processes=1", "rollout.processes=2"
    herd = (HERD, *SMALL, *NET)
    yield "value network", [_train(*herd, *RELPOS, one_process, "vf_net.d_model=24")], ()
    yield "reward scaling", [_train(*herd, one_process, "ppo.reward_scaling=true")], ()
    yield "entropy targets", [_train(*herd, one_process, 'ppo.ent_targets={"walk": 0.8}')], ()
    bins = (
        "ppo.clip_vloss=false",
        "ppo.value_loss=hl_gauss",
        "ppo.value_bins.low=-3",
        "ppo.value_bins.high=3",
    )
    yield "value bins", [_train(*herd, one_process, *bins)], ()
    record = ("capture_samples=rollouts.rec", "capture_logits=true", "total_timesteps=256")
    recorded = _train(*herd, *record, one_process, run="recorded")
    yield "recording", [recorded, _train(*herd, *record, two_processes, run="workers")], ()
    cloning = "bc.path=recorded-data/rollouts.rec"
    yield "cloning term", [recorded, _train(*herd, one_process, cloning, "bc.bs=32")], ()
    clone_settings = (*NET, "optim.bs=32", "clone.epochs=2", "--checkpoint-dir", "clone")
    clone = ("clone", "recorded-data/rollouts.rec", HERD, *clone_settings, "data_dir=clone-data")
    ppo = ("train", HERD, "--checkpoint-dir", "clone", "--resume", one_process, *SMALL)
    yield "clone", [recorded, clone, ppo], ()
    evaluated = ("eval.steps=8", "eval.interval=256", "eval.num_envs=8", "eval.opponent=older")
    evaluated += ("eval.capture_samples=eval.rec",)
    older = _train(OLDER_HERD, *SMALL, *NET, one_process, "total_timesteps=256", run="older")
    for processes in (one_process, two_processes):
        name = "opponent of another environment" + ", workers" * (processes == two_processes)
        yield name, [older, _train(*herd, processes, *evaluated)], ()
    half = _train(*herd, one_process, "total_timesteps=512", "ppo.reward_scaling=true")
    goes_on = ("train", HERD, "--checkpoint-dir", "run", "--resume")
    resumed = (*goes_on, "total_timesteps=1024")
    yield "resumed in the middle of episodes", [half, resumed], ()
    remembers = _train(*herd, one_process, "total_timesteps=512", 'net.memory=(of: "entity")')
    yield "resumed with memory", [remembers, resumed], ()
    for name in ("duel_pool", "locks_lessons"):
        settings = _config_settings(ROOT / f"configs/{name}.ron")
        assert settings is not None
        *cut, total = settings
        frames = int(total.partition("=")[2])
        third = _train(*cut, one_process, f"total_timesteps={frames // UPDATES}")
        resume = ("train", "--checkpoint-dir", "run", "--resume", total)
        yield f"{name} resumed", [third, resume], ()
    shards = _train(*herd, one_process, "scale.shards=2")
    yield "two shards", [shards], ()
    yield "two ranks", [("torchrun", *shards[1:])], ()
    page = ("eval", "run", "--trust", "--episodes", "6", "--num-envs", "2", "--replay", "page.html")
    yield (
        "replay",
        [_train(*herd, one_process, "total_timesteps=256"), (*page, "--out", "report")],
        (),
    )
    always_saved = (*herd, one_process, "checkpoint.every_seconds=0")
    stopped = _train(*always_saved, 'env.kwargs={"stops_at": 200}')
    yield "update given up after SIGTERM", [stopped, goes_on], (0,)
    raised = _train(*always_saved, 'env.kwargs={"raises_at": 200}')
    yield "update given up after an error", [raised, goes_on], (0,)


# -- Running both checkouts ----------------------------------------------------------------------


def checkout(commit: str, folder: Path) -> Path:
    """Check out a commit into a folder and compile its extension."""
    git = ["git", "-C", str(ROOT)]
    subprocess.run(
        [*git, "worktree", "add", "--quiet", "--detach", str(folder), commit], check=True
    )
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(
        build, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return folder


def start(code: Path, case: Case, folder: Path) -> "subprocess.Popen[str]":
    """Start the commands of a case with a checkout's code, in a new folder.

    Standard output is their exit statuses as a line of JSON; their output is in `log.txt`.
    """
    program = (
        "import json, subprocess, sys\n"
        "with open('log.txt', 'w') as log:\n"
        "    print(json.dumps([subprocess.run([sys.executable, *command], stdout=log,\n"
        "        stderr=log).returncode for command in json.loads(sys.argv[1])]))"
    )
    folder.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(code),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "ROGUE_NET_NATIVE": "1" if case.compiled else "0",
        **(AFTER if code == ROOT else {}),
    }
    arguments = [_python_arguments(*command) for command in case.commands]
    commands = json.dumps(arguments).replace(f"{ROOT}/configs/", f"{code}/configs/")
    return subprocess.Popen(
        [sys.executable, "-c", program, commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def _python_arguments(command: str, *arguments: str) -> list[str]:
    """Return the arguments of Python for a command of `enn`, or for `torchrun` with two ranks."""
    if command == "torchrun":
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return [*ranks, "-m", "enn_trainer.train", *arguments]
    enn = "import sys; from enn_trainer.cli import main; sys.argv[0] = 'enn'; main()"
    return ["-c", enn, command, *arguments]


def run_both(
    codes: Sequence[Path], case: Case, folder: Path, without: re.Pattern[str] = NOTHING
) -> list[str]:
    """Run a case with both checkouts; return the differences, one per line."""
    folders = [folder / str(i) for i in range(len(codes))]
    started = [
        start(code, case, run_folder) for code, run_folder in zip(codes, folders, strict=True)
    ]
    statuses = [json.loads(process.communicate()[0]) for process in started]
    for status, run_folder in zip(statuses, folders, strict=True):
        for i, code in enumerate(status):
            if (code != 0) != (i in case.fails):
                log = (run_folder / "log.txt").read_text().splitlines()[-5:]
                return [f"enn {' '.join(case.commands[i])}: status {code}", *log]
    if statuses[0] != statuses[1]:
        return [f"exit statuses: {statuses[0]} and {statuses[1]}"]
    return [*differences(*folders, without)]


# -- Comparing their outputs ---------------------------------------------------------------------


def differences(before: Path, after: Path, without: re.Pattern[str] = NOTHING) -> Iterator[str]:
    """Yield the differences between the files of two runs, one per line.

    Args:
        before: folder of the first run.
        after: folder of the second run.
        without: pattern of names to exclude.
    """
    contents = [dict(_contents(folder)) for folder in (before, after)]
    names = {name for name in {*contents[0], *contents[1]} if not without.search(name)}
    for name in sorted(names):
        if name not in contents[0] or name not in contents[1]:
            yield f"{name}: only {'after' if name in contents[1] else 'before'}"
            continue
        before_value, after_value = contents[0][name], contents[1][name]
        if before_value != after_value:
            yield f"{name}: {_short_repr(before_value)} and {_short_repr(after_value)}"


def _short_repr(value: object) -> str:
    return f"{len(value)} bytes that differ" if isinstance(value, bytes) else repr(value)[:80]


def _contents(folder: Path) -> Iterator[tuple[str, object]]:
    """Yield the contents of the files of runs by name, without timestamps."""
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"__\d{8}-\d{6}(-\d+)?", "", str(path.relative_to(folder)))
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                for key in sorted(file.keys()):
                    x = file.get_tensor(key)
                    yield f"{name}: {key}", (str(x.dtype), *x.shape, x.numpy().tobytes())
        elif path.suffix == ".msgpack":
            state = msgpack.unpackb(path.read_bytes(), strict_map_key=False)
            yield from _leaves(name, state)
        elif path.name == "state.ron":
            lines = path.read_text().splitlines()
            yield name, [line for line in lines if not TIMED_STATE.match(line.strip())]
        elif path.name == "metrics.jsonl":
            for i, line in enumerate(path.read_text().splitlines()):
                for tag, value in json.loads(line).items():
                    if not TIMED.match(tag):
                        yield f"{name}:{i + 1}: {tag}", value
        elif path.suffix == ".rec":
            header, rest = _recording(path.read_bytes())
            yield f"{name}: header", header
            yield f"{name}: steps", rest
        elif path.suffix == ".html":
            yield name, path.read_bytes()
        elif path.suffix == ".ron":
            count = Counter[str]()
            for line in path.read_text().splitlines():
                yield f"{name}: {line.strip()} ({count[line]})", True
                count[line] += 1


def _recording(content: bytes) -> tuple[bytes, bytes]:
    """Return the first record without the timestamp of the run's name, and the remaining bytes."""
    # Magic, version, length and two checksums, see `entity_env/recording/recording_format.py`.
    begin = 24
    end = begin + int.from_bytes(content[12:16], "little")
    return re.sub(rb"\d{8}-\d{6}(-\d+)?", b"", content[begin:end]), content[end:]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, object]]:
    if TIMED_STATE.match(name):
        return
    if name.endswith("/envs") and isinstance(value, bytes):
        value = msgpack.unpackb(value, strict_map_key=False)
        del value["code"]  # digests of source
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(f"{name}/{key}", entry)
    elif isinstance(value, list):
        for i, entry in enumerate(value):
            yield from _leaves(f"{name}/{i}", entry)
    else:
        yield name, value if value == value else "nan"


# -- Speed ---------------------------------------------------------------------------------------


def frames_per_second(code: Path, settings: Sequence[str], folder: Path, seconds: float) -> float:
    """Train for some seconds; return the median speed, without the first two updates."""
    run_settings = (
        "rollout.processes=2",
        "total_timesteps=100000000",
        f"max_train_time={seconds:.0f}",
    )
    process = start(code, Case("speed", (_train(*settings, *run_settings),)), folder)
    (status,) = json.loads(process.communicate()[0])
    if status:
        raise RuntimeError((folder / "log.txt").read_text())
    (metrics,) = folder.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rates = [row["fps"] for row in rows if row["kind"] == "update"]
    return statistics.median(rates[2:] or rates[-1:])


def compare_speed(
    codes: Sequence[Path], names: Sequence[str], repeats: int, seconds: float, folder: Path
) -> tuple[list[str], bool]:
    """Return a table of all cases, and True if the targets are met."""
    rows, ratios = ["| case | before | after | ratio |", "| --- | --- | --- | --- |"], []
    for name in names:
        rates: list[list[float]] = [[], []]
        for turn in range(repeats):
            for i in (0, 1) if turn % 2 == 0 else (1, 0):
                run_folder = folder / f"{name}-{turn}-{i}"
                rates[i].append(frames_per_second(codes[i], SPEED_CASES[name], run_folder, seconds))
                shutil.rmtree(run_folder)
        before, after = map(statistics.median, rates)
        ratios.append(after / before)
        rows.append(f"| {name} | {before:,.0f} | {after:,.0f} | {ratios[-1]:.3f} |")
        print(rows[-1], flush=True)
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    rows += ["", f"Geometric mean {mean:.3f}, lowest {min(ratios):.3f}."]
    print(rows[-1], flush=True)
    return rows, mean >= LEAST_MEAN and min(ratios) >= LEAST_RATIO


# -- Command line --------------------------------------------------------------------------------


def main() -> int:
    """Run the comparison; return 0 if there are no differences, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--cases", nargs="+", help="prefixes of case names (default: all)")
    parser.add_argument("--keep", type=Path, help="keep the files of the runs in a new folder")
    parser.add_argument(
        "--without", default=NOTHING.pattern, help="pattern of entry names to exclude"
    )
    parser.add_argument(
        "--variables", nargs="+", default=[], help="environment variables of this checkout"
    )
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="of training, for --speed")
    parser.add_argument("--results", type=Path, help="write the table of --speed to a file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same-") as temporary:
        folder = Path(temporary)
        codes = [checkout(arguments.commit, folder / "before"), ROOT]
        AFTER.update(variable.split("=", 1) for variable in arguments.variables)
        try:
            if arguments.speed:
                return _speed(codes, arguments, folder)
            return _compare_outputs(codes, arguments, arguments.keep or folder / "runs")
        finally:
            remove = ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(codes[0])]
            subprocess.run(remove, check=True)


def _compare_outputs(codes: Sequence[Path], arguments: argparse.Namespace, folder: Path) -> int:
    chosen = [
        case
        for case in cases()
        if not arguments.cases or case.name.startswith(tuple(arguments.cases))
    ]
    started, different = time.monotonic(), 0
    for i, case in enumerate(chosen):
        case_folder = folder / re.sub(r"\W+", "-", case.name)
        diffs = run_both(codes, case, case_folder, re.compile(arguments.without))
        different += bool(diffs)
        left_s = (time.monotonic() - started) / (i + 1) * (len(chosen) - i - 1)
        print(
            f"{case.name}: {'same' if not diffs else 'DIFFERENT'} ({left_s:.0f} s left)",
            flush=True,
        )
        for line in diffs[:10]:
            print(f"    {line}")
        if not arguments.keep:
            shutil.rmtree(case_folder)
    print(f"{len(chosen) - different} of {len(chosen)} cases are the same to the bit")
    return int(different > 0)


def _speed(codes: Sequence[Path], arguments: argparse.Namespace, folder: Path) -> int:
    names = arguments.cases or list(SPEED_CASES)
    rows, is_fast_enough = compare_speed(codes, names, arguments.repeats, arguments.seconds, folder)
    if arguments.results:
        heading = f"`python benchmarks/same.py {arguments.commit} --speed`, {short_revision()}"
        heading += f", {processor()}; frames per second, medians of {arguments.repeats}, in turns"
        arguments.results.write_text(
            "\n".join(["# Speed compared with an earlier commit", "", heading, "", *rows, ""])
        )
    return int(not is_fast_enough)


if __name__ == "__main__":
    sys.exit(main())
