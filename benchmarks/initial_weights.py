"""Dependence of acting rows, logits and values on the frame, for several initialisations.

Usage:
    python benchmarks/initial_weights.py [--out benchmarks/results/initial_weights.md]

The share of a quantity is the root mean square of its difference to its mean over all frames, by
the norm of that mean. It is measured for the rows of actors, for their logits and for the mean row
of a frame (the value is a linear function of it), in networks before any update.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from measured_on import short_revision
from torch import Tensor, nn

from entity_env import (
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from entity_env.examples import Minefield
from entity_env.spaces import ActionSpace
from entity_env.testing.random_play import random_choices
from entity_env.vec.serial import EnvList
from rogue_net import RelposEncodingConfig, RogueNet, RogueNetConfig
from rogue_net.actions.heads import CategoricalHead
from rogue_net.config import Init
from rogue_net.ragged import EntityBatch

WIDTHS = (16, 32, 64, 128, 256)
LAYERS = (0, 1, 2, 4)
SEEDS = range(3)
FRAMES = 64


class Onlooker(Environment):
    """Things at random positions, observed by an actor without features."""

    def obs_space(self) -> ObsSpace:
        """Return the space of the things."""
        return ObsSpace(entities={"Thing": Entity(["x", "y", "is_red"])})

    def action_space(self) -> dict[str, ActionSpace]:
        """Return three choices."""
        return {"do": GlobalCategoricalActionSpace(["left", "right", "forward"])}

    def reset(self) -> Observation:
        """Return randomly drawn things."""
        things = [[self.rng.gauss(0, 1) for _ in range(3)] for _ in range(self.rng.randint(10, 20))]
        return Observation(
            entities={"Thing": things}, actions={"do": GlobalCategoricalActionMask()}, reward=0.0
        )

    def act(self, actions: object) -> Observation:
        """Return new random things."""
        return self.reset()


POSITIONS = {
    Onlooker: RelposEncodingConfig(extent=[3, 3], position_features=["x", "y"]),
    Minefield: RelposEncodingConfig(extent=[8], position_features=["x_pos", "y_pos"], radial=True),
}
"""Relative position encoding of each environment; the actor of the first one has no position."""


def gain(value: float) -> Callable[[str, nn.Linear], object]:
    """Return an initialiser: N(0, (value)^2 / fan_in)."""
    return lambda name, layer: _draw(layer, value / math.sqrt(layer.in_features))


def _draw(layer: nn.Linear, std: float) -> None:
    nn.init.normal_(layer.weight, std=std)


SCHEMES: dict[str, Init | Callable[[str, nn.Linear], object]] = {
    "published": "published",
    "scaled": "scaled",
    "std 0.2": lambda name, layer: _draw(layer, 0.2),
    "gain 1": gain(1.0),
    "gain sqrt(2)": gain(math.sqrt(2)),
    "gain 2": gain(2.0),
    "orthogonal, gain sqrt(2)": lambda name, layer: nn.init.orthogonal_(
        layer.weight, gain=math.sqrt(2)
    ),
}
"""Values of `net.init`, or initialisers of all matrices of blocks and relative positions."""


def frames_of(world: type[Environment]) -> tuple[EntityBatch, ObsSpace, dict[str, ActionSpace]]:
    """Return frames after some random steps, and the spaces of the environment."""
    envs = EnvList(world, FRAMES)
    envs.seed(0)
    obs_space, action_space = envs.obs_space(), envs.action_space()
    obs, rng = envs.reset(obs_space), np.random.default_rng(0)
    for _ in range(8):
        obs = envs.act(random_choices(obs, action_space, rng), obs_space)
    return EntityBatch.of(obs), obs_space, action_space


def share(rows: Tensor) -> float:
    """Return the share of (B, n) rows that depends on the frame."""
    mean = rows.mean(0)
    return float((rows - mean).square().sum(1).mean().sqrt() / mean.norm())


def shares(
    world: type[Environment], scheme: str, d_model: int, n_layer: int, positions: bool
) -> tuple[float, float, float]:
    """Return the shares of acting rows, logits and mean rows, averaged over seeds."""
    batch, obs_space, action_space = frames_of(world)
    relpos = POSITIONS[world] if positions else None
    draw, rows_of_seeds = SCHEMES[scheme], []
    init: Init = draw if isinstance(draw, str) else "scaled"
    config = RogueNetConfig(d_model=d_model, n_layer=n_layer, relpos_encoding=relpos, init=init)
    for seed in SEEDS:
        torch.manual_seed(seed)
        net = RogueNet(config, obs_space, action_space)
        for name, layer in [*net.transformer.named_modules(), *_projections(net)]:
            if isinstance(layer, nn.Linear) and not isinstance(draw, str):
                draw(name, layer)
        net.update_input_stats(batch)
        ((action, head),) = net.action_heads.items()
        with torch.no_grad():
            x, layout = net.embed(batch)
            actors = batch.actions[action.removeprefix("/")].actors
            rows = x.index_select(0, layout.rows(actors.values, actors.frame_of_row()))
            assert isinstance(head, CategoricalHead)
            rows_of_seeds.append((share(rows), share(head.project(rows)), share(layout.means(x))))
    return tuple(np.mean(rows_of_seeds, axis=0))


def _projections(net: RogueNet) -> Iterator[tuple[str, nn.Module]]:
    return iter(()) if net.relpos is None else net.relpos.named_modules()


def tables() -> Iterator[str]:
    """Yield the lines of the tables."""
    for world, description in (
        (Onlooker, "The actor has no features, and sees 10 to 20 things"),
        (Minefield, "The actor of `Minefield`, which has a position and a direction"),
    ):
        for positions in (False, True):
            with_positions = "with relative positions" if positions else "without them"
            yield f"\n## {description}; {with_positions}\n"
            yield "Acting rows / logits / mean rows of frames, with two layers:\n"
            yield from _table(world, positions, "d_model", [(width, 2) for width in WIDTHS])
            yield "\nThe same by number of layers, at `d_model` 32:\n"
            yield from _table(world, positions, "layers", [(32, num) for num in LAYERS])


def _table(
    world: type[Environment], positions: bool, varied: str, sizes: list[tuple[int, int]]
) -> Iterator[str]:
    """Yield the lines of a table with a column per width and number of layers."""
    values = [width if varied == "d_model" else num for width, num in sizes]
    yield f"| initial weights | {' | '.join(f'{varied} {value}' for value in values)} |"
    yield "| --- " * (len(sizes) + 1) + "|"
    for scheme in SCHEMES:
        values_of_sizes = [shares(world, scheme, *size, positions) for size in sizes]
        cells = [
            " / ".join(f"{share:.3f}" for share in size_shares) for size_shares in values_of_sizes
        ]
        yield f"| {scheme} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, print, and optionally write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the page to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Initial weights",
        "",
        f"`python benchmarks/initial_weights.py` at {short_revision()}.",
    ]
    lines.append(__doc__.rpartition("\n\n")[2].strip())
    text = "\n".join([*lines, *tables()]) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
