// Bars of the peaks received so far; those already heard are opaque.

const PEAK_SAMPLES = 240; // 10 ms
const MIN_PEAKS = 400; // the width of short utterances: 4 s
const BAR_PIXELS = 4;

export class Waveform {
  #peaks = [];
  #samples = 0;
  #peak = 0;
  #isDrawing = false;

  constructor(canvas) {
    this.canvas = canvas;
    this.played = 0; // samples
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this.#peaks = [];
    this.#samples = this.#peak = this.played = 0;
    this.draw();
  }

  add(samples) {
    for (const sample of samples) {
      this.#peak = Math.max(this.#peak, Math.abs(sample));
      if (++this.#samples % PEAK_SAMPLES === 0) {
        this.#peaks.push(this.#peak / 32768);
        this.#peak = 0;
      }
    }
    this.draw();
  }

  draw() {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.#paint();
    });
  }

  #paint() {
    const { canvas } = this;
    const scale = window.devicePixelRatio;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    [canvas.width, canvas.height] = [width * scale, height * scale];
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.fillStyle = getComputedStyle(canvas).color;
    const bars = Math.floor(width / BAR_PIXELS);
    const perBar = Math.max(MIN_PEAKS, this.#peaks.length) / bars;
    for (let bar = 0; bar < bars; bar++) {
      const [start, end] = [Math.floor(bar * perBar), Math.ceil((bar + 1) * perBar)];
      const level = Math.max(0, ...this.#peaks.slice(start, end));
      const tall = Math.max(2, level * height);
      context.globalAlpha = start >= this.#peaks.length ? 0.15 : start * PEAK_SAMPLES < this.played ? 1 : 0.4;
      context.fillRect(bar * BAR_PIXELS, (height - tall) / 2, BAR_PIXELS - 1, tall);
    }
  }
}
