"""A process that stands for one that the fork server forks: see `tests.forked.forked_command`."""

import json
import os
import signal
import socket
import sys


def main(name: str, *arguments: str) -> int:
    """Be ``python`` with these arguments, and return the exit status."""
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect("\0" + name)
        program = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd()}
        socket.send_fds(asking, [json.dumps(program).encode()], [0, 1, 2, writing])
    os.close(writing)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    with os.fdopen(reading, "rb", buffering=0) as told:
        pid = int(told.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        return os.waitstatus_to_exitcode(int(told.readline()))


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
