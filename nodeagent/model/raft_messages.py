"""Messages between Raft peers. Every message has the sender's term (thesis figure 3.1), except those of a
pre-vote (`VoteRequest`, `VoteReply`).

The group is sent beside the message (`Routed`); the sender is the authenticated peer.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from nodeagent.model.bounds import Count, Name, Term, Time
from nodeagent.model.entries import Base, Entry
from nodeagent.model.limits import NODES_MAX


class _Message(msgspec.Struct, array_like=True, frozen=True):
    term: Term


class AppendRequest(_Message, tag=1, frozen=True):
    """Entries that follow (`prev_index`, `prev_term`). Empty `entries` test whether the logs match there.

    `read` is the leader's newest read round (0 for none); the reply echoes it (ReadIndex).
    `addition` identifies the follower's membership: 0 if it was a member at the start of the term, else the
    log index of the config that added it. Replies echo it, so that a late reply of a removed replica does not
    count for the replica that was added after it.
    """

    prev_index: Count
    prev_term: Term
    commit: Count
    entries: list[Entry]
    read: Count = 0
    addition: Count = 0


class AppendReply(_Message, tag=2, frozen=True):
    """Reply to `AppendRequest`.

    Accepted: the follower's durable log equals the leader's up to index `match`. Rejected: `match`
    echoes the request's `prev_index`; (`hint_index`, `hint_term`) is the highest position of the follower's
    log that could match, so that the leader skips a whole term per round.
    """

    accepted: bool
    match: Count
    hint_index: Count = 0
    hint_term: Term = 0
    read: Count = 0
    addition: Count = 0


class Heartbeat(_Message, tag=3, frozen=True):
    """Heartbeat of a leader; `commit` is at most the last index that the leader knows the follower holds."""

    commit: Count
    read: Count = 0
    addition: Count = 0


class HeartbeatReply(_Message, tag=4, frozen=True):
    """Reply to `Heartbeat`. `wall` is the sender's wall clock (ms), 0 if it is not given (`host.clocks`).
    `room` is a `model.space.Room`: 0 if the sender's disk has enough space, greater if not."""

    read: Count = 0
    wall: Time = 0
    room: Time = 0


class VoteRequest(_Message, tag=5, frozen=True):
    """Request for a vote. `pre`: a pre-vote for `term`, which the candidate has not entered yet.

    `transfer`: the leader asked for this election, so leader stickiness does not apply.
    """

    last_index: Count
    last_term: Term
    pre: bool
    transfer: bool = False


class VoteReply(_Message, tag=6, frozen=True):
    """Reply to `VoteRequest`. A granted pre-vote has the candidate's term, a refusal the voter's own term."""

    granted: bool
    pre: bool


class TimeoutNow(_Message, tag=7, frozen=True):
    """The leader transfers its leadership: the receiver campaigns at once."""


class SnapshotOffer(_Message, tag=8, frozen=True):
    """The entries that the follower needs are purged; it must pull checkpoint `snapshot` from the sender.

    Once it is installed, the follower's log begins at `base`.
    """

    base: Base
    snapshot: Name
    addition: Count = 0


class ReadRequest(_Message, tag=9, frozen=True):
    """A follower asks the leader for a read index; `read` is the follower's own number for the request."""

    read: Count


class ReadReply(_Message, tag=10, frozen=True):
    """Reply to `ReadRequest` number `read`: the read index `index`, if `ok`."""

    read: Count
    index: Count
    ok: bool


class RelayedAppend(_Message, tag=11, frozen=True):
    """Committed entries that a follower of `leader` sends to a learner (`raft.relay`), as an `AppendRequest`.

    `commit` is at least the index of the last entry. `addition` is the log index of the sender's config, or a
    later one that it had the same config at; the `AppendReply` goes to the sender and echoes it.
    """

    leader: Name
    prev_index: Count
    prev_term: Term
    commit: Count
    entries: list[Entry]
    addition: Count


class RelayReport(_Message, tag=12, frozen=True):
    """A follower tells the leader to which learners it relays: learner -> an index up to which the learner's
    durable log equals the leader's. They answered appends with `config_index` as their `addition`."""

    config_index: Count
    matches: Annotated[dict[Name, Count], Meta(max_length=NODES_MAX)]


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
    | RelayedAppend
    | RelayReport
)


class Routed(msgspec.Struct, array_like=True, frozen=True):
    """One message of one group; a frame between two nodes carries a list of them."""

    group: Name
    message: RaftMessage
