"""Folders of files to hosts."""
