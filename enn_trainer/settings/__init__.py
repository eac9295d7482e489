"""Reading, upgrades and help of settings."""
