"""Send folders to hosts."""
