"""What `enn` does."""
