"""The options of a change: what `add-node`, `remove-node`, `replace-node` and `apply` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iotctl.cli.options import (
    AcceptLayout,
    DryRun,
    HoldRelease,
    NoMigrate,
    NoWriteSpec,
    Rate,
    Verify,
    VerifyDepth,
    Wait,
    Yes,
)
from iotctl.cli.session import Session

if TYPE_CHECKING:
    from iotctl.change.execute import ChangeRequest


@dataclass(frozen=True)
class ChangeOptions:
    """How the cluster carries out a change."""

    accept_layout: AcceptLayout = False
    no_migrate: NoMigrate = False
    verify: Verify = False
    depth: VerifyDepth = None
    rate: Rate = "auto"
    hold_release: HoldRelease = None
    wait: Wait = True

    @property
    def rate_bytes_per_s(self) -> int:
        """0 for `auto`."""
        from iotctl.spec.units import parse_rate

        return parse_rate(self.rate)

    def request(
        self, session: Session, *, dead: bool = False, write_spec: bool = True, host: str = "", port: int = 0
    ) -> ChangeRequest:
        """What `iotctl.change.execute` gets. `dead`: the node that leaves is permanently lost."""
        from iotctl.change.execute import ChangeRequest
        from iotctl.spec.units import parse_duration_ms
        from nodeagent.model.operation import Options

        options = Options(
            verify=self.verify or self.depth is not None,
            depth=self.depth or "content",
            no_migrate=self.no_migrate,
            hold_release_ms=parse_duration_ms(self.hold_release) if self.hold_release else 0,
            rate_bytes_per_s=self.rate_bytes_per_s,
            dead=dead,
        )
        return ChangeRequest(
            by=session.operator,
            options=options,
            wait=self.wait,
            wait_s=session.options.timeout_s,
            write_spec=write_spec,
            host=host,
            port=port,
        )


@dataclass(frozen=True)
class NodeChangeOptions(ChangeOptions):
    """The options of a command that changes named nodes."""

    no_write_spec: NoWriteSpec = False
    dry_run: DryRun = False
    yes: Yes = False
