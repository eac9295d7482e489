"""Hypothesis strategies for networks with all options and for sparse sequences of frames."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import strategies as st

from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    GlobalContinuousActionMask,
    GlobalContinuousActionSpace,
    Kind,
    Observation,
    ObsSpace,
    Ragged,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    batch_obs,
)
from rogue_net import EntityBatch, RelposEncodingConfig, RogueNet, RogueNetConfig
from rogue_net.config import MemoryConfig
from rogue_net.memory import memory_rows
from rogue_net.native import memory, network
from rogue_net.past import NO_KEYS, Past, link_rows

ENTITIES = {
    "Unit": Entity(["x", "y", Kind("color", ["red", "green"])]),
    "Word": Entity([Kind("text", list("abcde"))]),
    "Rock": Entity(["x", "y"]),
    "Air": Entity([]),
}
ACTIONS: dict[str, ActionSpace] = {
    "how": CategoricalActionSpace(["p", "q", "r"], after="whom"),
    "whom": SelectEntityActionSpace(after="do", when=["hit"]),
    "do": CategoricalActionSpace(["rest", "hit", "run"]),
    "pick": SelectEntityActionSpace(),
    "push": ContinuousActionSpace({"dx": (-1.0, 1.0), "dy": (0.0, 5.0)}),
}
GLOBAL_ACTIONS: dict[str, ActionSpace] = {
    "plan": GlobalCategoricalActionSpace(["wait", "go"]),
    "pay": GlobalContinuousActionSpace({"amount": (0.0, 10.0)}),
}
RELPOS: list[dict[str, Any] | None] = [
    None,
    {"value_gate": "relu", "per_entity_values": True},
    {"value_gate": None, "interpolate": True},
    {"value_gate": "gelu", "key_relpos_projection": True},
]


@dataclass
class Case:
    """What is drawn.

    Attributes:
        seed: of parameters and frames.
        sizes: d_model and n_head.
        n_layer: of the blocks before memory.
        relpos: index of `RELPOS`.
        memory: settings; None without.
        steps: of each sequence, of which some lie before the batch.
        before: steps that lie before it.
        envs: number of sequences.
        fullness: share of frames, and of types in these, that are there.
        has_globals: global features and actions.
        hides: entities may be invisible.
        least_cost: of a part of the work; small for many parts.
    """

    seed: int
    sizes: tuple[int, int]
    n_layer: int
    relpos: int
    memory: dict[str, Any] | None
    steps: int
    before: int
    envs: int
    fullness: float
    has_globals: bool
    hides: bool
    least_cost: int

    def net_and_batch(self) -> tuple[RogueNet, EntityBatch]:
        """Return the network, in float32, and the frames of all sequences with their past."""
        rng = np.random.default_rng(self.seed)
        shared = ["clock", Kind("season", ["dry", "wet"])] if self.has_globals else []
        space = ObsSpace(shared, ENTITIES)
        actions = ACTIONS | (GLOBAL_ACTIONS if self.has_globals else {})
        torch.manual_seed(self.seed)
        relpos = RELPOS[self.relpos]
        grid = {"extent": [2, 2], "position_features": ["x", "y"], "scale": 0.5}
        config = RogueNetConfig(
            d_model=self.sizes[0],
            n_head=self.sizes[1],
            n_layer=self.n_layer,
            relpos_encoding=None if relpos is None else RelposEncodingConfig(**grid, **relpos),
            memory=None if self.memory is None else MemoryConfig(**self.memory),
        )
        net = RogueNet(config, space, actions, {"value": 1})
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        batch = self._frames(rng, space, actions, self.steps)
        if net.remembering is not None:
            batch = self._with_past(net, rng, batch, self._frames(rng, space, actions, self.before))
        return net, batch

    def _frames(
        self, rng: np.random.Generator, space: ObsSpace, actions: dict[str, ActionSpace], steps: int
    ) -> EntityBatch:
        """Return frames of all sequences, step after step."""
        frames = [self._frame(rng, space, actions) for _ in range(max(1, steps * self.envs))]
        batch = EntityBatch.of(batch_obs(frames, space, actions))
        identity = {}
        for name in ("Unit", "Rock"):
            lengths = batch.features[name].lengths
            numbers = [rng.permutation(5)[:n] for n in lengths.tolist()]
            identity[name] = Ragged(np.concatenate(numbers).astype(np.int64), lengths)
        return replace(batch, identity=identity).slice(slice(0, steps * self.envs))

    def _frame(
        self, rng: np.random.Generator, space: ObsSpace, actions: dict[str, ActionSpace]
    ) -> Observation:
        """Return a frame in which types, entities, actors, actees and actions may be missing."""
        is_full = rng.random() < self.fullness

        def rows(entity: Entity, n: int) -> Any:
            numbers = rng.normal(size=(n, len(entity.features)))
            labels = [rng.integers(len(kind.labels), size=(n, 1)) for kind in entity.kinds]
            return np.concatenate([numbers, *labels], axis=1).astype(np.float32)

        counts = {
            name: int(rng.integers(1, 5)) if is_full and rng.random() < self.fullness else 0
            for name in ENTITIES
        }
        who = [name for name in ENTITIES if rng.random() < 0.6]
        units, legal = counts["Unit"], rng.random((counts["Unit"], 3)) < 0.7
        masks: dict[str, Any] = {
            "do": CategoricalActionMask(actor_types=["Unit"], mask=legal | ~legal.any(1)[:, None]),
            "whom": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Rock", "Word"]),
            "how": CategoricalActionMask(actor_types=["Unit"]),
            "pick": SelectEntityActionMask(actor_types=who, actee_types=who[:1]),
            "push": ContinuousActionMask(actor_types=who[1:]),
            "plan": GlobalCategoricalActionMask(),
            "pay": GlobalContinuousActionMask(),
        }
        if not (units and (counts["Rock"] or counts["Word"])):
            masks["whom"] = SelectEntityActionMask(actor_types=[], actee_types=[])
            masks["how"] = CategoricalActionMask(actor_types=[])
        offered = {name for name in actions if rng.random() < 0.8}
        offered -= {"whom", "how"} if not {"do", "whom", "how"} <= offered else set()
        is_hidden = self.hides and not {*who} & {"Air"}
        return Observation(
            features={name: rows(space.entities[name], n) for name, n in counts.items()},
            global_features=rows(space.global_entity, 1)[0],
            visible={"Air": rng.random(counts["Air"]) < 0.5} if is_hidden else {},
            actions={name: masks[name] for name in actions if name in offered},
        )

    def _with_past(
        self, net: RogueNet, rng: np.random.Generator, batch: EntityBatch, before: EntityBatch
    ) -> EntityBatch:
        """Return the frames with links between them, and to states from before."""
        remembering, keys = net.remembering, NO_KEYS
        assert remembering is not None
        assert net.memory is not None
        for frames in (before, batch):
            rows, steps = memory_rows(frames, remembering), frames.num_frames // self.envs
            time = np.repeat(np.arange(steps), self.envs)
            column, begun = np.tile(np.arange(self.envs), steps), rng.random(len(time)) < 0.2
            carried = torch.randn(len(keys.kind), net.memory.width)
            links = link_rows(rows, column, time, begun, keys, remembering.keep_absent)
            keys = links.final_keys
        rewards = rng.normal(size=len(time)).astype(np.float32)
        return replace(batch, past=Past.of(rows, links, time, rewards, carried))

    @contextmanager
    def parts(self) -> Iterator[None]:
        """Cut the work into as many parts as `least_cost` says, in the context."""
        least_rows = 1 if self.least_cost < network.LEAST_COST else memory.LEAST_ROWS
        with (
            patch.object(network, "LEAST_COST", self.least_cost),
            patch.object(memory, "LEAST_ROWS", least_rows),
            network.threads_at_work(2),
        ):
            yield


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case; in most of them frames, types, actors or whole batches are empty."""
    of = draw(st.sampled_from([None, "frame", "entity", "both"]))
    settings: dict[str, Any] | None = None
    if of is not None:
        inputs = draw(st.lists(st.sampled_from(["action", "reward"]), unique=True))
        settings = {"of": of, "inputs": inputs, "n_layer": draw(st.integers(1, 2))}
        if of != "frame":
            settings["keep_absent"] = draw(st.integers(0, 2))
    return Case(
        seed=draw(st.integers(0, 2**32 - 1)),
        sizes=draw(st.sampled_from([(8, 1), (16, 2), (32, 2), (72, 1)])),
        n_layer=draw(st.integers(1, 2)),
        relpos=draw(st.integers(0, len(RELPOS) - 1)),
        memory=settings,
        steps=draw(st.integers(1, 4)),
        before=draw(st.integers(0, 2)),
        envs=draw(st.integers(1, 3)),
        fullness=draw(st.sampled_from([0.0, 0.3, 0.8])),
        has_globals=draw(st.booleans()),
        hides=draw(st.booleans()),
        least_cost=draw(st.sampled_from([2**16, 2**6])),
    )
