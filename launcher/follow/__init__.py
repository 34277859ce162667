"""Follow a live attempt: its lines, its end, its panel and hooks, and what Ctrl-C does.

The path of a line on the node, in launcher.supervisor: a rank's stdout -> a file, because torchrun.py
redirects it -> RankLogs (whole lines, whenever Round.copy_output asks) -> Journal (one entry per line).

On this machine: the journal -> `tail_journal.sh` -> NodeWatcher (JournalReader makes LogEntries) ->
Inbox (items from all nodes) -> Monitor (observations) -> Session -> LogStore (a copy), and RunLines
(hide, fold) -> Console -> ResultStream, which on a terminal removes escapes.

Some entries of a journal are events (supervisor/events.py), which are never shown.
"""
