"""Lints a chart by Helm 4: `python helm4.py CHART`. A process of its own, since the library brings Go's runtime."""

import asyncio
import json
import sys

from helm_sdkpy import Configuration
from helm_sdkpy.chart import Lint

if __name__ == "__main__":
    print(json.dumps(asyncio.run(Lint(Configuration()).run(sys.argv[1]))))
