"""Interrupts that wait for what must not be broken off."""

from __future__ import annotations

import os
import signal
import time

import pytest

from penstock.cli.signals import interrupts_caught, interrupts_deferred


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.05)  # its handler runs in here


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_deferred_interrupt_comes_at_the_end(number: signal.Signals) -> None:
    done: list[str] = []

    def body() -> None:
        with interrupts_deferred():
            send(number)
            done.append("all of it")

    with interrupts_caught():
        with pytest.raises(KeyboardInterrupt):
            body()
        assert done == ["all of it"]
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_what_fails_meanwhile_is_interrupted_too() -> None:
    def body() -> None:
        with interrupts_deferred():
            send(signal.SIGTERM)
            raise ConnectionError("the JVM was interrupted as well")

    with interrupts_caught(), pytest.raises(KeyboardInterrupt):
        body()


def test_without_an_interrupt_nothing_is_changed() -> None:
    with interrupts_caught():
        with pytest.raises(ValueError, match="own"), interrupts_deferred():
            raise ValueError("own")
        with interrupts_deferred():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
