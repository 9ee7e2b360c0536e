"""Plots of a run as SVG."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from qwen3_tts_client.analysis.playback import NS, Playback, duration_ns
from qwen3_tts_client.records.timeline import Timeline

Row = dict[str, Any]
Points = Sequence[float | None]

MODES = {"closed": "concurrent streams", "open": "requests per second (Poisson)", "burst": "requests at once"}
# Stands for the text colour of the page, light or dark.
INK = "#010203"
STYLE: dict[Any, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "svg.hashsalt": "client",  # deterministic output
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 8,
    "lines.markersize": 4,
}


def first_audio(rows: Sequence[Row]) -> str:
    """TTFA and audible TTFA against load."""

    def draw(axes: Axes, loads: Sequence[Row]) -> None:
        for label, key, color in (("TTFA", "ttfa_ms", "tab:blue"), ("audible TTFA", "audible_ttfa_ms", "tab:orange")):
            for quantile, style in (("p50", "o-"), ("p95", "o--")):
                _line(axes, loads, [_at(row, key, quantile) for row in loads], f"{label} {quantile}", style, color)
        _log_ms(axes)

    return _against_load(rows, draw)


def continuity(rows: Sequence[Row]) -> str:
    """Shares of streams with any stall and within 50 ms, against load."""

    def draw(axes: Axes, loads: Sequence[Row]) -> None:
        for form, style in (("rebuffering", "o-"), ("never_rebuffering", "o--")):
            c0, c50 = ([_at(row, form, key) for row in loads] for key in ("c0", "c50"))
            stalled = [None if share is None else 100 * (1 - share) for share in c0]
            within = [None if share is None else 100 * share for share in c50]
            name = form.replace("_", " ")
            _line(axes, loads, stalled, f"any underrun, {name}", style, "tab:red")
            _line(axes, loads, within, f"C50, {name}", style, "tab:green")
        axes.set(ylabel="% of streams", ylim=(-3, 103))

    return _against_load(rows, draw)


def throughput(rows: Sequence[Row]) -> str:
    def draw(axes: Axes, loads: Sequence[Row]) -> None:
        _line(axes, loads, [row["audio_throughput"] for row in loads], "audio", "o-", "tab:blue")
        axes.set(ylabel="seconds of audio per second", ylim=(0, None))

    return _against_load(rows, draw)


def server_times(rows: Sequence[Row], times: dict[str, list[tuple[float | None, float | None]]]) -> str:
    """p50 and p95 in ms of each of `times`; its points are in the order of `rows`."""

    def draw(axes: Axes, loads: Sequence[Row]) -> None:
        for number, (label, points) in enumerate(times.items()):
            of_mode = [points[rows.index(row)] for row in loads]
            _line(axes, loads, [p50 for p50, _ in of_mode], f"{label} p50", "o-", f"C{number}")
            _line(axes, loads, [p95 for _, p95 in of_mode], f"{label} p95", "o--", f"C{number}")
        _log_ms(axes)

    return _against_load(rows, draw)


def over_time(series: dict[str, list[tuple[float, float]]]) -> str:
    """Lines of (seconds, value)."""
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 2.5), layout="constrained")
        axes = figure.subplots()
        for label, points in series.items():
            axes.plot([at for at, _ in points], [value for _, value in points], label=label, drawstyle="steps-post")
        axes.set(xlabel="seconds since the start of the run", ylim=(0, None))
        _legend(figure, axes, len(series))
        return _svg(figure)


def playback_timeline(streams: Sequence[tuple[str, Timeline, Playback]]) -> str:
    """One row per stream: chunk arrivals (ticks), playback (bars) and stalls (red)."""
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 0.9 + 0.35 * len(streams)), layout="constrained")
        axes = figure.subplots()
        for row, (_, timeline, playback) in enumerate(streams):
            _draw_stream(axes, -row, timeline, playback)
        axes.set_yticks([-row for row in range(len(streams))], [name for name, _, _ in streams])
        axes.set(xlabel="seconds after the request")
        return _svg(figure)


def _draw_stream(axes: Axes, y: int, timeline: Timeline, playback: Playback) -> None:
    def seconds(time_ns: int) -> float:
        return (time_ns - timeline.sent_ns) / NS

    lengths = [duration_ns(samples, timeline.sample_rate) / NS for samples in timeline.samples]
    played = [(seconds(start), length) for start, length in zip(playback.starts_ns, lengths, strict=True)]
    waits = zip(playback.starts_ns, playback.stalls_ns, strict=True)
    waited = [(seconds(start - stall), stall / NS) for start, stall in waits if stall]
    axes.broken_barh(played, (y - 0.25, 0.3), facecolors="tab:blue", edgecolors="white", linewidth=0.3)
    axes.broken_barh(waited, (y - 0.25, 0.3), facecolors="tab:red")
    axes.plot([seconds(time_ns) for time_ns in timeline.arrivals_ns], [y + 0.2] * len(lengths), "|", color=INK)


def _against_load(rows: Sequence[Row], draw: Callable[[Axes, Sequence[Row]], None]) -> str:
    """One panel per load mode; `draw` gets the rows of that mode."""
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in rows)]
    with rc_context(STYLE):
        figure = Figure(figsize=(5.5 * len(modes), 3.2), layout="constrained")
        panels = figure.subplots(1, max(1, len(modes)), squeeze=False)[0]
        for axes, mode in zip(panels, modes, strict=False):
            loads = sorted((row for row in rows if row["mode"] == mode), key=lambda row: row["value"])
            draw(axes, loads)
            axes.set(xlabel=MODES[mode], xscale="log")
            axes.set_xticks([row["value"] for row in loads], [f"{row['value']:g}" for row in loads])
            axes.xaxis.minorticks_off()
        _legend(figure, panels[0], 2 * len(panels))
        return _svg(figure)


def _legend(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, below them."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def _log_ms(axes: Axes) -> None:
    low, high = axes.dataLim.intervaly
    axes.set(ylabel="ms", yscale="log", ylim=(low / 2, high * 2))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.minorticks_off()


def _line(axes: Axes, loads: Sequence[Row], points: Points, label: str, style: str, color: str) -> None:
    known = [float("nan") if point is None else point for point in points]
    axes.plot([row["value"] for row in loads], known, style, label=label, color=color)


def _at(row: Row, key: str, name: str) -> float | None:
    return None if row[key] is None else row[key][name]


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    text = buffer.getvalue().replace(INK, "currentColor")
    return text[text.index("<svg") :]
