"""Training from settings, in crash-safe run directories."""
