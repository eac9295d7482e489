"""Makes runs of enn_trainer 0.1.16, and tells what that program says and does next.

    python make_published.py TARGET     # with enn_trainer 0.1.16 installed, not this project

For each run, TARGET/<name>/ gets its newest checkpoint, `expected.json` with what its network says
to frames that it did not see, and `next.agent.msgpack`, its network after one more optimizer step
on these frames.
"""

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import hyperstate
import msgpack
import numpy as np
import torch
from entity_gym import env as entity_gym_env
from entity_gym.env.vec_env import batch_obs
from entity_gym.examples import ENV_REGISTRY
from entity_gym.simple_trace import Tracer
from hyperstate import msgpack_torch
from ragged_buffer import RaggedBufferF32, RaggedBufferI64

from enn_trainer import RogueNetAgent, State, TrainConfig, init_train_state, train
from enn_trainer.ppo import ppo_loss, value_loss
from rogue_net.rogue_net import RogueNet, RogueNetConfig

sys.modules["entity_env"] = entity_gym_env  # the world of `harbour.py` is for both
from harbour import Harbour  # noqa: E402


class FloorIsLava(ENV_REGISTRY["FloorIsLava"]):  # type: ignore[misc]
    """With ids for all: entity-gym 0.1.10 counts positions past types that have none."""

    def observe(self, *args: Any, **kwargs: Any) -> Any:
        obs = super().observe(*args, **kwargs)
        obs.ids = {name: [f"{name} {i}" for i in range(len(x))] for name, x in obs.features.items()}
        return obs


WORLDS = {**ENV_REGISTRY, "FloorIsLava": FloorIsLava, "Harbour": Harbour}
NUM_FRAMES = 12
LR, ENT_COEF = 0.003, 0.01

CONFIG = """
TrainConfig(
    version: 4, cuda: false, seed: 5, total_timesteps: 512,
    rollout: (num_envs: 16, steps: 8, processes: 1), {settings}
)
"""
RUNS = {
    "floor_is_lava": """
        env: (id: "FloorIsLava"), optim: (bs: 64, lr: 0.02, micro_bs: 32), ppo: (gamma: 0.9),
        net: (d_model: 12, n_head: 2, n_layer: 2, relpos_encoding: (
            extent: [4], position_features: ["x", "y"], scale: 0.75,
            distance: true, interpolate: true, per_entity_values: true,
            key_relpos_projection: true, value_relpos_projection: true,
        ))""",
    "hunt_by_type": """
        env: (id: "TreasureHunt"), optim: (bs: 64, lr: 0.03, anneal_lr: false), ppo: (gamma: 0.9),
        net: (d_model: 8, n_head: 1, n_layer: 1, relpos_encoding: (
            extent: [1, 1], position_features: ["x_pos", "y_pos"], per_entity_projections: true,
            key_relpos_projection: true, value_relpos_projection: true,
        ))""",
    "treasure_hunt": """
        env: (id: "TreasureHunt"), ppo: (gamma: 0.9),
        optim: (bs: 64, lr: 0.03, lr_warmup_steps: 256),
        net: (d_model: 8, n_head: 1, n_layer: 1, relpos_encoding: (
            extent: [3, 3], position_features: ["x_pos", "y_pos"], per_entity_values: true,
            value_gate: "sigmoid",
        ))""",
    "minefield": """
        env: (id: "Minefield", kwargs: "{\\"max_mines\\": 3, \\"max_steps\\": 9, \\"width\\": 30}"),
        optim: (bs: 64, lr: 0.02, weight_decay: 0.01), ppo: (target_kl: 0.5),
        eval: (steps: 4, interval: 200, num_envs: 4),
        net: (d_model: 12, n_layer: 2, translation: (
            reference_entity: "Vehicle", position_features: ["x_pos", "y_pos"],
            rotation_angle_feature: "direction",
        ))""",
    "harbour": """
        env: (id: "Harbour"), ppo: (anneal_entropy: false),
        optim: (bs: 64, lr: "step: 0.03@0 lin 0.001@1000", anneal_lr: false),
        net: (d_model: 16, n_head: 4, n_layer: 1, d_qk: 4)""",
    "rock_paper_scissors": """
        env: (id: "RockPaperScissors"), optim: (bs: 64, lr: 0.02),
        ppo: (clip_vloss: false),
        net: (d_model: 8, n_layer: 1)""",
}


def make(name: str, folder: Path, target: Path) -> None:
    """Train for four updates, keep the checkpoint, and tell what comes next."""
    config = folder / f"{name}.ron"
    config.write_text(CONFIG.replace("{settings}", RUNS[name]))
    manager = hyperstate.StateManager(
        TrainConfig,
        State,
        init_train_state,
        init_path=config,
        checkpoint_dir=folder / name,
        overrides=[f"data_dir={folder}"],
    )
    world = WORLDS[manager.config.env.id]
    train(manager, world)
    (saved,) = (folder / name).glob("latest-step*")
    text = (saved / "config.ron").read_text()
    (saved / "config.ron").write_text(text.replace(f'data_dir: "{folder}"', 'data_dir: "."'))
    shutil.copytree(saved, target / name / saved.name)
    again = hyperstate.StateManager(TrainConfig, State, init_train_state, init_path=saved)
    state, ppo = again.state, again.config.ppo
    state.agent.eval()  # else each forward pass changes the statistics of the features
    frames = played(world(**json.loads(again.config.env.kwargs)))
    minibatch = continued(state, ppo, again.config.optim.max_grad_norm, frames)
    weights = {key: msgpack_torch.encode(t) for key, t in state.agent.state_dict().items()}
    (target / name / "next.agent.msgpack").write_bytes(msgpack.packb(weights))
    before = hyperstate.StateManager(TrainConfig, State, init_train_state, init_path=saved)
    cases = [{"frame": plain(frame), **said(before.state, frame)} for frame in frames]
    expected = {"cases": cases, "minibatch": minibatch}
    (target / name / "expected.json").write_text(json.dumps(expected) + "\n")


def played(env: Any) -> list[Any]:
    """Frames of a world where an agent acts that has learnt nothing."""
    random.seed(11)
    torch.manual_seed(11)
    net = RogueNet(RogueNetConfig(), env.obs_space(), env.action_space(), {"value": 1})
    agent = RogueNetAgent(net)
    frames = [env.reset()]
    while len(frames) < NUM_FRAMES:
        last = frames[-1]
        frames.append(env.reset() if last.done else env.act(agent.act(last)[0]))
    return frames


def asked(state: Any, frames: list[Any], chosen: Any = None) -> Any:
    """What a network says to frames, as the published program asks it."""
    obs = batch_obs(frames, state.obs_space, state.action_space)
    return state.agent.get_action_and_auxiliary(
        obs.features, obs.visible, obs.action_masks, Tracer(False), chosen
    )


def said(state: Any, frame: Any) -> dict[str, Any]:
    """The probabilities of all that each actor may do, the entropies, and the value."""
    state.agent.eval()
    with torch.no_grad():
        _, _, entropy, _, values, log_probs = asked(state, [frame])
    return {
        "probs": {
            key: rows.exp().reshape(-1, rows.size(-1)).tolist() if rows.numel() else []
            for key, rows in log_probs.items()
        },
        "entropy": {key: value.tolist() for key, value in entropy.items()},
        "value": values["value"].item(),
    }


def continued(state: Any, ppo: Any, max_grad_norm: float, frames: list[Any]) -> dict[str, Any]:
    """Take one step of the optimizer, as `train` does for a minibatch, and tell what it was for."""
    torch.manual_seed(13)
    with torch.no_grad():
        actions, logprobs, _, counts, values, _ = asked(state, frames)
    # As if a policy nearby had acted: some ratios are clipped.
    old = {key: lp + 0.3 * torch.randn(lp.shape) for key, lp in logprobs.items()}
    advantages, returns = torch.randn(NUM_FRAMES), torch.randn(NUM_FRAMES)
    old_values = values["value"].flatten() + 0.2 * torch.randn(NUM_FRAMES)
    chosen = {
        key: RaggedBufferI64.from_flattened(rows.as_array().reshape(-1, 1), counts[key])
        for key, rows in actions.items()
    }
    ragged = {
        key: RaggedBufferF32.from_flattened(lp.numpy().reshape(-1, 1), counts[key])
        for key, lp in old.items()
    }
    tracer, device = Tracer(False), torch.device("cpu")
    state.optimizer.param_groups[0]["lr"] = LR
    state.optimizer.zero_grad()
    _, new, entropy, _, values, _ = asked(state, frames, chosen)
    policy_loss, _, _ = ppo_loss(ppo, new, ragged, advantages, device, tracer)
    loss_of_values = value_loss(ppo, values["value"], returns, old_values, tracer)
    entropy_loss = torch.cat(list(entropy.values())).mean()
    loss = policy_loss - ENT_COEF * entropy_loss + loss_of_values * ppo.vf_coef
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(state.agent.parameters(), max_grad_norm)
    state.optimizer.step()
    return {
        "lr": LR,
        "ent_coef": ENT_COEF,
        "actors": {key: np.asarray(count).tolist() for key, count in counts.items()},
        "chosen": {key: rows.as_array().flatten().tolist() for key, rows in actions.items()},
        "old_logprobs": {key: lp.tolist() for key, lp in old.items()},
        "old_values": old_values.tolist(),
        "advantages": advantages.tolist(),
        "returns": returns.tolist(),
        "policy_loss": policy_loss.item(),
        "value_loss": loss_of_values.item(),
        "entropy": entropy_loss.item(),
        "grad_norm": norm.item(),
    }


def plain(frame: Any) -> dict[str, Any]:
    """An observation as data that JSON holds."""
    return {
        "global_features": [float(x) for x in frame.global_features],
        "entities": {
            key: [[float(x) for x in row] for row in rows] for key, rows in frame.features.items()
        },
        "ids": {key: [str(id) for id in ids] for key, ids in frame.ids.items()},
        "visible": {key: [bool(x) for x in shown] for key, shown in frame.visible.items()},
        "masks": {
            action: {
                "kind": type(mask).__name__,
                **{key: fields_of(key, value) for key, value in vars(mask).items()},
            }
            for action, mask in frame.actions.items()
        },
    }


def fields_of(key: str, value: Any) -> Any:
    """A field of a mask; ids are what `plain` calls them."""
    if value is None:
        return None
    if key.endswith("_ids"):
        return [str(id) for id in value]
    return np.asarray(value).tolist()


def main() -> None:
    """Make all of them."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for name in RUNS:
            shutil.rmtree(target / name, ignore_errors=True)
            make(name, Path(folder), target)


if __name__ == "__main__":
    main()
