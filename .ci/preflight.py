"""What the demo needs, checked before anything is installed: one line per failure, with its fix.

Runs under any Python 3, since the Python itself is one of the things it checks.
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

GIB = 1024**3
DISK_BYTES_MIN = 4 * GIB
MEMORY_BYTES_MIN = 3 * GIB
PORTS = 16


def check_python():
    if sys.version_info < (3, 11):
        return "Python %d.%d found, 3.11 needed: make demo PYTHON=/path/to/python3.11" % sys.version_info[:2]
    if importlib.util.find_spec("ensurepip") is None:
        return "Python cannot make a venv: sudo apt-get install -y python3-venv"
    return None


def check_java():
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    fix = "sudo apt-get install -y openjdk-17-jre-headless (or set JAVA_HOME)"
    if not java or not os.path.exists(java):
        return "Java 17 or newer is not there: " + fix
    run = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    found = re.search(r'version "(\d+)', run.stdout.decode(errors="replace"))
    if not found or int(found.group(1)) < 17:
        return "Java %s found, 17 needed: %s" % (found.group(1) if found else "?", fix)
    return None


def check_disk():
    for place in (os.getcwd(), tempfile.gettempdir()):
        free = shutil.disk_usage(place).free
        if free < DISK_BYTES_MIN:
            wanted = DISK_BYTES_MIN / GIB
            return "%.1f GiB free in %s, %.0f needed: free some space" % (free / GIB, place, wanted)
    return None


def check_memory():
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
    except OSError:
        return None
    if found and int(found.group(1)) * 1024 < MEMORY_BYTES_MIN:
        have, wanted = int(found.group(1)) / 1024**2, MEMORY_BYTES_MIN / GIB
        return "%.1f GiB of memory available, %.0f needed: close other programs" % (have, wanted)
    return None


def check_ports():
    taken = []
    try:
        for _ in range(PORTS):
            taken.append(socket.socket())
            taken[-1].bind(("127.0.0.1", 0))
    except OSError as error:
        return "no free ports on 127.0.0.1 (%s): bring the loopback up, or close other servers" % error
    finally:
        for s in taken:
            s.close()
    return None


def main():
    checks = (check_python, check_java, check_disk, check_memory, check_ports)
    problems = [p for p in (check() for check in checks) if p]
    for problem in problems:
        sys.stderr.write("preflight: " + problem + "\n")
    return 4 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
