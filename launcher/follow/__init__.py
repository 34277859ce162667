"""Following a live attempt and showing its logs."""
