"""A stand-in for `enn train` that needs no time: its evaluations are -(x - 2)^2 at the end.

x is `ppo.ent_coef`. A run is locked, continues after its last line, and ends at SIGTERM as one that
trains. Noise, failures and the time of an evaluation come from the environment variable STUB.
"""

import fcntl
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

NUM_EVALUATIONS = 5
TAG = "eval/episodic_reward.mean"


def main(arguments: list[str]) -> int:
    settings = dict(word.split("=", 1) for word in arguments if "=" in word)
    options = json.loads(os.environ.get("STUB", "{}"))
    folder = Path(arguments[arguments.index("--checkpoint-dir") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("error: expected a run that is not locked")
        return 2
    os.pwrite(lock, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    (folder / "starts.txt").open("a").write(f"{os.getpid()}\n")
    (folder / "step-000000000100").mkdir(exist_ok=True)

    x, seed = float(settings.get("ppo.ent_coef", 0.2)), int(settings.get("seed", 1))
    trial = int(settings.get("trial", -1))
    noise = random.Random(f"{seed} {trial}").gauss(0, options.get("noise", 0.0))
    file = folder / "metrics.jsonl"
    if trial in options.get("fails", ()):
        print("collecting\nerror: no space left on device")
        return 1
    if trial in options.get("diverges", ()):
        print("error: minibatch 3: policy_loss is nan; the gradient is not finite in w. Lower")
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    done = len(file.read_bytes().splitlines()) if file.exists() else 0
    with file.open("ab", buffering=0) as metrics:
        for i in range(done, NUM_EVALUATIONS):
            time.sleep(options.get("seconds", 0.0) if trial >= 0 else 0)
            value = -((x - 2) ** 2) - (NUM_EVALUATIONS - 1 - i) + noise
            if options.get("flat"):
                value = noise
            row = {"step": 100 * i, "time": 0.0, "kind": "eval", TAG: value, "step.mean": 0.0}
            metrics.write((json.dumps(row) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
