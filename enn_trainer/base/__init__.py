"""Base of all folders: errors, parts of the state, processes, the interface of agents, tables."""
