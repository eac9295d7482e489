"""Scalars and videos to Weights & Biases."""

import netrc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

INIT_TIMEOUT_S = 30.0
"""A run waits so long for the service at its beginning, at most."""
BASE_URL = "https://api.wandb.ai"


@final
class WandbSink:
    """Sends numbers to a W&B run, which a run of ours that continues goes on with.

    Offline they are kept on the disk for `wandb sync`: with WANDB_MODE=offline, and without a key,
    as asking for one would make a run wait that nobody looks at.

    Args:
        run_id: of the W&B run, new or to be continued.
        run_name: shown there.
        project: where it belongs.
        entity: the team or user who owns the project; None for the account's default.
        config: what is shown as the configuration, by full name.
        folder: where wandb keeps its files.
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
        import wandb  # takes seconds, and is for those who track

        mode = os.environ.get("WANDB_MODE")
        if mode is None and not has_key():
            mode = "offline"
            say(
                "W&B: no API key, so the numbers stay on this machine (wandb login, then "
                f"wandb sync {folder / 'wandb'}/offline-run-*)"
            )
        self._wandb: Any = wandb
        # Nothing of its own on the terminal, where it would tear the panel.
        settings = wandb.Settings(console="off", silent=True, init_timeout=INIT_TIMEOUT_S)
        self._run: Any = wandb.init(
            id=run_id,
            name=run_name,
            project=project,
            entity=entity,
            config=dict(config),
            dir=str(folder),
            mode=mode,  # type: ignore[arg-type]  # it checks what the environment says
            # Offline there is nothing to ask; what is sent later belongs together by its id.
            resume=None if mode == "offline" else "allow",
            allow_val_change=True,  # a run that continues may have other settings
            reinit="create_new",
            settings=settings,
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send each scalar under its own tag."""
        self._run.log(dict(scalars), step=step)

    def video(self, step: int, name: str, path: Path) -> None:
        """Send a video file."""
        self._run.log({name: self._wandb.Video(str(path))}, step=step)

    def close(self) -> None:
        """Send what is still here."""
        self._run.finish()


def has_key() -> bool:
    """Whether W&B can be used without asking for a key."""
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
