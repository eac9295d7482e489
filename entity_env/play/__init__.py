"""Play an environment by hand, in the terminal."""
