"""Extensions, one file each, that nothing else names: they prove that the seams carry them."""
