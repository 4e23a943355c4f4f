"""A budget of bytes that follows the line, on a clock of its own."""

from __future__ import annotations

import pytest

from studio.tui.terminal.frames import HOLD_S, LEAST_BYTES_PER_S, START_BYTES_PER_S, Pacer


def a_pacer(**settings: float) -> Pacer:
    return Pacer(0.0, **settings)


def _probe(pacer: Pacer, at: float, rtt_s: float) -> None:
    pacer.record_probe(at)
    pacer.record_answer(at + rtt_s)


def test_a_frame_gets_a_share_of_a_second_and_a_pause_no_more_than_two() -> None:
    pacer = a_pacer()
    assert pacer.allowed_bytes(0.0, queued=False) == int(START_BYTES_PER_S * 0.1)
    pacer.record_sent(2_000, 0.0)
    assert pacer.allowed_bytes(0.0, queued=False) == 0
    assert pacer.allowed_bytes(100.0, queued=False) == int(START_BYTES_PER_S * 0.2)


def test_what_keys_and_reviews_send_counts_though_it_is_never_held() -> None:
    pacer = a_pacer()
    pacer.record_sent(1_000_000, 0.0)
    assert pacer.allowed_bytes(0.9, queued=False) == 0
    assert pacer.allowed_bytes(1.2, queued=False) > 0  # a page drawn anew costs one second at most


def test_nothing_is_added_while_earlier_bytes_wait_in_the_process() -> None:
    assert a_pacer().allowed_bytes(0.0, queued=True) == 0


def test_frames_wait_while_a_probe_is_late_and_go_on_after_its_answer() -> None:
    pacer = a_pacer()
    _probe(pacer, 0.0, 0.04)
    pacer.record_probe(1.0)
    assert pacer.allowed_bytes(1.0 + 0.04 + HOLD_S - 0.01, queued=False) > 0
    assert pacer.allowed_bytes(1.0 + 0.04 + HOLD_S + 0.01, queued=False) == 0
    pacer.record_answer(1.3)
    assert pacer.allowed_bytes(1.3, queued=False) > 0


def test_good_probes_raise_a_rate_that_was_used_up_and_slow_ones_lower_it() -> None:
    pacer = a_pacer()
    _probe(pacer, 0.0, 0.04)
    assert pacer.rate == START_BYTES_PER_S  # nobody wanted more
    pacer.mark_limited()
    _probe(pacer, 1.0, 0.05)
    assert pacer.rate == pytest.approx(START_BYTES_PER_S * 1.5)  # at first in larger steps
    _probe(pacer, 2.0, 0.04 + 0.13)
    assert pacer.rate == pytest.approx(START_BYTES_PER_S * 1.5 * 0.7)
    pacer.mark_limited()
    _probe(pacer, 3.0, 0.05)
    assert pacer.rate == pytest.approx(START_BYTES_PER_S * 1.5 * 0.7 * 1.05)


def test_a_line_that_only_gets_slower_still_carries_something() -> None:
    pacer = a_pacer()
    _probe(pacer, 0.0, 0.01)
    for second in range(1, 40):
        _probe(pacer, float(second), 0.9)
    assert pacer.rate == LEAST_BYTES_PER_S
    assert pacer.allowed_bytes(50.0, queued=False) > 0


def test_a_round_trip_that_became_longer_for_good_is_the_new_measure() -> None:
    pacer = a_pacer()
    _probe(pacer, 0.0, 0.01)
    for second in range(1, 70):
        _probe(pacer, float(second), 0.3)
    pacer.mark_limited()
    before = pacer.rate
    _probe(pacer, 71.0, 0.3)
    assert pacer.rate > before


def test_a_terminal_that_never_answers_is_not_waited_for() -> None:
    pacer = a_pacer()
    pacer.record_probe(0.0)
    assert pacer.allowed_bytes(1.0, queued=False) == 0
    assert pacer.allowed_bytes(6.0, queued=False) > 0
    assert pacer.is_unresponsive and not pacer.wants_probe
    pacer.record_sent(50_000, 6.0)
    assert pacer.allowed_bytes(6.0, queued=False) > 0
    assert "does not answer" in str(pacer)


def test_an_answer_that_nobody_asked_for_says_nothing() -> None:
    pacer = a_pacer()
    pacer.record_answer(1.0)
    assert pacer.rtt_s is None


def test_help_is_told_what_the_line_carries() -> None:
    pacer = a_pacer(rate=16_000.0)
    _probe(pacer, 0.0, 0.04)
    assert str(pacer) == "link 16 KB/s, RTT 40 ms"
