"""Service of an exported agent, with recurrent states by session and id.

Start it by python service.py out 8000. POST {"session": ..., "arrays": {...}, "ids": {...}} for
outputs, and {"session": ..., "end": true} at the end of an episode.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

import numpy as np
import onnxruntime

folder = Path(sys.argv[1])
about = json.loads((folder / "interface.json").read_text("utf-8"))
graph = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
states: dict = {}  # by session, then by input and id
lock = Lock()


def answer(request: dict) -> dict:
    """Return the outputs for the arrays of a frame."""
    last = states.get(request["session"], {})
    arrays, ids = dict(request["arrays"]), request.get("ids", {})
    for name in about["memory"]:
        kind = name.partition("/")[2]
        zero = np.zeros(about["inputs"][name]["shape"][2 if kind else 1 :])
        rows = np.array([last.get((name, one), zero) for one in ids.get(kind) or [None]])
        arrays[name] = rows[None] if kind else rows
    typed = {n: np.asarray(arrays[n], spec["dtype"]) for n, spec in about["inputs"].items()}
    outputs = dict(zip(about["outputs"], graph.run(None, typed), strict=True))
    memory = {}  # entities that are not in this frame are forgotten, as in training
    for name in about["memory"]:
        kind, rows = name.partition("/")[2], outputs.pop(f"next_{name}")
        rows = rows[0] if kind else rows
        memory |= {(name, one): rows[i] for i, one in enumerate(ids.get(kind) or [None])}
    states[request["session"]] = memory
    return {name: x.tolist() for name, x in outputs.items()}


class Handler(BaseHTTPRequestHandler):
    """Handler of requests with a frame or the end of an episode."""

    def do_POST(self) -> None:
        """Answer in JSON, with null for numbers that are not finite."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            ended = states.pop(request["session"], None) if request.get("end") else None
            content = {"ended": ended is not None} if request.get("end") else answer(request)
        body = json.dumps(content).replace("-Infinity", "null").replace("NaN", "null").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
