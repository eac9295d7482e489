"""Load a trained agent and let it play: `python docs/act.py RUN [EPISODES]`."""

import sys

from enn_trainer import load_agent, load_checkpoint
from entity_env import CategoricalAction, GlobalCategoricalAction
from entity_env.examples import ENV_REGISTRY

run = sys.argv[1]
episodes = int(sys.argv[2]) if len(sys.argv) > 2 else 3

env = ENV_REGISTRY[load_checkpoint(run).config.env.id]()
agent = load_agent(run)

for episode in range(episodes):
    env.seed(episode)
    observation = env.reset()
    steps, total = 0, 0.0
    while not observation.done:
        actions, value = agent.act(observation)
        if episode == 0 and steps % 8 == 0:
            for name, action in actions.items():
                if isinstance(action, GlobalCategoricalAction):
                    print(f"  step {steps}: {name} {action.label}  (expects {value:.2f})")
                elif isinstance(action, CategoricalAction):
                    print(f"  step {steps}: {name} {action.labels}  (expects {value:.2f})")
        observation = env.act(actions)
        steps, total = steps + 1, total + observation.reward
    print(f"episode {episode}: {steps} steps, return {total:.3f}")
