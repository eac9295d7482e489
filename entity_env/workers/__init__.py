"""Environments in other processes, and the messages between them."""
