"""The sending side of a measurement: runs all transfers at once, and reads what receivers got."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from placewire.agent.contract.measurement import Transfer, TransferResult
from placewire.agent.measure.processes import Processes, output_of, why_not_started

# TCP's slow start is left out of the figure, by what the receiver counted in each second. Where a
# queue is slow, iperf3's own --omit (3.12) divides by a time that includes what it omits.
SETTLE_SECONDS = 1
# How much too early or too late iperf3 may end an interval of one second.
INTERVAL_SLACK_SECONDS = 0.25
CONNECT_SECONDS = 3.0
# How long beyond the duration until a client counts as hung.
GRACE_SECONDS = 8.0
# A measurement begins within a second or two of its request.
LONGEST_DELAY_SECONDS = 10.0
# A few times what iperf3 prints, its server's part included: 1 KiB a second.
OUTPUT_BYTES, OUTPUT_BYTES_A_SECOND = 256 * 1024, 8 * 1024
# A paced client writes a block, then waits until the next is due. Blocks are small, so that the
# rate is even; the rate is 2 % above the promised one, because only whole blocks count.
PACED_BLOCK_SECONDS, PACED_BLOCK_BYTES, PACED_AT = 0.005, (1024, 128 * 1024), 1.02
# How much may be under way. A greedy TCP fills the queue of a slow rate with a second of its data;
# then some flows send again, slow down, and miss a rate that the network has: one flow of twelve
# fell 20 to 50 % short in 8 of 19 measurements of three servers with 16 Mbit/s NICs, and in 2 of 33
# with short queues. The kernel may refuse more than the upper bound (net.core.wmem_max); a rate
# that would need more has queues that are short in time.
WINDOW_SECONDS, WINDOW_BYTES = 0.08, (16 * 1024, 200 * 1024)


async def run_transfers(
    transfers: tuple[Transfer, ...],
    seconds: float,
    start_unix: float,
    processes: Processes | None = None,
) -> tuple[TransferResult, ...]:
    """Waits until start_unix (by this server's clock), then runs all transfers. Never raises for a
    transfer that fails: its result says why. Runs none where the clock says that they are to begin
    much later: it was set back since it was asked for, and nobody waits for them by then.

    processes: holds the clients that run, for whoever must end them.
    """
    delay_seconds = start_unix - time.time()
    if delay_seconds > LONGEST_DELAY_SECONDS:
        why = f"this server's clock was set back: it would begin in {delay_seconds:.0f} s"
        return tuple(_failed(item, why) for item in transfers)
    await asyncio.sleep(max(0.0, delay_seconds))
    held = processes or Processes()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run_one(item, seconds, held)) for item in transfers]
    return tuple(task.result() for task in tasks)


async def _run_one(transfer: Transfer, seconds: float, processes: Processes) -> TransferResult:
    whole = max(1, round(seconds))
    started_unix = time.time()
    try:
        process = await processes.start(
            "iperf3", "--json", "--client", transfer.destination_address,
            "--bind", transfer.source_address, "--port", str(transfer.tcp_port),
            "--time", str(whole + SETTLE_SECONDS), "--get-server-output",
            "--connect-timeout", str(round(CONNECT_SECONDS * 1000)),
            *window(transfer), *pacing(transfer),
        )  # fmt: skip
    except FileNotFoundError:
        return _failed(transfer, "iperf3 is not installed on this server")
    except OSError as error:
        return _failed(transfer, f"iperf3 cannot be started: {why_not_started(error)}")
    try:
        async with asyncio.timeout(whole + SETTLE_SECONDS + CONNECT_SECONDS + GRACE_SECONDS):
            most_bytes = OUTPUT_BYTES + whole * OUTPUT_BYTES_A_SECOND
            output, complaint = await output_of(process, most_bytes)
        result = parse_result(transfer, output, complaint, whole)
    except TimeoutError:
        result = _failed(transfer, "iperf3 did not end in time")
    finally:
        await processes.end(process)
    return result.model_copy(update={"start_unix": started_unix, "end_unix": time.time()})


def window(transfer: Transfer) -> tuple[str, ...]:
    """iperf3's options that keep a slow queue short."""
    least, most = WINDOW_BYTES
    wanted = round(transfer.promised_bits_per_second / 8 * WINDOW_SECONDS)
    return ("--window", str(max(least, wanted))) if wanted <= most else ()


def pacing(transfer: Transfer) -> tuple[str, ...]:
    """iperf3's options for a transfer that sends at the promised rate."""
    if not transfer.paced:
        return ()
    rate = transfer.promised_bits_per_second * PACED_AT
    least, most = PACED_BLOCK_BYTES
    block = max(least, min(most, round(rate / 8 * PACED_BLOCK_SECONDS)))
    return ("--bitrate", str(round(rate)), "--length", str(block))


def parse_result(
    transfer: Transfer, output: bytes, complaint: bytes, seconds: float
) -> TransferResult:
    """The rate at which the receiver received, over so many seconds after the start had settled.
    iperf3 exits 0 on a failed connect, so its `error` field decides."""
    try:
        document: dict[str, Any] = json.loads(output)
    except (ValueError, RecursionError):
        said = complaint.decode(errors="replace").strip()
        return _failed(transfer, said or "iperf3 printed no JSON")
    if "error" in document:
        return _failed(transfer, str(document["error"]))
    try:
        sent = document["end"]["sum_sent"]
        counted = [
            interval["sum"]
            for interval in document["server_output_json"]["intervals"]
            if interval["sum"]["start"] >= SETTLE_SECONDS - INTERVAL_SLACK_SECONDS
            and interval["sum"]["end"] <= SETTLE_SECONDS + seconds + INTERVAL_SLACK_SECONDS
        ]
        lasted = sum(interval["seconds"] for interval in counted)
        if lasted < seconds - 2 * INTERVAL_SLACK_SECONDS:
            return _failed(transfer, f"iperf3's receiver counted {lasted:.1f} of {seconds:g} s")
        rate = 8 * sum(part["bytes"] for part in counted) / lasted
        return _result(transfer, rate, sent.get("retransmits", 0), lasted)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        # Half of it is what the receiver's end said.
        return _failed(transfer, f"iperf3's answer is not as expected: {repr(error)[:200]}")


def _failed(transfer: Transfer, error: str) -> TransferResult:
    return _result(transfer, 0.0, 0, 0.0, error)


def _result(
    transfer: Transfer, rate: float, retransmits: int, seconds: float, error: str | None = None
) -> TransferResult:
    return TransferResult(
        source=transfer.source,
        destination=transfer.destination,
        rail=transfer.rail,
        measured_bits_per_second=rate,
        retransmits=retransmits,
        seconds=seconds,
        error=error,
    )
