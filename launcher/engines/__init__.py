"""What runs a node of a run: Docker, or a process on this machine."""
