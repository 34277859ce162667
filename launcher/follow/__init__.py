"""Follow a live attempt: its lines, its end, its panel and hooks, and what Ctrl-C does.

The path of a line on its host, in launcher.supervisor:

    a rank's stdout  is a file, because torchrun.py redirects it
    RankLogs         has a Tail per file, which copies whole lines when Round.copy_output asks, to the
    Journal          of the node: a file with one entry per line of output or event

On this machine:

    NodeWatcher      gets one node's journal over SSH (tail_journal.sh), and a JournalReader makes it
                     OutputLines and EventEntries, which it puts into the
    Inbox            a queue from all watchers to the
    Monitor          which keeps events and last lines in FollowedNodes, and yields observations to the
    Session          or, for `ddpctl logs`, to look/logs.py, which passes new entries to the
    LogStore         this machine's copy, which `ddpctl logs` prints first (logs/query.py), and to
    RunLines         which hides torchrun's own reports and folds identical lines, for
    Console.show     which renders lines with their labels; on a terminal, it first removes text that
                     a carriage return would overwrite, so that the label stays. Finally, the
    ResultStream     removes control characters and all escapes except colors, on a terminal.

`logs` first runs runs/sync_logs.py: the same JournalReader and LogStore, without a NodeWatcher.
Events (supervisor/events.py) are never shown.
"""
