"""Replays for tests: of anything at all, of the examples, and of recordings of a fresh network."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from enn_trainer.evaluation.explain import Influence
from enn_trainer.evaluation.load_agent import RogueNetAgent
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.experience.recording import Recorder
from enn_trainer.viewer.replay import Answers, Highlight, Replay, ReplayEpisode
from enn_trainer.viewer.replay_format import write_replay
from entity_env import CategoricalActionMask, Observation, SelectEntityActionMask
from entity_env.match import CreateEnv, world_of
from entity_env.observation import GLOBAL, Entity, ObsSpace
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Recording
from entity_env.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    Kind,
    SelectEntityActionSpace,
    has_global_entity,
)
from entity_env.vec.batching import batch_obs
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_obs import VecObs
from rogue_net.config import RogueNetConfig
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet
from tests.strategies import World, worlds

NAMES = [
    "plain",
    "</script><img src=x onerror=alert(1)>",
    "\u202egnp",
    "a\0b",
    "\ud800",
    "x" * 10**4,
]


def any_floats(rng: np.random.Generator, shape: Any) -> Any:
    """Floats of any bits: nan with payloads, infinities, tiny and large ones, and zeros."""
    bits = rng.integers(0, 2**32, shape, dtype=np.uint32)
    special = np.array([0x7FC00001, 0xFFC00000, 0x7F800000, 0xFF800000, 0, 1 << 31], np.uint32)
    at = rng.integers(0, 12, shape)
    return np.where(at < 6, special[at % 6], bits).astype(np.uint32).view(np.float32)


def small_world() -> World:
    return World(
        ObsSpace(["time"], {"A": Entity(["x", "y"]), "B": Entity(["hp"])}),
        {"move": CategoricalActionSpace(["a", "b", "c"]), "hit": SelectEntityActionSpace()},
        [
            Observation(
                global_features=[t],
                features={"A": [[t, 1.0]] * 5, "B": [[t / 3]] * t},
                actions={
                    "move": CategoricalActionMask(actor_types=["A"]),
                    "hit": SelectEntityActionMask(actor_types=["A"], actee_types=["B"]),
                },
            )
            for t in range(4)
        ],
    )


def small_replay(
    steps: int = 150, episodes: int = 2, sides: int = 1, seed: int = 0, kinds: bool = False
) -> Replay:
    """A replay of two types, with attention, that is alike at every call."""
    world, rng = small_world(), np.random.default_rng(seed)
    shown = with_kinds(world.obs_space) if kinds else world.obs_space
    played = [random_episode(world, shown, rng, steps, sides) for _ in range(episodes)]
    moments = [Highlight("gone", e, steps // 15, 0, None, "gone") for e in range(episodes)]
    return Replay("small", {}, shown, world.action_space, sides, 1.0, played, moments)


def smooth(replay: Replay) -> Replay:
    """Replace the replay's numbers by finite ones, so that errors can be measured."""
    rng = np.random.default_rng(1)
    for episode in replay.episodes:
        for rows in episode.obs.features.values():
            rows.values = rng.normal(0, 10, rows.values.shape).astype(np.float32)
        for answers in filter(None, [episode.answers, episode.beside]):
            for rows in answers.probs.values():
                rows.values = rng.random(rows.values.shape).astype(np.float32)
    return replay


def megabytes(replay: Replay, path: Path) -> float:
    return write_replay(replay, path, max_mb=1e9).num_bytes / 1e6


@st.composite
def replays(draw: st.DrawFn) -> Replay:
    """Replays of random worlds, in which everything that may be missing sometimes is."""
    world = draw(worlds(max_frames=2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sides = draw(st.integers(1, 2))
    obs_space = with_kinds(world.obs_space) if draw(st.booleans()) else world.obs_space
    steps = draw(st.lists(st.sampled_from([1, 2, 5, 64, 70, 130]), min_size=1, max_size=2))
    episodes = [random_episode(world, obs_space, rng, n, sides) for n in steps]
    for n, episode in zip(steps, episodes, strict=True):
        episode.steps = np.cumsum(rng.integers(1, 4, n)) if rng.random() < 0.3 else None
    moments = [
        Highlight(
            "gone", e, 0, sides - 1, draw(st.none() | st.just(0)), draw(st.sampled_from(NAMES))
        )
        for e in range(len(steps))
    ]
    title = draw(st.sampled_from(NAMES))
    space = world.action_space
    replay = Replay(title, {"name": title}, obs_space, space, sides, 0.9, episodes, moments)
    columns = st.none() | st.lists(st.integers(0, 3), min_size=1)
    unseen = st.lists(st.tuples(st.integers(0, len(obs_space.entities)), columns), min_size=1)
    replay.unseen = draw(st.dictionaries(st.sampled_from(["agent", "beside"]), unseen))
    return replay


def with_kinds(space: ObsSpace) -> ObsSpace:
    many = Kind("many", [f"label {i}" for i in range(300)])
    few = Kind("few", ["a", "b"])
    entities = {
        name: Entity(e.features, [few, many] if i % 2 else [few])
        for i, (name, e) in enumerate(space.entities.items())
    }
    return ObsSpace(space.global_features, entities, [few])


def random_episode(
    world: World, obs_space: ObsSpace, rng: np.random.Generator, steps: int, sides: int
) -> ReplayEpisode:
    frames = rng.integers(0, len(world.frames), steps * sides)
    obs = batch_obs([world.frames[f] for f in frames], world.obs_space, world.action_space)
    obs.metrics, obs.env_metrics, obs.final = {}, {}, None
    obs.reward = any_floats(rng, len(obs))
    for rows in obs.features.values():
        steady = rng.random(rows.values.shape).astype(np.float32)
        rows.values = np.where(
            rng.random(rows.values.shape) < 0.5, any_floats(rng, rows.values.shape), steady
        ).astype(np.float32)
    for name, entity in [*obs_space.entities.items(), (GLOBAL, Entity([], obs_space.global_kinds))]:
        if entity.kinds and name in obs.features:
            rows = obs.features[name]
            most = min(len(kind.labels) for kind in entity.kinds)
            dtype = np.uint8 if len(entity.kinds) == 1 else np.int16
            labels = rng.integers(0, most, (len(rows.values), len(entity.kinds))).astype(dtype)
            obs.kinds[name] = Ragged(labels, rows.lengths)
    for name in obs_space.entities:
        if rng.random() < 0.7:
            obs.identity[name] = random_identity(obs.features[name].lengths, rng)
    is_terminated, is_truncated = rng.random(2) < 0.5
    last = np.arange(len(obs)) >= len(obs) - sides
    obs.done, obs.truncated = last & (is_terminated | is_truncated), last & is_truncated

    chosen, by_hand = {}, {}
    for name, space in world.action_space.items():
        mask = obs.action_masks[name]
        count = space.num_choices(mask)
        chosen[name] = Ragged(
            (rng.random(len(count)) * count).astype(np.int64), mask.actors.lengths
        )
        by_hand[name] = rng.random(len(count)) < 0.5
    has_global = has_global_entity(obs_space, world.action_space)
    rows = [obs.features[name].lengths for name in obs_space.entities]
    size = np.sum([np.full(len(obs), has_global), *rows], axis=0)
    return ReplayEpisode(
        obs=obs,
        names=[
            {n: {i: NAMES[i % len(NAMES)] for i in range(3)} for n in obs.identity}
            for _ in range(sides)
        ],
        chosen=chosen,
        answers=random_answers(obs, world.action_space, rng),
        terminated=bool(is_terminated),
        truncated=bool(is_truncated),
        by_hand=by_hand if rng.random() < 0.5 else None,
        beside=random_answers(obs, world.action_space, rng) if rng.random() < 0.5 else None,
        attention={
            f: any_floats(rng, (2, 3, size[f], size[f]))
            for f in range(len(obs))
            if rng.random() < 0.3
        },
        influence={
            f: random_influence(obs, world.action_space, f, rng)
            for f in range(len(obs))
            if rng.random() < 0.3
        },
        pictures={t: rng.bytes(int(rng.integers(20))) for t in range(steps) if rng.random() < 0.2},
    )


def random_identity(lengths: Any, rng: np.random.Generator) -> Ragged:
    """Numbers of entities that come and go; some frames have none."""
    given = np.where(rng.random(len(lengths)) < 0.8, lengths, 0)
    rows = [rng.permutation(int(n) + 2)[:n] for n in given]
    return Ragged(np.concatenate([np.zeros(0, np.int64), *rows]), given)


def random_answers(
    obs: VecObs, action_space: Mapping[str, ActionSpace], rng: np.random.Generator
) -> Answers:
    probs = {}
    for name, space in action_space.items():
        if rng.random() < 0.8:
            mask = obs.action_masks[name]
            lengths = mask.mask_lengths()
            shape = (int(lengths.sum()), *space.mask_columns)
            probs[name] = Ragged(any_floats(rng, shape), lengths)
    return Answers(probs, any_floats(rng, len(obs)))


def random_influence(
    obs: VecObs, action_space: Mapping[str, ActionSpace], frame: int, rng: np.random.Generator
) -> Influence:
    entities = np.arange(rng.integers(4))
    choices = {
        name: any_floats(rng, (len(entities), obs.action_masks[name].actors.lengths[frame]))
        for name in action_space
    }
    return Influence(entities, choices, any_floats(rng, len(entities)))


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """Yield where two values differ, to the bit."""
    if isinstance(a, np.ndarray):
        same = isinstance(b, np.ndarray) and a.shape == b.shape and a.dtype == b.dtype
        if not same or a.tobytes() != b.tobytes():
            yield where
    elif isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            yield f"{where}: {list(a)} and {list(b)}"
        for name in a.keys() & b.keys():
            yield from differences(a[name], b[name], f"{where}[{name!r:.20}]")
    elif isinstance(a, list | tuple) and type(a) is type(b) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, f"{where}[{i}]")
    elif hasattr(a, "__dict__") and type(a) is type(b):
        yield from differences(vars(a), vars(b), where)
    elif type(a) is not type(b) or a != b:
        yield f"{where}: {a!r:.60} and {b!r:.60}"


def played(
    create_env: CreateEnv,
    steps: int = 100,
    episodes: int = 2,
    explained: bool = True,
    seed: int = 0,
) -> Replay:
    """Play a world at random, with probabilities, values and explanations that are random too."""
    rng = np.random.default_rng(seed)
    env = EnvList(create_env, EnvList(create_env, 2).sides)
    env.seed(seed)
    obs_space, action_space, sides = env.obs_space(), env.action_space(), len(env)
    found = []
    for _ in range(episodes):
        frames, answers, others, chosen, obs = [], [], [], [], env.reset(obs_space)
        for _ in range(steps):
            frames.append(obs)
            answers.append(softmax_answers(obs, action_space, rng))
            others.append(softmax_answers(obs, action_space, rng))
            chosen.append(drawn(obs, action_space, answers[-1], rng))
            obs = env.act(chosen[-1], obs_space)
            frames[-1].reward = obs.reward
            if obs.done.all():
                break
        found.append(joined(frames, chosen, answers, others, bool(obs.done.all())))
        if explained:
            explain(found[-1], obs_space, action_space, rng)
    moments = [
        Highlight(
            "unlikely choice", e, min(3 * e + 2, len(one.obs) // sides - 1), 0, 0, "taken at 2%"
        )
        for e, one in enumerate(found)
    ]
    about = {"made by": "the tests", "choices": "random"}
    title = type(world_of(env.matches[0])).__name__
    env.close()
    return Replay(title, about, obs_space, action_space, sides, 0.97, found, moments)


def softmax_answers(
    obs: VecObs, action_space: Mapping[str, ActionSpace], rng: np.random.Generator
) -> Answers:
    probs = {}
    for name, space in action_space.items():
        mask = obs.action_masks[name]
        widths = space.num_choices(mask)
        row = np.repeat(np.arange(len(widths)), widths)
        weights = np.exp(2 * rng.normal(size=len(row)))
        if mask.mask is not None:
            weights *= mask.mask.values.reshape(-1)
        weights /= np.bincount(row, weights, len(widths))[row]
        lengths = mask.mask_lengths()
        shape = (int(lengths.sum()), *space.mask_columns)
        probs[name] = Ragged(weights.astype(np.float32).reshape(shape), lengths)
    return Answers(probs, rng.normal(0.5, 0.1, len(obs)).astype(np.float32))


def drawn(
    obs: VecObs, action_space: Mapping[str, ActionSpace], answers: Answers, rng: np.random.Generator
) -> dict[str, Ragged]:
    chosen = {}
    for name, space in action_space.items():
        mask = obs.action_masks[name]
        ends = np.cumsum(space.num_choices(mask))
        rows = np.split(answers.probs[name].values.reshape(-1).astype(np.float64), ends[:-1])
        picks = [rng.choice(len(row), p=row / row.sum()) for row in rows[: len(ends)]]
        chosen[name] = Ragged(np.array(picks, np.int64), mask.actors.lengths)
    return chosen


def joined(
    frames: list[VecObs],
    chosen: list[dict[str, Ragged]],
    answers: list[Answers],
    others: list[Answers],
    is_over: bool,
) -> ReplayEpisode:
    """Return the episode of some steps; types with a constant number of entities get identities."""
    obs = VecObs.cat(frames)
    obs.done[:], obs.truncated[:] = False, False
    obs.done[len(obs) - len(frames[0]) :] = is_over
    obs.metrics, obs.env_metrics, obs.final = {}, {}, None
    number, names = 0, {}
    for name, rows in obs.features.items():
        count = int(rows.lengths[0])
        if name != GLOBAL and count and (rows.lengths == count).all():
            ids = np.tile(np.arange(number, number + count), len(obs))
            obs.identity[name] = Ragged(ids, rows.lengths)
            names[name] = {number + i: f"{name.lower()}-{i}" for i in range(count)}
            number += count

    def cat(pieces: list[Any]) -> dict[str, Ragged]:
        return {name: Ragged.cat([piece[name] for piece in pieces]) for name in pieces[0]}

    def all_of(many: list[Answers]) -> Answers:
        values = np.concatenate([one.values for one in many])
        return Answers(cat([one.probs for one in many]), values)

    sides = [dict(names) for _ in range(len(frames[0]))]
    ends = {"terminated": is_over, "truncated": False}
    return ReplayEpisode(
        obs, cat(chosen), all_of(answers), **ends, names=sides, beside=all_of(others)
    )


def explain(
    episode: ReplayEpisode,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    rng: np.random.Generator,
) -> None:
    """Give an episode random attention and influence in every frame."""
    has_global = has_global_entity(obs_space, action_space)
    for f in range(len(episode.obs)):
        n = sum(int(episode.obs.features[name].lengths[f]) for name in obs_space.entities)
        weights = np.exp(2 * rng.normal(size=(2, 2, n + has_global, n + has_global)))
        weights /= weights.sum(axis=-1, keepdims=True)
        episode.attention[f] = weights.astype(np.float32)
        choices = {}
        for name in action_space:
            actors = int(episode.obs.action_masks[name].actors.lengths[f])
            choices[name] = rng.random((n, actors)).astype(np.float32) ** 3
        values = rng.normal(0, 0.2, n).astype(np.float32)
        episode.influence[f] = Influence(np.arange(n), choices, values)


class Kept:
    """Watcher that keeps frames, decisions and rewards as they are."""

    def __init__(self) -> None:
        self.frames: list[VecObs] = []
        self.decisions: list[Decisions] = []
        self.outcomes: list[VecObs] = []

    def begin(self, *_: object) -> None:
        return

    def before_step(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, _: int) -> None:
        self.frames.append(obs.take(np.arange(len(obs))))
        self.decisions.append(decisions)

    def after_step(self, obs: VecObs) -> None:
        self.outcomes.append(obs)

    def get_state(self) -> dict[str, object]:
        return {}


def make_recording(
    world: type, path: Path, steps: int, subsample: int = 1
) -> tuple[Recording, Kept]:
    """Record four environments, played by a network that has learnt nothing."""
    envs = EnvList(world, 4)
    torch.manual_seed(0)
    spaces = envs.obs_space(), envs.action_space()
    network = RogueNet(RogueNetConfig(d_model=16), *spaces, {"value": 1})
    recorder, kept = Recorder(path, spaces[1], subsample), Kept()
    envs.track()
    collector = Collector(envs, AgentPlayer(network, 1), watchers=[recorder, kept])  # type: ignore[list-item]
    play(collector, spaces[0], steps, seed=3)
    recorder.close()
    return Recording.open(path), kept


def agent_of(world: Any, memory: Any = None, seed: int = 0) -> RogueNetAgent:
    """Return a network with random weights, which has learnt nothing."""
    torch.manual_seed(seed)
    spaces = world().obs_space(), world().action_space()
    net = RogueNet(RogueNetConfig(d_model=16, memory=memory), *spaces, {"value": 1}).eval()
    for weights in net.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    return RogueNetAgent(net, seed=seed)
