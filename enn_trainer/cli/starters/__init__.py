"""Files that `enn init` writes. Imports nothing."""
