"""A run: the training loop, its sessions, stops, saves, and what the processes of a run share."""
