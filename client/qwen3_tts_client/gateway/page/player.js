// Sound through WebAudio, at the sample rate of the model.

export const RATE = 24000;

export class Player {
  // `onReport` receives {type, played, underruns, stalled}: "started", "position" and "ended".
  constructor(onReport) {
    if (!window.AudioWorkletNode) throw new Error("Sound needs HTTPS or localhost, and a browser with AudioWorklet.");
    this.context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
    this.loaded = this.#load(onReport);
  }

  async #load(onReport) {
    await this.context.audioWorklet.addModule("player-worklet.js");
    this.node = new AudioWorkletNode(this.context, "player", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.port.onmessage = ({ data }) => onReport(data);
    this.node.connect(this.context.destination);
  }

  // Call from a click or key press: browsers keep a page silent until then.
  async begin() {
    await Promise.all([this.context.resume(), this.loaded]);
    this.node.port.postMessage("begin");
  }

  add(samples) {
    this.node.port.postMessage(samples);
  }

  end() {
    this.node.port.postMessage("end");
  }

  stop() {
    this.node?.port.postMessage("stop");
  }

  get latencyMs() {
    return 1000 * (this.context.outputLatency || this.context.baseLatency || 0);
  }
}
