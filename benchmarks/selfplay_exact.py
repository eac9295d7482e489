"""Exact exploitability of agents in `KuhnPoker` and `UnevenThrows`.

    python benchmarks/selfplay_exact.py runs/kuhn runs/throws@best

The best response to an agent is computed for each seat by enumerating all deals and all action
sequences of the environment. The agent is evaluated in every information set (the observation of a
side); the best response makes one choice per information set. Exploitability is the mean payoff of
the best response in the two seats, 0 in an equilibrium. With several policies one is drawn for each
game: the best response knows the mixture, but not which policy was drawn.
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
"""Function of an observation that returns the probability of each label of the only action."""
Worlds = Sequence[tuple[Match, float]]
"""An environment per deal, with the probability of the deal."""

WORLDS: dict[str, Worlds] = {
    "KuhnPoker": [(KuhnPoker(deal), 1 / 6) for deal in permutations(range(3), 2)],
    "UnevenThrows": [(UnevenThrows(), 1.0)],
}


class Node(NamedTuple):
    """A state of a game.

    Attributes:
        match: environment in this state; copied before each step.
        frames: observation of each side.
        policy: policy to respond to.
        weight: probability of the state under chance and the policy, without the responding side.
    """

    match: Match
    frames: list[Observation]
    policy: Policy
    weight: float


def exploitability(policies: Sequence[Policy], worlds: Worlds) -> float:
    """Return the payoff of the best response to policies, averaged over both seats."""
    return (best_response(policies, worlds, 0) + best_response(policies, worlds, 1)) / 2


def best_response(policies: Sequence[Policy], worlds: Worlds, seat: int) -> float:
    """Return the expected return of the best response to policies in a seat."""
    return _best_response_value(_initial_nodes(policies, worlds), seat)


def expected_return(first: Policy, second: Policy, worlds: Worlds) -> float:
    """Return the expected return of the first policy, in the first seat, against the second."""
    nodes, total = _initial_nodes([second], worlds), 0.0
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
    """Return the possible choices of a side with probabilities; [(None, 1.0)] if it cannot act."""
    if not frame.actions:
        return [(None, 1.0)]
    return [(label, p) for label, p in policy(frame).items() if p > 0]


def policy_of(agent: RogueNetAgent, world: Match) -> Policy:
    """Return the policy of an agent in an environment."""
    [name] = world.action_space()
    labels = world.action_space()[name].labels

    def policy(frame: Observation) -> dict[str, float]:
        probs = agent.act(frame).actions[name].probs
        assert probs is not None
        return dict(zip(labels, np.asarray(probs, np.float64).reshape(-1).tolist(), strict=True))

    return policy


def _initial_nodes(policies: Sequence[Policy], worlds: Worlds) -> list[Node]:
    nodes = []
    for policy, (world, weight) in product(policies, worlds):
        match = copy.deepcopy(world)
        nodes.append(Node(match, match.reset(), policy, weight / len(policies)))
    return nodes


def _best_response_value(nodes: Sequence[Node], seat: int) -> float:
    """Return the payoff of the best response from some states on, weighted by probability."""
    total, waiting = 0.0, []
    information_sets: dict[str, list[Node]] = {}
    for node in nodes:
        frame = node.frames[seat]
        total += node.weight * frame.reward
        if not frame.done and frame.actions:
            information_sets.setdefault(_observation_key(frame), []).append(node)
        elif not frame.done:
            waiting += _children(node, seat, None)
    for information_set in information_sets.values():
        [space] = information_set[0].match.action_space().values()
        values = []
        for label in space.labels:
            after = [child for node in information_set for child in _children(node, seat, label)]
            values.append(_best_response_value(after, seat))
        total += max(values)
    return total + (_best_response_value(waiting, seat) if waiting else 0.0)


def _observation_key(frame: Observation) -> str:
    """Serialize the observation of a side as text."""
    features = frame.features.items()
    return repr(
        ([(name, np.array(rows).tolist()) for name, rows in features], frame.global_features)
    )


def _children(node: Node, seat: int, label: str | None, probability: float = 1.0) -> list[Node]:
    """Return the states after a choice of one side, for each choice of the other side's policy."""
    children = []
    for other, p in choices(node.policy, node.frames[1 - seat]):
        match = copy.deepcopy(node.match)
        labels = (label, other) if seat == 0 else (other, label)
        frames = match.act(_actions(match, node.frames, labels))
        children.append(Node(match, frames, node.policy, node.weight * p * probability))
    return children


def _actions(match: Match, frames: Sequence[Observation], labels: Sequence[str | None]) -> Any:
    """Return the actions of both sides with these labels."""
    spaces = match.obs_space(), match.action_space()
    batch, [(name, space)] = batch_obs(frames, *spaces), spaces[1].items()
    chosen = [space.labels.index(label) for label in labels if label is not None]
    rows = Ragged(np.array(chosen, np.int64), batch.action_masks[name].actors.lengths)
    return unbatch_actions({name: rows}, batch, frames, *spaces)


def main() -> None:
    """Print the exploitability of checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("save", nargs="+", help="a run or checkpoint in KuhnPoker or UnevenThrows")
    for path in parser.parse_args().save:
        spaces = load_agent(path).action_space
        name = next(n for n, w in WORLDS.items() if w[0][0].action_space() == dict(spaces))
        world = WORLDS[name][0][0]
        policy = policy_of(load_agent(path, env=world), world)
        answer_values = [best_response([policy], WORLDS[name], seat) for seat in (0, 1)]
        seats = ", ".join(f"{value:+.4f}" for value in answer_values)
        print(
            f"{path}: {name}, exploitability {sum(answer_values) / 2:.4f} (best responses: {seats})"
        )


if __name__ == "__main__":
    main()
