"""The file-backed log of a node: all its groups, one fsync.

`record` is the block format, `scan` tells blocks from bad places and torn tails, `index` knows where
each group's live entries are, `replay` rebuilds the groups, `log` writes and reclaims, `check` looks at a
directory without touching it. Everything goes through the `Disk` protocol and runs in one thread.
"""

from nodeagent.log.index import Damage
from nodeagent.log.log import Log, LogSettings, LogStatistics, NoSpace
from nodeagent.log.replay import GroupLog, Recovered

__all__ = ["Damage", "GroupLog", "Log", "LogSettings", "LogStatistics", "NoSpace", "Recovered"]
