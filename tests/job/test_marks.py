"""Which connections are marked as those on which a rank only acknowledges?"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import replace

from placewire.job.messages.rank_messages import RankMessage, RankMessages
from placewire.job.transport.gloo import GlooTransport
from placewire.job.transport.tcp_connections import (
    INTERACTIVE,
    connected_ends,
    mark_answers,
)
from tests.job.sent_messages import message

HERE, THERE = "127.0.0.1", "127.0.0.2"


def marks(ours: socket.socket) -> tuple[int, int]:
    return (
        ours.getsockopt(socket.IPPROTO_IP, socket.IP_TOS),
        ours.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY),
    )


def test_new_connections_to_senders_are_marked_and_no_others() -> None:
    with ExitStack() as stack:

        def connected(address: str) -> socket.socket:
            server = stack.enter_context(socket.create_server((address, 0)))
            # The other end stays in the server's backlog: it is no descriptor of this process.
            return stack.enter_context(socket.create_connection(server.getsockname()))

        old, older = connected(THERE), {ends for ends, _ in connected_ends()}
        new, of_another = connected(THERE), connected(HERE)
        mark_answers([THERE], 18, older)
        assert marks(new) == (18 << 2, INTERACTIVE)
        assert marks(old) == marks(of_another) == (0, 0)


def test_a_server_that_also_receives_in_a_direction_is_no_sender_in_it() -> None:
    """This is rank 1. Rank 0 and rank 2 are on server s2, rank 3 is on s3."""

    def one(index: int, peer: int, device: str, upward: bool) -> RankMessage:
        (waiting,) = message(index, device=device)
        return replace(waiting.message, peer=peer, upward=upward)

    received = (
        one(0, 0, "s2/0", True), one(1, 2, "s2/1", False), one(2, 3, "s3/0", False),
    )  # fmt: skip
    sent: dict[str, tuple[RankMessage, ...]] = {
        "p": (one(3, 2, "s2/1", True), one(4, 3, "s3/0", True))
    }
    transport = GlooTransport(RankMessages(sent, received), {})
    assert transport.only_senders(upward=True) == set()
    assert transport.only_senders(upward=False) == {"s2", "s3"}
    sent["q"] = (one(5, 0, "s2/0", False),)
    assert transport.only_senders(upward=False) == {"s3"}
