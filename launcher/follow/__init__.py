"""Follow a live attempt: its lines, its end, its panel and hooks, and what Ctrl-C does.

The path of a line on the node: a rank's stdout -> a file, because torchrun.py redirects it ->
RankLogs (whole lines, whenever Round.copy_output asks) -> Journal (one entry per line); all in
launcher.supervisor. On this machine: the journal -> `tail_journal.sh` -> NodeWatcher (its JournalReader
makes LogEntries; they are put as items into the Inbox) -> Monitor (observations of all nodes) ->
Session -> LogStore (a copy), and RunLines (fold, hide) -> Console -> ResultStream, which on a terminal
removes escapes.

Some entries are events (supervisor/events.py), which are for ddpctl and not shown.
"""
