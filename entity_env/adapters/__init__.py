"""Adapters for environments of other libraries, and of ours for these. Imports nothing."""
