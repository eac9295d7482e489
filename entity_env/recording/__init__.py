"""Files of frames, of what was done in them and of what came of it."""
