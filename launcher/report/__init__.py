"""One page about one run: `numbers` reads the trainer's metrics, `curves` draws, `page` writes HTML.

Those three are pure; `making` asks the hosts and writes the file.
"""
