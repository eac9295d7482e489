"""Metric sink for Weights & Biases."""

import netrc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

INIT_TIMEOUT_S = 30.0
"""Timeout of the connection at the beginning of a run."""
BASE_URL = "https://api.wandb.ai"


@final
class WandbSink:
    """A run of W&B, which a resumed run continues.

    Offline the metrics are kept on the disk for `wandb sync`: with WANDB_MODE=offline, and without
    an API key, as a prompt for one would stop an unattended run.

    Args:
        run_id: id of the W&B run, new or to be continued.
        run_name: the name that W&B displays.
        project: the project of the run.
        entity: the team or user who owns the project; None for the account's default.
        config: the configuration that W&B displays, by dotted name.
        folder: the folder for the files of wandb.
        say: prints a line.
    """

    def __init__(
        self,
        run_id: str,
        run_name: str,
        project: str,
        entity: str | None,
        config: Mapping[str, object],
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        import wandb  # takes seconds, and few runs use it

        mode = os.environ.get("WANDB_MODE")
        if mode is None and not has_key():
            mode = "offline"
            say(
                "W&B: no API key, so the numbers stay on this machine (wandb login, then "
                f"wandb sync {folder / 'wandb'}/offline-run-*)"
            )
        self._wandb: Any = wandb
        # Its output would disturb the progress panel on the terminal.
        settings = wandb.Settings(console="off", silent=True, init_timeout=INIT_TIMEOUT_S)
        self._run: Any = wandb.init(
            id=run_id,
            name=run_name,
            project=project,
            entity=entity,
            config=dict(config),
            dir=str(folder),
            mode=mode,  # type: ignore[arg-type]  # wandb checks the value of the variable
            # Offline there is no run to resume; `wandb sync` joins the parts by their id.
            resume=None if mode == "offline" else "allow",
            allow_val_change=True,  # settings of a resumed run may differ
            reinit="create_new",
            settings=settings,
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send scalars under their tags."""
        self._run.log(dict(scalars), step=step)

    def video(self, step: int, name: str, path: Path) -> None:
        """Send a video file."""
        self._run.log({name: self._wandb.Video(str(path))}, step=step)

    def close(self) -> None:
        """Send buffered scalars and finish the run."""
        self._run.finish()


def has_key() -> bool:
    """Return True if W&B finds an API key in the environment or in a netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", BASE_URL)).hostname or ""
    named = os.environ.get("NETRC")
    paths = [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for path in paths:
        try:
            if netrc.netrc(path).authenticators(host) is not None:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
