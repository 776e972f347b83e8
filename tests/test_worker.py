"""The thread that computes: who shares a batch, what is refused, and what is left out."""

import threading
import time

import pytest

from hf_vanilla.app.worker import BusyError, Worker


class Doubled:
    """A function of batches that notes them, and waits for `free` at the value 0."""

    def __init__(self):
        self.batches, self.free, self.is_held = [], threading.Event(), threading.Event()

    def __call__(self, values):
        self.batches.append(values)
        if values == [0]:
            self.is_held.set()
            self.free.wait(60)
        if -1 in values:
            raise ValueError("negative")
        return [2 * value for value in values]


@pytest.fixture
def held():
    """A worker whose thread is held by a first value, and its function."""
    worker, doubled = Worker(most_waiting=8, batch_size=40), Doubled()
    worker.submit(doubled, [0], [1])
    doubled.is_held.wait(60)
    yield worker, doubled
    doubled.free.set()
    worker.close()


def test_the_oldest_shares_a_batch_with_those_of_its_size(held):
    worker, doubled = held
    futures = worker.submit(doubled, [5, 20, 6, 19, 7], [5, 20, 6, 19, 7])
    doubled.free.set()
    assert [future.result(60) for future in futures] == [10, 40, 12, 38, 14]
    assert doubled.batches == [[0], [5, 6, 7], [20, 19]]  # 3 x 7 and 2 x 20 tokens
    assert (worker.batches, worker.values, worker.waiting) == (3, 6, 0)


def test_other_functions_are_computed_apart(held):
    worker, doubled = held
    other = Doubled()
    (first,) = worker.submit(doubled, [1], [1])
    (second,) = worker.submit(other, [2], [1])
    (third,) = worker.submit(doubled, [3], [1])
    doubled.free.set()
    assert [one.result(60) for one in (first, second, third)] == [2, 4, 6]
    assert (doubled.batches, other.batches) == ([[0], [1, 3]], [[2]])


def test_freed_memory_is_returned_at_intervals(monkeypatch):
    returned = []
    monkeypatch.setattr("hf_vanilla.app.worker.return_freed_memory", lambda: returned.append(1))
    for seconds, times in ((0.0, 3), (60.0, 0)):
        monkeypatch.setattr("hf_vanilla.app.worker.RETURN_SECONDS", seconds)
        worker = Worker()
        for value in (1, 2, 3):
            (future,) = worker.submit(Doubled(), [value], [1])
            future.result(60)
        worker.close()
        assert len(returned) == times
        returned.clear()


def test_what_fails_spares_its_batch(held):
    worker, doubled = held
    futures = worker.submit(doubled, [1, -1, 3, 4], [1] * 4)
    doubled.free.set()
    assert [futures[at].result(60) for at in (0, 2, 3)] == [2, 6, 8]
    with pytest.raises(ValueError, match="negative"):
        futures[1].result(60)


def test_a_panic_of_code_in_rust_leaves_the_thread_alive(held):
    class PanicError(BaseException):
        """As pyo3's PanicException, no Exception."""

    def panics(values):
        raise PanicError

    worker, doubled = held
    (lost,) = worker.submit(panics, [1], [1])
    (found,) = worker.submit(doubled, [4], [1])
    doubled.free.set()
    assert found.result(60) == 8
    with pytest.raises(PanicError):
        lost.result(60)


def test_a_full_queue_refuses_all_of_a_request_and_cancelled_values_leave_it(held):
    worker, doubled = held
    futures = worker.submit(doubled, [1] * 7, [1] * 7)
    with pytest.raises(BusyError):
        worker.submit(doubled, [2, 2], [1, 1])
    for future in futures[:6]:
        future.cancel()
    others = worker.submit(doubled, [2, 2], [1, 1])
    doubled.free.set()
    assert [future.result(60) for future in (futures[6], *others)] == [2, 4, 4]
    assert doubled.batches == [[0], [1, 2, 2]]


def test_a_value_waits_for_a_full_batch_and_the_end_waits_for_no_one():
    worker, doubled = Worker(max_wait_seconds=60, batch_size=4), Doubled()
    started = time.monotonic()
    (first,) = worker.submit(doubled, [1], [1])
    futures = worker.submit(doubled, [2, 3, 4], [1] * 3)  # full
    assert [future.result(60) for future in (first, *futures)] == [2, 4, 6, 8]
    (last,) = worker.submit(doubled, [5], [1])
    worker.close()
    assert last.result(0) == 10
    assert time.monotonic() - started < 50
    assert doubled.batches == [[1, 2, 3, 4], [5]]
