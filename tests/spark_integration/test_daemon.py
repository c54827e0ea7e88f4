"""What Spark's Python workers are forked with."""

from __future__ import annotations

import io

from penstock.spark_integration.daemon import write_whole_lines


class Pipe(io.RawIOBase):
    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.writes.append(bytes(data))  # type: ignore[call-overload]
        return len(self.writes[-1])


def test_a_line_is_one_write_so_that_the_lines_of_two_workers_do_not_mix() -> None:
    pipe = Pipe()
    stream = io.TextIOWrapper(pipe, write_through=True)  # type: ignore[arg-type]  # as without a buffer
    write_whole_lines(stream)
    print("red:", 1, file=stream)
    print("green:", 2, file=stream)
    assert pipe.writes == [b"red: 1\n", b"green: 2\n"]
