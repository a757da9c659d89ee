"""One Raft group as a pure state machine: messages, ticks and completions in, a `Ready` out.

The caller must:

 1. Feed it: `step` with messages of peers, `tick` at or after `deadline()`, `propose`, `read`, `change`.
 2. While `has_ready`: `take()` once per turn. Many calls between two turns become one append per peer.
 3. Write `hard` and `append` as one atomic batch, in the order of the Readies. Send `now` at once; send
    `after` only when that batch and all earlier ones are durable. Then call `persisted`, if `append` is set.
 4. Apply `committed` in order; answer `reads` once the applied index has reached the read index.

Terms and votes are durable before any message that promises them, in a group of one voter too. A config
takes effect when it is appended and is rolled back with its entry (thesis 4.1). Pre-vote, quorum checks and
leader stickiness are always on (thesis 4.2.3, 6.2, 9.6).

Differences from the thesis: a leader sends its new commit index by heartbeat if no append follows soon;
entries are handed out only when they are durable here, so that a state is newer than the local log only if
it came with a snapshot.
"""

from nodeagent.raft.core import Raft
from nodeagent.raft.log import RaftLog
from nodeagent.raft.membership import check_step, decode_config, encode_config
from nodeagent.raft.progress import ProgressState
from nodeagent.raft.ready import Ready
from nodeagent.raft.state import PeerStatus, RaftStatus, Role

__all__ = [
    "PeerStatus",
    "ProgressState",
    "Raft",
    "RaftLog",
    "RaftStatus",
    "Ready",
    "Role",
    "check_step",
    "decode_config",
    "encode_config",
]
