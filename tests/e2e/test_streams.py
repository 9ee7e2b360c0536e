"""Streams through a real tritonserver, with a scripted talker and codec whose every frame is known."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.protocol import SpeechRequest, encode
from scripts.embedded.server import TritonServer
from tests.e2e.serving import Heard, Voice, eventually, serve
from tests.flood import __main__ as flood

SAMPLES_PER_FRAME = 1920
STREAMS = 64


def assert_own_frames(heard: Heard, seed: int, frames: int) -> None:
    """Every frame carries the stream's seed, its own number, and the number of frames that its codec state has seen."""
    assert heard.error is None
    got = heard.samples.reshape(-1, SAMPLES_PER_FRAME)[:, :3]
    number = np.arange(frames)
    np.testing.assert_array_equal(got, np.stack([np.full(frames, seed), number % 2048, number], axis=1))


def test_chunks_arrive_as_they_are_made(voice: Voice) -> None:
    heard = voice.hear(seed=5, max_frames=50)
    assert_own_frames(heard, 5, 50)
    lengths = [len(pcm) // SAMPLES_PER_FRAME for pcm in heard.pcm]
    assert lengths[0] == 1, "the first audio waits for nothing"
    assert lengths[:-1] == sorted(lengths[:-1])
    assert lengths[-2] == 16, "they grow with the listener's lead"
    assert heard.arrivals[0] < heard.arrivals[-1] - 300e6, "50 frames of 10 ms each take half a second"


def test_the_first_response_names_the_sample_rate(voice: Voice) -> None:
    rates = [chunk.sample_rate for _, chunk in voice.stream(max_frames=4)]
    assert len(rates) > 1
    assert rates == [24000] + [None] * (len(rates) - 1)


def test_64_streams_at_once_are_not_mixed(voice: Voice) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        heard = list(pool.map(lambda seed: voice.hear(seed=seed, max_frames=20 + seed), range(STREAMS)))
    for seed, one in enumerate(heard):
        assert_own_frames(one, seed, 20 + seed)


def test_many_requests_on_one_grpc_stream_with_equal_ids(voice: Voice) -> None:
    """An empty or repeated request id is never a key: each request gets its own frames."""
    requests = [encode(SpeechRequest("x", speaker="ryan", seed=s, max_frames=9), request_id="same") for s in range(8)]
    ends, frames = 0, []
    for response in voice.stub.ModelStreamInfer(iter(requests), timeout=60):
        result = response.infer_response
        assert result.id == "same"
        ends += result.parameters["triton_final_response"].bool_param
        if result.raw_output_contents:
            frames.append(np.frombuffer(result.raw_output_contents[0], np.int16).reshape(-1, SAMPLES_PER_FRAME)[:, :2])
        if ends == len(requests):
            break
    got = {tuple(frame) for frame in np.concatenate(frames).tolist()}
    assert got == {(seed, number) for seed in range(8) for number in range(9)}


def test_cancel_of_a_stream_frees_the_talker(voice: Voice) -> None:
    cancelled = voice.metric("qwen3_tts_requests_total", outcome="cancelled")
    stream = voice.stream(max_frames=4000)
    list(islice(stream, 3))
    stream.close()  # type: ignore[attr-defined]
    eventually(lambda: voice.metric("qwen3_tts_requests_total", outcome="cancelled") == cancelled + 1)
    eventually(lambda: voice.metric("qwen3_tts_requests_running") == 0)
    frames = voice.metric("qwen3_tts_frames_total")
    time.sleep(1.0)
    assert voice.metric("qwen3_tts_frames_total") == frames


def test_disconnect_of_a_client_frees_all_its_streams(scripted: TritonServer, voice: Voice) -> None:
    channel = grpc.insecure_channel(f"localhost:{scripted.ports.grpc}", [("grpc.use_local_subchannel_pool", 1)])
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    calls = [
        stub.ModelStreamInfer(iter([encode(SpeechRequest("x", speaker="ryan", seed=i, max_frames=4000))]))
        for i in range(8)
    ]
    for call in calls:
        next(call)
    eventually(lambda: voice.metric("qwen3_tts_requests_running") == 8)
    channel.close()
    eventually(lambda: voice.metric("qwen3_tts_requests_running") == 0)
    assert_own_frames(voice.hear(seed=3, max_frames=9), 3, 9)


def test_a_client_that_stops_reading_slows_nobody_and_costs_bounded_memory(voice: Voice) -> None:
    frames, pause = 4000, 30.0
    before = voice.hear(seed=1, max_frames=200)
    resident = resident_bytes(voice.server.pid)
    call = voice.stub.ModelStreamInfer(
        iter([encode(SpeechRequest("x", speaker="ryan", seed=9, max_frames=frames))]), timeout=120
    )
    stalled = threading.Timer(pause, lambda: None)
    stalled.start()
    during = [voice.hear(seed=2, max_frames=200) for _ in range(3)]
    stalled.join()
    # The whole utterance is 15 MB; all of the server's processes together may hold a few copies of it.
    assert resident_bytes(voice.server.pid) - resident < 6 * frames * SAMPLES_PER_FRAME * 2
    late = [r.infer_response.raw_output_contents for r in call]
    heard = Heard(pcm=[np.frombuffer(raw[0], np.int16) for raw in late if raw])
    assert_own_frames(heard, 9, frames)
    for one in during:
        assert_own_frames(one, 2, 200)
        assert duration(one) < 1.5 * duration(before)


def test_shutdown_with_streams_in_flight_ends_each_of_them(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    with serve(scripted_repository, tmp_path, scripted_environment) as server, Voice(server) as voice:
        with ThreadPoolExecutor(8) as pool:
            living = [pool.submit(voice.hear, seed=i, max_frames=300) for i in range(8)]
            eventually(lambda: voice.metric("qwen3_tts_requests_running") == 8)
            assert server.stop() == 0
        for seed, heard in enumerate(future.result() for future in living):
            if heard.error is None:
                assert_own_frames(heard, seed, 300)
            else:
                assert heard.error.startswith("UNAVAILABLE")


def test_a_chunk_costs_little_more_than_triton_itself(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    """No time is spent on making chunks, one frame each, beside a decoupled model that does nothing but send.

    The two take turns on one machine: the figures of either alone say more about the machine than about the talker.
    """
    frames, rounds = 100, 5
    talker_settings = scripted_environment | {
        "SCRIPTED_TICK_SECONDS": "0",
        "QWEN3_TTS_MAX_CHUNK_FRAMES": "1",
        # All streams at once, whether or not the machine could speak them in real time.
        "QWEN3_TTS_LOAD_LIMIT": "0",
    }
    never_polls = flood.environment_of(poll=1e9, settle=0.0, tick=0.0)
    speech = [encode(SpeechRequest("Hello.", speaker="ryan", seed=seed, max_frames=frames)) for seed in range(STREAMS)]
    with (
        serve(scripted_repository, tmp_path / "talker", talker_settings) as talker,
        serve(flood.REPOSITORY, tmp_path / "bare", never_polls, options=()) as bare,
        Voice(talker) as talker_voice,
        Voice(bare) as bare_voice,
    ):
        talker_voice.hear(max_frames=20)
        costs = []
        for _ in range(rounds):
            heard, talker_cost = costs_of(talker_voice, speech)
            for seed, pcm in enumerate(heard):
                assert_own_frames(Heard(pcm=pcm), seed, frames)
                assert [len(chunk) for chunk in pcm] == [SAMPLES_PER_FRAME] * frames
            pcm, bare_cost = costs_of(bare_voice, [flood.message(frames)] * STREAMS)
            assert [len(chunks) for chunks in pcm] == [frames] * STREAMS
            costs.append([talker_cost, bare_cost])
    seconds, processor_seconds = np.sum(costs, axis=0).T
    chunks = rounds * STREAMS * frames
    print(f"chunks per second: {chunks / seconds}; processor time per chunk: {processor_seconds / chunks * 1e6} us")
    assert processor_seconds[0] < 2.5 * processor_seconds[1]
    assert seconds[0] < 2.5 * seconds[1]


def costs_of(
    voice: Voice, requests: list[service_pb2.ModelInferRequest]
) -> tuple[list[list[np.ndarray]], tuple[float, float]]:
    """The chunks of each request; seconds and the server's processor seconds that they took.

    Responses are only collected while the clock runs: the server shares its cores with this process.
    """
    with ThreadPoolExecutor(len(requests)) as pool:
        started, used = time.perf_counter(), processor_seconds_of(voice.server.pid)
        streams = list(pool.map(lambda request: list(voice.stub.ModelStreamInfer(iter([request]))), requests))
        costs = time.perf_counter() - started, processor_seconds_of(voice.server.pid) - used
    raw = [[response.infer_response.raw_output_contents for response in responses] for responses in streams]
    return [[np.frombuffer(outputs[0], np.int16) for outputs in stream if outputs] for stream in raw], costs


def processor_seconds_of(pid: int) -> float:
    """Of a process and all its children."""
    server = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:2]) for process in (server, *server.children(recursive=True)))


def duration(heard: Heard) -> int:
    return heard.arrivals[-1] - heard.arrivals[0]


def resident_bytes(pid: int) -> int:
    """Memory of a process and all its children."""
    server = psutil.Process(pid)
    return sum(process.memory_info().rss for process in (server, *server.children(recursive=True)))
