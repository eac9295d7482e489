"""The command `enn envs`."""

from collections.abc import Sequence

from entity_env.examples import ENV_REGISTRY


def envs_command(arguments: Sequence[str]) -> None:
    """Run `enn envs`: list the environments that ship with the project."""
    for name, env in ENV_REGISTRY.items():
        print(f"{name:20}{(env.__doc__ or '').strip().splitlines()[0]}")
