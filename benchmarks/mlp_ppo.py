"""PPO with an MLP on vectors: a short reference implementation.

One file and no options: actor and critic of two hidden layers each, advantages normalised over a
minibatch, clipped values, Adam. Truncation counts as termination, as usual in such programs.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from flat_foraging import Floats
from torch import Tensor, nn


class Settings(NamedTuple):
    """Settings of PPO, with the names and defaults of Stable-Baselines3.

    Attributes:
        n_envs: number of environments, each of which is played by one agent.
        n_steps: frames of one environment in a rollout.
        batch_size: frames of a minibatch.
    """

    n_envs: int
    n_steps: int
    batch_size: int
    n_epochs: int = 10
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


def mlp(num_features: int, hidden: int, num_outputs: int, gain: float) -> nn.Sequential:
    """Make an MLP of two hidden layers with orthogonal weights."""
    layers = [nn.Linear(num_features, hidden), nn.Linear(hidden, hidden)]
    layers.append(nn.Linear(hidden, num_outputs))
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class MlpPPO:
    """PPO learner for one set of environments.

    Args:
        envs: training environments: a `FlatForaging`, or an object with its attributes and `step`.
        hidden: width of the layers.
        settings: hyperparameters.
        seed: seed of weights and actions.
    """

    def __init__(self, envs: Any, hidden: int, settings: Settings, seed: int) -> None:
        torch.manual_seed(seed)
        self.envs, self.settings = envs, settings
        num_features = envs.obs.shape[1]
        self.actor = mlp(num_features, hidden, envs.num_actions, 0.01)
        self.critic = mlp(num_features, hidden, 1, 1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=settings.learning_rate, eps=1e-5)

    @torch.no_grad()
    def choose(self, obs: Floats) -> npt.NDArray[np.int64]:
        """Sample an action for each environment."""
        policy = torch.distributions.Categorical(logits=self.actor(torch.from_numpy(obs)))
        actions: npt.NDArray[np.int64] = policy.sample().numpy()
        return actions

    def update(self) -> int:
        """Collect a rollout and learn from it; return its number of frames."""
        s, num_envs = self.settings, len(self.envs.obs)
        obs = torch.zeros(s.n_steps, *self.envs.obs.shape)
        actions = torch.zeros(s.n_steps, num_envs, dtype=torch.int64)
        logprobs, values, rewards, ends = (torch.zeros(s.n_steps, num_envs) for _ in range(4))
        with torch.no_grad():
            for t in range(s.n_steps):
                obs[t] = torch.from_numpy(self.envs.obs)
                policy = torch.distributions.Categorical(logits=self.actor(obs[t]))
                actions[t] = policy.sample()
                logprobs[t], values[t] = policy.log_prob(actions[t]), self.critic(obs[t]).flatten()
                outcome = self.envs.step(actions[t].numpy())
                rewards[t] = torch.from_numpy(outcome.rewards)
                ends[t] = torch.from_numpy(outcome.ends)
            value = self.critic(torch.from_numpy(self.envs.obs)).flatten()
            advantages, advantage = torch.zeros_like(rewards), torch.zeros(num_envs)
            for t in reversed(range(s.n_steps)):
                not_done = 1 - ends[t]
                delta = rewards[t] + s.gamma * value * not_done - values[t]
                advantage = delta + s.gamma * s.gae_lambda * not_done * advantage
                advantages[t], value = advantage, values[t]
        frames = [x.flatten(0, 1) for x in (obs, actions, logprobs, values, advantages)]
        for _ in range(s.n_epochs):
            for index in torch.randperm(s.n_steps * num_envs).split(s.batch_size):
                self._learn(*(x[index] for x in frames))
        return s.n_steps * num_envs

    def _learn(
        self, obs: Tensor, actions: Tensor, logprobs: Tensor, values: Tensor, advantages: Tensor
    ) -> None:
        """Take one optimizer step."""
        s, returns = self.settings, advantages + values
        policy = torch.distributions.Categorical(logits=self.actor(obs))
        ratio = (policy.log_prob(actions) - logprobs).exp()
        normalised = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - s.clip_range, 1 + s.clip_range)
        policy_loss = -torch.minimum(ratio * normalised, clipped * normalised).mean()
        value = self.critic(obs).flatten()
        near = values + (value - values).clamp(-s.clip_range, s.clip_range)
        value_loss = torch.maximum((value - returns) ** 2, (near - returns) ** 2).mean() / 2
        loss = policy_loss - s.ent_coef * policy.entropy().mean() + s.vf_coef * value_loss
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, s.max_grad_norm)
        self.optimizer.step()
