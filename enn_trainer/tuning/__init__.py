"""Search of settings: ranges, trials that are ordinary runs, judging, and reports."""
