"""Messages arrive whole and in order, and senders are never blocked."""

import os
import select
import threading
from collections.abc import Iterator

import pytest

from qwen3_tts_engine.process.pipe import PIPE_BYTES, Messages, Writer
from qwen3_tts_engine.request import Cancelled, InvalidRequest, Outcome, RequestError, ServerStarting

WAIT = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[Writer, int]]:
    read, write = os.pipe()
    writer = Writer(write, "writer")
    yield writer, read
    writer.close()


def test_messages_arrive_in_order_also_those_larger_than_the_pipe(pipe: tuple[Writer, int]) -> None:
    writer, read = pipe
    sent = [b"small", b"x" * (3 * PIPE_BYTES), b"", b"y" * (PIPE_BYTES - 7), *(str(i).encode() for i in range(1000))]
    for message in sent:
        writer.send(message)
    assert writer.num_waiting
    closing = threading.Thread(target=writer.close)
    closing.start()
    assert list(Messages(read)) == sent
    closing.join(WAIT)
    assert not closing.is_alive()


def test_a_reader_knows_whether_more_messages_have_arrived(pipe: tuple[Writer, int]) -> None:
    writer, read = pipe
    with writer.held():
        writer.send(1)
        writer.send(2)
    messages = Messages(read)
    assert messages.more_follow()
    received = iter(messages)
    assert next(received) == 1
    assert messages.more_follow()
    assert next(received) == 2
    assert not messages.more_follow()
    writer.send(3)
    assert messages.more_follow()
    assert next(received) == 3
    writer.close()
    assert list(received) == []
    assert not messages.more_follow()


def test_messages_that_arrived_together_are_shown_before_the_first(pipe: tuple[Writer, int]) -> None:
    writer, read = pipe
    happened: list[object] = []
    received = iter(Messages(read, lambda messages: happened.append(list(messages))))
    for sent in ([1], [2, 3], [4]):
        with writer.held():
            for message in sent:
                writer.send(message)
        happened += [next(received) for _ in sent]
    writer.close()
    assert [*happened, *received] == [1, [2, 3], 2, 3, 4]


def test_messages_of_several_threads_stay_whole(pipe: tuple[Writer, int]) -> None:
    writer, read = pipe
    received: list[tuple[int, int, bytes]] = []
    reader = threading.Thread(target=lambda: received.extend(Messages(read)))
    reader.start()

    def send(sender: int) -> None:
        for number in range(200):
            writer.send((sender, number, bytes(997 * (number % 50))))

    senders = [threading.Thread(target=send, args=(i,)) for i in range(4)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    writer.close()
    reader.join(WAIT)
    for sender in range(4):
        own = [(number, len(content)) for name, number, content in received if name == sender]
        assert own == [(number, 997 * (number % 50)) for number in range(200)]


def test_messages_to_a_process_that_is_gone_are_dropped(pipe: tuple[Writer, int]) -> None:
    writer, read = pipe
    writer.send(b"x" * (2 * PIPE_BYTES))
    assert writer.num_waiting
    os.close(read)
    for _ in range(10):
        writer.send(b"lost")
    writer.close()
    assert not writer.num_waiting


def test_nothing_is_sent_after_the_end(pipe: tuple[Writer, int]) -> None:
    writer, read = pipe
    writer.send(1)
    writer.close()
    writer.send(2)
    assert list(Messages(read)) == [1]


def test_an_incomplete_message_is_not_received() -> None:
    read, write = os.pipe()
    writer = Writer(write, "writer")
    writer.send("whole")
    os.write(write, (100).to_bytes(4, "little") + b"the process died here")
    writer.close()
    assert list(Messages(read)) == ["whole"]


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("speaker", "nobody", "one of ryan"), ServerStarting("soon"), Cancelled("gone"), RequestError("x")],
)
def test_errors_keep_their_class_and_text(pipe: tuple[Writer, int], error: RequestError) -> None:
    writer, read = pipe
    writer.send(error)
    writer.close()
    [received] = Messages(read)
    assert type(received) is type(error)
    assert str(received) == str(error)
    assert isinstance(received.outcome, Outcome)


def test_held_messages_leave_together_and_in_order(pipe: tuple[Writer, int]) -> None:
    writer, read = pipe
    with writer.held():
        for number in range(2000):
            writer.send(number)
        assert not select.select([read], [], [], 0)[0]
    writer.send("after")
    writer.close()
    assert list(Messages(read)) == [*range(2000), "after"]
