"""A job that runs in the background is watched by the commands that a user has for it."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.end_to_end.cluster import Finished, Process, TestCluster, once

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.thorough]

# More than it will ever run: a rank is killed once all has been seen.
STEPS = 100_000


def steps_in(text: str) -> list[int]:
    return [int(step) for step in re.findall(r"rank 0 \| step (\d+): ", text)]


def test_a_job_in_the_background_is_seen_while_it_runs_and_ends_as_it_ended(
    cluster: TestCluster, untouched: None
) -> None:
    document = cluster.document()
    document["job"]["steps"] = STEPS
    plan = str(cluster.plan(document, "background"))
    user = cluster.as_a_user()
    begun = user.run("apply", plan, "--yes", "--detach")
    assert begun.code == 0 and "controller attach" in begun.output, begun.told
    seen: list[Finished] = []
    followed: list[int] = []

    def watch(attached: Process) -> None:
        seen.append(user.run("status", plan))
        follow = user.start("logs", plan, "--follow")
        assert follow.stdout is not None
        until = steps_in(seen[0].output)[-1] + 20
        for line in follow.stdout:
            followed.extend(steps_in(line.decode()))
            if followed[-1:] >= [until]:
                os.kill(cluster.ranks()[-1], signal.SIGKILL)
                until = STEPS
        assert follow.wait() == 0

    try:
        attached = user.run("attach", plan, on_line=once(" step 3: ", watch))
    finally:
        user.run("attach", plan, "--stop")  # What has ended is not stopped again.
    (status,) = seen
    assert status.code == 0 and "a change is under way: process" in status.output, status.told
    assert steps_in(status.output)[-1] >= 3, status.told
    assert followed[-1] > steps_in(status.output)[-1]
    assert followed == [*range(followed[-1] + 1)]
    assert attached.code == 7, attached.told
    assert "-- ended with exit code 7" in attached.output
    assert "was killed by SIGKILL" in attached.output
