"""How bytes travel to hosts."""
