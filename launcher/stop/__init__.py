"""Stopping runs and proving that nothing is left."""
