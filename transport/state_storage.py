"""States too large to travel in a record: stored under a name, through fsspec, so on disk or in an object store.

Names (*locations*) are relative to the job's own folder, use '/' and are never written twice: they contain the
checkpoint id, epoch and attempt (protocol, section 7.6).
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

import tenacity

from ..schemas.errors import StateError
from ..schemas.state import StateHandle

T = TypeVar("T")

_TRIES = 3
_TRY_S = 15.0
"""Seconds that one try may take before it is cancelled, beside one second for each of :data:`_BYTES_PER_S`."""
_BYTES_PER_S = 1 << 20
_ONE_READ_MAX = 64 << 20
"""Bytes up to which a state is read by one request; a larger one in parts, several at once."""

_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "ocilake", "oss", "tos", "obs"})
"""Protocols of fsspec without folders: a bucket holds objects. To make the folder of one there is to make a bucket."""

_NOT_TRANSIENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
_UNFINISHED = ".unfinished-"
"""Part of the name of a local file that is being written; :meth:`StateStorage.list` leaves such files out."""

_OWNER = "owner.json"
"""What says whose folder it is; no state, and never listed as one."""


class Source(Protocol):
    """What gives back stored states, as :class:`StateStorage` does."""

    def get(self, location: str, size: int = 0) -> bytes: ...


def load_state(storage: Source, handle: StateHandle) -> bytes:
    """Return the bytes of a state. Raises StateError unless they are as they were stored (protocol, section 7.6)."""
    if handle.inline is not None:
        data = handle.inline
    elif handle.location is not None:
        data = storage.get(handle.location, handle.size)
    else:
        raise StateError("its handle names neither bytes nor a location")
    if (damage := handle.damage(data)) is not None:  # mutant: damaged-state-restored
        raise StateError(f"{handle.location!r} in {storage!r} is damaged: it {damage}")
    return data


class StateStorage:
    """One job's folder in state storage.

    ``url`` is an fsspec URL (``file:///var/states``, ``s3://bucket/states``), None where the job has none; the
    ``job_root`` separates jobs that share it. Connects when first used; safe to carry over a fork, and picklable.

    In an object store the rights to get, put and delete objects suffice, a put is one request and a get another. The
    bucket must exist: none is created, and one that is missing is an error, never an empty folder. Each call is tried
    three times and each try cancelled after 15 s, and a second more for each MiB, where fsspec's file system is
    asynchronous (those of S3, GCS and Azure are). Elsewhere the library's own timeouts hold.
    """

    def __init__(self, url: str | None, job_root: str) -> None:
        self._url = url
        self._job_root = job_root.strip("./")
        if not self._job_root:
            raise StateError("state storage needs the job's name: job_root is empty")
        self._connected: tuple[Any, str, int] | None = None

    @property
    def configured(self) -> bool:
        """Whether the job has one."""
        return self._url is not None

    def __repr__(self) -> str:
        return f"StateStorage({self._shown_url}, {self._job_root!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connected": None}

    def put(self, location: str, data: bytes) -> None:
        """Store ``data``. All of it can be read afterwards, or none. Raises :class:`StateError`."""
        self._store(location, data)

    def _store(self, location: str, data: bytes) -> None:
        path = self._path(location)

        def store(files: Any) -> None:
            if _is_object_store(files):  # it stores an object whole, or not at all
                _call(files, "pipe_file", path, data, size=len(data))
                return
            if _is_local(files):
                _write_file(path, data)
            else:
                with contextlib.suppress(NotImplementedError):
                    files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
                _call(files, "pipe_file", path, data, size=len(data))
                files.invalidate_cache()
            if (size := _call(files, "size", path)) != len(data):
                raise OSError(f"{len(data)} bytes were stored and {size} are there")

        self._try("store", location, store)

    def get(self, location: str, size: int = 0) -> bytes:
        """Return the bytes stored under ``location``; ``size`` of them, as far as that is known.

        Raises :class:`StateError` where they are missing or unreadable.
        """
        path = self._path(location)

        return self._try("read back", location, lambda files: _read(files, path, size))

    def has(self, location: str) -> bool:
        """Whether something is stored under ``location``, without reading it. Raises :class:`StateError`."""
        path = self._path(location)

        def look(files: Any) -> bool:
            files.invalidate_cache()
            try:
                _call(files, "size", path)
            except FileNotFoundError as error:
                _require_bucket(files, path, error)
                return False
            return True

        return self._try("look for", location, look)

    def delete(self, locations: Iterable[str]) -> None:
        """Deletes what is there under these names; a missing one is fine. Raises :class:`StateError`."""
        for location in locations:
            path = self._path(location)

            def remove(files: Any, path: str = path) -> None:
                try:
                    _call(files, "rm_file", path)
                except FileNotFoundError as error:
                    _require_bucket(files, path, error)
                files.invalidate_cache()

            self._try("delete", location, remove)

    def list(self) -> list[str]:
        """Every location that holds a state of this job, sorted. Raises :class:`StateError`."""

        def find(files: Any) -> list[str]:
            root = self._root()
            files.invalidate_cache()
            try:
                paths = _call(files, "find", root)
            except FileNotFoundError as error:
                _require_bucket(files, root, error)
                return []
            names = (str(path)[len(root) :].lstrip("/") for path in paths)
            return sorted(name for name in names if name and name != _OWNER and _UNFINISHED not in name)

        return self._try("list", "", find)

    @property
    def owner_location(self) -> str:
        """Where the mark of the folder's owner is; for people."""
        return f"{self._shown_url.rstrip('/')}/{self._job_root}/{_OWNER}"

    def owner_mark(self) -> bytes | None:
        """What :meth:`mark_owner` has stored; None where there is none. Raises :class:`StateError`.

        None too where an object store forbids to read it: without the right to list objects that is what a store
        answers for an object that is not there. :meth:`mark_owner` tells the two apart.
        """
        path = self._path(_OWNER)

        def read(files: Any) -> bytes | None:
            files.invalidate_cache()
            try:
                return _read(files, path)
            except FileNotFoundError as error:
                _require_bucket(files, path, error)
                return None
            except PermissionError:
                if not _is_object_store(files):
                    raise
                return None

        return self._try("read back", _OWNER, read)

    def mark_owner(self, mark: bytes, *, instead: bool = True) -> None:
        """Mark the job's folder as that of an owner, and read the mark back. Raises :class:`StateError`.

        Without ``instead`` a mark that stands there by now stays, on disk and on S3: read what stands.
        """
        path = self._path(_OWNER)
        if instead:
            self._store(_OWNER, mark)
        elif _is_local(self._files()):
            self._try("store", _OWNER, lambda _: _write_new_file(path, mark))
        elif _is_s3(self._files()):
            self._try("store", _OWNER, lambda files: _create_object(files, path, mark))
        else:
            self._store(_OWNER, mark)
        self.get(_OWNER)  # raises where it may be written and not read

    def _try(self, verb: str, location: str, action: Callable[[Any], T]) -> T:
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, OSError) and not isinstance(e, _NOT_TRANSIENT)),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
            reraise=True,
        )
        try:
            return attempts(lambda: self._act(action))
        except StateError:
            raise
        except Exception as error:  # file systems raise what their client libraries raise
            what = f"state {location!r}" if location else "the states"
            reason = self._without_secrets(str(error)) or type(error).__name__
            missing = ""
            if isinstance(error, _BucketMissing):
                reason = f"{error}; create it, or correct state_storage: no bucket is created for a job"
            elif isinstance(error, FileNotFoundError):
                missing = " (it does not exist)"
            raise StateError(
                f"cannot {verb} {what} of job {self._job_root} in {self._shown_url}{missing}: {reason}"
            ) from error

    def _act(self, action: Callable[[Any], T]) -> T:
        files = self._files()
        try:
            return action(files)
        except FileNotFoundError as error:
            _require_bucket(files, self._root(), error)
            raise

    def _files(self) -> Any:
        return self._connect()[0]

    def _root(self) -> str:
        return self._connect()[1]

    def _connect(self) -> tuple[Any, str, int]:
        if self._url is None:
            raise StateError(
                f"a state of job {self._job_root} is too large to travel in a record, and the job has no state storage:"
                " set state_storage to a URL such as file:///shared/states"
            )
        # Made again after a fork: some file systems own threads.
        if self._connected is None or self._connected[2] != os.getpid():
            import fsspec  # not at the top: a status, which has no states, would wait for it

            files, base = fsspec.core.url_to_fs(self._url, use_listings_cache=False)
            self._connected = files, f"{base.rstrip('/')}/{self._job_root}", os.getpid()
        return self._connected

    def _path(self, location: str) -> str:
        parts = location.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in location or _UNFINISHED in location:
            raise StateError(f"{location!r} is no name of a state: use parts separated by '/', without '..'")
        try:
            return f"{self._root()}/{location}"
        except StateError:
            raise
        except Exception as error:  # an unknown protocol, a missing client library
            reason = self._without_secrets(str(error))
            raise StateError(f"state storage {self._shown_url} cannot be used: {reason}") from error

    @property
    def _shown_url(self) -> str:
        return self._without_secrets(self._url or "no state storage")

    def _without_secrets(self, text: str) -> str:
        """The text without user, password and query values of any URL in it, and without those of the own one."""
        for secret in _secrets(self._url or ""):
            text = text.replace(secret, "***")
        return _QUERY.sub(r"\1***", _USER.sub("//***@", text))


_USER = re.compile(r"//(?:[^/\s:]*:\S*|[^/\s]*)@")
"""Up to the last @ where a password may begin: one may hold a slash that nobody has escaped."""
_QUERY = re.compile(r"([?&][^=&\s]*=)[^&\s]*")
_SECRET_CHARS_MIN = 4
"""A shorter one is hidden in URLs alone: it would be found in any word."""


def _secrets(url: str) -> set[str]:
    """Passwords and query values, as they stand there and decoded: libraries name them by themselves."""
    found = [user[0].removeprefix("//").removesuffix("@").partition(":")[2] for user in _USER.finditer(url)]
    found += [value[0].partition("=")[2] for value in _QUERY.finditer(url)]
    return {secret for each in found for secret in (each, unquote(each)) if len(secret) >= _SECRET_CHARS_MIN}


def _protocols(files: Any) -> set[str]:
    return {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)


def _is_local(files: Any) -> bool:
    return "file" in _protocols(files)


def _is_object_store(files: Any) -> bool:
    return not _OBJECT_STORES.isdisjoint(_protocols(files))


def _is_s3(files: Any) -> bool:
    return not _protocols(files).isdisjoint(("s3", "s3a"))


def _call(files: Any, name: str, *args: Any, size: int = 0, **options: Any) -> Any:
    """Call a method that moves ``size`` bytes. Cancel it at its deadline, if it is asynchronous, with TimeoutError."""
    if not files.async_impl:
        return getattr(files, name)(*args, **options)
    import fsspec

    timeout_s = _TRY_S + size / _BYTES_PER_S
    try:
        return fsspec.asyn.sync(files.loop, getattr(files, f"_{name}"), *args, timeout=timeout_s, **options)
    except fsspec.exceptions.FSTimeoutError as error:
        raise TimeoutError(f"no answer within {timeout_s:.3g} s, tried {_TRIES} times") from error


def _read(files: Any, path: str, size: int = 0) -> bytes:
    """Read a file of ``size`` bytes, as far as that is known."""
    # s3fs asks for the size first, unless it is told to read by one request.
    options = {"max_concurrency": 1} if _is_s3(files) and size <= _ONE_READ_MAX else {}
    return bytes(_call(files, "cat_file", path, size=size, **options))


class _BucketMissing(FileNotFoundError):
    """The bucket that state_storage names is not there."""


def _require_bucket(files: Any, path: str, error: FileNotFoundError) -> None:
    """Raise _BucketMissing if an object was not found because its bucket is missing."""
    if not _is_object_store(files) or isinstance(error, _BucketMissing):
        return
    code = _error_code(error)
    bucket = path.strip("/").partition("/")[0]
    # An answer without a body tells no code. Without the right to look at a bucket a missing object is "forbidden".
    if code == "NoSuchBucket" or (code != "NoSuchKey" and not _call(files, "exists", bucket)):
        raise _BucketMissing(f"bucket {bucket!r} does not exist") from error


def _create_object(files: Any, path: str, data: bytes) -> None:
    """Store an object, unless there is one."""
    try:
        _call(files, "pipe_file", path, data, size=len(data), mode="create")
    except FileExistsError:
        pass
    except OSError as error:
        if _error_code(error) != "PreconditionFailed":
            raise


def _error_code(error: OSError) -> str:
    """Return S3's code of an error, empty where the store told none."""
    return str(getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", ""))


def _write_new_file(path: str, data: bytes) -> None:
    """Writes a local file as :func:`_write_file` does, but where there is one: that stays as it is."""
    beside = f"{path}{_UNFINISHED}{uuid.uuid4().hex}"
    _write_file(beside, data)
    try:
        os.link(beside, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        os.replace(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(beside)


def _private(path: str, flags: int) -> int:
    """Opens a new file for its user alone: states hold what users compute."""
    return os.open(path, flags, 0o600)


def _write_file(path: str, data: bytes) -> None:
    """Writes a local file so that, a crash of the machine included, it has all of ``data`` or is not there."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    unfinished = f"{path}{_UNFINISHED}{uuid.uuid4().hex}"
    try:
        with open(unfinished, "xb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(unfinished)
        raise
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
