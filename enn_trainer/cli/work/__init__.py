"""Work of commands that needs PyTorch, imported once their arguments are parsed."""
