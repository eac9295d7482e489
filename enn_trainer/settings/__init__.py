"""How settings are read, upgraded and explained."""
