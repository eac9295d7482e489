"""Compare training with an earlier commit, to the bit; or its speed.

    python benchmarks/same.py COMMIT [--cases xor resumed ...] [--keep FOLDER] [--without REGEX]
                                     [--variables ENN_PPO__NORM_ADV_OVER=all ...]
    python benchmarks/same.py COMMIT --speed [--repeats 5] [--results FILE.md]

COMMIT is checked out in a folder of its own and its compiled part is built there. Each case is a
few commands of `enn`, run with the code of both at the same time, one thread each, and their files
are compared: tensors of all saves, the rest of their state, metrics except those of time, memory or
files, and recordings byte by byte. Every configuration of `configs/` for an example takes three
updates of at most 4,096 frames; other cases have the other options. Each checkout reads its own
`configs/`. Cases of one process run once more without the compiled part. Entries of files that a
change adds or removes, such as a part of the state, are left out by `--without`; `--variables` give
settings of this checkout the meaning that they had before.

--speed compares frames per second in the cases of `ceiling.py`, both checkouts in turns.
Nothing is compared between machines: processors round differently.
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
MOST_FRAMES = 4096
UPDATES = 3
TIMED = re.compile(r"time|.*(SPS|throughput|fps|eps)$|system/|checkpoint/|trace/|rest_ms|worker")
"""Metrics that measure the clock, memory or files."""
TIMED_STATE = re.compile(
    rf".*(time_used|run_name|tracker_ids|saved_at|created|seconds|sha256|metrics/({TIMED.pattern}))"
)
"""Entries of a state that depend on the clock, and digests of saves with such entries."""
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
    """Commands that run one after the other in one folder.

    Attributes:
        name: of the case.
        commands: arguments of `enn`, or of training after "torchrun" for two ranks.
        compiled: True to use the compiled part.
        fails: the indices of the commands that must fail.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    compiled: bool = True
    fails: tuple[int, ...] = ()


def cases() -> Iterator[Case]:
    """Yield all cases: configurations, then options, then those of one process uncompiled."""
    single: list[Case] = []
    for path in sorted((ROOT / "configs").glob("*.ron")):
        if (settings := _of_config(path)) is None:
            continue
        for processes in (1, 2):
            own = (*settings, f"rollout.processes={processes}")
            case = Case(f"{path.stem}, {processes} processes", (_train(*own),))
            single += [case] * (processes == 1)
            yield case
    for name, commands, fails in _options():
        case = Case(name, tuple(commands), fails=fails)
        single.append(case)
        yield case
    for case in single:
        yield Case(f"{case.name}, uncompiled", case.commands, False, case.fails)


def _train(*arguments: str, run: str = "run") -> tuple[str, ...]:
    return ("train", *arguments, f"data_dir={run}-data", "--checkpoint-dir", run)


def _of_config(path: Path) -> tuple[str, ...] | None:
    """Return the settings of a configuration, cut to three updates of at most 4,096 frames.

    None if its environment is that of a benchmark, which `enn train` does not know.
    """
    config = StateManager(init_path=path).config
    if config.env.id not in ENV_REGISTRY:
        return None
    num_envs = min(config.rollout.num_envs, 256)
    steps = max(1, min(config.rollout.steps, MOST_FRAMES // num_envs))
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


def _options() -> Iterator[tuple[str, list[tuple[str, ...]], tuple[int, ...]]]:
    """Yield cases of options that no configuration has: name, commands, those that fail."""
    one, two = "rollout.processes=1", "rollout.processes=2"
    herd = (HERD, *SMALL, *NET)
    yield "value network", [_train(*herd, *RELPOS, one, "vf_net.d_model=24")], ()
    yield "reward scaling", [_train(*herd, one, "ppo.reward_scaling=true")], ()
    yield "entropy targets", [_train(*herd, one, 'ppo.ent_targets={"walk": 0.8}')], ()
    bins = (
        "ppo.clip_vloss=false",
        "ppo.value_loss=hl_gauss",
        "ppo.value_bins.low=-3",
        "ppo.value_bins.high=3",
    )
    yield "value bins", [_train(*herd, one, *bins)], ()
    record = ("capture_samples=rollouts.rec", "capture_logits=true", "total_timesteps=256")
    recorded = _train(*herd, *record, one, run="recorded")
    yield "recording", [recorded, _train(*herd, *record, two, run="workers")], ()
    cloning = "bc.path=recorded-data/rollouts.rec"
    yield "cloning term", [recorded, _train(*herd, one, cloning, "bc.bs=32")], ()
    own = (*NET, "optim.bs=32", "clone.epochs=2", "--checkpoint-dir", "clone")
    clone = ("clone", "recorded-data/rollouts.rec", HERD, *own, "data_dir=clone-data")
    ppo = ("train", HERD, "--checkpoint-dir", "clone", "--resume", one, *SMALL)
    yield "clone", [recorded, clone, ppo], ()
    evaluated = ("eval.steps=8", "eval.interval=256", "eval.num_envs=8", "eval.opponent=older")
    evaluated += ("eval.capture_samples=eval.rec",)
    older = _train(OLDER_HERD, *SMALL, *NET, one, "total_timesteps=256", run="older")
    for processes in (one, two):
        name = "opponent of another world" + ", workers" * (processes == two)
        yield name, [older, _train(*herd, processes, *evaluated)], ()
    half = _train(*herd, one, "total_timesteps=512", "ppo.reward_scaling=true")
    goes_on = ("train", HERD, "--checkpoint-dir", "run", "--resume")
    resumed = (*goes_on, "total_timesteps=1024")
    yield "resumed in the middle of episodes", [half, resumed], ()
    remembers = _train(*herd, one, "total_timesteps=512", 'net.memory=(of: "entity")')
    yield "resumed with memory", [remembers, resumed], ()
    for name in ("duel_pool", "locks_lessons"):
        settings = _of_config(ROOT / f"configs/{name}.ron")
        assert settings is not None
        *cut, total = settings
        frames = int(total.partition("=")[2])
        third = _train(*cut, one, f"total_timesteps={frames // UPDATES}")
        rest = ("train", "--checkpoint-dir", "run", "--resume", total)
        yield f"{name} resumed", [third, rest], ()
    shards = _train(*herd, one, "scale.shards=2")
    yield "two shards", [shards], ()
    yield "two ranks", [("torchrun", *shards[1:])], ()
    page = ("eval", "run", "--trust", "--episodes", "6", "--num-envs", "2", "--replay", "page.html")
    yield "replay", [_train(*herd, one, "total_timesteps=256"), (*page, "--out", "report")], ()
    always_saved = (*herd, one, "checkpoint.every_seconds=0")
    stopped = _train(*always_saved, 'env.kwargs={"stops_at": 200}')
    yield "update given up after SIGTERM", [stopped, goes_on], (0,)
    raised = _train(*always_saved, 'env.kwargs={"raises_at": 200}')
    yield "update given up after an error", [raised, goes_on], (0,)


# -- Running both checkouts ----------------------------------------------------------------------


def checkout(commit: str, folder: Path) -> Path:
    """Check a commit out into a folder and build its compiled part there."""
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
    """Start the commands of a case with the code of a checkout, in a new folder.

    Standard output is their exit statuses as a line of JSON; what they print goes to `log.txt`.
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
    arguments = [_of_python(*command) for command in case.commands]
    commands = json.dumps(arguments).replace(f"{ROOT}/configs/", f"{code}/configs/")
    return subprocess.Popen(
        [sys.executable, "-c", program, commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def _of_python(command: str, *arguments: str) -> list[str]:
    """Return the arguments of Python for a command of `enn`, or for `torchrun` with two ranks."""
    if command == "torchrun":
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return [*ranks, "-m", "enn_trainer.train", *arguments]
    enn = "import sys; from enn_trainer.cli import main; sys.argv[0] = 'enn'; main()"
    return ["-c", enn, command, *arguments]


def run_both(
    codes: Sequence[Path], case: Case, folder: Path, without: re.Pattern[str] = NOTHING
) -> list[str]:
    """Run a case with both checkouts; return the differences, a line each."""
    folders = [folder / str(i) for i in range(len(codes))]
    started = [start(code, case, own) for code, own in zip(codes, folders, strict=True)]
    statuses = [json.loads(process.communicate()[0]) for process in started]
    for status, own in zip(statuses, folders, strict=True):
        for i, code in enumerate(status):
            if (code != 0) != (i in case.fails):
                log = (own / "log.txt").read_text().splitlines()[-5:]
                return [f"enn {' '.join(case.commands[i])}: status {code}", *log]
    if statuses[0] != statuses[1]:
        return [f"exit statuses: {statuses[0]} and {statuses[1]}"]
    return [*differences(*folders, without)]


# -- Comparing what they left --------------------------------------------------------------------


def differences(before: Path, after: Path, without: re.Pattern[str] = NOTHING) -> Iterator[str]:
    """Yield the differences between the files of two runs, a line each.

    Args:
        before: folder of a run.
        after: folder of the other.
        without: names of entries that are left out match it.
    """
    contents = [dict(_contents(folder)) for folder in (before, after)]
    names = {name for name in {*contents[0], *contents[1]} if not without.search(name)}
    for name in sorted(names):
        if name not in contents[0] or name not in contents[1]:
            yield f"{name}: only {'after' if name in contents[1] else 'before'}"
            continue
        one, other = contents[0][name], contents[1][name]
        if one != other:
            yield f"{name}: {_shown(one)} and {_shown(other)}"


def _shown(value: object) -> str:
    return f"{len(value)} bytes that differ" if isinstance(value, bytes) else repr(value)[:80]


def _contents(folder: Path) -> Iterator[tuple[str, object]]:
    """Yield the contents of the files of runs, by names without time."""
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
    """Return the first record, without the time in the name of the run, and the others."""
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
    """Train for some seconds; return the median over updates without the first two."""
    own = ("rollout.processes=2", "total_timesteps=100000000", f"max_train_time={seconds:.0f}")
    process = start(code, Case("speed", (_train(*settings, *own),)), folder)
    (status,) = json.loads(process.communicate()[0])
    if status:
        raise RuntimeError((folder / "log.txt").read_text())
    (metrics,) = folder.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    found = [row["fps"] for row in rows if row["kind"] == "update"]
    return statistics.median(found[2:] or found[-1:])


def compare_speed(
    codes: Sequence[Path], names: Sequence[str], repeats: int, seconds: float, folder: Path
) -> tuple[list[str], bool]:
    """Return a table of all cases, and True if the promise is kept."""
    rows, ratios = ["| case | before | after | ratio |", "| --- | --- | --- | --- |"], []
    for name in names:
        found: list[list[float]] = [[], []]
        for turn in range(repeats):
            for i in (0, 1) if turn % 2 == 0 else (1, 0):
                own = folder / f"{name}-{turn}-{i}"
                found[i].append(frames_per_second(codes[i], SPEED_CASES[name], own, seconds))
                shutil.rmtree(own)
        before, after = map(statistics.median, found)
        ratios.append(after / before)
        rows.append(f"| {name} | {before:,.0f} | {after:,.0f} | {ratios[-1]:.3f} |")
        print(rows[-1], flush=True)
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    rows += ["", f"Geometric mean {mean:.3f}, lowest {min(ratios):.3f}."]
    print(rows[-1], flush=True)
    return rows, mean >= LEAST_MEAN and min(ratios) >= LEAST_RATIO


# -- Command line --------------------------------------------------------------------------------


def main() -> int:
    """Run the comparison of the command line; return 0 without differences, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--cases", nargs="+", help="those whose names begin so (default: all)")
    parser.add_argument("--keep", type=Path, help="keep what the runs leave, in a new folder")
    parser.add_argument(
        "--without", default=NOTHING.pattern, help="leave out entries by their names"
    )
    parser.add_argument("--variables", nargs="+", default=[], help="environment of this checkout")
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
            return _bits(codes, arguments, arguments.keep or folder / "runs")
        finally:
            remove = ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(codes[0])]
            subprocess.run(remove, check=True)


def _bits(codes: Sequence[Path], arguments: argparse.Namespace, folder: Path) -> int:
    chosen = [
        case
        for case in cases()
        if not arguments.cases or case.name.startswith(tuple(arguments.cases))
    ]
    started, different = time.monotonic(), 0
    for i, case in enumerate(chosen):
        own = folder / re.sub(r"\W+", "-", case.name)
        found = run_both(codes, case, own, re.compile(arguments.without))
        different += bool(found)
        left = (time.monotonic() - started) / (i + 1) * (len(chosen) - i - 1)
        print(
            f"{case.name}: {'same' if not found else 'DIFFERENT'} ({left:.0f} s left)", flush=True
        )
        for line in found[:10]:
            print(f"    {line}")
        if not arguments.keep:
            shutil.rmtree(own)
    print(f"{len(chosen) - different} of {len(chosen)} cases are the same to the bit")
    return int(different > 0)


def _speed(codes: Sequence[Path], arguments: argparse.Namespace, folder: Path) -> int:
    names = arguments.cases or list(SPEED_CASES)
    rows, kept = compare_speed(codes, names, arguments.repeats, arguments.seconds, folder)
    if arguments.results:
        about = f"`python benchmarks/same.py {arguments.commit} --speed`, {short_revision()}"
        about += f", {processor()}; frames per second, medians of {arguments.repeats}, in turns"
        arguments.results.write_text(
            "\n".join(["# Speed beside an earlier commit", "", about, "", *rows, ""])
        )
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
