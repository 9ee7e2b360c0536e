// Sound through WebAudio, at the sample rate of the model.

export const RATE = 24000;

export class Player {
  // `onReport` receives {type, played, underruns, stalled} of the last utterance: "started", "position" and "ended".
  constructor(onReport) {
    if (!window.AudioWorkletNode) throw new Error("Sound needs HTTPS or localhost, and a browser with AudioWorklet.");
    this.context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
    this.utterance = 0;
    this.port = this.#load(onReport);
  }

  async #load(onReport) {
    await this.context.audioWorklet.addModule("page/player-worklet.js");
    const node = new AudioWorkletNode(this.context, "player", { numberOfInputs: 0, outputChannelCount: [1] });
    node.port.onmessage = ({ data }) => data.utterance === this.utterance && onReport(data);
    node.connect(this.context.destination);
    return node.port;
  }

  // Call from a click or key press: browsers keep a page silent until then.
  begin() {
    this.context.resume();
    this.send(++this.utterance);
  }

  // Samples, "end" of the utterance, or "stop" at once.
  async send(message) {
    (await this.port).postMessage(message);
  }

  get latencyMs() {
    return 1000 * (this.context.outputLatency || this.context.baseLatency || 0);
  }
}
