"""Streams through a real tritonserver, with a scripted talker and codec whose every frame is known."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import grpc
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from qwen3_tts_client.protocol import SpeechRequest, encode
from scripts.embedded.server import TritonServer
from tests.e2e.serving import Heard, Voice, eventually, serve

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


def test_chunks_per_second_of_the_triton_path(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    """One frame a chunk, no time spent on making it: what the Triton path itself carries."""
    frames = 100
    environment = scripted_environment | {
        "SCRIPTED_TICK_SECONDS": "0",
        "QWEN3_TTS_MAX_CHUNK_FRAMES": "1",
        # All streams at once, whether or not the machine could speak them in real time.
        "QWEN3_TTS_LOAD_LIMIT": "0",
    }
    with serve(scripted_repository, tmp_path, environment) as server, Voice(server) as voice:
        voice.hear(max_frames=20)
        rates = [chunk_rate(voice, STREAMS, frames) for _ in range(3)]
    print(f"chunks per second at {STREAMS} streams: {[round(rate) for rate in rates]}")
    assert max(rates) >= 3000


def chunk_rate(voice: Voice, streams: int, frames: int) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        heard = list(pool.map(lambda seed: voice.hear(seed=seed, max_frames=frames), range(streams)))
    seconds = time.perf_counter() - started
    for seed, one in enumerate(heard):
        assert_own_frames(one, seed, frames)
    return streams * frames / seconds


def duration(heard: Heard) -> int:
    return heard.arrivals[-1] - heard.arrivals[0]


def resident_bytes(pid: int) -> int:
    """Memory of a process and all its children."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    below = {int(child) for path in children for child in path.read_text().split()}
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(resident_bytes, below))
