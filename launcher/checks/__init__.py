"""Preflight: what would make a launch fail or crawl, found before it. See `survey`."""
