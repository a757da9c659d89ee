"""The file-backed log of a node: all its groups share one log and one fsync.

`record` is the block format, `scan` separates blocks from bad places and torn tails, `index` maps each
group's live entries to segments, `replay` rebuilds the groups, `log` writes, `reclaim` frees segments and
`check` reads a directory without changing it. All I/O goes through the `Disk` protocol, in one thread.
"""

from nodeagent.log.index import Damage
from nodeagent.log.log import Log, LogSettings, LogStatistics
from nodeagent.log.replay import GroupLog, Recovered
from nodeagent.log.space import NoSpace

__all__ = ["Damage", "GroupLog", "Log", "LogSettings", "LogStatistics", "NoSpace", "Recovered"]
