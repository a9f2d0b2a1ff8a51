"""The fork server: a Python process that imports modules once, then forks one process after another, each of which
runs a program as ``python`` would. `tests.forked` starts it and speaks to it, once it has said that it listens; nobody
else does.

Arguments: the descriptor of its socket, the name at which other processes of the test reach it (``forked_command.py``),
and the modules. Each message asks for one process: the arguments of `run` as a JSON object, the descriptors that are to
be its 0, 1 and 2, and one for what is told about it, in a line each: its process id when it has all that, and the
status of its end. A process is killed when nobody listens to that any more.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import termios
from contextlib import suppress
from importlib import import_module
from pathlib import Path

LONGEST = 200_000


def main() -> None:
    kind = socket.SOCK_SEQPACKET
    with socket.socket(fileno=int(sys.argv[1])) as control, socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind("\0" + sys.argv[2])
        listener.listen(100)
        control.send(b"listening")
        for module in sys.argv[3:]:
            import_module(module)
        import_public_names()
        fork_servers_of_files(sys.argv[2])
        gc.freeze()  # the processes share what there is: their collector need not write to it
        while True:
            if control in select.select([control, listener], [], [])[0]:
                message, descriptors, _, _ = socket.recv_fds(control, LONGEST, 4)
                if not message:
                    return
            else:
                with listener.accept()[0] as asking:
                    message, descriptors, _, _ = socket.recv_fds(asking, LONGEST, 4)
            if os.fork() == 0:
                break
            for descriptor in descriptors:
                os.close(descriptor)
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
                pass
    # From here on this is another process: one that starts the program, waits for it and tells how it ended.
    *standard, told = descriptors
    if (pid := os.fork()) != 0:
        for descriptor in standard:
            os.close(descriptor)
        look_after(pid, told)
        os._exit(0)
    os.setsid()
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # which turns Ctrl-C into a signal
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.write(told, b"%d\n" % os.getpid())
    os.close(told)
    run(**json.loads(message))


def import_public_names() -> None:
    """Import what the package imports at the first use of a name. It would ask the collector each time whether anything
    is frozen, and this one counts all that is: a quarter of the time that a small server takes."""
    for namespace in ("trio_mcp", "trio_mcp.types", "trio_mcp.auth", "trio_mcp.stores", "trio_mcp.hosting"):
        module = import_module(namespace)
        for name in module.__all__:
            getattr(module, name)


def fork_servers_of_files(name: str) -> None:
    """Have a command line that is forked start the server of a file by a fork, too, where users get a new Python."""
    targets = import_module("trio_mcp.cli.targets")
    command_of_file = targets.command_of_file
    forked = [sys.executable, "-S", "-E", str(Path(__file__).with_name("forked_command.py")), name]
    targets.command_of_file = lambda typed: [*forked, *command_of_file(typed)[1:]]


def look_after(pid: int, told: int) -> None:
    """Tell how the process ends, and end it when nobody listens."""
    poll, ended = select.poll(), os.pidfd_open(pid)
    poll.register(told, 0)  # but for its other end, which closes
    poll.register(ended, select.POLLIN)
    if ended not in dict(poll.poll()):
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with suppress(BrokenPipeError):
        os.write(told, b"%d\n" % status)


def run(arguments: list[str], env: dict[str, str], cwd: str) -> None:
    """Be ``python`` with these arguments: a script and its own, or ``-m``, a module and its own, after ``-P`` where the
    directory of neither is to be imported from."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    imports = arguments[0] != "-P"
    arguments = arguments if imports else arguments[1:]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[:0] = [cwd] if imports else []
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[:0] = [os.path.dirname(os.path.abspath(arguments[0]))] if imports else []
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
