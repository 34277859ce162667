"""Records of runs, and what is read back from them."""
