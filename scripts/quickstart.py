"""Codec export, server, one sentence by the demo voice, and on request a page. Called by quickstart.sh."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qwen3_tts_client.proxies import bypass_for_local_addresses
from scripts.server.drain import responds
from scripts.server.installation import ServerError, backend_options
from scripts.server.ports import Ports, check_port
from scripts.server.tritonserver import TritonServer

ROOT = Path(__file__).parents[1]
REPOSITORY = ROOT / "model_repository"
CHECKPOINT = ROOT / "scripts" / "demo_voice" / "tiny-speaking"
TEXT = "Hello! This voice was made for a demonstration, but it comes through every real part of the server."
POLL_SECONDS = 0.1
console = Console()


def main(
    text: Annotated[str, typer.Option(help="text to speak")] = TEXT,
    output: Annotated[Path, typer.Option(help="WAV file")] = ROOT / "build" / "hello.wav",
    build_folder: Annotated[Path, typer.Option(help="backends and the server's log")] = ROOT / "build",
    serve: Annotated[bool, typer.Option("--serve", help="keep serving, with a page in the browser")] = False,
    port: Annotated[int, typer.Option(help="of the page")] = 8080,
    grpc_port: Annotated[int, typer.Option(help="of the server")] = Ports.grpc,
    http_port: Annotated[int, typer.Option(help="of the server")] = Ports.http,
    metrics_port: Annotated[int, typer.Option(help="of the server")] = Ports.metrics,
) -> None:
    """Speak one sentence with the demo voice."""
    bypass_for_local_addresses()
    ports = Ports(grpc_port, http_port, metrics_port)
    try:
        ports.check()
        if serve:
            check_port(port, "--port")
    except ServerError as error:
        sys.exit(f"error: {error}")
    build_folder.mkdir(parents=True, exist_ok=True)
    export = ("export", "--checkpoint", CHECKPOINT, "--model-repository", REPOSITORY)
    run("Exporting the codec (half a minute the first time)", *export)
    log = build_folder / "server.log"
    options = backend_options(build_folder)
    environment = {"QWEN3_TTS_CHECKPOINT": str(CHECKPOINT)}
    with log.open("wb") as file, ExitStack() as running:
        server = TritonServer(REPOSITORY, options=options, ports=ports, environment=environment, log=file)
        try:
            console.print(f"Starting tritonserver (some 15 s; log: {log})")
            with console.status("Loading the models"):
                running.enter_context(server)
        except ServerError as error:
            sys.exit(f"error: {error}: {log}")
        # The server accepts requests during the codec proof: an unmeasured first request waits for its end.
        with console.status("Proving the codec"):
            say("Hello.", *server_of(ports), "--speaker", "ryan", "--max-frames", "1", "--output", "-")
        request = [*server_of(ports), "--speaker", "ryan", "--language", "english"]
        run("Speaking", "qwen3_tts_client", "say", text, *request, "--output", output)
        console.print(f"Listen to {output}")
        if serve:
            serve_page(port, ports, build_folder / "gateway.log")


def server_of(ports: Ports) -> tuple[str, str]:
    return "--url", f"localhost:{ports.grpc}"


def serve_page(port: int, ports: Ports, log: Path) -> None:
    """Runs the gateway until it is interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = ["--port", str(port), "--url", f"localhost:{ports.grpc}"]
    command = [sys.executable, "-m", "qwen3_tts_client", "gateway", *options]
    with log.open("wb") as file, subprocess.Popen(command, cwd=ROOT, stderr=file) as gateway:
        try:
            while not responds(f"http://localhost:{port}/healthz"):
                if gateway.poll() is not None:
                    sys.exit(f"error: the gateway ended: {log.read_text().strip()}")
                time.sleep(POLL_SECONDS)
            console.print(f"Open http://localhost:{port} in a browser; Ctrl-C ends the server")
            gateway.wait()
        except KeyboardInterrupt:
            console.print("Stopping")
        finally:
            gateway.terminate()


def say(*arguments: str) -> None:
    """Speak and discard the audio."""
    command = [sys.executable, "-m", "qwen3_tts_client", "say", *arguments]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def run(title: str, module: str, *arguments: str | Path) -> None:
    console.print(title)
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, env=os.environ, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    typer.run(main)
