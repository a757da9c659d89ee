"""What sessions wrote in one slot, in a byte or two for each of them.

Sessions stand in a fixed order and are named by their place in it. The same content always gives the same
bytes.
"""

import msgspec

Places = dict[str, int]
"""Sessions in a fixed order, each with its place. One that grows keeps the places it gave out."""


class Packed(msgspec.Struct, array_like=True):
    """What sessions wrote in one slot, by their places."""

    runs: list[int]
    """Places of the sessions that wrote: how many to leave out, how many follow, and so on."""

    floors: list[int]
    """Of these sessions, in their order."""

    above: dict[int, list[int]]
    """place -> sequences seen above the floor, ascending, less the floor"""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packed).decode


def packed(floors: dict[str, int], above: dict[str, set[int]], places: Places) -> bytes:
    """Each session has a place."""
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
    """What was packed by the places in `sessions`."""
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
