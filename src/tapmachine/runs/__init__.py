"""Training from settings, in folders that survive interruption."""
