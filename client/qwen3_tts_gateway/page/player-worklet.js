// Plays a queue of 16-bit chunks. An utterance begins with its number in the queue and ends with "end".

const FADE_SAMPLES = Math.round(0.005 * sampleRate);
const REPORT_BLOCKS = 8;

class PlayerProcessor extends AudioWorkletProcessor {
  queue = [];
  offset = 0; // into the first chunk
  blocks = 0;
  utterance = 0;

  constructor() {
    super();
    this.reset();
    this.port.onmessage = ({ data }) => (data === "stop" ? this.stop() : this.queue.push(data));
  }

  reset() {
    this.isStarted = false;
    this.played = 0; // samples
    this.dry = 0; // samples since the queue ran empty
    this.underruns = 0;
    this.stalled = 0; // samples
  }

  process(inputs, [[output]]) {
    const filled = this.fill(output);
    if (this.isStarted && filled < output.length) this.dry += output.length - filled;
    if (this.isStarted && ++this.blocks % REPORT_BLOCKS === 0) this.report("position");
    return true;
  }

  fill(output) {
    let filled = 0;
    while (filled < output.length && this.queue.length) {
      if (this.queue[0] instanceof Int16Array) filled += this.play(output.subarray(filled));
      else this.mark(this.queue.shift());
    }
    return filled;
  }

  play(output) {
    const chunk = this.queue[0];
    const count = Math.min(output.length, chunk.length - this.offset);
    for (let i = 0; i < count; i++) output[i] = chunk[this.offset + i] / 32768;
    this.offset += count;
    if (this.offset === chunk.length) {
      this.queue.shift();
      this.offset = 0;
    }
    this.count(count);
    return count;
  }

  // A chunk that comes after all before it have been played is an underrun.
  count(samples) {
    if (!this.isStarted) {
      this.isStarted = true;
      this.report("started");
    } else if (this.dry) {
      this.underruns++;
      this.stalled += this.dry;
    }
    this.dry = 0;
    this.played += samples;
  }

  mark(marker) {
    if (marker === "end") this.report("ended");
    else this.utterance = marker;
    this.reset();
  }

  // Keeps the next 5 ms, faded out.
  stop() {
    const tail = new Float32Array(FADE_SAMPLES);
    if (this.isStarted) this.fill(tail);
    this.reset();
    this.utterance = this.offset = 0;
    this.queue = [Int16Array.from(tail, (sample, i) => sample * 32768 * (1 - (i + 1) / FADE_SAMPLES)), "end"];
  }

  report(type) {
    const { utterance, played, underruns, stalled } = this;
    this.port.postMessage({ type, utterance, played, underruns, stalled });
  }
}

registerProcessor("player", PlayerProcessor);
