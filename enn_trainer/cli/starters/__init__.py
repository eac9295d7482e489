"""Templates of `enn init`, and the generator of adapters. Imports nothing."""
