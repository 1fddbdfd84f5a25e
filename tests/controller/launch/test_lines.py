"""Lines of any number and length: they hold up nothing, and are held within bounds."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import pytest

from placewire.controller.launch.lines import (
    CUT,
    HELD_BYTES,
    LONGEST_LINE_BYTES,
    FedStream,
    LineCutter,
    lines_of,
    text_of,
)
from placewire.controller.launch.programs import run_to_end


def fed(data: bytes) -> asyncio.StreamReader:
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    return stream


async def test_the_event_loop_has_its_turn_among_lines_that_are_there() -> None:
    turns, read_at = [0], list[int]()

    async def other_work() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other_work())
    async for _ in lines_of(fed(b"\n" * 10_000)):
        read_at.append(turns[0])
    beside.cancel()
    assert len(read_at) == 10_000
    assert max(read_at.count(turn) for turn in set(read_at)) <= 64


async def test_an_interrupt_is_heard_beside_a_program_that_prints_without_end() -> None:
    source = "import sys\nwhile True: sys.stderr.write('x' * 20 + chr(10))"
    heard = asyncio.Event()
    work = asyncio.create_task(
        run_to_end(
            [sys.executable, "-c", source], environment=os.environ, on_line=lambda line: heard.set()
        )
    )
    await heard.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_an_interrupt_waits_for_no_process_that_the_program_left_behind() -> None:
    source = (
        "import subprocess, sys\n"
        "left = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(left.pid, file=sys.stderr)\n"
    )
    heard: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    work = asyncio.create_task(
        run_to_end(
            [sys.executable, "-c", source], environment=os.environ,
            on_line=lambda line: heard.set_result(int(line)),
        )
    )  # fmt: skip
    left = await heard
    try:
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(work, 60)
    finally:
        os.kill(left, signal.SIGKILL)


async def test_a_line_without_end_is_cut_and_none_of_it_passes_for_a_line() -> None:
    forged = b'{"event":"finished"}'
    data = b"[0] " + b"x" * (3 * LONGEST_LINE_BYTES) + forged + b"\nnext\n[0] " + forged
    first, second, third = [line async for line in lines_of(fed(data))]
    assert first.startswith(b"[0] x") and first.endswith(b"x" + CUT + b"\n")
    assert len(first) == LONGEST_LINE_BYTES + len(CUT) + 1
    assert (second, third) == (b"next\n", b"[0] " + forged)


def test_where_a_line_is_torn_apart_does_not_matter() -> None:
    data = b"a\n\nbc\r\xff\nd"
    for cut in range(len(data)):
        cutter = LineCutter()
        found = [*cutter.lines(data[:cut]), *cutter.lines(data[cut:]), cutter.rest()]
        assert found == [b"a\n", b"\n", b"bc\r\xff\n", b"d"]


def test_of_a_line_of_progress_the_last_state_is_kept_however_it_is_torn_apart() -> None:
    data = b"0%\r 50%\r\r100%\r\nnext\r\n\rlast\rone"
    for cut in range(len(data) + 1):
        cutter = LineCutter(redraws=True)
        found = [*cutter.lines(data[:cut]), *cutter.lines(data[cut:]), cutter.rest()]
        assert [text_of(line) for line in found] == ["100%", "next", "one"], cut
        assert len(found[0]) <= len(b" 50%\r\n")


def test_a_line_of_progress_of_any_length_has_its_last_state() -> None:
    cutter = LineCutter(redraws=True)
    state = b"\r" + b"=" * 1000
    assert [*cutter.lines(state * (2 * LONGEST_LINE_BYTES // 1000))] == []
    (line,) = cutter.lines(b"\rdone\n")
    assert line == b"done\n"
    assert text_of(state * 100 + b"\rdone\n") == "done"


def test_a_progress_bar_makes_no_event_of_what_stands_behind_it() -> None:
    """Events come by standard output, whose lines stay whole."""
    cutter = LineCutter()
    assert [*cutter.lines(b'[0] 50%\r{"event":"finished"}\n')] == [
        b'[0] 50%\r{"event":"finished"}\n'
    ]


def test_people_see_the_beginning_of_a_long_line() -> None:
    assert text_of(b"short \n") == "short" and text_of(b"\xff\n") == "\ufffd"
    assert len(text_of(b"x" * LONGEST_LINE_BYTES + b"\n")) < 20_000
    assert text_of("\u00e9".encode() * 30_000).endswith(CUT.decode())


async def test_a_thread_that_reads_fast_waits_for_the_event_loop() -> None:
    stream, piece, count = FedStream(asyncio.get_running_loop()), b"x" * 16_384, 400
    ahead = [0]

    def feed() -> None:
        for _ in range(count):
            stream.feed(piece)
            ahead[0] += len(piece)
        stream.end()

    thread = threading.Thread(target=feed)
    thread.start()
    read = 0
    while data := await stream.reader.read(1000):
        read += len(data)
        assert ahead[0] - read <= 2 * HELD_BYTES + 3 * len(piece)
    thread.join()
    assert read == count * len(piece)


async def test_what_is_read_no_more_holds_no_thread() -> None:
    stream = FedStream(asyncio.get_running_loop())

    def feed() -> None:
        for _ in range(100):
            stream.feed(b"x" * 65_536)

    thread = threading.Thread(target=feed)
    thread.start()
    await stream.reader.read(1)
    stream.drop()
    await asyncio.to_thread(thread.join)


def test_a_thread_does_not_outlive_the_event_loop() -> None:
    loop = asyncio.new_event_loop()
    stream, ended = FedStream(loop), list[str]()

    def feed() -> None:
        try:
            while True:
                stream.feed(b"x")
        except RuntimeError as error:
            ended.append(str(error))

    thread = threading.Thread(target=feed)
    thread.start()
    loop.close()
    thread.join()
    assert "closed" in ended[0]
