"""What Raft peers tell each other. Every message carries the sender's term (thesis figure 3.1).

The group travels beside the message, the sender is the authenticated peer.
"""

import msgspec

from nodeagent.model.bounds import Count, Name, Term, Time
from nodeagent.model.entries import Base, Entry


class _Message(msgspec.Struct, array_like=True, frozen=True):
    term: Term


class AppendRequest(_Message, tag=1, frozen=True):
    """Entries that follow (`prev_index`, `prev_term`). Empty `entries` is a probe or a commit notice.

    `read` is the leader's newest read round (0 for none): the reply echoes it (ReadIndex).
    `addition` tells one membership of the follower from the next: 0 when it was a member at the start of
    the term, else the index of the config that brought it in. Its answers carry it, so that a late one of
    a replica that was removed does not count for the one that came after it.
    """

    prev_index: Count
    prev_term: Term
    commit: Count
    entries: list[Entry]
    read: Count = 0
    addition: Count = 0


class AppendReply(_Message, tag=2, frozen=True):
    """Answer to `AppendRequest`.

    Accepted: `match` is the last index of the request that is durable here.
    Rejected: `match` echoes the request's `prev_index`; (`hint_index`, `hint_term`) is the highest
    position of this log that could match, so that the leader skips a whole term per round.
    """

    accepted: bool
    match: Count
    hint_index: Count = 0
    hint_term: Term = 0
    read: Count = 0
    addition: Count = 0


class Heartbeat(_Message, tag=3, frozen=True):
    """`commit` is clipped to what the leader knows the follower holds."""

    commit: Count
    read: Count = 0
    addition: Count = 0


class HeartbeatReply(_Message, tag=4, frozen=True):
    """`wall` is the sender's wall clock (ms), 0 when it says nothing of it: see `host.clocks`. `room`:
    what its disk has room for (`model.space.Room`)."""

    read: Count = 0
    wall: Time = 0
    room: Time = 0


class VoteRequest(_Message, tag=5, frozen=True):
    """`pre`: a pre-vote for `term`, which the candidate has not entered yet.

    `transfer`: the leader asked for this election, so leader stickiness does not apply.
    """

    last_index: Count
    last_term: Term
    pre: bool
    transfer: bool = False


class VoteReply(_Message, tag=6, frozen=True):
    """A granted pre-vote carries the candidate's term, a refusal the voter's own."""

    granted: bool
    pre: bool


class TimeoutNow(_Message, tag=7, frozen=True):
    """The leader hands over: campaign at once."""


class SnapshotOffer(_Message, tag=8, frozen=True):
    """The entries the follower needs are purged; pull checkpoint `snapshot` from the sender.

    After the install the follower's log begins at `base`.
    """

    base: Base
    snapshot: Name
    addition: Count = 0


class ReadRequest(_Message, tag=9, frozen=True):
    """A follower asks the leader for a read index; `read` is the follower's own number."""

    read: Count


class ReadReply(_Message, tag=10, frozen=True):
    read: Count
    index: Count
    ok: bool


RaftMessage = (
    AppendRequest
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | VoteRequest
    | VoteReply
    | TimeoutNow
    | SnapshotOffer
    | ReadRequest
    | ReadReply
)


class Routed(msgspec.Struct, array_like=True, frozen=True):
    """One message of one group; a frame between two nodes carries a list of them."""

    group: Name
    message: RaftMessage
