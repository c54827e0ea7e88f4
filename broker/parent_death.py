"""A child process that ends when its parent does, however the parent ends.

A shell starts the command and keeps reading a pipe that only the parent can write to. The parent never writes; when it
is gone, SIGKILL included, the kernel closes the pipe, the shell sees the end of it and ends the command. This needs no
Linux-only call, and no thread that a dead parent would not have.
"""

import os
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from typing import IO

from .errors import BrokerStartFailed
from .processes import identity

# $k is the command, $w the watcher: a process apart from the waiting shell, so that the shell sees the command's own
# death at once. SIGCONT because a paused command would not act on SIGTERM; SIGKILL 5 s later if it did not end.
# The pid is told last: who knows it can rely on the watcher.
_SCRIPT = """
exec 3<&0 </dev/null
"$@" 3<&- >&2 &
k=$!
(
  read -r _ <&3
  kill -TERM $k; kill -CONT $k
  i=0
  while [ $i -lt 50 ] && kill -0 $k; do sleep 0.1; i=$((i + 1)); done
  kill -KILL $k
) >/dev/null 2>&1 &
w=$!
exec 3<&-
echo $k
exec >&2
wait $k
s=$?
kill $w 2>/dev/null
exit $s
"""


class GuardedProcess:
    """A command under the guard; `pid` is the command's own."""

    def __init__(
        self, command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        """Start it. Standard output goes where `stderr` goes. Raises BrokerStartFailed when the shell does not run."""
        self._owner_pid = os.getpid()
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "penstock-broker-guard", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            pass_fds=pass_fds,
            bufsize=0,
            # A Ctrl-C at the terminal goes to the parent, which may want to use the broker while it ends its work.
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        with self._guard.stdout as said:
            line = said.readline()
        if not line.strip().isdigit():
            raise BrokerStartFailed(f"/bin/sh did not start the broker's process: it answered {line!r}")
        self.pid = int(line)
        self._identity = identity(self.pid)
        _guarded.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this very process started it: a forked child holds a copy of the object, but not the command."""
        return self._owner_pid == os.getpid()

    def alive(self) -> bool:
        # The identity counts too: the shell may have been killed from outside, and the command live on.
        return self._guard.poll() is None or (self._identity is not None and identity(self.pid) == self._identity)

    def release(self) -> None:
        """Let go of the pipe, which ends the command if it still runs."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()


_guarded: "weakref.WeakSet[GuardedProcess]" = weakref.WeakSet()


def _let_go_in_forked_child() -> None:
    # A child forked without exec inherits the pipe: as long as it lived, the command would survive the parent.
    for guarded in list(_guarded):
        guarded.release()


os.register_at_fork(after_in_child=_let_go_in_forked_child)
