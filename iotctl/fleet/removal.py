"""Removal of a node from its machine: archives the files of a removed node, or deletes them."""

import yaml

from iotctl.fleet.deployment import MARK, run_checked
from iotctl.fleet.host import Host

CLEAR_TIMEOUT_S = 900.0

ARCHIVE = r"""
set -eu
home=$1
[ -e "$home/node.yaml" ] || [ -e "$home/removing" ] || exit 0
n=1
while [ -e "$home/removed-$n" ]; do n=$((n + 1)); done
mkdir -p "$home/removing"
[ ! -e "$home/node.yaml" ] || mv "$home/node.yaml" "$home/removing/"
for file in "$home"/*; do
    case ${file##*/} in removing | removed-*) ;; *) mv "$file" "$home/removing/" ;; esac
done
mv -T "$home/removing" "$home/removed-$n"
echo "archive=$home/removed-$n"
"""
"""Moves the settings first: a directory without them is not a node. A repeated run completes an interrupted
one."""


CLEAR = (
    MARK
    + r"""
set -eu
home=$1 ours=$2
[ -d "$home" ] || exit 0
cd "$home"
for kept in removing removed-*; do
    if grep -qFx -- "$ours" "$kept/node.yaml" 2>/dev/null; then rm -rf "$kept"; fi
done
if [ -e node.yaml ]; then # otherwise there was no node, and the data belongs to something else
    for place in data log; do
        # The directory may be a link to another disk, or a mount point.
        [ ! -d "$place" ] || find -H "$place" -mindepth 1 -delete
    done
    rm -rf data log 2>/dev/null || true
fi
if [ -L app ]; then rm -f "$(readlink app)/.nodes/$(mark)"; fi
rm -rf .incoming.* LOCK agent.* supervise supervisor.* app app.new node.id peers.seen tls
rm -f node.yaml
cd /
rmdir "$home" 2>/dev/null || [ -z "$(ls -A "$home")" ] || echo "left=$(ls -A "$home" | tr '\n' ' ')"
"""
)
"""Deletes the files of iotctl and the agent by name, `node.yaml` last: it names the cluster that the other
files belong to."""


def archive(host: Host, home: str) -> str:
    """Archive the files of a removed node where no agent finds them. Returns the directory, "" if none.

    The files stay on their file system, so nothing is copied, and a new node can be created in `home`.

    Raises:
        Unreachable: the machine could not move them.
    """
    ran = run_checked(host, ["sh", "-c", ARCHIVE, "archive", home], "the node's files could not be archived")
    return ran.out.decode(errors="replace").partition("archive=")[2].strip()


def clear(host: Host, home: str, cluster: str) -> str:
    """Delete the node in `home`, and the archives there that hold files of removed nodes of `cluster`.

    Returns: the names of other files, which stay in `home`.

    Raises:
        Unreachable: the machine could not delete them.
    """
    what = "the node's files could not be deleted"
    ran = run_checked(
        host, ["sh", "-c", CLEAR, "clear", home, _name_line(cluster)], what, timeout_s=CLEAR_TIMEOUT_S
    )
    return ran.out.decode(errors="replace").partition("left=")[2].strip()


def _name_line(cluster: str) -> str:
    """The line with the cluster's name in the section `cluster` of every node.yaml."""
    return "  " + yaml.safe_dump({"name": cluster}).strip()
