// Sound at the sample rate of the model. `onReport` receives {type, played, underruns, stalled} of the last utterance:
// "started", "position" and "ended".

import { wav } from "./recording.js";

export const RATE = 24000;
// True on HTTPS and localhost only. Chromium has AudioWorkletNode elsewhere too, but no context that could load one.
export const canStream = Boolean(window.AudioContext && "audioWorklet" in AudioContext.prototype);

// Plays samples as they arrive, through WebAudio.
export class Player {
  constructor(onReport) {
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

// Plays an utterance when all of it has arrived. Reports "ready" as well: a browser may leave it to the person to play.
export class WholePlayer {
  latencyMs = 0;

  constructor(audio, onReport) {
    this.audio = audio;
    this.report = (type) => onReport({ type, played: Math.round(audio.currentTime * RATE) });
    audio.ontimeupdate = () => this.report("position");
    audio.onended = () => this.report("ended");
  }

  // Safari lets an element play later if a click or key press has loaded it.
  begin() {
    this.chunks = [];
    this.audio.onplaying = () => {
      this.audio.onplaying = null;
      this.report("started");
    };
    URL.revokeObjectURL(this.audio.src);
    this.audio.removeAttribute("src");
    this.audio.load();
  }

  send(message) {
    if (message === "stop") this.audio.pause();
    else if (message !== "end") this.chunks.push(message);
    else if (this.chunks.length) this.#play();
    else this.report("ended");
  }

  #play() {
    this.audio.src = URL.createObjectURL(wav(this.chunks, RATE));
    this.report("ready");
    this.audio.play().catch(() => {});
  }
}
