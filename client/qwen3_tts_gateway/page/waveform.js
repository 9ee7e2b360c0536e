// Bars of the peaks received so far; those already heard are opaque.

const PEAK_SAMPLES = 240; // 10 ms
const MIN_PEAKS = 400; // the width of a short utterance: 4 s
const BAR_PIXELS = 4;

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.clear();
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this.peaks = [];
    this.samples = this.peak = this.played = 0;
    this.draw();
  }

  add(samples) {
    for (const sample of samples) {
      this.peak = Math.max(this.peak, Math.abs(sample) / 32768);
      if (++this.samples % PEAK_SAMPLES === 0) {
        this.peaks.push(this.peak);
        this.peak = 0;
      }
    }
    this.draw();
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#paint(this.canvas.getContext("2d"), this.canvas.clientWidth, this.canvas.clientHeight);
    });
  }

  #paint(context, width, height) {
    const scale = window.devicePixelRatio;
    [this.canvas.width, this.canvas.height] = [width * scale, height * scale];
    context.scale(scale, scale);
    context.fillStyle = getComputedStyle(this.canvas).color;
    const bars = Math.floor(width / BAR_PIXELS);
    const perBar = Math.max(MIN_PEAKS, this.peaks.length) / bars;
    for (let bar = 0; bar < bars; bar++) {
      const start = Math.floor(bar * perBar);
      const tall = Math.max(2, height * Math.max(0, ...this.peaks.slice(start, Math.ceil((bar + 1) * perBar))));
      context.globalAlpha = start >= this.peaks.length ? 0.15 : start * PEAK_SAMPLES < this.played ? 1 : 0.4;
      context.fillRect(bar * BAR_PIXELS, (height - tall) / 2, BAR_PIXELS - 1, tall);
    }
  }
}
