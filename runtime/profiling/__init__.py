"""What a run did, looked at closely: memory over time, counters, the critical path, findings, traces, reports.

Everything here reads a program, its ``Timing`` and what the clock tells a ``Watcher``; of a dynamic instruction no more
than a few numbers are kept.
"""
