"""A server's state on disk: a checkpoint now and then, and a log of every change since, written before it counts.

A change is on the disk before the worker hears that it was made. That costs a write of the gradient and an
``fdatasync`` for each push, and for each checkpoint a write of all the server keeps while it serves nobody.
A checkpoint is written beside the old one, synchronised and renamed over it. What a crash left half written at the end
of the log was never acknowledged; it is cut off. Loading executes nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from backends.torch.servers.job import Array, Checkpoint
from backends.torch.servers.kept import Kept
from backends.torch.servers.wire import Change
from sim.errors import BackendFailure

_ENTRY = struct.Struct("<QiiqBQI")
"""Number of the change, part, worker, step, `Change`, bytes of the gradient, and the CRC of all that and of these."""


class Store:
    """The files of one server.

    ``run`` tells one training from another, JSON types only.

    Raises
    ------
    BackendFailure : they cannot be read or written, are in use, or are of another training.
    """

    def __init__(self, checkpoint: Checkpoint, server: int, run: dict[str, Any], parts: Mapping[int, Kept]) -> None:
        self._every, self._run, self._parts = checkpoint.every, run, parts
        self._path, self._log_path = checkpoint.files(server)
        self._number = self._updates = 0
        with self._telling("open", self._log_path):
            self._log = os.open(self._log_path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if checkpoint.resume:
            self._restore()
        self.save()

    @contextmanager
    def _telling(self, verb: str, path: Path) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            raise BackendFailure(f"cannot {verb} {path}: another run is using it") from None
        except OSError as error:
            raise BackendFailure(f"cannot {verb} {path}: {error.strerror}") from None

    def close(self) -> None:
        """Let another run use the files."""
        os.close(self._log)

    def keep(self, what: Change, part: int, worker: int, step: int, gradient: Array | None) -> None:
        """Make a change durable."""
        self._number += 1
        payload = b"" if gradient is None else gradient.data.cast("B")
        fields = self._number, part, worker, step, what, len(payload)
        entry = _ENTRY.pack(*fields, _crc(fields, payload))
        with self._telling("write", self._log_path):
            _write(self._log, entry)
            _write(self._log, payload)
            os.fdatasync(self._log)
        self._updates += what is not Change.ADD
        if self._updates >= self._every:
            self.save()

    def save(self) -> None:
        """Write a checkpoint and begin the log anew."""
        about: dict[str, Any] = {}
        arrays: dict[str, Array] = {}
        for part, kept in self._parts.items():
            about[str(part)], found = kept.state()
            arrays |= {f"{part}.{name}": array for name, array in found.items()}
        header = json.dumps({"run": self._run, "number": self._number, "parts": about})
        beside = self._path.with_suffix(".partial")
        with self._telling("write", beside):
            try:
                with beside.open("wb") as file:
                    np.savez(file, header=np.frombuffer(header.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                beside.unlink(missing_ok=True)
                raise
            beside.replace(self._path)
            _synchronise(self._path.parent)
            os.ftruncate(self._log, 0)  # after a crash before this, entries up to `number` are passed over
            os.lseek(self._log, 0, os.SEEK_SET)
        self._updates = 0

    def _restore(self) -> None:
        with self._telling("read", self._path):
            try:
                with self._path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                    arrays = {name: archive[name] for name in archive.files}
                header = json.loads(arrays.pop("header").tobytes())
                saved = header["run"]
            except OSError:
                raise
            except Exception as error:  # zip, numpy and json refuse damage each in its own way
                raise BackendFailure(f"cannot read {self._path}: no checkpoint of twinrail ({error})") from None
        if different := [key for key in self._run if saved.get(key) != self._run[key]]:
            shown = ", ".join(f"{key} {saved.get(key)}, not {self._run[key]}" for key in different)
            raise BackendFailure(f"cannot go on from {self._path}, which is of another training: {shown}")
        self._number = header["number"]
        for part, kept in self._parts.items():
            names = {name: f"{part}.{name}" for name in ("values", "velocity", "sum")}
            kept.restore(
                header["parts"][str(part)], {name: arrays[key] for name, key in names.items() if key in arrays}
            )
        self._repeat()

    def _repeat(self) -> None:
        """Make the changes of the log once more, up to the first that is not whole."""
        with self._telling("read", self._log_path), open(self._log, "rb", closefd=False) as file:
            end = os.fstat(self._log).st_size
            while len(entry := file.read(_ENTRY.size)) == _ENTRY.size:
                *fields, crc = _ENTRY.unpack(entry)
                number, part, worker, step, what, size = fields
                if size > end - file.tell() or _crc(fields, payload := file.read(size)) != crc:
                    return
                if number > self._number:
                    kept, self._number = self._parts[part], number
                    gradient = np.frombuffer(bytearray(payload), kept.values.numpy().dtype) if size else None
                    kept.change(Change(what), worker, step, gradient)


def _crc(fields: Any, payload: Any) -> int:
    return zlib.crc32(payload, zlib.crc32(_ENTRY.pack(*fields, 0)))


def _write(handle: int, data: Any) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def _synchronise(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
