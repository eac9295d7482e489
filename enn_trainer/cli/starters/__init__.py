"""Files that `enn init` writes, and the writer of adapters. Imports nothing."""
