"""Conformance check for custom networks, for `train(agent=...)`."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from enn_trainer.base.errors import AgentError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.experience.memories import PlayerMemory, RolloutMemory, memory_specs
from enn_trainer.experience.players import draw_uniforms
from entity_env.actions.chains import parents_first
from entity_env.arrays import Float32Array
from entity_env.environment import Observation
from entity_env.ragged import Ragged, row_indices
from entity_env.spaces import GLOBAL, ActionSpace, Entity, ObsSpace
from entity_env.vec.batching import batch_obs
from rogue_net.actions.parts import has_choice, mask_given_choices
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor
from rogue_net.rogue_net import NetOutput

_TOLERANCE = 1e-4  # of float32, summed in another order


def check_agent(
    agent: PPOAgent,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    num_frames: int = 24,
    seed: int = 0,
) -> None:
    """Raise if a network does not conform to the interface of `train(agent=...)`.

    A copy of the network is called with random frames, including empty frames, frames without
    actors and frames with restrictive masks. A network with memory, which has `remembering`, is
    also tested with sequences of two steps.

    Args:
        agent: the network.
        obs_space: observation space of the environment.
        action_space: action space of the environment.
        num_frames: number of frames to test with.
        seed: seed of the frames.

    Raises:
        AgentError: there are problems; the message lists all of them.
    """
    problems = list(_check_structure(agent))
    if not problems:
        rng = np.random.default_rng(seed)
        frames = [random_frame(obs_space, action_space, rng) for _ in range(num_frames)]
        frames.append(Observation(global_features=[0.0] * len(obs_space.global_entity.columns)))
        net: Any = copy.deepcopy(agent)
        net.eval()
        device = next(net.parameters()).device
        batch = EntityBatch.of(batch_obs(frames, obs_space, action_space), device)
        for check in _CHECKS:
            try:
                problems += check(net, batch)
            except Exception as error:  # a network may raise anything
                name = check.__name__.removeprefix("_check_")
                problems.append(f"{name}: raised {type(error).__name__}: {error}")
                break
    if problems:
        raise AgentError(*problems)


def random_frame(
    obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], rng: np.random.Generator
) -> Observation:
    """Make a frame with up to four entities of each type, and random masks."""
    counts = {name: int(rng.integers(0, 5)) for name in obs_space.entities}
    ids = {name: [(name, i) for i in range(n)] for name, n in counts.items()}
    all_ids = [one for type_ids in ids.values() for one in type_ids]

    def some() -> list[Any]:
        return [one for one in all_ids if rng.random() < 0.5]

    def rows(n: int, entity: Entity) -> Float32Array:
        numbers = rng.normal(size=(n, len(entity.features)))
        labels = [rng.integers(len(kind.labels), size=(n, 1)) for kind in entity.kinds]
        block: Float32Array = np.concatenate([numbers, *labels], axis=1).astype(np.float32)
        return block

    masks, acting = {}, dict[str, list[Any]]()
    for name in parents_first(action_space):
        space = action_space[name]
        actors = some()
        if space.after is not None:  # a subset of the actors of the parent action
            actors = [one for one in actors if one in acting[space.after]]
        acting[name] = actors
        masks[name] = space.random_mask(actors, some(), rng)
    return Observation(
        features={name: rows(n, obs_space.entities[name]) for name, n in counts.items()},
        ids=ids,
        global_features=rows(1, obs_space.global_entity)[0],
        actions=masks,
    )


def _check_structure(agent: Any) -> Iterator[str]:
    """Check the class, the parameters and the methods."""
    if not isinstance(agent, nn.Module):
        yield f"agent: expected a torch.nn.Module, got {type(agent).__name__}"
        return
    if not any(parameter.requires_grad for parameter in agent.parameters()):
        yield "parameters: expected some that can be trained, got none"
    for name in ("values", "update_input_stats"):
        if not callable(getattr(agent, name, None)):
            yield f"{name}: expected a method, see PPOAgent"


def _check_outputs(net: Any, batch: EntityBatch) -> Iterator[str]:
    """Check shapes, masks, and the consistency of the parts of an output."""
    # Types and shapes.
    out = _act(net, batch, draw=True)
    if not isinstance(out, NetOutput):
        yield f"forward: expected a NetOutput, got {type(out).__name__}"
        return
    for part in ("actions", "logprobs", "entropies", "log_probs"):
        expected = {*batch.actions}
        if part == "log_probs":  # not for actions whose choices cannot be enumerated
            expected -= {n for n, d in out.distributions.items() if d.all_log_probs is None}
        actions = {*getattr(out, part)}
        if actions != expected:
            yield f"{part}: expected the actions {sorted(expected)}, got {sorted(actions)}"
            return
    value = out.values.get("value")
    if value is None or value.shape != (batch.num_frames, 1) or not value.isfinite().all():
        got = "none" if value is None else f"shape {tuple(value.shape)}: {value.flatten().tolist()}"
        yield f"values['value']: expected ({batch.num_frames}, 1) finite numbers, got {got}"
        return
    if not _close(net.values(batch)["value"], value):
        yield "values: expected the values of forward, got others"

    # Choices and probabilities of each action.
    most_probable = _act(net, batch, draw=False)
    for name in batch.actions:
        problems = list(_check_action(name, out, batch))
        yield from problems
        if problems:
            return
        if not _equal(most_probable.actions[name], most_probable.distribution(name).mode()):
            yield f"actions[{name!r}]: without uniforms expected the most probable choices"

    # Evaluation of given actions.
    judged = net(batch, actions=out.actions)
    for name, logprobs in out.logprobs.items():
        if not _equal(judged.actions[name], out.actions[name]):
            yield f"actions[{name!r}]: expected the given actions to be returned, got others"
        if not _close(judged.logprobs[name], logprobs):
            yield f"logprobs[{name!r}]: expected the same values for given and sampled actions"


def _check_action(name: str, out: NetOutput, batch: EntityBatch) -> Iterator[str]:
    """Check the output for the actors of one action."""
    # Shapes and types.
    action = batch.actions[name]
    num_actors = len(action.actors.values)
    chosen, distribution = out.actions[name], out.distribution(name)
    choices_shape: tuple[int, ...] = (num_actors,)
    dtype = torch.int64
    if action.bounds is not None:
        choices_shape, dtype = (num_actors, action.num_draws), torch.float32
    for part in ("actions", "logprobs", "entropies"):
        expected = choices_shape if part == "actions" else (num_actors,)
        shape = tuple(getattr(out, part)[name].shape)
        if shape != expected:
            yield f"{part}[{name!r}]: expected shape {expected}, got {shape}"
            return
    if chosen.dtype != dtype:
        expected_type, got_type = (str(one).removeprefix("torch.") for one in (dtype, chosen.dtype))
        yield f"actions[{name!r}]: expected {expected_type}, got {got_type}"
        return

    # Active actors of a dependent action, and its mask given the parent action.
    is_active = torch.ones(num_actors, dtype=torch.bool, device=chosen.device)
    if action.after is not None:
        action, is_active = mask_given_choices(action, batch.actions, out.actions)
        if not torch.equal(has_choice(chosen), is_active):
            yield (
                f"actions[{name!r}]: expected -1, or NaN if continuous, exactly for inactive "
                f"actors, got {chosen.tolist()}"
            )
            return

    # Probabilities of all choices, if they can be enumerated, are masked and add up to 1.
    source, log_probs = "distributions", distribution.all_log_probs
    if log_probs is not None:
        source, allowed, probs = "log_probs", _allowed(action, log_probs), log_probs.exp()
        if log_probs.shape != allowed.shape:
            yield (
                f"log_probs[{name!r}]: expected shape {tuple(allowed.shape)}, one row for each "
                f"actor and one column for each choice, got {tuple(log_probs.shape)}"
            )
            return
        if not _close(probs.sum(dim=1), probs.new_ones(num_actors)):
            yield f"log_probs[{name!r}]: expected probabilities that add up to 1"
        legal = allowed.gather(1, chosen.clamp(min=0)[:, None])
        if (probs[~allowed] != 0).any() or not legal[is_active].all():
            yield f"log_probs[{name!r}]: expected probability 0 where the mask forbids a choice"
            return

    # Log-probabilities and entropies match the distribution.
    if not _close(out.logprobs[name], distribution.log_prob(chosen)):
        yield f"logprobs[{name!r}]: expected log-probabilities of the choices in {source}"
    if not _close(out.entropies[name], distribution.entropy()):
        yield f"entropies[{name!r}]: expected entropies of {source}"


def _equal(got: Tensor, expected: Tensor) -> bool:
    """Return True if choices are equal; NaN, of inactive actors, equals NaN."""
    return got.shape == expected.shape and bool(
        ((got == expected) | (got != got) & (expected != expected)).all()
    )


def _allowed(action: ActionBatch, log_probs: Tensor) -> Tensor:
    """Return the legal choices, (actors, choices) bool.

    For select-entity the columns are the actees, padded to the largest number.
    """
    if action.actees is None:
        free = torch.ones(len(action.actors.values), log_probs.shape[1], dtype=torch.bool)
        return free if action.mask is None else action.mask.values
    columns = np.repeat(action.actees.lengths, action.actors.lengths)
    within = torch.arange(int(columns.max(initial=0))) < torch.from_numpy(columns)[:, None]
    allowed = within.clone()
    if action.mask is not None:
        allowed[within] = action.mask.values.cpu().bool()
    return allowed.to(log_probs.device)


def _check_determinism(net: Any, batch: EntityBatch) -> Iterator[str]:
    """Check that acting has no side effects and no randomness except `uniforms`."""
    before = copy.deepcopy(net.state_dict())
    generator = torch.get_rng_state()
    first, second = _act(net, batch, draw=True), _act(net, batch, draw=True)
    if not torch.equal(generator, torch.get_rng_state()):
        yield "forward: expected randomness from uniforms alone, it drew from torch's generator"
    if any(not _equal(first.actions[name], second.actions[name]) for name in first.actions):
        yield "actions: expected the same choices from the same frames and uniforms"
    net.values(batch)
    changed = [n for n, tensor in net.state_dict().items() if not torch.equal(tensor, before[n])]
    if changed:
        yield f"forward: expected no side effects, it changed {changed}"


def _check_batch_independence(net: Any, batch: EntityBatch) -> Iterator[str]:
    """Check that the output for a frame does not depend on other frames of the batch."""
    together = _act(net, batch, draw=False)
    for i in range(batch.num_frames):
        frame = np.array([i])
        alone = _act(net, batch.take(frame), draw=False)
        same = _close(alone.values["value"][0], together.values["value"][i])
        for name, action in batch.actions.items():
            rows = RaggedTensor(together.logprobs[name], action.actors.lengths).take(frame)
            same = same and _close(alone.logprobs[name], rows.values)
        if not same:
            yield f"forward: the output for frame {i} alone differs from that in a batch"
            return


def _check_memory(net: Any, batch: EntityBatch) -> Iterator[str]:
    """Check that outputs for sequences equal outputs step by step, and that memory is reset."""
    if not any(memory_specs(net)):
        return
    # Use the frames as two steps of n environments, in which entities keep their rows.
    n = batch.num_frames // 2
    identity = {
        name: Ragged(row_indices(np.zeros_like(rows.lengths), rows.lengths), rows.lengths)
        for name, rows in batch.features.items()
        if name != GLOBAL
    }
    batch = replace(batch, identity=identity).take(np.arange(2 * n))
    steps, environments = [batch.slice(slice(0, n)), batch.slice(slice(n, 2 * n))], np.arange(n)
    memory, rollout, outs = PlayerMemory(net, n), RolloutMemory(2), []
    for frames_now in steps:
        rollout.add(memory, environments)
        frames, attached = memory.attach(frames_now, environments, acts=True)
        out = _act(net, frames, draw=True)
        memory.advance(attached, [out.memory, out.memory_of_values])
        memory.reward = np.ones(n, np.float32)
        outs.append(out)

    # Both steps in one batch.
    chosen = {name: torch.cat([out.actions[name] for out in outs]) for name in outs[0].actions}
    with torch.no_grad():
        together = net(replace(batch, past=rollout.past(batch)), actions=chosen)
    same = _close(together.values["value"], torch.cat([out.values["value"] for out in outs]))
    for name, logprobs in together.logprobs.items():
        same = same and _close(logprobs, torch.cat([out.logprobs[name] for out in outs]))
    if not same:
        yield "memory: the output for a sequence of two steps differs from that step by step"

    # An episode starts with empty memory.
    memory.begun[:] = True
    values = []
    for player_memory in (memory, PlayerMemory(net, n)):
        frames, _ = player_memory.attach(steps[1], environments, acts=True)
        values.append(_act(net, frames, draw=True).values["value"])
    if not _close(values[0], values[1]):
        yield "memory: the output for the first frame of an episode depends on the previous episode"


def _check_gradients(net: Any, batch: EntityBatch) -> Iterator[str]:
    """Check the gradients of all outputs that the loss uses."""
    chosen = _act(net, batch, draw=True).actions
    net.train()
    out = net(batch, actions=chosen)
    net.eval()
    terms = [*out.logprobs.values(), *out.entropies.values(), out.values["value"].flatten()]
    net.zero_grad()
    torch.cat(terms).square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    if not gradients:
        yield "forward: expected gradients of its parameters, got none"
    bad = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    if bad:
        yield f"forward: expected finite gradients, got others for {bad}"


def _check_state_dict(net: Any, batch: EntityBatch) -> Iterator[str]:
    """Check that the state dict includes everything that the output depends on."""
    parameters = {name: p.detach().clone() for name, p in net.named_parameters()}
    net.update_input_stats(batch)
    moved = [n for n, p in net.named_parameters() if not torch.equal(p.detach(), parameters[n])]
    if moved:
        yield f"update_input_stats: expected it to leave parameters alone, it changed {moved}"
    expected = _act(net, batch, draw=True)
    saved = save_tensors({name: t.cpu().contiguous() for name, t in net.state_dict().items()})
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.zero_()
    net.load_state_dict(load_tensors(saved))
    got = _act(net, batch, draw=True)
    for name, logprobs in expected.logprobs.items():
        if not torch.equal(got.logprobs[name], logprobs):
            yield f"state_dict: actions[{name!r}] differ after saving and loading"
    if not torch.equal(got.values["value"], expected.values["value"]):
        yield "state_dict: values differ after saving and loading"


_CHECKS = (
    _check_outputs,
    _check_determinism,
    _check_batch_independence,
    _check_memory,
    _check_gradients,
    _check_state_dict,
)


def _act(net: Any, batch: EntityBatch, draw: bool) -> Any:
    env = np.arange(batch.num_frames)
    with torch.no_grad():
        return net(batch, uniforms=draw_uniforms(batch.actions, 0, env, 0) if draw else None)


def _close(got: Tensor, expected: Tensor) -> bool:
    return got.shape == expected.shape and torch.allclose(got, expected, _TOLERANCE, _TOLERANCE)
