"""Opponents in training: ratings, matchmaking and pay-off matrices of a pool of players."""
