"""Send bytes to hosts: directly, or through a chain of hosts."""
