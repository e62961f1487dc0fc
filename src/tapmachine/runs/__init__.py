"""Training from settings, in crash-safe run folders."""
