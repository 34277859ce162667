"""Follow a live attempt: its lines, its end, its panel and hooks, and what Ctrl-C does.

The path of a line on its host, in launcher.supervisor: a rank's stdout -> a file, because
torchrun.py redirects it -> RankLogs (one Tail per file, which copies whole lines whenever
Round.copy_output asks) -> Journal (one entry per line).

`tail_journal.sh` then sends the journal over SSH. On this machine: NodeWatcher (JournalReader makes
LogEntries) -> Inbox (items from all nodes) -> Monitor (observations) -> Session -> LogStore (a
copy), and RunLines (hide, fold) -> Console.show (render) -> ResultStream. On a terminal, Console
removes text that a carriage return would overwrite, before the line gets its label, and ResultStream
removes control characters and all escapes except colors.

Some entries of a journal are events (supervisor/events.py), which are never shown.
"""
