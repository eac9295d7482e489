"""Exact exploitability of agents in `KuhnPoker` and `UnevenThrows`.

    python benchmarks/selfplay_exact.py runs/kuhn runs/throws@best

The best answer to an agent is computed for each seat by going through all deals and all lines of
play of the environment itself. The agent is asked in every information set, which is all that a
side sees; the best answer decides once for all states that look the same to it. Exploitability is
the mean of what the best answer wins in the two seats, 0 in an equilibrium. Of several policies one
is drawn for each game: the best answer knows them, and not which one it meets.
"""

import argparse
import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np

from enn_trainer import load_agent
from enn_trainer.evaluation.load_agent import RogueNetAgent
from entity_env import Match, Observation, Ragged, batch_obs
from entity_env.examples import KuhnPoker, UnevenThrows
from entity_env.vec.batching import unbatch_actions

Policy = Callable[[Observation], Mapping[str, float]]
"""Returns the probability of each label of the only action, where a side can act."""
Worlds = Sequence[tuple[Match, float]]
"""A world for each deal, and how probable it is."""

WORLDS: dict[str, Worlds] = {
    "KuhnPoker": [(KuhnPoker(deal), 1 / 6) for deal in permutations(range(3), 2)],
    "UnevenThrows": [(UnevenThrows(), 1.0)],
}


class Node(NamedTuple):
    """A state of a game.

    Attributes:
        match: the world in this state; it is copied before each step.
        frames: the observation of each side.
        policy: the policy that is answered to.
        weight: how probable chance and the policy make it, without the side that answers.
    """

    match: Match
    frames: list[Observation]
    policy: Policy
    weight: float


def exploitability(policies: Sequence[Policy], worlds: Worlds) -> float:
    """Return what the best answer wins against policies, in the mean of both seats."""
    return (best_answer(policies, worlds, 0) + best_answer(policies, worlds, 1)) / 2


def best_answer(policies: Sequence[Policy], worlds: Worlds, seat: int) -> float:
    """Return the expected return of the best answer to policies in a seat."""
    return _best(_begun(policies, worlds), seat)


def expected_return(first: Policy, second: Policy, worlds: Worlds) -> float:
    """Return the expected return of the first side, of two policies."""
    nodes, total = _begun([second], worlds), 0.0
    while nodes:
        total += sum(node.weight * node.frames[0].reward for node in nodes)
        nodes = [
            child
            for node in nodes
            if not node.frames[0].done
            for label, p in choices(first, node.frames[0])
            for child in _children(node, 0, label, p)
        ]
    return total


def choices(policy: Policy, frame: Observation) -> list[tuple[str | None, float]]:
    """Return what a side does, with probabilities; None if it cannot act."""
    if not frame.actions:
        return [(None, 1.0)]
    return [(label, p) for label, p in policy(frame).items() if p > 0]


def policy_of(agent: RogueNetAgent, world: Match) -> Policy:
    """Return the policy of an agent in a world."""
    [name] = world.action_space()
    labels = world.action_space()[name].labels

    def policy(frame: Observation) -> dict[str, float]:
        probs = agent.act(frame).actions[name].probs
        assert probs is not None
        return dict(zip(labels, np.asarray(probs, np.float64).reshape(-1).tolist(), strict=True))

    return policy


def _begun(policies: Sequence[Policy], worlds: Worlds) -> list[Node]:
    nodes = []
    for policy, (world, weight) in product(policies, worlds):
        match = copy.deepcopy(world)
        nodes.append(Node(match, match.reset(), policy, weight / len(policies)))
    return nodes


def _best(nodes: Sequence[Node], seat: int) -> float:
    """Return what the best answer wins from some states on, weighted by their probabilities."""
    total, waiting = 0.0, []
    information_sets: dict[str, list[Node]] = {}
    for node in nodes:
        own = node.frames[seat]
        total += node.weight * own.reward
        if not own.done and own.actions:
            information_sets.setdefault(_seen(own), []).append(node)
        elif not own.done:
            waiting += _children(node, seat, None)
    for alike in information_sets.values():
        [space] = alike[0].match.action_space().values()
        values = []
        for label in space.labels:
            after = [child for node in alike for child in _children(node, seat, label)]
            values.append(_best(after, seat))
        total += max(values)
    return total + (_best(waiting, seat) if waiting else 0.0)


def _seen(frame: Observation) -> str:
    """Return all that a side sees, as text."""
    shown = frame.features.items()
    return repr(([(name, np.array(rows).tolist()) for name, rows in shown], frame.global_features))


def _children(node: Node, seat: int, label: str | None, probability: float = 1.0) -> list[Node]:
    """Return the states after a choice of one side, for each choice of the other's policy."""
    children = []
    for other, p in choices(node.policy, node.frames[1 - seat]):
        match = copy.deepcopy(node.match)
        taken = (label, other) if seat == 0 else (other, label)
        frames = match.act(_actions(match, node.frames, taken))
        children.append(Node(match, frames, node.policy, node.weight * p * probability))
    return children


def _actions(match: Match, frames: Sequence[Observation], labels: Sequence[str | None]) -> Any:
    """Return the actions of both sides that take these labels."""
    spaces = match.obs_space(), match.action_space()
    batch, [(name, space)] = batch_obs(frames, *spaces), spaces[1].items()
    chosen = [space.labels.index(label) for label in labels if label is not None]
    rows = Ragged(np.array(chosen, np.int64), batch.action_masks[name].actors.lengths)
    return unbatch_actions({name: rows}, batch, frames, *spaces)


def main() -> None:
    """Print the exploitability of saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("save", nargs="+", help="a run or a save in KuhnPoker or UnevenThrows")
    for path in parser.parse_args().save:
        spaces = load_agent(path).action_space
        name = next(n for n, w in WORLDS.items() if w[0][0].action_space() == dict(spaces))
        world = WORLDS[name][0][0]
        policy = policy_of(load_agent(path, env=world), world)
        values = [best_answer([policy], WORLDS[name], seat) for seat in (0, 1)]
        seats = ", ".join(f"{value:+.4f}" for value in values)
        print(f"{path}: {name}, exploitability {sum(values) / 2:.4f} (best answers: {seats})")


if __name__ == "__main__":
    main()
