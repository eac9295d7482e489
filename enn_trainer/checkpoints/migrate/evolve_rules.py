"""Renames of types, features, actions, labels and arguments in upgrades of checkpoints."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from enn_trainer.base.errors import ConfigError
from entity_env.errors import InvalidSpace, did_you_mean
from entity_env.spaces import GLOBAL, ActionSpace, Entity, Kind, ObsSpace, Spaces

PARTS = ("policy", "value", "norm")
"""Parts of an agent that `--init-parts` names; the last are the input statistics."""
SYNTAX = (
    "Type=New, Type.feature=new, global:feature=new, action:name=new, label:action.label=new, "
    "label:Type.kind.label=new, label:global.kind.label=new or parameter:argument=new"
)

Name = tuple[str, ...]
"""Path of a name: ("type", type), ("feature", type, feature), ("global", feature), ("action",
action), ("label", action, label) or ("label", type, kind, label), with GLOBAL as the type of global
categorical features; ("parameter", argument) of a varied argument of the environment."""


@dataclass(frozen=True)
class Rules:
    """Rules of an upgrade.

    Attributes:
        renamed: new names by the `Name` in the checkpoint; all other names stay the same.
        new_label_prob: upper bound on the total probability of the labels added to an action.
    """

    renamed: Mapping[Name, str] = field(default_factory=dict)
    new_label_prob: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.new_label_prob < 1:
            raise ConfigError(
                "new_label_prob: expected a number between 0 and 1, both excluded, got "
                f"{self.new_label_prob}"
            )

    def new(self, *name: str) -> str:
        """Return the new name for a path, its last part if it is not renamed."""
        return self.renamed.get(name, name[-1])

    def arguments(self) -> dict[str, str]:
        """Return the new names of environment arguments, by old name."""
        return {name[1]: new for name, new in self.renamed.items() if name[0] == "parameter"}

    def name(self, name: Name) -> Name:
        """Return a path with all names replaced by the new ones; other elements stay."""
        match name:
            case ("type" | "action" as kind, one, *rest):
                return (kind, self.new(kind, one), *rest)
            case ("after", one, before, *rest):
                return ("after", self.new("action", one), self.new("action", before), *rest)
            case ("feature", one, _):
                return ("feature", self.new("type", one), self.new(*name))
            case ("label", one, kind, _):
                *_, new_kind = self.name(_kind_name(one, kind))
                return ("label", self.new("type", one), new_kind, self.new(*name))
            case ("label", one, _):
                return ("label", self.new("action", one), self.new(*name))
            case ("global", _):
                return ("global", self.new(*name))
            case ("part", one, *rest):
                return ("part", one, *self.name(tuple(rest)))
        return name

    def spaces(self, before: Spaces) -> Spaces:
        """Return the spaces of a checkpoint with the new names.

        Raises:
            ConfigError: two names would become the same.
        """
        obs_space, action_space = before
        entities, actions = dict[str, Entity](), dict[str, ActionSpace]()
        try:
            for name, space in action_space.items():
                labels = {label: self.new("label", name, label) for label in space.names}
                renamed = space.renamed(labels)
                if space.after is not None:
                    when = [self.new("label", space.after, label) for label in space.when]
                    after = self.new("action", space.after)
                    renamed = replace(renamed, after=after, when=when)
                actions[self.new("action", name)] = renamed
            for name, entity in obs_space.entities.items():
                features = [self.new("feature", name, one) for one in entity.features]
                kinds = [self._renamed(name, kind) for kind in entity.kinds]
                entities[self.new("type", name)] = Entity(features, kinds)
            if len(entities) < len(obs_space.entities) or len(actions) < len(action_space):
                raise InvalidSpace("every type and action must have a name of its own")
            shared = [self.new("global", name) for name in obs_space.global_features]
            shared_kinds = [self._renamed(GLOBAL, kind) for kind in obs_space.global_kinds]
            return Spaces(ObsSpace(shared, entities, shared_kinds), actions)
        except InvalidSpace as error:
            raise ConfigError(f"rename: two names become one: {error}") from None

    def _renamed(self, entity: str, kind: Kind) -> Kind:
        labels = [self.new("label", entity, kind.name, label) for label in kind.labels]
        return Kind(self.new(*_kind_name(entity, kind.name)), labels)

    def check_new_names(self, spaces: Spaces) -> None:
        """Raise if a new name is not in the new spaces, as its weights would be dropped.

        Raises:
            ConfigError: the message lists each such name, with the closest existing name.
        """
        existing = {*_names(spaces)}
        problems = []
        for old, new in self.renamed.items():
            new_name = self.name(old)
            if new_name not in existing and old[0] != "parameter":  # arguments are checked later
                names = sorted(name[-1] for name in existing if name[:-1] == new_name[:-1])
                problems.append(
                    f"rename: {_text(old)}={new}: expected a new name of the environment, one of "
                    f"{', '.join(names) or 'none'}; got {new!r}"
                    f"{did_you_mean(new, names, separator='; ')}"
                )
        if problems:
            raise ConfigError(*problems)


def read_renames(
    texts: Iterable[str], spaces: Spaces, arguments: Iterable[str] = ()
) -> dict[Name, str]:
    """Parse the values of `--rename` into `Rules.renamed`.

    Args:
        texts: such as `Trap=Mine`, `Treasure.x=position_x`, `global:hour=time`,
            `action:move=walk`, `label:move.up=north`, `label:Key.color.red=crimson`,
            `parameter:nmines=max_mines`.
        spaces: spaces of the checkpoint, with the old names.
        arguments: varied arguments of the checkpoint.

    Raises:
        ConfigError: a text does not have this form, or its old name is not in the checkpoint; the
            message lists the names of the checkpoint.
    """
    # Paths by their text; a text may be ambiguous.
    names: dict[str, list[Name]] = {}
    argument_names = [("parameter", name) for name in arguments]
    for name in [*_names(spaces), *argument_names]:
        names.setdefault(_text(name), []).append(name)

    renamed: dict[Name, str] = {}
    for text in texts:
        # Names may contain "=", so the left side is the longest known name that fits.
        left = max((one for one in names if text.startswith(f"{one}=")), key=len, default=None)
        if left is None:
            old, equals, _ = text.partition("=")
            hint = did_you_mean(old, names, separator="; ") if equals else ""
            raise ConfigError(
                f"rename: expected {SYNTAX}, with an old name of the checkpoint, one of "
                f"{', '.join(names)}; got {text!r}{hint}"
            )
        new = text[len(left) + 1 :]
        if not new:
            raise ConfigError(f"rename: expected a new name after =, got {text!r}")
        if len(names[left]) > 1:
            raise ConfigError(
                f"rename: {left!r} is ambiguous in the checkpoint; use Rules(renamed=...) in Python"
            )
        (name,) = names[left]
        if name in renamed:
            raise ConfigError(f"rename: expected every name once, got {left} twice")
        renamed[name] = new
    return renamed


def rename_lines(path: Path) -> list[str]:
    """Read the renames in a file, one per line, without empty lines and comments (#).

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--rename-file: expected a text file, got {path} ({error})") from None
    return [line for line in lines if line and not line.startswith("#")]


def _names(spaces: Spaces) -> list[Name]:
    """Return the paths of all names in spaces."""
    obs_space, action_space = spaces
    types, actions = obs_space.entities.items(), action_space.items()
    return [
        *(("type", name) for name, _ in types),
        *(("feature", name, feature) for name, one in types for feature in one.columns),
        *(("global", feature) for feature in obs_space.global_entity.columns),
        *(("action", name) for name, _ in actions),
        *(("label", name, label) for name, space in actions for label in space.names),
        *(name for one, kinds in obs_space.kinds.items() for name in label_names(one, kinds)),
    ]


def label_names(entity: str, kinds: Iterable[Kind]) -> list[Name]:
    """Return the paths of the labels of categorical features of an entity type or GLOBAL."""
    return [("label", entity, kind.name, label) for kind in kinds for label in kind.labels]


def _kind_name(entity: str, kind: str) -> Name:
    return ("global", kind) if entity == GLOBAL else ("feature", entity, kind)


def _text(name: Name) -> str:
    """Return a path in the syntax of `--rename`."""
    kind, *path = ("global" if part == GLOBAL else part for part in name)
    return ".".join(path) if kind in ("type", "feature") else f"{kind}:{'.'.join(path)}"
