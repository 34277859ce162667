"""Folders to hosts."""
