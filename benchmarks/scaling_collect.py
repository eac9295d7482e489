"""Speed of collecting frames without learning, with the trainer of this Python.

    PYTHON benchmarks/scaling_collect.py WORLD PROCESSES SECONDS

WORLD is VecMinefield or Minefield of this project, or Minefield of entity-gym 0.1.10 in a Python
with enn-trainer 0.1.16. Prints a line of JSON. The network, the environments and the steps are the
same; everything else is the default of each trainer.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_ENVS, STEPS = 512, 32
CONFIG = f"""TrainConfig(
    version: 4,
    cuda: false,
    env: (id: "Minefield", kwargs: "{{\\"max_mines\\": 10}}"),
    net: (
        d_model: 32,
        translation: (
            reference_entity: "Vehicle",
            position_features: ["x_pos", "y_pos"],
            rotation_angle_feature: "direction",
        ),
    ),
    optim: (bs: 1024),
    rollout: (num_envs: {NUM_ENVS}, steps: {STEPS}),
)
"""


def ours(path: Path, world: str, processes: int) -> tuple[Callable[[], object], Any]:
    """Return a function that collects one rollout, and its timing spans."""
    from enn_trainer import StateManager
    from enn_trainer.experience.collector import Collector, collect
    from enn_trainer.experience.envs import env_factory
    from enn_trainer.experience.players import AgentPlayer
    from enn_trainer.runtime.execution import ExecutionContext, ThreadPool
    from enn_trainer.runtime.spans import Spans
    from entity_env import AddMetricsWrapper, examples
    from rogue_net import RogueNet

    config = StateManager(init_path=path).config
    create_envs = env_factory(getattr(examples, world))
    envs = AddMetricsWrapper(create_envs(config.env, NUM_ENVS, processes, 0))
    space = envs.obs_space()
    net = RogueNet(config.net, space, envs.action_space(), {"value": 1}).eval()
    spans, threads, frame = Spans(), ThreadPool.of(net), 0
    collector = Collector(envs, AgentPlayer(net, 0, threads))
    collector.seed(0)
    collector.reset(space)

    def run() -> None:
        nonlocal frame
        with threads.at_work():  # as in training
            context = ExecutionContext(threads, spans=spans)
            rollout = collect(collector, steps=STEPS, first_frame=frame, context=context)
        frame += rollout.num_frames

    return run, spans


def published(path: Path, processes: int) -> tuple[Callable[[], object], Any]:
    """Return the same for the published trainer, without spans."""
    import hyperstate
    import torch
    from entity_gym.env.add_metrics_wrapper import AddMetricsWrapper
    from entity_gym.examples import ENV_REGISTRY
    from entity_gym.simple_trace import Tracer

    from enn_trainer.config import TrainConfig
    from enn_trainer.rollout import Rollout
    from enn_trainer.train import State, _env_factory, init_train_state
    from rogue_net.rogue_net import RogueNet

    config = hyperstate.StateManager(TrainConfig, State, init_train_state, init_path=path).config
    create_envs = _env_factory(ENV_REGISTRY["Minefield"])
    envs = AddMetricsWrapper(create_envs(config.env, NUM_ENVS, processes, 0))
    space, actions = envs.obs_space(), envs.action_space()
    net = RogueNet(config.net, space, actions, regression_heads={"value": 1})
    tracer = Tracer(cuda=False)
    rollout = Rollout(envs, space, actions, net, torch.device("cpu"), tracer)
    return lambda: rollout.run(STEPS, record_samples=True), None


def main() -> None:
    world, processes, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    try:
        import entity_env  # noqa: F401

        is_ours = True
    except ImportError:
        is_ours = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.ron")
        path.write_text(CONFIG)
        run, spans = ours(path, world, processes) if is_ours else published(path, processes)
    run()
    if spans:
        spans.since_last()
    began, frames, processor = time.perf_counter(), 0, time.process_time()
    while time.perf_counter() - began < seconds:
        run()
        frames += NUM_ENVS * STEPS
    took = time.perf_counter() - began
    processor = time.process_time() - processor
    result = {"frames_s": frames / took, "core_us": 1e6 * processor / frames}
    if spans:
        result["env_us"] = 1e3 * spans.since_last()[1]["env"] / frames
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
