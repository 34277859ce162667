"""Following a live attempt: its lines, its end, its panel and hooks, and what Ctrl-C does.

The path of a line: the journal on the host -> `tail_journal.sh` -> NodeWatcher (a Batch of Records)
-> Monitor (all nodes, and the copy in the log store) -> Session -> RunLines (fold, hide) -> Console.
"""
