"""A compact encoding of what sessions wrote in one slot: a byte or two per session.

Sessions have a fixed order and are identified by their place in it. Equal content gives equal bytes.
"""

import msgspec

Places = dict[str, int]
"""Session -> its place in a fixed order. A session that is added does not change the other places."""


class Packed(msgspec.Struct, array_like=True):
    """What sessions wrote in one slot. A session's floor is the sequence up to which all are applied."""

    runs: list[int]
    """Places of the sessions that wrote, as run lengths: how many to skip, how many follow, and so on."""

    floors: list[int]
    """The floor of each of these sessions, in order of place."""

    above: dict[int, list[int]]
    """place -> sequences applied above the floor, ascending, minus the floor"""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packed).decode


def packed(floors: dict[str, int], above: dict[str, set[int]], places: Places) -> bytes:
    """The encoding of floors and of sequences above them; every session must have a place."""
    if len(floors) == len(places):
        runs, values = [0, len(places)], [floors[session] for session in places]
    else:
        ordered = sorted((places[session], floor) for session, floor in floors.items())
        runs, values = _runs([place for place, _ in ordered]), [floor for _, floor in ordered]
    over = {
        places[s]: [n - floors[s] for n in sorted(above[s])] for s in sorted(above, key=places.__getitem__)
    }
    return _encode(Packed(runs, values, over))


def _runs(places: list[int]) -> list[int]:
    runs: list[int] = []
    end = 0
    for place in places:
        if place == end and runs:
            runs[-1] += 1
        else:
            runs += [place - end, 1]
        end = place + 1
    return runs


def unpacked(data: bytes, sessions: list[str]) -> tuple[dict[str, int], dict[str, set[int]]]:
    """The (floors, above) that were packed with the places that `sessions` lists in order."""
    content = _decode(data)
    floors: dict[str, int] = {}
    place, taken = 0, 0
    for skipped, length in zip(content.runs[::2], content.runs[1::2], strict=True):
        place += skipped
        floors.update(
            zip(sessions[place : place + length], content.floors[taken : taken + length], strict=True)
        )
        place, taken = place + length, taken + length
    above = {sessions[p]: {floors[sessions[p]] + n for n in over} for p, over in content.above.items()}
    return floors, above
