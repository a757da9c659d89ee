"""Bytes and messages: frames, codec, and errors as replies. Pure: no socket, no clock.

    frame  =  length u32 | kind u8 | [number u64] | body
    HELLO    1  body: `Hello`            first frame of each side
    RAFT     2  body: list of `Routed`   between nodes only, never answered
    REQUEST  3  number, `Request`        answered by exactly one REPLY with the same number
    REPLY    4  number, `Reply`          number 0: the reason why the connection closes

Integers are big endian, `length` counts everything after itself, bodies are msgpack.
"""
