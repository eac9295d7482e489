"""First guesses: command lines in words of other libraries, and the lines to type instead."""
