"""Records of runs, and commands that read them."""
