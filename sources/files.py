"""Files of any file system that fsspec knows, as splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import IO, Any

from ..errors import ConfigurationError, SubtaskError
from .file_formats import FORMATS, format_of, is_cut
from .file_reader import FileReader
from .files_walk import FilesWalk, is_same, version_of
from .listing import Found, Progress
from .split import Split
from .split_source import SplitSource, checked_interval

MIB = 1024 * 1024


class Files(SplitSource):
    """Files whose names match a path; a split is a file, or a part of a large one.

    ::

        files = Files("s3://in/*/*.parquet", discover_every=10)
        job.operator("read", **files.read(), parallelism=16)

    ``path``: a URL of a file, of a folder (then all files below it), or a pattern with ``*``, ``?``, ``[...]`` and
    ``**``, for any file system that fsspec knows; ``storage_options`` are fsspec's. Names that begin with a dot or an
    underscore are passed over, as Spark does.

    ``discover_every``: the pause between two listings in seconds; None: there is one, and the operator finishes when
    all is read. With it each name is read once, whenever it appears; ``open_folders=n`` says that new files come only
    into the last n folders that have any, by name: earlier ones are neither listed nor remembered. ``min_age``: seconds
    since a file was last changed, below which a listing leaves it to the next one.

    Raises :class:`ConfigurationError`.
    """

    def __init__(
        self,
        path: str,
        *,
        discover_every: float | None = None,
        open_folders: int | None = None,
        min_age: float = 0.0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(path, str) or not path:
            raise ConfigurationError(f"the path of Files must be a URL or a path, as a string, not {path!r}")
        self.path = path
        self.discover_every = checked_interval(discover_every)
        if open_folders is not None and (
            isinstance(open_folders, bool) or not isinstance(open_folders, int) or open_folders < 1
        ):
            raise ConfigurationError(
                f"open_folders of Files({path!r}) must be a whole number, at least 1, or None, not {open_folders!r}"
            )
        if isinstance(min_age, bool) or not isinstance(min_age, int | float) or not 0 <= min_age < float("inf"):
            raise ConfigurationError(f"min_age of Files({path!r}) must be seconds, 0 or more, not {min_age!r}")
        for what, value in (("open_folders", open_folders), ("min_age", min_age)):
            if value and discover_every is None:
                raise ConfigurationError(
                    f"{what} of Files({path!r}) needs discover_every: without it there is one listing, and what that"
                    " leaves out is never read"
                )
        self.open_folders, self.min_age = open_folders, float(min_age)
        self.storage_options = dict(storage_options or {})
        self._cut: tuple[int, str | None] | None = None
        """Bytes of a part, and the format, where files are read in parts."""
        self._file_system_of_this_process: Any = None

    def read(
        self,
        format: str | None = None,
        *,
        schema: Any = None,
        columns: list[str] | None = None,
        batch_rows: int | None = None,
        split_bytes: int = 128 * MIB,
        csv: Mapping[str, Any] | None = None,
        prefetch: int = 1,
        output_codec: Any = None,
    ) -> dict[str, Any]:
        """Return arguments of ``job.operator`` that read the files' rows as dicts.

        ``format``: "csv", "json" (one value a line) or "parquet"; left out, the file's name says it. ``schema``: a
        ``pyarrow.Schema`` that rows must have. ``columns``: those to read. ``batch_rows``: records are
        ``pyarrow.RecordBatch`` of at most so many rows, not dicts. ``split_bytes``: Parquet files and JSON files that
        are not compressed are read in parts of about so many bytes. ``csv``: ``read_options``, ``parse_options`` and
        ``convert_options`` of ``pyarrow.csv``. The rest is as in :meth:`read_by`.

        Raises :class:`ConfigurationError`.
        """
        if format is not None and format not in FORMATS:
            raise ConfigurationError(f"the format of files must be one of {', '.join(FORMATS)}, not {format!r}")
        if isinstance(split_bytes, bool) or not isinstance(split_bytes, int) or split_bytes < 1:
            raise ConfigurationError(f"split_bytes must be a whole number, at least 1, not {split_bytes!r}")
        reader = partial(FileReader, format, schema=schema, columns=columns, batch_rows=batch_rows, csv=csv)
        made = reader()  # what is wrong with its arguments shows here
        source = copy(self)
        source._cut = split_bytes, format
        if output_codec is None:
            output_codec = made.output_codec
        return source.read_by(reader, prefetch=prefetch, output_codec=output_codec)

    # ---- for readers

    @contextmanager
    def open(self, split: Split, compression: str | None = "infer") -> Iterator[IO[bytes]]:
        """Open the file of a split for reading, decompressed as its name says.

        Raises :class:`SubtaskError` where it has changed since it was listed, at the beginning or at the end.
        """
        file_system, path = self._located(split)
        self._check(split, file_system, path)
        with file_system.open(path, "rb", compression=compression) as file:
            yield file
        self._check(split, file_system, path)

    def _located(self, split: Split) -> tuple[Any, str]:
        file_system, _ = self._file_system()
        return file_system, file_system._strip_protocol(split.payload["url"])

    def _check(self, split: Split, file_system: Any, path: str) -> None:
        size, version = split.payload["size"], split.payload["version"]
        try:
            file_system.invalidate_cache(path)
            info = file_system.info(path)
        except FileNotFoundError:
            raise SubtaskError(
                f"{split.payload['url']} is gone since it was listed: a file must stay until it has been read"
            ) from None
        size_now, version_now = info.get("size"), version_of(info)
        if (size is not None and size_now is not None and size != size_now) or not is_same(version, version_now):
            raise SubtaskError(
                f"{split.payload['url']} has changed since it was listed: its size was {size} and is {size_now}, its"
                f" version {version} and is {version_now}. A file must be whole when it appears and stay as it is:"
                " write it under a name that begins with a dot, then rename it; or give Files a min_age"
            )

    def _file_system(self) -> tuple[Any, str]:
        """Return the file system, and the path on it."""
        if self._file_system_of_this_process is None:
            import fsspec

            options = {"use_listings_cache": False, **self.storage_options}
            try:
                self._file_system_of_this_process = fsspec.core.url_to_fs(self.path, **options)
            except (ImportError, ValueError, TypeError) as error:
                raise ConfigurationError(
                    f"fsspec cannot open the file system of Files({self.path!r}): {error}"
                ) from error
        found: tuple[Any, str] = self._file_system_of_this_process
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file_system_of_this_process": None}

    def __repr__(self) -> str:
        return f"Files({self.path!r})"  # not its storage_options: they hold secrets

    # ---- the listing

    @property
    def for_readers(self) -> Any:
        return self

    def identity(self) -> dict[str, Any]:
        kind = "in order" if self.discover_every is None else "remembered"
        return {"path": self.path, "files": kind}

    def walk(self, progress: Progress) -> Iterator[Found]:
        file_system, path = self._file_system()
        remembers = self.discover_every is not None
        return FilesWalk(file_system, path, remembers, self.open_folders, self.min_age).run(progress)

    def cut(self, split: Split) -> tuple[Split, Split | None]:
        size, version, start = split.payload["size"], split.payload["version"], split.payload.get("next", 0)
        end, rest = size, None
        if self._cut is not None and self._in_parts(split):
            end = min(size, start + self._cut[0])
            if end < size:
                rest = Split(split.id, {**split.payload, "next": end})
        whole = start == 0 and rest is None
        payload = {"url": split.id, "size": size, "version": version, "start": start, "end": end}
        return Split(split.id if whole else f"{split.id}#{start}-{end}", payload), rest

    def parts(self, split: Split) -> int:
        if self._cut is None or not self._in_parts(split):
            return 1
        return max(1, -(-int(split.payload["size"]) // self._cut[0]))

    def _in_parts(self, split: Split) -> bool:
        assert self._cut is not None
        size, format = split.payload["size"], self._cut[1] or format_of(split.id)
        return size is not None and size > self._cut[0] and is_cut(format, split.id)
