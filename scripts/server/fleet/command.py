"""Several servers behind one address: a launcher (serve.py) for each GPU, Envoy in front (docs/fleet.md).

Ctrl-C or SIGTERM drains the servers and ends everything; a second one ends the streams.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from scripts.server.drain import DEFAULT_SECONDS, SECONDS_VARIABLE
from scripts.server.fleet.fleet import Fleet
from scripts.server.fleet.plan import LOCAL, FleetError, FleetPlan, plan_servers, reserved
from scripts.server.fleet.program import EnvoyError, envoy_options, find_envoy
from scripts.server.installation import ServerError

# Of 1, 2 and 4, on four H200 with 1 024 streams (docs/benchmarks/fleet-limits-h200-x4.json).
WORKERS_PER_SERVER = 2


def main(
    context: typer.Context,
    servers: Annotated[int | None, typer.Option(min=1, help="number of servers; without it one for each GPU")] = None,
    model_repository: Annotated[Path, typer.Option(exists=True, file_okay=False)] = Path("model_repository"),
    build_folder: Annotated[Path, typer.Option(help="folder of the fleet's files")] = Path("build/fleet"),
    address: Annotated[str, typer.Option(help="where Envoy listens")] = LOCAL,
    port: Annotated[int, typer.Option(help="Envoy's port for gRPC")] = 8001,
    admin_port: Annotated[int, typer.Option(help="Envoy's admin interface, on localhost")] = 9901,
    first_port: Annotated[
        int, typer.Option(help="HTTP, gRPC and metrics of server 0; each takes the next three")
    ] = 8100,
    drain_seconds: Annotated[
        float, typer.Option(min=0, envvar=SECONDS_VARIABLE, help="time for open streams after SIGTERM or Ctrl-C")
    ] = DEFAULT_SECONDS,
    envoy: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Envoy's program, instead of the wheel's")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Envoy's threads; without it two for each server")] = None,
) -> None:
    """Serve with one server per GPU behind Envoy; every other option goes to each server unchanged."""
    command = [
        sys.executable, "-m", "scripts.server", "serve",
        f"--model-repository={model_repository}", f"--drain-seconds={drain_seconds:g}", *context.args,
    ]  # fmt: skip
    try:
        program = envoy or find_envoy()
        planned = plan_servers(servers, first_port, build_folder, os.environ)
        plan = FleetPlan(planned, build_folder.resolve(), address, port, admin_port)
        # A worker is an event loop, in which a chunk waits for those before it: the loops grow with the servers.
        threads = workers or min(WORKERS_PER_SERVER * len(planned), os.cpu_count() or 1)
        with reserved(plan):
            code = Fleet(plan, [str(program), *envoy_options(threads)], command).run()
    except (FleetError, EnvoyError, ServerError) as error:
        sys.exit(f"error: {error}")
    sys.exit(code)
