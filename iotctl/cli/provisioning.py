"""The provisioner: starts and stops the agents of this session's cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iotctl.cli.session import Session

if TYPE_CHECKING:
    from iotctl.change.provision import Provisioner
    from iotctl.output.progress import Progress


@contextmanager
def provisioning(session: Session, progress: Progress) -> Iterator[Provisioner]:
    """The provisioner of the session's cluster. Its connections close at the end of the block."""
    from iotctl.change.provision import LocalProvisioner, probe_of

    probe = probe_of(session.source, session.identity, session.env)
    if session.fleet is not None:
        yield LocalProvisioner(session.fleet, probe)
        return
    from iotctl.lifecycle.machines import Machines
    from iotctl.lifecycle.provision_ssh import SshProvisioner

    with Machines(session.source, session.env) as machines:
        yield SshProvisioner(session.source, probe, machines, session.env, progress.update)
