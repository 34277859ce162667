"""Look at runs (ps, logs, exec, stacks, GPU use) and fetch their files."""
