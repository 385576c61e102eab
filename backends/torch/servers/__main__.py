"""A process of a run: ``python -m backends.torch.servers LINE ROWS``, two open files of the parent's."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

from backends.torch.servers.job import Assignment, Failed
from backends.torch.servers.records import Record
from sim.errors import TwinrailError


def main() -> None:
    """Play one worker or server until the parent ends the run or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run for all
    line, record = Connection(int(sys.argv[1])), Record(int(sys.argv[2]))
    with suppress(EOFError, ConnectionError):  # the parent is gone
        try:
            _play(line.recv(), line, record)
        except TwinrailError as error:
            line.send(Failed(str(error)))
        except (EOFError, ConnectionError):
            raise
        except BaseException:
            line.send(Failed(f"raised:\n{traceback.format_exc()}"))
    os._exit(1)  # whatever a thread is still doing


def _play(assignment: Assignment, line: Connection, record: Record) -> None:
    job, device, place = assignment
    if device in job.layout.servers:
        from backends.torch.servers.server import Server

        Server(job, device, line, record, place).live()
    else:
        from backends.torch.servers.worker import Worker

        Worker(job, device, line, record, place).live()


if __name__ == "__main__":
    main()
