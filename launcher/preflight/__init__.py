"""Checks of all hosts before a launch."""
