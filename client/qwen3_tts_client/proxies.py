"""HTTP proxies of the environment."""

import os

LOCAL = ("localhost", "127.0.0.1", "::1")
EVERY_HOST = "*"


def bypass_for_local_addresses() -> None:
    """Adds local addresses to `no_proxy`, which gRPC, urllib, httpx and child processes read."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if given != EVERY_HOST:
        given = ",".join([*filter(None, given.split(",")), *LOCAL])
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = given
