"""PPO with an MLP on vectors: a short reference implementation.

One file and no options: actor and critic of two hidden layers each, advantages normalised over a
minibatch, clipped values, Adam. Truncation counts as termination, as usual in such programs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from flat_foraging import FlatForaging, Floats
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    """Settings of PPO; steps counts frames of one environment, bs of all."""

    steps: int
    bs: int
    epochs: int
    lr: float
    gamma: float
    gae_lambda: float
    clip: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float


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
        envs: training environments.
        hidden: width of the layers.
        settings: hyperparameters.
        seed: seed of weights and actions.
    """

    def __init__(self, envs: FlatForaging, hidden: int, settings: Settings, seed: int) -> None:
        torch.manual_seed(seed)
        self.envs, self.settings = envs, settings
        num_features = envs.obs.shape[1]
        self.actor = mlp(num_features, hidden, envs.num_actions, 0.01)
        self.critic = mlp(num_features, hidden, 1, 1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=settings.lr, eps=1e-5)

    @torch.no_grad()
    def choose(self, obs: Floats) -> npt.NDArray[np.int64]:
        """Sample an action for each environment."""
        policy = torch.distributions.Categorical(logits=self.actor(torch.from_numpy(obs)))
        actions: npt.NDArray[np.int64] = policy.sample().numpy()
        return actions

    def update(self) -> int:
        """Collect a rollout and learn from it; return its number of frames."""
        s, num_envs = self.settings, len(self.envs.obs)
        obs = torch.zeros(s.steps, *self.envs.obs.shape)
        actions = torch.zeros(s.steps, num_envs, dtype=torch.int64)
        logprobs, values, rewards, ends = (torch.zeros(s.steps, num_envs) for _ in range(4))
        with torch.no_grad():
            for t in range(s.steps):
                obs[t] = torch.from_numpy(self.envs.obs)
                policy = torch.distributions.Categorical(logits=self.actor(obs[t]))
                actions[t] = policy.sample()
                logprobs[t], values[t] = policy.log_prob(actions[t]), self.critic(obs[t]).flatten()
                outcome = self.envs.step(actions[t].numpy())
                rewards[t] = torch.from_numpy(outcome.rewards)
                ends[t] = torch.from_numpy(outcome.ends)
            value = self.critic(torch.from_numpy(self.envs.obs)).flatten()
            advantages, advantage = torch.zeros_like(rewards), torch.zeros(num_envs)
            for t in reversed(range(s.steps)):
                not_done = 1 - ends[t]
                delta = rewards[t] + s.gamma * value * not_done - values[t]
                advantage = delta + s.gamma * s.gae_lambda * not_done * advantage
                advantages[t], value = advantage, values[t]
        frames = [x.flatten(0, 1) for x in (obs, actions, logprobs, values, advantages)]
        for _ in range(s.epochs):
            for index in torch.randperm(s.steps * num_envs).split(s.bs):
                self._learn(*(x[index] for x in frames))
        return s.steps * num_envs

    def _learn(
        self, obs: Tensor, actions: Tensor, logprobs: Tensor, values: Tensor, advantages: Tensor
    ) -> None:
        """Take one optimizer step."""
        s, returns = self.settings, advantages + values
        policy = torch.distributions.Categorical(logits=self.actor(obs))
        ratio = (policy.log_prob(actions) - logprobs).exp()
        normalised = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - s.clip, 1 + s.clip)
        policy_loss = -torch.minimum(ratio * normalised, clipped * normalised).mean()
        value = self.critic(obs).flatten()
        near = values + (value - values).clamp(-s.clip, s.clip)
        value_loss = torch.maximum((value - returns) ** 2, (near - returns) ** 2).mean() / 2
        loss = policy_loss - s.ent_coef * policy.entropy().mean() + s.vf_coef * value_loss
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, s.max_grad_norm)
        self.optimizer.step()
