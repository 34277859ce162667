"""Container images to hosts."""
