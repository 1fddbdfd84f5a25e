"""A hello waits a moment for NVIDIA's driver, and not for one that hangs; news are told."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from placewire.agent.contract.capabilities import Device
from placewire.agent.drivers import known_devices
from placewire.agent.drivers.devices import Found, processor
from placewire.agent.drivers.known_devices import KnownDevices

GPU = Found((Device(name="NVIDIA A100", memory_bytes=80 * 2**30),), "")
LOST = Found((processor(),), "nvidia-smi failed: the GPU has fallen off the bus")
PATIENCE_SECONDS = 60.0


class Driver:
    """Takes the place of asking the driver; each answer is one that the test gives."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._answers: queue.Queue[Found] = queue.Queue()

    def __call__(self) -> Found:
        self.asked.release()
        return self._answers.get()

    def answers(self, *found: Found) -> None:
        for one in found:
            self._answers.put(one)


@contextmanager
def waiting_at_most(
    monkeypatch: pytest.MonkeyPatch, answer: float = PATIENCE_SECONDS, fresh: float = 0.0
) -> Iterator[tuple[Driver, KnownDevices]]:
    monkeypatch.setattr(known_devices, "ANSWER_SECONDS", answer)
    monkeypatch.setattr(known_devices, "FRESH_SECONDS", fresh)
    driver = Driver()
    try:
        yield driver, KnownDevices(driver)
    finally:
        driver.answers(*[LOST] * 9)  # The thread of one that hangs ends.


def until(condition: Callable[[], bool]) -> None:
    """Where nobody calls back, the test looks."""
    for _ in range(round(PATIENCE_SECONDS / 0.01)):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("not in time")


def test_the_first_hello_has_what_is_answered_within_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with waiting_at_most(monkeypatch) as (driver, devices):
        devices.ask()
        driver.answers(GPU)
        assert devices.known() == GPU


def test_a_later_hello_has_what_is_answered_within_a_moment_of_its_own_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with waiting_at_most(monkeypatch) as (driver, devices):
        driver.answers(GPU, LOST)
        assert devices.known() == GPU
        until(lambda: not devices._asks)
        assert devices.known() == LOST


def test_a_driver_that_hangs_is_not_waited_for_and_told_as_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with waiting_at_most(monkeypatch, answer=0.01) as (driver, devices):
        assert devices.known() is None
        assert devices.known() is None
        assert driver.asked.acquire() and not driver.asked.acquire(blocking=False), "asked once"
        driver.answers(GPU)
        until(lambda: devices.known() == GPU)


def test_a_later_hello_has_what_was_found_last_though_the_driver_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with waiting_at_most(monkeypatch) as (driver, devices):
        driver.answers(GPU)
        assert devices.known() == GPU and driver.asked.acquire()
        until(lambda: not devices._asks)
        monkeypatch.setattr(known_devices, "ANSWER_SECONDS", 0.01)
        assert devices.known() == GPU
        assert driver.asked.acquire(timeout=PATIENCE_SECONDS), "it is asked, and does not answer"
        assert devices.known() == GPU


def test_what_differs_from_the_last_hello_is_news_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with waiting_at_most(monkeypatch, answer=0.01) as (driver, devices):
        news = threading.Semaphore(0)
        devices.follow(news.release)
        devices.ask()
        driver.answers(GPU)
        until(lambda: not devices._asks)
        assert not news.acquire(blocking=False), "no hello was said before"
        assert devices.known() == GPU  # and asks again
        driver.answers(GPU)
        until(lambda: not devices._asks)
        assert not news.acquire(blocking=False)
        assert devices.known() == GPU
        driver.answers(LOST)
        assert news.acquire(timeout=PATIENCE_SECONDS)


def test_a_late_first_answer_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting_at_most(monkeypatch, answer=0.01) as (driver, devices):
        news = threading.Semaphore(0)
        devices.follow(news.release)
        assert devices.known() is None
        driver.answers(GPU)
        assert news.acquire(timeout=PATIENCE_SECONDS)


def test_a_driver_that_has_just_answered_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with waiting_at_most(monkeypatch, fresh=PATIENCE_SECONDS) as (driver, devices):
        driver.answers(GPU)
        assert devices.known() == GPU and driver.asked.acquire()
        until(lambda: not devices._asks)
        assert devices.known() == GPU and not driver.asked.acquire(blocking=False)


def test_what_goes_wrong_unexpectedly_is_a_reason() -> None:
    def find() -> Found:
        raise PermissionError("/sys/bus/pci")

    found = KnownDevices(find).known()
    assert found == Found((processor(),), "looking for them failed: /sys/bus/pci")
