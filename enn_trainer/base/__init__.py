"""Base of all folders: errors, parts of a state, processes, the interface of agents, tables."""
