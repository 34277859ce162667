"""Send container images to hosts."""
