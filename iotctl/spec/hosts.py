"""Valid names of machines and of their users.

These names become parts of commands (`ProxyCommand … %h`), options and file names. So the reader accepts only
letters, digits and a few characters without a meaning for a shell, and no `-` first. A host has
more than dots: `.` and `..` are directories.
"""

HOST_CHARS_MAX = 253
_HOST = (
    f"use at most {HOST_CHARS_MAX} letters, digits, '.' (not alone), '_', '-' (not first), or an IP address"
)
_USER = "use letters, digits, '.', '_', '-' (not first), '+' and '@'"


def host_problem(host: str) -> str:
    """Why `host` is invalid; "" if it is valid."""
    name, percent, zone = host.partition("%")
    words = [name, *([zone] if percent else [])]
    fits = all(w.strip(".") and w[0] != "-" and all(c.isalnum() or c in "._-:" for c in w) for w in words)
    if not fits or (percent and ":" not in name) or len(host) > HOST_CHARS_MAX:
        return f"{_shown(host)} is not a host: {_HOST}"
    return ""


def user_problem(user: str) -> str:
    """Why `user` is invalid; "" if it is valid."""
    fits = user and user[0] != "-" and all(c.isalnum() or c in "._-+@" for c in user)
    return "" if fits else f"{_shown(user)} is not a user: {_USER}"


def jump_problem(jump: str) -> str:
    """Why `jump` is invalid; "" if it is a valid list of `[user@]host[:port]`, as in `ssh -J`."""
    for word in filter(None, (w.strip() for w in jump.split(","))):
        user, at, place = word.rpartition("@")
        host, _ = split_port(place)
        problem = (user_problem(user) if at else "") or host_problem(host)
        if problem:
            return problem
    return ""


def split_port(place: str) -> tuple[str, str]:
    """(host, port or "") of `host`, `host:port`, `[v6]:port` or a plain IPv6 address."""
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        return host, port.removeprefix(":")
    if place.count(":") > 1:
        return place, ""
    host, _, port = place.partition(":")
    return host, port


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
