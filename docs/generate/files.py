"""Files of the repository that are made from the code, apart from the replay page.

`make generated` writes them, the replay page and the reference pages of the documentation site.
"""

from pathlib import Path

from enn_trainer.cli import run
from enn_trainer.config import TrainConfig
from enn_trainer.config.schema import dump_schema, schema_of

from . import completion, structure

ROOT = Path(__file__).parents[2]
SCHEMA = "enn_trainer/config/config_schema.ron"


def generated_files() -> dict[str, str]:
    """Return the text of each file by its path in the repository."""
    scripts = completion.scripts()
    return {
        SCHEMA: dump_schema(schema_of(TrainConfig)),
        structure.PAGE: structure.with_limits(ROOT),
        **{f"enn_trainer/cli/completion/{name}": text for name, text in scripts.items()},
    }


def write_files(root: Path) -> None:
    """Write all files below the root of the repository.

    Raises:
        SystemExit: older configurations need an upgrade rule first; nothing is written.
    """
    if status := run(["config", "upgrade-schema", str(root / SCHEMA)]):
        raise SystemExit(status)
    for path, text in generated_files().items():
        (root / path).write_text(text)
