"""What a run tells: numbers, files, the terminal."""
