"""Plain data as bytes, read without running anything and within bounds."""
