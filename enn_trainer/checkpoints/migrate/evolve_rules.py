"""Rules by which a save is upgraded to another world: what is now called otherwise."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from enn_trainer.errors import ConfigError
from entity_env.errors import InvalidSpace
from entity_env.spaces import ActionSpace, Entity, ObsSpace

SYNTAX = "Type=New, Type.feature=new, global:feature=new, action:name=new or label:action.label=new"

Name = tuple[str, ...]
"""What is called so: ("type", type), ("feature", type, feature), ("global", feature), ("action",
action) or ("label", action, label); all of it in the names of the save."""


@dataclass(frozen=True)
class Rules:
    """How to upgrade.

    Attributes:
        renamed: new names of what the save has, by `Name`. What is not there keeps its name.
        new_label_prob: how probable the labels that are added to an action are together, at most.
    """

    renamed: Mapping[Name, str] = field(default_factory=dict)
    new_label_prob: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.new_label_prob < 1:
            raise ConfigError(
                "new_label_prob: expected a number between 0 and 1, both excluded, got "
                f"{self.new_label_prob}"
            )

    def type(self, name: str) -> str:
        """What an entity type is called now."""
        return self.renamed.get(("type", name), name)

    def feature(self, type_name: str, name: str) -> str:
        """What a feature of an entity type is called now."""
        return self.renamed.get(("feature", type_name, name), name)

    def global_feature(self, name: str) -> str:
        """What a global feature is called now."""
        return self.renamed.get(("global", name), name)

    def action(self, name: str) -> str:
        """What an action is called now."""
        return self.renamed.get(("action", name), name)

    def label(self, action: str, name: str) -> str:
        """What a label of an action is called now."""
        return self.renamed.get(("label", action, name), name)

    def name(self, name: Name) -> Name:
        """The same with the names of now; anything behind the names stays."""
        match name:
            case ("type", one, *rest):
                return ("type", self.type(one), *rest)
            case ("feature", one, feature):
                return ("feature", self.type(one), self.feature(one, feature))
            case ("global", feature):
                return ("global", self.global_feature(feature))
            case ("action", one, *rest):
                return ("action", self.action(one), *rest)
            case ("label", one, label):
                return ("label", self.action(one), self.label(one, label))
            case ("part", one, *rest):
                return ("part", one, *self.name(tuple(rest)))
        return name

    def spaces(
        self, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]
    ) -> tuple[ObsSpace, dict[str, ActionSpace]]:
        """The spaces of a save with the names of now.

        Raises:
            ConfigError: two things would have one name.
        """
        entities = {}
        try:
            actions = {self.action(name): self._space(name, s) for name, s in action_space.items()}
            for one, entity in obs_space.entities.items():
                entities[self.type(one)] = Entity([self.feature(one, f) for f in entity.features])
            if len(entities) < len(obs_space.entities) or len(actions) < len(action_space):
                raise InvalidSpace("every type and action must have a name of its own")
            shared = [self.global_feature(name) for name in obs_space.global_features]
            return ObsSpace(shared, entities), actions
        except InvalidSpace as error:
            raise ConfigError(f"rename: two names become one: {error}") from None

    def refuse_unknown(self, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> None:
        """Refuse new names that a world does not have: what they are of would be dropped.

        Args:
            obs_space: of the world of now.
            action_space: likewise.

        Raises:
            ConfigError: names them all, each with the nearest name that there is.
        """
        known = {*_names(obs_space, action_space)}
        problems = []
        for old, new in self.renamed.items():
            wanted = self.name(old)
            if wanted not in known:
                there = sorted(name[-1] for name in known if name[:-1] == wanted[:-1])
                problems.append(
                    f"rename: {_text(old)}={new}: expected a name of the world to the right, "
                    f"which has {', '.join(there) or 'none there'}; got {new!r}{_hint(new, there)}"
                )
        if problems:
            raise ConfigError(*problems)

    def _space(self, name: str, space: ActionSpace) -> ActionSpace:
        return space.renamed({label: self.label(name, label) for label in space.labels})


def read_renames(
    texts: Iterable[str], obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]
) -> dict[Name, str]:
    """What `--rename` says, as `Rules.renamed`.

    Args:
        texts: such as `Trap=Mine`, `Treasure.x=position_x`, `global:hour=time`,
            `action:move=walk`, `label:move.up=north`.
        obs_space: of the save, whose names stand to the left.
        action_space: of the save.

    Raises:
        ConfigError: one is not of this form, or of nothing in the save; says what there is.
    """
    known = _left_hand_sides(obs_space, action_space)
    renamed: dict[Name, str] = {}
    for text in texts:
        # Names may hold any character, also "=": only a name of the save says where it ends.
        left = max((one for one in known if text.startswith(f"{one}=")), key=len, default=None)
        if left is None:
            wanted, equals, _ = text.partition("=")
            raise ConfigError(
                f"rename: expected {SYNTAX}, with a name of the save to the left, which has "
                f"{', '.join(known)}; got {text!r}{_hint(wanted, known) if equals else ''}"
            )
        new = text[len(left) + 1 :]
        if not new:
            raise ConfigError(f"rename: expected a new name after =, got {text!r}")
        if len(known[left]) > 1:
            raise ConfigError(
                f"rename: {left!r} is more than one thing in the save; rename in code"
            )
        (name,) = known[left]
        if name in renamed:
            raise ConfigError(f"rename: expected every name once, got {left} twice")
        renamed[name] = new
    return renamed


def rename_lines(path: Path) -> list[str]:
    """What a file says, one rename a line; empty lines and those that begin with # are left out.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--rename-file: expected a text file, got {path} ({error})") from None
    return [line for line in lines if line and not line.startswith("#")]


def _hint(wanted: str, names: Iterable[str]) -> str:
    near = get_close_matches(wanted, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _left_hand_sides(
    obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]
) -> dict[str, list[Name]]:
    known: dict[str, list[Name]] = {}
    for name in _names(obs_space, action_space):
        known.setdefault(_text(name), []).append(name)
    return known


def _names(obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]) -> list[Name]:
    """All that a world has a name for."""
    return [
        *(("type", one) for one in obs_space.entities),
        *(
            ("feature", one, feature)
            for one, entity in obs_space.entities.items()
            for feature in entity.features
        ),
        *(("global", one) for one in obs_space.global_features),
        *(("action", one) for one in action_space),
        *(("label", one, label) for one, space in action_space.items() for label in space.labels),
    ]


def _text(name: Name) -> str:
    """A name as it stands to the left in a rename."""
    kind, *path = name
    return ".".join(path) if kind in ("type", "feature") else f"{kind}:{'.'.join(path)}"
