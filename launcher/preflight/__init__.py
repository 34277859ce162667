"""Checks of all hosts before anything starts."""
