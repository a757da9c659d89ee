"""Whoever starts and ends the agents of this session's cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iotctl.cli.session import Session

if TYPE_CHECKING:
    from iotctl.execute.provision import Provisioner
    from iotctl.output.progress import Progress


@contextmanager
def provisioning(session: Session, progress: Progress) -> Iterator[Provisioner]:
    """Connections that it opens are closed at the end of the block."""
    from iotctl.execute.machines import Machines
    from iotctl.execute.provision import LocalProvisioner, SshProvisioner, asks

    ask = asks(session.source, session.identity, session.env)
    if session.fleet is not None:
        yield LocalProvisioner(session.fleet, ask)
        return
    with Machines(session.source, session.env) as machines:
        yield SshProvisioner(session.source, ask, machines, session.env, progress.update)
