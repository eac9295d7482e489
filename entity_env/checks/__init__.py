"""Parts of `check_env`: random play, checks of spaces, and the report."""
